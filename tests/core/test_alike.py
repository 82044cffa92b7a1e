"""When every trial fails in the same way the run ends at once, and says why; otherwise it goes
on.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from seerd.core.diagnosis import diagnose, failure_groups, fate
from seerd.core.events import TrialComplained, TrialExited, TrialReported, TrialStarted
from seerd.core.lifecycle import RunPhase
from seerd.core.plans import New, PlanChange, Put
from seerd.core.verdicts import Closing, Warned
from tests.conftest import small_facts
from tests.core.test_answers import Run

NAMES = ("a", "b", "c", "d")
TAIL = ("Traceback (most recent call last):", "ValueError: lr must be a number, not {lr}", "")


def run_of(*names: str) -> Run:
    """Trials of these names run, one on each GPU, and have not reported."""
    run = Run(small_facts())
    new = tuple(New(name, {"lr": 0.5}) for name in names)
    run.answer(
        PlanChange(new=new, put=tuple(Put(name, 1, 0, None, n) for n, name in enumerate(names)))
    )
    run.come()
    for name in names:
        run.fact(TrialStarted, name, pid=7)
    return run


def crash(run: Run, name: str, tail: tuple[str, ...] = TAIL, code: int = 1) -> list[Any]:
    decided = run.fact(TrialExited, name, cause="crashed", code=code, rank=0, tail=tail)
    if run.state.phase is RunPhase.RUNNING and run.state.trials[name].start_command:
        decided += run.fact(TrialStarted, name, pid=8)
    return decided


def ended(run: Run) -> str | None:
    return run.state.end.why


def test_the_run_ends_when_all_that_were_tried_have_crashed_alike_and_one_of_them_again() -> None:
    run = run_of(*NAMES)
    for name in NAMES:
        crash(run, name)
        assert ended(run) is None, "a crash may be a moment's"
    decided = crash(run, "a")
    assert [d.why for d in decided if isinstance(d, Closing)] == ["alike"]
    assert run.state.end.status == "failed"
    assert run.state.end.detail == (
        "all 4 trials that were tried failed alike: ended with exit status 1 (rank 0 on i): "
        "ValueError: lr must be a number, not {lr}"
    )


def test_numbers_may_differ_between_failures_that_are_alike() -> None:
    run = run_of(*NAMES)
    for number, name in enumerate([*NAMES, "a"]):
        crash(run, name, (f"ValueError: lr = 0.00{number} at 0x7f{number}ab is too small",))
    assert ended(run) == "alike"


def test_the_run_goes_on_if_one_trial_fails_in_another_way_or_still_runs() -> None:
    run = run_of(*NAMES)
    for name in NAMES[:3]:
        crash(run, name)
    crash(run, "a")
    assert ended(run) is None, "d still runs"
    crash(run, "d", ("OSError: gone",))
    assert ended(run) is None, "d failed in another way"


def test_nothing_is_concluded_from_two_configurations() -> None:
    run = run_of("a", "b")
    for name in ("a", "b", "a", "b"):
        crash(run, name)
    assert ended(run) is None


def test_a_single_checkpoint_is_proof_that_the_script_works() -> None:
    run = run_of(*NAMES)
    run.fact(TrialReported, "a", reports=1, metric=0.5, unit_s=0.1)
    run.save("a")
    for name in (*NAMES, *NAMES):
        crash(run, name)
    assert ended(run) is None


def test_reports_alone_are_none_if_everybody_crashes_before_anything_is_saved() -> None:
    run = run_of(*NAMES)
    for name in (*NAMES, "a"):
        run.fact(TrialReported, name, reports=1, metric=0.5, unit_s=0.1)
        crash(run, name)
    assert ended(run) == "alike"


def test_scripts_that_end_without_a_report_end_the_run() -> None:
    run = run_of(*NAMES[:3])
    for name in NAMES[:3]:
        assert ended(run) is None
        run.fact(TrialExited, name, cause="finished", code=0, tail=())
    assert ended(run) == "alike"
    assert "without a report of 'accuracy'" in run.state.end.detail


def report(run: Run, name: str, *metrics: float | None) -> None:
    for metric in metrics:
        reports = run.state.trials[name].reports + 1
        run.fact(TrialReported, name, reports=reports, metric=metric, unit_s=0.1)


def test_the_run_ends_when_all_have_reported_twice_and_nothing_was_finite() -> None:
    run = run_of(*NAMES)
    for name in NAMES:
        report(run, name, None)
    for name in NAMES:
        assert ended(run) is None
        report(run, name, None)
    assert ended(run) == "alike"
    assert run.state.end.detail == "none of the 8 reports of 4 trials had a finite accuracy"


def test_one_finite_report_is_enough_to_go_on() -> None:
    run = run_of(*NAMES)
    for name in NAMES[:3]:
        report(run, name, None, None, None)
    report(run, "d", None, 0.5)
    report(run, "a", None)
    assert ended(run) is None


def test_failures_that_are_alike_are_told_once_and_their_trials_have_not_survived() -> None:
    run = run_of(*NAMES)
    for name in (*NAMES, "a"):
        crash(run, name)
    for name in NAMES:
        if run.state.trials[name].held is not None:
            run.fact(TrialExited, name, cause="asked", code=1, tail=())
    run.state.end.phase = RunPhase.OVER
    assert [[trial.id for trial in group] for group in failure_groups(run.state)] == [list(NAMES)]
    assert {fate(run.state, trial) for trial in run.state.trials.values()} == {"crashed"}
    found = diagnose(run.state)
    assert found.cause == "crashes"
    assert found.text == f"there is no model: {run.state.end.detail}"


# ------------------------------------------------------------ while nobody reports


def quiet(run: Run, name: str, at: float) -> list[str]:
    run.at = at
    decided = run.fact(TrialComplained, name, what="quiet", why="")
    return [one.detail for one in decided if isinstance(one, Warned)]


def test_people_are_told_that_nobody_has_reported_yet_ever_more_rarely() -> None:
    run = run_of("a", "b")
    assert quiet(run, "a", 10.0)[0].startswith("10 s and no report yet; no trial has come to its")
    assert quiet(run, "b", 10.1) == [], "one of them is enough"
    assert quiet(run, "a", 19.0) == []
    assert quiet(run, "b", 30.0)[0].startswith("30 s and no report yet")
    assert sum("no report yet" in note for note in run.state.result.notes) == 2


def test_who_trains_is_asked_for_a_report_and_who_has_reported_for_nothing() -> None:
    run = run_of("a", "b")
    run.state.trials["a"].training = True
    assert "training: 1 of 2 trials; a unit of work takes longer" in quiet(run, "a", 10.0)[0]
    report(run, "b", 0.5)
    assert quiet(run, "a", 90.0) == []


@pytest.mark.parametrize(
    ("trained", "reported", "complaint", "cause"),
    [
        (False, False, None, "no-running"),
        (True, False, None, "no-report"),
        (False, False, "output", "unreadable-output"),
        (True, True, None, "no-checkpoint"),
        (False, True, None, "no-checkpoint"),
        (True, True, "not-stored", "no-checkpoint"),
    ],
)
def test_the_cause_follows_from_what_was_seen(
    trained: bool, reported: bool, complaint: str | None, cause: str
) -> None:
    run = run_of("a", "b")
    run.at = 40.0
    run.state.trials["a"].trained = trained
    if complaint:
        run.fact(TrialComplained, "a", what=complaint, why="why")
    if reported:
        report(run, "a", 0.5)
    run.state.end.phase, run.state.end.status = RunPhase.OVER, "deadline"
    found = diagnose(run.state)
    assert found.cause == cause
    assert "track" not in found.text
    longer = "longer --deadline" in found.text
    assert longer == (cause in ("no-running", "no-report")), "more time helps nobody else"
    if complaint:
        assert "why" in found.text


def observed(saves_to: str = "") -> Run:
    """A run of two trials whose script does not import seerd."""
    run = run_of("a", "b")
    facts = run.state.facts
    patterns = {facts.metric: "acc: ([0-9.]+)"}
    run.state.facts = msgspec.structs.replace(facts, patterns=patterns, saves_to=saves_to)
    return run


def test_of_a_script_that_does_not_import_seerd_the_pattern_is_named() -> None:
    run = observed()
    (told,) = quiet(run, "a", 10.0)
    run.state.end.phase, run.state.end.status = RunPhase.OVER, "deadline"
    found = diagnose(run.state)
    assert found.cause == "no-report"
    for text in (told, found.text):
        assert "matched train.report 'acc: ([0-9.]+)'" in text
        assert "trial.r" not in text
        assert "longer" not in text


@pytest.mark.parametrize(
    ("saves_to", "says"), [("", "no train.checkpoint"), ("a/*.pt", "'a/*.pt'")]
)
def test_of_a_script_that_does_not_import_seerd_the_place_of_checkpoints_is_named(
    saves_to: str, says: str
) -> None:
    run = observed(saves_to)
    report(run, "a", 0.5)
    run.state.end.phase, run.state.end.status = RunPhase.OVER, "deadline"
    found = diagnose(run.state)
    assert found.cause == "no-checkpoint"
    assert says in found.text
    assert "trial.running" not in found.text
