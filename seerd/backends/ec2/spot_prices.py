"""What spot instances of a run cost, zone by zone, and every change of it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from seerd.aws import prices
from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError
from seerd.aws.prices import SpotPrice
from seerd.backends.ec2.offer import PRICES_S
from seerd.clock import wall


class SpotPrices:
    """The prices of these types. `since`: from when on changes are asked for next, wall clock,
    seconds since 1970.
    """

    def __init__(self, cloud: Cloud, types: Sequence[str]) -> None:
        self.since = wall()
        self._cloud = cloud
        self._types = types
        self._now: dict[tuple[str, str], SpotPrice] = {}

    def now(self, type_: str, zone: str) -> float | None:
        """Return the price of a type in a zone as of the last look; None: it is not known."""
        price = self._now.get((type_, zone))
        return None if price is None else price.usd_per_h

    async def changes(self) -> list[SpotPrice]:
        """Return the prices that are new since the last look, the oldest first; none if AWS does
        not say.
        """
        asked_at, changes = wall(), []
        with contextlib.suppress(AwsError):
            changes = await prices.spot_changes(self._cloud, self._types, self.since)
            self.since = asked_at - PRICES_S  # answers lag behind
        new = []
        for change in changes:
            before = self._now.get((change.type, change.zone))
            if before is None or before.at < change.at:
                self._now[change.type, change.zone] = change
                new.append(change)
        return new
