"""Which model would be handed back: the best confirmed one, whatever else there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from seerd.core.events import Checkpoint, RunFacts
from seerd.core.lifecycle import TrialPhase
from seerd.core.metrics import better_report, good_enough, incumbent, metric_name
from seerd.core.state import State, Trial, new_state
from seerd.planner.model import Report

MakeFacts = Callable[..., RunFacts]
Row = tuple[int, float | None]
"""Reports and metric of a checkpoint."""


def having(facts: RunFacts, **trials: list[Row]) -> State:
    """A state with these trials, each with these checkpoints, newest first."""
    state = new_state(facts)
    for name, rows in trials.items():
        checkpoints = tuple(
            Checkpoint(
                trial=name,
                attempt=1,
                name=f"c{reports}",
                reports=reports,
                metric=metric,
                sha256="0" * 64,
                size=1,
            )
            for reports, metric in rows
        )
        state.trials[name] = Trial(name, {}, 0, checkpoints=checkpoints)
    return state


def best(state: State) -> tuple[str, str] | None:
    found = incumbent(state)
    return None if found is None else (found.trial, found.checkpoint.name)


@pytest.mark.parametrize(("mode", "winner"), [("max", ("b", "c3")), ("min", ("c", "c1"))])
def test_the_best_wins_wherever_it_stands(
    facts: MakeFacts, mode: str, winner: tuple[str, str]
) -> None:
    state = having(
        facts(mode=mode), a=[(2, 0.5), (1, 0.4)], b=[(4, 0.6), (3, 0.7)], c=[(2, 0.3), (1, 0.2)]
    )
    assert best(state) == winner


@pytest.mark.parametrize("mode", ["max", "min"])
def test_what_is_no_finite_number_never_wins(facts: MakeFacts, mode: str) -> None:
    assert best(having(facts(mode=mode), a=[(5, None), (1, 0.1)], b=[(9, None)])) == ("a", "c1")
    assert best(having(facts(mode=mode), a=[(5, None)], b=[])) is None


def test_of_equal_ones_the_longer_training_wins_and_then_the_smaller_id(facts: MakeFacts) -> None:
    assert best(having(facts(), a=[(1, 0.5)], b=[(3, 0.5)], c=[(3, 0.5)])) == ("b", "c3")


def test_the_best_wins_whatever_became_of_its_trial_and_a_failure_only_breaks_ties(
    facts: MakeFacts,
) -> None:
    state = having(facts(), a=[(9, 0.9)], b=[(1, 0.1)], c=[(1, 0.9)])
    state.trials["a"].phase = TrialPhase.FAILED
    assert best(state) == ("c", "c1")
    state.trials["c"].checkpoints = ()
    assert best(state) == ("a", "c9")


def test_what_is_known_to_be_unreadable_leaves_the_next_best(facts: MakeFacts) -> None:
    state = having(facts(), a=[(9, 0.9), (8, 0.8)], b=[(9, 0.5)])
    state.result.unreadable = {"a/c9"}
    assert best(state) == ("a", "c8")
    state.result.unreadable |= {"a/c8"}
    assert best(state) == ("b", "c9"), "another trial's checkpoint of that name"


def test_the_metric_is_named_as_the_mean_of_as_many_reports_as_there_were(
    facts: MakeFacts,
) -> None:
    for smooth, reports, expected in (
        (1, 5, "accuracy"),
        (3, 1, "accuracy"),
        (3, 2, "accuracy (mean of the last 2 reports)"),
        (3, 5, "accuracy (mean of the last 3 reports)"),
    ):
        state = having(facts(smooth=smooth), a=[(reports, 0.5)])
        found = incumbent(state)
        assert found is not None
        assert metric_name(state, found) == expected


def test_no_report_is_told_as_better_than_a_mean(facts: MakeFacts) -> None:
    for smooth, expected in ((1, ("a", 0.9)), (3, None)):
        state = having(facts(smooth=smooth), a=[(2, 0.5)])
        state.trials["a"].history = [Report(1.0, 1, 0.9), Report(2.0, 2, 0.1)]
        found = incumbent(state)
        assert found is not None
        assert better_report(state, found) == expected


def test_a_report_of_which_a_checkpoint_was_kept_is_not_said_to_be_in_none(
    facts: MakeFacts,
) -> None:
    state = having(facts(), a=[(2, 0.5)], b=[(3, 0.9)])
    state.result.unreadable = {"b/c3"}
    state.trials["b"].history = [Report(1.0, 2, 0.6), Report(2.0, 3, 0.9)]
    found = incumbent(state)
    assert found is not None
    assert better_report(state, found) == ("b", 0.6)


def test_a_metric_is_good_enough_on_its_side_of_the_target(facts: MakeFacts) -> None:
    metrics = (None, 0.4, 0.5, 0.6)
    for mode, expected in (
        ("max", [False, False, True, True]),
        ("min", [False, True, True, False]),
    ):
        goal = facts(mode=mode, target=0.5)
        assert [good_enough(goal, metric) for metric in metrics] == expected
    assert not good_enough(facts(), 1.0), "there is no target"
