"""Everything that the core knows of a run: a fold over what its journal holds, events and what was
decided.

The one rule: only `record` changes what is known here. What is only derived (`aims`, `agenda`) may
be made anew at any time, see `derive`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from seerd.core.commands import AnyCommand, AskCause, LaunchCause, SetTimer, Status, StopCause
from seerd.core.events import Checkpoint, ExitCause, RunFacts
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
from seerd.core.verdicts import CloseCause, FailCause, HeldBack, Promised
from seerd.core.waiting import Waiting
from seerd.planner.memory import Json
from seerd.planner.model import Allocation, Outline, Report, TrialStatus
from seerd.planner.space import Config

LIVE = (InstancePhase.REQUESTED, InstancePhase.READY)
"""Instances that are there or will be, and have not been given back."""
THERE = (InstancePhase.READY, InstancePhase.LEAVING, InstancePhase.RELEASING)
"""Instances that have been ready, and may still be found when a run is resumed."""
GONE = (InstancePhase.TERMINATED, InstancePhase.REFUSED)

STATUS: dict[TrialPhase, TrialStatus] = {
    TrialPhase.FINISHED: "finished",
    TrialPhase.ELIMINATED: "eliminated",
    TrialPhase.FAILED: "failed",
}


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt ended on one of its instances.

    alone   nobody had asked for it
    why     for people; empty if there is nothing to say
    tail    last lines of its log, None if there are none to be had
    silent  since when its log was silent, None if unknown
    """

    cause: ExitCause | Literal["refused"]
    alone: bool
    why: str = ""
    tail: tuple[str, ...] | None = None
    silent: float | None = None


@dataclass(frozen=True, slots=True)
class NodeStall:
    """Nothing of an attempt moves on one of its instances: some ranks are `hung` at this
    `position`, or all wait there for others.
    """

    hung: bool
    position: tuple[int, int]


@dataclass(slots=True)
class Trial:
    """One configuration and what became of it.

    gpus         how many GPUs are wanted for it now, 0 for none
    until        the policy wants to be asked when it has made so many reports; `reached`: it has
                 made them, and nobody has said how it goes on
    target       where it should run; `held`: where its present attempt is; neither, one or both may
                 be there
    told         of an attempt on several instances: where it has started; `ends`: where it has
                 ended already, and how
    stalls       of such an attempt: where nothing moves; `hung`: some of its ranks wait for others
                 that do nothing, so it must end
    waits        which share of their time its ranks wait for others, by instance and rank; `slow`:
                 who keeps the others waiting, and since when that is known
    history      its reports, without those that a later restart from an older checkpoint has taken
                 back
    checkpoints  confirmed ones that are needed, newest first
    crashes      ends that were its own fault; losses: those that were the machine's; `fault`: which
                 of them its last end was; stopped: why its last attempt was asked to end, None if
                 it was not
    note         what people should know of how it ran, for as long as it is remembered
    out          eliminated: its attempt, if there still is one, ends without a checkpoint
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
    told: dict[str, None] = field(default_factory=dict)
    ends: dict[str, AttemptEnd] = field(default_factory=dict)
    stalls: dict[str, NodeStall] = field(default_factory=dict)
    hung: bool = False
    waits: dict[str, dict[int, float]] = field(default_factory=dict)
    slow: dict[int, float] = field(default_factory=dict)
    attempt: int = 0
    start_command: str | None = None
    stop_command: str | None = None
    pid: int | None = None
    training: bool = False
    history: list[Report] = field(default_factory=list)
    checkpoints: tuple[Checkpoint, ...] = ()
    crashes: int = 0
    losses: int = 0
    stopped: StopCause | None = None
    fault: Literal["crashed", "lost"] | None = None
    out: bool = False
    why: str = ""
    note: str = ""
    tail: tuple[str, ...] = ()

    @property
    def status(self) -> TrialStatus:
        """As policies see it."""
        if self.out and self.phase not in STATUS:
            return "eliminated"
        return STATUS.get(self.phase, "live")

    @property
    def reports(self) -> int:
        """How many reports its present line of training has."""
        return self.history[-1].reports if self.history else 0

    @property
    def metric(self) -> float | None:
        """The metric of its last report, None if that was not finite or there is none."""
        return self.history[-1].metric if self.history else None

    @property
    def key(self) -> str:
        """Names its present attempt in the ledger and in messages."""
        return f"{self.id}/{self.attempt}"

    @property
    def left(self) -> list[Slots]:
        """Where its present attempt still holds GPUs, node 0 first if it is among them."""
        return [slots for slots in self.held or () if slots.node not in self.ends]

    @property
    def saved(self) -> bool:
        """Its present attempt has finished on node 0, which is the one that saves: nothing more can
        come of the others.
        """
        end = self.ends.get(self.held[0].node) if self.held else None
        return end is not None and end.cause == "finished"

    @property
    def broken(self) -> bool:
        """Its present attempt has ended on one of its instances and nobody asked for it: it must
        not go on on the others.

        One that has finished beside node 0 leaves it the time to save.
        """
        return self.hung or (
            bool(self.ends)
            and (self.saved or any(e.alone and e.cause != "finished" for e in self.ends.values()))
        )

    def key_on(self, node: str) -> str:
        """Names the part of its present attempt on one of its instances in the ledger; node 0 has
        the attempt's own name.
        """
        return self.key if self.held is None or node == self.held[0].node else f"{self.key}@{node}"

    def go(self, phase: TrialPhase) -> None:
        """Change phase along the table."""
        self.phase = move(TRIAL_MOVES, f"trial {self.id}", self.phase, phase)


@dataclass(slots=True)
class Instance:
    """One machine. `id` is the id of the `Launch` that asked for it until it is known by its own.

    boot    which boot of the machine its agent was started in, empty if it does not tell
    seen    its agent's last fact
    busy    which trial holds each GPU; `claims`: which one is to get it
    by      when the cloud takes it away, None if it has not said so
    """

    id: str
    gpus: int
    phase: InstancePhase = InstancePhase.REQUESTED
    boot: str = ""
    ready_at: float | None = None
    ended_at: float | None = None
    seen: int = 0
    busy: dict[int, str] = field(default_factory=dict)
    claims: dict[int, str] = field(default_factory=dict)
    terminate_command: str | None = None
    by: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best model so far that is surely in the store."""

    trial: str
    checkpoint: Checkpoint
    metric: float


