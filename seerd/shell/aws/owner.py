"""Who owns the instances.

The one rule: the owner is who AWS says the credentials belong to, not who is logged in on this
machine.
"""

from __future__ import annotations

from seerd.shell.aws.cloud import Cloud


async def caller(cloud: Cloud, *, patience_s: float = 60.0) -> str:
    """Ask for the ARN of these credentials, for the owner's tag.

    Raises `AwsError` if there are none, or if they are not valid.
    """
    answer = await cloud.ask("sts", "get_caller_identity", patience_s=patience_s)
    return str(answer["Arn"])
