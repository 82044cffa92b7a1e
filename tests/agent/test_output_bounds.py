"""What becomes of a trial's lines, field by field, and at the bounds of what is taken."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seerd.agent import clock, trial_output
from seerd.agent.kept_reports import ReportLimit
from seerd.agent.manifest import Comparison, Manifest
from seerd.agent.protocol import Checkpointed, Complained, Reported, Training
from seerd.agent.transfer import Directory, NotNowError
from seerd.agent.trial_output import TrialOutput
from tests.agent.test_agent_transfer import save

GOAL = Comparison("accuracy", "max", ["loss < 2"])
REPORT = {"kind": "report", "epoch": 1, "metrics": {"accuracy": 0.5}, "unit_s": 0.25}


class Store(Directory):
    """One that has a place only while `places`."""

    places = True
    tries = 0

    def put(self, local: Path, name: str) -> tuple[str, Manifest]:
        self.tries += 1
        if not self.places:
            raise NotNowError("the store is full")
        return super().put(local, name)


class Trial:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "out.jsonl"
        self.local = folder / "local"
        self.store = Store(folder / "store", GOAL)
        self.now = 0.0
        limit = ReportLimit(clock=lambda: self.now)
        self.output = TrialOutput(self.path, "t1", 3, self.local, self.store, GOAL, limit)

    def write(self, *lines: Any) -> None:
        with self.path.open("ab") as out:
            for line in lines:
                out.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")

    def drained(self, *lines: Any) -> list[Any]:
        self.write(*lines)
        return [replace(fact, seq=9) for fact in self.output.drain()]

    def stored(self) -> list[Any]:
        return [replace(fact, seq=9) for fact in self.output.store()]

    def saves(self, name: str, accuracy: float | None = 0.5) -> dict[str, Any]:
        save(self.local, name, metrics={"accuracy": accuracy})
        return {"kind": "checkpoint", "name": name, "save_s": 1.5}


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path)


def test_a_report_is_told_as_it_was_made(trial: Trial) -> None:
    before = clock.now()
    (told,) = trial.drained({**REPORT, "line": "x" * 1001})
    assert before <= told.at <= clock.now()
    assert told == Reported(9, told.at, "t1", 3, 1, {"accuracy": 0.5}, 0.25, "x" * 1000)
    (again,) = trial.drained({**REPORT, "epoch": 2, "metrics": {"a": None, "b": 7}})
    assert (again.epoch, again.metrics, again.line) == (2, {"a": None, "b": 7.0}, "")
    assert trial.drained({**REPORT, "epoch": 2}, {**REPORT, "epoch": 1}) == []


def test_the_begin_of_training_is_told_once(trial: Trial) -> None:
    (told,) = trial.drained({"kind": "training", "epoch": 0})
    assert told == Training(9, told.at, "t1", 3, 0)
    assert trial.drained({"kind": "training", "epoch": 4}) == []


@pytest.mark.parametrize(
    ("unit_s", "told_s"),
    [
        *((0, 0.0), (86399.5, 86399.5), (86400, 0.0), (-0.1, 0.0), (3, 3.0)),
        *((True, 0.0), ("1", 0.0), (None, 0.0), (..., 0.0)),
    ],
)
def test_a_duration_that_cannot_be_is_none(trial: Trial, unit_s: Any, told_s: float) -> None:
    line = {key: value for key, value in {**REPORT, "unit_s": unit_s}.items() if value is not ...}
    (told,) = trial.drained(line)
    assert told.unit_s == told_s


@pytest.mark.parametrize(("ago_s", "counts"), [(86300, True), (86500, False), (-5, False)])
@pytest.mark.parametrize("by", ["at", "since_boot"])
def test_a_moment_counts_if_it_was_within_a_day(
    trial: Trial, by: str, ago_s: float, *, counts: bool
) -> None:
    base = time.time() if by == "at" else clock.since_boot()
    (told,) = trial.drained({**REPORT, by: base - ago_s})
    assert (abs(told.at - (clock.now() - ago_s)) < 5) is counts
    assert counts or abs(told.at - clock.now()) < 5


def test_a_stored_checkpoint_is_told_with_what_its_manifest_says(trial: Trial) -> None:
    assert trial.drained(trial.saves("7")) == []
    assert (trial.output.waits(), trial.output.can_store()) == (True, True)
    before = clock.now()
    (told,) = trial.stored()
    manifest = Manifest.read(trial.local / "7.json")
    assert before <= told.at <= clock.now()
    assert 1.5 <= told.save_s < 10
    assert told == Checkpointed(
        *(9, told.at, "t1", 3, "7", 4, {"accuracy": 0.5}, manifest.sha256, 7, told.save_s),
        free=told.free,
    )
    assert told.free > 0
    assert (trial.output.waits(), trial.output.can_store()) == (False, False)
    assert trial.drained(trial.saves("7")) == []
    assert not trial.output.waits()


def test_a_store_without_a_place_is_told_at_the_third_failure_and_once(trial: Trial) -> None:
    trial.drained(trial.saves("1"))
    trial.store.places = False
    assert [trial.stored(), trial.stored()] == [[], []]
    (told,) = trial.stored()
    assert told == Complained(9, told.at, "t1", 3, "not-stored", "the store is full")
    assert trial.stored() == []
    assert trial.output.waits()
    trial.store.places = True
    assert [fact.name for fact in trial.stored()] == ["1"]


def test_failures_are_counted_from_the_last_success(trial: Trial) -> None:
    for name in ("1", "2"):
        trial.drained(trial.saves(name, 0.5 + int(name) / 10))
        trial.store.places = False
        assert [trial.stored(), trial.stored()] == [[], []]
        trial.store.places = True
        assert len(trial.stored()) == 1


def test_reports_that_were_kept_back_are_news_once_they_may_be_told(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seerd.agent.kept_reports.AT_ONCE", 1)
    trial = Trial(trial.path.parent)
    assert [fact.epoch for fact in trial.drained(REPORT, {**REPORT, "epoch": 2})] == [1, 2]
    told = trial.drained({**REPORT, "epoch": 3}, {**REPORT, "epoch": 4, "metrics": {}})
    assert [fact for fact in told if isinstance(fact, Reported)] == []
    assert not trial.output.has_news()
    trial.now = 10.0
    assert (trial.output.has_grown(), trial.output.has_news()) == (False, True)
    assert [fact.epoch for fact in trial.drained() if isinstance(fact, Reported)] == [4]
    assert trial.output.last_reports() == []


def test_a_report_that_violates_a_constraint_is_not_the_best(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seerd.agent.kept_reports.AT_ONCE", 1)
    trial = Trial(trial.path.parent)
    trial.drained({**REPORT, "epoch": 0}, REPORT)
    trial.drained(
        {**REPORT, "epoch": 2, "metrics": {"accuracy": 0.7, "loss": 1}},
        {**REPORT, "epoch": 3, "metrics": {"accuracy": 0.9, "loss": 3}},
        {**REPORT, "epoch": 4, "metrics": {"accuracy": 0.1, "loss": 1}},
    )
    assert [fact.epoch for fact in trial.output.last_reports()] == [2, 4]


@pytest.mark.parametrize(
    ("about", "what"),
    [("number", "number"), ("constraint", "constraint"), ("x", "warning"), (None, "warning")],
)
def test_a_warning_is_told_once_by_what_it_is_about(
    trial: Trial, about: str | None, what: str
) -> None:
    line = {"kind": "warning", "why": "w" * 1001, "about": about}
    (told,) = trial.drained(line, line)
    assert told == Complained(9, told.at, "t1", 3, what, "w" * 1000)


def test_checkpoints_that_track_nothing_are_told(trial: Trial) -> None:
    (told,) = trial.drained({**trial.saves("1"), "tracked": []})
    assert (told.what, told.why) == ("untracked", "")
    assert trial.drained({**trial.saves("2"), "tracked": ["model"]}) == []


@pytest.mark.parametrize(("size", "is_taken"), [(1 << 16, True), ((1 << 16) + 1, False)])
def test_a_line_has_a_longest_size(trial: Trial, size: int, *, is_taken: bool) -> None:
    line = json.dumps(REPORT).encode()
    told = trial.drained(line[:-1] + b" " * (size - len(line)) + b"}\n")
    assert isinstance(told[0], Reported if is_taken else Complained)
    if not is_taken:
        begins = line[:60].decode()
        why = f"line 1 of its out.jsonl ({begins}): not an object, or too long"
        assert told[0].why == why


def test_a_line_that_lacks_a_field_is_told_with_its_number(trial: Trial) -> None:
    (_, told) = trial.drained(REPORT, {"kind": "report"}, {"kind": "other"})
    where = 'line 2 of its out.jsonl ({"kind": "report"}): '
    assert told == Complained(9, told.at, "t1", 3, "output", f"{where}'epoch' is missing")


def test_silence_is_told_after_a_time_that_triples(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(trial_output.time, "monotonic", lambda: now)
    trial.output.look(lambda: "not begun")
    trial.output.begin(10.0)
    told = []
    for at in (1009.9, 1010.0, 1029.9, 1030.0):
        now = at
        trial.output.look(lambda: "the error")
        told.append([fact.what for fact in trial.drained()])
    assert told == [[], ["quiet", "error"], [], ["quiet"]]
    now = 1000.0 + 90.0
    trial.output.look(lambda: "the error")
    assert trial.drained()[:1][0].what == "quiet"
    monkeypatch.undo()


def test_the_longest_wait_for_a_report_is_known(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(trial_output.time, "monotonic", lambda: now)
    trial.output.begin()
    assert (trial.output.reported_at, trial.output.longest_s) == (100.0, 0.0)
    for epoch, at in ((1, 107.0), (2, 109.0)):
        now = at
        trial.drained({**REPORT, "epoch": epoch})
        assert (trial.output.reported_at, trial.output.longest_s) == (at, 7.0)
    trial.output.look(lambda: "never")
    assert trial.drained() == []
    monkeypatch.undo()


def test_of_too_much_the_end_is_read_from_a_whole_line_on(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_output, "MOST_BEHIND", 1000)
    lines = [{**REPORT, "epoch": epoch} for epoch in range(1, 40)]
    told = trial.drained(*lines)
    epochs = [fact.epoch for fact in told if isinstance(fact, Reported)]
    size = len(json.dumps(lines[-1])) + 1
    assert epochs == [*range(40 - 500 // size, 40)]
    assert [fact.what for fact in told if isinstance(fact, Complained)] == ["skipped"]
    assert trial.output.behind() == 0
