"""What can happen to a run: every fact that the core ever learns.

The one rule: an event is the past. It is committed to the journal before it is handled, and one
that cannot be true any more (a repeated fact) changes nothing. All times are seconds since the run
began. `at` is when the daemon learned of the event and never decreases; `happened` is when it took
place on the instance, by the daemon's clock.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from seerd.core.plans import PlanChange
from seerd.planner.model import ClusterFacts, MetricConstraint, Mode, Outline, PlannedJob, Problem
from seerd.planner.space import Value
from seerd.planner.trial_ids import job_of

ExitCause = Literal["asked", "lease", "lost", "finished", "crashed"]
Obstacle = Literal[
    "address",  # a network address that another process has
    "device",  # a GPU, or another device, that another process has
    "lock",  # a lock that another process holds
    "network",  # a server that could not be reached, or asks for fewer requests
]
"""What was in the way of an attempt that has crashed, whatever its configuration."""
Notice = Literal[
    "interruption",  # the cloud takes it back
    "rebalance",  # it will probably take it back; trials stay unless the user has them move
    "maintenance",  # it will reboot, stop or end it, perhaps after the run
    "unhealthy",  # its agent has found that it cannot be used any more
    "cold",  # it, or its trials, start more slowly than they could
]
"""Why an instance cannot be used much longer, or what else is to be known about it (Amazon EC2 User
Guide, Spot Instance interruption notices).
"""
Awaited = Literal[
    "launched",  # the cloud has made it; it does not run yet
    "running",  # it runs, and is billed; its agent cannot have been started yet
    "unreached",  # it runs, and cannot be logged in to, or is not ready yet
    "reached",  # its agent answers: data, setup commands and checks are next
]
"""How far an instance is that was asked for and is not ready."""
SetbackCause = Literal[
    "ssh",  # it could not be logged in to, or was not ready in time
    "store",  # it cannot write to or read from the checkpoint store
    "setup",  # the spec's setup commands fail there
    "torch",  # torch cannot use its GPUs
    "driver",  # its GPUs or their driver are not as expected
]
"""What made an instance useless before it was ready, and may make every other one."""

IN_JOURNALS = {"reports": "epoch"}  # name of a field -> its older name in journals
NO_OUTLINE = Outline((), (), 0.0)  # stands for the outline of a run that is not planned yet


class Goal(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What trials are compared by, and when they are good enough: `[metric]` of the spec."""

    metric: str  # name of the metric
    mode: Mode  # whether more or less of it is better
    target: float | None = None  # a confirmed checkpoint with such a metric is enough; None: none
    smooth: int = 1  # a checkpoint's metric is the mean of at most so many last reports
    constraints: tuple[MetricConstraint, ...] = ()  # what must hold of the best model's metrics
    objectives: dict[str, Mode] = {}  # other metrics by which the front is made -> their modes

    def averages(self, reports: int) -> int:
        """Return of how many of so many reports a checkpoint's metric is the mean."""
        return min(self.smooth, max(1, reports))


class Objective(Goal, frozen=True, kw_only=True, omit_defaults=True):
    """A goal, and how a script that does not import seerd reports and saves."""

    patterns: dict[str, str] = {}  # metric -> its pattern in the output of a script without seerd
    saves_to: str = ""  # path or pattern of what such a script saves; empty: nothing is kept


class JobFacts(Objective, frozen=True, kw_only=True, omit_defaults=True):
    """What is decided about one of the jobs that share a run."""

    id: str
    owner: str = ""  # its owner; empty: none was named


class RunFacts(Objective, frozen=True, kw_only=True, omit_defaults=True):
    """Everything decided before a run. Its own goal is that of the first of several jobs."""

    run: str  # id of the run
    name: str  # name of the run in its spec
    problem: Problem  # what the policy is asked to solve, with all limits
    cluster: ClusterFacts  # what the provider says of its instances
    outline: Outline = NO_OUTLINE  # the whole run as the policy would have it
    jobs: tuple[JobFacts, ...] = ()  # the jobs that share the run, oldest first; empty: it is one
    # what was minimised in planning; None: nothing, or it was not recorded
    minimize: Literal["cost", "time"] | None = None
    ideal: bool = False  # the run was planned as published, whatever is billed
    # agents report attempts that are to save checkpoints; False: recorded before they did
    promises: bool = False

    @property
    def parts(self) -> int:
        """How many slots a GPU has: all counts of GPUs are of slots, what is paid is of GPUs."""
        return self.cluster.parts

    def gpus(self, slots: int) -> float:
        """Return how many GPUs so many slots are: exact, and an integer where they are whole."""
        return self.cluster.gpus(slots)

    def goal_of(self, trial: str) -> Objective:
        """Return what a trial is compared by."""
        return self if not self.jobs else self.job(job_of(trial))

    def job(self, name: str) -> JobFacts:
        """Return the facts of the job with this id."""
        return next(job for job in self.jobs if job.id == name)

    def problem_of(self, job: str) -> Problem:
        """Return what the policy of a job solves, in its own terms."""
        return next((its.problem for its in self.problem.jobs if its.id == job), self.problem)

    @property
    def goals(self) -> dict[str, Objective]:
        """What each job's trials are compared by; the one job of a run has an empty id."""
        return {job.id: job for job in self.jobs} if self.jobs else {"": self}


