"""Real runs outlive the version that made them: `tests/another_version` decides otherwise in every
way that `test_other_versions` alters one at a time, and speaks another version of the agents'
protocol.

A run of one policy of each engine is interrupted (Ctrl-C) under the other version, killed (kill -9)
under this one and taken to its end by the other, so it crosses in both directions. `make soak` has a
run of every other policy, too, that is killed. A run's folder is kept as it is each time it is interrupted, killed or finished, and
both versions read them all. The runs go on side by side, since most of their time is trials that
sleep; they end when their trials do, long before any limit.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from seerd.planner.policies import POLICIES
from tests.test_cli import Seerd

ROOT = Path(__file__).parent.parent
PATHS = os.pathsep.join([str(ROOT / "tests" / "another_version"), str(ROOT)])
OTHERWISE = {"PYTHONPATH": PATHS, "SEERD_SPEAKS": "99"}
SPEC = """
name = "{policy}"
metric = {{ name = "accuracy", mode = "max" }}
[train]
script = "./trainer.py"
launcher = "command"
env = {{ SEERD_TEST_EPOCH_S = "0.25", SEERD_TEST_EPOCHS = "24" }}
[space]
lr = {{ low = 0.0, high = 1.0 }}
[policy]
name = "{policy}"
eta = 2
p_max = 2
t_min = "6s"
trials = 4
max_reports = 8
[limits]
deadline = "80s"
budget = "{budget}"
[cluster]
gpus = 2
"""
READER = """
import os, sys
import seerd.runs.reading, seerd.telling.logs, seerd.telling.run_json
from seerd import cli
for line in sys.stdin:
    out, *sys.argv[1:] = line.split()
    reader = os.fork()
    if reader == 0:
        os.dup2(os.open(out, os.O_CREAT | os.O_WRONLY), 1)
        cli.main()
        sys.exit(0)
    os.waitpid(reader, 0)
"""
READING = ("show", "best", "ledger")
"""`replay` decides again, so that is not one of them."""
ENGINES = ("seer", "grid", "sha", "asha")
"""One policy of each: `planner/seer.py`, `clocked.py`, `halving.py`, `asha.py`."""
POLICIES_TRIED = tuple(POLICIES) if "SEERD_SOAK_SEEDS" in os.environ else ENGINES
"""What policies that share an engine keep in their memory is tried in `tests/planner`."""
BUDGETS = {"hyperband": "60gpu-s"}
"""It begins another bracket for as long as there is budget."""
REPORTS = 4
DEPENDS = ("committed", "grace", "release")
"""How the keys of forecasts begin."""


def test_another_version_reads_real_runs_alike_and_takes_them_to_their_end(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with ThreadPoolExecutor(len(POLICIES_TRIED)) as beside:
        runs = [beside.submit(live, policy, tmp_path / policy, kept) for policy in POLICIES_TRIED]
    assert_nothing_left(tmp_path)
    for run in runs:
        run.result()
    assert_read_alike(kept)


def assert_nothing_left(folder: Path) -> None:
    """Of any run in this folder; what is left does not outlive the test."""
    left = [process for policy in POLICIES_TRIED for process in Seerd(folder / policy).processes()]
    for process in left:
        process.kill()
    assert not left


def live(policy: str, folder: Path, kept: Path) -> None:
    """A run to its end; whenever it has ended, for now or for good, its folder is `kept`."""
    with Seerd(folder) as command:
        command.spec.write_text(SPEC.format(policy=policy, budget=BUDGETS.get(policy, "300gpu-s")))
        begin = ["run", str(command.spec)]
        if policy in ENGINES:
            command.more = OTHERWISE
            begin = cut_short(command, begin, signal.SIGINT, kept / f"{policy}-interrupted")
            command.more = {}
        begin = cut_short(command, begin, signal.SIGKILL, kept / f"{policy}-killed")
        command.more = OTHERWISE
        command(*begin, "--plain")
        keep(command, kept / f"{policy}-finished")
        command.more = {}
        assert_taken_to_its_end(command)


def cut_short(command: Seerd, begin: list[str], number: signal.Signals, kept: Path) -> list[str]:
    """A run that is ended so when its trials have made some reports; how to go on with it."""
    run = command.start(*begin, "--plain")
    assert run.stdout is not None
    said = []
    for line in run.stdout:
        said.append(line)
        if sum(" report " in line for line in said) == REPORTS:
            break
    else:
        raise AssertionError(f"the run has ended by itself\n{''.join(said)}{run.communicate()[1]}")
    run.send_signal(number)
    _, err = run.communicate()
    assert run.returncode == {signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 130}[number], err
    keep(command, kept)
    return ["resume", "last"]


def keep(command: Seerd, kept: Path) -> None:
    """What reading commands read; trials of a run that was killed still write to the rest."""
    run = command.run_folder()
    kept.mkdir(parents=True)
    for path in filter(Path.is_file, run.iterdir()):
        shutil.copy(path, kept)
    for logs in run.glob("instances/*/trials/*/*/logs"):
        shutil.copytree(logs, kept / logs.relative_to(run))


def assert_taken_to_its_end(command: Seerd) -> None:
    told = command.json("show", "last")
    assert told["status"] in ("done", "budget")
    assert (
        json.loads(Path(told["best"]["checkpoint"]).read_text())["epoch"] == told["best"]["epoch"]
    )
    assert told["elapsed_s"] <= told["deadline_s"]
    assert told["gpu_min"] <= told["budget_gpu_min"]
    assert_trained_once(told)


def assert_trained_once(told: dict[str, Any]) -> None:
    for trial in told["all_trials"]:
        epochs = [epoch for _, epoch, _ in trial["history"]]
        assert epochs == list(range(1, len(epochs) + 1)), "no report is missing and none came twice"


def assert_read_alike(kept: Path) -> None:
    """To the byte, but for forecasts: what giving everything back would take by that version's
    rules.
    """
    names = sorted(path.name for path in kept.iterdir())
    with ThreadPoolExecutor(2) as beside:
        mine, others = beside.map(partial(readings, kept, names), ({}, OTHERWISE))
    assert mine.keys() == others.keys()
    for what, said in mine.items():
        assert said or what.startswith("best"), what
        if said != others[what]:
            assert without_forecasts(said) == without_forecasts(others[what]), what


def readings(kept: Path, names: Iterable[str], version: dict[str, str]) -> dict[str, bytes]:
    """What each reading command says of each run, by command and run."""
    commands = {"list": "list --json"}
    for name in names:
        commands |= {f"{word}-{name}": f"{word} {name} --json" for word in READING}
        commands[f"logs-{name}"] = f"logs {name} t1"
    out = kept.parent / f"read-{len(version)}"
    out.mkdir()
    lines = "".join(f"{out / what} {command}\n" for what, command in commands.items())
    environment = {**os.environ, "SEERD_HOME": str(kept), **version}
    subprocess.run(
        [sys.executable, "-c", READER], input=lines, env=environment, text=True, check=True
    )
    return {what: (out / what).read_bytes() for what in commands}


def without_forecasts(said: bytes) -> Any:
    return dropped(json.loads(said))


def dropped(told: Any) -> Any:
    if isinstance(told, dict):
        return {key: dropped(value) for key, value in told.items() if not key.startswith(DEPENDS)}
    return [dropped(one) for one in told] if isinstance(told, list) else told
