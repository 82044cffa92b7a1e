"""What a trial writes becomes facts; what it should not have written becomes nothing."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seerd.agent import clock, plainfile
from seerd.agent.kept_reports import ReportLimit
from seerd.agent.manifest import Comparison
from seerd.agent.protocol import Complained, Reported, Training
from seerd.agent.transfer import Directory
from seerd.agent.trial_output import (
    FAILURES_REPORTED,
    MOST_AT_ONCE,
    MOST_BEHIND,
    QUIET_S,
    TrialOutput,
)
from tests.agent.test_agent_transfer import save

GOAL = Comparison("accuracy", "max")
REPORT = {"kind": "report", "at": 1.0, "epoch": 1, "metrics": {"accuracy": 0.5}, "unit_s": 0.1}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3)
    ),
    max_leaves=6,
)

FIELDS = {"epoch": JSON, "metrics": JSON, "name": JSON, "at": JSON, "unit_s": JSON, "save_s": JSON}
NEARLY = st.fixed_dictionaries(
    {"kind": st.sampled_from(["training", "report", "checkpoint"])}, optional=FIELDS
)


class Trial:
    """A trial's output and what that reads it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "out.jsonl"
        self.complaints: list[Complained] = []
        self.output = TrialOutput(
            self.path,
            "t1",
            1,
            folder / "local",
            Directory(folder / "store", GOAL),
            GOAL,
            ReportLimit(),
        )

    def write(self, *lines: Any) -> None:
        with self.path.open("ab") as out:
            out.write(
                b"".join(
                    line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
                    for line in lines
                )
            )

    def facts(self) -> list[Any]:
        """What it tells but for complaints, which are kept."""
        told = self.all()
        self.complaints += [fact for fact in told if isinstance(fact, Complained)]
        return [fact for fact in told if not isinstance(fact, Complained)]

    def all(self) -> list[Any]:
        told = [fact for facts in self.output.drain_all() for fact in facts]
        while self.output.can_store():
            told += self.output.store()
        return told


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path)


def test_lines_become_facts_once_they_are_whole(trial):
    line = json.dumps(REPORT).encode()
    assert not trial.output.has_grown()
    trial.write(line[:20])
    assert trial.facts() == []
    trial.write(line[20:] + b"\n")
    assert [fact.epoch for fact in trial.facts()] == [1]
    assert not trial.output.has_grown()


def saved(trial: Trial, *rows: tuple[str, float | None]) -> None:
    """Checkpoints of these names and metrics, and the lines about them."""
    for name, metric in rows:
        save(trial.path.parent / "local", name, metrics={"accuracy": metric})
    trial.write(*({"kind": "checkpoint", "name": name, "save_s": 0.1} for name, _ in rows))


def stored(trial: Trial) -> list[str]:
    return [fact.name for fact in trial.facts()]


def test_a_better_checkpoint_is_stored_before_the_newest_and_what_was_overtaken_is_not(trial):
    saved(trial, ("1", 0.5), ("2", 0.9), ("3", 0.7), ("4", 0.6), ("5", 0.8))
    assert stored(trial) == ["2", "5"]
    saved(trial, ("6", 0.85), ("7", None), ("8", 0.1))
    assert stored(trial) == ["8"], "none is better than what is stored"
    saved(trial, ("9", 0.95))
    assert stored(trial) == ["9"]


def test_a_better_checkpoint_that_is_damaged_gives_way_to_the_newest(trial):
    saved(trial, ("1", 0.9), ("2", 0.5), ("3", 0.6))
    (trial.path.parent / "local" / "1.pt").unlink()
    assert stored(trial) == ["3"]


def test_what_an_agent_before_has_stored_counts(trial, tmp_path):
    saved(trial, ("1", 0.9))
    told = trial.facts()
    again = Trial(tmp_path)
    again.output.note_reported(told)
    saved(again, ("2", 0.8), ("3", 0.7))
    assert stored(again) == ["3"]


