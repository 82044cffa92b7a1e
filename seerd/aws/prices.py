"""What an instance costs by the hour, with the source and its date. Functions raise `AwsError`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from seerd.aws.cloud import Cloud
from seerd.aws.errors import AwsError, ErrorKind

PRICING_REGION = "us-east-1"
"""Where the Price List API is, for all regions
(docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html).
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


async def on_demand(cloud: Cloud, instance_type: str) -> Price:
    """Return the on-demand price of Linux in the region."""
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
    hourly = [
        float(dimension.get("pricePerUnit", {}).get("USD", 0.0))
        for product in products
        for offer in product.get("terms", {}).get("OnDemand", {}).values()
        for dimension in offer.get("priceDimensions", {}).values()
        if dimension.get("unit") == "Hrs"
    ]
    if max(hourly, default=0.0) <= 0.0:
        why = f"the price list has no {instance_type} in {cloud.region}"
        raise AwsError(why, ErrorKind.GONE, "NoPrice")
    return Price(max(hourly), "price list", time.time())


@dataclass(frozen=True, slots=True)
class SpotPrice:
    """What a spot instance costs from a moment on."""

    type: str
    zone: str
    usd_per_h: float
    at: float  # since when, wall clock, seconds since 1970


async def spot_changes(cloud: Cloud, types: Sequence[str], since: float) -> list[SpotPrice]:
    """Return the spot prices of Linux that held since then, the oldest first: of each type and zone
    also that which held at `since`.
    """
    rows = await cloud.pages(
        "ec2",
        "describe_spot_price_history",
        lambda a: a["SpotPriceHistory"],
        patience_s=15.0,
        InstanceTypes=list(types),
        ProductDescriptions=["Linux/UNIX"],
        StartTime=datetime.fromtimestamp(since, UTC),
    )
    changes = [
        SpotPrice(
            row["InstanceType"],
            row["AvailabilityZone"],
            float(row["SpotPrice"]),
            row["Timestamp"].timestamp(),
        )
        for row in rows
    ]
    return sorted(changes, key=lambda change: change.at)


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
