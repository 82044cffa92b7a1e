"""HyperSched's deadline rules, how it deals GPUs, and what must hold in any run."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.testbed.policy_world import Asked, FakeTrial, World, problem
from seerd.planner.hypersched import HYPERSCHED, deal, worth_starting
from seerd.planner.model import Impossible, Limits, Outline, PolicyParams, Problem, Report, View
from seerd.planner.pace import NEWEST, MeasuredPace
from seerd.planner.profile import BUNDLED, Scaling
from tests.examples import few

FLAT = Scaling(((1, 1.0), (2, 1.0)))


def by_lr(trial: FakeTrial, epoch: int) -> float:
    return float(trial.config["lr"]) * (1 - 0.5**epoch)


def paced(first_s: float, each_s: float, reports: int = 5) -> MeasuredPace:
    """As seen of one trial on one GPU."""
    pace, trial = MeasuredPace(), FakeTrial("t0001")
    for epoch in range(1, reports + 1):
        trial.report(epoch, 0.0, first_s + each_s * (epoch - 1))
    pace.note(0.0, trial.history, 1.0)
    return pace


def test_a_start_is_what_the_first_report_took_longer() -> None:
    pace = paced(first_s=12.0, each_s=2.0)
    assert (pace.report_s, pace.start_s) == (2.0, 10.0)
    assert (MeasuredPace().report_s, MeasuredPace().start_s) == (None, 0.0)
    alone = paced(first_s=12.0, each_s=2.0, reports=1)
    assert (alone.report_s, alone.start_s) == (12.0, 0.0)


def test_only_the_newest_times_count() -> None:
    pace = paced(first_s=12.0, each_s=2.0, reports=20)
    pace.heard(100.0)
    assert pace.reports_s == [2.0] * NEWEST
    assert len(pace.firsts_s) == 1


def test_reports_are_counted_once_and_on_the_gpus_they_were_made_on() -> None:
    pace, speed = MeasuredPace(), BUNDLED["resnet18"].speed(4)
    history = [Report(5.0, 3, 0.0), Report(6.0, 4, 0.0)]
    pace.note(0.0, history, speed, starts=False)
    pace.heard(6.0)
    history.append(Report(8.0, 6, 0.0))
    for _ in range(2):
        pace.note(0.0, history, speed, starts=False)
        pace.heard(8.0)
    assert pace.reports_s == pytest.approx([3.426, 3.426])
    assert pace.firsts_s == []


def test_a_restart_from_an_older_checkpoint_is_no_time_per_report() -> None:
    pace = MeasuredPace()
    pace.note(0.0, [Report(1.0, 1, 0.0), Report(2.0, 2, 0.0), Report(3.0, 3, 0.0)], 1.0)
    pace.heard(3.0)
    pace.note(0.0, [Report(1.0, 1, 0.0), Report(50.0, 1, 0.0), Report(51.0, 2, 0.0)], 1.0)
    assert pace.reports_s == [1.0] * 3


@pytest.mark.parametrize(("left_s", "worth"), [(80.0, True), (79.9, False)])
def test_nobody_starts_when_a_long_trial_would_not_end(left_s: float, worth: bool) -> None:
    """(30 - 10) x 4 = 80 s is less than 256 reports of 2 s."""
    assert worth_starting(left_s, 30.0, paced(12.0, 2.0), 256, 4) is worth


@pytest.mark.parametrize(("left_s", "worth"), [(20.0, True), (19.9, False)])
def test_nobody_starts_when_a_whole_training_would_not_end(left_s: float, worth: bool) -> None:
    assert worth_starting(left_s, 1000.0, paced(12.0, 2.0), 10, 4) is worth


@pytest.mark.parametrize(
    ("trials", "gpus", "p_min", "p_max", "per_instance", "expected"),
    [
        (3, 8, 1, 8, 8, [3, 3, 2]),
        (8, 8, 1, 8, 8, [1] * 8),
        (1, 8, 1, 8, 8, [8]),
        (1, 8, 1, 3, 8, [3]),
        (3, 8, 1, 8, 4, [4, 2, 2]),
        (1, 16, 1, 16, 8, [16]),
        (2, 24, 1, 24, 8, [16, 8]),
        (1, 12, 1, 12, 8, [8]),
        (2, 16, 16, 16, 8, [16, 16]),
        (1, 2, 1, 2, 8, [2]),
    ],
)
def test_deal(
    trials: int, gpus: int, p_min: int, p_max: int, per_instance: int, expected: list[int]
) -> None:
    assert deal(trials, gpus, p_min, p_max, per_instance) == expected


@given(
    gpus=st.integers(1, 40),
    trials=st.integers(1, 40),
    per_instance=st.integers(1, 9),
    p_max=st.integers(1, 40),
)
def test_what_is_dealt_fits_and_leaves_nothing_that_somebody_could_take(
    gpus: int, trials: int, per_instance: int, p_max: int
) -> None:
    trials = min(trials, gpus)
    dealt = deal(trials, gpus, 1, p_max, per_instance)
    assert sum(dealt) <= gpus
    assert all(1 <= p <= max(1, p_max) for p in dealt)
    assert all(p <= per_instance or p % per_instance == 0 for p in dealt)
    if per_instance >= gpus:
        assert max(dealt) - min(dealt) <= 1
        assert sum(dealt) == min(gpus, trials * p_max)


def test_as_the_deadline_nears_nobody_starts_and_the_best_gets_all_gpus() -> None:
    made = problem(8, 300.0, per_instance=8, max_reports=1000, min_reports=4)
    world = World(
        Asked(HYPERSCHED, made), 8, by_lr, unit_s=lambda trial, until, gpus: 1.0 / gpus, start_s=1.0
    ).run()
    begun = {name: at_s for at_s, name, _ in reversed(world.started)}
    assert max(begun.values()) < 270.0
    last = world.plans[-2].allocations
    assert sum(allocation.gpus for allocation in last) == 8
    assert len(last) <= 2
    best = max(world.trials.values(), key=lambda trial: trial.config["lr"])
    assert best.reports > 100


def test_gpus_that_bring_nothing_are_not_taken() -> None:
    made = problem(8, 300.0, scaling=FLAT, max_reports=1000, min_reports=4)
    world = World(
        Asked(HYPERSCHED, made), 8, by_lr, unit_s=lambda trial, until, gpus: 1.0, start_s=1.0
    ).run()
    held = [{a.trial: a.gpus for a in plan.allocations} for plan in world.plans]
    assert max(gpus for now in held for gpus in now.values()) > 1
    assert all(
        now[name] <= before[name]
        for before, now in pairwise(held)
        for name in before.keys() & now.keys()
    )


def test_a_trial_is_given_more_only_once_in_five_reports() -> None:
    draws = random.Random(1)
    made = problem(8, 200.0, max_reports=1000, min_reports=4)
    world = World(Asked(HYPERSCHED, made), 8, lambda t, e: draws.random(), start_s=0.2).run()
    changed: dict[str, tuple[int, int]] = {}
    grown = 0
    reports = dict.fromkeys(world.trials, 0)
    for at_s, plan in zip(world.asked_s, world.plans, strict=True):
        for name, trial in world.trials.items():
            reports[name] = sum(report.at_s <= at_s for report in trial.history)
        held = {a.trial: a.gpus for a in plan.allocations}
        for name, gpus in held.items():
            before = changed.get(name)
            if before is not None and gpus > before[0]:
                grown += 1
                assert reports[name] >= before[1] + 5 or before[1] == 0
            if before is None or gpus != before[0]:
                changed[name] = (gpus, reports[name] if before else 0)
        changed = {name: what for name, what in changed.items() if name in held}
    assert grown > 3


@given(
    seed=st.integers(0, 10**6),
    gpus=st.integers(1, 12),
    p_min=st.sampled_from([1, 1, 2, 3]),
    p_max=st.sampled_from([None, 4, 8]),
    per_instance=st.sampled_from([2, 4, 8]),
    n=st.none() | st.integers(1, 60),
    mode=st.sampled_from(["max", "min"]),
)
@settings(max_examples=few(60), deadline=None)
def test_whatever_happens(
    seed: int, gpus: int, p_min: int, p_max: int | None, per_instance: int, n: int | None, mode: str
) -> None:
    gpus = max(gpus, p_min)
    params = {"p_min": p_min, "p_max": p_max, "trials": n, "max_reports": 64, "seed": seed}

    def run() -> World:
        draws = random.Random(seed)
        return World(
            Asked(
                HYPERSCHED,
                problem(
                    gpus, 60.0, scaling=BUNDLED["resnet50"], per_instance=per_instance, **params
                ),
            ),
            gpus,
            lambda trial, epoch: None if draws.random() < 0.1 else by_lr(trial, epoch),
            unit_s=lambda trial, until, gpus: draws.uniform(0.3, 2.0) / gpus,
            start_s=0.5,
            lives_s=lambda: draws.expovariate(0.02),
            most=20 if seed % 3 == 0 else None,
            late=lambda: draws.random() < 0.3,
            mode=mode,  # type: ignore[arg-type]
        ).run()

    world = run()
    assert world.plans[-1].done
    assert n is None or len(world.trials) <= n
    assert all(a.gpus >= p_min for plan in world.plans for a in plan.allocations)
    assert run().plans == world.plans


def test_the_outline_is_one_stage_on_the_fixed_cluster() -> None:
    outline = Asked(HYPERSCHED, problem(4, 100.0)).outline()
    assert isinstance(outline, Outline)
    assert outline.gpu_s == 400.0
    assert outline.trials == 4


def test_limits_that_fit_nothing_are_told() -> None:
    impossible = Problem(Limits(10.0, 5.0), problem().space, PolicyParams(t_min_s=60.0))
    assert isinstance(Asked(HYPERSCHED, impossible).outline(), Impossible)
    with pytest.raises(ValueError, match="the shortest round is 60s"):
        Asked(HYPERSCHED, impossible).plan(View(0.0, "max", {}))
