"""Everything that the core knows of a run. It follows from the journal alone: from the events and
decisions in it, applied in order.

The one rule: only `record` (events) and `enact` (decisions) change what is known here. `aims` and
`agenda` are only derived from it; they may be computed anew at any time, see `derive`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from seerd.core.commands import AnyCommand, AskCause, LaunchCause, SetTimer, Status, StopCause
from seerd.core.events import (
    AnyRequest,
    Checkpoint,
    ExitCause,
    InstanceShared,
    Obstacle,
    RunFacts,
)
from seerd.core.ledger import Ledger
from seerd.core.lifecycle import (
    INSTANCE_MOVES,
    RUN_MOVES,
    TRIAL_MOVES,
    InstancePhase,
    RunPhase,
    TrialPhase,
    move,
)
from seerd.core.placement import Assignment, Slots
from seerd.core.plans import Order, PlanChange
from seerd.core.rules import RULES, Rules
from seerd.core.verdicts import (
    Blocked,
    CloseCause,
    DenyCause,
    FailCause,
    HeldBack,
    OverCause,
    Promised,
)
from seerd.core.waiting import Waiting
from seerd.planner.memory import Json
from seerd.planner.model import Allocation, Compared, Outline, Report, TrialStatus, View
from seerd.planner.space import Config

LIVE = (InstancePhase.REQUESTED, InstancePhase.READY)
"""Instances that have been asked for or are ready, and that nobody has given back."""
THERE = (InstancePhase.READY, InstancePhase.LEAVING, InstancePhase.RELEASING)
"""Instances that are ready, that the cloud takes away, or that are being given back. A resumed run
may still find them.
"""
GONE = (InstancePhase.TERMINATED, InstancePhase.REFUSED)

STATUS: dict[TrialPhase, TrialStatus] = {
    TrialPhase.FINISHED: "finished",
    TrialPhase.ELIMINATED: "eliminated",
    TrialPhase.FAILED: "failed",
}


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt ended on one of its instances.

    cause   what ended it; `refused`: the agent could not start it
    alone   True if nobody had asked for this end
    why     text for people; empty if there is nothing to say
    tail    last lines of the attempt's log there, None if there are none
    silent  since when that log was silent, in seconds since the run began; None if unknown
    obstacle  what was in its way; None: nothing
    """

    cause: ExitCause | Literal["refused"]
    alone: bool
    why: str = ""
    tail: tuple[str, ...] | None = None
    silent: float | None = None
    obstacle: Obstacle | None = None


@dataclass(frozen=True, slots=True)
class NodeStall:
    """Says that no rank of an attempt makes progress on one of its instances.

    hung      True: some ranks there do nothing; False: all of them wait for ranks elsewhere
    position  how far the ranks are, as (units, ticks), see `TrialStalled`
    """

    hung: bool
    position: tuple[int, int]


