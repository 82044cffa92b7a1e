"""A study of policies as a table for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from textwrap import fill

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from seerd.telling.plan_json import Json
from seerd.telling.tables import plain_table
from seerd.units import format_duration

WIDTH = 80
BAR = 8
DIGITS = 4


def study_view(rows: Sequence[Json], mode: str, notes: Sequence[str]) -> RenderableType:
    """Draw a table for each pair of limits; "over": runs that broke a limit."""
    parts: list[RenderableType] = [Text(note) for note in notes]
    for deadline_s, budget in dict.fromkeys(map(_limits, rows)):
        head = f"deadline {format_duration(round(deadline_s))}, budget {budget:g} GPU-min"
        here = [row for row in rows if _limits(row) == (deadline_s, budget)]
        parts += [Text(), Text(head, style="bold"), _table(here, mode)]
        reasons = [f"{row['policy']}: {row['impossible']}" for row in here if "impossible" in row]
        breaks = partial(fill, width=WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        parts += map(Text, map(breaks, reasons))
    return Group(*parts)


def _limits(row: Json) -> tuple[float, float]:
    return row["deadline_s"], row["budget_gpu_min"]


def _table(rows: Sequence[Json], mode: str) -> Table:
    """Draw the best policy first."""
    numbers = (">GPU-min", ">time", ">trials", ">over")
    table = plain_table("policy", ">best", ">+-", ">regret", "", *numbers)
    sign = -1 if mode == "max" else 1
    ordered = sorted(
        rows, key=lambda row: (row["mean"] is None, sign * (row["mean"] or 0.0), row["policy"])
    )
    most = max((row["regret"] or 0.0 for row in rows), default=0.0) or 1.0
    # The largest has `DIGITS` digits, and all have as many decimals.
    largest = max((abs(row["mean"]) for row in rows if row["mean"] is not None), default=0.0)
    style = f".{DIGITS - 1}g"
    if 1e-3 <= largest < 1e6:
        style = f".{max(0, DIGITS - 1 - math.floor(math.log10(largest)))}f"
    for row in ordered:
        if row["mean"] is None:
            why = "not run" if "impossible" in row else "no model"
            table.add_row(row["policy"], "-", "", "", why, *[""] * 4)
            continue
        lost = row["without_model"]
        table.add_row(
            row["policy"] + (f" ({lost} of {len(row['best'])} none)" if lost else ""),
            *(f"{row[key]:{style}}" for key in ("mean", "stderr", "regret")),
            "▇" * round(BAR * max(0.0, row["regret"]) / most) or "▏",
            f"{row['gpu_min']:.1f}",
            format_duration(round(row["elapsed_s"])),
            f"{row['trials']:.0f}",
            str(row["violations"]),
        )
    return table
