"""Placement on instances of several sizes, of which each divides the next, against brute force."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from seerd.core.packing import Demand, PackingNode
from seerd.core.placement import Assignment, place
from tests.examples import few

Case = tuple[list[Demand], dict[str, Assignment], list[PackingNode]]
Home = tuple[str, ...]

SMALL = settings(max_examples=few(120), deadline=None)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to six instances of one, two and four GPUs; trials placed by an earlier call on some of
    them; then some end, some are resized, some are new.
    """
    sizes = draw(st.lists(st.sampled_from([1, 1, 2, 4]), min_size=1, max_size=6))
    nodes = [PackingNode(f"n{i}", size) for i, size in enumerate(sizes)]
    gpus = st.sampled_from([1, 1, 2, 4, 8])
    first = [Demand(f"t{i}", draw(gpus)) for i in range(draw(st.integers(0, 4)))]
    before = draw(st.lists(st.sampled_from(nodes), min_size=1, unique=True))
    current = dict(place(first, {}, before, split=True))
    kept = [demand for demand in first if draw(st.booleans())]
    resized = [Demand(d.trial, draw(gpus)) if draw(st.booleans()) else d for d in kept]
    new = [Demand(f"u{i}", draw(gpus)) for i in range(draw(st.integers(0, 2)))]
    return draw(st.permutations(resized + new)), current, nodes


def homes_for(demand: Demand, nodes: list[PackingNode]) -> list[Home]:
    """Every place where the rule allows the demand when all is free."""
    alone = [(node.id,) for node in nodes if node.gpus >= demand.gpus]
    for size in {node.gpus for node in nodes if node.gpus < demand.gpus}:
        if demand.gpus % size == 0:
            same = [node.id for node in nodes if node.gpus == size]
            alone += itertools.combinations(same, demand.gpus // size)
    return alone


def all_homes(demands: list[Demand], nodes: list[PackingNode]) -> Iterator[dict[str, Home]]:
    """Every way to place every demand."""
    sizes = {node.id: node.gpus for node in nodes}
    for choice in itertools.product(*(homes_for(demand, nodes) for demand in demands)):
        load = Counter[str]()
        for demand, home in zip(demands, choice, strict=True):
            load.update(dict.fromkeys(home, demand.gpus // len(home)))
        if all(load[node] <= sizes[node] for node in load):
            yield {d.trial: home for d, home in zip(demands, choice, strict=True)}


def homes_of(placed: dict[str, Assignment]) -> dict[str, Home]:
    return {trial: tuple(slots.node for slots in home) for trial, home in placed.items()}


@given(cases(), st.booleans())
@SMALL
def test_each_trial_is_on_one_instance_or_on_whole_ones_of_one_size(case: Case, pack: bool) -> None:
    demands, _, nodes = case
    placed = place(*case, pack=pack, split=True)
    sizes = {node.id: node.gpus for node in nodes}
    taken = [(slots.node, gpu) for home in placed.values() for slots in home for gpu in slots.gpus]
    assert len(taken) == len(set(taken))
    assert all(gpu < sizes[node] for node, gpu in taken)
    allowed = {demand.trial: homes_for(demand, nodes) for demand in demands}
    for trial, home in homes_of(placed).items():
        assert tuple(sorted(home)) in allowed[trial]


@given(cases(), st.booleans())
@SMALL
def test_no_trial_waits_that_could_be_placed_with_all_that_are_more_valuable(
    case: Case, pack: bool
) -> None:
    demands, _, nodes = case
    expected: list[Demand] = []
    for demand in demands:
        if next(all_homes([*expected, demand], nodes), None) is not None:
            expected.append(demand)
    assert {d.trial for d in expected} == set(place(*case, pack=pack, split=True))


@given(cases(), st.booleans())
@SMALL
def test_asked_again_with_its_own_answer_it_changes_nothing(case: Case, pack: bool) -> None:
    demands, _, nodes = case
    placed = place(*case, pack=pack, split=True)
    assert place(demands, placed, nodes, pack=pack, split=True) == placed


@given(cases())
@SMALL
def test_packing_uses_the_fewest_gpus(case: Case) -> None:
    demands, _, nodes = case
    placed = homes_of(place(*case, pack=True, split=True))
    ways = all_homes([demand for demand in demands if demand.trial in placed], nodes)
    assert used(placed, nodes) == min(used(way, nodes) for way in ways)


def used(homes: dict[str, Home], nodes: list[PackingNode]) -> int:
    """The GPUs of all instances that are used."""
    on = {node for home in homes.values() for node in home}
    return sum(node.gpus for node in nodes if node.id in on)
