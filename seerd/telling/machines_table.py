"""Who has which GPUs, for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from seerd.telling.plan_json import Json
from seerd.telling.tables import plain_table, whole
from seerd.units import format_duration


def machines_table(told: Json) -> RenderableType:
    """Draw each machine: its GPUs, and the runs that share them."""
    drawn = [part for one in told["machines"] for part in [*_machine(one), Text()]]
    return Group(*drawn[:-1])


def _machine(one: Json) -> list[RenderableType]:
    name = one["machine"]
    if one["why"]:
        return [Text(f"{name}: {one['why']}")]
    if not one["gpus"]:
        return [Text(f"{name}: no run is here")]
    held = sum(gpu["held"] for gpu in one["gpus"])
    head = Text(f"{name}: {held} of {len(one['gpus'])} GPUs or slots are in use")
    return [head, _gpus(one["gpus"]), *([_runs(one["runs"])] if one["runs"] else [])]


def _gpus(gpus: list[Json]) -> RenderableType:
    table = plain_table("GPU", "run", "user", "trial", ">for")
    for gpu in gpus:
        nobody = "somebody" if gpu["held"] else "free"
        trial = "-" if gpu["trial"] is None else f"{gpu['trial']}/{gpu['attempt']}"
        cells = [gpu["gpu"], gpu["run"] or nobody, gpu["user"] or "-", trial, _time(gpu["for_s"])]
        table.add_row(*map(Text, cells))
    return whole(table)


def _runs(runs: list[Json]) -> RenderableType:
    table = plain_table("run", "user", ">weight", ">has", ">could use", ">here for", "")
    for run in runs:
        cells = [run["run"], run["user"], f"{run['weight']:g}", str(run["gpus"])]
        cells += [str(run["wants"]), _time(run["for_s"])]
        cells += ["" if run["lives"] else "its agent has died; its trials are leaving"]
        table.add_row(*map(Text, cells))
    return whole(table)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(round(seconds))
