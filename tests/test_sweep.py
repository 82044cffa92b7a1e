"""What runs have left behind: which of it is dead, and what a sweep does about it on the rig."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.testbed.rig import Rig, guest
from seerd.backends.base import Left
from seerd.commands import sweep
from seerd.commands.sweep import QUIET_S, KnownRun, decide, known_run
from seerd.core.codec import decode_decisions, decode_event
from seerd.shell.home import Home, RunFolder
from seerd.shell.journal import Entry, Journal
from tests.commands import run_command

ROOT = Path(__file__).parent.parent
FINISHED = ROOT / "tests" / "journals" / "format2" / "done.jsonl"
NOW = 1_800_000_000.0
ME = "arn:aws:sts::123456789012:user/moto"


def at(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def left(*, hard_end: str = at(NOW + 600), age_s: float = 1000.0) -> Left:
    return Left(
        "instance",
        "i-0123456789abcdef0",
        "digits-1",
        "digits",
        hard_end,
        "running",
        "g4dn.xlarge",
        age_s,
    )


LIVING, SILENT, JUST_NOW, OVER = (
    KnownRun(77, False, 1e6),
    KnownRun(None, False, QUIET_S),
    KnownRun(None, False, 3.0),
    KnownRun(None, True, 3.0),
)


@pytest.mark.parametrize(
    ("known", "hard_end", "older_than_s", "dead", "why"),
    [
        (None, at(NOW + 600), None, False, "no run here has this name, and ends at 2027"),
        (None, at(NOW + 600), 999.0, True, "it is older than 16m39s"),
        (None, at(NOW + 600), 1001.0, False, "no run here has this name"),
        (None, at(NOW - 1), None, True, "its hard end, 2027-01-15T07:59:59Z, has passed"),
        (None, "", None, False, "it has no hard end"),
        (None, "tomorrow", None, False, "it has no hard end"),
        (LIVING, at(NOW + 600), None, False, "process 77 runs it; to end it: seerd stop digits-1"),
        (LIVING, at(NOW + 600), 1.0, False, "process 77 runs it"),
        (LIVING, at(NOW - 1), None, True, "its hard end"),
        (SILENT, at(NOW + 600), None, True, "no process runs it, and its journal is silent for 5m"),
        (JUST_NOW, at(NOW + 600), None, False, "seerd resume digits-1 goes on"),
        (JUST_NOW, at(NOW + 600), 999.0, True, "it is older than"),
        (OVER, at(NOW + 600), None, True, "its run is over"),
    ],
)
def test_what_is_dead(
    known: KnownRun | None, hard_end: str, older_than_s: float | None, dead: bool, why: str
) -> None:
    verdict = decide(left(hard_end=hard_end), known, NOW, older_than_s)
    assert (verdict.dead, why in verdict.why) == (dead, True), verdict


@pytest.mark.parametrize("known", [None, LIVING, JUST_NOW, OVER])
def test_what_waits_for_another_run_is_ended_by_a_sweep_and_not_by_the_next_run(
    known: KnownRun | None,
) -> None:
    waits = replace(left(), waits=True)
    assert decide(waits, known, NOW).dead
    at_start = decide(waits, known, NOW, waiting_too=False)
    assert not at_start.dead
    assert "waits for another run until 2027" in at_start.why
    assert decide(waits, known, NOW + 700, waiting_too=False).dead, "it should have ended"


@given(
    process=st.none() | st.integers(1, 9),
    over=st.booleans(),
    quiet_s=st.floats(0, 1e7),
    ends_in_s=st.integers(1, 10**6),
    age_s=st.floats(0, 1e7),
    older_than_s=st.none() | st.floats(0, 1e7),
)
def test_what_a_process_runs_is_kept_until_its_hard_end(
    process: int | None,
    over: bool,
    quiet_s: float,
    ends_in_s: int,
    age_s: float,
    older_than_s: float | None,
) -> None:
    one = left(hard_end=at(NOW + ends_in_s), age_s=age_s)
    verdict = decide(one, KnownRun(process, over, quiet_s), NOW, older_than_s)
    assert not (verdict.dead and process is not None)
    assert decide(one, KnownRun(process, over, quiet_s), NOW + ends_in_s, older_than_s).dead
    assert verdict.why


# ---------------------------------------------------------------- on the rig


def launch(rig: Rig, run: str, hard_end: float, owner: str = ME) -> str:
    """An instance as a run has them."""
    tags = {
        "seerd:run": run,
        "seerd:name": "digits",
        "seerd:owner": owner,
        "seerd:hard-end": at(hard_end),
    }
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    (name,) = guest.launch(rig, TagSpecifications=[{"ResourceType": "instance", "Tags": pairs}])
    return name


def record(home: Home, run: str, events: int | None = None) -> RunFolder:
    """A run of this home: its journal as a real one was, or the first events of it."""
    folder = RunFolder(home.path / run)
    folder.path.mkdir(parents=True)
    rows = [json.loads(line) for line in FINISHED.read_text().splitlines()][:events]
    with Journal.create(folder.journal, time.time() - 100.0) as journal:
        journal.append([_entry(number, row) for number, row in enumerate(rows, 1)])
    return folder


def _entry(number: int, row: dict[str, Any]) -> Entry:
    event, decided = (json.dumps(row[key]).encode() for key in ("event", "decisions"))
    return Entry(number, decode_event(event), decode_decisions(decided))


def silence(folder: RunFolder, seconds: float) -> None:
    """As if its journal had been written so long ago."""
    moment = time.time() - seconds
    for path in folder.path.glob("journal.db*"):
        os.utime(path, (moment, moment))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def seerd(rig: Rig, home: Home, *args: str, code: int = 0) -> str:
    environment = {**os.environ, **rig.env, "SEERD_HOME": str(home.path), "COLUMNS": "200"}
    done = run_command(args, ROOT, environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if "--json" in args else done.stdout + done.stderr


def live(rig: Rig) -> set[str]:
    return {one.id for one in rig.instances()}


def test_a_sweep_ends_the_dead_and_keeps_the_living(rig: Rig, home: Home) -> None:
    hour = time.time() + 3600.0
    overdue = launch(rig, "elsewhere-1", time.time() - 5.0)
    elsewhere = launch(rig, "elsewhere-2", hour)
    foreign = launch(
        rig, "elsewhere-3", time.time() - 5.0, owner="arn:aws:iam::123456789012:user/somebody-else"
    )
    killed, finished, fresh = (launch(rig, run, hour) for run in ("killed", "finished", "fresh"))
    silence(record(home, "killed", events=3), 400.0)
    record(home, "finished")
    record(home, "fresh", events=3)
    running = record(home, "running", events=3)
    runs_it = launch(rig, "running", hour)
    silence(running, 400.0)
    everything = {overdue, elsewhere, foreign, killed, finished, fresh, runs_it}

    with running.locked():
        shown = seerd(rig, home, "sweep", "--dry-run")
        assert live(rig) == everything
        assert "3 would be ended, 3 kept" in shown
        assert foreign not in shown
        told = json.loads(seerd(rig, home, "sweep", "--json", "--region", "us-east-1"))
    assert {row["id"] for row in told["found"] if row["ended"]} == {overdue, killed, finished}
    assert {row["id"] for row in told["found"] if not row["dead"]} == {elsewhere, fresh, runs_it}
    assert {row["usd_per_h"] for row in told["found"]} == {12.24}
    assert (told["owner"], told["region"], told["dry_run"]) == (ME, "us-east-1", False)
    assert live(rig) == {elsewhere, foreign, fresh, runs_it}

    rig.set_shutting_down(180.0)
    shown = seerd(rig, home, "sweep", "--older-than", "1s")
    assert "older than 1s" in shown
    assert live(rig) == {foreign}
    assert "0 instances, 0 volumes (3 still shutting down, not billed any more)" in seerd(
        rig, home, "sweep"
    )
    told = json.loads(seerd(rig, home, "sweep", "--json"))
    assert (told["found"], len(told["ending"])) == ([], 3)


def test_disks_that_nothing_takes_along_are_deleted_by_age(rig: Rig, home: Home) -> None:
    pairs = [{"Key": "seerd:run", "Value": "elsewhere"}, {"Key": "seerd:owner", "Value": ME}]
    ec2 = guest.client(rig, "ec2")
    volume = ec2.create_volume(
        AvailabilityZone="us-east-1a",
        Size=10,
        TagSpecifications=[{"ResourceType": "volume", "Tags": pairs}],
    )["VolumeId"]
    assert f"volume {volume} (10 GB, available)" in seerd(rig, home, "sweep")
    rig.deny("ec2:DeleteVolume")
    assert "could not be ended" in seerd(rig, home, "sweep", "--older-than", "0s", code=5)
    rig.no_faults()
    assert "1 ended" in seerd(rig, home, "sweep", "--older-than", "0s")
    assert "0 volumes" in seerd(rig, home, "sweep")


def test_what_aws_refuses_is_told_with_status_5(rig: Rig, home: Home) -> None:
    rig.deny("ec2:DescribeInstances")
    assert "DescribeInstances: your credentials do not permit it" in seerd(
        rig, home, "sweep", code=5
    )
    assert "--older-than 2: write a duration" in seerd(
        rig, home, "sweep", "--older-than", "2", code=2
    )


def test_nobody_takes_up_a_run_that_is_being_swept(rig: Rig, home: Home) -> None:
    folder = record(home, "killed", events=3)
    silence(folder, 400.0)
    found = sweep.judged(home, [left_of(launch(rig, "killed", time.time() + 3600.0))])
    assert found[0].dead

    async def end() -> list[sweep.SweepResult]:
        from seerd.aws.cloud import Cloud

        async with Cloud("us-east-1") as cloud:
            return await sweep._end(cloud, home, found)

    with folder.locked(), pytest.MonkeyPatch.context() as patch:
        for name, value in rig.env.items():
            patch.setenv(name, value)
        (one,) = asyncio.run(end())
    assert not one.dead
    assert "is being run by process" in one.why
    assert len(live(rig)) == 1


def left_of(instance: str) -> Left:
    return Left(
        "instance",
        instance,
        "killed",
        "digits",
        at(time.time() + 3600.0),
        "running",
        "p3.8xlarge",
        60.0,
    )


def test_a_new_run_ends_what_dead_ones_have_left(
    rig: Rig, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in rig.env.items():
        monkeypatch.setenv(name, value)
    silence(record(home, "killed", events=3), 400.0)
    hour = time.time() + 3600.0
    killed, elsewhere = launch(rig, "killed", hour), launch(rig, "elsewhere", hour)
    (line,) = asyncio.run(sweep.at_start(home, "us-east-1", ME))
    assert line.startswith(f"instance {killed} (p3.8xlarge, ")
    assert "of run killed" in line
    assert "ended, no process runs it" in line
    assert live(rig) == {elsewhere}
    assert rig.calls.get("sts:GetCallerIdentity") is None
    assert asyncio.run(sweep.at_start(home, "us-east-1", ME)) == []
    rig.deny("ec2:DescribeInstances")
    (line,) = asyncio.run(sweep.at_start(home, "us-east-1", ME))
    assert "was not found out" in line
    assert "do not permit" in line


def test_how_it_is_with_a_run_of_this_home(home: Home) -> None:
    running = record(home, "running", events=3)
    with running.locked():
        assert known_run(running, time.time()).process == os.getpid()
    known = known_run(running, time.time())
    assert (known.process, known.over) == (None, False)
    assert known_run(record(home, "finished"), time.time()).over
    (running.journal).write_bytes(b"no journal")
    assert not known_run(running, time.time()).over
