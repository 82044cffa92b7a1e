"""ASHA against figure 1, Algorithm 2 and the defaults of its paper, and what must hold in any
run.
"""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.stragglers import METHODS, study
from bench.testbed.policy_world import Asked, FakeTrial, World, problem
from seerd.planner.asha import ASHA, asha, brackets_of, next_bracket, places, shares, sizes
from seerd.planner.model import (
    Group,
    Impossible,
    Limits,
    Outline,
    Plan,
    PolicyParams,
    Problem,
    View,
)
from seerd.planner.profile import BUNDLED, LINEAR
from seerd.planner.ranking import metric_at
from seerd.planner.rungs import Rung, rung_reports
from tests.examples import few


def by_lr(trial: FakeTrial, epoch: int) -> float:
    return float(trial.config["lr"]) * (1 - 0.5**epoch)


def one_bracket(made: Problem) -> Asked:
    return Asked(asha(most_brackets=1), made)


@pytest.mark.parametrize(
    ("bracket", "expected"),
    [(0, [(9, 1, 9), (3, 3, 9), (1, 9, 9)]), (1, [(9, 3, 27), (3, 9, 27)]), (2, [(9, 9, 81)])],
)
def test_figure_1(bracket: int, expected: list[tuple[int, int, int]]) -> None:
    params = PolicyParams(eta=3, min_reports=1, max_reports=9)
    table = [(9 // 3**rung, reports) for rung, reports in enumerate(rung_reports(params, bracket))]
    assert [(n, reports, n * reports) for n, reports in table] == expected


def test_nine_configurations_go_through_figure_1_s_bracket_0() -> None:
    policy = one_bracket(problem(1, eta=3, min_reports=1, max_reports=9, trials=9))
    world = World(policy, 1, by_lr).run()
    assert world.plans[-1].done
    assert sorted((trial.reports for trial in world.trials.values()), reverse=True)[:1] == [9]
    best = max(world.trials.values(), key=lambda trial: trial.config["lr"])
    assert best.reports == 9
    assert sum(trial.reports >= 3 for trial in world.trials.values()) >= 3


def test_the_order_of_algorithm_2() -> None:
    """One worker, eta 2, rungs 1, 2, 4: after every second arrival at a rung its best goes on, from
    the highest rung first.
    """
    metrics = {"t0001": 1.0, "t0002": 3.0, "t0003": 2.0, "t0004": 5.0, "t0005": 0.0, "t0006": 0.0}
    policy = one_bracket(problem(1, eta=2, min_reports=1, max_reports=4))
    trials: dict[str, FakeTrial] = {}
    order = []
    for _ in range(9):
        plan = policy.plan(View(0.0, "max", trials))
        trials |= {new.id: FakeTrial(new.id) for new in plan.new}
        (allocation,) = plan.allocations
        order.append((allocation.trial, allocation.until))
        trials[allocation.trial].report(allocation.until or 0, metrics[allocation.trial])
    assert order == [
        ("t0001", 1),
        ("t0002", 1),
        ("t0002", 2),
        ("t0003", 1),
        ("t0004", 1),
        ("t0004", 2),
        ("t0004", 4),
        ("t0005", 1),
        ("t0006", 1),
    ]


def test_a_paused_trial_goes_on_once_its_rung_has_grown() -> None:
    metrics = {"t0001": 9.0, "t0002": 8.0, "t0003": 1.0, "t0004": 1.0}
    policy = one_bracket(problem(1, eta=2, min_reports=1, max_reports=2))
    trials: dict[str, FakeTrial] = {}
    order = []
    for _ in range(6):
        plan = policy.plan(View(0.0, "max", trials))
        trials |= {new.id: FakeTrial(new.id) for new in plan.new}
        (allocation,) = plan.allocations
        order.append(allocation.trial)
        trials[allocation.trial].report(allocation.until or 0, metrics[allocation.trial])
    assert order == ["t0001", "t0002", "t0001", "t0003", "t0004", "t0002"]


def test_the_brackets_shares_are_the_paper_s() -> None:
    brackets = brackets_of(PolicyParams())
    assert brackets == ((1, 4, 16, 64, 256), (4, 16, 64, 256), (16, 64, 256))
    assert [float(share) * 100 for share in shares(brackets, 4)] == pytest.approx(
        [70.6, 22.1, 7.4], abs=0.05
    )


def test_every_bracket_gets_the_same_resources() -> None:
    brackets = brackets_of(PolicyParams())
    wanted = shares(brackets, 4)
    averages = [Fraction(5, 256), Fraction(4, 64), Fraction(3, 16)]
    assert len({share * average for share, average in zip(wanted, averages, strict=True)}) == 1


@given(n=st.integers(1, 400))
def test_configurations_are_dealt_to_brackets_within_one_of_their_shares(n: int) -> None:
    wanted = shares(brackets_of(PolicyParams()), 4)
    drawn = [0, 0, 0]
    for _ in range(n):
        drawn[next_bracket(drawn, wanted)] += 1
    assert all(abs(have - share * n) < 1 for have, share in zip(drawn, wanted, strict=True))


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, (1, 4, 16, 64, 256)),
        ({"max_reports": 512}, (2, 8, 32, 128, 512)),
        ({"max_reports": 100}, (1, 4, 16, 100)),
        ({"max_reports": 1}, (1,)),
        ({"max_reports": 50, "min_reports": 1, "eta": 3}, (1, 3, 9, 50)),
        ({"max_reports": 10, "min_reports": 20}, (10,)),
        ({"max_reports": 8, "min_reports": 1, "eta": 1.5}, (1, 2, 3, 5, 8)),
    ],
)
def test_rungs(params: dict[str, float], expected: tuple[int, ...]) -> None:
    assert rung_reports(PolicyParams(**params)) == expected  # type: ignore[arg-type]


