"""What `seerd doctor` finds of a store that agents reach by URLs, and of each source of data."""

from __future__ import annotations

from collections.abc import Sequence

from seerd.aws.rights import denied_action
from seerd.backends.examining import POLICY, Finding
from seerd.errors import SeerdError
from seerd.spec.values import Data
from seerd.stores.base import Trouble
from seerd.stores.by_address import by_address


async def findings(store: str, data: Sequence[Data], region: str | None) -> list[Finding]:
    """Check them. A missing permission is named as IAM names it. `store`: empty if none is named;
    `region`: None if it is the environment's.
    """
    if not store or not by_address(store).by_urls:
        return []
    well = f"{store} can be written, read, listed and cleared, in parts too"
    try:
        found = [_finding("store", await by_address(store).troubles(region), well)]
    except SeerdError as error:
        found = [Finding("store", "problem", str(error))]
    for source in dict.fromkeys(one.source for one in data):
        troubles = await by_address(source).data_troubles(region)
        found.append(_finding(f"data {source}", troubles, "it can be listed and read"))
    return found


def _finding(check: str, troubles: Sequence[Trouble], well: str) -> Finding:
    if not troubles:
        return Finding(check, "ok", well)
    denied = [trouble for trouble in troubles if trouble.action]
    missing = tuple(dict.fromkeys(denied_action(one.what, one.action) for one in denied))
    words = next((f"; AWS says: {one.said}" for one in denied if one.said), "")
    found = [trouble.what for trouble in troubles if not trouble.action]
    found += [f"not permitted: {', '.join(missing)}{words}"] if missing else []
    return Finding(check, "problem", "; ".join(found), POLICY if missing else "", missing)
