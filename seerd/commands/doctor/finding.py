"""What doctor finds: one line for each check, how bad it is, and what to do about it.

The one rule: a finding that is no problem never asks for anything to be done before a run. What is
not permitted is named as IAM names it, and is a problem only if a run needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from seerd.errors import CloudError, UsageError

Level = Literal["ok", "warning", "problem"]
POLICY = "`seerd doctor SPEC --policy` prints what must be allowed"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str  # what was checked
    level: Level  # how bad it is
    found: str  # the result, in words
    todo: str = ""  # what the person can do; empty: nothing
    missing: tuple[str, ...] = ()  # permissions that are missing, as IAM names them
    cloud: bool = True  # whether AWS or a host says so, and not the spec


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
