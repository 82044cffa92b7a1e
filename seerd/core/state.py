"""Everything that the core knows of a run, from the events and decisions in its journal alone.

The one rule: only `record` (events) and `enact` (decisions) change it. `aims` and `agenda` are
derived, and may be computed anew at any time (`derive`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from seerd.core import lifecycle, verdicts
from seerd.core.commands import AnyCommand, SetTimer, Status, StopCause
from seerd.core.events import (
    AnyRequest,
    Awaited,
    Checkpoint,
    ExitCause,
    InstanceShared,
    Obstacle,
    RunFacts,
    SetbackCause,
    TrialStalled,
)
from seerd.core.ledger import Ledger
from seerd.core.lifecycle import InstancePhase, RunPhase, TrialPhase
from seerd.core.placement import Assignment, Slots
from seerd.core.rules import RULES, Rules
from seerd.core.seen import Seen
from seerd.core.wanted import Agenda, Aims, PlanInForce
from seerd.planner.model import Compared, Outline, Report, TrialStatus, View
from seerd.planner.space import Config
from seerd.planner.trial_ids import job_of

LIVE = (InstancePhase.REQUESTED, InstancePhase.READY)  # asked for, or ready
PRESENT = (InstancePhase.READY, InstancePhase.LEAVING, InstancePhase.RELEASING)  # may still exist
GONE = (InstancePhase.TERMINATED, InstancePhase.REFUSED)
UNPROVEN = ("running", "unreached")  # how far an instance is that is billed and perhaps useless

STATUS: dict[TrialPhase, TrialStatus] = {
    TrialPhase.FINISHED: "finished",
    TrialPhase.ELIMINATED: "eliminated",
    TrialPhase.FAILED: "failed",
}


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt ended on one of its instances."""

    cause: ExitCause | Literal["refused"]  # `refused`: the agent could not start it
    alone: bool  # whether it ended unasked
    why: str = ""  # text for display; empty if there is nothing to say
    tail: tuple[str, ...] | None = None  # last lines of its log there; None: there are none
    silent: float | None = None  # when that log's silence began, s into the run; None: unknown
    obstacle: Obstacle | None = None  # what was in its way; None: nothing


