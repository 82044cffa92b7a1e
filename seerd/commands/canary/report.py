"""The report of a canary, for the user and for an issue. The JSON has nothing that identifies an
account, and the table is made of it.
"""

from __future__ import annotations

import platform
from collections.abc import Collection
from datetime import UTC, datetime
from json import dumps
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from seerd.commands.canary.expedition import CanaryResult
from seerd.commands.canary.fleet import CanaryPlan
from seerd.commands.canary.outcome import CHECKS, STEPS, WatchedLaunch, cap_usd
from seerd.commands.canary.redaction import redacted
from seerd.errors import UsageError
from seerd.planning.cloud_times import VERSION, KeptTimes
from seerd.units import format_duration
from seerd.version import VERSION as SEERD

STYLES = {"passed": "green", "failed": "bold red", "unknown": "yellow"}
WIDEST = max(map(len, CHECKS))


def report_json(
    plan: CanaryPlan, result: CanaryResult, at: float, names: Collection[str]
) -> dict[str, Any]:
    """Return what `seerd canary --json` prints. `names`: what must not be in it."""
    results = [one.result for one in result.outcomes]

    def clean(text: str) -> str | None:
        return redacted(text, names) or None

    # Only these texts are others' words. What AWS itself has named, the region and the types,
    # identifies nobody, and is wanted.
    return {
        "region": plan.cluster.region,
        "seerd": SEERD,
        "python": platform.python_version(),
        "system": platform.system(),
        "day": datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d"),
        "passed": results.count("passed"),
        "failed": results.count("failed"),
        "unknown": results.count("unknown"),
        "usd": round(result.usd, 4),
        "most_usd": round(plan.most_usd, 4),
        "cap_usd": cap_usd(gpu=plan.gpu is not None),
        "checks": [
            {
                "check": one.check,
                "result": one.result,
                "proves": CHECKS[one.check],
                "said": clean(one.said) or "",
                "seconds": None if one.seconds is None else round(one.seconds, 3),
                "code": clean(one.code),
                "status": one.status,
            }
            for one in result.outcomes
        ],
        "launches": [
            _launch(kind, launch) | {"end": clean(launch.reason)}
            for kind, launch in result.launches
        ],
    }


def write_report(home: Path, run: str, report: dict[str, Any]) -> Path:
    """Write the JSON into the folder of all runs, and return its file. Raises `UsageError` if it
    cannot be written.
    """
    path = home / "canaries" / f"{run}.json"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(dumps(report, indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return path


def _launch(kind: str, launch: WatchedLaunch) -> dict[str, Any]:
    def between(begin: float | None, end: float | None) -> float | None:
        return None if begin is None or end is None else round(end - begin, 3)

    steps = {f"{name}_s": between(launch.asked, getattr(launch, name)) for _, name in STEPS}
    shutting_down_s = between(launch.ending, launch.gone)
    return {"instance_type": kind, **steps, "shutting_down_s": shutting_down_s}


def canary_view(report: dict[str, Any]) -> RenderableType:
    """Draw the table, with its sums."""
    text = Text()
    for one in report["checks"]:
        took = "" if one["seconds"] is None else format_duration(round(one["seconds"], 1))
        text.append(f"{one['result']:<8}", style=STYLES[one["result"]])
        text.append(f" {one['check']:<{WIDEST}} {took:>8}  ")
        head, *more = one["said"].splitlines() or [""]
        why = f" ({one['code']}, status {one['status']})" if one["code"] else ""
        text.append(f"{head}{why}\n")
        for line in more:
            text.append(f"{'':<{WIDEST + 20}}{line}\n", style="dim")
    counts = f"{report['passed']} passed, {report['failed']} failed, {report['unknown']} unknown"
    cost = f"about ${report['usd']:.3f}, of at most ${report['most_usd']:.3f}"
    return Group(text, Text(f"{counts}; {cost}"))


def kept_times(plan: CanaryPlan, result: CanaryResult, at: float) -> list[KeptTimes]:
    """Return the times that plans use from now on, for each type that came far enough."""
    kept = []
    for kind in dict.fromkeys(kind for kind, _ in result.launches):
        ready = [m for name, m in result.launches if name == kind and m.agent and m.running]
        import_s: float | None = 0.0
        if plan.gpu is not None and kind == plan.gpu.type:
            # No trial begins before torch is imported; if that failed, the boot is not known.
            cold = [one.result for one in result.outcomes if one.check == "torch, cold"]
            import_s = result.torch_s if cold == ["passed"] else None
        if ready and import_s is not None:
            kept.append(
                KeptTimes(
                    version=VERSION,
                    region=plan.cluster.region or "",
                    instance_type=kind,
                    measured_at=datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    pending_s=tuple(_between(m.asked, m.running) for m in ready),
                    boot_s=tuple(_between(m.running, m.agent) + import_s for m in ready),
                    release_s=tuple(result.release),
                )
            )
    return kept


def _between(begin: float | None, end: float | None) -> float:
    return max(0.0, (end or 0.0) - (begin or 0.0))
