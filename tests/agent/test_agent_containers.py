"""Trials in containers of Podman: what they see, how they end, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.testbed.agents import PATIENCE_S, RUN, Client, Rig
from seerd.agent.protocol import Noticed, Prepare, Prepared, Refused, Start, Started
from tests.podman import IMAGE, Podman, podman_in

SEES = """
import json, os, sys
with open(os.path.join(os.environ["SEERD_DIR"], "seen"), "w") as file:
    json.dump({"argv": sys.argv, "executable": sys.executable, "environ": dict(os.environ),
               "root": sorted(os.listdir("/")), "pid": os.getpid(), "uid": os.getuid(),
               "cwd": os.getcwd(), "parent": os.getppid()}, file)
print("printed", os.environ.get("TOKEN"), flush=True)
sys.exit(3)
"""
SLEEPS = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], {})
    os._exit(0)
os.wait()
print("up", flush=True)
time.sleep(600)
"""
SECRET = 'it\'s "$HOME"\nand `more`'


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    with tempfile.TemporaryDirectory(prefix="podman-") as top, podman_in(Path(top)) as podman:
        yield podman


@pytest.fixture
def rig_inside(rig: Rig, podman: Podman) -> Rig:
    """A place for an agent that finds this Podman. Nothing of its own is in the image."""
    del rig.env["PYTHONPATH"]
    rig.env |= podman.env
    rig.fork = None
    return rig


def wait(true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def log_of(rig: Rig, trial: str = "t1") -> str:
    log = rig.attempt(trial) / "logs" / "launcher.log"
    return log.read_text() if log.exists() else ""


def prepared(rig: Rig, script: str, **other: Any) -> Client:
    return rig.ready(rig.job(script, **{"python": "python3", "container": IMAGE, **other}))


def containers(podman: Podman) -> list[str]:
    return podman("ps", "--all", "--quiet").split()


@pytest.mark.parametrize("preload", [None, []], ids=["warm", "cold"])
def test_a_script_sees_the_image_and_the_paths_of_its_agent(
    rig_inside: Rig, podman: Podman, preload: list[str] | None
) -> None:
    rig = rig_inside
    client = prepared(
        rig,
        SEES,
        args=["a b"],
        preload=preload,
        env={"A": "1 2"},
        secrets=["TOKEN"],
        setup=["echo of the setup > made"],
    )
    client.say(Start("s", "t1", 1, [1], {}, 17, [], secrets={"TOKEN": SECRET}))
    end = client.exit_of()
    assert (end.cause, end.code) == ("crashed", 3), "\n".join(end.tail)
    seen = json.loads((rig.attempt() / "seen").read_text())
    assert seen["argv"] == ["train.py", "a b"]
    assert "home" not in seen["root"]
    assert (seen["cwd"], seen["uid"]) == (str(rig.attempt() / "work"), os.getuid())
    assert (rig.attempt() / "work" / "made").read_text() == "of the setup\n"
    environment = seen["environ"]
    assert (environment["A"], environment["TOKEN"]) == ("1 2", SECRET)
    assert environment["MADE_BY"] == "image"
    assert environment["SEERD_ATTEMPT"] == f"{RUN}/t1/1"
    assert "XDG_CACHE_HOME" not in environment
    assert "printed" in log_of(rig)
    assert SECRET.splitlines()[0] not in log_of(rig)
    started = client.until(Started)
    assert started.pid == seen["pid"]
    assert not [fact for fact in client.facts if isinstance(fact, Noticed)]
    if preload is not None:
        wait(lambda: not containers(podman))


@pytest.mark.parametrize("preload", [None, []], ids=["warm", "cold"])
def test_an_attempt_is_killed_with_all_that_it_has_started(
    rig_inside: Rig, podman: Podman, preload: list[str] | None
) -> None:
    rig = rig_inside
    client = prepared(rig, SLEEPS, preload=preload)
    client.start("t1", gpus=(0,))
    client.start("t2", gpus=(1,))
    wait(lambda: "up" in log_of(rig) and "up" in log_of(rig, "t2"))
    started = client.until(Started, lambda fact: fact.trial == "t1")
    strangers = [p for p in psutil.process_iter() if "time.sleep(600)" in " ".join(p.cmdline())]
    assert len(strangers) == 2
    client.stop("t1")
    assert client.exit_of("t1").code == -signal.SIGKILL
    assert not psutil.pid_exists(started.pid)
    assert rig.processes_of("t2")
    assert sum(p.is_running() and p.status() != "zombie" for p in strangers) == 1
    client.stop("t2")
    assert client.exit_of("t2").code == -signal.SIGKILL
    assert not any(p.is_running() and p.status() != "zombie" for p in strangers)
    if preload is not None:
        assert containers(podman) == []
    rig.processes[-1].send_signal(signal.SIGTERM)
    assert rig.processes[-1].wait() == 0
    assert containers(podman) == []
    assert [p for p in psutil.process_iter() if RUN in _environment(p)] == []


def _environment(process: psutil.Process) -> str:
    try:
        return process.environ().get("SEERD_ATTEMPT", "")
    except psutil.Error:
        return ""


def test_a_program_of_the_image_is_found_on_its_path(rig_inside: Rig) -> None:
    rig = rig_inside
    (rig.source / "says").write_text("#!/bin/sh\necho said $1 from $PWD\n")
    (rig.source / "says").chmod(0o755)
    client = prepared(
        rig, "", launcher="command", script="sh", args=["-c", "says it; exit 5"], python=""
    )
    client.start()
    end = client.exit_of()
    assert (end.cause, end.code) == ("crashed", 5)
    assert f"said it from {rig.attempt() / 'work'}" in log_of(rig)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"container": "localhost:1/none:1"}, "podman cannot fetch the image localhost:1/none:1"),
        ({"python": "pythonless"}, "pythonless starts no Python in the image"),
        ({"mounts": ["/nowhere"]}, "there is no /nowhere on this machine"),
        ({"setup": ["echo no >&2; exit 9"]}, "ended with exit status 9"),
    ],
)
def test_what_cannot_be_is_refused_in_the_engines_own_words(
    rig_inside: Rig, other: dict[str, Any], says: str
) -> None:
    rig = rig_inside
    rig.launch()
    client = rig.connect()
    client.say(Prepare("p", rig.job(**{"python": "python3", "container": IMAGE, **other})))
    refused = client.until(Refused)
    assert says in refused.why
    assert not refused.unhealthy


def test_what_a_dead_agent_has_left_is_removed_by_the_next(rig_inside: Rig, podman: Podman) -> None:
    rig = rig_inside
    client = prepared(rig, SLEEPS, preload=[])
    client.start()
    wait(lambda: "up" in log_of(rig))
    rig.lose_agent()
    assert containers(podman)
    rig.launch()
    client = rig.connect()
    assert client.exit_of().cause == "lost"
    client.say(Prepare("q", rig.job(SLEEPS, python="python3", container=IMAGE)))
    client.until(Prepared, lambda fact: fact.order == "q")
    assert rig.processes_of() == []
