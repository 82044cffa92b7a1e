"""A plan by how it differs from the one before: nothing is lost, and no more is said than
needed.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seerd.core.plans import STAYS, New, Order, PlanChange, Put, difference
from seerd.planner.model import Allocation, Compared, NewTrial, Plan
from tests.examples import few

TRIALS = [f"t{number:04}" for number in range(24)]


def allocations_of(
    trials: st.SearchStrategy[list[str]],
) -> st.SearchStrategy[tuple[Allocation, ...]]:
    def one(trial: str) -> st.SearchStrategy[Allocation]:
        until = st.none() | st.integers(1, 3)
        return st.builds(Allocation, st.just(trial), st.integers(1, 2), st.integers(0, 1), until)

    return trials.flatmap(lambda names: st.tuples(*map(one, names)))


ANY = allocations_of(st.lists(st.sampled_from(TRIALS), unique=True))
FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = FINITE | st.integers(-(2**53), 2**53) | st.text(max_size=4) | st.booleans()
NEW = st.builds(
    NewTrial, st.sampled_from(TRIALS), st.dictionaries(st.text(max_size=4), VALUES, max_size=3)
)
NUMBERS = st.integers(0, 9)
COMPARED = st.builds(
    Compared, st.sampled_from(TRIALS), st.none() | FINITE, *[NUMBERS] * 5, final=st.booleans()
)
PLANS = st.builds(
    Plan,
    ANY,
    st.lists(NEW, max_size=3).map(tuple),
    st.lists(st.sampled_from(TRIALS), max_size=3).map(tuple),
    NUMBERS,
    st.none() | FINITE,
    NUMBERS,
    st.booleans(),
    st.booleans(),
    st.lists(COMPARED, max_size=3).map(tuple),
    st.text(max_size=9),
)


def written(change: PlanChange) -> PlanChange:
    return msgspec.json.decode(msgspec.json.encode(change), type=PlanChange)


def plan(text: str) -> Plan:
    """A letter for each trial; `b2`: on two GPUs."""
    words = text.split()
    return Plan(tuple(Allocation(word[0], int(word[1:] or 1)) for word in words))


def change(before: str, after: str) -> PlanChange:
    return difference(Order(plan(before).allocations), plan(after))


@settings(max_examples=few(60), deadline=None)
@given(ANY, PLANS)
def test_the_difference_applied_is_the_new_plan(
    before: tuple[Allocation, ...], after: Plan
) -> None:
    order = Order(before)
    found = written(difference(order, after))
    assert found == difference(order, after)
    order.apply(found)
    assert tuple(order) == after.allocations
    assert [allocation.trial for allocation in order] == list(order.names)
    assert len(order) == len(after.allocations)
    assert all(one.trial in order and order.get(one.trial) == one for one in after.allocations)
    assert [NewTrial(new.trial, new.config) for new in found.new] == list(after.new)
    for name in (
        "eliminated",
        "stage",
        "ask_at_s",
        "hold_gpus",
        "ask_on_end",
        "done",
        "compared",
        "note",
    ):
        assert getattr(found, name) == getattr(after, name)


@settings(max_examples=few(80), deadline=None)
@given(ANY, ANY)
def test_no_more_is_said_than_needed(
    before: tuple[Allocation, ...], after: tuple[Allocation, ...]
) -> None:
    """Whoever keeps place and values among the others is not named, and of one that moves no other
    is.
    """
    found = difference(Order(before), Plan(after))
    old, new = [one.trial for one in before], [one.trial for one in after]
    others = [one for one in before if one != before[0]]
    for place in range(len(before)):
        moved = difference(Order(before), Plan((*others[:place], before[0], *others[place:])))
        assert len(moved.put) == (place > 0)
    stays = [put for put in found.put if put.place == STAYS]
    assert all(Order(before).get(put.trial) != Order(after).get(put.trial) for put in stays)
    assert set(found.gone) == set(old) - set(new)


@settings(deadline=None)
@given(ANY)
def test_an_order_can_be_made_of_nothing(allocations: tuple[Allocation, ...]) -> None:
    order = Order()
    order.apply(PlanChange(put=Order(allocations).puts()))
    assert tuple(order) == allocations


def test_what_changes_is_put_where_it_belongs() -> None:
    assert change("a b c", "a b c") == PlanChange()
    assert change("a b c", "a b2 c") == PlanChange(put=(Put("b", 2, 0, None, STAYS),))
    assert change("a b c", "a c") == PlanChange(gone=("b",))
    assert change("a b c", "a x b c") == PlanChange(put=(Put("x", 1, 0, None, 1),))
    assert change("a b c d", "d a b c") == PlanChange(put=(Put("d", 1, 0, None, 0),))
    assert change("a b c d", "b2 c a2 x") == PlanChange(
        gone=("d",),
        put=(Put("b", 2, 0, None, STAYS), Put("a", 2, 0, None, 2), Put("x", 1, 0, None, 3)),
    )


def test_it_is_short_when_written_down() -> None:
    assert msgspec.json.encode(PlanChange()) == b"{}"
    assert msgspec.json.encode(change("a b", "b2")) == b'{"gone":["a"],"put":[["b",2,0,null,-1]]}'
    some = PlanChange(
        new=(New("t1", {"lr": 1.0}),), compared=(Compared("t1", None, 1, 1, 2, 1, 0, final=False),)
    )
    assert msgspec.json.encode(some) == (
        b'{"new":[["t1",{"lr":1.0}]],"compared":[["t1",null,1,1,2,1,0,false]]}'
    )


def test_a_trial_twice_is_no_plan() -> None:
    with pytest.raises(ValueError, match="twice"):
        change("a", "a b a")


@pytest.mark.parametrize(
    "wrong",
    [
        PlanChange(gone=("x",)),
        PlanChange(gone=tuple("stuvwxyzb")),
        PlanChange(put=(Put("x", 1, 0, None, STAYS),)),
        PlanChange(put=(Put("x", 1, 0, None, 4),)),
        PlanChange(put=(Put("x", 1, 0, None, -2),)),
        PlanChange(put=(Put("x", 1, 0, None, 1), Put("y", 1, 0, None, 0))),
    ],
)
def test_a_change_of_another_order_is_refused(wrong: PlanChange) -> None:
    order = Order(plan("a b c").allocations)
    with pytest.raises(ValueError):
        order.apply(wrong)
    assert tuple(order) == plan("a b c").allocations


def test_of_a_plan_that_wants_nothing_nothing_is_written() -> None:
    assert msgspec.json.encode(difference(Order(), Plan())) == b"{}"
