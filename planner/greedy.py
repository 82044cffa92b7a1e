"""The searches that RubberBand is published with, and the one that tries everything (Misra et al.,
EuroSys '21, section 4.3, Algorithm 2).

The one rule: every search chooses from the same options, one per stage, and compares the same
expected figures: answers can be compared.

Whether cost is minimised within a deadline or time within a cost, the steps are the same, only
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
"""Which option of each stage, by index."""

Known = tuple[Choice, Figures] | None
"""The best choice known so far."""

Table = Sequence[Sequence[Option]]
"""The options of each stage, ascending in GPUs."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be planned.

    stages         the stages of work, in order
    terms          who bills what
    limit          deadline in seconds if cost is minimised, else cost in the units of `terms`
    minimise_time  whether time is minimised, and not cost
    max_gpus       most GPUs at one moment; None: any number
    """

    stages: tuple[WorkStage, ...]
    terms: AllocationTerms
    limit: float
    minimise_time: bool = False
    max_gpus: int | None = None

    def good(self, figures: Figures) -> bool:
        """Tell whether the limit holds."""
        return (figures.cost if self.minimise_time else figures.time_s) <= self.limit * (1 + 1e-9)

    def key(self, figures: Figures) -> tuple[float, float]:
        """Return a key to sort by: less is better."""
        both = figures.cost, figures.time_s
        return both[::-1] if self.minimise_time else both


def static(task: Task) -> Option | None:
    """Find the best number of GPUs if it stays the same from beginning to end, as the first stage
    has it (section 3.2).
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
    """List what each stage may get: its own options, and what the greedy steps start from."""
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
    """Yield the static allocation and its multiples; its fractions if steps go up."""
    if warm is None:
        return
    most = max(_static_gpus(task))
    for factor in WARM:
        gpus = max(1, warm.gpus // factor) if task.minimise_time else warm.gpus * factor
        if gpus <= most or factor == 1:
            yield gpus


def greedy(task: Task, table: Table, warm: Option | None) -> Known:
    """Run Algorithm 2 from each start, and the best of what comes out; mirrored if time is
    minimised, its steps then go up.

    A step that would break the limit is passed over, where the paper stops: another stage's may do.
    """
    found = []
    for gpus in _starts(task, warm):
        start = tuple(
            next(i for i, option in enumerate(row) if option.gpus == gpus) for row in table
        )
        ended = _stepped(task, table, start)
        if task.good(ended[1]):
            found.append(ended)
    return min(found, key=lambda pair: task.key(pair[1])) if found else None


def _stepped(task: Task, table: Table, choice: Choice) -> tuple[Choice, Figures]:
    """Take steps with the largest gain per loss, as long as there is a gain and the limit holds."""
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
    """Compute what is gained for each unit of what is lost; infinite if nothing is lost."""
    cost, time_s = now.cost - then.cost, now.time_s - then.time_s
    gain, loss = (time_s, -cost) if task.minimise_time else (cost, -time_s)
    if gain <= 1e-9:
        return 0.0
    return gain / loss if loss > 0 else inf


def _steps(task: Task, table: Table, choice: Choice) -> Iterator[Choice]:
    """Move one stage at a time to the next factor or multiple of its number of trials."""
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
    """Compute what a choice takes."""
    return expected([row[index] for row, index in zip(table, choice, strict=True)], terms)


def exhaustive(task: Task, table: Table) -> Known:
    """Find the best of all choices, one by one: what small cases are checked with."""
    choices = product(*(range(len(row)) for row in table))
    valued = ((choice, figures(choice, table, task.terms)) for choice in choices)
    return min(
        (pair for pair in valued if task.good(pair[1])),
        key=lambda pair: task.key(pair[1]),
        default=None,
    )
