"""A plan for people: a table and a picture of GPUs over time (figure 1c of the SEER paper)."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from seerd.telling.configs import value_text
from seerd.telling.harmless import printable
from seerd.telling.plan_json import Json
from seerd.telling.tables import plain_table, whole
from seerd.units import count, format_duration

WIDTH = 60
HEIGHT = 8


def plan_view(told: Json) -> RenderableType:
    """Draw the value of `plan --json`."""
    trials = count(sum(b["trials"] for b in told["brackets"]), "trial")
    took = format_duration(round(told["stages"][-1]["end_s"]))
    head = (
        f"{told['policy']}: {trials} in {count(told['rounds'], 'stage')}, "
        f"{told['gpu_min']:.2f} of {told['budget_gpu_min']:.2f} GPU-min, "
        f"{took} of {format_duration(told['deadline_s'])}"
    )
    notes = [Text(f"note: {sentence}") for sentence in told["adjusted"]]
    warnings = [Text(f"warning: {sentence}", style="yellow") for sentence in told["warnings"]]
    parts: list[RenderableType] = [
        Text(head),
        *notes,
        *warnings,
        Text(),
        _stages(told["stages"]),
        Text(),
        Text(picture(told["stages"])),
    ]
    others: list[RenderableType] = (
        [Text(), _others(told), *_reasons(told["others"])] if told["others"] else []
    )
    drawn: list[RenderableType] = [Text(), _configs(told["configs"])] if told["configs"] else []
    return Group(*parts, Text(), _bill(told), *drawn, *others)


def _configs(configs: list[Json]) -> Table:
    names = list(dict.fromkeys(name for config in configs for name in config))
    table = plain_table("configurations", *(f">{printable(name)}" for name in names))
    for number, config in enumerate(configs, 1):
        values = (value_text(config[name]) if name in config else "-" for name in names)
        table.add_row(str(number), *values)
    return whole(table)


def _bill(told: Json) -> Table:
    forecast = told["forecast"]
    table = plain_table("", ">ideal", ">billed p50", ">billed p95", ">limit")
    times = (
        told["ideal_s"],
        forecast["time_s"]["p50"],
        forecast["time_s"]["p95"],
        told["deadline_s"],
    )
    table.add_row("time", *(format_duration(round(seconds)) for seconds in times))
    gpu_min = (
        told["gpu_min"],
        forecast["gpu_min"]["p50"],
        forecast["gpu_min"]["p95"],
        told["budget_gpu_min"],
    )
    table.add_row("GPU-min", *(f"{figure:.1f}" for figure in gpu_min))
    if forecast["usd"]["p95"]:
        usd = (told["usd"], forecast["usd"]["p50"], forecast["usd"]["p95"])
        limit = "" if told["cost_usd"] is None else f"${told['cost_usd']:.2f}"
        table.add_row("money", *(f"${figure:.2f}" for figure in usd), limit)
    return whole(table)


def _others(told: Json) -> Table:
    numbers = (">trials", ">stages", ">peak GPUs", ">GPU-min", ">billed p95")
    table = plain_table("other policies", *numbers)
    for other in told["others"]:
        if "impossible" in other:
            table.add_row(other["policy"], *["-"] * 5)
            continue
        counts = (str(other[key]) for key in ("trials", "stages", "peak_gpus"))
        table.add_row(
            other["policy"],
            *counts,
            f"{other['gpu_min']:.1f}",
            f"{other['forecast']['gpu_min']['p95']:.1f}",
        )
    return whole(table)


def _reasons(others: list[Json]) -> list[Text]:
    return [
        Text(f"{other['policy']}: {other['impossible']}")
        for other in others
        if "impossible" in other
    ]


def _stages(stages: list[Json]) -> Table:
    table = plain_table(">stage", ">from", ">to", "trials x GPUs", ">GPUs", ">GPU-min")
    for number, stage in enumerate(stages, 1):
        groups = ", ".join(f"{g['trials']} x {g['gpus_per_trial']}" for g in stage["groups"])
        times = (format_duration(round(stage[key])) for key in ("start_s", "end_s"))
        table.add_row(str(number), *times, groups, str(stage["gpus"]), f"{stage['gpu_min']:.2f}")
    return whole(table)


def picture(stages: list[Json]) -> str:
    """Draw GPUs over time: a column for each slice of time, a row for each slice of GPUs."""
    end_s, peak = stages[-1]["end_s"], max(stage["gpus"] for stage in stages)
    rows = min(HEIGHT, peak)
    lines = []
    for row in range(rows, 0, -1):
        level = peak * row / rows
        bar = "".join(
            _cell(stages, (column + 0.5) / WIDTH * end_s, level - peak / rows / 2)
            for column in range(WIDTH)
        )
        lines.append(f"{round(level):>5} |{bar.rstrip()}")
    lines.append(f" GPUs +{'-' * WIDTH}")
    lines.append(f"       0{format_duration(round(end_s)):>{WIDTH - 1}}")
    sizes = {group["gpus_per_trial"] for stage in stages for group in stage["groups"]}
    if max(sizes) > 9:
        lines.append(
            f"       (last digit of the GPUs per trial: {', '.join(map(str, sorted(sizes)))})"
        )
    return "\n".join(lines)


def _cell(stages: list[Json], at_s: float, gpus: float) -> str:
    """Return the last digit of the GPUs per trial there; a dot while instances boot."""
    stage = next(stage for stage in stages if at_s < stage["end_s"])
    if at_s < stage["start_s"]:
        return "." if gpus < stage["gpus"] else " "
    for group in stage["groups"]:
        gpus -= group["gpus_per_trial"] * group["trials"]
        if gpus < 0:
            return str(group["gpus_per_trial"])[-1]
    return " "