def test_a_moment_that_cannot_be_is_now(trial):
    now, wall, steady = clock.now(), time.time(), clock.since_boot()
    trial.write(
        {**REPORT, "at": wall - 5, "epoch": 1},
        {**REPORT, "at": wall - 999, "since_boot": steady - 7, "epoch": 2},
        {**REPORT, "at": wall + 99, "epoch": 3},
        {**REPORT, "at": "x", "epoch": 4},
        {**REPORT, "at": wall - 5, "since_boot": steady + 99, "epoch": 5},
    )
    told = trial.facts()
    assert [fact.at for fact in told[:2]] == pytest.approx([now - 5, now - 7], abs=0.05)
    assert all(now <= fact.at <= clock.now() for fact in told[2:])


def test_nothing_is_told_twice_also_not_by_the_next_agent(trial, tmp_path):
    at = clock.since_boot()
    last = {**REPORT, "epoch": 2, "since_boot": at}
    trial.write({"kind": "training", "epoch": 0}, REPORT, REPORT, last)
    told = trial.facts()
    assert [type(fact) for fact in told] == [Training, Reported, Reported]
    again = Trial(tmp_path)
    again.output.note_reported(told[:2])
    assert again.facts() == told[2:]


def test_a_damaged_report_does_not_take_the_place_of_a_good_one(trial):
    trial.write({**REPORT, "metrics": "none"}, REPORT)
    assert [fact.metrics for fact in trial.facts()] == [{"accuracy": 0.5}]


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-Infinity", "1e999", "null", "1" + "0" * 400]
)
def test_a_metric_that_is_no_finite_number_is_none(trial, number):
    trial.write(json.dumps(REPORT).replace("0.5", number).encode() + b"\n")
    assert trial.facts()[0].metrics == {"accuracy": None}


def test_more_than_fits_at_once_is_all_told(trial):
    lines = [
        {**REPORT, "epoch": epoch, "line": "x" * (MOST_AT_ONCE // 40)} for epoch in range(1, 61)
    ]
    trial.write(*lines)
    assert trial.path.stat().st_size > MOST_AT_ONCE
    assert len(trial.facts()) == len(lines)


def test_a_line_without_end_is_passed_over(trial):
    trial.write(b"x" * (3 * MOST_AT_ONCE), b"\n", REPORT)
    assert [fact.epoch for fact in trial.facts()] == [1]


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe\n",
        b"[" * 50_000 + b"\n",
        b"null\n",
        b"{}\n",
        {"kind": "exited", "code": 0},
        {"kind": ["report"]},
        b" " * (1 << 16) + b"{}\n",
        {**REPORT, "epoch": 2, "longer than a line may be": "x" * (1 << 16)},
        {**REPORT, "epoch": -1},
        {**REPORT, "epoch": True},
        {**REPORT, "epoch": 10**16},
        {**REPORT, "metrics": {str(n): 1 for n in range(65)}},
        {"kind": "checkpoint", "name": "../../secret"},
        {"kind": "checkpoint", "name": ["a"]},
        {"kind": "checkpoint", "name": "not-there"},
        b'{"kind": "checkpoint", "name": "\\ud800"}\n',
    ],
)
def test_hostile_lines_are_dropped_and_reported(trial, line):
    trial.write(line, REPORT)
    assert [fact.epoch for fact in trial.facts()] == [1]
    assert [fact.what for fact in trial.complaints] in (["output"], ["not-stored"])