@dataclass(frozen=True, slots=True)
class Published:
    """The run's result: the incumbent at the end, and where its files lie."""

    incumbent: Incumbent
    path: str


@dataclass(slots=True)
class Result:
    """What is handed back, and what people should know of how it came about.

    publishing  the model that is being put in its place; `published`: the one that lies there
    unreadable  "trial/checkpoint" of models that cannot be read
    no_model    the best model is in the store, which does not give it
    notes       for people, in the order in which they came up
    """

    publishing: Incumbent | None = None
    published: Published | None = None
    unreadable: set[str] = field(default_factory=set)
    no_model: bool = False
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Fleet:
    """All instances, and when more may be asked for.

    What is counted here is counted nowhere else, and `invariants` counts it again.

    live      instances that are asked for or ready; `leaving`: those that the cloud will take away;
              `present`: these, and those being given back too; `holding`: attempts that hold GPUs
    noticed   instances that were told to leave before they were ready, and by when
    refusals  batches of launches in a row that were refused, since `refused_since`; `refused`: the
              newest one; `launch_at`: when to ask again
    held_back what is wanted and not asked for, if anything is
    """

    instances: dict[str, Instance] = field(default_factory=dict)
    live: int = 0
    leaving: int = 0
    present: int = 0
    holding: int = 0
    noticed: dict[str, float | None] = field(default_factory=dict)
    refusals: int = 0
    refused: int = 0
    refused_since: float = -math.inf
    launch_at: float = -math.inf
    held_back: HeldBack | None = None

    def add(self, instance: Instance) -> None:
        """One more is asked for."""
        self.instances[instance.id] = instance
        self.live += 1
        self.present += 1

    def go(self, instance: Instance, phase: InstancePhase) -> None:
        """Change an instance's phase along the table."""
        old, instance.phase = (
            instance.phase,
            move(INSTANCE_MOVES, f"instance {instance.id}", instance.phase, phase),
        )
        self.live += (phase in LIVE) - (old in LIVE)
        self.leaving += (phase is InstancePhase.LEAVING) - (old is InstancePhase.LEAVING)
        self.present -= phase in GONE


