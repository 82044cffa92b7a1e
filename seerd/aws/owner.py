"""Who owns the instances.

The one rule: the owner is who AWS says the credentials belong to, not who is logged in on this
machine; and it is the same in every process of theirs.
"""

from __future__ import annotations

import re

from seerd.aws.cloud import Cloud

SSO = "AWSReservedSSO_"
"""How roles of IAM Identity Center begin
(docs.aws.amazon.com/singlesignon/latest/userguide/referencingpermissionsets.html). Their sessions
bear the person's name.
"""

_ASSUMED = re.compile(r"(arn:[^:]*:sts::[^:]*:assumed-role/([^/]+))/.*", re.DOTALL)


async def caller(cloud: Cloud, *, patience_s: float = 60.0) -> str:
    """Ask who these credentials belong to, for the owner's tag.

    Raises `AwsError` if there are none, or if they are not valid.
    """
    answer = await cloud.ask("sts", "get_caller_identity", patience_s=patience_s)
    return owner_of(str(answer["Arn"]))


def owner_of(arn: str) -> str:
    """Return whose credentials these are: their ARN without what is new in every process.

    Of a role that is the session's name: botocore makes one of the time unless a profile sets
    `role_session_name` (github.com/boto/botocore/blob/develop/botocore/credentials.py), and that of
    an instance's role is the instance's id
    (docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_variables.html). Only with IAM
    Identity Center it is the person. An owner is its own owner.
    """
    match = _ASSUMED.fullmatch(arn)
    return arn if match is None or match[2].startswith(SSO) else match[1]
