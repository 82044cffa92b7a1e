"""Placement against brute force on small cases: nothing split, all placed when that is possible, the fewest instances and moves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from seerd.core.placement import Assignment, Demand, Node, Placement, Slots, place

Case = tuple[list[Demand], dict[str, Assignment], list[Node]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to three instances of up to four GPUs, trials placed by an earlier call, then demands that differ in part."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    nodes = [Node(f"n{i}", size) for i, size in enumerate(sizes)]
    first = [Demand(f"t{i}", draw(st.integers(1, 4))) for i in range(draw(st.integers(0, 5)))]
    shuffled = draw(st.permutations(nodes))
    current = dict(place(first, {}, shuffled).assignments)
    kept = [d for d in first if draw(st.booleans())]
    resized = [Demand(d.trial, draw(st.integers(1, 4))) if draw(st.booleans()) else d for d in kept]
    new = [Demand(f"u{i}", draw(st.integers(1, 4))) for i in range(draw(st.integers(0, 2)))]
    return draw(st.permutations(resized + new)), current, nodes


def all_homes(demands: list[Demand], nodes: list[Node]) -> Iterator[dict[str, str]]:
    """Every way to put every demand on one node."""
    for choice in itertools.product(nodes, repeat=len(demands)):
        load: dict[str, int] = {}
        for demand, node in zip(demands, choice, strict=True):
            load[node.id] = load.get(node.id, 0) + demand.gpus
        if all(load.get(node.id, 0) <= node.gpus for node in nodes):
            yield {d.trial: node.id for d, node in zip(demands, choice, strict=True)}


def moves(demands: list[Demand], current: dict[str, Assignment], homes: dict[str, str]) -> int:
    sizes = {d.trial: d.gpus for d in demands}
    stay = {t: a[0].node for t, a in current.items() if len(a) == 1 and sizes.get(t) == len(a[0].gpus)}
    return sum(homes[t] != node for t, node in stay.items() if t in homes)


def homes_of(placement: Placement) -> dict[str, str]:
    return {t: a[0].node for t, a in placement.assignments.items() if len(a) == 1}


@given(cases(), st.booleans())
@settings(max_examples=400, deadline=None)
def test_gpus_are_real_enough_and_given_once(case: Case, pack: bool) -> None:
    demands, current, nodes = case
    placed = place(demands, current, nodes, pack=pack)
    sizes = {n.id: n.gpus for n in nodes}
    given_out = [(s.node, gpu) for a in placed.assignments.values() for s in a for gpu in s.gpus]
    assert len(given_out) == len(set(given_out))
    assert all(0 <= gpu < sizes[node] for node, gpu in given_out)
    for demand in demands:
        assignment = placed.assignments.get(demand.trial)
        assert (assignment is None) == (demand.trial in placed.waiting)
        if assignment is not None:
            assert sum(len(s.gpus) for s in assignment) == demand.gpus
            if demand.gpus <= max(sizes.values()):
                assert len(assignment) == 1
            else:
                assert all(len(s.gpus) == sizes[s.node] for s in assignment)


@given(cases())
@settings(max_examples=400, deadline=None)
def test_everything_is_placed_when_that_is_possible_with_the_fewest_moves(case: Case) -> None:
    demands, current, nodes = case
    largest = max(n.gpus for n in nodes)
    if any(d.gpus > largest for d in demands):
        return
    ways = list(all_homes(demands, nodes))
    placed = place(demands, current, nodes)
    assert (not placed.waiting) == bool(ways)
    if ways:
        assert moves(demands, current, homes_of(placed)) == min(moves(demands, current, way) for way in ways)


@given(cases())
@settings(max_examples=400, deadline=None)
def test_packing_uses_the_fewest_instances_and_then_the_fewest_moves(case: Case) -> None:
    demands, current, nodes = case
    largest = max(n.gpus for n in nodes)
    ways = [] if any(d.gpus > largest for d in demands) else list(all_homes(demands, nodes))
    if not ways or not demands:
        return
    found = homes_of(place(demands, current, nodes, pack=True))
    fewest = min(len(set(way.values())) for way in ways)
    assert len(set(found.values())) == fewest
    packed = [way for way in ways if len(set(way.values())) == fewest]
    assert moves(demands, current, found) == min(moves(demands, current, way) for way in packed)


@given(cases())
@settings(max_examples=400, deadline=None)
def test_the_most_valuable_trials_are_placed_first(case: Case) -> None:
    demands, current, nodes = case
    largest = max(n.gpus for n in nodes)
    singles = [d for d in demands if d.gpus <= largest]
    placed = place(singles, current, nodes)
    expected: list[Demand] = []
    for demand in singles:
        if next(all_homes([*expected, demand], nodes), None) is not None:
            expected.append(demand)
    assert {d.trial for d in expected} == set(placed.assignments)


@given(cases(), st.booleans())
@settings(max_examples=400, deadline=None)
def test_asking_again_changes_nothing_and_who_stays_keeps_its_gpus(case: Case, pack: bool) -> None:
    demands, current, nodes = case
    placed = place(demands, current, nodes, pack=pack)
    assert place(demands, placed.assignments, nodes, pack=pack) == placed
    for trial, assignment in placed.assignments.items():
        before = current.get(trial)
        if before is None or len(before) != 1 or len(assignment) != 1:
            continue
        if before[0].node == assignment[0].node and len(before[0].gpus) == len(assignment[0].gpus):
            assert before == assignment


def test_a_trial_larger_than_an_instance_takes_whole_ones() -> None:
    nodes = [Node("a", 4), Node("b", 4), Node("c", 4)]
    placed = place([Demand("big", 8), Demand("one", 1)], {"one": (Slots("a", (0,)),)}, nodes)
    assert [s.node for s in placed.assignments["big"]] == ["b", "c"]
    assert placed.assignments["one"] == (Slots("a", (0,)),)
