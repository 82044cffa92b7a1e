"""The best of all of RubberBand's choices, by trying each: small cases are checked against it."""

from __future__ import annotations

from itertools import product

from seerd.planner.rubberband import Known, Table, Task, figures


def exhaustive(task: Task, table: Table) -> Known | None:
    """Find the best of all choices by trying each: small cases are checked against it."""
    choices = product(*(range(len(row)) for row in table))
    valued = ((choice, figures(choice, table, task.terms)) for choice in choices)
    return min(
        (pair for pair in valued if task.good(pair[1])),
        key=lambda pair: task.key(pair[1]),
        default=None,
    )
