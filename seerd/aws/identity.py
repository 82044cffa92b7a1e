"""Whose credentials these are, and how far this machine's clock is from that of AWS. AWS refuses
requests that are signed with a clock more than five minutes off; refusals have AWS's time too
(docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-troubleshooting.html).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError

PATIENCE_S = 10.0
SSO = "AWSReservedSSO_"
"""How roles of IAM Identity Center begin
(docs.aws.amazon.com/singlesignon/latest/userguide/referencingpermissionsets.html). Their sessions
have the person's name.
"""

_ASSUMED = re.compile(r"(arn:[^:]*:sts::[^:]*:assumed-role/([^/]+))/.*", re.DOTALL)


async def caller(cloud: Cloud, *, patience_s: float = 60.0) -> str:
    """Return the owner of these credentials. Raises `AwsError` if they are invalid."""
    answer = await cloud.ask("sts", "get_caller_identity", patience_s=patience_s)
    return owner_of(str(answer["Arn"]))


def owner_of(arn: str) -> str:
    """Return the owner of credentials: their ARN without what is new in every process. For a role
    that is the session's name: botocore makes one of the time unless a profile sets
    `role_session_name` (github.com/boto/botocore/blob/develop/botocore/credentials.py), and for an
    instance's role it is the instance's id
    (docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_variables.html). Only with IAM
    Identity Center it is the person.
    """
    match = _ASSUMED.fullmatch(arn)
    return arn if match is None or match[2].startswith(SSO) else match[1]


@dataclass(frozen=True, slots=True)
class Introduction:
    """AWS's answer about these credentials."""

    arn: str  # whose they are; empty if AWS does not say
    account: str  # their account; empty if AWS does not say
    # seconds that this machine's clock is ahead of AWS's, to about one; None: no answer
    ahead_s: float | None
    error: AwsError | None = None  # why AWS does not say; None if it does


async def introduce(cloud: Cloud) -> Introduction:
    """Ask AWS for the owner of these credentials. Raises nothing: a failure is in the answer."""
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
