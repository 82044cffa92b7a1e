"""What the core can ask for. Each command names the events that can be its outcome; the shell
answers with one of them, never with an error.

Each carries `why`, set where it was decided; "unknown" in journals of format 1, which did not
record it.

The one rule: a command's id is the sequence number of the event that caused it and its own index
among that event's commands. It is the same after every crash and in every replay, so agents and
clouds can tell a repetition from a second order.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from seerd.planner.space import Value

Status = Literal["done", "deadline", "budget", "interrupted", "failed"]
"""done: the plan was carried out; deadline, budget: that limit ended it; interrupted: the person
did; failed: nothing could run.
"""


AskCause = Literal["began", "clock", "reports", "ended", "resumed", "untrue", "again", "unknown"]
"""Why the policy is asked: the run began; a stage is over by the clock; a trial has made the
reports that it wanted to see; a trial has ended; a run that was interrupted, or whose plan is not
known, goes on; its last answer was about trials that had ended meanwhile; its last answer was of no
use.
"""
LaunchCause = Literal["plan", "replacement", "again", "room", "resumed", "unknown"]
"""plan: the wanted trials need it; replacement: others are gone or about to be; again: it had been
refused before; room: there may be more now; resumed: a run went on.
"""
TerminateCause = Literal["idle", "leaving", "end", "unknown"]
"""idle: fewer are needed now; leaving: the cloud takes it away, and nothing runs there any more;
end: the run is over.
"""
StartCause = Literal["first", "resized", "moved", "went-on", "crashed", "lost", "unknown"]
"""first: it has never run; resized: it has another number of GPUs now; moved: other GPUs; went-on:
it was paused; crashed, lost: so had its last attempt.
"""
StopCause = Literal[
    "out",
    "resized",
    "moved",
    "displaced",
    "reached",
    "paused",
    "leaving",
    "node",
    "hung",
    "closing",
    "hard",
    "unknown",
]
"""out: eliminated; resized: it is to have another number of GPUs; moved: elsewhere, so that fewer
instances are needed; displaced: its GPUs are for others, it waits; reached: it has made the `until`
reports after which it is compared with others; paused: the plan does not want it to run now;
leaving: the cloud takes the instance away; node: its attempt has ended on another of its instances;
hung: some of its ranks wait for others that do nothing; closing: the run is being ended; hard: at
once, as the person asked.
"""
PublishCause = Literal["best", "better", "next", "unknown"]
"""best: the best confirmed checkpoint; better: it was told of after another had been handed back;
next: the one before could not be read.
"""


class Command(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """`id`: "<sequence number of the causing event>.<index>"."""

    id: str


class SetTimer(Command, frozen=True, kw_only=True, tag="set-timer"):
    """Wake the core at `due` (seconds since the run began); replaces the timer before. Outcome:
    `TimerFired`.
    """

    due: float


class AskPolicy(Command, frozen=True, kw_only=True, omit_defaults=True, tag="ask-policy"):
    """Ask the policy for a plan, of the run as it is now. Outcomes: `PolicyAnswered`,
    `PolicyFailed`.

    `trial`: whose report or end it is about, if it is one's.
    """

    why: AskCause = "unknown"
    trial: str | None = None


class Launch(
    Command,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag="launch",
    rename={"orphan_timeout_s": "alone_s"},
):
    """Get one more instance. Outcomes: `InstanceReady`, `LaunchRefused`.

    `orphan_timeout_s`: how long it may run without ever having had an agent, before it ends itself;
    None if it costs nothing by itself.
    """

    gpus: int
    orphan_timeout_s: float | None = None
    why: LaunchCause = "unknown"


class Terminate(Command, frozen=True, kw_only=True, omit_defaults=True, tag="terminate"):
    """Give an instance back, whatever runs there. Outcome: `InstanceTerminated`.

    `instance` is the id of its `Launch` if it is not ready yet: then whatever that launch has
    brought or will bring is given back.
    """

    instance: str
    why: TerminateCause = "unknown"


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
    why: StartCause = "unknown"

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every instance whose agent must be told."""
        return (self.instance, *(name for name, _ in self.beside))


class StopTrial(Command, frozen=True, kw_only=True, omit_defaults=True, tag="stop-trial"):
    """End an attempt: with `checkpoint` it may save and exit within `grace_s`, without it is
    killed.

    `beside`: the further instances on which it may still have processes; `others`: trials that get
    its GPUs. Outcomes, of each: `TrialExited`, `InstanceLost`.
    """

    trial: str
    attempt: int
    instance: str
    checkpoint: bool
    grace_s: float
    beside: tuple[str, ...] = ()
    why: StopCause = "unknown"
    others: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every instance whose agent must be told."""
        return (self.instance, *self.beside)


class Publish(Command, frozen=True, kw_only=True, omit_defaults=True, tag="publish"):
    """Put a checkpoint into the run's folder as its result. Outcomes: `ModelPublished`,
    `PublishFailed`.
    """

    trial: str
    config: dict[str, Value]
    checkpoint: str
    sha256: str
    metric: float
    why: PublishCause = "unknown"


class Finish(Command, frozen=True, kw_only=True, tag="finish"):
    """The run is over; there is nothing left to ask for."""

    status: Status


AnyCommand = SetTimer | AskPolicy | Launch | Terminate | StartTrial | StopTrial | Publish | Finish