@dataclass(slots=True)
class Trial:
    """One configuration and what became of it.

    id             name of the trial
    config         its value of each hyperparameter
    seed           seed of its random numbers
    phase          where it is in its life, see `TrialPhase`
    gpus           how many GPUs the plan wants for it now, 0 for none
    bracket        bracket in which it is compared with others
    until          the policy wants to be asked when the trial has made so many reports; None: not
                   by reports
    reached        the value of `until` that it has reached, until a plan says how it goes on; else
                   None
    target         GPUs on which it should run, None if it has none
    held           GPUs that its present attempt was started on, None if there is no such attempt
    had            how many GPUs its newest attempt was started on, 0: there was none
    told           instances on which its present attempt has started (an ordered set)
    ends           instance -> how its present attempt has ended there already
    stalls         instance -> how far its ranks are there, while none of them makes progress
    hung           True: its present attempt is being ended because some ranks do nothing
    waits          instance -> rank -> share of its time (0 to 1) for which that rank waits for
                   others
    slow           rank -> when it became known that it keeps the others waiting, in seconds since
                   the run began
    attempt        number of its newest attempt, from 1; 0: there was none
    ordered_s      when its newest attempt was ordered, in seconds since the run began; None: it has
                   reported since
    start_command  id of the `StartTrial` that is under way, else None
    stop_command   id of the `StopTrial` that is under way, else None
    asked_s        when that was decided, in seconds since the run began
    pid            id of the attempt's process on node 0, None if unknown
    began_s        when its newest attempt began, in seconds since the run began; None: it has not
    training       True: its present attempt has reached its training loop
    trained        True: one of its attempts has reached its training loop
    history        its reports, oldest first, without those that a restart from an older checkpoint
                   took back; a report that violates a constraint has None for a metric
    others         number of a report -> what it had beside the metric; and the metric itself where
                   the report violates a constraint
    checkpoints    confirmed checkpoints that are still needed, newest first
    crashes        how many of its attempts ended by its own fault
    crashed_s      when that was, in seconds since the run began
    in_vain        how many of them there were in a row since it last came further than before
    came_to        reports of the furthest it had come when it last crashed, and those in its newest
                   checkpoint then
    blocked_s      when something was in the way of its attempts, in seconds since the run began:
                   of those in a row since its last report
    losses         how many of its attempts ended by a machine's fault
    stopped        why its newest attempt was asked to end, None if it was not asked
    fault          whose fault the end of its last attempt was, None if nobody's; "blocked":
                   something was in its way
    out            True: eliminated; an attempt that still runs ends without a checkpoint
    judged         how it stood when it was compared last, while that decides whether it goes on;
                   else None
    why            text for people: why its last attempt failed, or why it was eliminated
    note           text for people on how it ran; empty if there is none
    tail           last lines of the log of its last attempt that has left any
    """

    id: str
    config: Config
    seed: int
    phase: TrialPhase = TrialPhase.WAITING
    gpus: int = 0
    bracket: int = 0
    until: int | None = None
    reached: int | None = None
    target: Assignment | None = None
    held: Assignment | None = None
    had: int = 0
    told: dict[str, None] = field(default_factory=dict)
    ends: dict[str, AttemptEnd] = field(default_factory=dict)
    stalls: dict[str, NodeStall] = field(default_factory=dict)
    hung: bool = False
    waits: dict[str, dict[int, float]] = field(default_factory=dict)
    slow: dict[int, float] = field(default_factory=dict)
    attempt: int = 0
    ordered_s: float | None = None
    start_command: str | None = None
    stop_command: str | None = None
    asked_s: float = 0.0
    pid: int | None = None
    began_s: float | None = None
    training: bool = False
    trained: bool = False
    history: list[Report] = field(default_factory=list)
    others: dict[int, dict[str, float | None]] = field(default_factory=dict)
    checkpoints: tuple[Checkpoint, ...] = ()
    crashes: int = 0
    crashed_s: list[float] = field(default_factory=list)
    in_vain: int = 0
    came_to: tuple[int, int] = (0, 0)
    blocked_s: list[float] = field(default_factory=list)
    losses: int = 0
    stopped: StopCause | None = None
    fault: Literal["crashed", "blocked", "lost"] | None = None
    out: bool = False
    judged: Compared | None = None
    why: str = ""
    note: str = ""
    tail: tuple[str, ...] = ()

    @property
    def status(self) -> TrialStatus:
        """How policies see the trial.

        An eliminated one is out even while its attempt is still ending.
        """
        if self.out and self.phase not in STATUS:
            return "eliminated"
        return STATUS.get(self.phase, "live")

    @property
    def reports(self) -> int:
        """How many reports it has made that still count."""
        return self.history[-1].reports if self.history else 0

    @property
    def metric(self) -> float | None:
        """Metric of its last report; None if that was not finite or if there is no report."""
        return self.history[-1].metric if self.history else None

    @property
    def key(self) -> str:
        """Name of its present attempt in the ledger and in messages."""
        return f"{self.id}/{self.attempt}"

    @property
    def left(self) -> list[Slots]:
        """GPUs that its present attempt still holds, by instance, node 0 first.

        Node 0 is missing if the attempt has ended there.
        """
        return [slots for slots in self.held or () if slots.node not in self.ends]

    @property
    def saved(self) -> bool:
        """Whether its present attempt has finished on node 0.

        Node 0 saves for all, so nothing more can come of the other nodes.
        """
        end = self.ends.get(self.held[0].node) if self.held else None
        return end is not None and end.cause == "finished"

    @property
    def broken(self) -> bool:
        """Whether its present attempt must not go on.

        It hangs, or it has ended on one of its instances and nobody had asked for that. A node
        other than node 0 that has finished is no reason: the attempt keeps the time to save.
        """
        return self.hung or (
            bool(self.ends)
            and (self.saved or any(e.alone and e.cause != "finished" for e in self.ends.values()))
        )

    def key_on(self, node: str) -> str:
        """Return the name, in the ledger, of the part of its present attempt that runs on `node`.

        On node 0 that is the attempt's own name.
        """
        return self.key if self.held is None or node == self.held[0].node else f"{self.key}@{node}"

    def go(self, phase: TrialPhase) -> None:
        """Move to another phase. Raises `IllegalMoveError` if `TRIAL_MOVES` does not allow it."""
        self.phase = move(TRIAL_MOVES, f"trial {self.id}", self.phase, phase)


