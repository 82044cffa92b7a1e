"""Where a launch asks for an instance, from what all launches of its run have been told."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seerd.aws.errors import AwsError, ErrorKind
from seerd.aws.images import Image
from seerd.aws.network import Subnet
from seerd.backends.ec2.request import (
    REMEMBERED_S,
    Candidate,
    Ec2Settings,
    LaunchPlaces,
    candidates,
    client_token,
    run_instances,
)
from seerd.backends.ec2.rests import REST_S, Rests
from seerd.clock import wall

T = 1_000_000.0
A, B = (Candidate("g4dn.xlarge", f"subnet-{zone}", f"us-east-1{zone}") for zone in "ab")
DEAR = Candidate("g5.xlarge", "subnet-a", "us-east-1a")
DRY = AwsError("none here", ErrorKind.CAPACITY, "InsufficientInstanceCapacity")
NEVER = AwsError("not offered", ErrorKind.ELSEWHERE, "Unsupported")
QUOTA = AwsError("used up", ErrorKind.QUOTA, "VcpuLimitExceeded")
IMAGE = Image("ami-1", "image", "x86_64", "/dev/sda1", (("/dev/sda1", 8),))
SETTINGS: dict[str, Any] = {
    "run": "r",
    "name": "n",
    "owner": "o",
    "gpus": 1,
    "image": "ami-1",
    "hard_end": 2 * T,
    "boot_s": 60.0,
    "keys": Path("keys"),
}


@pytest.fixture
def places() -> LaunchPlaces:
    return LaunchPlaces([A, B, DEAR])


def test_places_are_asked_in_their_order(places: LaunchPlaces) -> None:
    assert places.next(T, T) == A
    places.refused(A, DRY, T + 1)
    assert places.next(T, T + 1) == B
    places.refused(B, DRY, T + 2)
    assert places.next(T, T + 2) == DEAR


def test_a_refusal_answers_all_launches_that_had_begun(places: LaunchPlaces) -> None:
    for place in (A, B, DEAR):
        places.refused(place, DRY, T + 5)
    assert places.next(T, T + 6) is None
    assert places.next(T + 5, T + 6) is None
    assert [place for place, _ in places.refusals()] == [A]


def test_a_later_launch_asks_again_and_first_where_the_refusal_is_the_oldest(
    places: LaunchPlaces,
) -> None:
    for later_s, place in enumerate((DEAR, A, B)):
        places.refused(place, DRY, T + later_s)
    assert places.next(T + 10, T + 10) == DEAR
    places.refused(DEAR, DRY, T + 11)
    assert places.next(T + 10, T + 11) == A


def test_a_place_that_has_refused_lately_is_asked_after_the_others(places: LaunchPlaces) -> None:
    places.refused(A, DRY, T)
    assert places.next(T + 60, T + 60) == B
    assert places.next(T + 60, T + 1 + REMEMBERED_S[ErrorKind.CAPACITY]) == A
    places.gave(A)
    assert places.next(T, T + 1) == A


def test_what_is_never_offered_is_asked_last_for_ever(places: LaunchPlaces) -> None:
    places.refused(A, NEVER, T)
    assert places.next(T + 1e6, T + 1e6) == B


def test_a_quota_is_that_of_a_type_in_all_zones_and_is_asked_for_anew_each_time(
    places: LaunchPlaces,
) -> None:
    places.refused(A, QUOTA, T + 1)
    assert places.next(T, T + 1) == DEAR
    assert places.next(T + 2, T + 2) == A, "an instance may have been given back"
    places.refused(DEAR, DRY, T + 1)
    assert places.refusals() == [(A, QUOTA), (DEAR, DRY)]


def test_on_demand_is_asked_where_all_spot_places_have_refused() -> None:
    settings = Ec2Settings(
        **SETTINGS, instance_types=("g4dn.xlarge",), market="spot", falls_back=True
    )
    subnets = [Subnet(f"subnet-{zone}", f"us-east-1{zone}", "vpc-1", 9) for zone in "ab"]
    asked = candidates(settings, subnets)
    assert asked == [A, B, replace(A, fallback=True), replace(B, fallback=True)]
    assert len({client_token("r", "1.0", place) for place in asked}) == 4
    places = LaunchPlaces(asked)
    places.refused(A, QUOTA, T + 1)
    instead = places.next(T, T + 1)
    assert instead == replace(A, fallback=True), "spot has a quota of its own"
    assert str(instead) == "g4dn.xlarge in us-east-1a, on demand"
    requests = [run_instances(settings, "1.0", place, IMAGE, "") for place in asked]
    assert ["InstanceMarketOptions" in request for request in requests] == [
        True,
        True,
        False,
        False,
    ]


def test_a_pool_that_took_an_instance_back_rests_for_all_runs_of_a_home(tmp_path: Path) -> None:
    other = replace(A, fallback=True)
    rests, of_another_run = Rests(tmp_path / "rests"), Rests(tmp_path / "rests")
    places = LaunchPlaces([A, other], of_another_run.rests)
    assert places.next(T, T) == A
    rests.begin(A.type, A.zone)
    assert places.next(T, T) == other
    places.refused(other, DRY, T + 1)
    assert places.next(T, T + 1) == A, "there is no other place"
    file = tmp_path / "rests" / f"{A.type}-{A.zone}"
    os.utime(file, (0, wall() - REST_S - 1))
    assert places.next(T + 2, T + 2) == A


def test_a_launch_asks_only_for_types_with_few_enough_gpus(places: LaunchPlaces) -> None:
    assert places.next(T, T, lambda kind: kind == DEAR.type) == DEAR
    for place in (A, DEAR):
        places.refused(place, DRY, T + 1)
    assert places.next(T, T + 1, lambda kind: kind == DEAR.type) is None
    assert [place for place, _ in places.refusals(lambda kind: kind == DEAR.type)] == [DEAR]
