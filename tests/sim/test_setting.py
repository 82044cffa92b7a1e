"""Simulated runs: worked out by hand where nothing is random, and what must hold where something
is.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from bench.testbed.checked_world import World, checked_run, with_faults
from seerd.core.commands import Launch
from seerd.core.events import (
    InstanceLost,
    InstanceNoticed,
    InstanceReady,
    TrialExited,
    TrialReported,
    TrialStarted,
    TrialTraining,
)
from seerd.planner.clouds import assumed
from seerd.planner.model import Limits, Problem
from seerd.planner.policies import POLICIES
from seerd.planner.profile import CloudProfile, JobProfile, Latency, Profile, parse_scaling
from seerd.sim.curves import CURVE
from seerd.sim.setting import Faults, Outcome, Setting, alone, behaviour_of, outcome_of, run
from tests.sim.hand import IDEAL, PER_INSTANCE, curves, limits, planned, play, profile

EARLY = [0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.61, 0.62]
LATE = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95]
FAST_AND_LATE = curves(EARLY, LATE, seconds=16.0)
SCALING = parse_scaling("1:1,2:1.6")


def ideal(deadline_s: float = 120.0, budget_gpu_s: float = 240.0) -> Setting:
    """A report takes 16 s on one GPU, and 10 s on two."""
    return alone(
        FAST_AND_LATE, limits(deadline_s, budget_gpu_s), IDEAL, profile(SCALING, report=16.0)
    )


def tried(world: World) -> list[int]:
    """Rows of the configurations, in the order in which they were drawn."""
    return [int(trial.config[CURVE]) for trial in world.state.trials.values()]


def times(world: World, kind: type, trial: str) -> list[float]:
    return [
        event.at for event, _ in world.journal if isinstance(event, kind) and event.trial == trial
    ]


def same(found: Outcome, **expected: object) -> None:
    for key, value in expected.items():
        assert getattr(found, key) == pytest.approx(value, abs=1e-9), key


class TestWorkedByHand:
    """In the papers' setting nothing but training takes time."""

    def test_seer_with_one_gpu_for_each(self) -> None:
        """t1 = 40 s: three trials for 40 s, then the best of them for 80 s more. What learns early
        wins at 32 s, and late learners are lost.
        """
        setting = ideal()
        world = play(setting, planned(setting, "seer", eta=2, p_max=1), seed=0)
        assert tried(world) == [1, 1, 0]
        assert times(world, TrialReported, "t0003") == [16, 32, 48, 64, 80, 96, 112]
        assert times(world, TrialReported, "t0001") == [16, 32]
        same(
            outcome_of(setting, world, world.state),
            metric=0.6,
            regret=0.35,
            gpu_s=3 * 40 + 80,
            elapsed_s=120,
        )

    def test_seer_moves_the_best_to_more_gpus_and_nothing_is_lost(self) -> None:
        """Four trials on 1 GPU and two on 2, then 2 and 1; at 40 s the early learner has two and a
        half reports.

        On two GPUs the other half takes 5 s instead of 8, and each report after it 10 s. One of its
        places on two GPUs goes the other way, and its last report, due exactly at the end, counts.
        """
        setting = ideal(budget_gpu_s=720.0)
        world = play(setting, planned(setting, "seer", eta=2, p_max=2), seed=0)
        assert tried(world) == [1, 1, 0, 1, 1, 1]
        assert times(world, TrialReported, "t0003") == [16, 32, 45, 55, 65, 75, 85, 95, 105, 115]
        assert times(world, TrialReported, "t0001") == [10, 20, 30, 40, 56, 72, 88, 104, 120]
        assert times(world, TrialReported, "t0004") == [16, 32, 48, 64, 80, 96, 112]
        used = 8 * 40 + 2 * (115 - 40) + 2 * 80
        same(
            outcome_of(setting, world, world.state),
            metric=0.9,
            regret=0.05,
            gpu_s=used,
            elapsed_s=120,
        )

    def test_sha_moves_the_best_at_its_report_and_gives_it_nothing(self) -> None:
        """Four trials on 1 GPU make a report in 60 s; the best makes the other three on 4 GPUs in
        15 s each.
        """
        four = curves(*([0.1 * row] * 4 for row in range(1, 5)), seconds=60.0)
        setting = alone(four, Limits(240.0, 960.0), IDEAL, profile(report=60.0))
        world = play(setting, planned(setting, "sha"))
        best = next(trial.id for trial in world.state.trials.values() if trial.reports == 4)
        assert times(world, TrialReported, best) == [60, 75, 90, 105]
        same(
            outcome_of(setting, world, world.state), gpu_s=4 * 60 + 4 * 45, elapsed_s=105, trials=4
        )

    def test_random_has_all_gpus_and_ends_with_its_curve(self) -> None:
        """240 GPU-s in 120 s pay for two GPUs: ten reports of 10 s, and the last 20 s are not
        needed.
        """
        setting = ideal()
        problem = planned(setting, "random")
        outcomes = [run(setting, problem, seed) for seed in range(6)]
        assert {outcome.metric for outcome in outcomes if isinstance(outcome, Outcome)} == {
            0.62,
            0.95,
        }
        for outcome in outcomes:
            assert isinstance(outcome, Outcome)
            assert outcome.metric is not None
            same(outcome, regret=0.95 - outcome.metric, gpu_s=200, elapsed_s=100, trials=1)

    def test_grid_gives_each_configuration_the_same(self) -> None:
        """Two configurations, two GPUs, 119 s: seven reports of 16 s each, after which the late
        learner is ahead.
        """
        setting = ideal(119.0, 238.0)
        world = play(setting, planned(setting, "grid"))
        assert tried(world) == [0, 1]
        assert (
            times(world, TrialReported, "t0001")
            == times(world, TrialReported, "t0002")
            == [16 * i for i in range(1, 8)]
        )
        same(
            outcome_of(setting, world, world.state),
            metric=0.7,
            regret=0.25,
            gpu_s=238,
            elapsed_s=119,
        )

    def test_a_model_from_before_its_curve_fell_is_better_than_any_final_one(self) -> None:
        """Regret counts from the best final value: here it is negative."""
        setting = alone(curves([0.9, 0.2]), limits(), IDEAL, profile())
        outcome = run(setting, planned(setting, "random"), 0)
        assert isinstance(outcome, Outcome)
        same(outcome, metric=0.9, regret=-0.7)

    def test_less_is_better_where_the_mode_is_min(self) -> None:
        setting = alone(curves([0.5, 0.4], [0.9, 0.1], mode="min"), limits(), IDEAL, profile())
        outcome = run(setting, planned(setting, "grid"), 0)
        assert isinstance(outcome, Outcome)
        same(outcome, metric=0.1, regret=0.0)

    def test_a_trial_whose_curve_is_nan_is_no_model(self) -> None:
        nan = float("nan")
        only_nan = replace(curves([0.1, 0.2]), metric=curves([nan, nan]).metric)
        setting = alone(only_nan, limits(), IDEAL, profile())
        outcome = run(setting, planned(setting, "random"), 0)
        assert isinstance(outcome, Outcome)
        assert (outcome.metric, outcome.regret) == (None, None)


