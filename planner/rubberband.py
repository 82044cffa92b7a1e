"""RubberBand: how many GPUs each stage of successive halving gets (Misra et al., EuroSys '21,
section 4.3, Algorithm 2).

`cheapest` minimises cost within a deadline, `fastest` time within a cost, both by expected values;
only the chosen plan is sampled, and its mean has to stay within the limit. Both start from the best
static allocation and the published greedy steps, whose plan bounds `allocations.search`.
Keeping idle instances through a stage is considered only for `WARM` times the static allocation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from seerd.planner.allocations import (
    WIDTH,
    Aim,
    AllocationTerms,
    Figures,
    Option,
    expected,
    option_gpus,
    options,
    search,
)
from seerd.planner.forecast import Forecast, forecast_stages
from seerd.planner.model import ClusterFacts
from seerd.planner.profile import Profile
from seerd.planner.stages import WorkStage

WARM = 1, 2, 3  # multiples of the best static allocation from which the greedy steps start
SCOUTS = 60  # the width of the first search, whose plan bounds the second
ATTEMPTS = 6  # most searches, each with a lower limit because the sampled mean was over it
SAMPLES = 400

Choice = tuple[int, ...]  # the option of each stage, by index
Known = tuple[Choice, Figures] | None  # the best choice so far
Table = Sequence[Sequence[Option]]  # the options of each stage, ascending in GPUs


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be planned."""

    stages: tuple[WorkStage, ...]  # the stages of work, in order
    terms: AllocationTerms  # how machines are billed
    limit: float  # deadline in seconds if cost is minimised, else cost in the units of `terms`
    minimise_time: bool = False  # whether time is minimised, and not cost
    max_gpus: int | None = None  # most GPUs at one moment; None: any number

    def good(self, figures: Figures) -> bool:
        """Return whether these figures keep the limit."""
        return (figures.cost if self.minimise_time else figures.time_s) <= self.limit * (1 + 1e-9)

    def key(self, figures: Figures) -> tuple[float, float]:
        """Return what figures are sorted by, best first: what is minimised, then the other."""
        both = figures.cost, figures.time_s
        return both[::-1] if self.minimise_time else both


@dataclass(frozen=True, slots=True)
class ElasticPlan:
    """An allocation, and what to expect of it."""

    gpus: tuple[int, ...]  # GPUs in all for each stage
    forecast: Forecast  # time and cost, sampled
    exact: bool = False  # no other allocation is better by expected values


def cheapest(
    stages: Sequence[WorkStage],
    cluster: ClusterFacts,
    profile: Profile,
    deadline_s: float,
    *,
    max_gpus: int | None = None,
) -> ElasticPlan | None:
    """Find the plan that costs least and on average ends within the deadline, or None."""
    terms = AllocationTerms(cluster, profile)
    return _planned(Task(tuple(stages), terms, deadline_s, False, max_gpus))


def fastest(
    stages: Sequence[WorkStage],
    cluster: ClusterFacts,
    profile: Profile,
    *,
    cost_usd: float | None = None,
    budget_gpu_s: float | None = None,
    max_gpus: int | None = None,
) -> ElasticPlan | None:
    """Find the fastest plan that on average keeps its one limit, or None. Raises `ValueError` for
    two limits, none, and a cost where GPU time has no price.
    """
    limit = budget_gpu_s if cost_usd is None else cost_usd
    if limit is None or (cost_usd is not None and budget_gpu_s is not None):
        raise ValueError("either a cost in USD or a budget in GPU-seconds")
    if cost_usd is not None and cluster.usd_per_gpu_h <= 0:
        raise ValueError("a cost limits nothing where GPU time has no price")
    terms = AllocationTerms(cluster, profile, in_gpu_s=cost_usd is None)
    return _planned(Task(tuple(stages), terms, limit, True, max_gpus))


def _planned(task: Task) -> ElasticPlan | None:
    """Find the best plan whose sampled mean is within the limit, lowering that for searches."""
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
        cost = forecast.gpu_s if task.terms.in_gpu_s else forecast.usd
        over = (cost if task.minimise_time else forecast.time_s).mean - task.limit
        if over <= task.limit * 1e-9:
            return ElasticPlan(gpus, forecast, result[1])
        lowered = replace(lowered, limit=lowered.limit - 1.1 * over)
    return None


def forecast_of(task: Task, gpus: Sequence[int]) -> Forecast:
    """Forecast the plan with these GPUs per stage, by sampling."""
    stages = [replace(stage, gpus=n) for stage, n in zip(task.stages, gpus, strict=True)]
    return forecast_stages(stages, task.terms.cluster, task.terms.profile, samples=SAMPLES)


