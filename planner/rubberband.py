"""RubberBand: how many GPUs each stage of successive halving gets (Misra et al., EuroSys '21, "RubberBand", section 4.3).

The one rule: what is compared is expected time and cost, the same for every search; the sampled forecast is made for the plan that is
chosen, and its mean has to stay within the limit.

`cheapest` minimises cost within a deadline, `fastest` time within a cost. Both start from the best static allocation and the published greedy
steps, and go on with `frontier.search`, which the greedy plan bounds. What instances are kept idle for is considered only for one, two and
three times the static allocation, from which the greedy steps start; so the paper's plans are among those searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import inf

from planner.allocations import Figures, Option, Terms, expected, option_gpus, options
from planner.forecast import Forecast, forecast_stages
from planner.frontier import Aim, search
from planner.model import ClusterFacts
from planner.profile import Profile
from planner.stages import WorkStage

WARM = 1, 2, 3
SCOUTS = 60
"""Width of the first search, whose plan bounds the second."""
ATTEMPTS = 6
SAMPLES = 400

Choice = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ElasticPlan:
    """GPUs in all for each stage, and what to expect. `exact`: no other allocation is better by expected values."""

    gpus: tuple[int, ...]
    forecast: Forecast
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be planned. `limit` is the deadline in seconds if cost is minimised, else the cost in the units of `terms`."""

    stages: tuple[WorkStage, ...]
    terms: Terms
    limit: float
    minimise_time: bool = False
    max_gpus: int | None = None

    def good(self, figures: Figures) -> bool:
        """Whether the limit holds."""
        return (figures.cost if self.minimise_time else figures.time_s) <= self.limit * (1 + 1e-9)

    def key(self, figures: Figures) -> tuple[float, float]:
        """Less is better."""
        both = figures.cost, figures.time_s
        return both[::-1] if self.minimise_time else both


def sha_stages(trials: int, min_reports: int, max_reports: int, eta: float) -> tuple[WorkStage, ...]:
    """SHA(n, r, R, eta): stage i runs floor(n / eta^i) trials for r * eta^i further reports; the last goes on to R in all.

    The last is the one with one trial, or the one that would reach R. GPUs are for a planner to fill in.
    """
    made: list[WorkStage] = []
    exact, done = Fraction(eta), 0
    while True:
        stage = len(made)
        here, further = int(trials / exact**stage), int(min_reports * exact**stage)
        if here <= 1 or here < exact or done + further >= max_reports:
            return (*made, WorkStage(here, max_reports - done))
        made.append(WorkStage(here, further))
        done += further


def cheapest(
    stages: Sequence[WorkStage],
    cluster: ClusterFacts,
    profile: Profile,
    deadline_s: float,
    *,
    max_gpus: int | None = None,
) -> ElasticPlan | None:
    """The plan that costs least and on average ends within the deadline; None if there is none."""
    return _planned(Task(tuple(stages), Terms(cluster, profile), deadline_s, False, max_gpus))


def fastest(
    stages: Sequence[WorkStage],
    cluster: ClusterFacts,
    profile: Profile,
    *,
    cost_usd: float | None = None,
    budget_gpu_s: float | None = None,
    max_gpus: int | None = None,
) -> ElasticPlan | None:
    """The plan that ends first and on average costs no more; None if there is none. Give exactly one limit, else `ValueError`."""
    if (cost_usd is None) == (budget_gpu_s is None):
        raise ValueError("either a cost in USD or a budget in GPU-seconds")
    if cost_usd is not None:
        if cluster.usd_per_gpu_h <= 0:
            raise ValueError("a cost limits nothing where GPU time has no price")
        return _planned(Task(tuple(stages), Terms(cluster, profile), cost_usd, True, max_gpus))
    assert budget_gpu_s is not None
    return _planned(Task(tuple(stages), Terms(cluster, profile, in_gpu_s=True), budget_gpu_s, True, max_gpus))


def static(task: Task) -> Option | None:
    """The best number of GPUs if it stays the same from beginning to end, as the first stage has it (section 3.2)."""
    counts = _static_gpus(task)
    tables = [options(stage, counts, task.terms) for stage in task.stages]
    figures = [expected(choice, task.terms) for choice in zip(*tables, strict=True)]
    good = [(task.key(f), option) for f, option in zip(figures, tables[0], strict=True) if task.good(f)]
    return min(good, key=lambda pair: pair[0])[1] if good else None


