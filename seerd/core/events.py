"""What can happen to a run. Every fact that the core ever learns is one of these values.

The one rule: an event is the past. It is committed to the journal before it is handled, and never
refused: what cannot be true any more (a report of an attempt that has ended, a fact told twice)
changes nothing.

`at` is when the daemon learned it, in seconds since the run began, never decreasing. `happened` is
when it was so on the instance, by the daemon's clock; the ledger uses it.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from seerd.core.plans import PlanChange
from seerd.planner.model import ClusterFacts, Mode, Outline, Problem

ExitCause = Literal["asked", "lease", "lost", "finished", "crashed"]
Notice = Literal["interruption", "rebalance", "unhealthy"]
"""interruption: the cloud takes the instance back; rebalance: it will probably (Amazon EC2 User
Guide, Spot Instance interruption notices); unhealthy: its agent has found that it cannot be used
any more.
"""

IN_JOURNALS = {"reports": "epoch"}
"""What a field is called where it is written down: journals of older versions are read as they
are.
"""


class RunFacts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that is decided about a run before it begins. `outline`: the whole run as it would
    go ideally; None: format 1 does not say, until the run is resumed.
    """

    run: str
    name: str
    metric: str
    mode: Mode
    problem: Problem
    cluster: ClusterFacts
    outline: Outline | None = None


class Checkpoint(Struct, frozen=True, kw_only=True, rename=IN_JOURNALS):
    """A checkpoint that is whole in the store: confirmed by the agent of its `attempt`, or found
    there when that agent could not tell of it any more.

    name     what the store calls it
    reports  how many reports had been made, the last with `metric` (None: not finite)
    sha256   of its bytes, in hex
    size     bytes
    """

    trial: str
    attempt: int
    name: str
    reports: int
    metric: float | None
    sha256: str
    size: int


