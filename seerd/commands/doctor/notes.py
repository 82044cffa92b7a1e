"""What doctor finds while it asks AWS: answers, and refusals with what is not permitted."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

from seerd.aws.errors import AwsError, ErrorKind
from seerd.aws.rights import denied_action
from seerd.commands.doctor.finding import POLICY, Finding, Level

T = TypeVar("T")


@dataclass(slots=True)
class Notes:
    """The findings so far."""

    lines: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Add a finding, unless it is there already."""
        if finding not in self.lines:
            self.lines.append(finding)

    def ok(self, check: str, found: str) -> None:
        """Note that a check found nothing wrong."""
        self.lines.append(Finding(check, "ok", found))

    def warn(self, check: str, found: str, todo: str = "") -> None:
        """Note something that is wrong but does not keep a run from beginning."""
        self.lines.append(Finding(check, "warning", found, todo))

    def problem(self, check: str, found: str, todo: str = "") -> None:
        """Note something that would make a run fail."""
        self.lines.append(Finding(check, "problem", found, todo))

    def refused(self, check: str, action: str, error: AwsError, level: Level = "problem") -> None:
        """Note that AWS has refused a call which needs the permission `action`."""
        if error.kind is not ErrorKind.DENIED:
            self.lines.append(Finding(check, level, str(error)))
            return
        named = denied_action(str(error), action)
        also = "" if level == "problem" else "; a run can do without"
        says = f"; AWS says: {error.said}" if error.said else ""
        found = f"not permitted: {named}{also}{says}"
        self.lines.append(Finding(check, level, found, POLICY, (named,)))

    async def ask(
        self, check: str, action: str, work: Awaitable[T], denied: Level = "problem"
    ) -> T | None:
        """Ask AWS; if it refuses, note that and return None.

        denied  how bad it is if the call is not permitted
        """
        try:
            return await work
        except AwsError as error:
            self.refused(
                check, action, error, denied if error.kind is ErrorKind.DENIED else "problem"
            )
            return None
