"""The core in a simulated world: time is a heap, the cloud and the agents are a `SimulatedFleet`,
and a run takes milliseconds.

The one rule: the core is the real one, and an event counts once it is in the journal. A killed
daemon loses everything else, and the next one reads its state from the journal. The policy answers
before anything else of that moment happens.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import cast

from seerd.core import commands, events
from seerd.core.asking import Asking, outlined
from seerd.core.codec import decode_decisions, decode_event, encode_decisions, encode_event
from seerd.core.enact import AnyDecision
from seerd.core.invariants import violations
from seerd.core.limits import lease_s
from seerd.core.plans import Order
from seerd.core.rules import RULES, Rules
from seerd.core.state import State, new_state
from seerd.core.step import commands_of, follow, step, unfinished
from seerd.planner.model import Outline, Problem
from seerd.planner.space import Config
from seerd.planner.trial_ids import job_of
from seerd.sim.behaviour import Behaviour
from seerd.sim.fleet import SimulatedFleet
from seerd.sim.heap import NANOSECONDS, Heap

START_S = 0.05
PUBLISH_S = 0.05


class World:
    """Simulates a run to its end.

    With `checked`, the journal is kept, the daemon may be killed, and after every step the
    invariants must hold (else `AssertionError`). Without it, only what `simulate` needs is kept,
    which is many times as fast.
    """

    def __init__(
        self,
        facts: events.RunFacts,
        behaviour: Behaviour,
        *,
        seed: int = 0,
        kill_after: frozenset[int] = frozenset(),
        checked: bool = True,
    ) -> None:
        self.facts = facts = outlined(facts)
        self.journal: list[tuple[events.AnyEvent, list[AnyDecision]]] = []
        self.state = new_state(facts)
        self.up = True
        self.down_s = 1.0
        self.kills = 0
        self.events = 0
        self.published_at: float | None = None
        self._checked = checked
        self._heap = Heap()
        self.fleet = SimulatedFleet(
            behaviour,
            self._heap,
            random.Random(f"world {seed}"),
            self.tell,
            self._later,
            self._goal_of,
        )
        self.fleet.keep_facts = checked
        self._instant = facts.cluster.instant
        self._kill_after = set(kill_after)
        self._incarnation = 0
        self._inbox: deque[tuple[events.AnyEvent, ...]] = deque()
        self._busy = False
        self._asking: Asking | None = None
        self._asked_for: Problem | None = None
        self._answers: dict[str, events.PolicyAnswered] = {}

    def _goal_of(self, trial: str) -> events.Goal:
        return self.state.facts.goal_of(trial)

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self._heap.now

    def run(self) -> State:
        """Simulate the run from its start to its end."""
        self.begin()
        return self.run_on()

    def begin(self) -> None:
        """Start the run."""
        start_s = 0.0 if self._instant else START_S
        self.at(start_s, lambda: self.tell(events.RunStarted(at=self.now, facts=self.facts)))

    def run_on(self) -> State:
        """Simulate the rest of the run."""
        while not self.state.finished:
            self._heap.turn()
        return self.state

    def turn(self) -> None:
        """Run the next action."""
        self._heap.turn()

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Schedule an action, after those put there before for the same moment."""
        self._heap.at(when, action)

    # ------------------------------------------------------------ the daemon

    def tell(self, *batch: events.AnyEvent) -> None:
        """Give the daemon a batch of events, after those that wait; a dead one loses them."""
        self._inbox.append(batch)
        if self._busy:
            return
        self._busy = True
        while self._inbox:
            self._handle(self._inbox.popleft())
        self._busy = False

    def _handle(self, batch: tuple[events.AnyEvent, ...]) -> None:
        """Handle a batch as the real daemon does: commit all events, then carry out all
        commands.
        """
        if not self.up:
            return
        self.events += len(batch)
        orders = [command for event in batch for command in self._step(event)]
        if self._checked:
            problems = violations(self.state)
            assert not problems, f"after {batch[-1]}: {problems}"
        seq = self.state.clock.seq
        if self._kill_after & set(range(seq - len(batch) + 1, seq + 1)):
            self._kill_after -= set(range(seq + 1))
            self.kill_daemon()
            return
        incarnation = self._incarnation
        for command in orders:
            if incarnation == self._incarnation:
                self._carry_out(command)

    def _step(self, event: events.AnyEvent) -> list[commands.AnyCommand]:
        """Decide on an event, and return the commands to carry out. The policy is asked at once,
        about the run as it is now, whatever is handled before the answer is delivered.
        """
        before = unfinished(self.state) if isinstance(event, events.RunResumed) else []
        decided = step(self.state, event)
        if self._checked:
            self.journal.append((event, decided))
        orders = [command for command in before if command.id in self.state.under_way]
        orders += commands_of(decided)
        for command in orders:
            if isinstance(command, commands.AskPolicy):
                self._answers[command.id] = self._ask(command)
        return orders

    def kill_daemon(self) -> None:
        """Kill the daemon: all but the journal is lost; the next comes `down_s` seconds later."""
        self.up = False
        self.kills += 1
        self._incarnation += 1
        lease_end = self.now + lease_s(self.state, self.now)
        if lease_end < self.now + self.down_s:
            per_instance = self.facts.cluster.per_instance
            self.at(lease_end, lambda: self.fleet.end_leases(power_off=per_instance))
        self.at(self.now + self.down_s, self.resume)

    def resume(self) -> None:
        """Start a new daemon, which reads the journal, lists the living instances, and goes on."""
        self._incarnation += 1
        self._asking = None
        self.state = self.read(self.state.rules)
        self.up = True
        if not self.journal:
            self.tell(events.RunStarted(at=self.now, facts=self.facts))
            return
        alive = tuple(machine.id for machine in self.fleet.machines.values() if machine.alive)
        resumed = events.RunResumed(at=self.now, alive=alive)
        self.tell(resumed, *self.fleet.missed())

    def read(self, rules: Rules | None = RULES) -> State:
        """Read the state at the end of the journal, through its form on disk. `rules`: those of a
        daemon that goes on from there; None: none does.
        """
        # Reading asks nobody for a rule.
        state = new_state(self.facts, cast("Rules", rules))
        for event, decided in self.journal:
            recorded = decode_decisions(encode_decisions(decided))
            follow(state, decode_event(encode_event(event)), recorded)
        return state

    def _ask(self, command: commands.AskPolicy) -> events.PolicyAnswered:
        plan = self.state.plan
        problem = self.state.facts.problem
        if self._asking is None or plan.failures or problem is not self._asked_for:
            self._asking = Asking(problem, plan.memory, Order(plan.order))
            self._asked_for = problem
        answer = self._asking.ask(self.state.view)
        return events.PolicyAnswered(
            at=self.now, question=command.id, plan=answer.plan, memory=answer.memory
        )

    def _later(self, wait_s: float, event: Callable[[float], events.AnyEvent]) -> None:
        """Report an outcome later, to the present daemon only."""
        incarnation = self._incarnation
        self.at(
            self.now + wait_s,
            lambda: self.tell(event(self.now)) if incarnation == self._incarnation else None,
        )

    def _carry_out(self, command: commands.AnyCommand) -> None:
        match command:
            case commands.StartTrial() | commands.StopTrial():
                self.fleet.order(command)
            case commands.SetTimer():
                self._set_timer(command)
            case commands.AskPolicy():
                self._inbox.appendleft((self._answers.pop(command.id),))
            case commands.Launch():
                self.fleet.launch(command)
            case commands.Terminate():
                self.fleet.terminate(command)
            case commands.Publish():
                wait_s = 0.0 if self._instant else PUBLISH_S
                self._later(wait_s, partial(self._published, command))
            case commands.Finish():
                pass

    def _set_timer(self, command: commands.SetTimer) -> None:
        """Set a timer. Where nothing takes time it fires after all else of its moment, so that a
        report that is due exactly when a stage ends still counts.
        """
        if not self._instant:
            self._later(
                max(0.0, command.due - self.now),
                lambda at: events.TimerFired(at=at, command=command.id),
            )
            return
        due = max(command.due, round(command.due, NANOSECONDS))
        self._heap.at(
            due, lambda: self.tell(events.TimerFired(at=self.now, command=command.id)), last=True
        )

    def _published(self, command: commands.Publish, at: float) -> events.AnyEvent:
        self.published_at = at
        job = job_of(command.trial)
        return events.ModelPublished(
            at=at, command=command.id, path=f"best/{job}" if job else "best"
        )

    # ------------------------------------------------------------ what else may happen

    def interrupt(self, *, hard: bool = False) -> None:
        """Press Ctrl-C."""
        self.tell(events.StopAsked(at=self.now, hard=hard))

    def extend(self, problem: Problem, outline: Outline | None, request: str = "r1") -> None:
        """Extend the limits."""
        self.tell(
            events.ExtendAsked(at=self.now, request=request, problem=problem, outline=outline)
        )

    def add(self, config: Config, request: str = "r1") -> None:
        """Add a configuration."""
        self.tell(events.AddAsked(at=self.now, request=request, config=dict(config)))