RISING = curves([k / 100 for k in range(1, 101)])
REAL = profile(start=3.0, save=2.0, pending=7.0, boot=20.0, release=1.0)
BEGUN = 0.05
"""When the daemon has started."""


class TestWhatTheCloudCosts:
    """Four trials on the four GPUs of one instance, a report every 10 s."""

    def world(self) -> tuple[Setting, World]:
        setting = alone(RISING, limits(300.0, 1200.0), PER_INSTANCE, REAL)
        return setting, play(setting, planned(setting, "random", trials=4, p_max=1))

    def test_pending_and_boot_come_before_the_first_trial_and_its_start_before_training(
        self,
    ) -> None:
        _, world = self.world()
        ready = [event for event, _ in world.journal if isinstance(event, InstanceReady)]
        assert [event.at for event in ready] == [BEGUN + 7 + 20]
        assert times(world, TrialStarted, "t0001") == [BEGUN + 27]
        assert times(world, TrialTraining, "t0001") == [BEGUN + 30]
        assert times(world, TrialReported, "t0001")[:2] == pytest.approx([BEGUN + 40, BEGUN + 50])

    def test_a_trial_that_is_asked_to_stop_finishes_its_report_and_saves(self) -> None:
        _, world = self.world()
        assert times(world, TrialReported, "t0001")[-1] == pytest.approx(BEGUN + 280)
        assert times(world, TrialExited, "t0001") == pytest.approx([BEGUN + 280 + 2])

    def test_the_whole_instance_is_billed_from_running_until_terminated(self) -> None:
        """Pending is free, boot is not; the model is in its place before the instance is gone."""
        setting, world = self.world()
        outcome = outcome_of(setting, world, world.state)
        same(outcome, gpu_s=4 * (282 + 1 - 7), metric=0.25, elapsed_s=BEGUN + 282 + 0.05)

    def test_less_than_a_minute_is_billed_as_one(self) -> None:
        """Two reports and it is over: 27 s of boot and start and saving, 20 s of training."""
        setting = alone(
            curves([0.1, 0.2]), limits(300.0, 1200.0), PER_INSTANCE, profile(boot=5.0, start=1.0)
        )
        world = play(setting, planned(setting, "random", trials=1, p_max=1))
        (machine,) = world.fleet.machines.values()
        assert machine.ended is not None
        assert machine.ended - machine.running_since == pytest.approx(26.0)
        assert outcome_of(setting, world, world.state).gpu_s == 4 * 60

    def test_a_gpu_that_nobody_uses_is_billed_too(self) -> None:
        setting = alone(RISING, limits(300.0, 1200.0), PER_INSTANCE, profile())
        one, four = (play(setting, planned(setting, "random", trials=n, p_max=1)) for n in (1, 4))
        assert one.fleet.billed_gpu_s(60.0) == four.fleet.billed_gpu_s(60.0)

    def test_where_nothing_is_rented_gpus_are_paid_while_trials_hold_them(self) -> None:
        held = replace(PER_INSTANCE, billing="held", max_instances=1, usd_per_gpu_h=0.0)
        setting = alone(RISING, limits(300.0, 1200.0), held, profile(start=3.0, boot=20.0))
        world = play(setting, planned(setting, "random", trials=2, p_max=1))
        spans = zip(
            times(world, TrialStarted, "t0001"), times(world, TrialExited, "t0001"), strict=True
        )
        assert outcome_of(setting, world, world.state).gpu_s == pytest.approx(
            2 * sum(end - at for at, end in spans)
        )

    def test_every_cost_leaves_less_to_train_with(self) -> None:
        def reports(**costs: float) -> int:
            setting = alone(RISING, limits(300.0, 1200.0), PER_INSTANCE, profile(**costs))
            return max(
                t.reports
                for t in play(
                    setting, planned(setting, "random", trials=4, p_max=1)
                ).state.trials.values()
            )

        free = reports()
        assert all(reports(**{cost: 40.0}) < free for cost in ("pending", "boot", "start"))


