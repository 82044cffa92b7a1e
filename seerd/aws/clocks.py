"""Who the credentials belong to, and how far this machine's clock is from that of AWS.

The one rule: AWS refuses requests that are signed with a clock more than five minutes off
(docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-troubleshooting.html). Its refusals bear
the right time, so that is read from them too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError

PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Introduction:
    """What AWS says of these credentials."""

    arn: str  # whose they are; empty if AWS does not say
    account: str  # their account; empty if AWS does not say
    # seconds that this machine's clock is ahead of AWS's, to about one; None: no answer
    ahead_s: float | None
    error: AwsError | None = None  # why AWS does not say; None if it does


async def introduce(cloud: Cloud) -> Introduction:
    """Ask AWS who these credentials belong to. Raises nothing: a failure is in the answer."""
    before = time.time()
    try:
        answer = await cloud.ask("sts", "get_caller_identity", patience_s=PATIENCE_S)
    except AwsError as error:
        response: Any = getattr(error.__cause__, "response", None) or {}
        return Introduction("", "", _ahead_s(response, (before + time.time()) / 2), error)
    return Introduction(
        str(answer["Arn"]), str(answer["Account"]), _ahead_s(answer, (before + time.time()) / 2)
    )


def _ahead_s(answer: Mapping[str, Any], ours: float) -> float | None:
    theirs = date_of(answer)
    return None if theirs is None else ours - theirs


def date_of(answer: Mapping[str, Any]) -> float | None:
    """Return the time that AWS names in an answer, seconds since 1970; None if it names none."""
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:  # the header has whole seconds
        return parsedate_to_datetime(headers["date"]).timestamp() + 0.5
    except (KeyError, ValueError):
        return None
