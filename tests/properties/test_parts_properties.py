"""Placement where GPUs have parts, against brute force: who shares a GPU, who has whole ones, and who
grows where it is.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from seerd.core.packing import Demand, PackingNode
from seerd.core.placement import Assignment, place
from tests.examples import few

PARTS = 4
Case = tuple[list[Demand], dict[str, Assignment], list[PackingNode]]
Home = tuple[tuple[str, int], ...]  # the GPUs of a trial

SOME = settings(max_examples=few(120), deadline=None)


@st.composite
def cases(draw: st.DrawFn, *, most: int = 3) -> Case:
    """Instances of one or two GPUs of four parts; trials placed by an earlier call; then some end,
    some are resized, some are new.
    """
    gpus = draw(st.sampled_from([[1], [2], [3], [1, 1], [2, 2]]))
    nodes = [PackingNode(f"n{i}", PARTS * count) for i, count in enumerate(gpus)]
    size = st.sampled_from([1, 1, 2, 4, 8])
    first = [Demand(f"t{i}", draw(size)) for i in range(draw(st.integers(0, most)))]
    current = dict(place(draw(st.permutations(first)), {}, nodes, parts=PARTS))
    kept = [d for d in first if draw(st.booleans())]
    resized = [Demand(d.trial, draw(size)) if draw(st.booleans()) else d for d in kept]
    new = [Demand(f"u{i}", draw(size)) for i in range(draw(st.integers(0, 2)))]
    return draw(st.permutations(resized + new)), current, nodes


def home_of(assignment: Assignment) -> Home:
    return tuple(sorted({(s.node, slot // PARTS) for s in assignment for slot in s.gpus}))


def size_of(assignment: Assignment) -> int:
    return sum(len(slots.gpus) for slots in assignment)


def homes_for(demand: Demand, nodes: list[PackingNode]) -> list[Home]:
    """Every place where the rule allows the demand when all is free."""
    gpus = {node.id: [(node.id, gpu) for gpu in range(node.gpus // PARTS)] for node in nodes}
    count = -(-demand.gpus // PARTS)
    if count <= max(len(some) for some in gpus.values()):
        ways = (itertools.combinations(some, count) for some in gpus.values())
        return list(itertools.chain.from_iterable(ways))
    every = [gpu for some in gpus.values() for gpu in some]
    return [tuple(every)] if len(every) == count else []


def all_homes(demands: list[Demand], nodes: list[PackingNode]) -> Iterator[dict[str, Home]]:
    """Every way to place every demand."""
    for choice in itertools.product(*(homes_for(demand, nodes) for demand in demands)):
        load: Counter[tuple[str, int]] = Counter()
        for demand, home in zip(demands, choice, strict=True):
            for gpu in home:
                load[gpu] += min(demand.gpus, PARTS)
        if all(slots <= PARTS for slots in load.values()):
            yield {d.trial: home for d, home in zip(demands, choice, strict=True)}


def moves(case: Case, homes: Mapping[str, Home]) -> int:
    """Trials of the same size whose GPUs could have been left to them, and were not."""
    demands, current, _ = case
    same = [d.trial for d in demands if d.trial in current and size_of(current[d.trial]) == d.gpus]
    return sum(homes[trial] != home_of(current[trial]) for trial in same if trial in homes)


@given(cases(), st.booleans())
@SOME
def test_slots_are_given_once_and_those_of_a_trial_are_of_one_gpu_or_of_whole_ones(
    case: Case, pack: bool
) -> None:
    demands, current, nodes = case
    placed = place(demands, current, nodes, pack=pack, parts=PARTS)
    taken = Counter((s.node, slot) for a in placed.values() for s in a for slot in s.gpus)
    sizes = {node.id: node.gpus for node in nodes}
    assert set(taken.values()) <= {1}
    assert all(slot < sizes[node] for node, slot in taken)
    for demand in demands:
        if demand.trial in placed:
            assert size_of(placed[demand.trial]) == demand.gpus
            assert home_of(placed[demand.trial]) in homes_for(demand, nodes)
    assert place(demands, placed, nodes, pack=pack, parts=PARTS) == placed


@given(cases(), st.booleans())
@SOME
def test_the_most_valuable_are_placed_and_behind_them_whoever_finds_room(
    case: Case, pack: bool
) -> None:
    demands, current, nodes = case
    expected: list[Demand] = []
    for demand in demands:
        if next(all_homes([*expected, demand], nodes), None) is not None:
            expected.append(demand)
    placed = place(demands, current, nodes, pack=pack, parts=PARTS)
    assert {demand.trial for demand in expected} == set(placed)


@given(cases())
@SOME
def test_no_placement_of_the_same_trials_moves_fewer(case: Case) -> None:
    demands, current, nodes = case
    placed = place(demands, current, nodes, parts=PARTS)
    homes = {trial: home_of(new) for trial, new in placed.items()}
    ways = all_homes([d for d in demands if d.trial in homes], nodes)
    assert moves(case, homes) == min(moves(case, way) for way in ways)


@given(st.integers(0, 3), st.lists(st.sampled_from([1, 1, 2]), max_size=6))
@SOME
def test_new_small_trials_leave_as_many_whole_gpus_free_as_can_be(
    gpus: int, sizes: list[int]
) -> None:
    nodes = [PackingNode("a", PARTS * (gpus + 1)), PackingNode("b", PARTS * 2)]
    demands = [Demand(f"t{i}", size) for i, size in enumerate(sizes)]
    placed = place(demands, {}, nodes, parts=PARTS)
    used = {gpu for assignment in placed.values() for gpu in home_of(assignment)}
    needed = sum(demand.gpus for demand in demands if demand.trial in placed)
    assert len(used) == -(-needed // PARTS)


@given(cases())
@SOME
def test_a_trial_that_stays_on_its_gpu_with_more_of_it_keeps_the_slots_that_it_has(
    case: Case,
) -> None:
    demands, current, nodes = case
    placed = place(demands, current, nodes, parts=PARTS)
    for demand in demands:
        old, new = current.get(demand.trial, ()), placed.get(demand.trial, ())
        if old and new and home_of(old) == home_of(new) and size_of(old) <= demand.gpus:
            assert set(old[0].gpus) <= set(new[0].gpus)
