"""How often EC2 is asked what has become of a run's instances: often enough to account for them,
and never so often that others suffer.
"""

from __future__ import annotations

from seerd.backends.ec2.fleet import BUSY_S, CALM_S

ALLOWED_PER_S = 20.0
"""docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html"""
RUNS = 50
"""Of one account in one region, at the same time."""


def test_what_the_ledger_may_have_too_much_at_a_start_is_less_than_a_second() -> None:
    """From the last question before a start to the start: a start is awaited."""
    for took_s in (0.01, 0.04, 0.08):
        assert took_s + BUSY_S + took_s < 1.0


def test_calm_runs_of_one_account_leave_it_half_of_its_questions() -> None:
    assert RUNS / CALM_S <= ALLOWED_PER_S / 2


def test_a_busy_run_leaves_an_account_most_of_its_questions() -> None:
    assert 1.0 / BUSY_S <= ALLOWED_PER_S / 8, "others ask too"
