"""Where a launch asks for an instance, from what all launches of its run have been told."""

from __future__ import annotations

import pytest

from seerd.aws.errors import AwsError, ErrorKind
from seerd.backends.ec2.request import REMEMBERED_S, Candidate, LaunchPlaces

T = 1_000_000.0
A, B = (Candidate("g4dn.xlarge", f"subnet-{zone}", f"us-east-1{zone}") for zone in "ab")
DEAR = Candidate("g5.xlarge", "subnet-a", "us-east-1a")
DRY = AwsError("none here", ErrorKind.CAPACITY, "InsufficientInstanceCapacity")
NEVER = AwsError("not offered", ErrorKind.ELSEWHERE, "Unsupported")
QUOTA = AwsError("used up", ErrorKind.QUOTA, "VcpuLimitExceeded")


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
