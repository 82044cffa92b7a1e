"""A plan for people: a table and a picture of GPUs over time (figure 1c of the SEER paper)."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from seerd.telling.configs import value_text
from seerd.telling.harmless import printable
from seerd.telling.plan_json import Json
from seerd.telling.tables import table_of
from seerd.units import count, format_duration

WIDTH = 60
HEIGHT = 8


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
    parts += [Text(), _stages(plan["stages"]), Text(), Text(picture(plan["stages"]))]
    parts += [Text(), _bill(plan)]
    parts += [Text(), _configs(plan["configs"])] if plan["configs"] else []
    parts += [Text(), *_others(plan["others"])] if plan["others"] else []
    return Group(*parts)


def _configs(configs: list[Json]) -> Table:
    """Draw configurations; where a parameter is inactive there is a dash."""
    names = list(dict.fromkeys(name for config in configs for name in config))
    rows = [
        [str(number), *(value_text(config[n]) if n in config else "-" for n in names)]
        for number, config in enumerate(configs, 1)
    ]
    return table_of(("configurations", *(f">{printable(name)}" for name in names)), rows)


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


def _others(others: list[Json]) -> list[RenderableType]:
    """Draw what the same limits give under each other policy, and why some have no plan."""
    rows, reasons = [], []
    for other in others:
        if "impossible" in other:
            rows.append([other["policy"], *["-"] * 5])
            reasons.append(Text(f"{other['policy']}: {other['impossible']}"))
        else:
            counts = (str(other[key]) for key in ("trials", "stages", "peak_gpus"))
            figures = (other["gpu_min"], other["forecast"]["gpu_min"]["p95"])
            rows.append([other["policy"], *counts, *(f"{figure:.1f}" for figure in figures)])
    heads = ("other policies", ">trials", ">stages", ">peak GPUs", ">GPU-min", ">billed p95")
    return [table_of(heads, rows), *reasons]


def _stages(stages: list[Json]) -> Table:
    rows = []
    for number, stage in enumerate(stages, 1):
        groups = ", ".join(f"{g['trials']} x {g['gpus_per_trial']}" for g in stage["groups"])
        times = (format_duration(round(stage[key])) for key in ("start_s", "end_s"))
        rows.append([str(number), *times, groups, str(stage["gpus"]), f"{stage['gpu_min']:.2f}"])
    return table_of((">stage", ">from", ">to", "trials x GPUs", ">GPUs", ">GPU-min"), rows)


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
