"""What doctor finds: one line a check, how bad it is, and what to do about it.

The one rule: a finding that is no problem never asks for anything to be done before a run; what is
not permitted is named as IAM has it, and is a problem only where a run needs it.
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
    """One check. `todo`: what the person can do; `missing`: permissions, as IAM names them;
    `cloud`: whether AWS or a host says so, not the spec.
    """

    check: str
    level: Level
    found: str
    todo: str = ""
    missing: tuple[str, ...] = ()
    cloud: bool = True


@dataclass(slots=True)
class Notes:
    """The lines so far."""

    lines: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Note this line, once."""
        if finding not in self.lines:
            self.lines.append(finding)

    def ok(self, check: str, found: str) -> None:
        """Note that all is well."""
        self.lines.append(Finding(check, "ok", found))

    def warn(self, check: str, found: str, todo: str = "") -> None:
        """Note what is wrong where a run may begin all the same."""
        self.lines.append(Finding(check, "warning", found, todo))

    def problem(self, check: str, found: str, todo: str = "") -> None:
        """Note what a run would fail of."""
        self.lines.append(Finding(check, "problem", found, todo))

    def refused(self, check: str, action: str, error: AwsError, level: Level = "problem") -> None:
        """Note that AWS has refused a call that needs the permission `action`."""
        if error.kind is not ErrorKind.DENIED:
            self.lines.append(Finding(check, level, str(error)))
            return
        named = denied_action(str(error), action)
        also = "" if level == "problem" else "; a run can do without"
        self.lines.append(Finding(check, level, f"not permitted: {named}{also}", POLICY, (named,)))

    async def ask(
        self, check: str, action: str, work: Awaitable[T], denied: Level = "problem"
    ) -> T | None:
        """Ask AWS; None, and a line, if it does not answer.

        denied  how bad it is if that is not permitted
        """
        try:
            return await work
        except AwsError as error:
            self.refused(
                check, action, error, denied if error.kind is ErrorKind.DENIED else "problem"
            )
            return None


def exit_code(findings: Iterable[Finding]) -> int:
    """Find the exit code: 0 without a problem, 5 if all are the cloud's, else 2."""
    problems = [finding for finding in findings if finding.level == "problem"]
    if not problems:
        return 0
    return (
        CloudError.exit_code if all(finding.cloud for finding in problems) else UsageError.exit_code
    )


def missing(findings: Iterable[Finding]) -> list[str]:
    """List the permissions that are missing, each once."""
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