@dataclass(slots=True)
class Instance:
    """One machine of the run.

    id                 its own id; until it is ready, the id of the `Launch` that asked for it
    gpus               how many GPUs it has
    phase              where it is in its life, see `InstancePhase`
    boot               which boot of the machine its agent was started in; empty if the machine does
                       not tell
    ready_at           when it was ready, in seconds since the run began; None: not yet
    ended_at           when it ended, in seconds since the run began; None: not yet
    seen               number of the last fact of its agent that was recorded
    share              how many of them the run may use, beside other runs; None: all
    busy               GPU index -> trial that holds it
    claims             GPU index -> trial that is to get it
    terminate_command  id of the `Terminate` that gives it back, None if there is none
    by                 when the cloud takes it away, in seconds since the run began; None if it has
                       not said
    computed           for each GPU the share of the time (0 to 1) in which it computed of late, as
                       its agent told; None: that is not known; empty: its agent has not told
    until              when it ends itself, in seconds since the run began, if the run may go on
                       longer; else None
    why                text for people: why it was refused or lost
    """

    id: str
    gpus: int
    phase: InstancePhase = InstancePhase.REQUESTED
    boot: str = ""
    ready_at: float | None = None
    ended_at: float | None = None
    seen: int = 0
    share: int | None = None
    busy: dict[int, str] = field(default_factory=dict)
    claims: dict[int, str] = field(default_factory=dict)
    terminate_command: str | None = None
    by: float | None = None
    computed: tuple[float | None, ...] = ()
    until: float | None = None
    why: str = ""

    @property
    def usable(self) -> int:
        """How many of its GPUs the run may use: those with the lowest indices."""
        return self.gpus if self.share is None else min(self.gpus, self.share)


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best model so far among those that are confirmed to be in the store.

    trial       trial that made it
    checkpoint  checkpoint that holds it
    metric      metric of that checkpoint, finite
    """

    trial: str
    checkpoint: Checkpoint
    metric: float


@dataclass(frozen=True, slots=True)
class Published:
    """The result of the run.

    incumbent  the best model when it was published
    path       where its files are, in the run's folder
    """

    incumbent: Incumbent
    path: str


@dataclass(slots=True)
class Result:
    """What is handed back, and what people should know of it.

    publishing  the model that is being copied to its place, None if there is none
    of_jobs     job -> the model that is in its place, of those that have one; the one job of a run
                has an empty id
    unreadable  "trial/checkpoint" of each model that cannot be read
    no_model    jobs whose best model is in the store, but could not be fetched from it
    notes       texts for people, oldest first
    """

    publishing: Incumbent | None = None
    of_jobs: dict[str, Published] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    no_model: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    @property
    def published(self) -> Published | None:
        """The model that is in its place, None if there is none; of jobs that share a run, that of
        the first that has one.
        """
        return next(iter(self.of_jobs.values()), None)


@dataclass(slots=True)
class JobState:
    """What has become of a job.

    gpus    how many GPUs its trials hold
    gpu_s   GPU-seconds for which they have held GPUs, until `since_s`
    since_s seconds since the run began
    over    why it gets nothing any more, None while it does
    detail  that in words, if there is more to say; else empty
    finite  True: a report had a finite metric
    block   what is in the way of its attempts, as it was judged last; None: nothing is
    blocked_s  since when it is, in seconds since the run began
    extra   trial that was started though `block` says that it may not go on beside the others;
            None: there is none
    """

    gpus: int = 0
    gpu_s: float = 0.0
    since_s: float = 0.0
    over: OverCause | None = None
    detail: str = ""
    finite: bool = False
    block: Blocked | None = None
    blocked_s: float = 0.0
    extra: str | None = None

    def spent_gpu_s(self, now: float) -> float:
        """Return the GPU-seconds for which its trials have held GPUs so far."""
        return self.gpu_s + self.gpus * max(0.0, now - self.since_s)

    def hold(self, gpus: int, now: float) -> None:
        """Note that its trials hold so many GPUs more (or fewer) from now on."""
        self.gpu_s, self.since_s = self.spent_gpu_s(now), max(now, self.since_s)
        self.gpus += gpus


@dataclass(slots=True)
class Requests:
    """What the person has asked for while the run goes on.

    open      id of a request -> what is asked, while nobody has judged it
    answered  id of a request -> why it was denied, None if it was granted
    """

    open: dict[str, AnyRequest] = field(default_factory=dict)
    answered: dict[str, DenyCause | None] = field(default_factory=dict)


@dataclass(slots=True)
class Signs:
    """What trials have shown of themselves, from which it is told what is wrong with a script.

    first_s     seconds of the quickest attempt from the order to start it until its first report;
                infinite: there is none
    save_s      seconds that the slowest save took until it was in the store
    tried_s     when the processes of the first attempt existed, in seconds since the run began;
                None: there were none
    reported    True: a trial has reported
    named       True: the metric was among what was reported
    finite      True: a report had a finite metric
    names       names of all other metrics that were reported, in their order (an ordered set)
    warned      kind of a warning -> when it was given last, in seconds since the run began
    complaints  what an agent has complained of -> the first such complaint, text for people
    free        bytes that were free on the disk of the checkpoint store when the last checkpoint
                came there; None: not known
    """

    first_s: float = math.inf
    save_s: float = 0.0
    tried_s: float | None = None
    reported: bool = False
    named: bool = False
    finite: bool = False
    names: dict[str, None] = field(default_factory=dict)
    warned: dict[str, float] = field(default_factory=dict)
    complaints: dict[str, str] = field(default_factory=dict)
    free: int | None = None


@dataclass(slots=True)
class Fleet:
    """All instances, and when more may be asked for.

    These counts are kept nowhere else; `invariants` compares them with a recount.

    instances      every instance of the run by its id
    live           how many are asked for or ready
    leaving        how many the cloud will take away
    present        how many are not gone: live, leaving, or being given back
    holding        how many attempts hold GPUs
    noticed        instance -> when the cloud takes it away, for notices that came before it was
                   ready
    shared         instance -> how many GPUs may be used there, told before it was ready
    early          instance -> number of the last fact of its agent that came before it was ready
    slow           instance -> what makes it start slowly, text for people, and since when, told
                   before it was ready
    refusals       how many batches of launches in a row were refused
    refused        number of the newest batch that was refused
    refused_since  when the first of these refusals came, in seconds since the run began
    launch_at      when to ask again, in seconds since the run began; infinite: never
    until_change   whether launches rest until an instance has come or gone
    held_back      what is wanted and not asked for, None if there is nothing
    """

    instances: dict[str, Instance] = field(default_factory=dict)
    live: int = 0
    leaving: int = 0
    present: int = 0
    holding: int = 0
    noticed: dict[str, float | None] = field(default_factory=dict)
    shared: dict[str, InstanceShared] = field(default_factory=dict)
    early: dict[str, int] = field(default_factory=dict)
    slow: dict[str, tuple[str, float]] = field(default_factory=dict)
    refusals: int = 0
    refused: int = 0
    refused_since: float = -math.inf
    launch_at: float = -math.inf
    until_change: bool = False
    held_back: HeldBack | None = None

    def add(self, instance: Instance) -> None:
        """Add an instance that was just asked for."""
        self.instances[instance.id] = instance
        self.live += 1
        self.present += 1

    def go(self, instance: Instance, phase: InstancePhase) -> None:
        """Move an instance to another phase and keep the counts true.

        Raises `IllegalMoveError` if `INSTANCE_MOVES` does not allow it.
        """
        old, instance.phase = (
            instance.phase,
            move(INSTANCE_MOVES, f"instance {instance.id}", instance.phase, phase),
        )
        self.live += (phase in LIVE) - (old in LIVE)
        self.leaving += (phase is InstancePhase.LEAVING) - (old is InstancePhase.LEAVING)
        self.present -= phase in GONE


@dataclass(slots=True)
class PlanInForce:
    """The plan that was adopted last, and what the policy remembers.

    order     its allocations, most valuable first
    wanted    trial -> allocation, of those trials that may still run
    last      the answer that brought this plan
    memory    what the policy is given back with the next question
    reached   trials that have made the reports after which the policy wants to be asked, since this
              plan was adopted (an ordered set)
    question  id of the question that is open, None if none is
    asked     id of the last question, open or not
    asked_s   when that was asked, in seconds since the run began; a daemon that takes the run up
              asks an open question again
    answer    its answer while nobody has judged it: plan and memory, or a text on why there is none
    failures  how many answers in a row could not be used
    again_s   when the policy may be asked again after such an answer, in seconds since the run
              began
    """

    order: Order = field(default_factory=Order)
    wanted: dict[str, Allocation] = field(default_factory=dict)
    last: PlanChange = field(default_factory=PlanChange)
    memory: dict[str, Json] = field(default_factory=dict)
    reached: dict[str, None] = field(default_factory=dict)
    question: str | None = None
    asked: str = ""
    asked_s: float = -math.inf
    answer: tuple[PlanChange, dict[str, Json]] | str | None = None
    failures: int = 0
    again_s: float = -math.inf

    @property
    def stage(self) -> int:
        """Index of the present stage, from 0."""
        return self.last.stage


@dataclass(slots=True)
class Aims:
    """Where wanted trials should run. All of it is derived from the plan and the fleet.

    aimed    trials that have a target (an ordered set)
    waiting  wanted trials that have none
    sizes    number of GPUs -> how many wanted trials want so many
    needed   how many instances the wanted trials need
    most     the most GPUs that a trial gets, since instances are shared with other runs; None: as
             many as the plan gives it
    blocked  trials that are not started on free GPUs since something is in the way of their job,
             those first that have waited longest (an ordered set)
    """

    aimed: dict[str, None] = field(default_factory=dict)
    waiting: Waiting = field(default_factory=Waiting)
    sizes: Counter[int] = field(default_factory=Counter)
    needed: int = 0
    most: int | None = None
    blocked: dict[str, None] = field(default_factory=dict)

    def cut(self, gpus: int) -> int:
        """Return how many GPUs a trial gets to which the plan gives so many."""
        return gpus if self.most is None else min(gpus, self.most)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A launch that was refused.

    batch    number that all launches have in common that were asked for together
    retry    whether asking again may help
    unknown  whether nobody knows the cloud's reason
    """

    batch: int
    retry: bool
    unknown: bool


