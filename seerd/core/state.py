"""Everything that the core knows of a run. It is rebuilt by stepping through the journal, so nothing that matters lives elsewhere.

The one rule: only `apply`, `decide` and `reconcile` change it, in that order, once for each event.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from planner.model import Allocation, Impossible, Outline, Plan, TrialStatus
from planner.policy import Policy, make_policy
from planner.space import Config
from seerd.core.commands import AnyCommand, SetTimer, Status
from seerd.core.events import ExitCause, RunFacts
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
from seerd.core.waiting import Waiting

KEPT_CHECKPOINTS = 2
"""So many of a trial's newest checkpoints stay in the store: a damaged newest one falls back to the one before it."""

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
class Checkpoint:
    """A confirmed checkpoint: `epoch` reports had been made, the last with `metric` (None: not finite)."""

    name: str
    epoch: int
    metric: float | None
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Report:
    """One report: when it was made (seconds since the run began), how many there were then, the metric (None: not finite)."""

    at_s: float
    epoch: int
    metric: float | None


@dataclass(frozen=True, slots=True)
class End:
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
class Stall:
    """Nothing of an attempt moves on one of its instances: some ranks are `hung` at this `position`, or all wait there for others."""

    hung: bool
    position: tuple[int, int]


@dataclass(slots=True)
class Trial:
    """One configuration and what became of it.

    gpus         how many GPUs are wanted for it now, 0 for none
    until        the policy wants to be asked when it has made so many reports
    target       where it should run; `held`: where its present attempt is; neither, one or both may be there
    told         of an attempt on several instances: where it has started; `ends`: where it has ended already, and how
    stalls       of such an attempt: where nothing moves; `hung`: some of its ranks wait for others that do nothing, so it must end
    waits        which share of their time its ranks wait for others, by instance and rank; `slow`: who keeps the others waiting, and since
                 when that is known
    history      its reports, without those that a later restart from an older checkpoint has taken back
    checkpoints  confirmed ones, newest first, at most `KEPT_CHECKPOINTS`
    crashes      ends that were its own fault; losses: those that were the machine's
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
    target: Assignment | None = None
    held: Assignment | None = None
    told: dict[str, None] = field(default_factory=dict)
    ends: dict[str, End] = field(default_factory=dict)
    stalls: dict[str, Stall] = field(default_factory=dict)
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
        return self.history[-1].epoch if self.history else 0

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
        """Its present attempt has finished on node 0, which is the one that saves: nothing more can come of the others."""
        end = self.ends.get(self.held[0].node) if self.held else None
        return end is not None and end.cause == "finished"

    @property
    def broken(self) -> bool:
        """Its present attempt has ended on one of its instances and nobody asked for it: it must not go on on the others.

        One that has finished beside node 0 leaves it the time to save.
        """
        return self.hung or (
            bool(self.ends) and (self.saved or any(e.alone and e.cause != "finished" for e in self.ends.values()))
        )

    def key_on(self, node: str) -> str:
        """Names the part of its present attempt on one of its instances in the ledger; node 0 has the attempt's own name."""
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
class State:
    """A run.

    heard_at   when the event before the present one was; a daemon that has died has lived at least until then
    seq        events so far; the next command's id begins with it
    under_way  commands whose outcome is not known, by id; after a restart exactly these are asked for again
    timer      the one timer that is set
    holding    attempts that hold GPUs
    wanted     the plan's allocations by trial; `aimed`: trials that have a target
    ended      trials that have finished or failed since the last decision
    waiting    wanted trials without a target; `roomy`: instances where room has appeared since trials were last placed
    sizes      how many wanted trials there are of each number of GPUs
    live       instances that are asked for or ready; `leaving`: those that the cloud will take away; `present`: these, and those being
               given back too; `needed`: how many the wanted trials need
    idle       instances on which nothing may run any more
    touched    trials whose wanted and real place may differ since the last `reconcile`
    no_model   the run is being ended, and no checkpoint can be its result
    stirred    the present event has changed something on which decisions depend
    woken      a timer has fired: the limits must be looked at. Only then: after a restart, what agents have yet to tell (that attempts
               ended meanwhile) comes before the first timer, and must be known before anything is judged to be used up
    refusals   batches of launches in a row that were refused, since `refused_since`; `refused`: the newest one; `launch_at`: when to ask again
    noticed    instances that were told to leave before they were ready, and by when
    replan     the policy must be asked; `replace`: trials must be placed anew; `refit`: the number of instances may be wrong
    """

    facts: RunFacts
    policy: Policy
    outline: Outline
    ledger: Ledger
    now: float = 0.0
    heard_at: float = 0.0
    seq: int = 0
    phase: RunPhase = RunPhase.RUNNING
    ending: Status | None = None
    hard: bool = False
    close_by: float | None = None
    plan: Plan = field(default_factory=Plan)
    woken: bool = False
    stirred: bool = False
    replan: bool = True
    replace: bool = False
    refit: bool = False
    trials: dict[str, Trial] = field(default_factory=dict)
    instances: dict[str, Instance] = field(default_factory=dict)
    under_way: dict[str, AnyCommand] = field(default_factory=dict)
    timer: SetTimer | None = None
    holding: int = 0
    wanted: dict[str, Allocation] = field(default_factory=dict)
    aimed: dict[str, None] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    waiting: Waiting = field(default_factory=Waiting)
    roomy: dict[str, None] = field(default_factory=dict)
    sizes: Counter[int] = field(default_factory=Counter)
    live: int = 0
    leaving: int = 0
    present: int = 0
    needed: int = 0
    idle: dict[str, None] = field(default_factory=dict)
    touched: dict[str, None] = field(default_factory=dict)
    slowest_s: float = 0.0
    refusals: int = 0
    refused: int = 0
    refused_since: float = -math.inf
    launch_at: float = -math.inf
    noticed: dict[str, float | None] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    publishing: Incumbent | None = None
    no_model: bool = False
    published: Published | None = None
    finished: bool = False
    notes: list[str] = field(default_factory=list)

    def go(self, phase: RunPhase) -> None:
        """Change phase along the table."""
        self.phase = move(RUN_MOVES, f"run {self.facts.run}", self.phase, phase)

    def go_instance(self, instance: Instance, phase: InstancePhase) -> None:
        """Change an instance's phase along the table."""
        old, instance.phase = instance.phase, move(INSTANCE_MOVES, f"instance {instance.id}", instance.phase, phase)
        self.live += (phase in LIVE) - (old in LIVE)
        self.leaving += (phase is InstancePhase.LEAVING) - (old is InstancePhase.LEAVING)
        self.present -= phase in GONE

    def touch(self, trial: str) -> None:
        """Have `reconcile` look at this trial."""
        self.touched[trial] = None


class ImpossibleRunError(Exception):
    """The limits fit nothing; whoever starts a run asks the policy for its outline before."""

    def __init__(self, impossible: Impossible) -> None:
        super().__init__(impossible.reason)
        self.impossible = impossible


def new_state(facts: RunFacts) -> State:
    """The state before the first event is handled."""
    policy = make_policy(facts.problem)
    outline = policy.outline()
    if isinstance(outline, Impossible):
        raise ImpossibleRunError(outline)
    return State(facts, policy, outline, Ledger(facts.cluster.usd_per_gpu_h))
