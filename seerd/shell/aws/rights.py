"""What the credentials may do, asked without doing it.

The one rule: EC2 checks permissions before it finds out that it was only asked (`DryRun`), and
everything else here only reads.
"""

from __future__ import annotations

import re
from typing import Any

from seerd.shell.aws.cloud import Cloud
from seerd.shell.aws.errors import AwsError, ErrorKind

NOBODY = "i-00000000000000000"
NOTHING = "vol-00000000000000000"
"""What does not exist. A policy that goes by tags denies what has no tags; the one that seerd
prints allows these two by name, so that asking about them shows whether it is in force.
"""

_ACTION = re.compile(r"perform:? ([a-z0-9-]+:[A-Za-z]+)")
_ALLOWED = frozenset({"DryRunOperation"})


def denied_action(text: str, asked: str) -> str:
    """The permission that a refusal names; `asked`: what was called, where it names none. A launch
    may lack the right to tag.
    """
    match = _ACTION.search(text)
    return match[1] if match else asked


async def dry_run(cloud: Cloud, operation: str, **request: Any) -> AwsError | None:
    """Why EC2 would not do this; None if it would. What is about something that is not there is
    permitted.
    """
    try:
        await cloud.ask("ec2", operation, patience_s=15.0, DryRun=True, **request)
    except AwsError as error:
        return None if error.code in _ALLOWED or error.kind is ErrorKind.GONE else error
    return None