@dataclass(slots=True)
class Agenda:
    """What must be looked at next.

    Limits are judged only when a timer has fired. After a restart, agents may still have to tell
    that attempts ended meanwhile; these facts come before the first timer and lower what is spent.

    woken    True: a timer has fired, so the limits must be looked at
    stirred  True: the present event has changed something on which decisions depend
    resumed  True: the present event tells what a new daemon has found; what is derived must be
             computed anew
    because  the reason to give if more instances are asked for now
    hold     True: a plan is about to come; start nothing and give nothing back that it might undo
    ask      why the policy must be asked, None if it need not
    about    trial whose report or end is that reason, None if it is no single trial's
    replace  True: trials must be placed anew
    refit    True: the number of instances may be wrong
    ended    trial -> GPUs that were wanted for it, for trials that have finished or failed since
             the last decision
    roomy    instances on which GPUs have become free since trials were last placed (an ordered set)
    idle     instances on which perhaps nothing runs any more (an ordered set)
    touched  trials that may not be where they should be, for the next `reconcile` (an ordered set)
    saved    trials with a new checkpoint
    judge    trial -> cause, for trials whose attempt ended by a fault
    blocked  trial -> what was in the way of its attempt, and on which GPUs, as (instance, GPU)
    doubt    True: something has gone wrong that may go wrong with every trial
    reported trial that has just reported, None if none has
    quiet    trial of which an agent has told that it has not reported for a while, None if none
    waited   trials whose ranks wait for others
    missing  instance -> when it ended by its cloud's account (None: unknown), for instances that a
             resumed run did not find
    refused  launches that were refused
    came     True: an instance has become ready
    """

    woken: bool = False
    stirred: bool = False
    resumed: bool = False
    because: LaunchCause = "room"
    hold: bool = False
    ask: AskCause | None = None
    about: str | None = None
    replace: bool = False
    refit: bool = False
    ended: dict[str, int] = field(default_factory=dict)
    roomy: dict[str, None] = field(default_factory=dict)
    idle: dict[str, None] = field(default_factory=dict)
    touched: dict[str, None] = field(default_factory=dict)
    saved: list[str] = field(default_factory=list)
    judge: dict[str, FailCause] = field(default_factory=dict)
    blocked: dict[str, tuple[Obstacle, tuple[tuple[str, int], ...]]] = field(default_factory=dict)
    doubt: bool = False
    reported: str | None = None
    quiet: str | None = None
    waited: list[str] = field(default_factory=list)
    missing: dict[str, float | None] | None = None
    refused: list[Refusal] = field(default_factory=list)
    came: bool = False