@dataclass(slots=True)
class PlanInForce:
    """The last plan that was adopted, and what the policy remembers.

    order      its allocations, most valuable first; `wanted`: those of trials that may still run
    last       the answer that brought it
    memory     what the policy is given back with the next question
    reached    trials that have made the reports after which it wants to be asked, since this plan
               was adopted
    question   the one that is open; `asked`: the last one, and `asked_s` when; `answer`: its
               answer, as long as nobody has judged it
    failures   answers in a row that were of no use; `again_s`: when it may be asked again
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
    """Where wanted trials should run: derived from plan and fleet.

    aimed    trials that have a target; `waiting`: wanted ones without; `sizes`: how many wanted
             ones there are of each number of GPUs
    needed   instances that the wanted trials need
    """

    aimed: dict[str, None] = field(default_factory=dict)
    waiting: Waiting = field(default_factory=Waiting)
    sizes: Counter[int] = field(default_factory=Counter)
    needed: int = 0


@dataclass(slots=True)
class Agenda:
    """What must be looked at next.

    woken     a timer has fired: the limits must be looked at. Only then: after a restart, what
              agents have yet to tell (that attempts ended meanwhile) comes before the first timer,
              and must be known before anything is judged to be used up
    stirred   the present event has changed something on which decisions depend
    resumed   it says what a new daemon has found: what is derived must be made anew
    because   why more instances would be asked for now
    hold      a plan is about to come: nothing is begun or given back that it might undo
    ask       why the policy must be asked, None if it need not; `about`: whose report or end it is,
              if it is one's
    replace   trials must be placed anew; `refit`: the number of instances may be wrong
    ended     trials that have finished or failed since the last decision, and how many GPUs were
              wanted for them
    roomy     instances where room has appeared since trials were last placed; `idle`: those on
              which nothing may run any more
    touched   trials whose wanted and real place may differ since the last `reconcile`
    saved     trials with a new checkpoint; `judge`: those that have ended by a fault; `waited`:
              those whose ranks wait for others
    missing   instances that a resumed run did not find, and since when, if their cloud tells
    refused   launches that were refused: number of their batch, and whether asking again may help;
              `came`: an instance has come
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
    waited: list[str] = field(default_factory=list)
    missing: dict[str, float | None] | None = None
    refused: list[tuple[int, bool]] = field(default_factory=list)
    came: bool = False


@dataclass(slots=True)
class Clock:
    """Where in its journal the run is. All times are seconds since it began.

    now       when the present event was; it never goes back
    heard_at  when the event before that was; a daemon that has died has lived at least until then
    seq       events so far; `given`: commands so far that followed from the present one. A
              command's id is made of both
    timer     the one timer that is set
    """

    now: float = 0.0
    heard_at: float = 0.0
    seq: int = 0
    given: int = 0
    timer: SetTimer | None = None

    def tick(self, at: float) -> None:
        """One more event, of this time."""
        self.seq += 1
        self.given = 0
        self.heard_at = self.now
        self.now = max(self.now, at)


@dataclass(slots=True)
class RunEnd:
    """How far the run is on the way to its end, and what is known of that end.

    Until it closes nothing is known but how long trials may take to save; from then on `status`,
    `why` and `close_by` are.

    status     how it ends; `hard`: at once; `why`: what made it end; `close_by`: no attempt may be
               left then, in seconds since the run began
    slowest_s  the slowest unit of work or save so far: how early trials are asked to stop
    promised   what agents were told last of how long they may go on alone
    """

    phase: RunPhase = RunPhase.RUNNING
    status: Status | None = None
    hard: bool = False
    why: CloseCause | None = None
    close_by: float | None = None
    slowest_s: float = 0.0
    promised: Promised | None = None

    def reopen(self) -> None:
        """An interrupted run goes on; what was learned of its trials and told to agents holds."""
        self.status, self.hard, self.why, self.close_by = None, False, None, None


@dataclass(slots=True)
class State:
    """A run: `facts` and `rules`, which never change, and ten things that do.

    rules      what this version decides by; nothing that was recorded is read with them
    under_way  commands whose outcome is not known, by id; after a restart exactly these are asked
               for again
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
        """The whole run as it was planned; without stages where that was not recorded."""
        return UNKNOWN if self.facts.outline is None else self.facts.outline

    def go(self, phase: RunPhase) -> None:
        """Change phase along the table."""
        self.end.phase = move(RUN_MOVES, f"run {self.facts.run}", self.phase, phase)

    def touch(self, trial: str) -> None:
        """Have `reconcile` look at this trial."""
        self.agenda.touched[trial] = None

    @property
    def next_id(self) -> str:
        """The id of the next command."""
        return f"{self.clock.seq}.{self.clock.given}"


UNKNOWN = Outline((), (), 0.0)


def new_state(facts: RunFacts, rules: Rules = RULES) -> State:
    """The state before the first event."""
    return State(facts, Ledger(facts.cluster.usd_per_gpu_h), rules)