CLOUD = CloudProfile(
    pending=Latency(12.0, 25.0), boot=Latency(50.0, 90.0), release=Latency(1.0, 3.0)
)
JOB = JobProfile(Latency(10.0, 12.0), SCALING, start=Latency(8.0, 12.0), save=Latency(2.0, 4.0))
NOISY = curves(*([(1 - 0.9**k) * (1 - row / 25) for k in range(1, 61)] for row in range(24)))
FAULTS = {
    "none": Faults(),
    "stragglers": Faults(straggling=1.0),
    "drops": Faults(drop_rate=0.2),
    "spot": Faults(lifetime_s=400.0),
    "all": Faults(straggling=0.5, drop_rate=0.1, lifetime_s=600.0),
}


def faulty(name: str) -> Setting:
    return alone(
        NOISY, limits(900.0, 3 * 3600.0), PER_INSTANCE, Profile(JOB, CLOUD, "by hand"), FAULTS[name]
    )


@cache
def plan_of(policy: str) -> Problem:
    """Plans know nothing of faults."""
    return planned(faulty("none"), policy)


@pytest.mark.parametrize(
    ("faults", "policy"),
    [
        *(("all", policy) for policy in POLICIES),
        *((faults, policy) for faults in FAULTS if faults != "all" for policy in ("seer+", "asha")),
    ],
)
def test_whatever_goes_wrong_limits_are_kept_and_the_worlds_account_is_the_ledgers(
    faults: str, policy: str
) -> None:
    """With the invariants of the core checked after every event."""
    setting = faulty(faults)
    world = play(setting, plan_of(policy), seed=7)
    outcome = outcome_of(setting, world, world.state)
    assert outcome.within_deadline, outcome
    assert outcome.within_budget, outcome
    assert outcome.gpu_s == pytest.approx(world.state.ledger.spent_gpu_s(world.now), abs=1e-6)
    assert not world.state.ledger.open
    assert outcome.metric is not None


@pytest.mark.parametrize("faults", [name for name in FAULTS if name != "none"])
def test_what_goes_wrong_changes_what_comes_out(faults: str) -> None:
    def outcomes(name: str) -> list[Outcome]:
        setting = faulty(name)
        found = [run(setting, plan_of("hyperband"), seed) for seed in range(2)]
        return [outcome for outcome in found if isinstance(outcome, Outcome)]

    undisturbed, disturbed = outcomes("none"), outcomes(faults)
    assert len(disturbed) == 2
    assert all(one != other for one, other in zip(undisturbed, disturbed, strict=True))


