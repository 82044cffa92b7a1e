"""How often EC2 is asked what has become of a run's instances: often enough to account for them,
and never so often that others suffer.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd.backends.ec2.fleet import BUSY_S, CALM_S, SLOW_S, rest_s

ALLOWED_PER_S = 20.0
"""docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html"""
RUNS = 50
"""Of one account in one region, at the same time."""


@pytest.mark.parametrize("every_s", [BUSY_S, CALM_S])
def test_quick_answers_are_asked_for_at_an_even_pace(every_s: float) -> None:
    for took_s in (0.0, 0.02, 0.08):
        assert took_s + rest_s(every_s, took_s) == pytest.approx(every_s)


def test_what_the_ledger_may_have_too_much_at_a_start_is_less_than_a_second() -> None:
    """From the last question before a start to the start: a start is awaited."""
    for took_s in (0.01, 0.04, 0.08):
        assert took_s + rest_s(BUSY_S, took_s) + took_s < 1.0


def test_calm_runs_of_one_account_leave_it_half_of_its_questions() -> None:
    assert RUNS / CALM_S <= ALLOWED_PER_S / 2


@given(st.floats(0.0, 600.0))
def test_a_slow_answer_is_followed_by_a_rest(took_s: float) -> None:
    busy_s, calm_s = rest_s(BUSY_S, took_s), rest_s(CALM_S, took_s)
    assert 0.0 < busy_s <= SLOW_S
    assert busy_s <= calm_s <= CALM_S
    assert busy_s >= min(SLOW_S, 2 * took_s)
    assert 1.0 / (took_s + busy_s) <= ALLOWED_PER_S / 8, "others ask too"
