"""The searches that RubberBand is published with, and one that tries everything (Misra et al.,
EuroSys '21, section 4.3, Algorithm 2).

The one rule: every search chooses from the same options, one per stage, and compares the same
expected figures, so that their answers can be compared.

The steps are the same whether cost is minimised within a deadline or time within a cost, only
mirrored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf

from seerd.planner.allocations import (
    AllocationTerms,
    Figures,
    Option,
    expected,
    most_gpus,
    option_gpus,
    options,
)
from seerd.planner.stages import WorkStage

WARM = 1, 2, 3
"""Multiples of the best static allocation from which the greedy steps start."""

Choice = tuple[int, ...]
"""The option of each stage, by index."""

Known = tuple[Choice, Figures] | None
"""The best choice known so far."""

Table = Sequence[Sequence[Option]]
"""The options of each stage, ascending in GPUs."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be planned."""

    stages: tuple[WorkStage, ...]  # the stages of work, in order
    terms: AllocationTerms  # how machines are billed
    limit: float  # deadline in seconds if cost is minimised, else cost in the units of `terms`
    minimise_time: bool = False  # whether time is minimised, and not cost
    max_gpus: int | None = None  # most GPUs at one moment; None: any number

    def good(self, figures: Figures) -> bool:
        """Tell whether these figures keep the limit."""
        return (figures.cost if self.minimise_time else figures.time_s) <= self.limit * (1 + 1e-9)

    def key(self, figures: Figures) -> tuple[float, float]:
        """Return what figures are sorted by, best first: what is minimised, then the other."""
        both = figures.cost, figures.time_s
        return both[::-1] if self.minimise_time else both


def static(task: Task) -> Option | None:
    """Find the best number of GPUs that stays the same in all stages (section 3.2).

    Return the first stage's option of it; None if none keeps the limit.
    """
    counts = _static_gpus(task)
    columns = zip(*(options(stage, counts, task.terms) for stage in task.stages), strict=True)
    valued = [(expected(column, task.terms), column[0]) for column in columns]
    good = [(task.key(taken), option) for taken, option in valued if task.good(taken)]
    return min(good, key=lambda pair: pair[0])[1] if good else None


def _static_gpus(task: Task) -> list[int]:
    """List all numbers at which some stage gets faster; whole instances where those are paid."""
    cluster = task.terms.cluster
    counts = {gpus for stage in task.stages for gpus in option_gpus(stage, cluster, task.max_gpus)}
    if task.terms.per_instance:
        size, most = cluster.gpus_per_instance, most_gpus(cluster, task.max_gpus)
        whole = {-(-gpus // size) * size for gpus in counts}
        counts = whole if most is None else {min(gpus, most) for gpus in whole}
    return sorted(counts)


def tables(task: Task, warm: Option | None) -> list[tuple[Option, ...]]:
    """List the options of each stage: its own, and those that the greedy steps start from."""
    starts = set(_starts(task, warm))
    return [
        options(
            stage,
            sorted({*option_gpus(stage, task.terms.cluster, task.max_gpus), *starts}),
            task.terms,
        )
        for stage in task.stages
    ]


def _starts(task: Task, warm: Option | None) -> Iterator[int]:
    """Yield the static allocation and its multiples; its fractions if time is minimised, as steps
    then go up.
    """
    if warm is None:
        return
    most = max(_static_gpus(task))
    for factor in WARM:
        gpus = max(1, warm.gpus // factor) if task.minimise_time else warm.gpus * factor
        if gpus <= most or factor == 1:
            yield gpus


def greedy(task: Task, table: Table, warm: Option | None) -> Known:
    """Run Algorithm 2 from each start, and return the best result; None if none keeps the limit.

    Where time is minimised everything is mirrored: steps go up. A step that would break the limit
    is passed over, and another stage's step is tried; the paper stops there.
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
    """Take the step with the largest gain per loss again and again, while there is a gain and the
    limit holds.
    """
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
    """Compute the gain per unit of loss; 0 without a gain, infinite without a loss."""
    cost, time_s = now.cost - then.cost, now.time_s - then.time_s
    gain, loss = (time_s, -cost) if task.minimise_time else (cost, -time_s)
    if gain <= 1e-9:
        return 0.0
    return gain / loss if loss > 0 else inf


def _steps(task: Task, table: Table, choice: Choice) -> Iterator[Choice]:
    """Yield choices in which one stage moves to the next factor or multiple of its number of
    trials.
    """
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
    """Compute the time and cost of a choice."""
    return expected([row[index] for row, index in zip(table, choice, strict=True)], terms)


def exhaustive(task: Task, table: Table) -> Known:
    """Find the best of all choices by trying each: small cases are checked against it."""
    choices = product(*(range(len(row)) for row in table))
    valued = ((choice, figures(choice, table, task.terms)) for choice in choices)
    return min(
        (pair for pair in valued if task.good(pair[1])),
        key=lambda pair: task.key(pair[1]),
        default=None,
    )