def improved(task: Task, table: Table, best: Known) -> tuple[Choice, bool] | None:
    """Search for a plan at least as good as `best`, narrowly, then widely: (choice, if exact)."""
    for width in (SCOUTS, WIDTH):
        if task.minimise_time:
            aim = Aim(Figures(inf if best is None else best[1].time_s, task.limit), True)
        else:
            aim = Aim(Figures(task.limit, inf if best is None else best[1].cost), False)
        result = search(table, task.terms, aim, width)
        if result is not None:
            best = result.choice, figures(result.choice, table, task.terms)
        if result is not None and result.exact:
            return result.choice, True
    return None if best is None else (best[0], False)


def static(task: Task) -> Option | None:
    """Return the first stage's option of the best plan that never changes, or None."""
    counts = _static_gpus(task)
    columns = zip(*(options(stage, counts, task.terms) for stage in task.stages), strict=True)
    valued = [(expected(column, task.terms), column[0]) for column in columns]
    good = [(task.key(taken), option) for taken, option in valued if task.good(taken)]
    return min(good, key=lambda pair: pair[0])[1] if good else None


def _static_gpus(task: Task) -> list[int]:
    """List all numbers at which some stage gets faster; whole instances where those are paid."""
    cluster = task.terms.cluster
    counts = {gpus for stage in task.stages for gpus in option_gpus(stage, cluster, task.max_gpus)}
    if task.terms.cluster.per_instance:
        size, most = cluster.gpus_per_instance, cluster.most_gpus(task.max_gpus)
        whole = {-(-gpus // size) * size for gpus in counts}
        counts = whole if most is None else {min(gpus, most) for gpus in whole}
    return sorted(counts)


def tables(task: Task, warm: Option | None) -> list[tuple[Option, ...]]:
    """List the options of each stage: its own, and those that the greedy steps start from."""
    starts, cluster = set(_starts(task, warm)), task.terms.cluster
    own = [{*option_gpus(stage, cluster, task.max_gpus)} for stage in task.stages]
    return [
        options(stage, sorted(gpus | starts), task.terms)
        for stage, gpus in zip(task.stages, own, strict=True)
    ]


def _starts(task: Task, warm: Option | None) -> Iterator[int]:
    """Yield the static allocation and its multiples, or its fractions where steps go up."""
    if warm is None:
        return
    most = max(_static_gpus(task))
    for factor in WARM:
        gpus = max(1, warm.gpus // factor) if task.minimise_time else warm.gpus * factor
        if gpus <= most or factor == 1:
            yield gpus


def greedy(task: Task, table: Table, warm: Option | None) -> Known:
    """Return the best result of Algorithm 2 from each start, or None. Where time is minimised steps
    go up. A step that would break the limit is passed over; the paper stops there.
    """
    ends = []
    for gpus in _starts(task, warm):
        start = tuple(
            next(i for i, option in enumerate(row) if option.gpus == gpus) for row in table
        )
        ended = _stepped(task, table, start)
        if task.good(ended[1]):
            ends.append(ended)
    return min(ends, key=lambda pair: task.key(pair[1])) if ends else None


def _stepped(task: Task, table: Table, choice: Choice) -> tuple[Choice, Figures]:
    """Repeat the step with the largest gain per loss while there is a gain and the limit holds."""
    now = figures(choice, table, task.terms)
    while True:
        steps = [(step, figures(step, table, task.terms)) for step in _steps(task, table, choice)]
        worth = [
            (_worth(task, now, then), step, then)
            for step, then in steps
            if task.good(then) or not task.good(now)
        ]
        best = max(worth, key=lambda step: step[0], default=None)
        if best is None or best[0] <= 0:
            return choice, now
        _, choice, now = best


def _worth(task: Task, now: Figures, then: Figures) -> float:
    """Return the gain per unit of loss; 0 without a gain, infinite without a loss."""
    cost, time_s = now.cost - then.cost, now.time_s - then.time_s
    gain, loss = (time_s, -cost) if task.minimise_time else (cost, -time_s)
    if gain <= 1e-9:
        return 0.0
    return gain / loss if loss > 0 else inf


def _steps(task: Task, table: Table, choice: Choice) -> Iterator[Choice]:
    """Yield choices in which one stage moves to the next factor or multiple of its trials."""
    direction = 1 if task.minimise_time else -1
    for number, (stage, row) in enumerate(zip(task.stages, table, strict=True)):
        index = choice[number] + direction
        while (
            0 <= index < len(row)
            and row[index].gpus % stage.trials
            and stage.trials % row[index].gpus
        ):
            index += direction
        if 0 <= index < len(row):
            yield (*choice[:number], index, *choice[number + 1 :])


def figures(choice: Choice, table: Table, terms: AllocationTerms) -> Figures:
    """Return the time and cost of a choice."""
    return expected([row[index] for row, index in zip(table, choice, strict=True)], terms)
