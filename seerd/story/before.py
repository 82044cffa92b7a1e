"""What is kept of the state before a step, so that it can be compared with the state after it.

The one rule: only what the event can change is looked at, so that a step costs the same with one trial as with ten thousand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.model import Allocation, Plan
from seerd.core.commands import StartTrial, StopTrial
from seerd.core.events import (
    AnyEvent,
    InstanceLost,
    InstanceTerminated,
    OrderRefused,
    RunResumed,
    TrialExited,
)
from seerd.core.lifecycle import InstancePhase, RunPhase
from seerd.core.placement import Assignment
from seerd.core.state import THERE, State, Trial


@dataclass(frozen=True, slots=True)
class TrialBefore:
    """A trial that the event may end an attempt of. `stop`: the order to stop it that was under way."""

    attempt: int
    held: Assignment | None
    ended_on: frozenset[str]
    crashes: int
    losses: int
    stop: StopTrial | None


@dataclass(frozen=True, slots=True)
class Before:
    """`wanted` is the plan's allocations as they were; `there`: instances that had been ready, looked at only when a run is resumed; `leaving`:
    those that the cloud was taking away.
    """

    now_s: float
    phase: RunPhase
    plan: Plan
    wanted: dict[str, Allocation]
    live: int
    needed: int
    launch_at_s: float
    trials: dict[str, TrialBefore]
    there: tuple[str, ...]
    leaving: tuple[str, ...]

    @classmethod
    def of(cls, state: State, event: AnyEvent) -> Before:
        """Taken before `event` is handled."""
        resumed = isinstance(event, RunResumed)
        return cls(
            state.now,
            state.phase,
            state.plan,
            state.plan.wanted,
            state.fleet.live,
            state.aims.needed,
            state.fleet.launch_at,
            {trial.id: _trial(state, trial) for trial in _concerned(state, event)},
            tuple(i.id for i in state.fleet.instances.values() if i.phase in THERE) if resumed else (),
            _leaving(state) if state.fleet.leaving else (),
        )


def _leaving(state: State) -> tuple[str, ...]:
    return tuple(i.id for i in state.fleet.instances.values() if i.phase is InstancePhase.LEAVING)


def _concerned(state: State, event: AnyEvent) -> Iterable[Trial]:
    names: Iterable[str] = ()
    if isinstance(event, TrialExited):
        names = (event.trial,)
    elif isinstance(event, OrderRefused):
        order = state.under_way.get(event.command)
        names = (order.trial,) if isinstance(order, StartTrial) else ()
    elif isinstance(event, InstanceLost | InstanceTerminated):
        instance = state.fleet.instances.get(event.instance)
        names = () if instance is None else dict.fromkeys(instance.busy.values())
    elif isinstance(event, RunResumed):
        names = [trial.id for trial in state.trials.values() if trial.held is not None]
    return [state.trials[name] for name in names if name in state.trials]


def _trial(state: State, trial: Trial) -> TrialBefore:
    stop = state.under_way.get(trial.stop_command or "")
    return TrialBefore(
        trial.attempt,
        trial.held,
        frozenset(trial.ends),
        trial.crashes,
        trial.losses,
        stop if isinstance(stop, StopTrial) else None,
    )
