"""Tables for people: the list of runs, the ledger. They are made of the values that `--json`
prints.
"""

from __future__ import annotations

from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from seerd.units import format_duration, format_gpu_time, format_money
from seerd.view.plan_json import Json

WIDEST = 10_000


def runs_table(rows: list[Json]) -> RenderableType:
    """Draw a table of runs, one line for each."""
    if not rows:
        return Text("no runs yet; start one with: seerd run SPEC")
    table = plain_table("run", "status", ">trials", ">best", ">time", ">GPU time")
    for row in rows:
        table.add_row(*_run_cells(row))
    unreadable = (
        Text(f"{row['run']}: {row['why']}") for row in rows if row["status"] == "unreadable"
    )
    return Group(whole(table), *unreadable)


def _run_cells(row: Json) -> list[str]:
    if row["status"] == "unreadable":
        return [row["run"], row["status"], "-", "-", "-", "-"]
    best = row["best"]
    return [
        row["run"],
        row["status"],
        str(row["trials"]),
        f"{best['metric']:.6g}" if best else "-",
        format_duration(round(row["elapsed_s"])),
        format_gpu_time(row["gpu_min"] * 60),
    ]


def ledger_table(told: Json) -> RenderableType:
    """Draw every charge, and their sums."""
    table = plain_table("what", "instance", ">GPUs", ">from", ">until", ">GPU-min", ">USD")
    for charge in told["charges"]:
        until = "now" if charge["until_s"] is None else f"{charge['until_s']:.1f}s"
        since = f"{charge['since_s']:.1f}s"
        usd = f"{charge['usd']:.2f}"
        table.add_row(
            charge["what"],
            charge["instance"],
            str(charge["gpus"]),
            since,
            until,
            f"{charge['gpu_min']:.2f}",
            usd,
        )
    sums = (
        f"spent {told['spent_gpu_min']:.2f} of {told['budget_gpu_min']:.2f} GPU-min, "
        f"{format_money(told['spent_usd'])}; "
        f"committed {told['committed_gpu_min']:.2f} GPU-min if everything were given back now"
    )
    return Group(whole(table), Text(sums))


def whole(table: Table) -> Table:
    """Make a table as wide as its content, whatever the terminal's width: a cut name cannot be
    copied.
    """
    wide = Console(width=WIDEST)
    table.width = Measurement.get(wide, wide.options, table).maximum
    return table


def plain_table(*columns: str) -> Table:
    """Make a table without lines; columns whose names begin with `>` are aligned to the right."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.startswith(">") else "left"
        table.add_column(column.removeprefix(">"), justify=justify, no_wrap=True)
    return table
