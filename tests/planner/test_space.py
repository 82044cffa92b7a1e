"""Search spaces: draws stay inside, integers stay integers, steps are kept."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd.planner.space import Parameter, Space


@given(st.integers(0, 2**32), st.floats(1e-6, 1.0), st.floats(1.5, 1e6), st.booleans())
def test_ranges_stay_inside(seed: int, low: float, factor: float, log: bool) -> None:
    parameter = Parameter("x", low=low, high=low * factor, log=log)
    assert low <= parameter.sample(random.Random(seed)) <= low * factor  # type: ignore[operator]


@given(st.integers(0, 2**32), st.integers(-20, 20), st.integers(1, 40), st.integers(1, 9))
def test_integers_stay_on_their_grid(seed: int, low: int, span: int, step: int) -> None:
    parameter = Parameter("x", low=low, high=low + span, step=min(step, span), integer=True)
    value = parameter.sample(random.Random(seed))
    assert type(value) is int
    assert low <= value <= low + span
    assert (value - low) % min(step, span) == 0


def test_log_ranges_are_uniform_in_the_exponent() -> None:
    rng = random.Random(0)
    parameter = Parameter("lr", low=1e-4, high=1.0, log=True)
    draws = [math.log10(float(parameter.sample(rng))) for _ in range(4000)]
    assert sum(draws) / len(draws) == pytest.approx(-2.0, abs=0.1)


def test_one_draw_per_parameter_in_the_order_of_the_spec() -> None:
    space = Space((Parameter("a", choices=(1, 2, 3)), Parameter("b", low=0, high=1)))
    rng, again = random.Random(5), random.Random(5)
    assert list(space.sample(rng)) == ["a", "b"]
    assert space.sample(rng) != space.sample(random.Random(5))
    assert space.sample(again) == space.sample(random.Random(5))


def test_defaults_are_the_first_choice_and_the_middle() -> None:
    space = Space(
        (
            Parameter("a", choices=("x", "y")),
            Parameter("b", low=1e-4, high=1.0, log=True),
            Parameter("c", low=2, high=8, step=2, integer=True),
        )
    )
    assert space.defaults() == {"a": "x", "b": pytest.approx(1e-2), "c": 6}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"low": 2, "high": 1}, "smaller"),
        ({"low": 0, "high": 1, "log": True}, "greater than 0"),
        ({"low": 0, "high": 1, "step": 2}, "fit"),
    ],
)
def test_senseless_ranges_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Parameter("x", **fields)
