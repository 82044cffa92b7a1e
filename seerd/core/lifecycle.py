"""The phases of a run, a trial and an instance, and one table of legal moves for each, from which
the diagrams in the docs are drawn. A phase changes only through `move`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar


class RunPhase(StrEnum):
    """Phase of a run."""

    RUNNING = "running"  # trials train
    CLOSING = "closing"  # trials save and exit
    RELEASING = "releasing"  # the best model is published, and instances are given back
    OVER = "over"  # nothing is left to do


class TrialPhase(StrEnum):
    """Phase of a trial. An attempt holds GPUs in starting, running and stopping."""

    WAITING = "waiting"  # it has no process, and may run later
    STARTING = "starting"  # an attempt has been ordered
    RUNNING = "running"  # the attempt's processes exist
    STOPPING = "stopping"  # the attempt has been asked to end
    FINISHED = "finished"  # its script has ended by itself
    ELIMINATED = "eliminated"  # the policy has dropped it
    FAILED = "failed"  # it has failed too often, or ended without a report


class InstancePhase(StrEnum):
    """Phase of an instance."""

    REQUESTED = "requested"  # it has been asked for
    READY = "ready"  # its agent takes orders
    LEAVING = "leaving"  # the cloud will take it away, or it must not be used any more
    RELEASING = "releasing"  # it is being given back
    TERMINATED = "terminated"  # it costs nothing any more
    REFUSED = "refused"  # it never came


RUN_MOVES: dict[RunPhase, frozenset[RunPhase]] = {
    RunPhase.RUNNING: frozenset({RunPhase.CLOSING}),
    RunPhase.CLOSING: frozenset({RunPhase.RELEASING}),
    RunPhase.RELEASING: frozenset({RunPhase.OVER}),
    # An interrupted run that is resumed goes on; one without its model fetches that.
    RunPhase.OVER: frozenset({RunPhase.RUNNING, RunPhase.RELEASING}),
}

_ENDS = (TrialPhase.FINISHED, TrialPhase.ELIMINATED, TrialPhase.FAILED)

TRIAL_MOVES: dict[TrialPhase, frozenset[TrialPhase]] = {
    TrialPhase.WAITING: frozenset({TrialPhase.STARTING, TrialPhase.ELIMINATED, TrialPhase.FAILED}),
    TrialPhase.STARTING: frozenset(
        {TrialPhase.RUNNING, TrialPhase.STOPPING, TrialPhase.WAITING, *_ENDS}
    ),
    TrialPhase.RUNNING: frozenset({TrialPhase.STOPPING, TrialPhase.WAITING, *_ENDS}),
    TrialPhase.STOPPING: frozenset({TrialPhase.WAITING, *_ENDS}),
    **{end: frozenset() for end in _ENDS},
}

INSTANCE_MOVES: dict[InstancePhase, frozenset[InstancePhase]] = {
    InstancePhase.REQUESTED: frozenset(
        {InstancePhase.READY, InstancePhase.REFUSED, InstancePhase.RELEASING}
    ),
    InstancePhase.READY: frozenset(
        {InstancePhase.LEAVING, InstancePhase.RELEASING, InstancePhase.TERMINATED}
    ),
    InstancePhase.LEAVING: frozenset({InstancePhase.RELEASING, InstancePhase.TERMINATED}),
    InstancePhase.RELEASING: frozenset({InstancePhase.TERMINATED}),
    InstancePhase.TERMINATED: frozenset(),
    InstancePhase.REFUSED: frozenset(),
}

Phase = TypeVar("Phase", RunPhase, TrialPhase, InstancePhase)


class IllegalMoveError(Exception):
    """The core moves something along a way that its table does not have: a bug."""


def move(moves: dict[Phase, frozenset[Phase]], who: str, old: Phase, new: Phase) -> Phase:
    """Return `new`, if the table allows it from `old`. Raises `IllegalMoveError` otherwise."""
    if new not in moves[old]:
        raise IllegalMoveError(f"{who} cannot go from {old} to {new}")
    return new
