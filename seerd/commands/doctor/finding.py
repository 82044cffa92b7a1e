"""What doctor finds: one line a check, how bad it is, and what to do about it.

The one rule: pure; a finding that is no problem never asks for anything to be done before a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from seerd.errors import CloudError, UsageError

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One check. `todo`: what the person can do; `missing`: permissions, as IAM names them; `cloud`: whether AWS or a host says so, not the
    spec.
    """

    check: str
    level: Level
    found: str
    todo: str = ""
    missing: tuple[str, ...] = ()
    cloud: bool = True


def exit_code(findings: Iterable[Finding]) -> int:
    """0 without a problem; 2 if the spec or this machine has one, 5 if it is the cloud's alone."""
    problems = [finding for finding in findings if finding.level == "problem"]
    if not problems:
        return 0
    return CloudError.exit_code if all(finding.cloud for finding in problems) else UsageError.exit_code


def missing(findings: Iterable[Finding]) -> list[str]:
    """All permissions that are missing, each once."""
    return sorted({action for finding in findings for action in finding.missing})


def findings_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """What `seerd doctor --json` prints."""
    levels = [finding.level for finding in findings]
    return {
        "problems": levels.count("problem"),
        "warnings": levels.count("warning"),
        "missing": missing(findings),
        "checks": [
            {"check": f.check, "level": f.level, "found": f.found, "todo": f.todo or None, "missing": list(f.missing)}
            for f in findings
        ],
    }
