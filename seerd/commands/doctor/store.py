"""The buckets of checkpoints and of data.

The one rule: a missing permission is named as IAM names it.
"""

from __future__ import annotations

from collections.abc import Sequence

from seerd.aws.rights import denied_action
from seerd.commands.doctor.finding import POLICY, Finding
from seerd.errors import SeerdError
from seerd.spec.values import Data
from seerd.stores.base import Trouble
from seerd.stores.by_address import by_address
from seerd.stores.s3.client import SAYS
from seerd.stores.s3.rights import check_data


async def findings(store: str, data: Sequence[Data], region: str | None) -> list[Finding]:
    """Check a store that agents reach by URLs, and each source of data."""
    if not store or not by_address(store).by_urls:
        return []
    found = [await _store(store, region)]
    for source in dict.fromkeys(one.source for one in data):
        troubles = await check_data(source, region)
        found.append(_told(f"data {source}", troubles, "it can be listed and read"))
    return found


def _said(denied: Sequence[Trouble]) -> str:
    """Return what AWS says of the first of these, in its own words."""
    words = (one.what.partition(SAYS)[2] for one in denied)
    return next((f"{SAYS}{said}" for said in words if said), "")


async def _store(store: str, region: str | None) -> Finding:
    try:
        troubles = await by_address(store).troubles(region)
    except SeerdError as error:
        return Finding("store", "problem", str(error))
    return _told(
        "store", troubles, f"{store} can be written, read, listed and cleared, in parts too"
    )


def _told(check: str, troubles: Sequence[Trouble], well: str) -> Finding:
    if not troubles:
        return Finding(check, "ok", well)
    denied = [trouble for trouble in troubles if trouble.action]
    missing = tuple(dict.fromkeys(denied_action(one.what, one.action) for one in denied))
    found = [trouble.what for trouble in troubles if not trouble.action]
    found += [f"not permitted: {', '.join(missing)}{_said(denied)}"] if missing else []
    return Finding(check, "problem", "; ".join(found), POLICY if missing else "", missing)
