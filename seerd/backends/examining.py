"""The findings of `seerd doctor`: one line for each check, its level, and what to do. A missing
permission has IAM's name, and is a problem only if a run needs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from seerd.backends.base import Machine, Quote
from seerd.errors import SeerdError
from seerd.spec.spec import Spec
from seerd.spec.values import Data
from seerd.stores.base import Trouble
from seerd.stores.by_address import by_address

Level = Literal["ok", "warning", "problem"]
POLICY = "`seerd doctor SPEC --policy` prints what must be allowed"
_ACTION = re.compile(r"perform:? ([a-z0-9-]+:[A-Za-z]+)")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str  # what was checked
    level: Level  # how bad it is
    found: str  # the result, in words
    todo: str = ""  # what the user can do; empty: nothing
    missing: tuple[str, ...] = ()  # permissions that are missing, as IAM names them
    cloud: bool = True  # whether AWS or a host says so, and not the spec


@dataclass(slots=True)
class Notes:
    """The findings so far."""

    lines: list[Finding] = field(default_factory=list)
    cloud: bool = True  # as for `Finding`

    def ok(self, check: str, found: str) -> None:
        """Note that a check found nothing wrong."""
        self.note(check, "ok", found)

    def warn(self, check: str, found: str, todo: str = "") -> None:
        """Note something that is wrong but does not keep a run from beginning."""
        self.note(check, "warning", found, todo)

    def problem(self, check: str, found: str, todo: str = "") -> None:
        """Note something that would make a run fail."""
        self.note(check, "problem", found, todo)

    def note(self, check: str, level: Level, found: str, todo: str = "") -> None:
        """Note a result of this level."""
        self.lines.append(Finding(check, level, found, todo, cloud=self.cloud))


def of_engines(works: Sequence[str]) -> tuple[Level, str, str]:
    """Return what it means that these engines of containers work where trials need one, and what
    the user can do.
    """
    if works:
        return "ok", f"{works[0]} runs trials in containers", ""
    found = "neither Podman, Docker nor Apptainer works, and train.container needs one"
    return "problem", found, "install one; if one is there, `podman info` or `docker info` says why"


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that a plan wants at a time."""

    instances: int
    largest: int  # GPUs of its largest trial, rounded up


@dataclass(frozen=True, slots=True)
class Case:
    """What is examined."""

    spec: Spec  # a spec that could be read
    home: Path  # the folder of all runs
    machine: Machine
    # plans with what is offered (None: what is known without asking); returns the plan's peak,
    # None without a plan, and the finding about it
    peak: Callable[[Quote | None], tuple[Peak | None, Finding]]


def denied_action(text: str, asked: str) -> str:
    """Return the permission that a refusal names, perhaps only that to tag; else `asked`."""
    match = _ACTION.search(text)
    return match[1] if match else asked


async def store_findings(store: str, data: Sequence[Data], region: str | None) -> list[Finding]:
    """Check store (empty: none) and data; `region` None: the environment's."""
    if not store or not by_address(store).by_urls:
        return []
    well = f"{store} can be written, read, listed and cleared, in parts too"
    try:
        results = [_finding("store", await by_address(store).troubles(region), well)]
    except SeerdError as error:
        results = [Finding("store", "problem", str(error))]
    for source in dict.fromkeys(item.source for item in data):
        troubles = await by_address(source).data_troubles(region)
        results.append(_finding(f"data {source}", troubles, "it can be listed and read"))
    return results


def _finding(check: str, troubles: Sequence[Trouble], well: str) -> Finding:
    if not troubles:
        return Finding(check, "ok", well)
    denied = [trouble for trouble in troubles if trouble.action]
    missing = tuple(
        dict.fromkeys(denied_action(trouble.what, trouble.action) for trouble in denied)
    )
    words = next((f"; AWS says: {trouble.said}" for trouble in denied if trouble.said), "")
    causes = [trouble.what for trouble in troubles if not trouble.action]
    causes += [f"not permitted: {', '.join(missing)}{words}"] if missing else []
    return Finding(check, "problem", "; ".join(causes), POLICY if missing else "", missing)
