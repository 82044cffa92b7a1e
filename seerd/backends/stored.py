"""What `seerd doctor` finds of a store that agents reach by URLs, and of each source of data."""

from __future__ import annotations

from collections.abc import Sequence

from seerd.aws.policy import denied_action
from seerd.backends.examining import POLICY, Finding
from seerd.errors import SeerdError
from seerd.spec.values import Data
from seerd.stores.base import Trouble
from seerd.stores.by_address import by_address


async def findings(store: str, data: Sequence[Data], region: str | None) -> list[Finding]:
    """Check store (empty: none) and data; `region` None: the environment's."""
    if not store or not by_address(store).by_urls:
        return []
    well = f"{store} can be written, read, listed and cleared, in parts too"
    try:
        results = [_finding("store", await by_address(store).troubles(region), well)]
    except SeerdError as error:
        results = [Finding("store", "problem", str(error))]
    for source in dict.fromkeys(item.source for item in data):
        troubles = await by_address(source).data_troubles(region)
        results.append(_finding(f"data {source}", troubles, "it can be listed and read"))
    return results


def _finding(check: str, troubles: Sequence[Trouble], well: str) -> Finding:
    if not troubles:
        return Finding(check, "ok", well)
    denied = [trouble for trouble in troubles if trouble.action]
    missing = tuple(
        dict.fromkeys(denied_action(trouble.what, trouble.action) for trouble in denied)
    )
    words = next((f"; AWS says: {trouble.said}" for trouble in denied if trouble.said), "")
    causes = [trouble.what for trouble in troubles if not trouble.action]
    causes += [f"not permitted: {', '.join(missing)}{words}"] if missing else []
    return Finding(check, "problem", "; ".join(causes), POLICY if missing else "", missing)
