"""What doctor finds: one line for each check, how bad it is, and what to do about it.

The one rule: a finding that is no problem never asks for anything to be done before a run. What is
not permitted is named as IAM names it, and is a problem only if a run needs it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from seerd.errors import CloudError, UsageError
from seerd.shell.aws.errors import AwsError, ErrorKind
from seerd.shell.aws.rights import denied_action

Level = Literal["ok", "warning", "problem"]
T = TypeVar("T")
POLICY = "`seerd doctor SPEC --policy` prints what must be allowed"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    check    what was checked
    level    how bad it is
    found    what was found
    todo     what the person can do; empty: nothing
    missing  permissions that are missing, as IAM names them
    cloud    whether AWS or a host says so, and not the spec
    """

    check: str
    level: Level
    found: str
    todo: str = ""
    missing: tuple[str, ...] = ()
    cloud: bool = True


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


def exit_code(findings: Iterable[Finding]) -> int:
    """Return the exit code: 0 without a problem, 5 if all problems are of the cloud, else 2."""
    problems = [finding for finding in findings if finding.level == "problem"]
    if not problems:
        return 0
    return (
        CloudError.exit_code if all(finding.cloud for finding in problems) else UsageError.exit_code
    )


def missing(findings: Iterable[Finding]) -> list[str]:
    """List the permissions that are missing, each once, in alphabetical order."""
    return sorted({action for finding in findings for action in finding.missing})


def findings_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Make what `seerd doctor --json` prints."""
    levels = [finding.level for finding in findings]
    return {
        "problems": levels.count("problem"),
        "warnings": levels.count("warning"),
        "missing": missing(findings),
        "checks": [
            {
                "check": f.check,
                "level": f.level,
                "found": f.found,
                "todo": f.todo or None,
                "missing": list(f.missing),
            }
            for f in findings
        ],
    }
