"""What an instance costs by the hour.

The one rule: a price comes with its source and its date, since a plan in money is only as good as
they are. The caller decides what to use if AWS tells no price.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind

PRICING_REGION = "us-east-1"
"""Where the Price List API is, for all regions
(docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html).
"""

FRESH_S = 86400.0
DEAREST = 1e5
"""USD for an hour, more than any instance costs. A kept price of more, or of 0, is not used: no
limit on money would mean anything.
"""


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one instance."""

    usd_per_h: float
    source: Literal["price list", "spot history"]  # where AWS says so
    at: float  # when AWS said so, wall clock, seconds since 1970

    def __str__(self) -> str:
        day = datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%d")
        return f"${self.usd_per_h:.4f}/h (AWS {self.source}, {day})"


async def on_demand(cloud: Cloud, instance_type: str, cache: Path) -> Price:
    """Ask for the on-demand price of Linux in the cloud's region. Raises `AwsError`.

    It is kept for a day in the folder `cache`.
    """
    kept = cache / f"{cloud.region}-{instance_type}.json"
    if (price := _kept(kept)) is not None:
        return price
    wanted = {
        "instanceType": instance_type,
        "regionCode": cloud.region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    filters = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()
    ]
    rows = await cloud.pages(
        "pricing",
        "get_products",
        lambda a: a["PriceList"],
        region=PRICING_REGION,
        ServiceCode="AmazonEC2",
        Filters=filters,
        MaxResults=100,
    )
    hourly = [
        usd for row in rows for usd in _hourly(json.loads(row) if isinstance(row, str) else row)
    ]
    if not hourly:
        raise AwsError(
            f"the price list has no {instance_type} in {cloud.region}", ErrorKind.GONE, "NoPrice"
        )
    price = Price(max(hourly), "price list", time.time())
    _keep(kept, price)
    return price


async def spot(cloud: Cloud, instance_type: str, zones: Sequence[str] = ()) -> Price:
    """Ask for the highest of the present spot prices of Linux in these zones. Raises `AwsError`.

    If no zone is named, all of the region count. The highest counts because it is not known yet
    which zone will have an instance to give.
    """
    now = datetime.now(UTC)
    rows = await cloud.pages(
        "ec2",
        "describe_spot_price_history",
        lambda a: a["SpotPriceHistory"],
        InstanceTypes=[instance_type],
        ProductDescriptions=["Linux/UNIX"],
        StartTime=now,
        EndTime=now,
    )
    latest: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["Timestamp"]):
        latest[row["AvailabilityZone"]] = row
    fitting = [
        float(row["SpotPrice"]) for zone, row in latest.items() if not zones or zone in zones
    ]
    if not fitting:
        where = ", ".join(zones) or cloud.region
        raise AwsError(
            f"there is no spot price of {instance_type} in {where}", ErrorKind.GONE, "NoPrice"
        )
    return Price(max(fitting), "spot history", now.timestamp())


def _hourly(product: dict[str, Any]) -> Iterable[float]:
    """Yield the prices by the hour in a product of the price list, USD."""
    for offer in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in offer.get("priceDimensions", {}).values():
            usd = float(dimension.get("pricePerUnit", {}).get("USD", 0.0))
            if dimension.get("unit") == "Hrs" and usd > 0.0:
                yield usd


def _kept(path: Path) -> Price | None:
    """Read a price that was asked for in the last day; None if there is none."""
    try:
        price = msgspec.json.decode(path.read_bytes(), type=Price)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return (
        price
        if 0.0 <= time.time() - price.at < FRESH_S and 0.0 < price.usd_per_h < DEAREST
        else None
    )


def _keep(path: Path, price: Price) -> None:
    """Keep a price if possible; if not, it is asked for again the next time."""
    draft = path.with_suffix(".draft")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(msgspec.json.encode(price))
        draft.replace(path)
