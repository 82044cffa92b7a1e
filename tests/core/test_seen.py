"""What is set aside for the end of a run follows from what its trials have shown, and never exceeds
what is assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, pvariance

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from bench.testbed.checked_world import Behaviour, World
from seerd.core.commands import StopTrial
from seerd.core.events import (
    RunFacts,
    RunResumed,
    StopAsked,
    TrialExited,
    TrialReported,
    TrialStarted,
)
from seerd.core.limits import (
    close_at,
    end_s,
    grace_s,
    longest_grace_s,
    publish_s,
    release_s,
    spare_s,
)
from seerd.core.plans import New, PlanChange, Put
from seerd.core.rules import RULES, closing_s, learned_grace_s, shortened
from seerd.core.seen import LASTS, NEWEST, Durations, Seen
from seerd.core.state import State
from seerd.planner.model import PolicyParams
from seerd.planner.profile import Latency
from tests.by_hand import begun, reconciled_again
from tests.conftest import small_facts
from tests.core.test_alike import run_of
from tests.core.test_answers import FIRST, Run, of
from tests.examples import few

MakeFacts = Callable[..., RunFacts]
SECONDS = st.floats(0.0, 100.0)
MANY = st.lists(SECONDS, min_size=1, max_size=60)


def times_of(seconds: list[float]) -> Durations:
    times = Durations()
    for each in seconds:
        times.add(each)
    return times


def seen_of(ends: list[float], saves: list[float], units: list[float]) -> Seen:
    """As if all units of work had ended at this moment, and ends were known at once."""
    seen = Seen(ends=times_of(ends), saves=times_of(saves), news=times_of([0.0] * len(ends)))
    for unit_s in units:
        seen.add_unit(unit_s, 0.0)
    return seen


def with_seen(state: State, seen: Seen) -> State:
    state.end.seen = seen
    state.end.slowest_s = max(seen.unit_s, seen.saves.mean_s)
    return state


class TestDurations:
    @given(st.lists(SECONDS, min_size=1, max_size=round(1 / NEWEST)))
    def test_the_first_count_alike(self, seconds: list[float]) -> None:
        times = times_of(seconds)
        assert times.mean_s == pytest.approx(fmean(seconds), abs=1e-9)
        assert times.variance == pytest.approx(pvariance(seconds), abs=1e-6)

    @given(MANY)
    def test_the_mean_is_among_them_and_the_spread_no_larger_than_theirs(
        self, seconds: list[float]
    ) -> None:
        times, room = times_of(seconds), 1e-9 * (1 + max(seconds))
        assert min(seconds) - room <= times.mean_s <= max(seconds) + room
        assert 0 <= times.deviation_s <= (max(seconds) - min(seconds)) / 2 + room

    @given(MANY, SECONDS)
    def test_what_lasts_is_learned_whatever_was_before(
        self, before: list[float], since: float
    ) -> None:
        times = times_of(before + [since] * round(10 / NEWEST))
        assert times.mean_s == pytest.approx(since, abs=0.01)
        assert times.deviation_s < 1.0


class TestUnits:
    @given(st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.001, 50.0)), min_size=1))
    def test_the_slowest_of_late_counts(self, units: list[tuple[float, float]]) -> None:
        seen, now_s, ended = Seen(), 0.0, []
        for after_s, unit_s in units:
            now_s += after_s
            seen.add_unit(unit_s, now_s)
            ended.append((now_s, unit_s))
            assert seen.unit_s == max(s for at_s, s in ended if at_s + LASTS * s >= now_s)


class TestSetAside:
    @given(
        st.floats(5.0, 4000.0),
        st.lists(SECONDS, max_size=9),
        st.lists(SECONDS, max_size=9),
        st.lists(SECONDS, max_size=9),
        st.booleans(),
    )
    def test_never_more_than_is_assumed(
        self,
        deadline_s: float,
        ends: list[float],
        saves: list[float],
        units: list[float],
        is_rented: bool,
    ) -> None:
        made = small_facts(
            billing="rented" if is_rented else "held",
            deadline_s=deadline_s,
            budget_gpu_s=8 * deadline_s,
            t_min_s=deadline_s / 8,
        )
        state = with_seen(begun(made), seen_of(ends, saves, units))
        assumed_s = closing_s(deadline_s, state.end.slowest_s, made.cluster)
        if is_rented:  # and as long as a save takes
            assumed_s += publish_s(state) - shortened(RULES.publish_s, deadline_s)
        assert 0 <= grace_s(state) <= longest_grace_s(state)
        assert deadline_s - close_at(state) <= assumed_s + 1e-9
        if len(ends) < RULES.few_times and len(saves) < RULES.few_times:
            assert deadline_s - close_at(state) == pytest.approx(assumed_s)

    @given(
        st.floats(0.0, 20.0),
        st.floats(0.0, 3.0),
        st.floats(0.0, 3.0),
        st.lists(st.booleans(), min_size=3, max_size=30),
        st.floats(0.0, 1.0),
    )
    def test_enough_for_the_next_end_if_it_is_like_those_before(
        self, unit_s: float, save_s: float, exit_s: float, slow: list[bool], wait: float
    ) -> None:
        """A trial ends its unit of work, saves and exits; how much of the unit is left is chance,
        and saves side by side may take twice as long.
        """
        ends = [(1 + is_slow) * save_s + exit_s for is_slow in slow]
        seen = seen_of(ends, [save_s] * 3, [unit_s])
        assert wait * unit_s + max(ends[-1], 2 * save_s) <= learned_grace_s(seen) + 1e-9

    def test_by_what_was_seen(self, facts: MakeFacts) -> None:
        state = begun(facts(deadline_s=600.0))
        assert release_s(state) == RULES.grace_min_s + RULES.kill_s + 0.5
        with_seen(state, seen_of([0.6] * 3, [0.03] * 3, [0.5]))
        assert grace_s(state) == pytest.approx(1.1), "0.5 s and 0.6 s"
        assert end_s(state) == RULES.kill_least_s + 0.5, "a kill, and the agent's end"
        assert release_s(state) + publish_s(state) < 2.2
        assert publish_s(state) == 0.0, "while the agent ends"
        assert spare_s(state, 590.0) == 10.0 - RULES.publish_s, "for a model that is known last"
        state.end.seen.ends.add(1.6)  # mean 0.85, deviation 0.433
        assert grace_s(state) == pytest.approx(0.5 + 2.2)
        assert end_s(state) == RULES.kill_least_s + 0.5, "how long trials save does not matter here"
        state.end.seen.add_unit(1.3, 0.0)
        assert grace_s(state) == pytest.approx(1.3 + 2.2)
        with_seen(state, seen_of([0.1] * 3, [0.3] * 3, [0.5]))
        assert grace_s(state) == pytest.approx(1.1), "0.5 s, and twice 0.3 s"

    def test_for_a_kill_by_how_late_ends_were_known_and_how_long_kills_took(
        self, facts: MakeFacts
    ) -> None:
        state = with_seen(begun(facts(deadline_s=600.0)), seen_of([0.6] * 3, [0.03] * 3, [0.5]))
        seen = state.end.seen
        seen.news = times_of([0.1] * 3)
        assert end_s(state) == pytest.approx(RULES.kill_least_s + 0.1 + 0.5)
        seen.kills.add(0.2)
        assert end_s(state) == pytest.approx(RULES.kill_least_s + 0.1 + 0.5), "no less for one kill"
        seen.kills = times_of([0.9])
        assert end_s(state) == pytest.approx(0.9 + 0.5), "but more"
        seen.kills.add(60.0)
        assert end_s(state) == RULES.kill_s + 0.5, "never more than is assumed"
        seen.news = times_of([0.1] * (RULES.few_times - 1))
        assert end_s(state) == RULES.kill_s + 0.5, "few ends were known"

    def test_saves_that_take_long_leave_time_for_the_way_of_the_model(
        self, facts: MakeFacts
    ) -> None:
        state = with_seen(begun(facts(deadline_s=600.0)), seen_of([], [0.4] * 3, [0.5]))
        assert publish_s(state) == pytest.approx(2 * 0.4 - 0.5)
        state.end.seen.saves.add(5.0)
        assert publish_s(state) == RULES.publish_s


def test_ends_are_counted_from_when_trials_were_asked_to_save() -> None:
    run = run_of("a", "b", "c", deadline_s=600.0)
    state = run.state
    run.fact(TrialReported, "a", reports=1, metric=0.5, unit_s=0.5)
    run.fact(TrialExited, "b", cause="crashed", code=1)
    assert state.end.seen.ends.count == 0
    run.tell(StopAsked(at=run.at))
    assert state.trials["a"].asked_s == run.at
    asked_s, run.at = run.at, run.at + 1.5
    run.fact(TrialExited, "a", cause="asked", code=0)
    assert (state.end.seen.ends.count, state.end.seen.ends.mean_s) == (1, run.at - asked_s)
    assert state.end.seen.kills.count == 0
    run.tell(StopAsked(at=run.at, hard=True))
    asked_s, run.at = run.at, run.at + 0.25
    run.fact(TrialExited, "c", cause="asked", code=-9)
    assert state.end.seen.ends.count == 1, "it was killed"
    assert (state.end.seen.kills.count, state.end.seen.kills.mean_s) == (1, run.at - asked_s)


def test_a_unit_of_work_that_a_trial_ended_first_is_not_part_of_its_end() -> None:
    run = run_of("a", deadline_s=600.0)
    run.tell(StopAsked(at=run.at))
    run.at += 1.0
    run.fact(TrialReported, "a", reports=1, metric=0.5, unit_s=1.1)
    run.at += 0.25
    run.fact(TrialExited, "a", cause="asked", code=0)
    assert run.state.end.seen.ends.mean_s == 0.25


def test_a_trial_that_did_not_end_in_its_grace_period_was_killed_then() -> None:
    run = run_of("a", "b", deadline_s=600.0)
    run.fact(TrialReported, "a", reports=1, metric=0.5, unit_s=0.5)
    (given_s,) = {stop.grace_s for stop in of(StopTrial, run.tell(StopAsked(at=run.at)))}
    run.at += given_s
    run.fact(TrialExited, "a", cause="asked", code=0)
    assert run.state.end.seen.kills.count == 0
    run.at += 0.5
    run.fact(TrialExited, "b", cause="asked", code=-9)
    assert run.state.end.seen.kills.mean_s == pytest.approx(0.5)


def test_how_late_an_end_was_known_counts_only_while_a_daemon_could_hear_of_it() -> None:
    run = run_of("a", "b", "c", deadline_s=600.0)
    run.at += 10.0
    happened = run.at - 0.25
    for name in ("a", "b"):
        run.fact(TrialExited, name, happened=happened, cause="crashed", code=1)
    assert (run.state.end.seen.news.count, run.state.end.seen.news.mean_s) == (2, 0.25)
    run.at += 30.0
    run.tell(RunResumed(at=run.at, alive=tuple(run.state.fleet.instances)))
    run.fact(TrialExited, "c", happened=run.at - 20.0, cause="crashed", code=1)
    assert run.state.end.seen.news.count == 2


def test_a_stop_that_had_more_time_is_repeated_when_the_run_closes(facts: MakeFacts) -> None:
    """Trials that began meanwhile bring the end of the budget nearer."""
    run = Run(facts())
    state = run.state
    run.answer(FIRST)
    run.come()
    for name in ("a", "b", "c"):
        run.train(name)
    with_seen(state, seen_of([0.6] * 3, [0.03] * 3, [0.5]))
    problem = state.facts.problem
    limits = replace(problem.limits, budget_gpu_s=105.0)
    state.facts = structs.replace(state.facts, problem=replace(problem, limits=limits))
    run.wake()
    assert (run.at, state.ledger.spent_gpu_s(run.at)) == (20.0, 80.0)
    larger = PlanChange(new=(New("d", {"lr": 0.5}),), put=(Put("d", 4, 0, None, 1),), gone=("b",))
    decided = run.answer(larger)
    (stop,) = of(StopTrial, decided)
    assert (stop.trial, stop.grace_s) == ("b", RULES.grace_min_s)
    run.fact(TrialStarted, "d", pid=7)
    stops = {stop.trial: stop.grace_s for stop in of(StopTrial, run.wake())}
    assert run.at < 22.0
    assert stops == dict.fromkeys("abcd", pytest.approx(1.1))
    assert reconciled_again(state) == []


def world_of(deadline_s: float, stop: Latency, unit_s: float = 0.5, seed: int = 0) -> World:
    """A run of `seer+` on two slots whose budget pays for both until the deadline."""
    made = small_facts(gpus=2, deadline_s=deadline_s, budget_gpu_s=2 * deadline_s, t_min_s=1.0)
    params = PolicyParams("seer+", t_min_s=1.0, seed=seed)
    problem = replace(made.problem, params=params, gpus_per_instance=2)
    behaviour = Behaviour(
        metric=lambda config, report: float(config["lr"]) * (1 - 0.9**report),
        unit_s=lambda config, report, gpus: unit_s / gpus,
        start=Latency(0.2, 0.3),
        stop=stop,
        partial="finished",
    )
    return World(structs.replace(made, problem=problem), behaviour, seed=seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_run_of_100_s_uses_its_budget(seed: int) -> None:
    world = world_of(100.0, Latency(0.3, 0.5), seed=seed)
    state = world.run()
    assert 0.98 * 200.0 <= state.ledger.spent_gpu_s(state.now) <= 200.0
    assert state.now <= 100.0
    assert state.result.published is not None


@given(
    st.floats(20.0, 200.0),
    st.floats(0.05, 10.0),
    st.floats(0.01, 3.0),
    st.floats(1.0, 4.0),
    st.integers(0, 99),
)
@settings(max_examples=few(15), deadline=None)
def test_however_long_units_and_saves_take_limits_are_kept(
    deadline_s: float, unit_s: float, stop_s: float, spread: float, seed: int
) -> None:
    world = world_of(deadline_s, Latency(stop_s, spread * stop_s), unit_s, seed)
    state = world.run()
    assert state.ledger.spent_gpu_s(state.now) <= 2 * deadline_s
    assert world.published_at is None or world.published_at <= deadline_s
