"""RubberBand: how many GPUs each stage of successive halving gets (Misra et al., EuroSys '21,
section 4.3, Algorithm 2).

`cheapest` minimises cost within a deadline, `fastest` time within a cost, both by expected values;
only the chosen plan is sampled, and its mean has to stay within the limit. Both start from the best
static allocation and its `WARM` multiples. From each come the published greedy steps, and then the
stages one at a time get the number that is best beside the others', while that helps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf

from seerd.planner.allocations import (
    AllocationTerms,
    Figures,
    Option,
    expected,
    option_gpus,
    options,
)
from seerd.planner.forecast import Forecast, forecast_stages
from seerd.planner.model import ClusterFacts
from seerd.planner.profile import Profile
from seerd.planner.stages import WorkStage

WARM = 1, 2, 3  # multiples of the best static allocation from which the greedy steps start
ATTEMPTS = 6  # most searches, each with a lower limit because the sampled mean was over it
SAMPLES = 400

Choice = tuple[int, ...]  # the option of each stage, by index
Known = tuple[Choice, Figures]  # a choice, and what it takes
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

    def key(self, figures: Figures) -> tuple[float, float, float]:
        """Return what figures are sorted by, best first: how far they miss the limit, what is
        minimised, as far as it is exact, and the other.
        """
        least, other = figures.cost, figures.time_s
        if self.minimise_time:
            least, other = other, least
        missed = 0.0 if self.good(figures) else other - self.limit
        return missed, float(f"{least:.10g}"), other

    def best(self, choices: Iterable[Known]) -> Known:
        """Return the best of several choices."""
        return min(choices, key=lambda pair: self.key(pair[1]))

    def worth(self, now: Figures, then: Figures) -> float:
        """Return a step's gain per unit of loss; 0 without a gain, infinite without a loss."""
        cost, time_s = now.cost - then.cost, now.time_s - then.time_s
        gain, loss = (time_s, -cost) if self.minimise_time else (cost, -time_s)
        if gain <= 1e-9:
            return 0.0
        return gain / loss if loss > 0 else inf

    def steps(self, table: Table, choice: Choice) -> Iterator[Choice]:
        """Yield choices in which one stage moves to the next factor or multiple of its trials."""
        direction = 1 if self.minimise_time else -1
        for number, (stage, row) in enumerate(zip(self.stages, table, strict=True)):
            index = choice[number] + direction
            while (
                0 <= index < len(row)
                and row[index].gpus % stage.trials
                and stage.trials % row[index].gpus
            ):
                index += direction
            if 0 <= index < len(row):
                yield (*choice[:number], index, *choice[number + 1 :])


@dataclass(frozen=True, slots=True)
class ElasticPlan:
    """An allocation, and what to expect of it."""

    gpus: tuple[int, ...]  # GPUs in all for each stage
    forecast: Forecast  # time and cost, sampled


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
        choices = [improved(lowered, table, each) for each in greedy(lowered, table, warm)]
        choice, taken = lowered.best(choices)
        if not lowered.good(taken):
            return None
        gpus = tuple(row[index].gpus for row, index in zip(table, choice, strict=True))
        forecast = forecast_of(task, gpus)
        cost = forecast.gpu_s if task.terms.in_gpu_s else forecast.usd
        over = (cost if task.minimise_time else forecast.time_s).mean - task.limit
        if over <= task.limit * 1e-9:
            return ElasticPlan(gpus, forecast)
        lowered = replace(lowered, limit=lowered.limit - 1.1 * over)
    return None


def forecast_of(task: Task, gpus: Sequence[int]) -> Forecast:
    """Forecast the plan with these GPUs per stage, by sampling."""
    stages = [replace(stage, gpus=n) for stage, n in zip(task.stages, gpus, strict=True)]
    return forecast_stages(stages, task.terms.cluster, task.terms.profile, samples=SAMPLES)


def improved(task: Task, table: Table, best: Known) -> Known:
    """Give a stage any other number, and the next one as many as it has, one option more, or one
    less, while that helps.
    """
    before = None
    while best != before:
        before = best
        for number, row in enumerate(table):
            for index, change in product(range(len(row)), (0, -1, 1)):
                choice = [*best[0]]
                choice[number] = index
                if change and number + 1 < len(table):
                    most = len(table[number + 1]) - 1
                    choice[number + 1] = min(most, max(0, choice[number + 1] + change))
                taken = figures(choice, table, task.terms)
                if task.key(taken) < task.key(best[1]):
                    best = tuple(choice), taken
    return best


def static(task: Task) -> Option:
    """Return the first stage's option of the best plan that never changes."""
    counts = _static_gpus(task)
    rows = [options(stage, counts, task.terms) for stage in task.stages]
    columns: Iterable[tuple[Option, ...]] = zip(*rows, strict=True)
    return min(columns, key=lambda column: task.key(expected(column, task.terms)))[0]


def _static_gpus(task: Task) -> list[int]:
    """List all numbers at which some stage gets faster; whole instances where those are paid."""
    cluster = task.terms.cluster
    counts = {gpus for stage in task.stages for gpus in option_gpus(stage, cluster, task.max_gpus)}
    if task.terms.cluster.per_instance:
        size, most = cluster.gpus_per_instance, cluster.most_gpus(task.max_gpus)
        whole = {-(-gpus // size) * size for gpus in counts}
        counts = whole if most is None else {min(gpus, most) for gpus in whole}
    return sorted(counts)


def tables(task: Task, warm: Option) -> list[tuple[Option, ...]]:
    """List the options of each stage: its own, and those that the greedy steps start from."""
    starts, cluster = set(_starts(task, warm)), task.terms.cluster
    own = [{*option_gpus(stage, cluster, task.max_gpus)} for stage in task.stages]
    return [
        options(stage, sorted(gpus | starts), task.terms)
        for stage, gpus in zip(task.stages, own, strict=True)
    ]


def _starts(task: Task, warm: Option) -> Iterator[int]:
    """Yield the static allocation and its multiples, or its fractions where steps go up."""
    most = max(_static_gpus(task))
    for factor in WARM:
        gpus = max(1, warm.gpus // factor) if task.minimise_time else warm.gpus * factor
        if gpus <= most or factor == 1:
            yield gpus


def greedy(task: Task, table: Table, warm: Option) -> list[Known]:
    """Return each start, and the result of Algorithm 2 from it. Where time is minimised steps go
    up. A step that would break the limit is passed over; the paper stops there.
    """
    made = []
    for gpus in _starts(task, warm):
        start = tuple(
            next(i for i, option in enumerate(row) if option.gpus == gpus) for row in table
        )
        made += [(start, figures(start, table, task.terms)), _stepped(task, table, start)]
    return made


def _stepped(task: Task, table: Table, choice: Choice) -> Known:
    """Repeat the step with the largest gain per loss while there is a gain and the limit holds."""
    now = figures(choice, table, task.terms)
    while True:
        steps = [(step, figures(step, table, task.terms)) for step in task.steps(table, choice)]
        worth = [
            (task.worth(now, then), step, then)
            for step, then in steps
            if task.good(then) or not task.good(now)
        ]
        best = max(worth, key=lambda step: step[0], default=None)
        if best is None or best[0] <= 0:
            return choice, now
        _, choice, now = best


def figures(choice: Sequence[int], table: Table, terms: AllocationTerms) -> Figures:
    """Return the time and cost of a choice."""
    return expected([row[index] for row, index in zip(table, choice, strict=True)], terms)
