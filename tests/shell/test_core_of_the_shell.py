"""What the parts below the daemon ask of the state."""

from __future__ import annotations

from seerd.clock import RunClock
from seerd.core.events import TrialStarted
from seerd.core.state import new_state
from seerd.core.step import step
from seerd.shell.core import Core
from tests.conftest import small_facts


def test_facts_of_an_agent_that_is_not_ready_yet_are_received_once() -> None:
    """A daemon that was killed after it committed them, and before it acknowledged them, must not
    be sent them again.
    """
    state = new_state(small_facts(billing="rented"))
    fact = TrialStarted(
        at=2.0, instance="i-1", fact=7, happened=1.0, trial="t0001", attempt=1, pid=7
    )
    step(state, fact)
    assert Core(state, RunClock(0.0)).known("i-1") == (7, "")
    assert Core(state, RunClock(0.0)).known("i-2") == (0, "")
