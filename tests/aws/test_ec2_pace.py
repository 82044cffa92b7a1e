"""How often EC2 is asked what has become of a run's instances: often enough to account for them,
and never so often that others suffer.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd.shell.providers.ec2_fleet import BUSY_S, CALM_S, SLOW_S, rest_s

ALLOWED_PER_S = 20.0
"""docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html"""


@pytest.mark.parametrize("every_s", [BUSY_S, CALM_S])
def test_quick_answers_are_asked_for_at_an_even_pace(every_s: float) -> None:
    for took_s in (0.0, 0.02, 0.08):
        assert took_s + rest_s(every_s, took_s) == pytest.approx(every_s)


def test_what_the_ledger_may_have_too_much_is_less_than_a_second() -> None:
    """From the last question before a start to the first after it, from an end to the next
    question, and the answers.
    """
    for took_s in (0.01, 0.04, 0.08):
        too_early_s = took_s + rest_s(BUSY_S, took_s)
        too_late_s = took_s + rest_s(CALM_S, took_s) + took_s
        assert too_early_s + too_late_s < 1.0


@given(st.sampled_from([BUSY_S, CALM_S]), st.floats(0.0, 600.0))
def test_a_slow_answer_is_followed_by_a_rest(every_s: float, took_s: float) -> None:
    rested_s = rest_s(every_s, took_s)
    assert 0.0 < rested_s <= SLOW_S
    assert rested_s >= min(SLOW_S, 2 * took_s)
    assert 1.0 / (took_s + rested_s) <= ALLOWED_PER_S / 4, "others ask too"
