"""Everything that the core knows of a run. It follows from the events and decisions in the journal.

The one rule: only `record` (events) and `enact` (decisions) change it. `aims` and `agenda` are
derived from it, and may be computed anew at any time (`derive`).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from seerd.core.commands import AnyCommand, AskCause, LaunchCause, SetTimer, Status, StopCause
from seerd.core.events import AnyRequest, Checkpoint, ExitCause, InstanceShared, Obstacle, RunFacts
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
"""Instances that are requested or ready, and not being given back."""
PRESENT = (InstancePhase.READY, InstancePhase.LEAVING, InstancePhase.RELEASING)
"""Instances that a resumed run may still find."""
GONE = (InstancePhase.TERMINATED, InstancePhase.REFUSED)

STATUS: dict[TrialPhase, TrialStatus] = {
    TrialPhase.FINISHED: "finished",
    TrialPhase.ELIMINATED: "eliminated",
    TrialPhase.FAILED: "failed",
}


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt ended on one of its instances."""

    cause: ExitCause | Literal["refused"]  # what ended it; `refused`: the agent could not start it
    alone: bool  # True if nobody had asked for this end
    why: str = ""  # text for people; empty if there is nothing to say
    # last lines of the attempt's log there; None: there are none
    tail: tuple[str, ...] | None = None
    # since when that log was silent, in seconds since the run began; None if unknown
    silent: float | None = None
    obstacle: Obstacle | None = None  # what was in its way; None: nothing


@dataclass(frozen=True, slots=True)
class NodeStall:
    """No rank of an attempt makes progress on one of its instances."""

    hung: bool  # True: some ranks there do nothing; False: all of them wait for ranks elsewhere
    position: tuple[int, int]  # how far the ranks are, as (units, ticks), see `TrialStalled`


