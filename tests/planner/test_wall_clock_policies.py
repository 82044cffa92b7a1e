"""Policies by the clock (SEER, section 6.3): worked examples by hand, and what must hold for any
limits and in any run.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bench.testbed.policy_world import Asked, FakeTrial, World
from seerd.planner.baselines import E_GRID, GRID, RANDOM
from seerd.planner.hyperband import E_HYPERBAND, rungs_of
from seerd.planner.model import Impossible, Limits, Outline, PolicyParams, Problem, View
from seerd.planner.space import Parameter, Space
from tests.examples import few

POLICIES = {"random": RANDOM, "grid": GRID, "e-grid": E_GRID, "e-hyperband": E_HYPERBAND}
LR = Space((Parameter("lr", low=1e-4, high=1.0, log=True),))
SIX_POINTS = Space((Parameter("lr", (0.1, 0.2, 0.3)), Parameter("depth", (2, 4))))


def problem(
    name: str,
    minutes: float,
    gpu_minutes: float,
    *,
    space: Space = LR,
    max_gpus: int | None = None,
    per_instance: int = 8,
    **params: object,
) -> Problem:
    """Times and GPU times in minutes, `t_min` one minute unless said."""
    t_min_s = float(params.pop("t_min", 1.0)) * 60  # type: ignore[arg-type]
    limits = Limits(minutes * 60, gpu_minutes * 60, max_gpus)
    return Problem(
        limits,
        space,
        PolicyParams(name=name, t_min_s=t_min_s, **params),
        gpus_per_instance=per_instance,
    )  # type: ignore[arg-type]


def policy_of(problem: Problem) -> Asked:
    return Asked(POLICIES[problem.params.name], problem)


def planned(*args: object, **kwargs: object) -> Outline:
    made = problem(*args, **kwargs)  # type: ignore[arg-type]
    outline = policy_of(made).outline()
    assert isinstance(outline, Outline)
    return outline


def shape(outline: Outline) -> list[tuple[float, list[tuple[int, int]]]]:
    """For each stage its minutes, and (trials, GPUs of each)."""
    return [
        (round((s.end_s - s.start_s) / 60, 3), [(g.trials, g.gpus_per_trial) for g in s.groups])
        for s in outline.stages
    ]


def by_lr(trial: FakeTrial, epoch: int) -> float:
    return float(trial.config["lr"]) * (1 - 0.5**epoch)


class TestRandom:
    def test_one_configuration_has_all_gpus_all_the_time(self) -> None:
        """T = 15 min and B = 60 GPU-min are four GPUs."""
        outline = planned("random", 15, 60)
        assert shape(outline) == [(15, [(1, 4)])]
        assert outline.gpu_s == 60 * 60

    def test_several_share_them_equally(self) -> None:
        assert shape(planned("random", 15, 120, trials=3)) == [(15, [(3, 2)])]

    def test_a_trial_beyond_an_instance_takes_whole_ones(self) -> None:
        assert shape(planned("random", 10, 110)) == [(10, [(1, 8)])]

    def test_a_budget_that_is_too_small_for_the_whole_time_is_used_up_earlier(self) -> None:
        assert shape(planned("random", 100, 50, p_min=2)) == [(25, [(1, 2)])]

    def test_nobody_is_stopped(self) -> None:
        made = problem("random", 10, 40, trials=4)
        world = World(policy_of(made), 4, by_lr, unit_s=lambda trial, until, gpus: 60.0).run()
        assert [plan.eliminated for plan in world.plans] == [()] * len(world.plans)
        assert world.now_s == 600


class TestGrid:
    def test_every_point_gets_an_equal_share_of_the_time(self) -> None:
        """Six points on four GPUs are two waves of three."""
        outline = planned("grid", 10, 40, space=SIX_POINTS)
        assert shape(outline) == [(5, [(3, 1)]), (5, [(3, 1)])]

    def test_every_point_is_tried_once(self) -> None:
        world = World(policy_of(problem("grid", 10, 40, space=SIX_POINTS)), 4, by_lr).run()
        assert [trial.config for trial in world.trials.values()] == list(SIX_POINTS.grid(5, 100))
        assert sorted(name for _, name, _ in world.started) == sorted(world.trials)

    def test_points_that_do_not_fit_are_left_out_at_random(self) -> None:
        """Rounds of six minutes at least: one wave of four of the six points."""
        made = problem("grid", 10, 40, space=SIX_POINTS, t_min=6)
        assert shape(planned("grid", 10, 40, space=SIX_POINTS, t_min=6)) == [(10, [(4, 1)])]
        drawn = [
            [
                t.config
                for t in World(
                    policy_of(replace(made, params=replace(made.params, seed=s))), 4, by_lr
                )
                .run()
                .trials.values()
            ]
            for s in range(20)
        ]
        assert all(
            len(some) == 4 and all(c in list(SIX_POINTS.grid(5, 100)) for c in some)
            for some in drawn
        )
        assert len({str(some) for some in drawn}) > 1

    def test_a_range_has_five_values(self) -> None:
        assert planned("grid", 10, 100).trials == 5


class TestElasticGrid:
    def test_half_of_the_time_for_looking_half_for_the_best(self) -> None:
        """15 min, 60 GPU-min, p 1 to 4: the second half takes 30 GPU-min, the other 30 pay for four
        trials of 7.5 min.
        """
        outline = planned("e-grid", 15, 60)
        assert shape(outline) == [(7.5, [(4, 1)]), (7.5, [(1, 4)])]
        assert outline.gpu_s == 60 * 60

    def test_the_setting_of_the_papers_vision_benchmarks(self) -> None:
        """60 min, 960 GPU-min: (960 - 30 * 4) / 30 = 28 trials."""
        assert shape(planned("e-grid", 60, 960)) == [(30, [(28, 1)]), (30, [(1, 4)])]

    def test_no_more_trials_than_gpus(self) -> None:
        assert shape(planned("e-grid", 15, 600, max_gpus=10, p_max=8)) == [
            (7.5, [(10, 1)]),
            (7.5, [(1, 8)]),
        ]

    def test_a_budget_for_less_than_the_whole_time_is_used_up_earlier(self) -> None:
        """20 GPU-min are two halves of four minutes for one trial on 1 and then 4 GPUs."""
        assert shape(planned("e-grid", 60, 20)) == [(4, [(1, 1)]), (4, [(1, 4)])]

    def test_the_best_at_half_time_goes_on_alone(self) -> None:
        world = World(
            policy_of(problem("e-grid", 15, 60)), 4, by_lr, unit_s=lambda trial, until, gpus: 30.0
        ).run()
        best = max(world.trials.values(), key=lambda trial: float(trial.config["lr"]))
        assert [(a.trial, a.gpus) for a in world.plans[1].allocations] == [(best.id, 4)]
        assert set(world.plans[1].eliminated) == world.trials.keys() - {best.id}


class TestElasticHyperband:
    def test_the_brackets_of_hyperband_side_by_side(self) -> None:
        """R = 9, eta 3: 9 + 5 + 3 trials; 21, 21 and 27 units of one GPU-minute, 69 in all."""
        outline = planned("e-hyperband", 9, 69, eta=3)
        assert shape(outline) == [(1, [(17, 1)]), (2, [(11, 1)]), (6, [(5, 1)])]
        assert [(b.trials, round(b.budget_gpu_s / 60, 6)) for b in outline.brackets] == [
            (9, 21),
            (5, 21),
            (3, 27),
        ]
        assert outline.gpu_s == pytest.approx(69 * 60)

    def test_the_budget_bounds_r(self) -> None:
        """Two brackets, (3, R/3), (1, R) and (2, R), cost 11/3 R: 22 GPU-min are R = 6."""
        assert shape(planned("e-hyperband", 9, 22, eta=3)) == [(2, [(5, 1)]), (4, [(3, 1)])]

    def test_fewer_brackets_where_there_are_too_few_gpus(self) -> None:
        """Three brackets need 17 GPUs at once; two, whose R is as long as they can be, 5."""
        assert shape(planned("e-hyperband", 9, 69, eta=3, max_gpus=16)) == [
            (3, [(5, 1)]),
            (6, [(3, 1)]),
        ]

    def test_gpus_of_a_trial_count(self) -> None:
        assert shape(planned("e-hyperband", 9, 138, eta=3, p_min=2))[0] == (1, [(17, 2)])

    def test_up_to_p_max_those_that_are_left_share_the_gpus_of_the_others(self) -> None:
        """R = 9, eta 3, at most 4 GPUs each: on 1, 3 and 4 GPUs the brackets take 9 + 18 + 24, 15 +
        18 and 27 GPU-min: 111 in all.
        """
        outline = planned("e-hyperband", 9, 111, eta=3, p_max=4)
        assert [round(b.budget_gpu_s / 60, 6) for b in outline.brackets] == [51, 33, 27]
        assert shape(outline) == [
            (1, [(17, 1)]),
            (2, [(8, 1), (3, 3)]),
            (6, [(3, 1), (1, 3), (1, 4)]),
        ]
        assert shape(planned("e-hyperband", 9, 111, eta=3, p_max=1))[-1] == (6, [(5, 1)])

    @given(most=st.integers(0, 5), eta=st.sampled_from([2, 3, 4]), fraction=st.fractions(1, 2))
    def test_rungs_are_those_of_algorithm_1(self, most: int, eta: int, fraction: Fraction) -> None:
        """n = ceil((s_max + 1) / (s + 1) eta^s), n_i = floor(n eta^-i), r_i = R eta^(i - s)."""
        resource = fraction * eta**most
        for s in range(most + 1):
            n = -(-(most + 1) * eta**s // (s + 1))
            wanted = [(n // eta**i, resource * Fraction(eta) ** (i - s)) for i in range(s + 1)]
            assert rungs_of(most, s, resource, Fraction(eta)) == wanted


@st.composite
def problems(draw: st.DrawFn, most_trials: float = 1e4) -> Problem:
    t_min, p_min = draw(st.floats(0.5, 600)), draw(st.integers(1, 4))
    params = PolicyParams(
        name=draw(st.sampled_from(sorted(POLICIES))),
        eta=draw(st.sampled_from([1.5, 2, 3, 4, 5.5])),
        p_min=p_min,
        p_max=draw(st.one_of(st.none(), st.integers(p_min, 16))),
        t_min_s=t_min,
        seed=draw(st.integers(0, 100)),
        trials=draw(st.one_of(st.none(), st.integers(1, 20))),
    )
    deadline = t_min * draw(st.one_of(st.floats(0.5, 4), st.floats(0.5, 100)))
    budget = t_min * p_min * draw(st.one_of(st.floats(0.5, 10), st.floats(0.5, most_trials)))
    space = draw(st.sampled_from([LR, SIX_POINTS]))
    start_s = draw(st.sampled_from([0.0, 97.3]))
    limits = Limits(deadline, budget, draw(st.one_of(st.none(), st.integers(1, 200))))
    return Problem(
        limits, space, params, gpus_per_instance=draw(st.sampled_from([1, 4, 8])), start_s=start_s
    )


@given(problems())
@settings(max_examples=few(80), deadline=None)
def test_time_budget_and_gpus_are_never_exceeded(problem: Problem) -> None:
    outline = policy_of(problem).outline()
    assume(isinstance(outline, Outline))
    assert isinstance(outline, Outline)
    limits, params = problem.limits, problem.params
    assert outline.stages[0].start_s == problem.start_s
    assert outline.stages[-1].end_s - problem.start_s <= limits.deadline_s * (1 + 1e-9)
    assert outline.gpu_s <= limits.budget_gpu_s * (1 + 1e-9)
    assert outline.peak_gpus <= (limits.max_gpus or math.inf)
    assert outline.gpu_s == pytest.approx(sum(bracket.budget_gpu_s for bracket in outline.brackets))
    assert outline.trials >= 1
    assert params.trials is None or params.name == "e-hyperband" or outline.trials <= params.trials
    for stage in outline.stages:
        assert all(
            group.gpus_per_trial >= params.p_min and group.trials > 0 for group in stage.groups
        )


def least(problem: Problem) -> tuple[float, float, int]:
    """Seconds, GPU-seconds and GPUs of the smallest plan, by hand: one shortest round of one trial,
    or for E-Grid one of each half.
    """
    params, size = problem.params, problem.gpus_per_instance
    if params.name != "e-grid":
        return params.t_min_s, params.t_min_s * params.p_min, params.p_min
    p_max = max(params.p_min, params.p_max or 4)
    p_max = p_max if problem.limits.max_gpus is None else min(p_max, problem.limits.max_gpus)
    p_max = p_max if p_max <= size else p_max // size * size
    return 2 * params.t_min_s, params.t_min_s * (params.p_min + p_max), params.p_min


@given(problems())
@settings(max_examples=few(80), deadline=None)
def test_impossible_exactly_when_the_smallest_plan_does_not_fit(problem: Problem) -> None:
    limits, (time_s, gpu_s, gpus) = problem.limits, least(problem)
    assume(gpus <= problem.gpus_per_instance)
    few = limits.max_gpus is not None and limits.max_gpus < gpus
    clearly_not = (
        limits.deadline_s < time_s * (1 - 1e-9) or limits.budget_gpu_s < gpu_s * (1 - 1e-9) or few
    )
    clearly = (
        limits.deadline_s > time_s * (1 + 1e-9)
        and limits.budget_gpu_s > gpu_s * (1 + 1e-9)
        and not few
    )
    outline = policy_of(problem).outline()
    assert not (clearly_not and isinstance(outline, Outline))
    assert not (clearly and isinstance(outline, Impossible))


@given(problems(most_trials=20.0))
@settings(max_examples=few(80), deadline=None)
def test_the_minima_of_an_impossible_plan_are_enough(problem: Problem) -> None:
    found = policy_of(problem).outline()
    limits = problem.limits
    assume(
        isinstance(found, Impossible)
        and (limits.max_gpus is None or limits.max_gpus >= problem.params.p_min)
    )
    assume(problem.params.p_min <= problem.gpus_per_instance)
    assert isinstance(found, Impossible)
    assert found.reason
    assert found.min_deadline_s > limits.deadline_s or found.min_budget_gpu_s > limits.budget_gpu_s
    exactly = replace(limits, deadline_s=found.min_deadline_s, budget_gpu_s=found.min_budget_gpu_s)
    larger = replace(
        limits,
        deadline_s=max(limits.deadline_s, found.min_deadline_s),
        budget_gpu_s=max(limits.budget_gpu_s, found.min_budget_gpu_s),
    )
    for enough in (exactly, larger):
        assert isinstance(policy_of(replace(problem, limits=enough)).outline(), Outline)


@given(problems(most_trials=60), st.integers(0, 2**32 - 1).map(random.Random))
@settings(max_examples=few(80), deadline=None)
def test_a_run_keeps_the_protocol_whoever_fails_or_finishes(
    problem: Problem, rng: random.Random
) -> None:
    """The world checks every plan, and asks for it twice."""
    policy = policy_of(problem)
    outline = policy.outline()
    assume(isinstance(outline, Outline) and outline.trials <= 100)
    assert isinstance(outline, Outline)
    unit_s = outline.stages[-1].end_s / 12
    world = World(
        policy,
        outline.peak_gpus,
        lambda trial, epoch: rng.choice([None, rng.random()]),
        unit_s=lambda trial, until, gpus: unit_s,
        lives_s=lambda: rng.expovariate(1 / outline.stages[-1].end_s),
        most=rng.choice([None, 3]),
    ).run()
    assert len(world.trials) <= outline.trials
    assert world.now_s <= outline.stages[-1].end_s
    if world.plans[-1].done and world.now_s < outline.stages[-1].end_s:
        last = next(plan for plan in reversed(world.plans) if plan.allocations)
        assert all(world.trials[a.trial].status != "live" for a in last.allocations)


def test_a_run_whose_trials_have_ended_before_instances_were_expected_is_done() -> None:
    """They were there at once: an earlier run had kept them."""
    policy = policy_of(replace(problem("random", 60, 60, trials=2), start_s=97.3))
    asked = policy.plan(View(1.0, "max", {}))
    trials = {new.id: FakeTrial(new.id, new.config) for new in asked.new}
    assert not policy.plan(View(2.0, "max", trials)).done
    for trial in trials.values():
        trial.report(3, 0.5)
        trial.status = "finished"
    assert policy.plan(View(50.0, "max", trials)).done


@given(problems(most_trials=60))
@settings(max_examples=few(60), deadline=None)
def test_whoever_is_out_was_worse_than_all_that_stay_in_its_bracket(problem: Problem) -> None:
    policy = policy_of(problem)
    outline = policy.outline()
    assume(isinstance(outline, Outline) and 1 < outline.trials <= 100)
    assert isinstance(outline, Outline)
    shortest_s = min(stage.end_s - stage.start_s for stage in outline.stages)
    assume(outline.stages[-1].end_s < 200 * shortest_s)
    world = World(
        policy, outline.peak_gpus, by_lr, unit_s=lambda trial, until, gpus: shortest_s / 3
    ).run()
    bracket = {a.trial: a.bracket for plan in world.plans for a in plan.allocations}
    for plan in world.plans:
        for name in plan.eliminated:
            stay = [a.trial for a in plan.allocations if a.bracket == bracket[name]]
            better = [float(world.trials[other].config["lr"]) for other in stay]
            assert better
            assert float(world.trials[name].config["lr"]) <= min(better)


def test_the_same_problem_draws_the_same_configurations() -> None:
    for name in POLICIES:
        made = problem(name, 9, 69)
        first, second = (World(policy_of(made), 99, by_lr).run() for _ in range(2))
        other = World(
            policy_of(replace(made, params=replace(made.params, seed=1))), 99, by_lr
        ).run()
        configs = [
            [trial.config for trial in world.trials.values()] for world in (first, second, other)
        ]
        assert configs[0] == configs[1]
        assert (configs[0] == configs[2]) == (name == "grid")


def test_who_cannot_run_says_so_before_and_raises_after() -> None:
    for name in POLICIES:
        policy = policy_of(problem(name, 0.5, 0.5))
        assert isinstance(policy.outline(), Impossible)
        with pytest.raises(ValueError, match=r"fit|shortest"):
            World(policy, 8, by_lr).ask()
