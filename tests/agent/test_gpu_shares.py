"""Agents divide GPUs as the planner does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seerd.agent import gpu_shares
from seerd.planner import dividing

WEIGHTS = st.sampled_from([0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 10.0])
CLAIMS = st.lists(st.tuples(st.integers(0, 20), WEIGHTS, st.integers(1, 9)), max_size=6)


@given(st.integers(0, 40), CLAIMS)
def test_shares_are_those_of_the_planner(gpus: int, claims: list[tuple[int, float, int]]) -> None:
    named = [(str(number), *claim) for number, claim in enumerate(claims)]
    assert gpu_shares.fair_shares(
        gpus, [gpu_shares.Wish(*claim) for claim in named]
    ) == dividing.fair_shares(gpus, [dividing.Claim(*claim) for claim in named])
