"""What is wanted: the plan in force, where its trials should run, and what is to be looked at."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from seerd.core import verdicts
from seerd.core.commands import AskCause, LaunchCause
from seerd.core.events import LaunchRefused, Obstacle
from seerd.core.plans import Order, PlanChange
from seerd.planner.memory import Json
from seerd.planner.model import Allocation


@dataclass(slots=True)
class PlanInForce:
    """The plan that was adopted last, and the policy's memory."""

    order: Order = field(default_factory=Order)  # its allocations, most valuable first
    wanted: dict[str, Allocation] = field(default_factory=dict)  # of trials that may still run
    last: PlanChange = field(default_factory=PlanChange)  # the answer that brought this plan
    memory: dict[str, Json] = field(default_factory=dict)  # sent back with the next question
    reached: dict[str, None] = field(default_factory=dict)  # trials that have reached their `until`
    question: str | None = None  # id of the question that is open, None if none is
    asked: str = ""  # id of the last question, open or not
    # when it was asked, in seconds since the run began; a restart asks an open question again
    asked_s: float = -math.inf
    # the answer to that question until it is judged: plan and memory, or why there is none
    answer: tuple[PlanChange, dict[str, Json]] | str | None = None
    failures: int = 0  # how many answers in a row could not be used
    again_s: float = -math.inf  # when to ask again after such an answer, in seconds into the run

    @property
    def stage(self) -> int:
        """Index of the present stage, from 0."""
        return self.last.stage


@dataclass(slots=True)
class Aims:
    """Where wanted trials should run, derived from the plan and the fleet."""

    aimed: dict[str, None] = field(default_factory=dict)  # trials that have a target (ordered set)
    # wanted trials that have none -> how many GPUs they should have, most valuable first
    waiting: dict[str, int] = field(default_factory=dict)
    sizes: Counter[int] = field(default_factory=Counter)  # GPUs -> how many trials want so many
    needed: int = 0  # how many instances the wanted trials need
    # where instances come in several sizes: how many GPUs they lack, and which instances they use
    missing: int = 0
    used: frozenset[str] = frozenset()
    most: int | None = None  # most GPUs of a trial where instances are shared with other runs
    # trials that an obstacle keeps from free GPUs, longest waiting first (an ordered set)
    blocked: dict[str, None] = field(default_factory=dict)

    def cut(self, gpus: int) -> int:
        """Return how many GPUs a trial gets to which the plan gives so many."""
        return gpus if self.most is None else min(gpus, self.most)


@dataclass(slots=True)
class Agenda:
    """What must be looked at next. Limits are judged only when a timer has fired: after a restart,
    facts that come before may still lower what is spent.
    """

    woken: bool = False  # True: a timer has fired, so the limits must be looked at
    stirred: bool = False  # True: the present event has changed something on which decisions depend
    resumed: bool = False  # True: a daemon's first event; what is derived must be computed anew
    because: LaunchCause = "room"  # the reason to give if more instances are launched now
    hold: bool = False  # True: a plan is about to come; do nothing that it might undo
    ask: AskCause | None = None  # why the policy must be asked, None if it need not
    about: str | None = None  # trial whose report or end is that reason; None: no single trial's
    replace: bool = False  # True: trials must be placed anew
    refit: bool = False  # True: the number of instances may be wrong
    ended: dict[str, int] = field(default_factory=dict)  # ended trial -> GPUs that it was to have
    # ordered sets: instances with newly free GPUs, and those on which perhaps nothing runs; trials
    # that may not be where they should be
    roomy: dict[str, None] = field(default_factory=dict)
    idle: dict[str, None] = field(default_factory=dict)
    touched: dict[str, None] = field(default_factory=dict)
    saved: list[str] = field(default_factory=list)  # trials with a new checkpoint
    judge: dict[str, verdicts.FailCause] = field(default_factory=dict)  # trial -> its fault
    # trial -> what was in the way of its attempt, and on which GPUs, as (instance, GPU)
    blocked: dict[str, tuple[Obstacle, tuple[tuple[str, int], ...]]] = field(default_factory=dict)
    doubt: bool = False  # True: something has gone wrong that may go wrong with every trial
    reported: str | None = None  # trial that has just reported, None if none has
    quiet: str | None = None  # trial whose agent complains that it has not reported for a while
    unstored: bool = False  # True: an agent has just failed to store a checkpoint
    waited: list[str] = field(default_factory=list)  # trials whose ranks wait for others
    # instance that a resumed run did not find -> when its cloud says that it ended (None: unknown)
    missing: dict[str, float | None] | None = None
    refused: list[LaunchRefused] = field(default_factory=list)  # launches that were refused
    some_ready: bool = False  # True: an instance has become ready