@dataclass(slots=True)
class Clock:
    """Where in its journal the run is. Times are in seconds since the run began.

    The id of a command is made of `seq` and `given`. After a gap, ids and numbers of attempts are
    above all that the missing events can have used: there is no event a microsecond, and no attempt
    of a trial a second.

    now       time of the present event; it never goes back
    heard_at  time of the event before that; a daemon that died was alive at least until then
    seq       how many events there were so far
    given     how many commands have followed from the present event so far
    timer     the one timer that is set, None if none is
    gap_s     when the run was last resumed with events missing; 0: it never was
    resumed_s when the run was last resumed; 0: it never was
    left_s    time of the last event before that
    """

    now: float = 0.0
    heard_at: float = 0.0
    seq: int = 0
    given: int = 0
    timer: SetTimer | None = None
    gap_s: float = 0.0
    resumed_s: float = 0.0
    left_s: float = 0.0

    def tick(self, at: float) -> None:
        """Count one more event, which came at `at` (seconds since the run began)."""
        self.seq += 1
        self.given = 0
        self.heard_at = self.now
        self.now = max(self.now, at)


@dataclass(slots=True)
class RunEnd:
    """How the run ends, and how far it is on the way there.

    `status`, `why` and `close_by` are set when the run begins to close.

    phase      where the run is in its life, see `RunPhase`
    status     how it ends, None while it goes on
    hard       True: the person wants it to end at once, without checkpoints
    why        what made it end
    detail     that in words, if there is more to say; else empty
    close_by   when no attempt may be left, in seconds since the run began
    slowest_s  seconds that the slowest unit of work or save took so far; it decides how early
               trials are asked to stop
    promised   what agents were last told of how long they may go on alone
    """

    phase: RunPhase = RunPhase.RUNNING
    status: Status | None = None
    hard: bool = False
    why: CloseCause | None = None
    detail: str = ""
    close_by: float | None = None
    slowest_s: float = 0.0
    promised: Promised | None = None

    def reopen(self) -> None:
        """Forget how the run was to end, since an interrupted run goes on.

        What was learned of its trials and told to agents still holds.
        """
        self.status, self.hard, self.why, self.close_by = None, False, None, None
        self.detail = ""


