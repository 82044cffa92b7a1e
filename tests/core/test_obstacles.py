"""Crashes that say nothing of a configuration: they use up none, and the others train on."""

from __future__ import annotations

from typing import Any

from seerd.core.commands import StartTrial
from seerd.core.events import Obstacle, TrialExited, TrialReported, TrialStarted
from seerd.core.lifecycle import TrialPhase
from seerd.core.plans import PlanChange
from seerd.core.verdicts import Blocked
from seerd.telling.diagnosis import complaints, diagnose
from tests.core.test_alike import NAMES, run_of
from tests.core.test_answers import Run, of

PORT = "OSError: [Errno 98] Address already in use"
REST_S = 3.0
"""A twentieth of the deadline: no wait is longer."""


def block(run: Run, name: str, why: Obstacle = "address") -> list[Any]:
    return run.fact(TrialExited, name, cause="crashed", code=1, rank=0, tail=(PORT,), obstacle=why)


def report(run: Run, name: str) -> list[Any]:
    reports = run.trial(name).reports + 1
    return run.fact(TrialReported, name, reports=reports, metric=0.5, unit_s=0.1)


def started(decided: list[Any]) -> list[str]:
    return [one.trial for one in of(StartTrial, decided)]


def finish(run: Run, name: str) -> list[Any]:
    return [*run.exit(name, "finished"), *run.answer(PlanChange())]


def one_trains() -> Run:
    """The others could not begin beside it."""
    run = run_of(*NAMES)
    for name in NAMES[1:]:
        assert started(block(run, name)) == []
    report(run, "a")
    return run


def test_it_counts_as_no_crash_and_the_trial_waits_while_others_train() -> None:
    run = one_trains()
    found = [one for _, decided in run.journal for one in of(Blocked, decided)]
    assert [(one.trial, one.most, one.times, one.again_s) for one in found] == [
        ("b", 3, 1, REST_S),
        ("c", 2, 1, REST_S),
        ("d", 1, 1, REST_S),
    ]
    for name in NAMES[1:]:
        assert (run.trial(name).crashes, run.trial(name).phase) == (0, TrialPhase.WAITING)
        assert run.trial(name).fault == "blocked"
    assert run.state.end.why is None


def test_whoever_has_waited_longest_takes_the_place_of_one_that_ends() -> None:
    run = one_trains()
    run.at = 1.0
    assert started(finish(run, "a")) == ["b"]
    run.fact(TrialStarted, "b", pid=8)
    report(run, "b")
    assert run.state.jobs[""].block is not None, "it does not train beside others"
    assert started(finish(run, "b")) == ["c"]


def test_one_more_is_tried_now_and_then_and_ever_more_rarely() -> None:
    run = one_trains()
    assert started(run.wake()) == ["b"]
    assert run.at == REST_S
    (again,) = of(Blocked, block(run, "b"))
    assert (again.most, again.times, again.again_s) == (1, 2, 2 * REST_S)
    assert started(run.wake()) == ["c"], "another one's turn"


def test_all_are_started_once_one_more_has_reported_beside_the_others() -> None:
    run = one_trains()
    run.wake()
    run.fact(TrialStarted, "b", pid=8)
    assert started(report(run, "a")) == [], "it says nothing of b"
    assert started(report(run, "b")) == ["c", "d"]
    assert run.state.jobs[""].block is None


def test_only_the_gpu_that_is_busy_is_left_alone() -> None:
    run = run_of("a", "b")
    gpus = run.trial("b").held
    (found,) = of(Blocked, block(run, "b", "device"))
    assert gpus is not None
    assert found.on == tuple((slots.node, gpu) for slots in gpus for gpu in slots.gpus)
    run.at = 1.0
    block(run, "a")
    assert run.state.jobs[""].block.on == found.on  # type: ignore[union-attr]


def test_a_job_in_whose_way_something_always_is_ends_with_that_said() -> None:
    run = run_of("a", "b")
    for name in ("a", "b"):
        block(run, name)
    for _ in range(8):
        if run.state.end.why is not None:
            break
        (name,) = started(run.wake())
        run.fact(TrialStarted, name, pid=8)
        block(run, name)
    assert run.state.end.why == "alike"
    assert run.at == 2 * REST_S, "a tenth of the deadline"
    run.state.end.phase = run.state.phase.OVER
    found = diagnose(run.state)
    assert found.cause == "blocked"
    assert PORT in found.text
    assert "trials run side by side" in complaints(run.state)[0]


def test_a_script_that_has_reported_once_is_tried_to_the_end() -> None:
    run = run_of("a")
    report(run, "a")
    for _ in range(12):
        block(run, "a", "network")
        assert started(run.wake()) == ["a"]
        run.fact(TrialStarted, "a", pid=8)
    assert run.state.end.why is None
    assert run.trial("a").phase is not TrialPhase.FAILED


def test_nothing_is_concluded_from_what_is_in_the_way_of_one_configuration() -> None:
    run = run_of("a")
    block(run, "a", "network")
    for _ in range(5):
        assert run.state.end.why is None
        if run.trial("a").start_command is None:
            assert started(run.wake()) == ["a"]
        run.fact(TrialStarted, "a", pid=8)
        block(run, "a", "network")
    assert run.trial("a").phase is TrialPhase.FAILED, "another configuration is tried instead"
    assert run.state.end.why is None
    assert run.state.plan.question is not None


def test_what_is_in_the_way_of_one_trial_alone_is_a_crash_in_the_end() -> None:
    run = run_of("a", "b")
    block(run, "b", "network")
    report(run, "a")
    assert started(finish(run, "a")) == ["b"]
    tries = 1
    while run.trial("b").phase is not TrialPhase.FAILED:
        if run.trial("b").start_command is None:
            assert started(run.wake()) == ["b"]
        run.fact(TrialStarted, "b", pid=8)
        block(run, "b", "network")
        tries += 1
    assert tries == 6, "four are none, and with the second crash in a row a trial has failed"
    assert run.read().trials["b"].crashes == 2


def test_beside_others_that_hold_it_nothing_counts_as_a_crash() -> None:
    run = one_trains()
    for _ in range(12):
        (name,) = started(run.wake())
        run.fact(TrialStarted, name, pid=8)
        report(run, "a")
        block(run, name)
    assert all(run.trial(name).crashes == 0 for name in NAMES)


def test_a_trial_whose_script_fails_by_itself_meanwhile_is_judged_as_ever() -> None:
    run = run_of("a", "b")
    block(run, "b", "device")
    for _ in range(3):
        run.fact(TrialExited, "a", cause="crashed", code=1, rank=0, tail=("ValueError: no",))
        if run.trial("a").start_command:
            run.fact(TrialStarted, "a", pid=8)
    assert run.trial("a").phase is TrialPhase.FAILED
