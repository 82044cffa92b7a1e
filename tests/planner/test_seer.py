"""SEER against the worked examples of its paper (section 3.4, figure 1c) and exact values at powers
of eta.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bench.testbed.policy_world import Asked
from seerd.planner.model import Group, Impossible, Limits, Outline, PolicyParams, Problem, View
from seerd.planner.seer import Schedule
from seerd.planner.seer_capped import SEER, schedule
from seerd.planner.space import Parameter, Space


@dataclass
class FakeTrial:
    """A trial as a policy sees it."""

    id: str
    status: str = "live"
    reports: int = 0
    metric: float | None = None
    failing: bool = False


def problem(
    deadline_min: float,
    budget_gpu_min: float,
    *,
    max_gpus: int | None = None,
    **params: float | None,
) -> Problem:
    t_min = float(params.pop("t_min", 1.0) or 1.0)
    limits = Limits(deadline_min * 60, budget_gpu_min * 60, max_gpus)
    space = Space((Parameter("lr", low=1e-4, high=1.0, log=True),))
    return Problem(limits, space, PolicyParams(t_min_s=t_min * 60, **params))  # type: ignore[arg-type]


def made(*args: float, **kwargs: float | None) -> Schedule:
    result = schedule(problem(*args, **kwargs))  # type: ignore[arg-type]
    assert isinstance(result, Schedule)
    return result


@pytest.mark.parametrize(
    ("deadline", "budget", "params", "r_star", "rounds", "first", "unit", "gpus", "trials"),
    [
        (10, 80, {"eta": 2}, 5.714, 3, 1.429, 17.143, (1, 2), (8, 4)),
        (30, 480, {}, 22.857, 3, 1.429, 68.571, (1, 2, 4), (32, 16, 12)),
        (15, 60, {"p_max": 4}, 12, 2, 3, 24, (1, 2), (4, 3)),
        (120, 1920, {"p_max": 8, "t_min": 10}, 9.6, 2, 24, 192, (1, 2, 4), (8, 4, 6)),
    ],
)
def test_the_paper_s_vectors(
    deadline, budget, params, r_star, rounds, first, unit, gpus, trials
) -> None:
    found = made(deadline, budget, **params)
    assert float(found.r_star) == pytest.approx(r_star, abs=5e-4)
    assert found.rounds == rounds
    assert float(found.first_round) / 60 == pytest.approx(first, abs=5e-4)
    assert float(found.unit) / 60 == pytest.approx(unit, abs=5e-4)
    assert found.gpus == gpus
    assert found.trials == trials


def test_the_stages_of_figure_1c() -> None:
    outline = Asked(SEER, problem(10, 80, eta=2)).outline()
    assert isinstance(outline, Outline)
    assert [stage.gpus for stage in outline.stages] == [16, 8, 4]
    lengths = [(stage.end_s - stage.start_s) / 60 for stage in outline.stages]
    assert lengths == pytest.approx([1.429, 2.857, 5.714], abs=5e-4)
    assert outline.gpu_s / 60 == pytest.approx(68.57, abs=5e-3)
    assert [bracket.budget_gpu_s / 60 for bracket in outline.brackets] == pytest.approx(
        [34.286, 34.286], abs=5e-4
    )


@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
def test_a_deadline_that_is_exactly_a_power_of_eta(rounds: int) -> None:
    eta = 4
    r_star = eta**rounds
    deadline = r_star * eta / (eta - 1) * (1 - eta**-rounds)
    found = made(deadline, 1e9, eta=eta)
    assert found.rounds == rounds
    assert float(found.r_star) == pytest.approx(r_star)


@pytest.mark.parametrize("share", [1 - 1e-12, 1.0, 1 + 1e-12])
@pytest.mark.parametrize("t_min", [0.1, 1.0, 0.7])
def test_rounding_a_deadline_that_is_a_sum_of_rounds_adds_none(share: float, t_min: float) -> None:
    """1 + 4 + 16 times t_min: R is 16 = 4^2, so K is 2 (Algorithm 2, line 3)."""
    found = made((1 + 4 + 16) * t_min * share, 1e9, t_min=t_min)
    assert found.rounds == 2
    assert float(found.r_star) == pytest.approx(16)


def test_the_smallest_limits_allow_one_trial_of_one_stage() -> None:
    found = made(1, 1)
    assert (found.rounds, found.trials, found.gpus) == (1, (1,), (1,))
    too_short = schedule(problem(0.5, 1))
    assert isinstance(too_short, Impossible)
    assert (too_short.min_deadline_s, too_short.min_budget_gpu_s) == (60, 60)
    too_small = schedule(problem(5, 1, p_min=2))
    assert isinstance(too_small, Impossible)
    assert too_small.min_budget_gpu_s == 120


def test_more_gpus_than_allowed_lengthen_the_first_round() -> None:
    free, bound = made(30, 480), made(30, 480, max_gpus=64)
    assert free.peak_gpus == 112
    assert bound.peak_gpus <= 64
    assert bound.first_round > free.first_round
    assert bound.rounds < free.rounds
    assert "64" in bound.adjusted[0]


def test_a_budget_that_the_gpus_cannot_use_is_said() -> None:
    found = made(30, 480, max_gpus=4)
    assert found.peak_gpus <= 4
    assert "120 of the 480 GPU-min" in found.adjusted[0]


def walk(
    policy: Asked, metrics: dict[str, float | None], outline: Outline
) -> list[dict[int, set[str]]]:
    """Who runs on how many GPUs in each stage when trials report these metrics."""
    plan = policy.plan(View(0.0, "max", {}))
    trials = {new.id: FakeTrial(new.id) for new in plan.new}
    stages = []
    for stage in outline.stages:
        groups: dict[int, set[str]] = {}
        for allocation in plan.allocations:
            groups.setdefault(allocation.gpus, set()).add(allocation.trial)
        stages.append(groups)
        for name, trial in trials.items():
            trial.reports, trial.metric = 1, metrics.get(name, 0.0)
        plan = policy.plan(View(stage.end_s, "max", trials))
    assert plan.done
    return stages


def test_the_best_of_all_brackets_get_the_most_gpus() -> None:
    policy = Asked(SEER, problem(10, 80, eta=2))
    outline = policy.outline()
    assert isinstance(outline, Outline)
    metrics = {f"t{n:04d}": n / 100 for n in range(1, 13)}
    stages = walk(policy, metrics, outline)
    assert stages[0] == {
        1: {f"t{n:04d}" for n in range(5, 13)},
        2: {f"t{n:04d}" for n in range(1, 5)},
    }
    assert stages[1] == {1: {"t0003", "t0004", "t0009", "t0010"}, 2: {"t0011", "t0012"}}
    assert stages[2] == {1: {"t0009", "t0010"}, 2: {"t0012"}}


def test_nan_ranks_below_no_report_and_failed_below_that() -> None:
    policy = Asked(SEER, problem(10, 80, eta=2))
    outline = policy.outline()
    assert isinstance(outline, Outline)
    plan = policy.plan(View(0.0, "max", {}))
    bracket = [a.trial for a in plan.allocations if a.gpus == 2]
    trials = {new.id: FakeTrial(new.id, reports=1, metric=0.5) for new in plan.new}
    good, silent, diverged, failed = bracket
    trials[silent] = FakeTrial(silent)
    trials[diverged] = FakeTrial(diverged, reports=3, metric=None)
    trials[failed] = FakeTrial(failed, "failed", 3, 0.9)
    after = policy.plan(View(outline.stages[0].end_s, "max", trials))
    assert {good, silent} <= {a.trial for a in after.allocations}
    assert {diverged, failed} <= set(after.eliminated)


def test_a_run_is_repeatable_and_several_boundaries_may_have_passed() -> None:
    first, second = Asked(SEER, problem(10, 80, eta=2)), Asked(SEER, problem(10, 80, eta=2))
    assert first.plan(View(0.0, "max", {})) == second.plan(View(0.0, "max", {}))
    trials = {f"t{n:04d}": FakeTrial(f"t{n:04d}", reports=1, metric=float(n)) for n in range(1, 13)}
    late = first.plan(View(300.0, "max", trials))
    assert late.stage == 2
    assert len(late.allocations) == 3
    assert len(late.eliminated) == 9


def test_asking_again_within_a_stage_changes_nothing() -> None:
    policy = Asked(SEER, problem(10, 80, eta=2))
    plan = policy.plan(View(0.0, "max", {}))
    trials = {new.id: FakeTrial(new.id) for new in plan.new}
    again = policy.plan(View(10.0, "max", trials))
    assert again.allocations == plan.allocations
    assert (again.new, again.eliminated) == ((), ())


def test_groups_say_how_many_run() -> None:
    outline = Asked(SEER, problem(30, 480)).outline()
    assert isinstance(outline, Outline)
    assert outline.stages[1].groups == (Group(1, 8), Group(2, 4), Group(4, 3))


def test_taken_up_without_its_memory_the_best_have_the_places_of_the_clock_s_stage() -> None:
    """The second stage has four places for one GPU and two for two; who is out or has failed stays
    so.
    """
    outline = Asked(SEER, problem(10, 80, eta=2)).outline()
    assert isinstance(outline, Outline)
    trials = {f"t{n:04d}": FakeTrial(f"t{n:04d}", reports=1, metric=float(n)) for n in range(1, 13)}
    trials["t0012"].status, trials["t0011"].status = "eliminated", "failed"
    policy = Asked(SEER, problem(10, 80, eta=2))
    plan = policy.plan(View(outline.stages[1].start_s, "max", trials))
    assert [(a.trial, a.gpus) for a in plan.allocations] == [
        ("t0010", 2),
        ("t0009", 2),
        *((f"t{n:04d}", 1) for n in (8, 7, 6, 5)),
    ]
    assert plan.eliminated == ("t0004", "t0003", "t0002", "t0001")
    assert {one.trial for one in plan.compared} == {f"t{n:04d}" for n in range(1, 11)}
    assert plan.note
    assert not plan.new
