"""What an instance costs by the hour, with the source and its date. Functions raise `AwsError`."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
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
"""USD for an hour, more than any instance costs: a kept price of more, or of 0, is not used."""


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
    """Return the on-demand price of Linux in the region, kept for a day in the folder `cache`."""
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
    filters = [{"Type": "TERM_MATCH", "Field": key, "Value": wanted[key]} for key in wanted]
    rows = await cloud.pages(
        "pricing",
        "get_products",
        lambda a: a["PriceList"],
        region=PRICING_REGION,
        ServiceCode="AmazonEC2",
        Filters=filters,
        MaxResults=100,
    )
    products = [json.loads(row) if isinstance(row, str) else row for row in rows]
    hourly = [usd for product in products for usd in _hourly(product)]
    if not hourly:
        why = f"the price list has no {instance_type} in {cloud.region}"
        raise AwsError(why, ErrorKind.GONE, "NoPrice")
    price = Price(max(hourly), "price list", time.time())
    _keep(kept, price)
    return price


async def spot(cloud: Cloud, instance_type: str) -> Price:
    """Return the highest present spot price of Linux in the region: the zone is unknown yet."""
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
    rows = sorted(rows, key=lambda row: row["Timestamp"])
    latest = {row["AvailabilityZone"]: float(row["SpotPrice"]) for row in rows}
    if not latest:
        why = f"there is no spot price of {instance_type} in {cloud.region}"
        raise AwsError(why, ErrorKind.GONE, "NoPrice")
    return Price(max(latest.values()), "spot history", now.timestamp())


def _hourly(product: dict[str, Any]) -> Iterable[float]:
    """Yield the prices by the hour in a product of the price list, USD."""
    for offer in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in offer.get("priceDimensions", {}).values():
            usd = float(dimension.get("pricePerUnit", {}).get("USD", 0.0))
            if dimension.get("unit") == "Hrs" and usd > 0.0:
                yield usd


def _kept(path: Path) -> Price | None:
    """Return a price of the last day; None if there is none."""
    try:
        price = msgspec.json.decode(path.read_bytes(), type=Price)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    is_fresh = 0.0 <= time.time() - price.at < FRESH_S
    return price if is_fresh and 0.0 < price.usd_per_h < DEAREST else None


def _keep(path: Path, price: Price) -> None:
    """Keep a price if possible; if not, AWS is asked again the next time."""
    draft = path.with_suffix(".draft")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(msgspec.json.encode(price))
        draft.replace(path)
