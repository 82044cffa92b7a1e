"""A profile for people; every line says whether its figures were measured or fitted."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from seerd.telling.plan_json import Json
from seerd.telling.tables import table_of
from seerd.units import format_duration, format_gpu_time, format_size

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
    parts += [Text(), _points(profile["points"]), Text(), _times(profile), Text(), _law(profile)]
    parts += [Text(f"note: {sentence}") for sentence in profile["notes"]]
    return Group(*parts, Text(f"kept for plans in {profile['kept']}"))


def _points(points: list[Json]) -> Table:
    rows = []
    for point in points:
        timed = [str(point["samples"]), "measured"] if point["measured"] else ["", "fitted"]
        speed = [f"{point['speed']:.2f}", f"{point['efficiency']:.0%}"]
        rows.append([str(point["gpus"]), f"{point['report_s']:.4g}", *speed, *timed])
    return table_of((">GPUs", ">s/report", ">speed", ">efficiency", ">timed", ""), rows)


def _times(profile: Json) -> Table:
    rows, size = [], profile["checkpoint_bytes"]
    for key, name, what in TIMES:
        if (times := profile[key]) is not None:
            note = f"{what}, {format_size(size)}" if key == "save_s" and size else what
            quantiles = (f"{times[quantile]:.3g}s" for quantile in ("p50", "p95"))
            rows.append([name, *quantiles, str(times["samples"]), note])
    return table_of(("", ">median", ">95%", ">seen", ""), rows)


def _law(profile: Json) -> Text:
    law = profile["law"]
    terms = {"serial_s": "", "work_s": " / p", "exchange_s": " log2 p", "contention_s": " (p - 1)"}
    sums = " + ".join(f"{law[key]:.3g}{of}" for key, of in terms.items() if law[key] > 0)
    return Text(f"fitted: {sums} seconds on p GPUs, off by at most {profile['fit_error']:.1%}")