@dataclass(slots=True)
class Trial:
    """One configuration and its history. Times are in seconds since the run began."""

    id: str
    config: Config  # its value of each hyperparameter
    seed: int  # seed of its random numbers
    phase: TrialPhase = TrialPhase.WAITING
    gpus: int = 0  # how many GPUs the plan wants for it now, 0 for none
    bracket: int = 0  # bracket in which it is compared with others
    until: int | None = None  # ask the policy after so many reports; None: not by reports
    reached: int | None = None  # the `until` that it has reached, until a plan says how it goes on
    target: Assignment | None = None  # GPUs on which it should run, None if it has none
    held: Assignment | None = None  # GPUs that its present attempt was started on; None: none
    had: int = 0  # how many GPUs its newest attempt has, or had; 0: there was none
    bound: int = 0  # slots with which its newest attempt was started on a part; 0: on whole GPUs
    least: int = 0  # slots that it gets at least, since fewer had too little memory; 0: any number
    told: dict[str, None] = field(default_factory=dict)  # instances where its attempt has started
    ends: dict[str, AttemptEnd] = field(default_factory=dict)  # instance -> its attempt's end there
    # instance -> how far its ranks are there, while none of them makes progress
    stalls: dict[str, TrialStalled] = field(default_factory=dict)
    hung: bool = False  # its present attempt is being ended because some ranks do nothing
    # instance -> rank -> share of its time (0 to 1) for which that rank waits for others
    waits: dict[str, dict[int, float]] = field(default_factory=dict)
    slow: dict[int, float] = field(default_factory=dict)  # rank that others wait for -> known since
    attempt: int = 0  # number of its newest attempt, from 1; 0: there was none
    ordered_s: float | None = None  # when its newest attempt was ordered; None: it has reported
    start_command: str | None = None  # id of the `StartTrial` that is under way
    stop_command: str | None = None  # id of the `StopTrial` that is under way
    grow_command: str | None = None  # id of the newest `GrowTrial` of its present attempt
    asked_s: float = 0.0  # when `stop_command` was decided
    pid: int | None = None  # id of the attempt's process on node 0, None if unknown
    began_s: float | None = None  # when its newest attempt began; None: it has not
    training_s: float | None = None  # when its present attempt reached its training loop, if it has
    trained: bool = False  # one of its attempts has reached its training loop
    # its reports, oldest first, without those that were taken back; the metric of one that violates
    # a constraint is None here, and in `others`: number of a report -> its other metrics
    history: list[Report] = field(default_factory=list)
    others: dict[int, dict[str, float | None]] = field(default_factory=dict)
    checkpoints: tuple[Checkpoint, ...] = ()  # confirmed and still needed checkpoints, newest first
    # instances, each with the attempt of which it has a checkpoint that could not be stored
    unstored: tuple[tuple[str, int], ...] = ()
    crashes: int = 0  # how many of its attempts ended by its own fault
    crashed_s: list[float] = field(default_factory=list)  # when these attempts crashed
    in_vain: int = 0  # how many crashed in a row since it last came further than before
    # reports when it last crashed: the most that it had made, and those in its newest checkpoint
    came_to: tuple[int, int] = (0, 0)
    # when obstacles ended attempts, in a row and since its last report
    blocked_s: list[float] = field(default_factory=list)
    losses: int = 0  # how many of its attempts ended by a machine's fault
    stopped: StopCause | None = None  # why its newest attempt was asked to end; None: it was not
    # that ended its last attempt; small: its part of a GPU had too little memory
    fault: Literal["crashed", "small", "blocked", "lost"] | None = None
    crowded: bool = False  # True: its last crash was a lack of GPU memory beside other processes
    out: bool = False  # True: eliminated; an attempt that still runs ends without a checkpoint
    judged: Compared | None = None  # how it stood when last compared, while that decides about it
    why: str = ""  # text for display: why its last attempt failed, or why it was eliminated
    note: str = ""  # text for display on how it ran; empty if there is none
    tail: tuple[str, ...] = ()  # last lines of the log of its last attempt that has left any

    @property
    def status(self) -> TrialStatus:
        """The status that policies see: eliminated trials are out even while attempts still end."""
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
    def failing(self) -> bool:
        """Whether its attempts end by its own fault, and it has not come further since the last."""
        if self.fault == "lost" or (self.crashes == 1 and self.crowded):
            return False
        again = self.in_vain > 0 and self.reports <= self.came_to[0]
        return again or self.phase is TrialPhase.FAILED

    @property
    def key(self) -> str:
        """Name of its present attempt in the ledger and in messages."""
        return f"{self.id}/{self.attempt}"

    @property
    def left(self) -> list[Slots]:
        """GPUs that its present attempt still holds; node 0 is first unless it has ended."""
        return [slots for slots in self.held or () if slots.node not in self.ends]

    @property
    def saved(self) -> bool:
        """Whether its present attempt has finished on node 0, which saves for all nodes."""
        end = self.ends.get(self.held[0].node) if self.held else None
        return end is not None and end.cause == "finished"

    @property
    def broken(self) -> bool:
        """Whether its present attempt must not go on: it hangs, or it has ended unasked on a node.
        Other nodes than node 0, which still saves, may finish first.
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
        self.phase = lifecycle.move(lifecycle.TRIAL_MOVES, f"trial {self.id}", self.phase, phase)


@dataclass(slots=True)
class Instance:
    """One machine of the run. Times are in seconds since the run began."""

    id: str  # its own id; until it is ready, the id of the `Launch` that asked for it
    gpus: int
    phase: InstancePhase = InstancePhase.REQUESTED
    boot: str = ""  # the boot of the machine that its agent was started in; empty: not known
    ready_at: float | None = None  # when it was ready; None: it is not
    ended_at: float | None = None  # when it ended; None: not yet
    seen: int = 0  # number of the last fact of its agent that was recorded
    share: int | None = None  # how many GPUs the run may use here, beside other runs; None: all
    busy: dict[int, str] = field(default_factory=dict)  # GPU index -> trial that holds it
    claims: dict[int, str] = field(default_factory=dict)  # GPU index -> trial that is to get it
    terminate_command: str | None = None  # id of the `Terminate` that gives it back; None: none
    by: float | None = None  # when the cloud takes it away; None if unknown
    # recent utilisation (0 to 1) of each GPU, None: not known; empty: no report yet
    computed: tuple[float | None, ...] = ()
    computed_s: float = 0.0  # when that was reported
    # GPU-seconds with a trial of which the utilisation is known, and those that were computed in
    known_gpu_s: float = 0.0
    busy_gpu_s: float = 0.0
    until: float | None = None  # when it ends itself, if the run may go on longer
    maintained_s: float | None = None  # when its maintenance begins; None: none is scheduled
    why: str = ""  # text for display: why it was refused or lost
    launch: str = ""  # id of the `Launch` that asked for it; empty: the journal has lost it
    cloud_id: str = ""  # its id in the cloud, from the cloud's answer on; empty: not known
    where: str = ""  # its type and zone, text for display; empty: not known
    usd_per_h: float | None = None  # USD for an hour of it; None: the run's price
    awaited: Awaited | None = None  # how far it was last; None: the cloud has not answered
    ran_s: float | None = None  # when it was first reported to run; None: not yet
    unreached: str = ""  # why nobody could log in, text for display; empty: not reported

    @property
    def ends_s(self) -> float:
        """When it ends itself, or its maintenance begins; infinite: neither is known."""
        return min(
            (at for at in (self.until, self.maintained_s) if at is not None), default=math.inf
        )

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

    what: str  # an agent's kind of complaint, an `Obstacle`, or a `WarnCause`
    trial: str  # the first trial that it is about; empty if `why` says all
    why: str  # details; of an error or an obstacle, the last lines of the script


@dataclass(frozen=True, slots=True)
class Note:
    """Something to tell the user, whose sentence is in `seerd.telling.complaints`."""

    what: str  # names the sentence
    facts: tuple[object, ...]  # in the order of the sentence


GOES_ON = ("error", "still")  # kinds of complaints that are forgotten when the trial reports


@dataclass(slots=True)
class Result:
    """The result of the run, and notes for the user."""

    publishing: Incumbent | None = None  # the model that is being copied to its place
    of_jobs: dict[str, Published] = field(default_factory=dict)  # job -> the model in its place
    unreadable: set[str] = field(default_factory=set)  # "trial/checkpoint" of unreadable models
    no_model: set[str] = field(default_factory=set)  # jobs whose stored model could not be fetched
    # what to tell the user, oldest first; a text: as the journal has it
    notes: list[str | Complaint | Note] = field(default_factory=list)

    @property
    def published(self) -> Published | None:
        """The model that is in its place; of several jobs that of the first that has one."""
        return next(iter(self.of_jobs.values()), None)

    def note(self, what: str, *facts: object) -> None:
        """Add a note of this kind."""
        self.notes.append(Note(what, facts))


@dataclass(slots=True)
class JobState:
    """The present state of a job."""

    gpus: float = 0  # how many GPUs its trials hold
    gpu_s: float = 0.0  # GPU-seconds for which they have held GPUs, until `since_s`
    since_s: float = 0.0  # seconds since the run began
    over: verdicts.OverCause | None = None  # why it gets nothing any more, None while it does
    detail: str = ""  # `over` in words, if there is more to say; else empty
    finite: bool = False  # True: a report had a finite metric
    promised: bool = False  # True: an attempt was to save checkpoints
    saved: bool = False  # True: an attempt has saved a checkpoint
    empty: bool = False  # True: an attempt has saved one with nothing in it
    block: verdicts.Blocked | None = None  # what is in the way of its attempts
    blocked_s: float = 0.0  # since when it is in the way, in seconds since the run began
    extra: str | None = None  # trial that was started beyond the limit of `block`

    def spent_gpu_s(self, now: float) -> float:
        """Return the GPU-seconds for which its trials have held GPUs so far."""
        return self.gpu_s + self.gpus * max(0.0, now - self.since_s)

    def hold(self, gpus: float, now: float) -> None:
        """Count so many GPUs more (or fewer, if negative) from `now` on."""
        self.gpu_s, self.since_s = self.spent_gpu_s(now), max(now, self.since_s)
        self.gpus += gpus


@dataclass(slots=True)
class Requests:
    """What the user has asked for while the run goes on."""

    open: dict[str, AnyRequest] = field(default_factory=dict)  # id -> request, until it is judged
    answered: dict[str, verdicts.DenyCause | None] = field(default_factory=dict)  # None: granted


@dataclass(frozen=True, slots=True)
class Outage:
    """Checkpoints cannot be stored, and none has been since the first that could not."""

    since_s: float  # when that was reported, in seconds since the run began
    text: str  # the last one: of which trial, where, why, and what to do; text for display


@dataclass(slots=True)
class Signs:
    """What warnings about a script are concluded from. Times are in seconds since the run began."""

    first_s: float = math.inf  # s from order to first report of the quickest attempt; inf: none yet
    save_s: float = 0.0  # seconds that the slowest save took until it was in the store
    tried_s: float | None = None  # when the first attempt had processes; None: not yet
    reported: bool = False  # True: a trial has reported
    named: bool = False  # True: the metric was among what was reported
    finite: bool = False  # True: a report had a finite metric
    names: dict[str, None] = field(default_factory=dict)  # all other metrics (an ordered set)
    warned: dict[str, float] = field(default_factory=dict)  # kind of a warning -> when last given
    complaints: dict[str, Complaint] = field(default_factory=dict)  # what is wrong -> the first one
    free: int | None = None  # free bytes on the store's disk at the last checkpoint; None: unknown
    outage: Outage | None = None  # why nothing is stored; None: nothing is known to be in the way


@dataclass(slots=True)
class Fleet:
    """All instances, and when more may be launched."""

    instances: dict[str, Instance] = field(default_factory=dict)  # all instances of the run by id
    live: int = 0  # how many are asked for or ready
    leaving: int = 0  # how many the cloud will take away
    present: int = 0  # how many are not gone: live, leaving, or being given back
    holding: int = 0  # how many attempts hold GPUs
    # reported before an instance was ready, by instance: when the cloud takes it away, when its
    # maintenance begins, how many GPUs may be used, number of the last fact, and what makes it
    # slow, since when
    noticed: dict[str, float | None] = field(default_factory=dict)
    until: dict[str, float | None] = field(default_factory=dict)
    shared: dict[str, InstanceShared] = field(default_factory=dict)
    early: dict[str, int] = field(default_factory=dict)
    slow: dict[str, tuple[str, float]] = field(default_factory=dict)
    refusals: int = 0  # how many batches of launches in a row were refused
    refused: int = 0  # number of the newest batch that was refused
    refused_since: float = -math.inf  # when the first of these refusals came
    launch_at: float = -math.inf  # when to launch again; infinite: never
    until_change: bool = False  # whether launches rest until an instance has come or gone
    held_back: verdicts.HeldBack | None = None  # what is wanted and not launched, if anything
    any_ready: bool = False  # True: an instance has been ready
    # until then only one instance is asked for where none has been ready, see `scouts`
    follow_s: float = -math.inf
    # what made an instance useless while none had been ready; launches with a number from
    # `setback_from` on were decided since
    setback: SetbackCause | None = None
    setback_from: int = 0

    def add(self, instance: Instance) -> None:
        """Add an instance that was just asked for."""
        self.instances[instance.id] = instance
        self.live += 1
        self.present += 1

    def scouts(self, now: float, scout_s: float) -> bool:
        """Return whether no more than one instance is asked for: none has been ready, and something
        has made one useless; or with `scout_s`, until `follow_s` and while the one runs and nobody
        could log in.
        """
        if self.any_ready or (self.setback is None and not scout_s):
            return False
        if self.setback is not None or not self.live or now < self.follow_s:
            return True
        return any(i.awaited in UNPROVEN for i in self.instances.values() if i.phase in LIVE)

    def follows(self, now: float, scout_s: float) -> bool:
        """Return whether others may follow a scout that is not ready yet."""
        return scout_s > 0 and self.live > 0 and not (self.any_ready or self.scouts(now, scout_s))

    def go(self, instance: Instance, phase: InstancePhase) -> None:
        """Move an instance and update the counts. Raises `IllegalMoveError` for a wrong move."""
        old, who = instance.phase, f"instance {instance.id}"
        instance.phase = lifecycle.move(lifecycle.INSTANCE_MOVES, who, old, phase)
        self.live += (phase in LIVE) - (old in LIVE)
        self.leaving += (phase is InstancePhase.LEAVING) - (old is InstancePhase.LEAVING)
        self.present -= phase in GONE


@dataclass(slots=True)
class Clock:
    """Where in its journal the run is. Times are in seconds since the run began. After a gap, ids
    (of `seq` and `issued`) and attempts are above all that missing events can have used, at one
    event a microsecond and one attempt of a trial a second.
    """

    now: float = 0.0  # time of the present event; it never goes back
    # time of the event before; a daemon that died lived at least until then
    previous_s: float = 0.0
    seq: int = 0  # how many events there were so far
    issued: int = 0  # how many commands have followed from the present event so far
    timer: SetTimer | None = None  # the one timer that is set, None if none is
    gap_s: float = 0.0  # when the run was last resumed with events missing; 0: it never was
    resumed_s: float = 0.0  # when the run was last resumed; 0: it never was
    left_s: float = 0.0  # time of the last event before that


@dataclass(slots=True)
class RunEnd:
    """How the run ends. `status`, `why` and `close_by` are set when the run begins to close."""

    phase: RunPhase = RunPhase.RUNNING  # where the run is in its life, see `RunPhase`
    status: Status | None = None  # how it ends, None while it goes on
    hard: bool = False  # True: the user wants it to end at once, without checkpoints
    why: verdicts.CloseCause | None = None  # what made it end
    detail: str = ""  # `why` in words, if there is more to say; else empty
    close_by: float | None = None  # when no attempt may be left, in seconds since the run began
    slowest_s: float = 0.0  # seconds of the slowest unit of work or save so far
    seen: Seen = field(default_factory=Seen)  # how long units, saves and ends have taken
    promised: verdicts.Promised | None = None  # how long agents may go on alone


@dataclass(slots=True)
class State:
    """A run. `rules` never changes, and `facts` only at the user's request."""

    facts: RunFacts  # what was decided before the run began, with the limits that hold now
    ledger: Ledger  # what it has cost
    rules: Rules = RULES  # figures by which this version decides
    clock: Clock = field(default_factory=Clock)  # where in its journal the run is
    end: RunEnd = field(default_factory=RunEnd)  # how it ends, and how far it is on the way there
    trials: dict[str, Trial] = field(default_factory=dict)
    fleet: Fleet = field(default_factory=Fleet)  # its instances
    plan: PlanInForce = field(default_factory=PlanInForce)
    result: Result = field(default_factory=Result)  # the model that is handed back
    jobs: dict[str, JobState] = field(default_factory=dict)  # the one job of a run has an empty id
    requests: Requests = field(default_factory=Requests)  # what the user has asked for meanwhile
    signs: Signs = field(default_factory=Signs)  # what trials have shown of themselves
    under_way: dict[str, AnyCommand] = field(default_factory=dict)  # commands without an outcome
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
        """Move the run to another phase. Raises `IllegalMoveError` for a wrong move."""
        who = f"run {self.facts.run}"
        self.end.phase = lifecycle.move(lifecycle.RUN_MOVES, who, self.phase, phase)

    @property
    def view(self) -> View:
        """The run as its policy sees it."""
        spent = {name: job.spent_gpu_s(self.now) for name, job in self.jobs.items()}
        return View(self.now, self.facts.mode, self.trials, spent if self.facts.jobs else {})

    def trials_of(self, job: str) -> list[Trial]:
        """Return the trials of a job."""
        return [trial for trial in self.trials.values() if job_of(trial.id) == job]

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
        return f"{self.clock.seq + math.ceil(self.clock.gap_s * 1e6)}.{self.clock.issued}"


def new_state(facts: RunFacts, rules: Rules = RULES) -> State:
    """Return the state of a run before its first event."""
    jobs = {name: JobState() for name in facts.goals}
    return State(facts, Ledger(facts.cluster.usd_per_gpu_h), rules, jobs=jobs)
