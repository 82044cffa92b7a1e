"""The order of trials, and what a trial had reported when it had come so far."""

from __future__ import annotations

import pytest

from bench.testbed.policy_world import FakeTrial
from seerd.planner.model import Mode, Report
from seerd.planner.ranking import compared, metric_at, rank, seconds_per_report, standing_at


def trial(name: str, *reports: tuple[int, float | None], status: str = "live") -> FakeTrial:
    """It reports every two seconds for each unit of work."""
    return FakeTrial(name, status=status, history=[Report(2.0 * n, n, m) for n, m in reports])


@pytest.mark.parametrize(("mode", "order"), [("max", "bacdef"), ("min", "abcdef")])
def test_failed_trials_are_last_and_before_them_those_that_diverged(mode: Mode, order: str) -> None:
    trials = [
        trial("f", (3, 9.0), status="failed"),
        trial("e", (2, 0.9), (3, None)),
        trial("d"),
        trial("c", status="finished"),
        trial("b", (1, 0.5)),
        trial("a", (1, 0.2)),
    ]
    assert [one.id for one in rank(trials, mode)] == list(order)


def test_equal_trials_stand_in_the_order_of_their_ids() -> None:
    stood = compared(rank([trial("b", (1, 0.5)), trial("a", (1, 0.5))], "max"), 1, 2)
    assert [(one.trial, one.place, one.of, one.best, one.bracket) for one in stood] == [
        ("a", 1, 2, 1, 2),
        ("b", 2, 2, 1, 2),
    ]
    assert (stood[0].metric, stood[0].reports) == (0.5, 1)


@pytest.mark.parametrize(
    ("reports", "expected"),
    [(1, 0.2), (2, 0.2), (3, 0.2), (4, 0.2), (5, 0.6), (6, 0.6), (7, None), (8, None), (99, None)],
)
def test_where_a_report_is_missing_the_nearest_counts_and_of_two_the_earlier(
    reports: int, expected: float | None
) -> None:
    assert metric_at(trial("a", (2, 0.2), (6, 0.6), (7, None)), reports) == expected


def test_a_trial_stands_at_a_rung_as_it_did_there_unless_it_has_failed() -> None:
    went_on = trial("a", (1, 0.2), (2, 0.9))
    assert standing_at(went_on, 1, "min") == (0, 0.2, "a")
    assert standing_at(went_on, 2, "max") == (0, -0.9, "a")
    assert standing_at(trial("a", (1, None)), 1, "max") == (2, 0.0, "a")
    assert standing_at(trial("a"), 1, "max") == (1, 0.0, "a")
    assert standing_at(trial("a", (1, 0.2), status="failed"), 1, "max") == (3, 0.0, "a")
    assert standing_at(trial("a", status="failed"), 1, "max") == (3, 0.0, "a")


def test_the_pace_is_the_median_of_reports_whatever_a_pause_took() -> None:
    slow = FakeTrial("a")
    for at_s, reports in ((1.0, 1), (3.0, 2), (9.0, 4), (99.0, 5)):
        slow.report(reports, 0.5, at_s)
    assert seconds_per_report(slow, 5) == 3.0
    assert seconds_per_report(slow, 4) == 2.5
    assert seconds_per_report(slow, 2) == 2.0
    assert seconds_per_report(slow, 1) is None