@dataclass(slots=True)
class State:
    """A run. `rules` never changes, and `facts` only if the person extends the limits.

    facts      what was decided before the run began, with the limits that hold now
    ledger     what it has cost
    rules      figures by which this version decides; recorded events and decisions are read without
               them
    clock      where in its journal the run is
    end        how it ends, and how far it is on the way there
    trials     trial id -> trial
    fleet      its instances
    plan       the plan in force
    result     the model that is handed back
    jobs       what has become of each job; the one job of a run has an empty id
    requests   what the person has asked for meanwhile
    signs      what trials have shown of themselves
    under_way  command id -> command whose outcome is not known; after a restart exactly these are
               carried out again
    aims       where trials should run (derived)
    agenda     what must be looked at next (derived)
    """

    facts: RunFacts
    ledger: Ledger
    rules: Rules = RULES
    clock: Clock = field(default_factory=Clock)
    end: RunEnd = field(default_factory=RunEnd)
    trials: dict[str, Trial] = field(default_factory=dict)
    fleet: Fleet = field(default_factory=Fleet)
    plan: PlanInForce = field(default_factory=PlanInForce)
    result: Result = field(default_factory=Result)
    jobs: dict[str, JobState] = field(default_factory=dict)
    requests: Requests = field(default_factory=Requests)
    signs: Signs = field(default_factory=Signs)
    under_way: dict[str, AnyCommand] = field(default_factory=dict)
    aims: Aims = field(default_factory=Aims)
    agenda: Agenda = field(default_factory=Agenda)

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self.clock.now

    @property
    def phase(self) -> RunPhase:
        """How far the run is on the way to its end."""
        return self.end.phase

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.end.phase is RunPhase.OVER

    @property
    def outline(self) -> Outline:
        """The whole run as it was planned."""
        return self.facts.outline

    def go(self, phase: RunPhase) -> None:
        """Move the run to another phase.

        Raises `IllegalMoveError` if `RUN_MOVES` does not allow it.
        """
        self.end.phase = move(RUN_MOVES, f"run {self.facts.run}", self.phase, phase)

    @property
    def view(self) -> View:
        """The run as its policy is shown it."""
        spent = {name: job.spent_gpu_s(self.now) for name, job in self.jobs.items()}
        return View(self.now, self.facts.mode, self.trials, spent if self.facts.jobs else {})

    def touch(self, trial: str) -> None:
        """Put this trial on the agenda of the next `reconcile`."""
        self.agenda.touched[trial] = None

    @property
    def next_id(self) -> str:
        """Id of the next command."""
        return f"{self.clock.seq + math.ceil(self.clock.gap_s * 1e6)}.{self.clock.given}"


def new_state(facts: RunFacts, rules: Rules = RULES) -> State:
    """Return the state of a run before its first event."""
    jobs = {name: JobState() for name in facts.goals}
    return State(facts, Ledger(facts.cluster.usd_per_gpu_h), rules, jobs=jobs)
