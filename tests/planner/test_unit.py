"""Configurations as points: the same columns for all, between 0 and 1, and as distances mean it."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd.planner.space import Parameter, Space
from seerd.planner.unit import columns, unit
from tests.planner.spaces import MIXED, spaces


@given(spaces() | st.just(MIXED), st.integers(0, 2**32))
def test_points_have_the_columns_of_their_space_and_lie_in_the_cube(
    space: Space, seed: int
) -> None:
    rng = random.Random(seed)
    for config in (space.sample(rng), space.defaults(), {}):
        point = unit(space, config)
        assert point.shape == (columns(space),)
        assert point.dtype == np.float64
        assert ((point >= 0) & (point <= 1)).all()


@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_different_configurations_are_different_points(one: int, other: int) -> None:
    first, second = (MIXED.sample(random.Random(seed)) for seed in (one, other))
    assert (first == second) == bool((unit(MIXED, first) == unit(MIXED, second)).all())


def test_draws_are_uniform_in_the_cube() -> None:
    space = Space(
        (
            Parameter("lr", low=1e-4, high=1.0, log=True),
            Parameter("beta", mean=0.9, std=0.02, low=0.88, high=0.999),
            Parameter("decay", mean=1e-4, std=3.0, low=1e-6, high=1e-2, log=True),
        )
    )
    rng = random.Random(0)
    points = np.array([unit(space, space.sample(rng)) for _ in range(2000)])
    shares = np.sort(points, axis=0) - np.linspace(0, 1, 2000)[:, None]
    assert np.abs(shares).max() < 0.04  # Kolmogorov's distance at p = 0.003


def test_each_kind_has_its_columns() -> None:
    first, *rest = MIXED.parameters
    assert (first.name, [p.name for p in rest][:3]) == ("lr", ["optimizer", "momentum", "nesterov"])
    config = {"lr": 0.01, "optimizer": "sgd", "momentum": 0.8, "nesterov": True}
    sgd = unit(MIXED, config)
    assert sgd[:9].tolist() == pytest.approx([0.5, 1, 0, 0, 1, 0.0, 1, 1, 0])
    adam = unit(MIXED, {"lr": 0.01, "optimizer": "adam"})
    assert adam[:9].tolist() == pytest.approx([0.5, 0, 1, 0, 0, 0.5, 0, 0.5, 0.5])


def test_a_value_that_is_none_of_the_choices_is_refused() -> None:
    with pytest.raises(ValueError, match="no choice of optimizer"):
        unit(MIXED, {"optimizer": "sdg"})
