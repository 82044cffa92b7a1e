"""What the credentials permit, asked without doing it.

The one rule: nothing is changed. EC2 checks permissions before it finds that a call is only a test
(`DryRun`), and everything else here only reads.
"""

from __future__ import annotations

import re
from typing import Any

from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind

NOBODY = "i-00000000000000000"
NOTHING = "vol-00000000000000000"
"""An instance and a volume that do not exist. A policy that goes by tags denies what has no tags;
the one that seerd prints allows these two by name, so that asking about them shows whether it is in
force.
"""

SPOT_SERVICE, SPOT_ROLE = "spot.amazonaws.com", "AWSServiceRoleForEC2Spot"
"""The role under which EC2 gives out spot instances. An account has it from its first spot request
on, if whoever makes that may make the role
(docs.aws.amazon.com/AWSEC2/latest/UserGuide/service-linked-roles-spot-instance-requests.html).
"""

_ACTION = re.compile(r"perform:? ([a-z0-9-]+:[A-Za-z]+)")
_ALLOWED = frozenset({"DryRunOperation"})


def denied_action(text: str, asked: str) -> str:
    """Find the permission that a refusal names; where it names none, return `asked`, what was
    called.

    A launch, for example, may lack only the right to tag.
    """
    match = _ACTION.search(text)
    return match[1] if match else asked


async def has_spot_role(cloud: Cloud) -> bool:
    """Return whether the account has the role for spot instances. Raises `AwsError`."""
    try:
        await cloud.ask("iam", "get_role", patience_s=15.0, RoleName=SPOT_ROLE)
    except AwsError as error:
        if error.kind is ErrorKind.GONE:
            return False
        raise
    return True


async def dry_run(cloud: Cloud, operation: str, **request: Any) -> AwsError | None:
    """Ask why EC2 would refuse this call; None if permissions and parameters are right. A dry run
    looks at neither capacity nor quota
    (docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html).

    An error because the call is about something that does not exist means that it is permitted.
    """
    try:
        await cloud.ask("ec2", operation, patience_s=15.0, DryRun=True, **request)
    except AwsError as error:
        return None if error.code in _ALLOWED or error.kind is ErrorKind.GONE else error
    return None
