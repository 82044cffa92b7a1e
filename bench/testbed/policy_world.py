"""A world for one policy: a clock, GPUs, and trials that report; no core, no processes, no cloud.

It checks what the protocol promises whenever it asks for a plan: never more GPUs than there are, no
trial twice, nobody who is out, and that asking again with nothing changed gives the same
allocations and nothing new.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from seerd.planner.memory import Memory
from seerd.planner.model import (
    Allocation,
    Impossible,
    Limits,
    Mode,
    Outline,
    Plan,
    Policy,
    PolicyParams,
    Problem,
    Report,
    View,
)
from seerd.planner.profile import LINEAR, Scaling
from seerd.planner.space import Config, Parameter, Space
from seerd.planner.trial_ids import job_of


@dataclass
class FakeTrial:
    id: str
    config: Config = field(default_factory=dict)
    status: str = "live"
    history: list[Report] = field(default_factory=list)
    failing: bool = False

    @property
    def reports(self) -> int:
        return self.history[-1].reports if self.history else 0

    @property
    def metric(self) -> float | None:
        return self.history[-1].metric if self.history else None

    def report(self, epoch: int, metric: float | None, at_s: float = 0.0) -> None:
        self.history.append(Report(at_s, epoch, metric))


def problem(
    gpus: int = 4,
    deadline_s: float = 1000.0,
    scaling: Scaling = LINEAR,
    space: Space | None = None,
    per_instance: int = 8,
    **params: object,
) -> Problem:
    """A fixed cluster of so many GPUs from 0 to the deadline."""
    return Problem(
        limits=Limits(deadline_s, gpus * deadline_s),
        space=space or Space((Parameter("lr", low=1e-4, high=1.0, log=True),)),
        params=PolicyParams(t_min_s=1.0, **params),
        scaling=scaling,
        gpus_per_instance=per_instance,
    )


@dataclass
class Asked:
    """A policy that is asked about one problem again and again, with what it remembers."""

    policy: Policy
    problem: Problem
    memory: Memory = field(default_factory=Memory)

    def outline(self) -> Outline | Impossible:
        return self.policy.outline(self.problem)

    def plan(self, view: View) -> Plan:
        plan, self.memory = self.policy.plan(self.problem, self.memory, view)
        return plan


@dataclass
class World:
    """Trials report every `unit_s(trial, until, gpus)` seconds after `start_s`; with `leaps` only
    when a plan asked to be called.

    lives_s   how long a trial trains from a start until it fails
    most      its script ends by itself after so many reports
    late      whether the policy is asked only at some later report than it wanted to be
    """

    policy: Asked
    gpus: int
    metric: Callable[[FakeTrial, int], float | None]
    unit_s: Callable[[str, int, int], float] = lambda trial, until, gpus: 1.0 / gpus
    start_s: float = 0.0
    lives_s: Callable[[], float] = lambda: math.inf
    most: int | None = None
    late: Callable[[], bool] = lambda: False
    leaps: bool = False
    checks: bool = True
    mode: Mode = "max"
    now_s: float = 0.0
    trials: dict[str, FakeTrial] = field(default_factory=dict)
    held: dict[str, Allocation] = field(default_factory=dict)
    plans: list[Plan] = field(default_factory=list)
    asked_s: list[float] = field(default_factory=list)
    started: list[tuple[float, str, int]] = field(default_factory=list)
    _events: list[tuple[float, int, str, int, int | None]] = field(default_factory=list)
    _attempts: dict[str, int] = field(default_factory=dict)
    _numbers: int = 0

    def run(self, until_s: float = math.inf) -> World:
        """Until the policy is done, or that time."""
        plan = self.ask()
        while not plan.done and self._events:
            ask_at_s = math.inf if plan.ask_at_s is None else plan.ask_at_s
            if min(ask_at_s, until_s) <= self._events[0][0]:
                self.now_s = min(ask_at_s, until_s)
                if self.now_s == until_s:
                    break
                plan = self.ask()
            elif self._next():
                plan = self.ask()
        return self

    def ask(self) -> Plan:
        view = View(self.now_s, self.mode, self.trials)
        plan = self.policy.plan(view)
        self.plans.append(plan)
        self.asked_s.append(self.now_s)
        for new in plan.new:
            assert new.id not in self.trials
            assert new.id > max((t for t in self.trials if job_of(t) == job_of(new.id)), default="")
            self.trials[new.id] = FakeTrial(new.id, new.config)
        for name in plan.eliminated:
            self.trials[name].status = "eliminated"
        if self.checks:
            self._check(plan, view)
        self._follow(plan)
        return plan

    def _check(self, plan: Plan, view: View) -> None:
        again = self.policy.plan(view)
        assert again.allocations == plan.allocations
        assert not again.new
        assert not again.eliminated
        assert again.done == plan.done
        assert sum(allocation.gpus for allocation in plan.allocations) <= self.gpus
        names = [allocation.trial for allocation in plan.allocations]
        assert len(set(names)) == len(names)
        assert all(self.trials[name].status == "live" for name in names)

    def _follow(self, plan: Plan) -> None:
        wanted = {allocation.trial: allocation for allocation in plan.allocations}
        for name in self.held.keys() - wanted.keys():
            self._attempts[name] += 1
        for name, allocation in wanted.items():
            before = self.held.get(name)
            if before is None or before.gpus != allocation.gpus:
                self._attempts[name] = self._attempts.get(name, 0) + 1
                self.started.append((self.now_s, name, allocation.gpus))
                self._schedule(allocation, self.start_s)
            elif before.until != allocation.until and self.leaps:
                self._schedule(allocation, 0.0)
        self.held = wanted

    def _schedule(self, allocation: Allocation, wait_s: float) -> None:
        trial = self.trials[allocation.trial]
        epoch = trial.reports + 1
        if self.leaps and allocation.until is not None:
            epoch = allocation.until
        unit_s = self.unit_s(trial.id, allocation.until or 0, allocation.gpus)
        lasts_s, lives_s = wait_s + unit_s * (epoch - trial.reports), self.lives_s()
        at_s, reports = (lasts_s, epoch) if lasts_s <= lives_s else (lives_s, None)
        self._numbers += 1
        heapq.heappush(
            self._events,
            (self.now_s + at_s, self._numbers, trial.id, self._attempts[trial.id], reports),
        )

    def _next(self) -> bool:
        """One event; whether the policy wants to be asked now."""
        at_s, _, name, attempt, epoch = heapq.heappop(self._events)
        if attempt != self._attempts[name]:
            return False
        self.now_s = at_s
        trial, allocation = self.trials[name], self.held[name]
        if epoch is None:
            trial.status = "failed"
            del self.held[name]
            return True
        trial.report(epoch, self.metric(trial, epoch), at_s)
        if self.most is not None and epoch >= self.most:
            trial.status = "finished"
            del self.held[name]
            return True
        asked = allocation.until is not None and epoch >= allocation.until
        if asked and not self.late():
            if not self.leaps:
                self._schedule(allocation, 0.0)
            return True
        self._schedule(allocation, 0.0)
        return False
