"""Which reports are told: the best and the last always, of the others as many as can be followed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from seerd.agent.kept_reports import (
    A_SECOND,
    A_SECOND_IN_ALL,
    AT_ONCE,
    AT_ONCE_IN_ALL,
    BEHIND,
    LONG,
    KeptReports,
    ReportLimit,
)


class World:
    """A clock, and what an agent knows."""

    def __init__(self, running: int = 1) -> None:
        self.now, self.waiting, self.running = 0.0, 0, running
        self.limit = ReportLimit(lambda: self.running, lambda: self.waiting, lambda: self.now)

    def flood(self, trials: list[KeptReports], seconds: float, each_s: float = 0.01) -> int:
        """Return how many reports are told while each trial reports every `each_s` seconds."""
        told = 0
        for step in range(round(seconds / each_s)):
            self.now += each_s
            told += sum(len(trial.add(step, None)) for trial in trials)
        return told


def test_the_first_reports_of_an_attempt_are_all_told():
    reports = KeptReports(World().limit)
    assert [reports.add(n, None) for n in range(AT_ONCE)] == [[n] for n in range(AT_ONCE)]
    assert not reports.has_dropped


def test_a_flood_is_told_a_few_times_a_second():
    world = World()
    told = world.flood([KeptReports(world.limit)], 60.0)
    assert 0.8 * A_SECOND * 60 < told < AT_ONCE + 1 + A_SECOND * 60


def test_an_agent_has_a_bound_for_any_number_of_trials():
    world = World(running=200)
    told = world.flood([KeptReports(world.limit) for _ in range(200)], 10.0, 0.1)
    assert told <= AT_ONCE_IN_ALL + 200 + A_SECOND_IN_ALL * 10
    assert told > 200


def test_trials_that_come_and_go_share_what_is_told_at_once():
    world = World(running=8)
    told = sum(world.flood([KeptReports(world.limit)], 0.1, 0.001) for _ in range(1000))
    assert told <= AT_ONCE_IN_ALL + 1000 + 2 * A_SECOND_IN_ALL * 100


def test_fewer_are_told_while_the_daemon_is_behind():
    world = World()
    reports = KeptReports(world.limit)
    world.flood([reports], 30.0)
    world.waiting = 3 * BEHIND
    assert world.flood([reports], 60.0) <= A_SECOND * 60 / 10 + 1


def test_fewer_are_told_of_a_long_attempt():
    world = World()
    reports = KeptReports(world.limit)
    first = world.flood([reports], 600.0, 0.1)
    assert first > LONG
    assert world.flood([reports], 600.0, 0.1) < 0.7 * first


def test_slow_reports_are_all_told():
    world = World()
    reports = KeptReports(world.limit)
    assert world.flood([reports], 500.0, 1.0) == 500
    assert not reports.has_dropped


def test_slow_reports_of_many_long_attempts_are_all_told_and_no_more_at_once_afterwards():
    world = World(running=64)
    trials = [KeptReports(world.limit) for _ in range(64)]
    assert world.flood(trials, 3600.0, 10.0) == 64 * 360
    assert not any(trial.has_dropped for trial in trials)
    world.waiting = 10**6
    assert world.flood(trials, 100.0, 10.0) == 0
    world.waiting = 0
    assert [bool(trials[-1].add(n, None)) for n in range(3)] == [True, False, False]


@given(st.lists(st.one_of(st.none(), st.integers(0, 20)), min_size=1, max_size=400))
@settings(deadline=None)
def test_the_best_and_the_last_are_told_in_order(worths):
    world = World()
    world.waiting = 10**6
    reports = KeptReports(world.limit)
    told = [n for n, worth in enumerate(worths) for n in reports.add(n, worth)]
    assert len(told) == 0
    told += reports.let_go()
    counted = [(worth, -n) for n, worth in enumerate(worths) if worth is not None]
    best = [-max(counted)[1]] if counted else []
    assert told == sorted({*best, len(worths) - 1})
    assert reports.has_dropped == (len(told) < len(worths))
    assert reports.let_go() == []


def test_what_is_kept_back_is_told_once_it_may_be():
    world = World()
    reports = KeptReports(world.limit)
    for n in range(AT_ONCE + 10):
        reports.add(n, float(n))
    assert not reports.may_send()
    world.now += 1.0
    assert reports.may_send()
    assert reports.let_go() == [AT_ONCE + 9]


def test_before_a_save_the_last_is_told_but_not_without_end():
    reports = KeptReports(World().limit)
    told = [n for n in range(1000) for n in (*reports.add(n, None), *reports.before_save())]
    few = 2 * AT_ONCE - 10
    assert told[:few] == list(range(few))
    assert len(told) < 2 * AT_ONCE + 5
