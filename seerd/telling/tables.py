"""The values of `--json` as tables: runs, charges, machines, findings, plans, profiles, studies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from textwrap import fill
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from seerd.planner.gpu_parts import gpus_number
from seerd.telling.harmless import printable, value_text
from seerd.telling.plan_json import Json
from seerd.units import count, format_duration, format_gpu_time, format_money, format_size

WIDEST = 10_000
IDLE = "no run is here"
STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def runs_table(rows: list[Json]) -> RenderableType:
    """Draw a table of runs, one line for each."""
    if not rows:
        return Text("no runs yet; start one with: seerd run SPEC")
    head = ["run", "began", "status", ">trials", "metric", ">best", "time", "GPU time"]
    head += ["money"] if any(row["usd"] for row in rows) else []
    lines, notes = [], []
    for row in rows:
        if row["status"] == "unreadable":
            lines.append([row["run"], "-", row["status"], *["-"] * 6][: len(head)])
            notes.append(Text(f"{row['run']}: {row['why']}"))
            continue
        began = datetime.fromisoformat(row["began"]).astimezone().strftime("%Y-%m-%d %H:%M")
        best, jobs = row["best"], row.get("jobs", ())
        metric = row["metric"]["name"]
        if jobs:  # each has a metric of its own
            metric, best = f"({count(len(jobs), 'job')})", None
        cells = [row["run"], began, row["status"], str(row["trials"]), metric]
        spent = format_gpu_time(round(row["gpu_min"], 2) * 60).removesuffix("gpu-min")
        limit = "" if row["cost_usd"] is None else f" of {format_money(row['cost_usd'])}"
        cells += [
            f"{best['metric']:.6g}" if best else "-",
            f"{format_duration(round(row['elapsed_s']))} of {format_duration(row['deadline_s'])}",
            f"{spent} of {format_gpu_time(row['budget_gpu_min'] * 60)}",
            "-" if row["usd"] is None else f"{format_money(row['usd'])}{limit}",
        ]
        lines.append(cells[: len(head)])
    return Group(table_of(head, lines), *notes)


def ledger_table(ledger: Json) -> RenderableType:
    """Draw every charge, and their sums."""
    heads = ("what", "instance", ">GPUs", ">from", ">until", ">GPU-min", ">USD")
    rows = [
        [
            *(charge["what"], charge["instance"], gpus_number(charge["gpus"])),
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
    return Group(table_of(heads, rows), sums)


def machines_table(machines: Json) -> RenderableType:
    """Draw each machine: its GPUs, and the runs that share them."""
    parts: list[RenderableType] = []
    for machine in machines["machines"]:
        gpus = machine["gpus"] or ()
        whole = {gpu["gpu"] for gpu in gpus}
        held = {gpu["gpu"] for gpu in gpus if gpu["held"]}
        used = f"{len(held)} of {len(whole)} GPUs or slots are in use" if gpus else IDLE
        parts.append(Text(f"{machine['machine']}: {machine['why'] or used}"))
        if gpus and not machine["why"]:
            rows = []
            for gpu in gpus:
                run = gpu["run"] or ("somebody" if gpu["held"] else "free")
                trial = "-" if gpu["trial"] is None else f"{gpu['trial']}/{gpu['attempt']}"
                name = gpu["gpu"] if gpu["parts"] == 1 else f"1/{gpu['parts']} of {gpu['gpu']}"
                rows.append([name, run, gpu["user"] or "-", trial, _time(gpu["for_s"])])
            parts.append(table_of(("GPU", "run", "user", "trial", ">for"), rows))
            rows = []
            for run in machine["runs"]:
                note = "" if run["lives"] else "its agent has died; its trials are leaving"
                counts = [gpus_number(run[key]) for key in ("gpus", "wants")]
                weight = f"{run['weight']:g}"
                rows.append([run["run"], run["user"], weight, *counts, _time(run["for_s"]), note])
            heads = ("run", "user", ">weight", ">has", ">could use", ">here for", "")
            parts += [table_of(heads, rows)] if rows else []
        parts.append(Text())
    return Group(*parts[:-1])


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


def plan_view(plan: Json) -> RenderableType:
    """Draw the value of `plan --json`."""
    trials = count(sum(b["trials"] for b in plan["brackets"]), "trial")
    took = format_duration(round(plan["stages"][-1]["end_s"]))
    head = (
        f"{plan['policy']}: {trials} in {count(plan['rounds'], 'stage')}, "
        f"{plan['gpu_min']:.2f} of {plan['budget_gpu_min']:.2f} GPU-min, "
        f"{took} of {format_duration(plan['deadline_s'])}"
    )
    parts: list[RenderableType] = [Text(head)]
    parts += [Text(f"note: {sentence}") for sentence in plan["adjusted"]]
    parts += [Text(f"warning: {sentence}", style="yellow") for sentence in plan["warnings"]]
    rows = []
    for number, stage in enumerate(plan["stages"], 1):
        groups = ", ".join(
            f"{g['trials']} x {gpus_number(g['gpus_per_trial'])}" for g in stage["groups"]
        )
        times = (format_duration(round(stage[key])) for key in ("start_s", "end_s"))
        gpus = gpus_number(stage["gpus"])
        rows.append([str(number), *times, groups, gpus, f"{stage['gpu_min']:.2f}"])
    heads = [">stage", ">from", ">to", "trials x GPUs", ">GPUs", ">GPU-min"]
    parts += [Text(), table_of(heads, rows), Text(), _bill(plan)]
    if more := plan["uncounted"]:
        parts.append(Text(f"not counted: about ${more['usd']:.2f} more: {more['text']}"))
    if configs := plan["configs"]:  # where a parameter is inactive there is a dash
        names = list(dict.fromkeys(name for config in configs for name in config))
        rows = [
            [str(number), *(value_text(config[n]) if n in config else "-" for n in names)]
            for number, config in enumerate(configs, 1)
        ]
        heads = ["configurations", *(f">{printable(name)}" for name in names)]
        parts += [Text(), table_of(heads, rows)]
    rows, reasons = [], []  # what the same limits give under each other policy
    for other in plan["others"]:
        if "impossible" in other:
            rows.append([other["policy"], *["-"] * 5])
            reasons.append(Text(f"{other['policy']}: {other['impossible']}"))
        else:
            counts = (gpus_number(other[key]) for key in ("trials", "stages", "peak_gpus"))
            figures = (other["gpu_min"], other["forecast"]["gpu_min"]["p95"])
            rows.append([other["policy"], *counts, *(f"{figure:.1f}" for figure in figures)])
    heads = ["other policies", ">trials", ">stages", ">peak GPUs", ">GPU-min", ">billed p95"]
    parts += [Text(), table_of(heads, rows), *reasons] if rows else []
    return Group(*parts)


def _bill(plan: Json) -> Table:
    """Draw what is planned beside what will be billed."""

    def figures(ideal: str, key: str, limit: str) -> list[float]:
        billed = plan["forecast"][key]
        return [plan[ideal], billed["p50"], billed["p95"], plan[limit]]

    times = figures("ideal_s", "time_s", "deadline_s")
    rows = [
        ["time", *(format_duration(round(seconds)) for seconds in times)],
        ["GPU-min", *(f"{n:.1f}" for n in figures("gpu_min", "gpu_min", "budget_gpu_min"))],
    ]
    if plan["forecast"]["usd"]["p95"]:
        usd = figures("usd", "usd", "cost_usd")
        rows.append(["money", *("" if dollars is None else f"${dollars:.2f}" for dollars in usd)])
    return table_of(("", ">ideal", ">billed p50", ">billed p95", ">limit"), rows)


TIMES = (
    ("start_s", "start", "from the order until it trains"),
    ("restore_s", "restore", "the same, from a checkpoint"),
    ("save_s", "checkpoint", "until it is in the store"),
    ("stop_s", "stop", "from the order until all is saved and gone"),
    ("boot_s", "boot", "from the instance's start until it is ready"),
)


def profile_view(profile: Json) -> RenderableType:
    """Draw the value of `profile --json`."""
    took = format_duration(round(profile["elapsed_s"], 1))
    script = f"{profile['script']} ({profile['provider']}, {profile['instance_type']})"
    parts: list[RenderableType] = [
        Text(f"{script}, measured in {took}, {format_gpu_time(profile['gpu_min'] * 60)}")
    ]
    rows = []
    for point in profile["points"]:
        timed = [str(point["samples"]), "measured"] if point["measured"] else ["", "fitted"]
        speed = [f"{point['speed']:.2f}", f"{point['efficiency']:.0%}"]
        rows.append([gpus_number(point["gpus"]), f"{point['report_s']:.4g}", *speed, *timed])
    heads = (">GPUs", ">s/report", ">speed", ">efficiency", ">timed", "")
    parts += [Text(), table_of(heads, rows), Text()]
    rows, size = [], profile["checkpoint_bytes"]
    for key, name, what in TIMES:
        if (times := profile[key]) is not None:
            note = f"{what}, {format_size(size)}" if key == "save_s" and size else what
            quantiles = (f"{times[quantile]:.3g}s" for quantile in ("p50", "p95"))
            rows.append([name, *quantiles, str(times["samples"]), note])
    parts += [table_of(("", ">median", ">95%", ">seen", ""), rows), Text()]
    terms = {"serial_s": "", "work_s": " / p", "exchange_s": " log2 p", "contention_s": " (p - 1)"}
    law = {of: profile["law"][key] for key, of in terms.items()}
    sums = " + ".join(f"{seconds:.3g}{of}" for of, seconds in law.items() if seconds > 0)
    error = f"off by at most {profile['fit_error']:.1%}"
    parts.append(Text(f"fitted: {sums} seconds on p GPUs, {error}"))
    if memory := profile["memory_bytes"]:
        sizes = f"{format_size(memory)} of the GPU's {format_size(profile['gpu_memory_bytes'])}"
        parts.append(Text(f"memory: a trial on one GPU took {sizes}"))
    parts += [Text(f"note: {sentence}") for sentence in profile["notes"]]
    return Group(*parts, Text(f"kept for plans in {profile['kept']}"))


BAR, DIGITS = 8, 4


def study_view(rows: Sequence[Json], mode: str, notes: Sequence[str]) -> RenderableType:
    """Draw a table for each pair of limits, the best policy first; "over": runs over a limit."""
    parts: list[RenderableType] = [Text(note) for note in notes]
    limits = [(row["deadline_s"], row["budget_gpu_min"]) for row in rows]
    sign = -1 if mode == "max" else 1
    for deadline_s, budget in dict.fromkeys(limits):
        here = [row for row, its in zip(rows, limits, strict=True) if its == (deadline_s, budget)]
        here.sort(key=lambda row: (row["mean"] is None, sign * (row["mean"] or 0.0), row["policy"]))
        most = max(row["regret"] or 0.0 for row in here) or 1.0
        # The largest has `DIGITS` digits, and all have as many decimals.
        largest = max((abs(row["mean"]) for row in here if row["mean"] is not None), default=0.0)
        style = f".{DIGITS - 1}g"
        if 1e-3 <= largest < 1e6:
            style = f".{max(0, DIGITS - 1 - math.floor(math.log10(largest)))}f"
        numbers = (">GPU-min", ">time", ">trials", ">over")
        table = plain_table("policy", ">best", ">+-", ">regret", "", *numbers)
        for row in here:
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
        head = f"deadline {format_duration(round(deadline_s))}, budget {budget:g} GPU-min"
        parts += [Text(), Text(head, style="bold"), table]
        reasons = [f"{row['policy']}: {row['impossible']}" for row in here if "impossible" in row]
        breaks = partial(fill, width=80, subsequent_indent="  ", break_on_hyphens=False)
        parts += map(Text, map(breaks, reasons))
    return Group(*parts)