class Event(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """`at`: seconds since the run began."""

    at: float


class RunStarted(Event, frozen=True, kw_only=True, tag="run-started"):
    """The first event of every journal."""

    facts: RunFacts


class RunResumed(Event, frozen=True, kw_only=True, tag="run-resumed"):
    """The first event after a restart of the daemon: what was found. Instances that are not `alive`
    are gone: since when, as far as their cloud tells, is in `ended`; what their trials had put into
    the store, unheard, in `saved`; and the `outline` of a run that did not say it.
    """

    alive: tuple[str, ...]
    ended: dict[str, float] = {}
    saved: tuple[Checkpoint, ...] = ()
    outline: Outline | None = None


class StopAsked(Event, frozen=True, kw_only=True, tag="stop-asked"):
    """The person wants the run to end: in order, or `hard` (no checkpoints)."""

    hard: bool = False


class TimerFired(Event, frozen=True, kw_only=True, tag="timer-fired"):
    """Outcome of `SetTimer`."""

    command: str


class PolicyAnswered(Event, frozen=True, kw_only=True, tag="policy-answered"):
    """Outcome of `AskPolicy`, whose id is `question`: a plan, and what the policy wants to
    remember; both as changes of what was before.
    """

    question: str
    plan: PlanChange
    memory: dict[str, Any] = {}


class PolicyFailed(Event, frozen=True, kw_only=True, tag="policy-failed"):
    """Outcome of `AskPolicy`: there is no answer."""

    question: str
    why: str


class InstanceReady(Event, frozen=True, kw_only=True, tag="instance-ready"):
    """Outcome of `Launch`: the instance runs, its agent answers and has prepared it. `boot` names
    this boot of its machine, if it tells.
    """

    command: str
    instance: str
    gpus: int
    running_since: float
    boot: str = ""


class LaunchRefused(Event, frozen=True, kw_only=True, tag="launch-refused"):
    """Outcome of `Launch`: there is no instance, and none will come of that command. `retry`:
    asking again may help.

    `running_since`: of an instance that ran and is gone before it was ready: since when; None if
    none ever ran. `ended`: when it ended, None if only now.
    """

    command: str
    why: str
    retry: bool = False
    running_since: float | None = None
    ended: float | None = None


class InstanceLost(Event, frozen=True, kw_only=True, tag="instance-lost"):
    """An instance is gone or unreachable for good. `ended`: when it ended by the cloud's account,
    None if only now. `saved`: what its trials had put into the store, unheard.
    """

    instance: str
    why: str
    ended: float | None = None
    saved: tuple[Checkpoint, ...] = ()


class InstanceTerminated(Event, frozen=True, kw_only=True, tag="instance-terminated"):
    """Outcome of `Terminate`: nothing of it runs or costs any more.

    `running_since`: of an instance that was never ready: since when it ran, None if it never did.
    `ended`: when it ended, None if only now.
    """

    command: str
    instance: str
    running_since: float | None = None
    ended: float | None = None


class AgentFact(Event, frozen=True, kw_only=True):
    """Something that the agent of `instance` saw. `fact` numbers its facts from 1 without gaps."""

    instance: str
    fact: int
    happened: float


class InstanceNoticed(AgentFact, frozen=True, kw_only=True, tag="instance-noticed"):
    """The cloud will take the instance away, at `by` (seconds since the run began; None if it does
    not say), or it must not be used any more, and `why`.
    """

    what: Notice
    by: float | None = None
    why: str = ""


class OrderRefused(AgentFact, frozen=True, kw_only=True, tag="order-refused"):
    """The agent cannot carry out the command."""

    command: str
    why: str


class TrialStarted(AgentFact, frozen=True, kw_only=True, tag="trial-started"):
    """Outcome of `StartTrial`: the attempt's processes exist on this instance."""

    trial: str
    attempt: int
    pid: int


class TrialTraining(AgentFact, frozen=True, kw_only=True, tag="trial-training", rename=IN_JOURNALS):
    """The attempt reached its training loop, with so many `reports` restored."""

    trial: str
    attempt: int
    reports: int


class TrialReported(AgentFact, frozen=True, kw_only=True, tag="trial-reported", rename=IN_JOURNALS):
    """A report. `metric` is None if it was NaN or infinite. `unit_s`: see
    `seerd.agent.protocol.Reported`.
    """

    trial: str
    attempt: int
    reports: int
    metric: float | None
    unit_s: float


class TrialCheckpointed(
    AgentFact, frozen=True, kw_only=True, tag="trial-checkpointed", rename=IN_JOURNALS
):
    """A checkpoint is confirmed: whole, checksummed, in the store."""

    trial: str
    attempt: int
    name: str
    reports: int
    metric: float | None
    sha256: str
    size: int
    save_s: float


class TrialExited(AgentFact, frozen=True, kw_only=True, tag="trial-exited"):
    """Outcome of `StopTrial`, or the attempt's own end: no process of it is left on this instance,
    its GPUs there are free.

    An attempt on several instances has ended when each of them has told so. `silent`: since when
    the rank that `tail` is of has written nothing (seconds since the run began), None if unknown.
    `signal`: what killed that rank, None if none did. `waited_s`: the agent ended the attempt
    because that rank hung; for so many seconds the others had waited for it, and it had done
    nothing.
    """

    trial: str
    attempt: int
    cause: ExitCause
    code: int | None
    rank: int | None = None
    tail: tuple[str, ...] = ()
    silent: float | None = None
    signal: int | None = None
    waited_s: float | None = None


class TrialStalled(AgentFact, frozen=True, kw_only=True, tag="trial-stalled"):
    """Of an attempt on several instances nothing moves on this one. `hung`: some ranks there have
    come to `units` and `ticks` (calls of `running()`, passes and steps since) and do nothing;
    otherwise all wait there for ranks elsewhere. `over`: they move again.
    """

    trial: str
    attempt: int
    hung: bool
    units: int
    ticks: int
    over: bool = False


class TrialWaited(AgentFact, frozen=True, kw_only=True, tag="trial-waited"):
    """Which share of the last `over_s` seconds each of these ranks of an attempt, those on this
    instance, has waited for others.
    """

    trial: str
    attempt: int
    over_s: float
    ranks: tuple[int, ...]
    shares: tuple[float, ...]


class ModelPublished(Event, frozen=True, kw_only=True, tag="model-published"):
    """Outcome of `Publish`: the best model lies in the run's folder, at `path`."""

    command: str
    path: str


class PublishFailed(Event, frozen=True, kw_only=True, tag="publish-failed"):
    """Outcome of `Publish`: that checkpoint could not be read. `damaged`: it never can be;
    otherwise it is there, and was not given.
    """

    command: str
    why: str
    damaged: bool = True


class Remarked(Event, frozen=True, kw_only=True, tag="remarked"):
    """Something that takes its time, for people; it changes nothing."""

    text: str


AnyEvent = (
    RunStarted
    | RunResumed
    | StopAsked
    | TimerFired
    | PolicyAnswered
    | PolicyFailed
    | InstanceReady
    | LaunchRefused
    | InstanceLost
    | InstanceTerminated
    | InstanceNoticed
    | OrderRefused
    | TrialStarted
    | TrialTraining
    | TrialReported
    | TrialCheckpointed
    | TrialExited
    | TrialStalled
    | TrialWaited
    | ModelPublished
    | PublishFailed
    | Remarked
)
