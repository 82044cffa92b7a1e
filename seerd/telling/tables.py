"""Tables of runs, charges, machines and findings, from the values that `--json` prints."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from seerd.telling.plan_json import Json
from seerd.units import count, format_duration, format_gpu_time, format_money

WIDEST = 10_000


def runs_table(rows: list[Json]) -> RenderableType:
    """Draw a table of runs, one line for each."""
    if not rows:
        return Text("no runs yet; start one with: seerd run SPEC")
    paid = any(row["usd"] for row in rows)
    head = ["run", "began", "status", ">trials", "metric", ">best", "time", "GPU time"]
    table = plain_table(*head, *(["money"] if paid else []))
    for row in rows:
        cells = _run_cells(row)
        # As it is: a metric may be called "[/bold]".
        table.add_row(*map(Text, cells), *([_money_cell(row)] if paid else []))
    unreadable = (
        Text(f"{row['run']}: {row['why']}") for row in rows if row["status"] == "unreadable"
    )
    return Group(whole(table), *unreadable)


def _run_cells(row: Json) -> list[str]:
    if row["status"] == "unreadable":
        return [row["run"], "-", row["status"], "-", "-", "-", "-", "-"]
    began = datetime.fromisoformat(row["began"]).astimezone().strftime("%Y-%m-%d %H:%M")
    best, jobs = row["best"], row.get("jobs", ())
    metric = row["metric"]["name"]
    if jobs:  # each has a metric of its own
        metric, best = f"({count(len(jobs), 'job')})", None
    took = format_duration(round(row["elapsed_s"]))
    spent = format_gpu_time(round(row["gpu_min"], 2) * 60).removesuffix("gpu-min")
    return [
        row["run"],
        began,
        row["status"],
        str(row["trials"]),
        metric,
        f"{best['metric']:.6g}" if best else "-",
        f"{took} of {format_duration(row['deadline_s'])}",
        f"{spent} of {format_gpu_time(row['budget_gpu_min'] * 60)}",
    ]


def _money_cell(row: Json) -> str:
    if row["usd"] is None:
        return "-"
    limit = "" if row["cost_usd"] is None else f" of {format_money(row['cost_usd'])}"
    return f"{format_money(row['usd'])}{limit}"


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
    if "jobs" not in told:
        return Group(whole(table), Text(sums))
    return Group(whole(table), Text(), _by_job(told), Text(), Text(sums))


def _by_job(told: Json) -> Table:
    table = plain_table("job", "owner", "jobs", ">GPU-min", ">USD", ">part")
    bill = sum(row["gpu_min"] for row in (*told["jobs"], told["shared"]))

    def add(job: str, owner: str, jobs: str, row: Json) -> None:
        part = row["gpu_min"] / bill if bill else 0.0
        cells = (f"{row['gpu_min']:.2f}", f"{row['usd']:.2f}", f"{part:.0%}")
        table.add_row(job, owner, jobs, *cells)

    for row in told["jobs"]:
        add(row["job"], row["owner"] or "-", "", row)
    if told["shared"]["gpu_min"]:
        add("(shared)", "", "", told["shared"])
    owners = told["owners"] if any(row["owner"] for row in told["owners"]) else []
    for row in owners:
        add("", row["owner"] or "-", ", ".join(row["jobs"]), row)
    return whole(table)


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
