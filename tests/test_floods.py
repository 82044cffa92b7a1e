"""A real run whose trials report as fast as they can."""

from __future__ import annotations

from bench.flood import seen

MOST_MB = 150
"""What docs/rules.md promises of daemon and agent."""


def test_in_a_flood_of_reports_limits_hold_and_memory_has_a_bound() -> None:
    made = seen(slots=2, rate=1_000_000, deadline_s=12)
    assert made["reports_a_second"] > 1000
    assert made["over_s"] <= 1
    assert 0 < made["of_budget"] <= 1
    assert 0 < made["daemon_mb"] < MOST_MB
    assert 0 < made["agent_mb"] < MOST_MB
