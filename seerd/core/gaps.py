"""What a journal lacks by what agents and the store know: its end was lost, or an older copy was
put back.

The one rule: an agent's fact is acknowledged, and an order given, only once it is committed. So a
journal that has less has lost events, however whole it looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from seerd.core.events import AgentFact, AnyEvent
from seerd.core.state import State


def lacks(state: State, instance: str, launch: str) -> bool:
    """Return whether the journal lacks an instance and its launch, given by their ids."""
    number, last = launch.partition(".")[0], state.next_id.partition(".")[0]
    return instance not in state.fleet.instances and number.isdecimal() and int(number) > int(last)


def gap(
    state: State,
    acked: Mapping[str, int],
    strays: Mapping[str, float],
    facts: Iterable[AnyEvent],
    known_until_s: float,
) -> tuple[float, float] | None:
    """Return from when until when events are missing, in seconds since the run began; None: none.

    Args:
        state: as the journal has it.
        acked: instance -> number of the last fact that was acknowledged to its agent.
        strays: what the journal has never started or launched -> when it was last at work, in
            seconds since the run began.
        facts: what agents have reported since.
        known_until_s: until when events are known to be missing for another reason.

    """
    ahead = any(acked.get(one.id, 0) > one.seen for one in state.fleet.instances.values())
    if not ahead and not strays:
        return (state.now, known_until_s) if known_until_s > state.now else None
    times = (event.happened for event in facts if isinstance(event, AgentFact))
    return state.now, max(state.now, known_until_s, *strays.values(), *times)
