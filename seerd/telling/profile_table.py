"""A profile for people; every line says whether its figures were measured or fitted."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from seerd.telling.plan_json import Json
from seerd.telling.tables import plain_table
from seerd.units import format_duration, format_gpu_time

TIMES = (
    ("start_s", "start", "from the order until it trains"),
    ("restore_s", "restore", "the same, from a checkpoint"),
    ("save_s", "checkpoint", "until it is in the store"),
    ("stop_s", "stop", "from the order until all is saved and gone"),
    ("boot_s", "boot", "from the instance's start until it is ready"),
)


def profile_view(told: Json) -> RenderableType:
    """Draw the value of `profile --json`."""
    took = (
        f"{format_duration(round(told['elapsed_s'], 1))}, {format_gpu_time(told['gpu_min'] * 60)}"
    )
    head = Text(
        f"{told['script']} ({told['provider']}, {told['instance_type']}), measured in {took}"
    )
    notes = [Text(f"note: {sentence}") for sentence in told["notes"]]
    kept = Text(f"kept for plans in {told['kept']}")
    return Group(
        head,
        Text(),
        _points(told["points"]),
        Text(),
        _times(told),
        Text(),
        _law(told),
        *notes,
        kept,
    )


def _points(points: list[Json]) -> Table:
    table = plain_table(">GPUs", ">s/report", ">speed", ">efficiency", ">timed", "")
    for point in points:
        table.add_row(
            str(point["gpus"]),
            f"{point['report_s']:.4g}",
            f"{point['speed']:.2f}",
            f"{point['efficiency']:.0%}",
            str(point["samples"]) if point["measured"] else "",
            "measured" if point["measured"] else "fitted",
        )
    return table


def _times(told: Json) -> Table:
    table = plain_table("", ">median", ">95%", ">seen")
    table.add_column("")
    for key, name, what in TIMES:
        times = told[key]
        if times is not None:
            size = (
                f", {_size(told['checkpoint_bytes'])}"
                if key == "save_s" and told["checkpoint_bytes"]
                else ""
            )
            table.add_row(
                name,
                _seconds(times["p50"]),
                _seconds(times["p95"]),
                str(times["samples"]),
                what + size,
            )
    return table


def _law(told: Json) -> Text:
    law = told["law"]
    terms = (
        ("serial_s", ""),
        ("work_s", " / p"),
        ("exchange_s", " log2 p"),
        ("contention_s", " (p - 1)"),
    )
    parts = [f"{law[key]:.3g}{of}" for key, of in terms if law[key] > 0]
    return Text(
        f"fitted: {' + '.join(parts)} seconds on p GPUs, off by at most {told['fit_error']:.1%}"
    )


def _seconds(value: float) -> str:
    return f"{value:.3g}s"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
