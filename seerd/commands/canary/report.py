"""The report of a canary, for the user and for an issue, without accounts, ARNs, addresses, paths,
names and keys: rather too much is taken out than too little. The table is made of the JSON.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import socket
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from json import dumps
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from seerd.commands.canary.expedition import CanaryResult
from seerd.commands.canary.launching import CanaryPlan
from seerd.commands.canary.outcome import CHECKS, STEPS, cap_usd
from seerd.commands.common import writing
from seerd.planning.cloud_times import VERSION, KeptTimes
from seerd.stores.s3.address import Address
from seerd.units import format_duration
from seerd.version import VERSION as SEERD

STYLES = {"passed": "green", "failed": "bold red", "unknown": "yellow", "untried": "dim"}
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
        "untried": results.count("untried"),
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
            {
                "instance_type": kind,
                **{f"{name}_s": _s(launch.asked, getattr(launch, name)) for _, name in STEPS},
                "shutting_down_s": _s(launch.ending, launch.gone),
                "end": clean(launch.reason),
            }
            for kind, launch in result.launches
        ],
    }


def _s(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else round(end - begin, 3)


def write_report(home: Path, run: str, report: dict[str, Any]) -> Path:
    """Write the JSON into the folder of all runs, and return its file. Raises `UsageError` if it
    cannot be written.
    """
    path = home / "canaries" / f"{run}.json"
    with writing(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(dumps(report, indent=2) + "\n")
    return path


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
    counts += f", {report['untried']} not tried"
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
                    pending_s=tuple(max(0.0, _s(m.asked, m.running) or 0.0) for m in ready),
                    boot_s=tuple(max(0.0, _s(m.running, m.agent) or 0.0) + import_s for m in ready),
                    release_s=tuple(result.release),
                )
            )
    return kept


# names that identify nobody
COMMON = frozenset(
    {"", "-", ".", "..", "root", "seerd", "ubuntu", "user", "runs", "home", "python", "python3"}
)
# Shorter names are not taken out; those below `SHORT_NAME` only as whole words.
SHORTEST_NAME, SHORT_NAME = 2, 6

# a character of a path: punctuation belongs to it only if the path goes on after it
_INNER = r"(?:[^\s\"'<>|;,:()\[\]{}]|[;,:()\[\]{}](?=[^\s\"']))"
_DOMAINS = (
    "local|localdomain|internal|intranet|lan|corp|home|example|test|invalid|com|net|org|io|dev|ai|"
    "co|app|tech|cloud|edu|gov|info|biz|xyz|eu|us|uk|de|fr|nl|ch|at|es|it|se|no|fi|dk|pl|ca|au|jp|"
    "cn|in|br|kr"
)
_HOST = r"(?<![\w.-])\.*[\w-]+(?:\.[\w-]+)*\."
_NAMED_HOST = rf"{_HOST}(?:{_DOMAINS})(?![\w-])(?:\.[\w-]+)*(?:[:/]{_INNER}*)?"
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("URL", re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+", re.IGNORECASE)),
    ("ARN", re.compile(r"\barn:[a-z-]*:(?:[^\s\"',;)\]}]|,(?=\S))*", re.IGNORECASE)),
    ("key", re.compile(r"(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA|ASCA|APKA)[A-Z0-9]{12,}")),
    ("key", re.compile(r"\balias/[\w/-]+")),
    ("address", re.compile(r"\bip-\d{1,3}(?:-\d{1,3}){3}[\w.-]*")),
    ("host", re.compile(_NAMED_HOST, re.IGNORECASE)),
    ("host", re.compile(rf"{_HOST}[\w-]+:\d{{1,5}}(?!\d)")),
    ("mail", re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*")),
    ("address", re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?:/\d{1,2})?(?![\d.]*\d)")),
    ("address", re.compile(r"(?i)(?<![\w:])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])")),
    ("UUID", re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)),
    ("id", re.compile(r"(?<![a-z0-9])[a-z]{1,10}(?:-[a-z]{1,10})?-[0-9a-f]{8,17}(?![0-9a-f])")),
    ("account", re.compile(r"\d{12}|(?<!\d)\d{4}-\d{4}-\d{4}(?!\d)")),
    ("digest", re.compile(r"[0-9a-f]{32,}", re.IGNORECASE)),
    ("digest", re.compile(r"SHA256:[A-Za-z0-9+/=]+")),
    ("path", re.compile(rf"(?<![\w./~>])(?:~\w*|\.{{1,2}})?/(?=[\w.~-]){_INNER}+")),
    ("path", re.compile(r"(?<=')/[\w.~-][^'\n]*(?=')|(?<=\")/[\w.~-][^\"\n]*(?=\")")),
)


def redacted(text: str, names: Iterable[str] = ()) -> str:
    """Return the text without what identifies an account, and without these names, each replaced by
    what it is, in angle brackets.
    """
    patterns = list(_PATTERNS)
    for name in {name for name in names if name not in COMMON and len(name) >= SHORTEST_NAME}:
        word = re.escape(name)
        if len(name) < SHORT_NAME:
            word = rf"(?<![A-Za-z0-9]){word}(?![A-Za-z0-9])"
        # also what is below it, if it is that of a folder
        patterns.append(("name", re.compile(rf"{word}(?:/{_INNER}+)?")))
    places = (
        (*match.span(), what) for what, pattern in patterns for match in pattern.finditer(text)
    )
    # What overlaps is joined, so that no part of a name stays because another looked like something
    # else; the longer one says what both are.
    joined: list[tuple[int, int, str]] = []
    for begin, end, what in sorted(places, key=lambda place: (place[0], -place[1], place[2])):
        if not joined or begin >= joined[-1][1]:
            joined.append((begin, end, what))
        else:
            first, last, longer = joined[-1]
            longer = what if end - begin > last - first else longer
            joined[-1] = (first, max(last, end), longer)
    for begin, end, what in reversed(joined):
        text = f"{text[:begin]}<{what}>{text[end:]}"
    return text


def names_of(plan: CanaryPlan) -> Iterator[str]:
    """Yield what must not be shown to strangers, though it looks like any other word."""
    cluster, train = plan.cluster, plan.spec.train
    if cluster.store:
        store = Address.parse(cluster.store)
        yield from (store.bucket, store.prefix)
    yield from (plan.run, plan.owner, plan.arn, plan.spec.name)
    yield from (cluster.image, cluster.key or "", *cluster.subnets, *cluster.security_groups)
    yield from (*cluster.tags, *cluster.tags.values())
    for source in [Address.parse(one.source) for one in train.data]:
        yield from (source.bucket, source.prefix)
    for path in (train.script, str(train.source), train.python or ""):
        yield from (path, Path(path).name)
    yield os.environ.get("AWS_PROFILE", "")
    # What comes after the account: `assumed-role/ROLE/SESSION`, `user/PATH/NAME`.
    yield from plan.arn.rpartition(":")[2].split("/")[1:]
    yield from (str(plan.home.path), str(plan.asked.path.resolve().parent), socket.gethostname())
    # A number without an entry in /etc/passwd has neither a name nor a folder.
    with contextlib.suppress(KeyError, ImportError, OSError):
        yield getpass.getuser()
    with contextlib.suppress(RuntimeError):
        yield str(Path.home())
