"""A study for people: a table, and the metric against the limits (figure 4 of the SEER paper)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from seerd.errors import UsageError
from seerd.extras import installing
from seerd.telling.plan_json import Json
from seerd.telling.tables import plain_table
from seerd.units import format_duration

WIDTH = 80
BAR = 8
DIGITS = 4
MARKS = "os^vD<>pP*X"
Range = tuple[float, float] | None
SHOWN = 0.8  # the share of the points, the best ones, that the picture's scale has to show


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
    style = _style([row["mean"] for row in rows if row["mean"] is not None])
    for row in ordered:
        table.add_row(*_cells(row, most, style))
    return table


def _style(means: Sequence[float]) -> str:
    """Return the format in which the largest has `DIGITS` digits, and all as many decimals."""
    largest = max((abs(mean) for mean in means), default=0.0)
    if not 1e-3 <= largest < 1e6:
        return f".{DIGITS - 1}g"
    return f".{max(0, DIGITS - 1 - math.floor(math.log10(largest)))}f"


def _cells(row: Json, most: float, style: str) -> list[str]:
    if row["mean"] is None:
        why = "not run" if "impossible" in row else "no model"
        return [row["policy"], "-", "", "", why, *[""] * 4]
    lost = row["without_model"]
    return [
        row["policy"] + (f" ({lost} of {len(row['best'])} none)" if lost else ""),
        *(f"{row[key]:{style}}" for key in ("mean", "stderr", "regret")),
        "▇" * round(BAR * max(0.0, row["regret"]) / most) or "▏",
        f"{row['gpu_min']:.1f}",
        format_duration(round(row["elapsed_s"])),
        f"{row['trials']:.0f}",
        str(row["violations"]),
    ]


def check_plot(path: Path) -> None:
    """Raise `UsageError` if a plot cannot be made, before long work is done for it."""
    formats = _figure()().canvas.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in formats:
        raise UsageError(
            f"--plot {path}: its name says the format: .png, .svg, .pdf, ..., "
            f"not {path.suffix or 'nothing'}"
        )
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}")


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise UsageError(f"a plot needs matplotlib: {installing('plot')}") from error
    return Figure


def draw(results: Sequence[Json], metric: str, path: Path) -> None:
    """Draw the metric against deadline and budget, all on one scale. Raises `UsageError`."""
    rows = _panels(results)
    columns = max(len(row) for row in rows)
    figure = _figure()(figsize=(4.0 * columns + 2.0, 3.2 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False, sharey=True)
    scale = _scale(results)
    for axes, panels in zip(grid, rows, strict=True):
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        for axis, panel in zip(axes, panels, strict=False):
            _panel(axis, results, panel, scale)
        axes[0].set_ylabel(metric)
    handles, labels = grid[0][0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, fontsize="small", loc="outside right upper")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise UsageError(f"the plot cannot be written to {path}: {error}") from error


class _Panel(NamedTuple):
    """The metric along one limit, with the other one fixed."""

    along: str  # the limit on the x axis
    label: str  # of the x axis
    unit: float  # of the x axis
    fixed: str  # the limit that is fixed
    value: float  # of the limit that is fixed
    title: str


def _panels(results: Sequence[Json]) -> list[list[_Panel]]:
    """Make a panel for each value of a limit while the other varies."""
    deadline, budget = "deadline_s", "budget_gpu_min"
    deadlines, budgets = (sorted({row[key] for row in results}) for key in (deadline, budget))
    against_deadline = [
        _Panel(deadline, "deadline (min)", 60, budget, value, f"budget {value:g} GPU-min")
        for value in budgets
    ]
    titles = (f"deadline {format_duration(round(value))}" for value in deadlines)
    against_budget = [
        _Panel(budget, "budget (GPU-min)", 1, deadline, value, title)
        for value, title in zip(deadlines, titles, strict=True)
    ]
    varied = [(against_deadline, deadlines), (against_budget, budgets)]
    return [panels for panels, values in varied if len(values) > 1] or [against_deadline]


def _scale(results: Sequence[Json]) -> Range:
    """Return the range of the metric's axis; points far behind the others do not stretch it."""
    ranked = sorted((r for r in results if r["mean"] is not None), key=lambda row: row["regret"])
    shown = ranked[: max(2, round(SHOWN * len(ranked)))]
    if not shown:
        return None
    low = min(row["mean"] - row["stderr"] for row in shown)
    high = max(row["mean"] + row["stderr"] for row in shown)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def _panel(axis: Any, results: Sequence[Json], panel: _Panel, scale: Range) -> None:
    """Draw a panel; every policy has one colour and mark in all panels."""
    here = [row for row in results if row[panel.fixed] == panel.value]
    for policy, mark in zip(dict.fromkeys(row["policy"] for row in results), cycle(MARKS)):
        rows = [row for row in here if row["policy"] == policy and row["mean"] is not None]
        rows.sort(key=lambda row: row[panel.along])
        x, y = [row[panel.along] / panel.unit for row in rows], [row["mean"] for row in rows]
        error = [row["stderr"] if _on(row["mean"], scale) else 0.0 for row in rows]
        axis.errorbar(
            x, y, yerr=error, marker=mark, capsize=3, label=_label(policy, results, scale)
        )
    axis.set(title=panel.title, xlabel=panel.label, ylim=scale)
    axis.set_xticks(sorted({row[panel.along] / panel.unit for row in here}))
    axis.grid(alpha=0.3)


def _label(policy: str, results: Sequence[Json], scale: Range) -> str:
    means = [row["mean"] for row in results if row["policy"] == policy and row["mean"] is not None]
    if not means:
        return f"{policy} (no model)"
    return policy if any(_on(mean, scale) for mean in means) else f"{policy} (off the scale)"


def _on(mean: float, scale: Range) -> bool:
    return scale is not None and scale[0] <= mean <= scale[1]
