"""The core in a simulated world: time is a heap, the cloud and the agents are a `SimulatedFleet`,
and a run takes milliseconds.

The one rule: the core is the real one. The policy answers before anything else of that moment
happens.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial

from seerd.core import commands, events
from seerd.core.asking import Asking, outlined
from seerd.core.plans import Order
from seerd.core.state import State, new_state
from seerd.core.step import commands_of, step
from seerd.planner.model import Problem
from seerd.planner.trial_ids import job_of
from seerd.sim.behaviour import Behaviour
from seerd.sim.fleet import NANOSECONDS, Heap, SimulatedFleet

START_S = 0.05
PUBLISH_S = 0.05


class World:
    """Simulates a run to its end."""

    fleet_type = SimulatedFleet

    def __init__(self, facts: events.RunFacts, behaviour: Behaviour, *, seed: int = 0) -> None:
        self.facts = facts = outlined(facts)
        self.state = new_state(facts)
        self.events = 0
        self.published_at: float | None = None
        self._heap = Heap()
        self.fleet = self.fleet_type(
            behaviour,
            self._heap,
            random.Random(f"world {seed}"),
            self.tell,
            self._later,
            lambda trial: self.state.facts.goals[job_of(trial)],
        )
        self._instant = facts.cluster.instant
        self._inbox: deque[tuple[events.AnyEvent, ...]] = deque()
        self._busy = False
        self._asking: Asking | None = None
        self._asked_for: Problem | None = None
        self._answers: dict[str, events.PolicyAnswered] = {}

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self._heap.now

    def run(self) -> State:
        """Simulate the run from its start to its end."""
        start_s = 0.0 if self._instant else START_S
        self.at(start_s, lambda: self.tell(events.RunStarted(at=self.now, facts=self.facts)))
        while not self.state.finished:
            self._heap.turn()
        return self.state

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Schedule an action, after those put there before for the same moment."""
        self._heap.at(when, action)

    def tell(self, *batch: events.AnyEvent) -> None:
        """Give the daemon a batch of events, after those that wait."""
        self._inbox.append(batch)
        if self._busy:
            return
        self._busy = True
        while self._inbox:
            self.handle(self._inbox.popleft())
        self._busy = False

    def handle(self, batch: tuple[events.AnyEvent, ...]) -> None:
        """Handle a batch as the real daemon does: commit all events, then carry out all
        commands.
        """
        for command in self._commit(batch):
            self._carry_out(command)

    def _commit(self, batch: tuple[events.AnyEvent, ...]) -> list[commands.AnyCommand]:
        """Decide on events, and return the commands to carry out. The policy is asked at once,
        about the run as it is now, whatever is handled before the answer is delivered.
        """
        self.events += len(batch)
        orders = []
        for event in batch:
            decided = self.decide(event)
            orders += decided
            for question in [c for c in decided if isinstance(c, commands.AskPolicy)]:
                plan, problem = self.state.plan, self.state.facts.problem
                if self._asking is None or plan.failures or problem is not self._asked_for:
                    self._asking = Asking(problem, plan.memory, Order(plan.order))
                    self._asked_for = problem
                answer = self._asking.ask(self.state.view)
                self._answers[question.id] = events.PolicyAnswered(
                    at=self.now, question=question.id, plan=answer.plan, memory=answer.memory
                )
        return orders

    def decide(self, event: events.AnyEvent) -> list[commands.AnyCommand]:
        """Decide on an event; return the commands."""
        return commands_of(step(self.state, event))

    def _later(self, wait_s: float, event: Callable[[float], events.AnyEvent]) -> None:
        """Report an outcome later."""
        self.at(self.now + wait_s, lambda: self.tell(event(self.now)))

    def _carry_out(self, command: commands.AnyCommand) -> None:
        match command:
            case commands.StartTrial():
                self.fleet.start(command)
            case commands.StopTrial():
                self.fleet.stop(command)
            case commands.GrowTrial():
                self.fleet.grow(command)
            case commands.SetTimer() if self._instant:
                # after all else of its moment: a report due just when a stage ends still counts
                due = max(command.due, round(command.due, NANOSECONDS))
                fired = partial(events.TimerFired, command=command.id)
                self._heap.at(due, lambda: self.tell(fired(at=self.now)), last=True)
            case commands.SetTimer():
                wait_s = max(0.0, command.due - self.now)
                self._later(wait_s, lambda at: events.TimerFired(at=at, command=command.id))
            case commands.AskPolicy():
                self._inbox.appendleft((self._answers.pop(command.id),))
            case commands.Launch():
                self.fleet.launch(command)
            case commands.Terminate():
                self.fleet.terminate(command)
            case commands.Publish():
                wait_s = 0.0 if self._instant else PUBLISH_S
                self._later(wait_s, partial(self._published, command))

    def _published(self, command: commands.Publish, at: float) -> events.AnyEvent:
        self.published_at = at
        job = job_of(command.trial)
        return events.ModelPublished(
            at=at, command=command.id, path=f"best/{job}" if job else "best"
        )
