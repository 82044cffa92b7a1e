"""API calls that go wrong on order: refused, failed, or carried out with the reply lost.

The one rule: a fault is a rule with an action, a number of times or a rate, and nothing else; what
it does to the caller is AWS's answer.
"""

from __future__ import annotations

import fnmatch
import random
from dataclasses import dataclass, field

from bench.testbed.rig.wire import AwsError

THROTTLED = {"ec2": "RequestLimitExceeded", "s3": "SlowDown"}
DENIED = {"ec2": "UnauthorizedOperation", "s3": "AccessDenied"}
NOT_ALLOWED = (
    "User: arn:aws:iam::123456789012:user/rig is not authorized to perform: {service}:{action}"
)
DENIED_BY = (
    "You are not authorized to perform this operation. User: "
    "arn:aws:iam::123456789012:user/rig is not authorized to perform: {{service}}:{{action}} on "
    "resource: * with an explicit deny in a {by}"
)
MESSAGES = {
    "RequestLimitExceeded": "Request limit exceeded.",
    "SlowDown": "Please reduce your request rate.",
    "ThrottlingException": "Rate exceeded",
    "InternalError": "An internal error has occurred",
    "UnauthorizedOperation": f"You are not authorized to perform this operation. {NOT_ALLOWED}",
    "AccessDenied": NOT_ALLOWED,
    "AccessDeniedException": NOT_ALLOWED,
    "InsufficientInstanceCapacity": (
        "We currently do not have sufficient capacity in the zone you requested."
    ),
    "VcpuLimitExceeded": (
        "You have requested more vCPU capacity than your current vCPU limit "
        "allows for the instance bucket."
    ),
    "RequestExpired": "Request has expired.",
    "AuthFailure": "AWS was not able to validate the provided access credentials",
}
PERMISSIONS = {
    "CreateMultipartUpload": "PutObject",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "ListObjects": "ListBucket",
    "ListObjectsV2": "ListBucket",
}
"""What IAM calls a permission whose call has another name
(docs.aws.amazon.com/service-authorization/latest/reference/list_amazons3.html).
"""
THROTTLE, DENY, LOST = "throttle", "deny", "lost reply"


@dataclass(slots=True)
class Fault:
    """`action` may have wildcards: "s3:Put*", "RunInstances". `code`: AWS's, or throttle, deny,
    lost reply. `times`: None for always.
    """

    action: str
    code: str
    message: str = ""
    times: int | None = None
    rate: float = 1.0
    status: int | None = None


@dataclass(slots=True)
class Faults:
    """The faults that are on. The same seed gives the same choices."""

    rules: list[Fault] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    def draw(self, service: str, action: str) -> Fault | None:
        """The fault of this call, if it has one; it is used up by that."""
        for rule in self.rules:
            if (
                not _matches(rule.action, service, action)
                or rule.times == 0
                or self.chance.random() >= rule.rate
            ):
                continue
            if rule.times is not None:
                rule.times -= 1
            return rule
        return None


def as_error(fault: Fault, service: str, action: str) -> AwsError:
    """What AWS would answer."""
    code = fault.code
    if code == THROTTLE:
        code = THROTTLED.get(service, "ThrottlingException")
    elif code == DENY:
        code = DENIED.get(service, "AccessDeniedException")
    text = (fault.message or MESSAGES.get(code, code)).format(
        service=service, action=PERMISSIONS.get(action, action)
    )
    return AwsError(code, text, fault.status)


def _matches(pattern: str, service: str, action: str) -> bool:
    return fnmatch.fnmatchcase(f"{service}:{action}", pattern if ":" in pattern else f"*:{pattern}")
