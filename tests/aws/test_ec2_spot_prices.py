"""What spot is planned with, what is bid, and the prices that a run is charged, zone by zone."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from seerd.backends.base import LaunchProgress
from seerd.backends.ec2.asking import SPOT_MARGIN, price_of
from seerd.backends.ec2.keys import Ec2Keys
from seerd.backends.ec2.offer import PRICES_S, quote_of
from seerd.backends.ec2.provider import Ec2Provider
from tests.aws.kit import Door
from tests.aws.scripted import Script, cloud_of, played
from tests.aws.test_ec2_fleet import row, told
from tests.aws.test_ec2_launches import TOKEN, play
from tests.faults.ec2 import refusal
from tests.faults.timeline import EPOCH

DENIED = refusal("AccessDeniedException", 403)
KIND = "p3.2xlarge"


def history(*prices: tuple[str, float, float]) -> dict[str, Any]:
    """DescribeSpotPriceHistory's answer: zone, price and since when, seconds from the start."""
    return {
        "SpotPriceHistory": [
            {
                "InstanceType": KIND,
                "AvailabilityZone": f"us-east-1{zone}",
                "SpotPrice": f"{price:.6f}",
                "Timestamp": datetime.fromtimestamp(EPOCH + at_s, UTC),
            }
            for zone, price, at_s in prices
        ]
    }


def products(usd: float) -> dict[str, Any]:
    """GetProducts' answer."""
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{usd:.4f}"}}
    terms = {"OnDemand": {"a": {"priceDimensions": {"b": dimension}}}}
    return {"PriceList": [json.dumps({"terms": terms})]}


@pytest.mark.parametrize(
    ("on_demand", "price", "usd", "most", "bid"),
    [
        (products(3.06), None, 0.9, 3.06, None),
        (DENIED, None, 0.9, 3.06, None),
        (products(3.06), 1.5, 1.5, 1.5, 1.5),
    ],
    ids=["AWS's default bid", "the bundled on-demand price", "a price of the spec"],
)
def test_the_on_demand_price_is_bid_unless_the_spec_has_a_price(
    on_demand: Any, price: float | None, usd: float, most: float, bid: float | None
) -> None:
    now = history(("a", 0.7, -100.0), ("b", 0.9, -50.0))
    cloud, _ = cloud_of(describe_spot_price_history=now, get_products=on_demand)
    keys = Ec2Keys(instance_type=(KIND,), market=("spot",), price=price)
    asked, _ = played(price_of(keys, cloud))
    assert (asked.usd, asked.most, asked.bid) == (usd, {KIND: most}, bid)
    facts = quote_of(keys, asked.types({KIND: 1}), asked.source).facts
    assert (facts.usd_per_gpu_h, facts.most_usd_per_gpu_h) == (usd, most)
    assert facts.price_lag_s == 3 * PRICES_S


def test_where_nobody_knows_the_on_demand_price_a_little_more_than_now_is_bid() -> None:
    rows = history(("a", 0.5, 0.0))["SpotPriceHistory"]
    now = {"SpotPriceHistory": [rows[0] | {"InstanceType": "x9.large"}]}
    cloud, _ = cloud_of(describe_spot_price_history=now, get_products=DENIED)
    asked, _ = played(price_of(Ec2Keys(instance_type=("x9.large",), market=("spot",)), cloud))
    assert asked.bid == asked.most["x9.large"] == pytest.approx(0.5 * SPOT_MARGIN)


def test_types_on_demand_have_prices_of_their_own() -> None:
    cloud, _ = cloud_of(get_products=[products(0.526), products(1.006)])
    keys = Ec2Keys(instance_type=("g4dn.xlarge", "g5.xlarge"))
    asked, _ = played(price_of(keys, cloud))
    assert asked.usd == 1.006
    assert sorted(asked.prices.values()) == [0.526, 1.006]
    cloud, _ = cloud_of(get_products=DENIED)
    asked, _ = played(price_of(keys, cloud))
    assert asked.prices == {"g4dn.xlarge": 0.526, "g5.xlarge": 1.006}
    assert asked.error is not None


async def until(provider: Ec2Provider, what: str) -> LaunchProgress:
    """The next news of this kind."""
    while True:
        news = await provider.progress()
        if news.what == what:
            return news


def in_zone_a(state: str, **more: Any) -> dict[str, Any]:
    zone = {"Placement": {"AvailabilityZone": "us-east-1a"}, "InstanceType": KIND}
    return row("i-1", state, **zone, **more)


LAUNCHED = {
    "run_instances": {"Instances": [in_zone_a("pending")]},
    "describe_instances": told(in_zone_a("running")),
}


def test_a_run_hears_of_its_zones_price_and_of_every_change_once(tmp_path: Path) -> None:
    first = history(("a", 0.5, -900.0), ("b", 0.4, -900.0))
    later = history(("a", 0.5, -900.0), ("a", 0.8, 30.0), ("b", 0.4, -900.0))

    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        await provider.launch(TOKEN)
        assert (await until(provider, "launched")).usd_per_h == 0.5
        (request,) = [asked for of, asked in script.calls if of == "run_instances"]
        assert "MaxPrice" not in request["InstanceMarketOptions"]["SpotOptions"]
        news = await until(provider, "priced")
        assert (news.instance, news.usd_per_h, news.since) == ("i-1", 0.8, EPOCH + 30.0)
        await asyncio.sleep(3 * PRICES_S)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await until(provider, "priced")
        asked = [asked for of, asked in script.calls if of == "describe_spot_price_history"]
        assert asked[-1]["StartTime"] > asked[0]["StartTime"]

    changes = {"market": "spot", "instance_types": (KIND,)}
    play(tmp_path, scenario, changes, describe_spot_price_history=[first, later], **LAUNCHED)


def test_without_an_answer_of_aws_the_most_counts(tmp_path: Path) -> None:
    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        await provider.launch(TOKEN)
        assert (await until(provider, "launched")).usd_per_h is None

    changes = {"market": "spot", "instance_types": (KIND,)}
    play(tmp_path, scenario, changes, describe_spot_price_history=DENIED, **LAUNCHED)


def test_an_instance_on_demand_has_the_price_of_its_type(tmp_path: Path) -> None:
    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        await provider.launch(TOKEN)
        assert (await until(provider, "launched")).usd_per_h == 3.06
        assert "describe_spot_price_history" not in script.operations

    play(tmp_path, scenario, {"prices": {KIND: 3.06, "g5.xlarge": 1.0}}, **LAUNCHED)