@given(st.lists(st.binary(max_size=60) | JSON | NEARLY, max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_output_whatever_raises(tmp_path, lines):
    trial = Trial(tmp_path)
    trial.path.unlink(missing_ok=True)
    trial.write(*lines)
    trial.facts()


def test_what_is_said_about_hostile_lines_is_bounded(trial):
    trial.write(*[b"junk\n"] * 1000)
    assert trial.facts() == []
    assert [(fact.what, fact.why[:38]) for fact in trial.complaints] == [
        ("output", "line 1 of its out.jsonl (junk): Expect")
    ]


def test_each_kind_of_complaint_is_told_once_for_an_attempt(trial, tmp_path):
    trial.write(b"junk\n", {"kind": "checkpoint", "name": "none"})
    told = trial.all()
    assert [fact.what for fact in told] == ["output", "not-stored"]
    again = Trial(tmp_path)
    again.output.note_reported(told)
    again.write(b"more junk\n")
    assert again.all() == []


def test_a_line_that_lacks_something_is_told_with_its_number_and_what_it_lacks(trial):
    trial.write(REPORT, {"kind": "report", "epoch": 2})
    assert [fact.epoch for fact in trial.facts()] == [1]
    assert [fact.why for fact in trial.complaints] == [
        """line 2 of its out.jsonl ({"kind": "report", "epoch": 2}): 'metrics' is missing"""
    ]


def test_checkpoints_that_hold_nothing_are_told(trial):
    trial.write(
        {"kind": "checkpoint", "name": "none", "tracked": ["model"]},
        {"kind": "checkpoint", "name": "none", "tracked": []},
    )
    assert "untracked" in [fact.what for fact in trial.all()]
    fine = Trial(trial.path.parent / "other")
    fine.path.parent.mkdir()
    fine.write({"kind": "checkpoint", "name": "none", "tracked": ["model"]})
    assert "untracked" not in [fact.what for fact in fine.all()]


def test_a_store_that_cannot_be_written_is_told_when_it_has_failed_three_times(trial):
    saved(trial, ("1", 0.9))
    (trial.path.parent / "store").write_text("no folder")
    trial.output.drain()
    told = [fact for _ in range(FAILURES_REPORTED + 1) for fact in trial.output.store()]
    assert [(fact.what, "cannot be copied" in fact.why) for fact in told] == [("not-stored", True)]


def test_an_error_that_a_trial_goes_on_after_is_told_once(trial):
    trial.output.begin(0.0)
    for _ in range(2):
        trial.output.look(lambda: "ValueError: no")
        trial.output._quiet_s = 0.0
    told = [(fact.what, fact.why) for fact in trial.all()]
    assert told == [("quiet", ""), ("error", "ValueError: no"), ("quiet", "")]


def test_silence_is_told_until_there_is_a_report(trial, monkeypatch):
    now, error = [100.0], ""
    monkeypatch.setattr("seerd.agent.trial_output.time.monotonic", lambda: now[0])

    def silent_at(moment: float) -> bool:
        now[0] = 100.0 + moment
        trial.output.look(lambda: error)
        return [fact.what for fact in trial.all()][:1] == ["quiet"]

    assert not silent_at(50.0), "it has not begun"
    now[0] = 100.0
    trial.output.begin()
    times = [at for at in range(0, 200, 10) if silent_at(at)]
    assert times == [QUIET_S, 3 * QUIET_S, 9 * QUIET_S]
    trial.write(REPORT)
    assert [fact.epoch for fact in trial.facts()] == [1]
    assert not silent_at(10_000.0)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_an_output_that_is_no_file_is_not_read(trial, make):
    make(trial.path)
    assert trial.facts() == []
    with pytest.raises(OSError):
        plainfile.read(trial.path, 0, 10)


def test_of_a_trial_that_never_said_anything_nothing_is_said(trial, caplog):
    assert not trial.path.exists()
    assert trial.output.drain() == []
    assert not caplog.text


def test_of_a_flood_the_best_and_the_last_are_told_and_that_is_said(trial):
    trial.write(
        *[{**REPORT, "epoch": n, "metrics": {"accuracy": -abs(n - 700)}} for n in range(900)]
    )
    told = trial.facts()
    assert 100 <= len(told) < 120
    assert [fact.epoch for fact in told[-2:]] == [700, 899]
    assert [one.what for one in trial.complaints] == ["often"]


def test_what_is_written_faster_than_it_can_be_read_is_read_from_near_its_end(trial):
    line = json.dumps({**REPORT, "line": "x" * 60000}).encode() + b"\n"
    trial.write(*[line] * (2 * MOST_BEHIND // len(line)), {**REPORT, "epoch": 7000})
    assert trial.output.drain()
    assert trial.output.behind() < MOST_BEHIND // 2
    told = trial.all()
    assert told[0].epoch == 7000
    assert "output" not in [fact.what for fact in told[1:]]
