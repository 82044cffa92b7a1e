"""Tables of runs, charges, machines and findings, from the values that `--json` prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from seerd.telling.plan_json import Json
from seerd.units import count, format_duration, format_gpu_time, format_money

WIDEST = 10_000
STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def runs_table(rows: list[Json]) -> RenderableType:
    """Draw a table of runs, one line for each."""
    if not rows:
        return Text("no runs yet; start one with: seerd run SPEC")
    head = ["run", "began", "status", ">trials", "metric", ">best", "time", "GPU time"]
    head += ["money"] if any(row["usd"] for row in rows) else []
    cells = (_run_cells(row)[: len(head)] for row in rows)
    unreadable = [row for row in rows if row["status"] == "unreadable"]
    notes = (Text(f"{row['run']}: {row['why']}") for row in unreadable)
    return Group(table_of(head, cells), *notes)


def _run_cells(row: Json) -> list[str]:
    if row["status"] == "unreadable":
        return [row["run"], "-", row["status"], *["-"] * 6]
    began = datetime.fromisoformat(row["began"]).astimezone().strftime("%Y-%m-%d %H:%M")
    best, jobs = row["best"], row.get("jobs", ())
    metric = row["metric"]["name"]
    if jobs:  # each has a metric of its own
        metric, best = f"({count(len(jobs), 'job')})", None
    cells = [row["run"], began, row["status"], str(row["trials"]), metric]
    cells += [f"{best['metric']:.6g}" if best else "-"]
    spent = format_gpu_time(round(row["gpu_min"], 2) * 60).removesuffix("gpu-min")
    limit = "" if row["cost_usd"] is None else f" of {format_money(row['cost_usd'])}"
    return [
        *cells,
        f"{format_duration(round(row['elapsed_s']))} of {format_duration(row['deadline_s'])}",
        f"{spent} of {format_gpu_time(row['budget_gpu_min'] * 60)}",
        "-" if row["usd"] is None else f"{format_money(row['usd'])}{limit}",
    ]


def ledger_table(ledger: Json) -> RenderableType:
    """Draw every charge, and their sums."""
    heads = ("what", "instance", ">GPUs", ">from", ">until", ">GPU-min", ">USD")
    rows = [
        [
            *(charge["what"], charge["instance"], str(charge["gpus"])),
            f"{charge['since_s']:.1f}s",
            "now" if charge["until_s"] is None else f"{charge['until_s']:.1f}s",
            *(f"{charge['gpu_min']:.2f}", f"{charge['usd']:.2f}"),
        ]
        for charge in ledger["charges"]
    ]
    sums = Text(
        f"spent {ledger['spent_gpu_min']:.2f} of {ledger['budget_gpu_min']:.2f} GPU-min, "
        f"{format_money(ledger['spent_usd'])}; "
        f"committed {ledger['committed_gpu_min']:.2f} GPU-min if everything were given back now"
    )
    by_job: list[RenderableType] = [Text(), _by_job(ledger), Text()] if "jobs" in ledger else []
    return Group(table_of(heads, rows), *by_job, sums)


def _by_job(ledger: Json) -> Table:
    jobs, shared, owners = ledger["jobs"], ledger["shared"], ledger["owners"]
    bill = sum(row["gpu_min"] for row in (*jobs, shared))

    def billed(row: Json) -> list[str]:
        part = row["gpu_min"] / bill if bill else 0.0
        return [f"{row['gpu_min']:.2f}", f"{row['usd']:.2f}", f"{part:.0%}"]

    rows = [[row["job"], row["owner"] or "-", "", *billed(row)] for row in jobs]
    if shared["gpu_min"]:
        rows.append(["(shared)", "", "", *billed(shared)])
    if any(row["owner"] for row in owners):
        rows += [["", row["owner"] or "-", ", ".join(row["jobs"]), *billed(row)] for row in owners]
    return table_of(("job", "owner", "jobs", ">GPU-min", ">USD", ">part"), rows)


def machines_table(machines: Json) -> RenderableType:
    """Draw each machine: its GPUs, and the runs that share them."""
    drawn = [part for one in machines["machines"] for part in [*_machine(one), Text()]]
    return Group(*drawn[:-1])


def _machine(machine: Json) -> list[RenderableType]:
    name, gpus = machine["machine"], machine["gpus"]
    if machine["why"]:
        return [Text(f"{name}: {machine['why']}")]
    if not gpus:
        return [Text(f"{name}: no run is here")]
    held = sum(gpu["held"] for gpu in gpus)
    head = Text(f"{name}: {held} of {len(gpus)} GPUs or slots are in use")
    return [head, _gpus(gpus), *([_runs(machine["runs"])] if machine["runs"] else [])]


def _gpus(gpus: list[Json]) -> Table:
    rows = []
    for gpu in gpus:
        run = gpu["run"] or ("somebody" if gpu["held"] else "free")
        trial = "-" if gpu["trial"] is None else f"{gpu['trial']}/{gpu['attempt']}"
        rows.append([gpu["gpu"], run, gpu["user"] or "-", trial, _time(gpu["for_s"])])
    return table_of(("GPU", "run", "user", "trial", ">for"), rows)


def _runs(runs: list[Json]) -> Table:
    rows = []
    for run in runs:
        note = "" if run["lives"] else "its agent has died; its trials are leaving"
        numbers = [f"{run['weight']:g}", str(run["gpus"]), str(run["wants"]), _time(run["for_s"])]
        rows.append([run["run"], run["user"], *numbers, note])
    return table_of(("run", "user", ">weight", ">has", ">could use", ">here for", ""), rows)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(round(seconds))


def doctor_view(found: Json, spec: str) -> Text:
    """Draw the value of `doctor --json`."""
    text = Text()
    for check in found["checks"]:
        head, *more = check["found"].splitlines() or [""]
        text.append(f"{check['level']:<8}", style=STYLES[check["level"]])
        text.append(f" {check['check']}: {head}\n")
        text.append("".join(f"           {line}\n" for line in more))
        if check["todo"]:
            text.append(f"           -> {check['todo'].replace('SPEC', spec)}\n", style="dim")
    if found["missing"]:
        text.append(f"\nmissing permissions: {', '.join(found['missing'])}\n")
        text.append(f"the whole policy: seerd doctor {spec} --policy\n")
    counts = {name: found[f"{name}s"] for name in ("problem", "warning")}
    parts = [count(number, name) for name, number in counts.items() if number]
    can_begin = "; a run can begin" if not counts["problem"] else ""
    return text.append(" and ".join(parts) + can_begin if parts else "all is well")


def table_of(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    """Make a table of plain texts, as wide as its content: a cut name cannot be copied."""
    table = plain_table(*heads)
    for row in rows:
        table.add_row(*map(Text, row))  # a metric may be called "[/bold]"
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
