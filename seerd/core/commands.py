"""What the core can ask for. Each command names the events that can be its outcome; the shell answers with one of them, never with an error.

The one rule: a command's id is the sequence number of the event that caused it and its own index among that event's commands. It is the
same after every crash and in every replay, so agents and clouds can tell a repetition from a second order.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from planner.space import Value

Status = Literal["done", "deadline", "budget", "interrupted", "failed"]
"""done: the plan was carried out; deadline, budget: that limit ended it; interrupted: the person did; failed: nothing could run."""


class Command(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """`id`: "<sequence number of the causing event>.<index>"."""

    id: str


class SetTimer(Command, frozen=True, kw_only=True, tag="set-timer"):
    """Wake the core at `due` (seconds since the run began); replaces the timer before. Outcome: `TimerFired`."""

    due: float


class Launch(Command, frozen=True, kw_only=True, omit_defaults=True, tag="launch"):
    """Get one more instance. Outcomes: `InstanceReady`, `LaunchRefused`.

    `alone_s`: how long it may run without ever having had an agent, before it ends itself; None if it costs nothing by itself.
    """

    gpus: int
    alone_s: float | None = None


class Terminate(Command, frozen=True, kw_only=True, tag="terminate"):
    """Give an instance back, whatever runs there. Outcome: `InstanceTerminated`.

    `instance` is the id of its `Launch` if it is not ready yet: then whatever that launch has brought or will bring is given back.
    """

    instance: str


class StartTrial(Command, frozen=True, kw_only=True, omit_defaults=True, tag="start-trial"):
    """Start an attempt on these GPUs, from the newest readable of `checkpoints` (newest first).

    `beside`: the further instances of a trial that is larger than one, and its GPUs there.
    Outcomes: `TrialStarted` and later `TrialExited`; `OrderRefused`; `InstanceLost`.
    """

    trial: str
    attempt: int
    instance: str
    gpus: tuple[int, ...]
    config: dict[str, Value]
    seed: int
    checkpoints: tuple[str, ...]
    beside: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every instance whose agent must be told."""
        return (self.instance, *(name for name, _ in self.beside))


class StopTrial(Command, frozen=True, kw_only=True, omit_defaults=True, tag="stop-trial"):
    """End an attempt: with `checkpoint` it may save and exit within `grace_s`, without it is killed.

    `beside`: the further instances on which it may still have processes. Outcomes, of each: `TrialExited`, `InstanceLost`.
    """

    trial: str
    attempt: int
    instance: str
    checkpoint: bool
    grace_s: float
    beside: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every instance whose agent must be told."""
        return (self.instance, *self.beside)


class Publish(Command, frozen=True, kw_only=True, tag="publish"):
    """Put a checkpoint into the run's folder as its result. Outcomes: `ModelPublished`, `PublishFailed`."""

    trial: str
    config: dict[str, Value]
    checkpoint: str
    sha256: str
    metric: float


class Finish(Command, frozen=True, kw_only=True, tag="finish"):
    """The run is over; there is nothing left to ask for."""

    status: Status


AnyCommand = SetTimer | Launch | Terminate | StartTrial | StopTrial | Publish | Finish
