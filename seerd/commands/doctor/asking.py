"""How AWS is asked: what it says, or a line about why it does not say it.

The one rule: what is not permitted is named as IAM has it, and is a problem only where a run needs it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

from seerd.commands.doctor.finding import Finding, Level
from seerd.commands.doctor.store import POLICY
from seerd.shell.aws.errors import AwsError, Kind
from seerd.shell.aws.rights import denied_action

T = TypeVar("T")


@dataclass(slots=True)
class Notes:
    """The lines so far."""

    lines: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """This line, once."""
        if finding not in self.lines:
            self.lines.append(finding)

    def ok(self, check: str, found: str) -> None:
        """All is well."""
        self.lines.append(Finding(check, "ok", found))

    def warn(self, check: str, found: str, todo: str = "") -> None:
        """A run may begin all the same."""
        self.lines.append(Finding(check, "warning", found, todo))

    def problem(self, check: str, found: str, todo: str = "") -> None:
        """A run would fail."""
        self.lines.append(Finding(check, "problem", found, todo))

    def refused(self, check: str, action: str, error: AwsError, level: Level = "problem") -> None:
        """AWS has not done what was asked, by a call that needs the permission `action`."""
        if error.kind is not Kind.DENIED:
            self.lines.append(Finding(check, level, str(error)))
            return
        named = denied_action(str(error), action)
        also = "" if level == "problem" else "; a run can do without"
        self.lines.append(Finding(check, level, f"not permitted: {named}{also}", POLICY, (named,)))

    async def ask(self, check: str, action: str, work: Awaitable[T], denied: Level = "problem") -> T | None:
        """What AWS answers; None, and a line, if it does not. `denied`: how bad it is if that is not permitted."""
        try:
            return await work
        except AwsError as error:
            self.refused(check, action, error, denied if error.kind is Kind.DENIED else "problem")
            return None
