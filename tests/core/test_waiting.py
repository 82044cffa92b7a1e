"""Who waits for GPUs: what could go onto free ones is found as a scan over all of them would find
it.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seerd.core.packing import Demand
from seerd.core.placement import first_waiting

sizes = st.lists(st.sampled_from([1, 1, 2, 3, 4, 8]), max_size=25)


def demands(gpus: list[int]) -> list[Demand]:
    """Most valuable first."""
    return [Demand(f"t{number}", count) for number, count in enumerate(gpus)]


def greedy(waiting: list[Demand], gpus: int) -> list[Demand]:
    """Most valuable first, whoever still finds room."""
    chosen: list[Demand] = []
    for demand in waiting:
        if demand.gpus <= gpus:
            chosen.append(demand)
            gpus -= demand.gpus
    return chosen


@given(sizes, st.data())
def test_first_has_all_that_a_scan_over_everybody_would_choose(
    gpus: list[int], data: st.DataObject
) -> None:
    left = demands(gpus)
    free = data.draw(st.integers(0, 12))
    first = first_waiting({demand.trial: demand.gpus for demand in left}, free)
    assert first == [demand for demand in left if demand in first]
    assert all(demand.gpus <= free for demand in first)
    assert greedy(first, free) == greedy(left, free)


@given(sizes, st.integers(1, 12))
def test_of_each_size_it_has_only_so_many_as_could_share_the_gpus(
    gpus: list[int], free: int
) -> None:
    first = first_waiting({demand.trial: demand.gpus for demand in demands(gpus)}, free)
    for size in set(gpus):
        assert sum(demand.gpus == size for demand in first) == min(
            gpus.count(size), free // size if size <= free else 0
        )
