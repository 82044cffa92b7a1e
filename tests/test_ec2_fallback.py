"""A run on spot instances with on-demand ones behind them, on the rig."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.testbed.ec2_world import FOUR_GPUS, Job
from bench.testbed.rig import Rig
from bench.testbed.rig.ec2 import spot_price
from bench.testbed.rig.prices import PRICES
from tests.test_ec2_runs import Coordinator, assert_accounted, assert_model, write


@pytest.fixture
def coordinator(rig: Rig, tmp_path: Path) -> Iterator[Coordinator]:
    rig.set_boot(pending_s=1.0, boot_s=0.5)
    with Coordinator(rig, tmp_path) as made:
        yield made


def test_where_spot_has_none_left_on_demand_takes_over_and_each_is_paid_at_its_price(
    coordinator: Coordinator,
) -> None:
    rig = coordinator.rig
    for number, zone in enumerate(rig.subnets):
        rig.set_capacity(FOUR_GPUS, zone, 0 if number else 1, "spot")
    write(coordinator, Job("80s", "20gpu-min", limits="max_gpus = 8"))
    text = coordinator.spec.read_text()
    coordinator.spec.write_text(
        text.replace('market = "on-demand"', 'market = ["spot", "on-demand"]')
    )
    run = coordinator.start("run", str(coordinator.spec), "--plain")
    coordinator.says(": ready with ", times=2)
    coordinator.trained(reports=6)
    (taken,) = [one for one in rig.instances() if one.market == "spot"]
    rig.spot_notice(taken.id, 10.0)
    coordinator.says(": ready with ", times=3)
    coordinator.ends(run, 0)
    account = rig.account()
    assert [one.market for one in account.values()].count("spot") == 1, "its pool rests"
    assert len(account) >= 3
    assert_model(coordinator)
    assert_accounted(coordinator)
    bill = 0.0
    for one in account.values():
        assert one.since is not None
        assert one.until is not None
        price = spot_price(FOUR_GPUS, one.zone) if one.market == "spot" else PRICES[FOUR_GPUS]
        bill += price * max(60.0, one.until - one.since) / 3600
    spent = coordinator.json("ledger", "last")["spent_usd"]
    assert bill <= spent <= bill * 1.05
