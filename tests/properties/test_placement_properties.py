"""Placement against brute force where sizes divide each other, and what must hold for any sizes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from seerd.core.packing import Demand, PackingNode
from seerd.core.placement import Assignment, Slots, place
from tests.examples import few

Case = tuple[list[Demand], dict[str, Assignment], list[PackingNode]]
Home = tuple[str, ...]

SMALL = settings(max_examples=few(120), deadline=None)


@st.composite
def cases(draw: st.DrawFn, *, dividing: bool = False) -> Case:
    """Up to three instances of up to four GPUs; trials placed by an earlier call; then some end,
    some are resized, some are new.

    `dividing`: instances are of one size, and all sizes are powers of two, as those that are
    rented.
    """
    mixed = st.one_of(
        st.lists(st.integers(1, 4), min_size=1, max_size=3), st.sampled_from([[2] * 3, [4] * 3])
    )
    alike = st.builds(
        lambda size, count: [size] * count, st.sampled_from([1, 2, 4]), st.integers(1, 3)
    )
    sizes = draw(alike if dividing else mixed)
    nodes = [PackingNode(f"n{i}", size) for i, size in enumerate(sizes)]
    any_size = st.one_of(st.integers(1, max(sizes)), st.integers(1, 8))
    gpus = st.sampled_from([1, 1, 2, 4, 8]) if dividing else any_size
    first = [Demand(f"t{i}", draw(gpus)) for i in range(draw(st.integers(0, 4)))]
    before = draw(st.lists(st.sampled_from(nodes), min_size=1, unique=True))
    current = dict(place(draw(st.permutations(first)), {}, before))
    kept = [d for d in first if draw(st.booleans())]
    resized = [Demand(d.trial, draw(gpus)) if draw(st.booleans()) else d for d in kept]
    new = [Demand(f"u{i}", draw(gpus)) for i in range(draw(st.integers(0, 2)))]
    return draw(st.permutations(resized + new)), current, nodes


@st.composite
def large_cases(draw: st.DrawFn) -> Case:
    """A stage boundary of dozens of trials on instances of eight GPUs, sizes powers of two."""
    nodes = [PackingNode(f"n{i:02}", 8) for i in range(draw(st.integers(2, 24)))]
    gpus = st.sampled_from([1, 1, 2, 4, 8, 16])
    first = [Demand(f"t{i:02}", draw(gpus)) for i in range(draw(st.integers(10, 60)))]
    current = dict(place(first, {}, nodes))
    kept = [d for d in first if draw(st.integers(0, 2))]
    return (
        [Demand(d.trial, draw(st.sampled_from([d.gpus, d.gpus, d.gpus * 2]))) for d in kept],
        current,
        nodes,
    )


def homes_for(demand: Demand, nodes: list[PackingNode]) -> list[Home]:
    """Every place where the rule allows the demand when all is free."""
    if demand.gpus <= max(n.gpus for n in nodes):
        return [(n.id,) for n in nodes if n.gpus >= demand.gpus]
    several = itertools.chain.from_iterable(
        itertools.combinations(nodes, k) for k in range(2, len(nodes) + 1)
    )
    return [
        tuple(n.id for n in some) for some in several if is_whole(demand, [n.gpus for n in some])
    ]


def is_whole(demand: Demand, sizes: list[int]) -> bool:
    """Whole instances of one size, none too many."""
    return len(set(sizes)) == 1 and sum(sizes) == demand.gpus


def all_homes(demands: list[Demand], nodes: list[PackingNode]) -> Iterator[dict[str, Home]]:
    """Every way to place every demand."""
    sizes = {n.id: n.gpus for n in nodes}
    for choice in itertools.product(*(homes_for(d, nodes) for d in demands)):
        load: Counter[str] = Counter()
        for demand, home in zip(demands, choice, strict=True):
            for node in home:
                load[node] += demand.gpus // len(home)
        if all(load[node] <= sizes[node] for node in load):
            yield {d.trial: home for d, home in zip(demands, choice, strict=True)}


def homes_of(assignments: Mapping[str, Assignment]) -> dict[str, Home]:
    return {trial: tuple(sorted(s.node for s in a)) for trial, a in assignments.items()}


def moves(case: Case, homes: Mapping[str, Home]) -> int:
    """Trials whose GPUs could have been left to them, and were not."""
    demands, current, nodes = case
    before = homes_of(current)
    unchanged = [d for d in demands if d.trial in current and gpus_of(current[d.trial]) == d.gpus]
    proper = [d.trial for d in unchanged if before[d.trial] in homes_for(d, nodes)]
    return sum(homes[trial] != before[trial] for trial in proper if trial in homes)


def gpus_of(assignment: Assignment) -> int:
    return sum(len(s.gpus) for s in assignment)


def instances(homes: Mapping[str, Home]) -> int:
    return len({node for home in homes.values() for node in home})


def check_whole(case: Case, placed: Mapping[str, Assignment]) -> None:
    """No GPU twice, none that is not there, nothing split that fits, every demand either placed or
    waiting.
    """
    demands, _, nodes = case
    sizes = {n.id: n.gpus for n in nodes}
    given_out = [(s.node, gpu) for a in placed.values() for s in a for gpu in s.gpus]
    assert len(given_out) == len(set(given_out))
    assert all(0 <= gpu < sizes[node] for node, gpu in given_out)
    assert placed.keys() <= {d.trial for d in demands}
    homes = homes_of(placed)
    for demand in demands:
        if demand.trial in homes:
            assert gpus_of(placed[demand.trial]) == demand.gpus
            home = [sizes[node] for node in homes[demand.trial]]
            assert len(home) == 1 or (demand.gpus > max(sizes.values()) and is_whole(demand, home))


@given(cases(), st.booleans())
@SMALL
def test_gpus_are_given_once_and_nothing_is_split_that_fits(case: Case, pack: bool) -> None:
    check_whole(case, place(*case, pack=pack))


@given(cases(dividing=True), st.booleans())
@SMALL
def test_the_most_valuable_are_placed_and_behind_them_whoever_finds_room(
    case: Case, pack: bool
) -> None:
    demands, _, nodes = case
    expected: list[Demand] = []
    for demand in demands:
        if next(all_homes([*expected, demand], nodes), None) is not None:
            expected.append(demand)
    assert {d.trial for d in expected} == set(place(*case, pack=pack))


@given(cases(dividing=True))
@SMALL
def test_no_placement_of_the_same_trials_moves_fewer(case: Case) -> None:
    demands, _, nodes = case
    found = homes_of(place(*case))
    ways = all_homes([d for d in demands if d.trial in found], nodes)
    assert moves(case, found) == min(moves(case, way) for way in ways)


@given(cases(dividing=True))
@SMALL
def test_packing_uses_the_fewest_instances_and_then_moves_the_fewest(case: Case) -> None:
    demands, _, nodes = case
    found = homes_of(place(*case, pack=True))
    ways = list(all_homes([d for d in demands if d.trial in found], nodes))
    fewest = min(instances(way) for way in ways)
    assert instances(found) == fewest
    assert moves(case, found) == min(moves(case, way) for way in ways if instances(way) == fewest)


@given(st.one_of(cases(), large_cases()), st.booleans())
@SMALL
def test_asked_again_with_its_own_answer_it_changes_nothing(case: Case, pack: bool) -> None:
    demands, _, nodes = case
    placed = place(*case, pack=pack)
    assert place(demands, placed, nodes, pack=pack) == placed


@given(st.one_of(cases(), large_cases()), st.booleans())
@SMALL
def test_who_stays_keeps_exactly_its_gpus(case: Case, pack: bool) -> None:
    demands, current, _ = case
    placed = place(*case, pack=pack)
    for demand in demands:
        old, new = current.get(demand.trial), placed.get(demand.trial)
        if (
            old
            and new
            and gpus_of(old) == demand.gpus
            and homes_of({"": old}) == homes_of({"": new})
        ):
            assert old == new


@given(large_cases())
@SMALL
def test_sizes_that_divide_each_other_leave_no_hole_that_a_waiting_trial_could_use(
    case: Case,
) -> None:
    demands, _, nodes = case
    placed = place(*case)
    check_whole(case, placed)
    free = sum(n.gpus for n in nodes) - sum(gpus_of(a) for a in placed.values())
    assert all(d.gpus > free for d in demands if d.trial not in placed)


@given(large_cases())
@SMALL
def test_sizes_that_divide_each_other_are_packed_without_a_gap(case: Case) -> None:
    homes = homes_of(place(*case, pack=True))
    needed = sum(d.gpus for d in case[0] if d.trial in homes)
    assert instances(homes) == -(-needed // 8)


claims = st.lists(
    st.tuples(st.sampled_from("abc"), st.sets(st.integers(0, 5), min_size=1, max_size=4)),
    max_size=5,
)


@given(claims, st.lists(st.integers(1, 4), min_size=5, max_size=5))
@SMALL
def test_contradictory_claims_on_a_gpu_are_settled(
    claimed: list[tuple[str, set[int]]], gpus: list[int]
) -> None:
    nodes = [PackingNode("a", 4), PackingNode("b", 2)]
    current: dict[str, Assignment] = {
        f"t{i}": (Slots(node, tuple(sorted(held))),) for i, (node, held) in enumerate(claimed)
    }
    demands = [Demand(f"t{i}", count) for i, count in enumerate(gpus)]
    check_whole((demands, current, nodes), place(demands, current, nodes))
