"""The findings of `seerd doctor`: one line for each check, its level, and what to do. A missing
permission has IAM's name, and is a problem only if a run needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from seerd.backends.base import Machine, Quote
from seerd.spec.spec import Spec

Level = Literal["ok", "warning", "problem"]
POLICY = "`seerd doctor SPEC --policy` prints what must be allowed"


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


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that a plan wants at a time."""

    instances: int
    largest: int  # GPUs of its largest trial


@dataclass(frozen=True, slots=True)
class Case:
    """What is examined."""

    spec: Spec  # a spec that could be read
    home: Path  # the folder of all runs
    machine: Machine
    # plans with what is offered (None: what is known without asking); returns the plan's peak,
    # None without a plan, and the finding about it
    peak: Callable[[Quote | None], tuple[Peak | None, Finding]]
