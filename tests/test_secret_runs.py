"""A run whose trials need a secret: nobody else has it, and nothing keeps it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import Command, run_command

SECRET = "not-for-anyone-else-5d8f3c"
NAME = "SEERD_TEST_TOKEN"
GROUP = """
name = "run"
limits = { deadline = "1m", budget = "60gpu-s" }
[cluster]
gpus = 2
[[job]]
spec = "with.toml"
[[job]]
spec = "without.toml"
"""
JOB = """
name = "NAME"
metric = { name = "score", mode = "max" }
[train]
script = "train.py"
launcher = "python"
args = ["{expects}"]
SECRETS
[space]
expects = [EXPECTS]
[policy]
name = "grid"
max_reports = 4
"""
SCRIPT = f"""
import hashlib, os, resource, sys, time
import seerd
trial, value = seerd.trial(), os.environ.get("{NAME}", "")
print("the token is", value, dict(os.environ), flush=True)
has_it = hashlib.sha256(value.encode()).hexdigest() == "DIGEST"
assert has_it == (sys.argv[1] == "it"), "somebody else's"
assert not has_it or resource.getrlimit(resource.RLIMIT_CORE)[0] == 1
while trial.running() and trial.epoch < 4:
    time.sleep(0.5)
    trial.report(score=1.0)
raise SystemExit(f"the last words are {{value}}" if has_it else 0)
"""


def write(folder: Path) -> None:
    (folder / "run.toml").write_text(GROUP)
    for file, names, expects in (
        ("with.toml", f'secrets = ["{NAME}"]', '"it"'),
        ("without.toml", "", '"nothing"'),
    ):
        text = JOB.replace("NAME", Path(file).stem).replace("EXPECTS", expects)
        text = text.replace("SECRETS", names)
        (folder / file).write_text(text)
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    (folder / "train.py").write_text(SCRIPT.replace("DIGEST", digest))


def of_others(run: str) -> Iterator[bytes]:
    """The arguments of all processes, and the environments of the other job's trials."""
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit():
                yield (process / "cmdline").read_bytes()
                environment = (process / "environ").read_bytes()
                if f"SEERD_ATTEMPT={run}/without.".encode() in environment:
                    yield environment
        except OSError:
            continue


def test_a_secret_is_in_the_trials_of_its_job_and_nowhere_else(tmp_path: Path) -> None:
    write(tmp_path)
    env = {**os.environ, "SEERD_HOME": str(tmp_path / "home"), NAME: SECRET}
    run, seen = Command(["run", "run.toml", "--plain"], tmp_path, env), 0
    while run.poll() is None:
        names = [path.name for path in (tmp_path / "home").glob("run-*")]
        for content in of_others(names[0] if names else ""):
            assert SECRET.encode() not in content
            seen += b"SEERD_ATTEMPT" in content
    out, err = run.communicate()
    assert run.returncode == 0, out + err
    assert seen, "no trial of the other job was seen"
    assert SECRET not in out + err
    (folder,) = (tmp_path / "home").glob("run-*")
    logs = "".join(path.read_text() for path in folder.rglob("logs/**/*") if path.is_file())
    assert f"the token is {'*' * len(SECRET)}" in logs
    assert f"the last words are {'*' * len(SECRET)}" in logs
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in kept if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_run_needs_its_secrets_and_a_plan_does_not(tmp_path: Path, command: str) -> None:
    write(tmp_path)
    env = {**os.environ, "SEERD_HOME": str(tmp_path / "home")}
    started = Command([command, "run.toml"], tmp_path, env, merged=True)
    out, _ = started.communicate()
    text = re.sub(r"\s+", " ", out)
    if command == "run":
        assert started.returncode == 2
        assert f"train.secrets: {NAME}: not set here" in text
        assert not list((tmp_path / "home").glob("run-*"))
    else:
        assert started.returncode == 0, text


def test_a_secret_is_no_variable_that_is_kept_in_files(tmp_path: Path) -> None:
    write(tmp_path)
    text = (tmp_path / "with.toml").read_text()
    both = text.replace("secrets =", f'env = {{ {NAME} = "1" }}\nsecrets =')
    (tmp_path / "with.toml").write_text(both)
    env = {**os.environ, "SEERD_HOME": str(tmp_path / "home"), NAME: SECRET}
    done = run_command(["plan", "run.toml"], tmp_path, env)
    assert done.returncode == 2
    assert "it is in train.env too, which is kept in files" in done.stderr
