"""Who is served next: the paper's example, Algorithm 2 by hand, and what holds for any offers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.many.rules import at_random, hybrid, largest_gap, most_gain, tightened
from seerd.planner.dividing import (
    FROZEN_AFTER,
    Freeze,
    Offer,
    candidates,
    first_come,
    greedy,
    round_robin,
    watched,
)

EXAMPLE = {"U1": [90, 95, 100], "U2": [70, 95, 100]}
"""Section 4.1: what the models of two users come to; the best possible is 100."""


def regret(serve: Callable[[list[Offer], str | None], str | None], rounds: int) -> int:
    """Cumulative multi-tenant regret, every model costing 1."""
    trained = dict.fromkeys(EXAMPLE, 0)
    total, last = 0, None
    for _ in range(rounds):
        offers = [Offer(user, open=trained[user] < 3) for user in EXAMPLE]
        last = serve(offers, last)
        assert last is not None
        trained[last] += 1
        best = [max(EXAMPLE[user][:done], default=0) for user, done in trained.items()]
        total += sum(100 - one for one in best)
    return total


def test_the_paper_s_example() -> None:
    assert regret(lambda offers, _: first_come(offers), 2) == 215
    assert regret(round_robin, 2) == 150


def test_a_bound_is_the_smallest_so_far_and_its_surplus_is_from_the_last_result() -> None:
    bound, surplus = tightened(None, 0.95, 0.70)
    assert (bound, surplus) == (0.95, pytest.approx(0.25))
    bound, surplus = tightened(bound, 0.90, 0.80)
    assert (bound, surplus) == (0.90, pytest.approx(0.10))
    bound, surplus = tightened(bound, 0.99, 0.60)
    assert (bound, surplus) == (0.90, pytest.approx(0.30))


def offers() -> list[Offer]:
    return [
        Offer("a", bound=0.99, best=0.90, surplus=0.10, gain=0.5),
        Offer("b", bound=0.95, best=0.50, surplus=0.25, gain=0.1),
        Offer("c", bound=0.80, best=0.75, surplus=0.30, gain=0.2),
        Offer("d", bound=0.99, best=0.10, surplus=0.40, gain=0.9, open=False),
    ]


def test_greedy_s_candidates_by_hand() -> None:
    """The mean surplus of those that have a step is 0.217: b and c. The gap of b is 0.45, of c
    0.05.
    """
    assert candidates(offers()) == {"b", "c"}
    assert greedy(offers(), largest_gap) == "b"
    assert greedy(offers(), most_gain) == "c"


def test_whoever_has_nothing_yet_is_first() -> None:
    there = [*offers(), Offer("e", bound=0.2), Offer("f", bound=0.4)]
    assert candidates(there) == {"e", "f"}
    assert greedy(there, largest_gap) == "f"
    assert most_gain(there) == "e"


def test_in_turn_at_random_and_in_order() -> None:
    there = offers()
    served = [None]
    for _ in range(5):
        served.append(round_robin(there, served[-1]))
    assert served[1:] == ["a", "b", "c", "a", "b"]
    assert round_robin(there, "d") == "a"
    assert round_robin(there, "gone") == "a"
    assert [at_random(there, drawn) for drawn in (0.0, 0.34, 0.999)] == ["a", "b", "c"]
    assert first_come(there) == "a"


def test_greedy_is_frozen_after_ten_steps_without_change_and_stays_so() -> None:
    watch = watched(Freeze(), offers())
    for _ in range(FROZEN_AFTER - 1):
        watch = watched(watch, offers())
        assert not watch.frozen
        assert hybrid(offers(), watch, "b") == greedy(offers(), largest_gap) == "b"
    watch = watched(watch, offers())
    assert watch.frozen
    assert [hybrid(offers(), watch, last) for last in ("a", "b", "c")] == ["b", "c", "a"]
    assert watched(watch, offers()[:1]) == watch


def better(there: list[Offer]) -> list[Offer]:
    """The regret drops, the candidates are the same."""
    return [Offer("a", 0.99, 0.91, 0.10), *there[1:]]


def other_candidates(there: list[Offer]) -> list[Offer]:
    """The candidates change, the results do not."""
    return [there[0], Offer("b", 0.95, 0.50, 0.11), *there[2:]]


@pytest.mark.parametrize("change", [better, other_candidates])
def test_a_change_of_results_or_candidates_begins_the_count_again(change) -> None:
    watch = Freeze()
    for _ in range(FROZEN_AFTER):
        watch = watched(watch, offers())
    assert watch.unchanged == FROZEN_AFTER - 1
    watch = watched(watch, change(offers()))
    assert watch.unchanged == 0
    for _ in range(FROZEN_AFTER):
        watch = watched(watch, change(offers()))
    assert watch.frozen


@st.composite
def any_offers(draw: st.DrawFn) -> list[Offer]:
    numbers = st.floats(-1, 1)
    return [
        Offer(
            f"j{i}",
            draw(numbers),
            draw(st.none() | numbers),
            draw(st.none() | numbers),
            draw(st.floats(0, 1)),
            draw(st.booleans()),
        )
        for i in range(draw(st.integers(0, 6)))
    ]


@given(any_offers(), st.integers(0, 20), st.none() | st.sampled_from(["j0", "j3"]))
def test_whoever_is_chosen_has_a_step_and_somebody_is_where_anybody_has(
    there: list[Offer], unchanged: int, last: str | None
) -> None:
    watch = Freeze(unchanged=unchanged)
    found = [
        first_come(there),
        round_robin(there, last),
        at_random(there, 0.7),
        greedy(there, largest_gap),
        greedy(there, most_gain),
        hybrid(there, watch, last),
        most_gain(there),
    ]
    can = {offer.job for offer in there if offer.open}
    assert all(one in can if can else one is None for one in found)
    assert candidates(there) <= can
    assert bool(candidates(there)) == bool(can)


@given(any_offers())
def test_round_robin_serves_everyone_once_before_anyone_twice(there: list[Offer]) -> None:
    can = [offer.job for offer in there if offer.open]
    served: list[str | None] = []
    for _ in can:
        served.append(round_robin(there, served[-1] if served else None))
    assert sorted(map(str, served)) == can
