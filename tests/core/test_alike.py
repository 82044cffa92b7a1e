"""When every trial fails in the same way the run ends at once, and says why; otherwise it goes
on.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from seerd.core.events import (
    JobFacts,
    TrialComplained,
    TrialExited,
    TrialReported,
    TrialStarted,
    TrialTraining,
)
from seerd.core.failures import OVER_TIME
from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.plans import New, PlanChange, Put
from seerd.core.verdicts import Closing, JobOver, Warned
from seerd.planner.model import PlannedJob, PolicyParams
from seerd.planner.space import Condition, Parameter, Space, Value
from seerd.telling.complaints import notes_of
from seerd.telling.diagnosis import complaints, diagnose, failure_groups, fate
from tests.conftest import small_facts
from tests.core.test_answers import Run

NAMES = ("a", "b", "c", "d")
LRS = 0.2, 0.8
"""In both halves of the space."""
TAIL = ("Traceback (most recent call last):", "ValueError: lr must be a number, not {lr}", "")


def run_of(*names: str, lrs: Sequence[float] = LRS, **changes: Any) -> Run:
    """Trials of these names run, one on each GPU, and have not reported."""
    run = Run(small_facts(**changes))
    new = tuple(New(name, {"lr": lrs[n % 2]}) for n, name in enumerate(names))
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
    fates = {name: fate(run.state, trial) for name, trial in run.state.trials.items()}
    assert fates == {name: "failed" if name == "a" else "crashed" for name in NAMES}
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
    assert sum("no report yet" in note for note in notes_of(run.state)) == 2


def test_who_trains_is_asked_for_a_report_and_who_has_reported_for_nothing() -> None:
    run = run_of("a", "b")
    run.at = 8.0
    run.fact(TrialTraining, "a", reports=0)
    assert "a trained for 2 s without a first report: " in quiet(run, "a", 10.0)[0]
    report(run, "b", 0.5)
    assert quiet(run, "b", 30.0) == []
    (late,) = quiet(run, "a", 31.0)
    assert late.startswith("a has trained for 23 s without a first report, and others have")
    assert late.endswith(OVER_TIME)
    assert quiet(run, "a", 90.0) == [], "it is given once"


def test_a_trial_that_starts_slowly_is_not_thought_to_have_long_epochs() -> None:
    run = run_of("a", "b")
    report(run, "b", 0.5)
    (late,) = quiet(run, "a", 31.0)
    assert late.startswith(f"a has run for {31.0 - run.state.trials['a'].began_s:.0f} s without a")
    assert late.endswith(": it hangs, or it still imports, reads data or compiles")


def complain(run: Run, name: str, what: str, why: str) -> None:
    run.fact(TrialComplained, name, what=what, why=why)


def test_what_a_trial_has_shown_of_itself_is_its_silence_explained_until_it_reports() -> None:
    run = run_of("a", "b")
    complain(run, "a", "still", "for 10 s it did nothing")
    error = ['  File "x.py", line 1, in f', "ValueError: no"]
    complain(run, "b", "error", "\n".join(error))
    assert quiet(run, "a", 10.0) == [], "more is known of it"
    ended = copy.deepcopy(run.state)
    ended.end.phase, ended.end.status = RunPhase.OVER, "deadline"
    assert "a stands still: for 10 s it did nothing" in diagnose(ended).text
    assert "b has written an error and goes on: ValueError: no; " in diagnose(ended).text
    report(run, "a", 0.5)
    assert list(run.state.signs.complaints) == ["error"]


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


@pytest.mark.parametrize(("many", "why"), [(5, None), (6, "alike")])
def test_if_all_are_of_one_half_of_the_space_or_fail_in_many_ways_more_are_tried(
    many: int, why: str | None
) -> None:
    names = tuple("abcdef"[:many])
    run = run_of(*names, lrs=(0.2, 0.2))
    for name in (*names, "a"):
        crash(run, name)
    assert ended(run) == why
    run = run_of(*names)
    for name in (*names, "a"):
        crash(run, name, (f"ValueError: {name}",))
    assert ended(run) == why
    if why is not None:
        assert run.state.end.detail.startswith("all 6 trials that were tried failed: ended with")


def test_errors_of_one_kind_from_one_line_are_alike_whatever_they_say() -> None:
    frames = ("Traceback (most recent call last):", '  File "/t/{}/a.py", line 3, in load')
    run = run_of(*NAMES)
    for name in (*NAMES, "a"):
        crash(
            run, name, (frames[0], frames[1].format(name), f"    f({name})", f"KeyError: '{name}'")
        )
    assert ended(run) == "alike"
    run = run_of(*NAMES)
    for line, name in enumerate((*NAMES, "a")):
        where = frames[1].replace("3", str(line))
        crash(run, name, (frames[0], where, f"KeyError: '{name}'"))
    assert ended(run) is None


# ------------------------------------------------------------ errors that are certain, jobs

MISSING = ("ModuleNotFoundError: No module named 'timm'",)


def test_two_trials_that_cannot_import_end_the_run_and_none_is_started_again_meanwhile() -> None:
    run = run_of("a", "b")
    crash(run, "a", MISSING)
    assert ended(run) is None, "b may do better"
    crash(run, "b", MISSING)
    assert ended(run) == "alike"


def test_alone_a_trial_that_cannot_import_is_not_started_again() -> None:
    run = run_of("a")
    crash(run, "a", MISSING)
    assert run.trial("a").phase is TrialPhase.FAILED
    assert ended(run) is None, "the next configuration may not need it"


@pytest.mark.parametrize(
    ("second", "why"),
    [({"model": "vit", "size": "m"}, None), ({"model": "cnn"}, "alike")],
)
def test_an_import_that_may_be_of_a_choice_ends_no_run_until_another_choice_fails_too(
    second: dict[str, Value], why: str | None
) -> None:
    facts = small_facts()
    of_vit = Parameter("size", ("s", "m"), when=(Condition("model", ("vit",)),))
    problem = replace(facts.problem, space=Space((Parameter("model", ("vit", "cnn")), of_vit)))
    run = Run(msgspec.structs.replace(facts, problem=problem))
    new = (New("a", {"model": "vit", "size": "s"}), New("b", second))
    run.answer(PlanChange(new=new, put=(Put("a", 1, 0, None, 0), Put("b", 1, 0, None, 1))))
    run.come()
    for name in ("a", "b"):
        run.fact(TrialStarted, name, pid=7)
        crash(run, name, MISSING)
    assert ended(run) == why


def test_an_import_that_one_configuration_needs_costs_only_that_one() -> None:
    run = run_of("a", "b", "c")
    report(run, "c", 0.5)
    for name in ("a", "b"):
        crash(run, name, MISSING)
    assert ended(run) is None
    assert run.trial("a").start_command is None
    assert run.trial("a").attempt == 2, "another machine may have it"


def shared_run() -> Run:
    """Two jobs share it; each has three trials that run."""
    facts, jobs = small_facts(), ("one", "two")
    planned = tuple(
        PlannedJob(job, replace(facts.problem), metric="accuracy", mode="max") for job in jobs
    )
    problem = replace(facts.problem, params=PolicyParams(name="jobs", t_min_s=5.0), jobs=planned)
    told = tuple(JobFacts(id=job, metric="accuracy", mode="max") for job in jobs)
    run = Run(msgspec.structs.replace(facts, problem=problem, jobs=told))
    names = [f"{job}.t{n}" for job in jobs for n in range(3)]
    new = tuple(New(name, {"lr": LRS[n % 2]}) for n, name in enumerate(names))
    put = tuple(Put(name, 1, 0, None, n) for n, name in enumerate(names))
    run.answer(PlanChange(new=new, put=put))
    run.come()
    for name in names:
        run.fact(TrialStarted, name, pid=7)
    return run


def test_a_job_whose_trials_all_fail_ends_alone_and_says_why() -> None:
    run = shared_run()
    report(run, "two.t0", 0.5)
    decided: list[Any] = []
    for name in ("one.t0", "one.t1", "one.t2", "one.t0"):
        decided += crash(run, name)
    (over,) = [one for one in decided if isinstance(one, JobOver)]
    assert (over.job, over.why) == ("one", "alike")
    assert over.detail.startswith("all 3 trials that were tried failed alike: ended with exit")
    assert ended(run) is None


def test_a_job_without_a_finite_report_ends_though_another_has_some() -> None:
    run = shared_run()
    report(run, "two.t0", 0.5)
    for name in ("one.t0", "one.t1", "one.t2"):
        report(run, name, None, None)
    assert run.state.jobs["one"].over == "alike"
    assert run.state.jobs["one"].detail == "none of the 6 reports of 3 trials had a finite accuracy"
    assert run.state.jobs["two"].over is None


def test_the_run_ends_when_every_job_fails() -> None:
    run = shared_run()
    for job in ("one", "two"):
        for name in (f"{job}.t0", f"{job}.t1", f"{job}.t2", f"{job}.t0"):
            crash(run, name)
        if job == "one":
            run.answer(PlanChange())
    assert ended(run) == "alike"
    assert run.state.end.detail.startswith("one: all 3 trials")


# ------------------------------------------------------------ the same numbers


def warned(run: Run) -> list[str]:
    return [
        one.detail
        for _, decided in run.journal
        for one in decided
        if isinstance(one, Warned) and one.what == "identical"
    ]


def test_trials_of_different_configurations_that_report_the_same_are_pointed_out_once() -> None:
    run = run_of("a", "b", "c")
    for metric in (0.512, 0.634, 0.705, 0.8):
        report(run, "a", metric)
    report(run, "b", 0.512, 0.634)
    assert warned(run) == [], "it may be chance"
    report(run, "b", 0.705)
    (said,) = warned(run)
    assert said.startswith(
        "a and b report the same (0.512, 0.634, 0.705), and their configurations differ"
    )
    assert complaints(run.state) == [said]
    report(run, "b", 0.8)
    assert len(warned(run)) == 1


@pytest.mark.parametrize(
    ("lrs", "first", "second"),
    [
        ((0.2, 0.2), (0.512, 0.634, 0.705), (0.512, 0.634, 0.705)),
        (LRS, (0.512, 0.634, 0.705), (0.512, 0.634, 0.706)),
        (LRS, (0.1, 0.1, 0.1, 0.1), (0.1, 0.1, 0.1, 0.1)),
        (LRS, (0.48, 0.49, 0.52), (0.48, 0.49, 0.52)),
        (LRS, (None, None, None), (None, None, None)),
        (LRS, (0.51234, 0.63456), (0.51234, 0.63456)),
    ],
)
def test_chance_and_trials_that_learn_nothing_are_not_pointed_out(
    lrs: Sequence[float], first: Sequence[float | None], second: Sequence[float | None]
) -> None:
    run = run_of("a", "b", lrs=lrs)
    report(run, "a", *first)
    report(run, "b", *second)
    assert warned(run) == []


def test_of_single_numbers_it_takes_four_trials_that_are_all_the_same() -> None:
    cases = (
        ([0.91], [0.91], 1),
        ([0.91], [0.92], 0),
        ([0.1], [0.1], 0),
        ([0.1, 0.12], [0.1, 0.12], 1),
        ([0.91, 0.5], [0.91, 0.5], 1),
    )
    for first, last, count in cases:
        run = Run(small_facts())
        new = tuple(New(name, {"lr": 0.2 + 0.1 * n}) for n, name in enumerate(NAMES))
        put = tuple(Put(name, 1, 0, None, n) for n, name in enumerate(NAMES))
        run.answer(PlanChange(new=new, put=put))
        run.come()
        for name in NAMES:
            run.fact(TrialStarted, name, pid=7)
            report(run, name, *(last if name == "d" else first))
        assert len(warned(run)) == count