@given(
    most=st.integers(1, 2000),
    least=st.none() | st.integers(1, 50),
    eta=st.sampled_from([1.5, 2, 2.5, 3, 4]),
    bracket=st.integers(0, 6),
)
def test_rungs_grow_and_end_at_r(most: int, least: int | None, eta: float, bracket: int) -> None:
    rungs = rung_reports(PolicyParams(eta=eta, max_reports=most, min_reports=least), bracket)
    assert rungs[-1] == most
    assert list(rungs) == sorted(set(rungs))


def test_a_metric_at_a_rung_is_that_of_its_report_or_of_the_nearest() -> None:
    trial = FakeTrial("t0001")
    assert metric_at(trial, 4) is None
    for epoch in (2, 4, 7, 12):
        trial.report(epoch, float(epoch))
    assert [metric_at(trial, at) for at in (1, 2, 3, 4, 5, 6, 7, 9, 10, 99)] == [
        2,
        2,
        2,
        4,
        4,
        7,
        7,
        7,
        12,
        12,
    ]


@given(
    st.lists(st.none() | st.integers(0, 9), max_size=40),
    st.sampled_from([2, 3, 4]),
    st.sampled_from(["max", "min"]),
)
def test_only_the_best_of_a_rung_go_on(metrics: list[int | None], eta: int, mode: str) -> None:
    rung = Rung(1)
    arrived: list[tuple[str, int | None]] = []
    gone: set[str] = set()
    for number, metric in enumerate(metrics):
        name = f"t{number:04}"
        arrived.append((name, metric))
        rung.arrive(name, None if metric is None else float(metric), mode)  # type: ignore[arg-type]
        sign = -1 if mode == "max" else 1
        order = sorted(arrived, key=lambda at: (at[1] is None, sign * (at[1] or 0), at[0]))
        best = [at[0] for at in order[: len(arrived) // eta]]
        while (promoted := rung.promotable(Fraction(eta))) is not None:
            assert promoted == next(name for name in best if name not in gone)
            gone.add(promoted)
            rung.leave(promoted)
        assert set(best) <= gone


@given(
    seed=st.integers(0, 10**6),
    gpus=st.integers(1, 12),
    p_min=st.sampled_from([1, 1, 2, 3]),
    per_instance=st.sampled_from([2, 4, 8]),
    n=st.none() | st.integers(1, 60),
    eta=st.sampled_from([2, 3, 4]),
)
@settings(max_examples=few(60), deadline=None)
def test_whatever_happens(
    seed: int, gpus: int, p_min: int, per_instance: int, n: int | None, eta: int
) -> None:
    """Failures, NaN, scripts that end by themselves, late questions: the world checks the protocol;
    here, who has gone on.
    """
    gpus = max(gpus, p_min)

    def run() -> World:
        draws = random.Random(seed)
        policy = Asked(
            ASHA,
            problem(
                gpus,
                60.0,
                p_min=p_min,
                per_instance=per_instance,
                trials=n,
                eta=eta,
                max_reports=32,
                seed=seed,
            ),
        )
        return World(
            policy,
            gpus,
            lambda trial, epoch: None if draws.random() < 0.1 else by_lr(trial, epoch),
            unit_s=lambda trial, until, gpus: draws.uniform(0.3, 2.0) / gpus,
            start_s=0.5,
            lives_s=lambda: draws.expovariate(0.02),
            most=20 if seed % 3 == 0 else None,
            late=lambda: draws.random() < 0.3,
        ).run()

    world = run()
    assert world.plans[-1].done
    assert n is None or len(world.trials) <= n
    assert run().plans == world.plans


def test_whoever_goes_on_is_among_the_best_of_all_that_have_arrived() -> None:
    rungs = rung_reports(PolicyParams(max_reports=64, min_reports=1))
    policy, rng = one_bracket(problem(8, 200.0, max_reports=64, min_reports=1)), random.Random(0)
    world = World(policy, 8, by_lr, unit_s=lambda trial, until, gpus: rng.uniform(0.5, 1.5)).run()
    aims: dict[str, int] = {}
    promotions = 0
    for at_s, plan in zip(world.asked_s, world.plans, strict=True):
        for allocation in plan.allocations:
            until = allocation.until or 0
            if aims.get(allocation.trial, until) != until:
                promotions += 1
                low = rungs[rungs.index(until) - 1]
                assert allocation.trial in best_at(world, low, at_s)
            aims[allocation.trial] = until
    assert promotions > 100


def best_at(world: World, reports: int, at_s: float) -> list[str]:
    """The best quarter of those that had made so many reports by then."""
    there = [
        (-(report.metric or 0.0), trial.id)
        for trial in world.trials.values()
        for report in trial.history
        if report.reports == reports and report.at_s <= at_s
    ]
    return [name for _, name in sorted(there)[: len(there) // 4]]


def test_a_trial_that_overshoots_stands_with_its_metric_at_the_rung() -> None:
    policy = one_bracket(problem(1, eta=2, min_reports=1, max_reports=4))
    trials: dict[str, FakeTrial] = {}

    def ask() -> Plan:
        plan = policy.plan(View(0.0, "max", trials))
        trials.update({new.id: FakeTrial(new.id) for new in plan.new})
        return plan

    ask()
    for epoch, metric in ((1, 0.5), (2, 9.0), (3, 9.0)):
        trials["t0001"].report(epoch, metric)
    ask()
    trials["t0002"].report(1, 0.7)
    assert [(a.trial, a.until) for a in ask().allocations] == [("t0002", 2)]
    trials["t0002"].report(2, 0.8)
    assert [a.trial for a in ask().allocations] == ["t0003"]
    trials["t0003"].report(1, 0.0)
    ask()
    trials["t0004"].report(1, 0.0)
    plan = ask()
    assert [(a.trial, a.until) for a in plan.allocations] == [("t0001", 4)], (
        "it has come to rung 2 without being asked"
    )


def test_failed_trials_never_go_on_and_finished_ones_count() -> None:
    policy = one_bracket(problem(2, eta=2, min_reports=1, max_reports=4))
    trials: dict[str, FakeTrial] = {}
    plan = policy.plan(View(0.0, "max", trials))
    trials |= {new.id: FakeTrial(new.id) for new in plan.new}
    trials["t0001"].report(1, 1.0)
    trials["t0001"].status = "failed"
    trials["t0002"].report(1, 0.5)
    trials["t0002"].status = "finished"
    plan = policy.plan(View(1.0, "max", trials))
    assert [a.trial for a in plan.allocations] == ["t0003", "t0004"]
    trials |= {new.id: FakeTrial(new.id) for new in plan.new}
    trials["t0003"].report(1, 0.7)
    plan = policy.plan(View(2.0, "max", trials))
    assert [(a.trial, a.until) for a in plan.allocations] == [("t0003", 2), ("t0004", 1)]


def test_a_script_that_always_fails_is_not_started_for_ever() -> None:
    world = World(Asked(ASHA, problem(4, 1e6)), 4, by_lr, lives_s=lambda: 0.1).run()
    assert world.plans[-1].done
    assert len(world.trials) <= 12


def test_the_run_ends_with_the_number_of_configurations() -> None:
    world = World(Asked(ASHA, problem(4, 1e6, trials=50, max_reports=64)), 4, by_lr).run()
    assert len(world.trials) == 50
    assert world.plans[-1].done
    assert world.now_s < 1e6


def test_the_run_ends_with_the_deadline() -> None:
    world = World(Asked(ASHA, problem(4, 100.0)), 4, by_lr).run()
    assert world.now_s == 100.0
    assert world.plans[-1].done


def test_gpus_that_nobody_needs_go_to_those_that_are_left() -> None:
    made = problem(8, 1e6, scaling=BUNDLED["resnet18"], trials=8, max_reports=64, min_reports=16)
    assert sizes(made, 8) == (1, 2, 4), "on 8 GPUs its efficiency is 67 %"
    world = World(
        Asked(ASHA, made),
        8,
        by_lr,
        unit_s=lambda trial, until, gpus: 1 / BUNDLED["resnet18"].speed(gpus),
    ).run()
    held = [[a.gpus for a in plan.allocations] for plan in world.plans if plan.allocations]
    assert held[0] == [1] * 8
    assert held[-1] == [4]
    endless = World(Asked(ASHA, problem(8, 200.0, max_reports=64)), 8, by_lr).run()
    assert {a.gpus for plan in endless.plans for a in plan.allocations} == {1}


def test_stragglers_and_dropped_jobs_hold_up_sha_more_than_asha() -> None:
    """Appendix A.1, once and for half the time; `bench/stragglers.py` has the whole
    table.
    """
    trained = {method: study(method, 1.33, 0.001, 0, 1000)[0] for method in METHODS}
    assert trained["asha"] > trained["sha"] > 0


@pytest.mark.parametrize(
    ("gpus", "size", "per_instance", "expected"),
    [
        (8, 1, 8, 8),
        (16, 3, 8, 4),
        (12, 3, 8, 3),
        (2, 1, 8, 2),
        (16, 16, 8, 1),
        (24, 16, 8, 1),
        (12, 12, 8, 1),
        (5, 4, 8, 1),
    ],
)
def test_places(gpus: int, size: int, per_instance: int, expected: int) -> None:
    assert places(gpus, size, per_instance) == expected


def test_sizes_respect_p_max_and_whole_instances() -> None:
    assert sizes(problem(32), 32) == (1, 2, 4, 8, 16, 32)
    assert sizes(problem(32, p_max=6), 32) == (1, 2, 4)
    assert sizes(problem(32, p_min=3), 32) == (3, 6, 24)
    assert sizes(problem(8, scaling=LINEAR, p_min=8), 8) == (8,)


def test_the_outline_is_one_stage_on_the_fixed_cluster() -> None:
    outline = Asked(ASHA, problem(4, 100.0, trials=100)).outline()
    assert isinstance(outline, Outline)
    assert [(stage.start_s, stage.end_s, stage.groups) for stage in outline.stages] == [
        (0.0, 100.0, (Group(1, 4),))
    ]
    assert [bracket.trials for bracket in outline.brackets] == [71, 22, 7]
    assert outline.gpu_s == 400.0
    assert math.isclose(sum(bracket.budget_gpu_s for bracket in outline.brackets), 400.0)


def test_limits_that_fit_nothing_are_told() -> None:
    impossible = Problem(Limits(10.0, 5.0), problem().space, PolicyParams(t_min_s=60.0))
    assert isinstance(Asked(ASHA, impossible).outline(), Impossible)
    with pytest.raises(ValueError, match="the shortest round is 60s"):
        Asked(ASHA, impossible).plan(View(0.0, "max", {}))
