"""A trial that fills a table of processes is ended before nobody can start any more."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bench.testbed.agents import Rig
from seerd.agent import host
from seerd.agent.family import Crowding, ProcessTable
from seerd.agent.protocol import Exited, Reported
from tests.agent.waiting import no_files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")

STARTS = """
import json, os, subprocess, time
with open(os.environ["SEERD_DIR"] + "/out.jsonl", "a") as out:
    line = {"kind": "report", "at": time.time(), "epoch": 1, "unit_s": 0.1}
    line["metrics"] = {"accuracy": 0.5}
    out.write(json.dumps(line) + chr(10))
name = json.load(open(os.environ["SEERD_DIR"] + "/trial.json"))["trial"]
for _ in range({"t1": 2, "t2": 60}[name]):
    subprocess.Popen(["sleep", "600"])
time.sleep(600)
"""
AGENT = """
import runpy, sys
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from seerd.agent import family
family.CGROUPS = Path(sys.argv[1])
sys.argv = sys.argv[4:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs an agent (its Python, -I and its program follow) that sees these cgroups."""


def mine() -> set[int]:
    """The processes of an attempt: this one, which has at least a thread."""
    return {os.getpid()}


@pytest.mark.parametrize(
    ("most", "used", "is_ended"),
    [(2.0, 1.5, True), (2.0, 1.4, False), (2.5, 2.5, True), (2.8, 2.8, False)],
    ids=["three quarters", "less", "half of them attempts'", "mostly others'"],
)
def test_an_attempt_ends_when_a_table_is_full_to_three_quarters_because_of_attempts(
    most: float, used: float, *, is_ended: bool
) -> None:
    """`most` and `used` are in threads of the attempt."""
    threads = 20 * host.threads(os.getpid())
    table = ProcessTable("ulimit -u", round(most * threads), lambda: round(used * threads))
    members = {f"t{number}/1": mine for number in range(20)}
    culprit = Crowding([table]).culprit({"t20/1": set, **members})
    assert bool(culprit) is is_ended
    if culprit:
        assert culprit[0] in members
        assert "ulimit -u" in culprit[1]


def test_while_no_file_can_be_opened_nothing_is_known_of_any_table() -> None:
    before = Crowding()
    with no_files():
        assert not before.may_be()
        assert Crowding().culprit({"t1/1": mine}) is None


def test_the_trial_that_fills_its_cgroup_fails_with_the_reason_and_others_go_on(
    rig: Rig, tmp_path: Path
) -> None:
    for folder in (tmp_path, tmp_path / "pids"):  # version 2, and 1
        folder.mkdir(exist_ok=True)
        (folder / "pids.max").write_text("80")
        (folder / "pids.current").write_text("62")
    rig.inside = (sys.executable, "-c", AGENT, str(tmp_path))
    client = rig.ready(rig.job(STARTS))
    for gpu, trial in enumerate(("t1", "t2")):
        client.start(trial, gpus=(gpu,))
        client.until(Reported, lambda fact, trial=trial: fact.trial == trial)
    end = client.exit_of("t2")
    assert (end.cause, end.code) == ("crashed", None)
    assert "pids.max" in end.tail[-1]
    assert not rig.processes_of("t2")
    assert rig.processes_of("t1")
    assert not [fact for fact in client.facts if isinstance(fact, Exited) and fact.trial == "t1"]