def test_stragglers_take_longer_and_never_less_long() -> None:
    def between(faults: str) -> list[float]:
        setting = faulty(faults)
        world = play(setting, planned(setting, "random", trials=8, p_max=1))
        at = {name: times(world, TrialReported, name) for name in world.state.trials}
        return [round(reports[1] - reports[0], 6) for reports in at.values()]

    assert set(between("none")) == {10.0}
    slow = between("stragglers")
    assert min(slow) >= 10.0
    assert len(set(slow)) == len(slow)


def test_dropped_trials_go_on_from_their_checkpoints() -> None:
    world = _world("drops")
    crashed = [
        event
        for event, _ in world.journal
        if isinstance(event, TrialExited) and event.cause == "crashed"
    ]
    assert crashed
    again = [
        event.reports
        for event, _ in world.journal
        if isinstance(event, TrialTraining) and event.attempt > 1
    ]
    assert any(epoch > 0 for epoch in again)


def test_interrupted_instances_are_replaced_while_it_is_worth_it() -> None:
    world = _world("spot")
    gone = {
        event.instance
        for event, _ in world.journal
        if isinstance(event, InstanceLost | InstanceNoticed)
    }
    assert gone
    assert len(world.fleet.machines) > len(gone)


def test_most_interruptions_come_with_a_notice_and_nothing_but_time_is_lost_then() -> None:
    def interrupted(**faults: float | None) -> tuple[int, int]:
        setting = replace(faulty("spot"), faults=replace(FAULTS["spot"], **faults))
        worlds = [
            play(setting, planned(setting, "random", trials=8, p_max=1), seed) for seed in range(2)
        ]
        events = [event for world in worlds for event, _ in world.journal]
        return sum(isinstance(e, InstanceNoticed) for e in events), sum(
            isinstance(e, InstanceLost) for e in events
        )

    noticed, lost = interrupted(sudden=0.0)
    assert noticed > 0
    assert lost == 0
    noticed, lost = interrupted(sudden=0.5)
    assert noticed > 0
    assert lost > 0
    assert interrupted(notice_s=None)[0] == 0


def test_the_most_valuable_trials_run_on_what_came() -> None:
    setting = faulty("none")
    problem = planned(setting, "random", trials=8, p_max=1)
    made = play(setting, problem).state.facts
    world = World(made, with_faults(behaviour_of(setting), capacity=lambda at: 1))
    state = world.run()
    assert {name for name, _ in world.fleet.started[:4]} == {"t0001", "t0002", "t0003", "t0004"}
    assert len(world.fleet.machines) == 1
    assert state.end.status == "done"
    asked = [
        event.at for event, commands in world.journal for c in commands if isinstance(c, Launch)
    ]
    waits = [after - before for before, after in pairwise(sorted(set(asked)))]
    assert min(waits) >= 15.0
    assert 45.0 <= max(waits) <= 50.0, (
        "a twentieth of the deadline, and what the cloud takes to refuse"
    )


def _world(faults: str) -> World:
    setting = faulty(faults)
    return play(setting, planned(setting, "random", trials=8, p_max=1))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_seed_determines_a_run_to_the_last_bit(policy: str) -> None:
    first, second = (run(faulty("all"), plan_of(policy), 5) for _ in range(2))
    assert first == second


def test_nothing_is_checked_where_nothing_is_kept_and_the_answer_is_the_same() -> None:
    setting = faulty("all")
    assert checked_run(setting, plan_of("seer"), 1) == run(setting, plan_of("seer"), 1)


@pytest.mark.parametrize("policy", ["seer", "random", "asha"])
def test_a_budget_that_ends_runs_in_the_middle_of_long_reports_is_never_exceeded(
    policy: str,
) -> None:
    """Saving is cut short, and terminations take as long as they ever do: once in fifty runs that
    is what decides.
    """
    slow = curves([0.5] * 3, [0.6] * 3, seconds=400.0)
    setting = alone(slow, limits(1200.0, 1200.0), PER_INSTANCE, assumed(rented=True))
    problem = planned(setting, policy)
    for seed in range(150):
        outcome = run(setting, problem, seed)
        assert isinstance(outcome, Outcome)
        assert outcome.within_budget, seed
        assert outcome.within_deadline, seed
