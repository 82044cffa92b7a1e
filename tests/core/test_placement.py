"""Placement by example: what happens to whom at a stage boundary, and why."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from seerd.core.packing import (
    CANDIDATES,
    Before,
    Demand,
    Home,
    PackingNode,
    _Rooms,
    choose,
)
from seerd.core.placement import Assignment, Slots, place


def nodes(*gpus: int) -> list[PackingNode]:
    """Instances a, b, c ... with so many GPUs."""
    return [PackingNode(name, count) for name, count in zip("abcdefgh", gpus, strict=False)]


def demands(**gpus: int) -> list[Demand]:
    """Most valuable first."""
    return [Demand(trial, count) for trial, count in gpus.items()]


def at(node: str, *gpus: int) -> Assignment:
    return (Slots(node, gpus),)


def shown(assignments: Mapping[str, Assignment]) -> dict[str, str]:
    """As text, "a:01" for GPUs 0 and 1 of a."""
    return {
        t: " ".join(f"{s.node}:{''.join(map(str, s.gpus))}" for s in a)
        for t, a in assignments.items()
    }


def test_a_trial_that_fits_an_instance_is_never_split() -> None:
    current = {"x": at("a", 0, 1, 2), "y": at("b", 0, 1, 2)}
    placed = place(demands(x=3, y=3, z=2), current, nodes(4, 4))
    assert "z" not in placed


def test_a_smaller_trial_moves_to_make_room_for_a_larger_one_even_if_that_is_worth_less() -> None:
    current = {"x": at("a", 0, 1), "y": at("b", 0), "z": at("b", 1)}
    expected = {"x": "b:23", "y": "b:0", "z": "b:1", "big": "a:0123"}
    assert shown(place(demands(big=4, x=2, y=1, z=1), current, nodes(4, 4))) == expected
    assert shown(place(demands(x=2, y=1, z=1, big=4), current, nodes(4, 4))) == expected


def test_an_unchanged_trial_keeps_exactly_its_gpus() -> None:
    current = {"x": at("b", 3), "y": at("b", 0, 1), "gone": at("a", 0, 1)}
    placed = place(demands(new=2, x=1, y=2), current, nodes(4, 4))
    assert placed["x"] == current["x"]
    assert placed["y"] == current["y"]


def test_a_trial_larger_than_an_instance_takes_whole_ones_that_are_least_in_use() -> None:
    placed = place(demands(big=8, one=1), {"one": at("a", 0)}, nodes(4, 4, 4))
    assert shown(placed) == {"one": "a:0", "big": "b:0123 c:0123"}


def test_whole_instances_are_of_one_size() -> None:
    assert place(demands(big=6), {}, nodes(4, 2)) == {}
    assert shown(place(demands(big=8), {}, nodes(4, 2, 4))) == {"big": "a:0123 c:0123"}


def test_a_spanning_trial_does_not_push_out_a_more_valuable_one() -> None:
    placed = place(demands(best=4, big=8, last=1), {}, nodes(4, 4))
    assert set(placed) == {"best", "last"}


def test_a_spanning_trial_stays_when_instances_of_another_size_arrive() -> None:
    held = (Slots("a", (0, 1)), Slots("b", (0, 1)), Slots("c", (0, 1)))
    placed = place(
        demands(big=6), {"big": held}, [*nodes(2, 2, 2), PackingNode("x", 3), PackingNode("y", 3)]
    )
    assert placed["big"] == held


def test_it_comes_together_when_an_instance_arrives_that_holds_it() -> None:
    held = (Slots("a", (0, 1)), Slots("b", (0, 1)))
    assert shown(place(demands(big=4), {"big": held}, nodes(2, 2, 4))) == {"big": "c:0123"}


def test_when_not_all_fit_the_most_valuable_are_placed_and_a_smaller_one_fills_the_hole() -> None:
    current = {"last": at("a", 0, 1, 2, 3)}
    placed = place(demands(first=3, second=3, third=1, last=4), current, nodes(4))
    assert set(placed) == {"first", "third"}


def test_packing_brings_the_survivors_together_so_that_instances_come_free() -> None:
    current = {"x": at("a", 0), "y": at("b", 1), "z": at("c", 2, 3)}
    spread = place(demands(x=1, y=1, z=2), current, nodes(4, 4, 4))
    packed = place(demands(x=1, y=1, z=2), current, nodes(4, 4, 4), pack=True)
    assert dict(spread) == current
    assert len({a[0].node for a in packed.values()}) == 1
    assert sum(packed[t] != current[t] for t in current) == 2


def test_a_packed_cluster_is_left_as_it_is() -> None:
    current = {"x": at("b", 0, 1), "y": at("b", 3)}
    assert dict(place(demands(x=2, y=1), current, nodes(4, 4, 4), pack=True)) == current


def test_a_resized_trial_goes_to_its_old_instance_where_its_checkpoint_is() -> None:
    current = {"x": at("b", 0), "y": at("c", 0)}
    placed = place(demands(x=2, y=4), current, nodes(4, 4, 4))
    assert shown(placed) == {"x": "b:01", "y": "c:0123"}


def test_nobody_moves_for_the_sake_of_an_old_instance() -> None:
    current = {"x": at("a", 0), "y": at("a", 1, 2, 3)}
    placed = place(demands(x=2, y=3), current, nodes(4, 4))
    assert shown(placed) == {"x": "b:01", "y": "a:123"}


def test_gpus_are_the_lowest_aligned_neighbours() -> None:
    current = {"x": at("a", 1)}
    placed = place(demands(x=1, pair=2, four=4), current, nodes(8))
    assert shown(placed) == {"x": "a:1", "pair": "a:23", "four": "a:4567"}


def test_scattered_gpus_of_one_instance_are_better_than_none() -> None:
    current = {"x": at("a", 1), "y": at("a", 3)}
    placed = place(demands(x=1, y=1, pair=2), current, nodes(4))
    assert shown(placed) == {"x": "a:1", "y": "a:3", "pair": "a:02"}


def test_trials_of_a_lost_instance_are_placed_anew() -> None:
    current = {"x": at("lost", 0, 1), "y": at("a", 0, 1)}
    assert shown(place(demands(x=2, y=2), current, nodes(4))) == {
        "x": "a:23",
        "y": "a:01",
    }


def test_a_gpu_claimed_by_two_stays_with_the_more_valuable() -> None:
    current = {"x": at("a", 0), "y": at("a", 0)}
    assert shown(place(demands(y=1, x=1), current, nodes(2))) == {
        "y": "a:0",
        "x": "a:1",
    }


def test_without_instances_everyone_waits_and_without_trials_nothing_happens() -> None:
    assert place(demands(x=1, y=2), {}, []) == {}
    assert place([], {"x": at("a", 0)}, nodes(4), pack=True) == {}


def test_a_stage_boundary_of_seer_keeps_the_bracket_that_does_not_grow() -> None:
    """Two brackets on four-GPU instances: survivors of the first double, the second keeps its two
    GPUs each.
    """
    current = {
        "s1": at("a", 0),
        "s2": at("a", 1),
        "s3": at("a", 2),
        "s4": at("a", 3),
        "k1": at("b", 0, 1),
        "k2": at("b", 2, 3),
    }
    placed = place(demands(k1=2, k2=2, s3=2, s1=2), current, nodes(4, 4))
    assert shown(placed) == {"k1": "b:01", "k2": "b:23", "s1": "a:01", "s3": "a:23"}


def chosen(before: Before, instances: list[PackingNode], /, **gpus: int) -> dict[str, Home]:
    return choose(demands(**gpus), before, instances, pack=False)


def test_a_resized_trial_goes_to_its_files_even_where_more_room_is_left_over() -> None:
    assert chosen(Before({}, {"x": "a"}), nodes(4, 2), x=2) == {"x": ("a",)}
    assert chosen(Before({}, {}), nodes(4, 2), x=2) == {"x": ("b",)}


def test_larger_trials_choose_first_and_equal_ones_by_their_names() -> None:
    assert chosen(Before({}, {}), nodes(4, 4), x=2, y=3) == {"y": ("a",), "x": ("b",)}
    assert chosen(Before({}, {}), nodes(2, 2), y=2, x=2) == {"x": ("a",), "y": ("b",)}


def test_a_displaced_trial_chooses_as_if_it_had_waited_all_the_time() -> None:
    before = Before({"y": ("b",)}, {})
    placed = chosen(before, nodes(2, 4, 2), w=4, x=2, y=2)
    assert placed == {"w": ("b",), "x": ("a",), "y": ("c",)}


def test_a_move_counts_more_than_a_resized_trial_away_from_its_files() -> None:
    before = Before({"stays": ("a",)}, {"grows": "a"})
    assert before.cost({"stays": ("a",)}, pack=False)[1:] == (0, 0)
    assert before.cost({"stays": ("b",)}, pack=False)[1:] == (1, 0)
    assert before.cost({"grows": ("a", "b")}, pack=False)[1:] == (0, 0)
    assert before.cost({"grows": ("b",)}, pack=False)[1:] == (0, 1)
    homes = {"stays": ("b",), "grows": ("b", "c"), "new": ("c",)}
    assert before.cost(homes, pack=True) == (2, 1, 1)
    assert before.cost(homes, pack=False) == (0, 1, 1)


@pytest.mark.parametrize(("others", "home"), [(CANDIDATES - 1, "z"), (CANDIDATES, "n00")])
def test_only_so_many_instances_are_compared_for_whom_fewest_leave(others: int, home: str) -> None:
    """The roomiest come first; one trial leaves the last one, and two any of the others."""
    rooms = _Rooms([PackingNode(f"n{n:02d}", 8) for n in range(others)] + [PackingNode("z", 8)])
    for node in range(others):
        for number in range(6):
            rooms.put(Demand(f"{node}-{number}", 1), (f"n{node:02d}",))
    for number, gpus in enumerate((3, 1, 1, 1, 1)):
        rooms.put(Demand(f"z-{number}", gpus), ("z",))
    assert rooms.cheapest(4) == (home,)