class Checkpoint(Struct, frozen=True, kw_only=True, rename=IN_JOURNALS):
    """A checkpoint that is whole in the store: confirmed by its agent, or found there later."""

    trial: str  # trial that saved it
    attempt: int  # number of the attempt that saved it
    name: str  # its name in the store
    reports: int  # how many reports the trial had made
    metric: float | None  # mean of the last `smooth`; None: not finite, or violates a constraint
    sha256: str  # checksum of its bytes, in hex
    size: int  # its size in bytes


class Event(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Base of all events."""

    at: float  # when the daemon learned of it, in seconds since the run began


class RunStarted(Event, frozen=True, kw_only=True, tag="run-started"):
    """The first event of every journal."""

    facts: RunFacts  # everything that was decided before the run began


class RunResumed(Event, frozen=True, kw_only=True, tag="run-resumed"):
    """The first event after a restart of the daemon: what it has found."""

    alive: tuple[str, ...]  # instances that still exist; all others are gone
    ended: dict[str, float] = {}  # instance -> when it ended, if its cloud knows
    saved: tuple[Checkpoint, ...] = ()  # unreported checkpoints from instances that are gone
    stored: tuple[Checkpoint, ...] = ()  # models stored since the run ended, only to be handed back
    lost: tuple[float, float] | None = None  # from when until when events are lost, if any
    # instance launched by a lost event -> since when and until when it ran (None: it never did)
    strays: dict[str, tuple[float | None, float | None]] = {}


class EventsMissing(Event, frozen=True, kw_only=True, tag="events-missing"):
    """An agent that answered late after a restart knows more than the journal may have."""

    instance: str  # whose agent it is
    acked: int  # number of the last fact that was acknowledged to it


class StopAsked(Event, frozen=True, kw_only=True, tag="stop-asked"):
    """The user asks the run to end."""

    hard: bool = False  # True: at once, without checkpoints; False: trials may save


class ExtendAsked(Event, frozen=True, kw_only=True, tag="extend-asked"):
    """The user asks for later or larger limits."""

    request: str
    problem: Problem  # what the policy is to plan with from now on, with the new limits
    outline: Outline | None = None  # the rest of the run as the policy plans it; None: unchanged
    rented_until_s: float | None = None  # when the present instances end themselves; None: never


class AddAsked(Event, frozen=True, kw_only=True, tag="add-asked"):
    """The user asks for a configuration to be tried next."""

    request: str
    config: dict[str, Value]  # value of each hyperparameter


class JobAdded(Event, frozen=True, kw_only=True, tag="job-added"):
    """The user adds a job to the run."""

    request: str
    job: PlannedJob  # the job as the policy sees it
    facts: JobFacts  # what is decided about it


class JobStopAsked(Event, frozen=True, kw_only=True, tag="job-stop-asked"):
    """The user asks one of the jobs to end; the others get what is left."""

    request: str
    job: str


class JobWeighed(Event, frozen=True, kw_only=True, tag="job-weighed"):
    """The user gives one of the jobs another weight."""

    request: str
    job: str
    weight: float  # its share beside the others', above 0


class TimerFired(Event, frozen=True, kw_only=True, tag="timer-fired"):
    """The timer set by this `SetTimer` has fired (outcome of that command)."""

    command: str


class PolicyAnswered(Event, frozen=True, kw_only=True, tag="policy-answered"):
    """The policy has given a plan (outcome of `AskPolicy`)."""

    question: str  # id of the `AskPolicy`
    plan: PlanChange  # how the plan differs from the one before
    memory: dict[str, Any] = {}  # what the policy wants to remember, as changes of its memory


class PolicyFailed(Event, frozen=True, kw_only=True, tag="policy-failed"):
    """The policy has given no plan (outcome of `AskPolicy`)."""

    question: str  # id of the `AskPolicy`
    why: str  # text for display


class InstanceReady(Event, frozen=True, kw_only=True, tag="instance-ready"):
    """An instance is prepared and its agent answers (outcome of `Launch`)."""

    command: str  # id of the `Launch`
    instance: str
    gpus: int
    # since when it has cost, in seconds since the run began; later than now if an earlier run has
    # paid it until then
    running_since: float
    boot: str = ""  # names this boot of its machine; empty if unknown


class InstanceAwaited(Event, frozen=True, kw_only=True, omit_defaults=True, tag="instance-awaited"):
    """How far an instance is that is not ready yet. It only holds others back, see
    `state.Fleet.scouts`.
    """

    command: str  # id of the `Launch`
    instance: str  # its id in the cloud
    what: Awaited  # how far it is
    where: str = ""  # of `launched`: its type and zone, text for display
    why: str = ""  # of `unreached`: why nobody can log in, and what to do; text for display
    usd_per_h: float | None = None  # of `launched`: USD for an hour of it; None: the run's price
    gpus: int | None = None  # of `launched`: its GPUs; None: as many as were asked for


class InstancePriced(Event, frozen=True, kw_only=True, omit_defaults=True, tag="instance-priced"):
    """The price of an instance has changed."""

    instance: str  # its id in the cloud
    usd_per_h: float  # USD for an hour of it
    since: float  # from when on, in seconds since the run began


class LaunchRefused(Event, frozen=True, kw_only=True, omit_defaults=True, tag="launch-refused"):
    """No instance comes of this `Launch` (its outcome)."""

    command: str  # id of the `Launch`
    why: str  # text for display
    retry: bool = False  # True: asking again may help
    running_since: float | None = None  # since when an instance ran that was never ready, if any
    ended: float | None = None  # when that instance ended; None: only now
    unknown: bool = False  # True: unknown reason; asking again may help once something has changed
    cause: SetbackCause | None = None  # what made its instance useless; None: another reason


class InstanceLost(Event, frozen=True, kw_only=True, tag="instance-lost"):
    """An instance is gone, or can never be reached again."""

    instance: str
    why: str  # text for display
    ended: float | None = None  # when it ended by the cloud's account; None: only now
    saved: tuple[Checkpoint, ...] = ()  # checkpoints of its trials that no agent had reported


class InstanceTerminated(Event, frozen=True, kw_only=True, tag="instance-terminated"):
    """Nothing of an instance runs or costs any more (outcome of `Terminate`)."""

    command: str  # id of the `Terminate`
    instance: str
    running_since: float | None = None  # since when an instance ran that was never ready, if it did
    ended: float | None = None  # when it ended; None: only now


class InstanceKept(Event, frozen=True, kw_only=True, tag="instance-kept"):
    """An instance is no longer this run's and waits for another one (outcome of `Terminate`). It
    ends itself by the `keep_until_s` of that command.
    """

    command: str  # id of the `Terminate`
    instance: str


class CheckpointFetched(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="checkpoint-fetched"
):
    """The best checkpoint of those that an instance could not store was fetched from it, before it
    is given back.
    """

    instance: str
    checkpoint: Checkpoint  # as if its agent had stored it
    stored: bool = True  # whether it is in the store now; if not, it is in the run's folder


class AgentFact(Event, frozen=True, kw_only=True):
    """Something that an agent saw."""

    instance: str  # instance of that agent
    fact: int  # number of the fact, from 1 without gaps for each agent
    happened: float  # when it took place, in seconds since the run began


class AttemptFact(AgentFact, frozen=True, kw_only=True):
    """Something that an agent saw of an attempt."""

    trial: str
    attempt: int  # number of the attempt, from 1


class InstanceNoticed(AgentFact, frozen=True, kw_only=True, tag="instance-noticed"):
    """The cloud will take the instance away, or its agent has found something out about it."""

    what: Notice  # kind of the notice
    # when it is taken away; None: the cloud does not say, or has canceled its maintenance
    by: float | None = None
    why: str = ""  # text for display


class InstanceComputed(AgentFact, frozen=True, kw_only=True, tag="instance-computed"):
    """Recent utilisation of an instance's GPUs, for display; it changes no decision."""

    shares: tuple[float | None, ...]  # share of time each GPU computed (0 to 1); None: not known


class InstanceShared(AgentFact, frozen=True, kw_only=True, tag="instance-shared"):
    """The run may use another number of the instance's GPUs from now on, beside other runs."""

    gpus: int  # how many: those with lower numbers than this; at least 1
    why: str  # text for display


class OrderRefused(AgentFact, frozen=True, kw_only=True, tag="order-refused"):
    """The agent cannot carry out a command."""

    command: str
    why: str  # text for display


class TrialStarted(AttemptFact, frozen=True, kw_only=True, tag="trial-started"):
    """The attempt's processes exist on this instance (outcome of `StartTrial`)."""

    pid: int


class TrialTraining(
    AttemptFact, frozen=True, kw_only=True, tag="trial-training", rename=IN_JOURNALS
):
    """The attempt has reached its training loop."""

    reports: int  # number of reports that its checkpoint restored


class TrialReported(
    AttemptFact, frozen=True, kw_only=True, tag="trial-reported", rename=IN_JOURNALS
):
    """A trial has made a report."""

    reports: int  # how many reports the trial has made, with this one
    metric: float | None  # metric that it reported, None if that was missing, NaN or infinite
    unit_s: float  # seconds for one unit of work, see `seerd.agent.protocol.Reported`
    others: dict[str, float | None] = {}  # all other metrics, None where they were not finite
    named: bool = True  # False: the metric was not among what it reported
    line: str = ""  # line of output that the first report of an attempt was read from; else empty


class TrialCheckpointed(
    AttemptFact, frozen=True, kw_only=True, tag="trial-checkpointed", rename=IN_JOURNALS
):
    """A checkpoint is confirmed: whole, with its checksum, in the store."""

    name: str  # its name in the store
    reports: int  # how many reports the trial had made
    metric: float | None  # as `Checkpoint.metric`
    sha256: str  # checksum of its bytes, in hex
    size: int  # its size in bytes
    save_s: float  # seconds that saving took
    free: int | None = None  # bytes free on the disk of the checkpoint store; None: not known


class TrialComplained(AttemptFact, frozen=True, kw_only=True, tag="trial-complained"):
    """Something is wrong with what an attempt writes; it goes on."""

    what: str  # kind of the complaint: see `seerd.agent.protocol.Complained.what`
    why: str  # text for display


class TrialExited(AttemptFact, frozen=True, kw_only=True, tag="trial-exited"):
    """No process of an attempt is left on this instance (outcome of `StopTrial`, or unasked)."""

    cause: ExitCause  # what ended it
    code: int | None  # exit status, None if unknown
    rank: int | None = None  # rank that failed, None if unknown
    tail: tuple[str, ...] = ()  # last lines of that rank's log
    silent: float | None = None  # since when that rank has written nothing; None if unknown
    signal: int | None = None  # signal that killed that rank, None if none did
    waited_s: float | None = None  # how long the others waited for that rank, if it hung
    obstacle: Obstacle | None = None  # what was in its way, if its last lines say so
    started: bool = True  # whether any process of it ever existed there; if not, no GPU was used
    # the most bytes of a GPU in use for it while no other trial had that GPU, and that GPU's bytes
    memory: tuple[int, int] | UnsetType = UNSET
    # what has broken of the machine's GPUs, so that the crash is not the trial's; empty: nothing is
    # known
    fault: str | UnsetType = UNSET


class TrialStalled(AttemptFact, frozen=True, kw_only=True, tag="trial-stalled"):
    """On this instance no rank of an attempt on several instances makes progress."""

    hung: bool  # True: some ranks there do nothing; False: all of them wait for ranks elsewhere
    units: int  # how many calls of `running()` these ranks have begun
    ticks: int  # how many backward passes and steps they have made since the last of those calls
    over: bool = False  # True: the ranks move again


class TrialWaited(AttemptFact, frozen=True, kw_only=True, tag="trial-waited"):
    """How much of their time the ranks of an attempt on this instance wait for others."""

    over_s: float  # seconds that were looked at, up to now
    ranks: tuple[int, ...]  # ranks on this instance
    # share of that time (0 to 1) that each waited, as `ranks` are ordered
    shares: tuple[float, ...]


class ModelPublished(Event, frozen=True, kw_only=True, tag="model-published"):
    """The best model is in the run's folder (outcome of `Publish`)."""

    command: str  # id of the `Publish`
    path: str  # where it is


class PublishFailed(Event, frozen=True, kw_only=True, tag="publish-failed"):
    """A checkpoint could not be read (outcome of `Publish`)."""

    command: str  # id of the `Publish`
    why: str  # text for display
    damaged: bool = True  # True: it can never be read; False: the store did not give it


class Remarked(Event, frozen=True, kw_only=True, tag="remarked"):
    """A note on something that takes long; it changes no decision."""

    text: str  # what it is


AnyRequest = ExtendAsked | AddAsked | JobAdded | JobStopAsked | JobWeighed
"""What a user asks of a run that goes on. Each has a `request`, its id."""

AnyEvent = (
    RunStarted | RunResumed | EventsMissing | StopAsked | AnyRequest | TimerFired
    | PolicyAnswered | PolicyFailed
    | InstanceAwaited | InstancePriced | InstanceReady | LaunchRefused
    | InstanceLost | InstanceTerminated | InstanceKept | CheckpointFetched
    | InstanceNoticed | InstanceComputed | InstanceShared | OrderRefused
    | TrialStarted | TrialTraining | TrialReported | TrialCheckpointed | TrialComplained
    | TrialExited | TrialStalled | TrialWaited
    | ModelPublished | PublishFailed | Remarked
)  # fmt: skip
