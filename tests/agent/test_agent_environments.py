"""Interpreters as specs name them: by paths and by commands, with a real agent and real processes.
Starts are warm, signals reach the script, and what the command sets is there.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.testbed.agents import Rig
from seerd.agent.arguments import interpreter_words
from seerd.agent.patterns import ObservedScript
from seerd.agent.protocol import Prepare, Prepared, Refused, Started
from tests.agent.test_agent_warm import wait, warm_processes

SEES = """
import os, sys
open(os.path.join(os.environ["SEERD_DIR"], "seen"), "w").write(
    " ".join([sys.prefix, os.environ.get("ENTERED", "no"), os.environ.get("RANK", "alone")]))
"""
WAITS = """
import os, signal, sys, time
def ends(number, frame):
    open(os.path.join(os.environ["SEERD_DIR"], "seen"), "w").write(f"signal {number}")
    sys.exit(0)
signal.signal(signal.SIGTERM, ends)
open(os.path.join(os.environ["SEERD_DIR"], "ready"), "w").close()
time.sleep(60)
"""
WRAPPERS = {
    "exec": 'export ENTERED=yes; exec "{python}" "$@"',
    "waits": 'export ENTERED=yes; echo entering; "{python}" "$@"; status=$?; exit $status',
}
"""Commands that enter an environment, as `conda activate` and exec do, or as `conda run` does."""
CONTAINER = r"""sh -c 'printf "%s" "[\"/in/a/container\", {}]"'"""


def wrapper(rig: Rig, kind: str) -> str:
    (rig.source / "enter.sh").write_text(WRAPPERS[kind].format(python=sys.executable))
    return "sh enter.sh"


@pytest.mark.parametrize(
    ("kind", "launcher"), [("exec", "python"), ("waits", "python"), ("waits", "torchrun")]
)
def test_a_command_is_what_trials_start_with(rig: Rig, kind: str, launcher: str) -> None:
    client = rig.ready(rig.job(SEES, python=wrapper(rig, kind), launcher=launcher, env={"A": "b"}))
    client.start("t1", gpus=(0,))
    end = client.exit_of("t1")
    assert (end.cause, end.code) == ("finished", 0), "\n".join(end.tail)
    seen = (rig.attempt("t1") / "seen").read_text()
    assert seen == f"{sys.prefix} yes {'0' if launcher == 'torchrun' else 'alone'}"
    assert warm_processes(rig), "nothing stands between it and its forks"


@pytest.mark.parametrize("kind", WRAPPERS)
@pytest.mark.parametrize("preload", [None, []])
def test_a_signal_reaches_the_script(rig: Rig, kind: str, preload: list[str] | None) -> None:
    """Commands that stay between keep signals to themselves: conda/conda#10351 and #8586,
    astral-sh/uv#12830.
    """
    observed = ObservedScript({"accuracy": "accuracy ([0-9.]+)"})
    job = rig.job(WAITS, python=wrapper(rig, kind), preload=preload, observed=observed)
    client = rig.ready(job)
    client.start("t1", gpus=(0,))
    client.until(Started)
    wait((rig.attempt("t1") / "ready").exists)
    client.stop("t1", grace_s=20.0)
    client.exit_of("t1")
    assert (rig.attempt("t1") / "seen").read_text() == "signal 15"


def test_a_path_is_relative_to_the_folder_that_is_named(rig: Rig, tmp_path: Path) -> None:
    """The project's own environment, which lies beside the spec and in no copy."""
    project = tmp_path / "a project"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", project / ".venv"], check=True)
    for number, python in enumerate([".venv/bin/python", "'.venv/bin/python' -I", ""]):
        path = python or f"{project}/.venv/bin/python"
        client = rig.ready(rig.job(SEES, python=path, python_in=str(project)))
        client.start(f"t{number}", gpus=(0,))
        assert client.exit_of(f"t{number}").cause == "finished"
        seen = (rig.attempt(f"t{number}") / "seen").read_text()
        assert seen == f"{project / '.venv'} no alone"


@pytest.mark.parametrize(
    ("python", "why"),
    [
        ("./venv/bin/python", "there is no program"),
        ("sh -c 'echo no environment of this name >&2; exit 3'", "no environment of this name"),
        ("echo hello", "starts no Python"),
        ("no-such-tool run python", "No such file"),
        (CONTAINER, 'is for launcher = "command"'),
    ],
)
def test_what_starts_no_python_is_told_before_any_trial(rig: Rig, python: str, why: str) -> None:
    rig.launch()
    client = rig.connect()
    client.say(Prepare("p", rig.job(SEES, python=python), None))
    said: Any = client.read()
    while not isinstance(said, (Prepared, Refused)):
        said = client.read()
    assert isinstance(said, Refused)
    assert why in said.why
    assert not said.unhealthy


def test_words(tmp_path: Path) -> None:
    (tmp_path / "my env").mkdir()
    (tmp_path / "my env" / "python").touch()
    assert interpreter_words("uv run python", str(tmp_path)) == ["uv", "run", "python"]
    assert interpreter_words("my env/python", str(tmp_path)) == [f"{tmp_path}/my env/python"]
    assert interpreter_words("/usr/bin/python3", str(tmp_path)) == ["/usr/bin/python3"]
    assert interpreter_words("python3", str(tmp_path)) == ["python3"]