def _static_gpus(task: Task) -> list[int]:
    """All numbers at which some stage gets faster; whole instances where those are paid."""
    cluster = task.terms.cluster
    counts = {gpus for stage in task.stages for gpus in option_gpus(stage, cluster, task.max_gpus)}
    if task.terms.rented:
        size = cluster.gpus_per_instance
        counts = {-(-gpus // size) * size for gpus in counts}
    return sorted(counts)


def tables(task: Task, warm: Option | None) -> list[tuple[Option, ...]]:
    """What each stage may get: its own options, and what the greedy steps start from."""
    starts = set(_starts(task, warm))
    return [
        options(stage, sorted({*option_gpus(stage, task.terms.cluster, task.max_gpus), *starts}), task.terms)
        for stage in task.stages
    ]


def _starts(task: Task, warm: Option | None) -> Iterator[int]:
    """The static allocation and its multiples; its fractions if steps go up."""
    if warm is None:
        return
    most = max(_static_gpus(task))
    for factor in WARM:
        gpus = max(1, warm.gpus // factor) if task.minimise_time else warm.gpus * factor
        if gpus <= most or factor == 1:
            yield gpus


def greedy(task: Task, table: Sequence[Sequence[Option]], warm: Option | None) -> tuple[Choice, Figures] | None:
    """Algorithm 2 from each start, and the best of what comes out; mirrored if time is minimised, its steps then go up.

    A step that would break the limit is passed over, where the paper stops: another stage's may do.
    """
    found = []
    for gpus in _starts(task, warm):
        start = tuple(next(i for i, option in enumerate(row) if option.gpus == gpus) for row in table)
        ended = _stepped(task, table, start)
        if task.good(ended[1]):
            found.append(ended)
    return min(found, key=lambda pair: task.key(pair[1])) if found else None


def _stepped(task: Task, table: Sequence[Sequence[Option]], choice: Choice) -> tuple[Choice, Figures]:
    """Steps with the largest gain per loss, as long as there is a gain and the limit holds."""
    now = _figures(choice, table, task.terms)
    while True:
        steps = [(step, _figures(step, table, task.terms)) for step in _steps(task, table, choice)]
        worth = [(_worth(task, now, then), step, then) for step, then in steps if task.good(then) or not task.good(now)]
        best = max(worth, key=lambda step: step[0], default=None)
        if best is None or best[0] <= 0:
            return choice, now
        _, choice, now = best


def _worth(task: Task, now: Figures, then: Figures) -> float:
    """What is gained for each unit of what is lost; infinite if nothing is lost."""
    cost, time_s = now.cost - then.cost, now.time_s - then.time_s
    gain, loss = (time_s, -cost) if task.minimise_time else (cost, -time_s)
    if gain <= 1e-9:
        return 0.0
    return gain / loss if loss > 0 else inf


def _steps(task: Task, table: Sequence[Sequence[Option]], choice: Choice) -> Iterator[Choice]:
    """One stage at a time to the next factor or multiple of its number of trials."""
    direction = 1 if task.minimise_time else -1
    for number, (stage, row) in enumerate(zip(task.stages, table, strict=True)):
        index = choice[number] + direction
        while 0 <= index < len(row) and row[index].gpus % stage.trials and stage.trials % row[index].gpus:
            index += direction
        if 0 <= index < len(row):
            yield (*choice[:number], index, *choice[number + 1 :])


def _figures(choice: Choice, table: Sequence[Sequence[Option]], terms: Terms) -> Figures:
    return expected([row[index] for row, index in zip(table, choice, strict=True)], terms)


def exhaustive(task: Task, table: Sequence[Sequence[Option]]) -> tuple[Choice, Figures] | None:
    """The best of all choices, one by one: what small cases are checked with."""
    choices = product(*(range(len(row)) for row in table))
    valued = ((choice, _figures(choice, table, task.terms)) for choice in choices)
    return min((pair for pair in valued if task.good(pair[1])), key=lambda pair: task.key(pair[1]), default=None)


def improved(task: Task, table: Sequence[Sequence[Option]], known: Figures | None) -> tuple[Choice, bool] | None:
    """What dynamic programming finds, at least as good as `known`: first narrowly, which bounds the search proper. And whether it is exact."""
    first = search(table, task.terms, _aim(task, known), SCOUTS)
    if first is None:
        return None
    if first.exact:
        return first.choice, True
    scouted = _figures(first.choice, table, task.terms)
    second = search(table, task.terms, _aim(task, scouted)) or first
    return second.choice, second.exact


def _aim(task: Task, known: Figures | None) -> Aim:
    if task.minimise_time:
        return Aim(Figures(inf if known is None else known.time_s, task.limit), True)
    return Aim(Figures(task.limit, inf if known is None else known.cost), False)


def _planned(task: Task) -> ElasticPlan | None:
    """The best plan whose sampled mean is within the limit: where sampling finds it a little over, the limit is lowered by that much."""
    lowered = task
    for _ in range(ATTEMPTS):
        warm = static(lowered)
        table = tables(lowered, warm)
        by_steps = greedy(lowered, table, warm)
        found = improved(lowered, table, by_steps and by_steps[1])
        if found is None:
            return None
        gpus = tuple(row[index].gpus for row, index in zip(table, found[0], strict=True))
        forecast = forecast_of(task, gpus)
        over = _sampled(task, forecast) - task.limit
        if over <= task.limit * 1e-9:
            return ElasticPlan(gpus, forecast, found[1])
        lowered = replace(lowered, limit=lowered.limit - 1.1 * over)
    return None


def forecast_of(task: Task, gpus: Sequence[int]) -> Forecast:
    """The sampled forecast of these allocations."""
    stages = [replace(stage, gpus=n) for stage, n in zip(task.stages, gpus, strict=True)]
    return forecast_stages(stages, task.terms.cluster, task.terms.profile, samples=SAMPLES)


def _sampled(task: Task, forecast: Forecast) -> float:
    if not task.minimise_time:
        return forecast.time_s.mean
    return forecast.gpu_s.mean if task.terms.in_gpu_s else forecast.usd.mean
