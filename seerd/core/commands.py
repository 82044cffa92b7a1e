"""What the core can ask for. The shell answers a command with one of its outcomes, never with an
error.

The one rule: a command's id is the number of the event that caused it and its index among that
event's commands. It is the same after every crash and in every replay, so agents and clouds
recognise a repetition.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from seerd.planner.space import Value

Status = Literal[
    "done",  # the plan was carried out
    "target",  # a model that is good enough is in the store
    "deadline",  # that limit ended the run
    "budget",  # that limit ended the run
    "interrupted",  # the user ended it
    "failed",  # nothing could run
]
"""How a run ends."""


AskCause = Literal[
    "began",  # the run began
    "clock",  # a stage is over by the clock
    "reports",  # a trial has made as many reports as the policy wanted to see
    "ended",  # a trial has ended
    "resumed",  # an interrupted run goes on
    "untrue",  # the last answer wanted trials that had ended meanwhile
    "again",  # the last answer could not be used
    "extended",  # the user has extended the limits
    "added",  # the user has added a configuration
    "jobs",  # one of the jobs that share the run is over, has come, or has another weight
]
"""Why the policy is asked."""
LaunchCause = Literal[
    "plan",  # the wanted trials need it
    "replacement",  # other instances are gone or about to be
    "again",  # a launch was refused before
    "room",  # more may be there now than before
    "resumed",  # a run goes on after a restart
]
"""Why an instance is asked for."""
TerminateCause = Literal[
    "idle",  # fewer instances are needed now
    "leaving",  # the cloud takes it away, and nothing runs there any more
    "end",  # the run is over
]
"""Why an instance is given back."""
StartCause = Literal[
    "first",  # the trial has never run
    "resized",  # it has another number of GPUs now
    "moved",  # it has other GPUs now
    "went-on",  # it was paused
    "crashed",  # its last attempt ended by its own fault
    "small",  # its last attempt had too little memory on its part of a GPU
    "blocked",  # something was in the way of its last attempt
    "lost",  # its last attempt ended by a machine's fault
]
"""Why an attempt is started."""
StopCause = Literal[
    "out",  # the trial is eliminated
    "resized",  # it gets another number of GPUs
    "moved",  # it gets other GPUs, so that fewer instances are needed
    "displaced",  # others get its GPUs, and it waits
    "shared",  # another run gets its GPUs
    "reached",  # it has made the `until` reports after which it is compared with others
    "paused",  # the plan does not want it to run now
    "leaving",  # the cloud takes the instance away
    "node",  # the attempt has ended on another of its instances
    "hung",  # some of its ranks do nothing, and the others wait for them
    "closing",  # the run is being ended
    "hard",  # the user wants the run to end at once
]
"""Why an attempt is ended."""
PublishCause = Literal[
    "best",  # it is the best confirmed one
    "better",  # it became known after another had been handed back, and is better
    "next",  # the one before could not be read
]
"""Why a checkpoint is handed back."""


class Command(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Base of all commands."""

    id: str  # "<sequence number of the event that caused it>.<index>"

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every instance whose agent gets the order; empty: no agent carries it out."""
        return ()


class SetTimer(Command, frozen=True, kw_only=True, tag="set-timer"):
    """Wake the core at `due`, replacing the timer set before. Outcome: `TimerFired`."""

    due: float  # seconds since the run began


class AskPolicy(Command, frozen=True, kw_only=True, omit_defaults=True, tag="ask-policy"):
    """Ask the policy for a plan. Outcomes: `PolicyAnswered`, `PolicyFailed`."""

    why: AskCause
    trial: str | None = None


class Launch(
    Command,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag="launch",
    rename={"orphan_timeout_s": "alone_s"},
):
    """Get one more instance. Outcomes: `InstanceReady`, `LaunchRefused`."""

    gpus: int  # how many GPUs it must have, or may have at most where sizes differ
    orphan_timeout_s: float | None = None  # seconds until it ends if no agent came; None: no end
    why: LaunchCause


class Terminate(Command, frozen=True, kw_only=True, omit_defaults=True, tag="terminate"):
    """Give an instance back, whatever runs there. Outcome: `InstanceTerminated`, or `InstanceKept`
    if it is to be kept, and before it `CheckpointFetched` if there is something to fetch.
    """

    # its id; before it is ready that of its `Launch`: all that this has brought or will bring
    instance: str
    why: TerminateCause
    # trials, with attempts, that may have left checkpoints there that could not be stored: the best
    # of these is fetched first
    left: tuple[tuple[str, int], ...] = ()
    # until when it waits for another run, which this run pays, in seconds into the run; None: it is
    # not kept
    keep_until_s: float | None = None


class StartTrial(Command, frozen=True, kw_only=True, omit_defaults=True, tag="start-trial"):
    """Start an attempt, from the newest checkpoint that can be read. Outcomes: `TrialStarted` and
    later `TrialExited`; `OrderRefused`; `InstanceLost`.
    """

    trial: str
    attempt: int  # number of the attempt, from 1
    instance: str  # instance of node 0
    gpus: tuple[int, ...]  # indices of its GPUs there
    config: dict[str, Value]  # value of each hyperparameter
    seed: int  # seed of the trial's random numbers
    checkpoints: tuple[str, ...]  # names of its checkpoints, newest first
    beside: tuple[tuple[str, tuple[int, ...]], ...] = ()  # its other instances and GPUs there
    why: StartCause

    @property
    def nodes(self) -> tuple[str, ...]:  # noqa: D102 - see `Command`
        return (self.instance, *(name for name, _ in self.beside))


class StopTrial(Command, frozen=True, kw_only=True, omit_defaults=True, tag="stop-trial"):
    """End an attempt. Outcomes, for each of its instances: `TrialExited`, `InstanceLost`."""

    trial: str
    attempt: int
    instance: str
    checkpoint: bool
    grace_s: float
    beside: tuple[str, ...] = ()
    why: StopCause
    others: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:  # noqa: D102 - see `Command`
        return (self.instance, *self.beside)


class GrowTrial(Command, frozen=True, kw_only=True, tag="grow-trial"):
    """Let an attempt use more slots of the GPU of which it has a part. It stands until the attempt
    ends, so that an agent that has lost its connection gets it again.
    """

    trial: str
    attempt: int
    instance: str
    gpus: tuple[int, ...]  # all slots that it has from now on

    @property
    def nodes(self) -> tuple[str, ...]:  # noqa: D102 - see `Command`
        return (self.instance,)


class Publish(Command, frozen=True, kw_only=True, omit_defaults=True, tag="publish"):
    """Copy a checkpoint to the run's folder. Outcomes: `ModelPublished`, `PublishFailed`."""

    trial: str
    config: dict[str, Value]
    checkpoint: str
    sha256: str
    metric: float
    why: PublishCause


class Finish(Command, frozen=True, kw_only=True, tag="finish"):
    """The run is over and nothing is left to ask for. It has no outcome."""

    status: Status  # how the run ended


AnyCommand = (
    SetTimer | AskPolicy | Launch | Terminate | StartTrial | StopTrial | GrowTrial | Publish
    | Finish
)  # fmt: skip
