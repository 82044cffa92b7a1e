"""Through which phases a run, a trial and an instance go: one table of legal moves each; the
diagrams in the docs are drawn from them.

The one rule: a phase changes only through `move`, and only along its table. An illegal move is a
bug of the core and raises at once.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar


class RunPhase(StrEnum):
    """running: trials train; closing: they save and exit; releasing: the best model is published,
    instances are given back; over.
    """

    RUNNING = "running"
    CLOSING = "closing"
    RELEASING = "releasing"
    OVER = "over"


class TrialPhase(StrEnum):
    """waiting: no process, may run (on); starting, running, stopping: an attempt holds GPUs; the
    others are ends.
    """

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    ELIMINATED = "eliminated"
    FAILED = "failed"


class InstancePhase(StrEnum):
    """requested: asked for; ready: its agent takes orders; leaving: the cloud will take it away;
    releasing: being given back; terminated: costs nothing any more.
    """

    REQUESTED = "requested"
    READY = "ready"
    LEAVING = "leaving"
    RELEASING = "releasing"
    TERMINATED = "terminated"
    REFUSED = "refused"


RUN_MOVES: dict[RunPhase, frozenset[RunPhase]] = {
    RunPhase.RUNNING: frozenset({RunPhase.CLOSING}),
    RunPhase.CLOSING: frozenset({RunPhase.RELEASING}),
    RunPhase.RELEASING: frozenset({RunPhase.OVER}),
    RunPhase.OVER: frozenset(
        {RunPhase.RUNNING, RunPhase.RELEASING}
    ),  # an interrupted run, or one without its model, that is resumed
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
    """The core tried to move something along a way that its table does not have."""


def move(moves: dict[Phase, frozenset[Phase]], who: str, old: Phase, new: Phase) -> Phase:
    """`new`, if the table allows it from `old`."""
    if new not in moves[old]:
        raise IllegalMoveError(f"{who} cannot go from {old} to {new}")
    return new
