"""The findings of `seerd doctor` in AWS: answers, and refusals with the missing permission."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from seerd.aws.errors import AwsError, ErrorKind
from seerd.aws.policy import denied_action
from seerd.backends.ec2.keys import Ec2Keys
from seerd.backends.examining import POLICY, Case, Finding, Level, Notes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ec2Case(Case):
    """What is examined in AWS."""

    keys: Ec2Keys


@dataclass(slots=True)
class AwsNotes(Notes):
    """The findings so far."""

    def refused(self, check: str, action: str, error: AwsError, level: Level = "problem") -> None:
        """Note that AWS has refused a call which needs the permission `action`."""
        if error.kind is not ErrorKind.DENIED:
            self.note(check, level, str(error))
            return
        named = denied_action(str(error), action)
        also = "" if level == "problem" else "; a run can do without"
        says = f"; AWS says: {error.said}" if error.said else ""
        found = f"not permitted: {named}{also}{says}"
        self.lines.append(Finding(check, level, found, POLICY, (named,)))

    async def ask(
        self, check: str, action: str, work: Awaitable[T], denied: Level = "problem"
    ) -> T | None:
        """Return AWS's answer; note a refusal and return None. `denied`: the level of a denial."""
        try:
            return await work
        except AwsError as error:
            level = denied if error.kind is ErrorKind.DENIED else "problem"
            self.refused(check, action, error, level)
            return None