@dataclass(slots=True)
class Trial:
    """One configuration and its history."""

    id: str
    config: Config  # its value of each hyperparameter
    seed: int  # seed of its random numbers
    phase: TrialPhase = TrialPhase.WAITING  # where it is in its life, see `TrialPhase`
    gpus: int = 0  # how many GPUs the plan wants for it now, 0 for none
    bracket: int = 0  # bracket in which it is compared with others
    # ask the policy when the trial has made so many reports; None: not by reports
    until: int | None = None
    # the value of `until` that it has reached, until a plan says how it goes on; else None
    reached: int | None = None
    target: Assignment | None = None  # GPUs on which it should run, None if it has none
    held: Assignment | None = None  # GPUs that its present attempt was started on; None: none
    had: int = 0  # how many GPUs its newest attempt was started on, 0: there was none
    # instances on which its present attempt has started (an ordered set)
    told: dict[str, None] = field(default_factory=dict)
    # instance -> how its present attempt has ended there already
    ends: dict[str, AttemptEnd] = field(default_factory=dict)
    # instance -> how far its ranks are there, while none of them makes progress
    stalls: dict[str, NodeStall] = field(default_factory=dict)
    hung: bool = False  # True: its present attempt is being ended because some ranks do nothing
    # instance -> rank -> share of its time (0 to 1) for which that rank waits for others
    waits: dict[str, dict[int, float]] = field(default_factory=dict)
    # rank -> when it became known that it keeps the others waiting, in seconds since the run began
    slow: dict[int, float] = field(default_factory=dict)
    attempt: int = 0  # number of its newest attempt, from 1; 0: there was none
    # when its newest attempt was ordered, seconds since the run began; None: it has reported since
    ordered_s: float | None = None
    start_command: str | None = None  # id of the `StartTrial` that is under way, else None
    stop_command: str | None = None  # id of the `StopTrial` that is under way, else None
    asked_s: float = 0.0  # when `stop_command` was decided, in seconds since the run began
    pid: int | None = None  # id of the attempt's process on node 0, None if unknown
    # when its newest attempt began, in seconds since the run began; None: it has not
    began_s: float | None = None
    training: bool = False  # True: its present attempt has reached its training loop
    trained: bool = False  # True: one of its attempts has reached its training loop
    # its reports, oldest first, without those that a restart from an older checkpoint took back; a
    # report that violates a constraint has None for a metric
    history: list[Report] = field(default_factory=list)
    # number of a report -> what it had beside the metric; and the metric itself where the report
    # violates a constraint
    others: dict[int, dict[str, float | None]] = field(default_factory=dict)
    checkpoints: tuple[Checkpoint, ...] = ()  # confirmed and still needed checkpoints, newest first
    crashes: int = 0  # how many of its attempts ended by its own fault
    # when these attempts crashed, in seconds since the run began
    crashed_s: list[float] = field(default_factory=list)
    in_vain: int = 0  # how many crashed in a row since it last came further than before
    # reports when it last crashed: the most that it had made, and those in its newest checkpoint
    came_to: tuple[int, int] = (0, 0)
    # when something was in the way of its attempts, in seconds since the run began: of those in a
    # row since its last report
    blocked_s: list[float] = field(default_factory=list)
    losses: int = 0  # how many of its attempts ended by a machine's fault
    stopped: StopCause | None = None  # why its newest attempt was asked to end; None: it was not
    # whose fault the end of its last attempt was; "blocked": something was in its way; None:
    # nobody's
    fault: Literal["crashed", "blocked", "lost"] | None = None
    out: bool = False  # True: eliminated; an attempt that still runs ends without a checkpoint
    # how it stood when it was compared last, while that decides whether it goes on; else None
    judged: Compared | None = None
    why: str = ""  # text for people: why its last attempt failed, or why it was eliminated
    note: str = ""  # text for people on how it ran; empty if there is none
    tail: tuple[str, ...] = ()  # last lines of the log of its last attempt that has left any

    @property
    def status(self) -> TrialStatus:
        """The status that policies see: an eliminated trial is out even while its attempt is still
        ending.
        """
        if self.out and self.phase not in STATUS:
            return "eliminated"
        return STATUS.get(self.phase, "live")

    @property
    def reports(self) -> int:
        """Number of its last report that still counts; 0 if there is none."""
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
        """GPUs that its present attempt still holds, by instance; node 0 is first unless it has
        ended.
        """
        return [slots for slots in self.held or () if slots.node not in self.ends]

    @property
    def saved(self) -> bool:
        """Whether its present attempt has finished on node 0, which saves for all nodes."""
        end = self.ends.get(self.held[0].node) if self.held else None
        return end is not None and end.cause == "finished"

    @property
    def broken(self) -> bool:
        """Whether its present attempt must not go on: it hangs, or it has ended unasked on one of
        its instances. Another node than node 0 that has finished is no reason: node 0 still saves.
        """
        return self.hung or (
            bool(self.ends)
            and (self.saved or any(e.alone and e.cause != "finished" for e in self.ends.values()))
        )

    def key_on(self, node: str) -> str:
        """Return the ledger's name of the part of its present attempt that runs on `node`."""
        return self.key if self.held is None or node == self.held[0].node else f"{self.key}@{node}"

    def go(self, phase: TrialPhase) -> None:
        """Move to another phase. Raises `IllegalMoveError` if `TRIAL_MOVES` does not allow it."""
        self.phase = move(TRIAL_MOVES, f"trial {self.id}", self.phase, phase)


