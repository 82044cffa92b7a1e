"""Instances of capacity that was bought: a reservation, or a Capacity Block."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from seerd.aws.errors import AwsError
from seerd.aws.images import Image
from seerd.aws.network import Subnet
from seerd.aws.reservations import reservation
from seerd.aws.types import Ec2Type
from seerd.backends.base import Machine
from seerd.backends.ec2 import doctor
from seerd.backends.ec2.asking import must_outlast
from seerd.backends.ec2.doctor.renting import AwsNotes, Rented
from seerd.backends.ec2.keys import Ec2Keys
from seerd.backends.ec2.provider import Ec2Provider
from seerd.backends.examining import Case, Finding, Peak
from seerd.errors import LaunchError, UsageError
from seerd.spec.spec import load_spec
from tests.aws.kit import Door
from tests.aws.scripted import Script, cloud_of, played
from tests.aws.test_ec2_fleet import row, told
from tests.aws.test_ec2_launches import TOKEN, play
from tests.faults.ec2 import refusal
from tests.faults.timeline import EPOCH

ROOT = Path(__file__).parents[2]
CR = "cr-0123456789abcdef0"
KIND = "p3.2xlarge"


def answer(**changes: Any) -> dict[str, Any]:
    """DescribeCapacityReservations' answer."""
    of = {
        "CapacityReservationId": CR,
        "InstanceType": KIND,
        "AvailabilityZone": "us-east-1b",
        "TotalInstanceCount": 4,
        "AvailableInstanceCount": 3,
        "State": "active",
        "StartDate": datetime.fromtimestamp(1_700_000_000, UTC),
    }
    return {"CapacityReservations": [of | changes]}


def test_a_block_ends_half_an_hour_before_its_end_and_one_that_is_over_is_refused() -> None:
    end = datetime.fromtimestamp(1_800_000_000, UTC)
    plain, _ = played(reservation(_cloud(EndDate=end), CR))
    assert (plain.type, plain.zone, plain.total, plain.free) == (KIND, "us-east-1b", 4, 3)
    assert (plain.ends, plain.begins, plain.block) == (1_800_000_000.0, None, False)
    changes = {"EndDate": end, "ReservationType": "capacity-block", "State": "scheduled"}
    block, _ = played(reservation(_cloud(**changes), CR))
    assert (block.ends, block.begins) == (1_800_000_000.0 - 1800.0, 1_700_000_000.0)
    with pytest.raises(AwsError, match=f"{CR} is expired; change `cluster.capacity`"):
        played(reservation(_cloud(State="expired"), CR))


def test_a_run_must_end_before_what_was_bought_does() -> None:
    changes = {"ReservationType": "capacity-block"}
    end = datetime.fromtimestamp(time.time() + 7200.0, UTC)
    block, _ = played(reservation(_cloud(EndDate=end, **changes), CR))
    must_outlast(block, 3600.0)
    with pytest.raises(UsageError, match="30 min before the block's end: give a --deadline"):
        must_outlast(block, 6000.0)


@pytest.mark.parametrize("block", [False, True])
def test_instances_are_taken_from_it_in_its_zone_and_of_its_type(
    tmp_path: Path, *, block: bool
) -> None:
    kind = "capacity-block" if block else "default"

    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        await provider.launch(TOKEN)
        (request,) = [asked for of, asked in script.calls if of == "run_instances"]
        target = request["CapacityReservationSpecification"]["CapacityReservationTarget"]
        assert target == {"CapacityReservationId": CR}
        assert request["InstanceType"] == KIND
        assert request["NetworkInterfaces"][0]["SubnetId"] == "s-b"
        market = request.get("InstanceMarketOptions")
        assert market == ({"MarketType": "capacity-block"} if block else None)

    answers = {
        "run_instances": {"Instances": [row("i-1", "pending")]},
        "describe_instances": told(row("i-1", "running")),
        "describe_capacity_reservations": answer(ReservationType=kind),
    }
    play(tmp_path, scenario, {"capacity": CR, "market": "spot", "instance_types": ()}, **answers)


def test_a_block_that_begins_later_is_not_asked_for_until_then(tmp_path: Path) -> None:
    async def scenario(provider: Ec2Provider, script: Script, door: Door) -> None:
        with pytest.raises(LaunchError, match=f"{CR} begins in 10m") as refused:
            await provider.launch(TOKEN)
        assert refused.value.retry
        assert "run_instances" not in [of for of, _ in script.calls]

    begins = datetime.fromtimestamp(EPOCH + 600.0, UTC)
    bought = answer(State="scheduled", ReservationType="capacity-block", StartDate=begins)
    answers = {
        "describe_instances": {"Reservations": []},
        "describe_capacity_reservations": bought,
    }
    play(tmp_path, scenario, {"capacity": CR, "instance_types": ()}, **answers)


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("zones", ["ab", "a"])
def test_doctor_tries_a_launch_as_a_run_makes_it(zones: str, *, block: bool) -> None:
    kind = "capacity-block" if block else "default"
    bought, _ = played(reservation(_cloud(ReservationType=kind), CR))
    cloud, script = cloud_of(run_instances=refusal("DryRunOperation", 412))
    spec = load_spec(ROOT / "examples" / "aws" / "spec.toml", [])
    case = Case(spec, Path(), Machine(0, 1), lambda quote: (None, Finding("plan", "ok", "none")))
    keys = Ec2Keys(image="ami-1", capacity=CR, instance_type=(KIND,))
    notes = AwsNotes(aws=cloud, case=case, keys=keys)  # type: ignore[arg-type]
    image = Image("ami-1", "an image", "x86_64", "/dev/sda1", (("/dev/sda1", 100),))
    rented = Rented((Ec2Type(KIND, 1, "V100", 8),), image, Peak(1, 1), bought)
    subnets = [Subnet(f"s-{zone}", f"us-east-1{zone}", "vpc-1", 9) for zone in zones]
    played(doctor._launch(notes, "somebody", rented, subnets, ()))
    (line,) = notes.lines
    if zones == "a":
        assert (line.level, script.calls) == ("problem", [])
        assert line.found == f"{CR} is in us-east-1b, and no subnet of the run is"
        return
    assert line.level == "ok"
    ((_, request),) = script.calls
    assert request["NetworkInterfaces"][0]["SubnetId"] == "s-b"
    market = request.get("InstanceMarketOptions")
    assert market == ({"MarketType": "capacity-block"} if block else None)


def _cloud(**changes: Any) -> Any:
    cloud, _ = cloud_of(describe_capacity_reservations=answer(**changes))
    return cloud
