"""SEER for any limits: never over time, money or GPUs; R* as a search over floats finds it; the
walk never leaves the outline.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bench.testbed.policy_world import Asked
from seerd.planner.model import Impossible, Limits, Outline, PolicyParams, Problem, View
from seerd.planner.seer import Schedule
from seerd.planner.seer_capped import SEER, schedule
from seerd.planner.space import Space
from tests.examples import few


@dataclass
class FakeTrial:
    """A trial as a policy sees it."""

    id: str
    status: str = "live"
    reports: int = 0
    metric: float | None = None
    failing: bool = False


@st.composite
def problems(draw: st.DrawFn, most_ratio: float = 1e5) -> Problem:
    t_min = draw(st.floats(0.5, 600))
    p_min = draw(st.integers(1, 4))
    params = PolicyParams(
        eta=draw(st.sampled_from([1.5, 2, 3, 4, 5.5, 8])),
        nu=draw(st.integers(1, 4)),
        p_min=p_min,
        p_max=draw(st.one_of(st.none(), st.integers(p_min, 16))),
        t_min_s=t_min,
        seed=draw(st.integers(0, 100)),
    )
    deadline = t_min * draw(st.floats(0.5, most_ratio))
    budget = t_min * p_min * draw(st.floats(0.5, most_ratio))
    return Problem(
        Limits(deadline, budget, draw(st.one_of(st.none(), st.integers(1, 200)))), Space(()), params
    )


@given(problems())
@settings(max_examples=few(150), deadline=None)
def test_time_budget_and_gpus_are_never_exceeded(problem: Problem) -> None:
    outline = Asked(SEER, problem).outline()
    if isinstance(outline, Impossible):
        limits, params = problem.limits, problem.params
        few = limits.max_gpus is not None and limits.max_gpus < params.p_min
        assert (
            few
            or limits.deadline_s < params.t_min_s
            or limits.budget_gpu_s < params.t_min_s * params.p_min
        )
        return
    assert outline.stages[-1].end_s <= problem.limits.deadline_s * (1 + 1e-9)
    assert outline.gpu_s <= problem.limits.budget_gpu_s * (1 + 1e-9)
    assert outline.peak_gpus <= (problem.limits.max_gpus or math.inf)
    assert outline.first_round_s >= problem.params.t_min_s * (1 - 1e-9)
    assert outline.trials >= 1
    assert all(stage.groups for stage in outline.stages[:1])


@given(problems(most_ratio=1e4))
@settings(max_examples=few(120), deadline=None)
def test_r_star_is_the_largest_that_the_conditions_allow(problem: Problem) -> None:
    free = Problem(
        Limits(problem.limits.deadline_s, problem.limits.budget_gpu_s),
        problem.space,
        problem.params,
    )
    found = schedule(free)
    assume(isinstance(found, Schedule))
    assert isinstance(found, Schedule)
    eta, params, limits = problem.params.eta, problem.params, problem.limits

    def allowed(r: float) -> bool:
        rounds = max(1, math.ceil(math.log(r) / math.log(eta) - 1e-9))
        in_time = r * eta / (eta - 1) * (1 - eta**-rounds) <= limits.deadline_s / params.t_min_s
        return in_time and params.p_min * r * rounds <= limits.budget_gpu_s / params.t_min_s

    r_star = float(found.r_star)
    assert allowed(r_star * (1 - 1e-6)) or r_star <= 1 + 1e-6
    assert not allowed(r_star * (1 + 1e-4))


@given(problems())
@settings(max_examples=few(100), deadline=None)
def test_respecting_max_gpus_only_ever_takes_rounds_away(problem: Problem) -> None:
    free = schedule(
        Problem(
            Limits(problem.limits.deadline_s, problem.limits.budget_gpu_s),
            problem.space,
            problem.params,
        )
    )
    bound = schedule(problem)
    if isinstance(free, Schedule) and isinstance(bound, Schedule):
        assert bound.rounds <= free.rounds
        assert (bound.adjusted == ()) or problem.limits.max_gpus is not None


@given(problems(most_ratio=200), st.integers(0, 2**32 - 1).map(random.Random))
@settings(max_examples=few(100), deadline=None)
def test_a_walk_never_leaves_the_outline(problem: Problem, rng: random.Random) -> None:
    policy = Asked(SEER, problem)
    outline = policy.outline()
    assume(isinstance(outline, Outline) and outline.trials < 500)
    assert isinstance(outline, Outline)
    plan = policy.plan(View(0.0, "min", {}))
    trials = {new.id: FakeTrial(new.id) for new in plan.new}
    assert len(trials) == outline.trials
    out: set[str] = set()
    for number, stage in enumerate(outline.stages):
        if plan.done:
            break
        assert plan.stage == number
        running = [a.trial for a in plan.allocations]
        assert len(running) == len(set(running))
        assert not out & set(running)
        for gpus in {a.gpus for a in plan.allocations}:
            places = sum(g.trials for g in stage.groups if g.gpus_per_trial == gpus)
            assert sum(a.gpus == gpus for a in plan.allocations) <= places
        assert sum(a.gpus for a in plan.allocations) <= stage.gpus
        for name in running:
            _something_happens(trials[name], rng)
        plan = policy.plan(View(stage.end_s, "min", trials))
        out |= set(plan.eliminated)
    assert plan.done


def _something_happens(trial: FakeTrial, rng: random.Random) -> None:
    trial.status = rng.choice(["live", "live", "live", "finished", "failed"])
    if rng.random() < 0.9:
        trial.reports += 1
        trial.metric = rng.choice([None, rng.random(), float(rng.randrange(3))])