@dataclass(slots=True)
class Instance:
    """One machine of the run."""

    id: str  # its own id; until it is ready, the id of the `Launch` that asked for it
    gpus: int
    phase: InstancePhase = InstancePhase.REQUESTED  # where it is in its life, see `InstancePhase`
    boot: str = ""  # the boot of the machine that its agent was started in; empty: not known
    ready_at: float | None = None  # when it was ready, seconds since the run began; None: it is not
    ended_at: float | None = None  # when it ended, in seconds since the run began; None: not yet
    seen: int = 0  # number of the last fact of its agent that was recorded
    share: int | None = None  # how many GPUs the run may use here, beside other runs; None: all
    busy: dict[int, str] = field(default_factory=dict)  # GPU index -> trial that holds it
    claims: dict[int, str] = field(default_factory=dict)  # GPU index -> trial that is to get it
    terminate_command: str | None = None  # id of the `Terminate` that gives it back; None: none
    # when the cloud takes it away, in seconds since the run began; None if it has not said
    by: float | None = None
    # recent share of the time (0 to 1) in which each GPU computed, as its agent reports; None: not
    # known; empty: no report yet
    computed: tuple[float | None, ...] = ()
    # when it ends itself, in seconds since the run began, if the run may go on longer; else None
    until: float | None = None
    why: str = ""  # text for people: why it was refused or lost
    launch: str = ""  # id of the `Launch` that asked for it; empty: the journal has lost it

    @property
    def usable(self) -> int:
        """How many of its GPUs the run may use: those with the lowest indices."""
        return self.gpus if self.share is None else min(self.gpus, self.share)


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best model among those that are confirmed to be in the store."""

    trial: str  # trial that made it
    checkpoint: Checkpoint  # checkpoint that holds it
    metric: float  # metric of that checkpoint, finite


@dataclass(frozen=True, slots=True)
class Published:
    """The result of the run."""

    incumbent: Incumbent  # the best model when it was published
    path: str  # where its files are, in the run's folder


@dataclass(frozen=True, slots=True)
class Complaint:
    """Something that is wrong with what trials write, or was in the way of one."""

    what: str  # its kind: that of an agent's complaint, an `Obstacle`, or a `WarnCause`
    trial: str  # the first trial that it is about; empty if `why` says all
    why: str  # details; of an error or an obstacle, the last lines of the script


GOES_ON = ("error", "still")
"""Kinds of complaints that are forgotten when the trial reports."""


@dataclass(slots=True)
class Result:
    """The result of the run, and notes for the user."""

    # the model that is being copied to its place; None: there is none
    publishing: Incumbent | None = None
    # job -> the model that is in its place, if any; the one job of a run has an empty id
    of_jobs: dict[str, Published] = field(default_factory=dict)
    # "trial/checkpoint" of each model that cannot be read
    unreadable: set[str] = field(default_factory=set)
    # jobs whose best model is in the store, but could not be fetched from it
    no_model: set[str] = field(default_factory=set)
    notes: list[str | Complaint] = field(default_factory=list)  # oldest first

    @property
    def published(self) -> Published | None:
        """The model that is in its place; of several jobs that of the first that has one."""
        return next(iter(self.of_jobs.values()), None)


@dataclass(slots=True)
class JobState:
    """The present state of a job."""

    gpus: int = 0  # how many GPUs its trials hold
    gpu_s: float = 0.0  # GPU-seconds for which they have held GPUs, until `since_s`
    since_s: float = 0.0  # seconds since the run began
    over: OverCause | None = None  # why it gets nothing any more, None while it does
    detail: str = ""  # `over` in words, if there is more to say; else empty
    finite: bool = False  # True: a report had a finite metric
    # what is in the way of its attempts, as it was judged last; None: nothing is
    block: Blocked | None = None
    blocked_s: float = 0.0  # since when it is in the way, in seconds since the run began
    # trial that was started although `block` limits how many go on side by side; None: none
    extra: str | None = None

    def spent_gpu_s(self, now: float) -> float:
        """Return the GPU-seconds for which its trials have held GPUs so far."""
        return self.gpu_s + self.gpus * max(0.0, now - self.since_s)

    def hold(self, gpus: int, now: float) -> None:
        """Count so many GPUs more (or fewer, if negative) from `now` on."""
        self.gpu_s, self.since_s = self.spent_gpu_s(now), max(now, self.since_s)
        self.gpus += gpus


@dataclass(slots=True)
class Requests:
    """What the user has asked for while the run goes on."""

    # id of a request -> what is asked, while nobody has judged it
    open: dict[str, AnyRequest] = field(default_factory=dict)
    # id of a request -> why it was denied, None if it was granted
    answered: dict[str, DenyCause | None] = field(default_factory=dict)


@dataclass(slots=True)
class Signs:
    """What warnings about a script are concluded from."""

    # seconds from the order to start the quickest attempt until its first report; infinite: none
    first_s: float = math.inf
    save_s: float = 0.0  # seconds that the slowest save took until it was in the store
    # when the first attempt had processes, in seconds since the run began; None: not yet
    tried_s: float | None = None
    reported: bool = False  # True: a trial has reported
    named: bool = False  # True: the metric was among what was reported
    finite: bool = False  # True: a report had a finite metric
    # names of all other metrics that were reported, in their order (an ordered set)
    names: dict[str, None] = field(default_factory=dict)
    # kind of a warning -> when it was given last, in seconds since the run began
    warned: dict[str, float] = field(default_factory=dict)
    # what is wrong -> the first such complaint
    complaints: dict[str, Complaint] = field(default_factory=dict)
    # bytes free on the disk of the checkpoint store at the last checkpoint; None: not known
    free: int | None = None


@dataclass(slots=True)
class Fleet:
    """All instances, and when more may be launched. `invariants` compares its counts with a
    recount.
    """

    instances: dict[str, Instance] = field(default_factory=dict)  # all instances of the run by id
    live: int = 0  # how many are asked for or ready
    leaving: int = 0  # how many the cloud will take away
    present: int = 0  # how many are not gone: live, leaving, or being given back
    holding: int = 0  # how many attempts hold GPUs
    # instance -> when the cloud takes it away, for notices that came before it was ready
    noticed: dict[str, float | None] = field(default_factory=dict)
    # instance -> how many GPUs may be used there, reported before it was ready
    shared: dict[str, InstanceShared] = field(default_factory=dict)
    # instance -> number of the last fact of its agent that came before it was ready
    early: dict[str, int] = field(default_factory=dict)
    # instance -> what makes it start slowly, for people, and since when, known before it was ready
    slow: dict[str, tuple[str, float]] = field(default_factory=dict)
    refusals: int = 0  # how many batches of launches in a row were refused
    refused: int = 0  # number of the newest batch that was refused
    # when the first of these refusals came, in seconds since the run began
    refused_since: float = -math.inf
    launch_at: float = -math.inf  # when to ask again, seconds since the run began; infinite: never
    until_change: bool = False  # whether launches rest until an instance has come or gone
    held_back: HeldBack | None = None  # what is wanted and not asked for, None if there is nothing

    def add(self, instance: Instance) -> None:
        """Add an instance that was just asked for."""
        self.instances[instance.id] = instance
        self.live += 1
        self.present += 1

    def go(self, instance: Instance, phase: InstancePhase) -> None:
        """Move an instance to another phase and update the counts.

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
    """The plan that was adopted last, and the policy's memory."""

    order: Order = field(default_factory=Order)  # its allocations, most valuable first
    # trial -> allocation, of those trials that may still run
    wanted: dict[str, Allocation] = field(default_factory=dict)
    last: PlanChange = field(default_factory=PlanChange)  # the answer that brought this plan
    # what the policy is given back with the next question
    memory: dict[str, Json] = field(default_factory=dict)
    # trials that have made the reports after which the policy wants to be asked, since this plan
    # was adopted (an ordered set)
    reached: dict[str, None] = field(default_factory=dict)
    question: str | None = None  # id of the question that is open, None if none is
    asked: str = ""  # id of the last question, open or not
    # when that question was asked, in seconds since the run began; a daemon that takes the run up
    # asks an open question again
    asked_s: float = -math.inf
    # the answer to that question until it is judged: plan and memory, or why there is none
    answer: tuple[PlanChange, dict[str, Json]] | str | None = None
    failures: int = 0  # how many answers in a row could not be used
    # when the policy may be asked again after such an answer, in seconds since the run began
    again_s: float = -math.inf

    @property
    def stage(self) -> int:
        """Index of the present stage, from 0."""
        return self.last.stage


