"""RubberBand: how many GPUs each stage of successive halving gets (Misra et al., EuroSys '21,
"RubberBand", section 4.3).

The one rule: searches compare expected time and cost, the same for every search. The sampled
forecast is made only for the plan that is chosen, and its mean has to stay within the limit.

`cheapest` minimises cost within a deadline, `fastest` time within a cost. Both start from the best
static allocation and the published greedy steps, and go on with `dynamic_programming.search`, which
the greedy plan bounds. Keeping idle instances through a stage is considered only for one, two and
three times the static allocation, from which the greedy steps start; so the paper's plans are among
those searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from seerd.planner.allocations import AllocationTerms, Figures
from seerd.planner.dynamic_programming import WIDTH, Aim, search
from seerd.planner.forecast import Forecast, forecast_stages
from seerd.planner.greedy import Choice, Known, Table, Task, figures, greedy, static, tables
from seerd.planner.model import ClusterFacts
from seerd.planner.profile import Profile
from seerd.planner.stages import WorkStage, halving_rungs

SCOUTS = 60
"""The width of the first search, whose plan bounds the second."""
ATTEMPTS = 6
"""The most searches, each with a lower limit because the sampled mean was over it."""
SAMPLES = 400


@dataclass(frozen=True, slots=True)
class ElasticPlan:
    """An allocation, and what to expect of it."""

    gpus: tuple[int, ...]  # GPUs in all for each stage
    forecast: Forecast  # time and cost, sampled
    exact: bool = False  # no other allocation is better by expected values


def sha_stages(
    trials: int, min_reports: int, max_reports: int, eta: float
) -> tuple[WorkStage, ...]:
    """Make the stages of work of SHA(n, r, R, eta); a planner fills in their GPUs."""
    rungs = halving_rungs(trials, min_reports, max_reports, eta)
    before = [0, *(until for _, until in rungs)]
    return tuple(
        WorkStage(here, until - done) for (here, until), done in zip(rungs, before, strict=False)
    )


def cheapest(
    stages: Sequence[WorkStage],
    cluster: ClusterFacts,
    profile: Profile,
    deadline_s: float,
    *,
    max_gpus: int | None = None,
) -> ElasticPlan | None:
    """Find the plan that costs least and on average ends within the deadline; None if there is
    none.
    """
    return _planned(
        Task(tuple(stages), AllocationTerms(cluster, profile), deadline_s, False, max_gpus)
    )


def fastest(
    stages: Sequence[WorkStage],
    cluster: ClusterFacts,
    profile: Profile,
    *,
    cost_usd: float | None = None,
    budget_gpu_s: float | None = None,
    max_gpus: int | None = None,
) -> ElasticPlan | None:
    """Find the plan that ends first and on average costs no more than the limit; None if there is
    none.

    Exactly one limit must be given: `cost_usd` in USD, or `budget_gpu_s` in GPU-seconds. Raises
    `ValueError` for none, for both, and for a cost where GPU time has no price.
    """
    if (cost_usd is None) == (budget_gpu_s is None):
        raise ValueError("either a cost in USD or a budget in GPU-seconds")
    if cost_usd is not None:
        if cluster.usd_per_gpu_h <= 0:
            raise ValueError("a cost limits nothing where GPU time has no price")
        return _planned(
            Task(tuple(stages), AllocationTerms(cluster, profile), cost_usd, True, max_gpus)
        )
    assert budget_gpu_s is not None
    return _planned(
        Task(
            tuple(stages),
            AllocationTerms(cluster, profile, in_gpu_s=True),
            budget_gpu_s,
            True,
            max_gpus,
        )
    )


def improved(task: Task, table: Table, best: Known) -> tuple[Choice, bool] | None:
    """Search by dynamic programming for a plan at least as good as the one known.

    A narrow search comes first, as its plan bounds the wide one. Return (choice, whether it is
    exact).
    """
    for width in (SCOUTS, WIDTH):
        result = search(table, task.terms, _aim(task, best and best[1]), width)
        if result is not None:
            best = result.choice, figures(result.choice, table, task.terms)
        if result is not None and result.exact:
            return result.choice, True
    return None if best is None else (best[0], False)


def _aim(task: Task, best: Figures | None) -> Aim:
    if task.minimise_time:
        return Aim(Figures(inf if best is None else best.time_s, task.limit), True)
    return Aim(Figures(task.limit, inf if best is None else best.cost), False)


def _planned(task: Task) -> ElasticPlan | None:
    """Find the best plan whose sampled mean is within the limit.

    If sampling finds it a little over, the limit is lowered by that much and the search repeated.
    """
    lowered = task
    for _ in range(ATTEMPTS):
        warm = static(lowered)
        table = tables(lowered, warm)
        by_steps = greedy(lowered, table, warm)
        result = improved(lowered, table, by_steps)
        if result is None:
            return None
        gpus = tuple(row[index].gpus for row, index in zip(table, result[0], strict=True))
        forecast = forecast_of(task, gpus)
        over = _sampled(task, forecast) - task.limit
        if over <= task.limit * 1e-9:
            return ElasticPlan(gpus, forecast, result[1])
        lowered = replace(lowered, limit=lowered.limit - 1.1 * over)
    return None


def forecast_of(task: Task, gpus: Sequence[int]) -> Forecast:
    """Forecast the plan with these GPUs per stage, by sampling."""
    stages = [replace(stage, gpus=n) for stage, n in zip(task.stages, gpus, strict=True)]
    return forecast_stages(stages, task.terms.cluster, task.terms.profile, samples=SAMPLES)


def _sampled(task: Task, forecast: Forecast) -> float:
    if not task.minimise_time:
        return forecast.time_s.mean
    return forecast.gpu_s.mean if task.terms.in_gpu_s else forecast.usd.mean
