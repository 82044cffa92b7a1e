"""Values of the agent: as frozen data classes are, in all that anybody uses of them."""

import dataclasses
from dataclasses import FrozenInstanceError, dataclass, field
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd.agent.record import record


def body(decorator):
    class Value:
        """The same fields, twice."""

        kind: ClassVar[str] = "value"
        one: int
        two: str = "b"
        three: list = field(default_factory=list)

        @property
        def twice(self):
            return self.one * 2

    return decorator(Value)


OURS = body(record)
THEIRS = body(dataclass(frozen=True))
CALLS = st.tuples(
    st.lists(st.integers(0, 2), max_size=4),
    st.dictionaries(st.sampled_from(["one", "two", "three", "four"]), st.integers(0, 2)),
)


def outcome(work):
    try:
        return work()
    except TypeError:
        return TypeError


@given(CALLS, CALLS)
def test_it_is_made_compared_shown_and_changed_as_a_frozen_data_class_is(first, second):
    def told(cls):
        made, other = (
            outcome(lambda call=call: cls(*call[0], **call[1])) for call in (first, second)
        )
        if TypeError in (made, other):
            return made is TypeError, other is TypeError
        return (
            dataclasses.astuple(made),
            dataclasses.asdict(other),
            repr(made),
            made == other,
            outcome(lambda: hash(made)),
            dataclasses.astuple(dataclasses.replace(made, one=7)),
            made.twice,
            [one.name for one in dataclasses.fields(cls)],
            vars(made),
        )

    assert told(OURS) == told(THEIRS)


def test_it_is_not_equal_to_another_kind_with_the_same_values():
    assert OURS(1) != THEIRS(1)
    assert OURS(1) != (1, "b", [])


def test_a_default_is_made_for_each():
    assert OURS(1).three is not OURS(1).three


def test_it_cannot_be_changed():
    value = OURS(1)
    with pytest.raises(FrozenInstanceError, match="one"):
        value.one = 2
    with pytest.raises(FrozenInstanceError, match="two"):
        del value.two
    assert value == OURS(1)


def test_a_wrong_call_names_what_is_wrong():
    with pytest.raises(
        TypeError, match=r"Value takes one, two, three; missing or unknown: four, one"
    ):
        OURS(two="a", four=4)
    with pytest.raises(TypeError, match=r"Value takes one, two, three, each once"):
        OURS(1, one=1)