@dataclass(slots=True)
class Aims:
    """Where wanted trials should run, derived from the plan and the fleet."""

    aimed: dict[str, None] = field(default_factory=dict)  # trials that have a target (ordered set)
    waiting: Waiting = field(default_factory=Waiting)  # wanted trials that have none
    # number of GPUs -> how many wanted trials want so many
    sizes: Counter[int] = field(default_factory=Counter)
    needed: int = 0  # how many instances the wanted trials need
    # the most GPUs that a trial gets, since instances are shared with other runs; None: as many as
    # the plan gives it
    most: int | None = None
    # trials that are not started on free GPUs since something is in the way of their job, those
    # first that have waited longest (an ordered set)
    blocked: dict[str, None] = field(default_factory=dict)

    def cut(self, gpus: int) -> int:
        """Return how many GPUs a trial gets to which the plan gives so many."""
        return gpus if self.most is None else min(gpus, self.most)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A launch that was refused."""

    batch: int  # number that all launches have in common that were asked for together
    retry: bool  # whether asking again may help
    unknown: bool  # whether nobody knows the cloud's reason


@dataclass(slots=True)
class Agenda:
    """What must be looked at next.

    Limits are judged only when a timer has fired: after a restart, facts that come before the first
    timer may still lower what is spent.
    """

    woken: bool = False  # True: a timer has fired, so the limits must be looked at
    stirred: bool = False  # True: the present event has changed something on which decisions depend
    # True: the present event is a daemon's first; what is derived must be computed anew
    resumed: bool = False
    because: LaunchCause = "room"  # the reason to give if more instances are asked for now
    # True: a plan is about to come; start nothing and give nothing back that it might undo
    hold: bool = False
    ask: AskCause | None = None  # why the policy must be asked, None if it need not
    about: str | None = None  # trial whose report or end is that reason; None: no single trial's
    replace: bool = False  # True: trials must be placed anew
    refit: bool = False  # True: the number of instances may be wrong
    # trial -> GPUs that were wanted for it, if it has finished or failed since the last decision
    ended: dict[str, int] = field(default_factory=dict)
    # instances on which GPUs have become free since trials were last placed (an ordered set)
    roomy: dict[str, None] = field(default_factory=dict)
    # instances on which perhaps nothing runs any more (an ordered set)
    idle: dict[str, None] = field(default_factory=dict)
    # trials that may not be where they should be, for the next `reconcile` (an ordered set)
    touched: dict[str, None] = field(default_factory=dict)
    saved: list[str] = field(default_factory=list)  # trials with a new checkpoint
    # trial -> cause, for trials whose attempt ended by a fault
    judge: dict[str, FailCause] = field(default_factory=dict)
    # trial -> what was in the way of its attempt, and on which GPUs, as (instance, GPU)
    blocked: dict[str, tuple[Obstacle, tuple[tuple[str, int], ...]]] = field(default_factory=dict)
    doubt: bool = False  # True: something has gone wrong that may go wrong with every trial
    reported: str | None = None  # trial that has just reported, None if none has
    # trial whose agent has reported that it has not reported for a while; None: there is none
    quiet: str | None = None
    waited: list[str] = field(default_factory=list)  # trials whose ranks wait for others
    # instance -> when it ended by its cloud's account (None: unknown), for instances that a resumed
    # run did not find
    missing: dict[str, float | None] | None = None
    refused: list[Refusal] = field(default_factory=list)  # launches that were refused
    came: bool = False  # True: an instance has become ready


@dataclass(slots=True)
class Clock:
    """Where in its journal the run is. Times are in seconds since the run began.

    The id of a command is made of `seq` and `given`. After a gap, ids and numbers of attempts are
    above all that the missing events can have used, at one event a microsecond and one attempt of a
    trial a second.
    """

    now: float = 0.0  # time of the present event; it never goes back
    heard_at: float = 0.0  # time of the event before; a daemon that died lived at least until then
    seq: int = 0  # how many events there were so far
    given: int = 0  # how many commands have followed from the present event so far
    timer: SetTimer | None = None  # the one timer that is set, None if none is
    gap_s: float = 0.0  # when the run was last resumed with events missing; 0: it never was
    resumed_s: float = 0.0  # when the run was last resumed; 0: it never was
    left_s: float = 0.0  # time of the last event before that

    def tick(self, at: float) -> None:
        """Count one more event, which came at `at` (seconds since the run began)."""
        self.seq += 1
        self.given = 0
        self.heard_at = self.now
        self.now = max(self.now, at)


@dataclass(slots=True)
class RunEnd:
    """How the run ends. `status`, `why` and `close_by` are set when the run begins to close."""

    phase: RunPhase = RunPhase.RUNNING  # where the run is in its life, see `RunPhase`
    status: Status | None = None  # how it ends, None while it goes on
    hard: bool = False  # True: the person wants it to end at once, without checkpoints
    why: CloseCause | None = None  # what made it end
    detail: str = ""  # `why` in words, if there is more to say; else empty
    close_by: float | None = None  # when no attempt may be left, in seconds since the run began
    # seconds of the slowest unit of work or save so far: how early trials are asked to stop
    slowest_s: float = 0.0
    promised: Promised | None = None  # how long agents may go on alone, as was promised last

    def reopen(self) -> None:
        """Forget how the run was to end: an interrupted run goes on."""
        self.status, self.hard, self.why, self.close_by = None, False, None, None
        self.detail = ""


@dataclass(slots=True)
class State:
    """A run. `rules` never changes, and `facts` only at the user's request."""

    facts: RunFacts  # what was decided before the run began, with the limits that hold now
    ledger: Ledger  # what it has cost
    # figures by which this version decides; recorded events and decisions are read without them
    rules: Rules = RULES
    clock: Clock = field(default_factory=Clock)  # where in its journal the run is
    end: RunEnd = field(default_factory=RunEnd)  # how it ends, and how far it is on the way there
    trials: dict[str, Trial] = field(default_factory=dict)
    fleet: Fleet = field(default_factory=Fleet)  # its instances
    plan: PlanInForce = field(default_factory=PlanInForce)
    result: Result = field(default_factory=Result)  # the model that is handed back
    # what has become of each job; the one job of a run has an empty id
    jobs: dict[str, JobState] = field(default_factory=dict)
    requests: Requests = field(default_factory=Requests)  # what the person has asked for meanwhile
    signs: Signs = field(default_factory=Signs)  # what trials have shown of themselves
    # command id -> command without an outcome so far; a restart carries out exactly these again
    under_way: dict[str, AnyCommand] = field(default_factory=dict)
    aims: Aims = field(default_factory=Aims)  # where trials should run (derived)
    agenda: Agenda = field(default_factory=Agenda)  # what must be looked at next (derived)

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
        """Move the run to another phase. Raises `IllegalMoveError` if `RUN_MOVES` does not allow
        it.
        """
        self.end.phase = move(RUN_MOVES, f"run {self.facts.run}", self.phase, phase)

    @property
    def view(self) -> View:
        """The run as its policy sees it."""
        spent = {name: job.spent_gpu_s(self.now) for name, job in self.jobs.items()}
        return View(self.now, self.facts.mode, self.trials, spent if self.facts.jobs else {})

    def forget_question(self) -> None:
        """Drop the open question to the policy, which was about an earlier situation."""
        self.under_way.pop(self.plan.question or "", None)
        self.plan.question = self.plan.answer = None

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
