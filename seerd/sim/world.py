"""The core in a simulated world: time is a heap, the cloud and the agents are a `SimulatedFleet`,
and a run takes milliseconds.

The one rule: the core is the real one and the journal is kept as the daemon keeps it: an event
counts once it is there. A killed daemon loses everything else, and the next one reads its state
from the journal. The policy answers before anything else of that moment happens.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial

from seerd.core.asking import Asking, lacking, outlined
from seerd.core.codec import decode_decisions, decode_event, encode_decisions, encode_event
from seerd.core.commands import (
    AnyCommand,
    AskPolicy,
    Finish,
    Launch,
    Publish,
    SetTimer,
    StartTrial,
    StopTrial,
    Terminate,
)
from seerd.core.enact import AnyDecision
from seerd.core.events import (
    AnyEvent,
    ModelPublished,
    Notice,
    PolicyAnswered,
    RunFacts,
    RunResumed,
    RunStarted,
    StopAsked,
    TimerFired,
)
from seerd.core.invariants import violations
from seerd.core.limits import lease_s
from seerd.core.plans import Order
from seerd.core.rules import RULES, Rules
from seerd.core.state import State, new_state
from seerd.core.step import commands_of, follow, step, unfinished
from seerd.planner.model import View
from seerd.sim.behaviour import Behaviour
from seerd.sim.fleet import SimulatedFleet
from seerd.sim.heap import NANOSECONDS, Heap

START_S = 0.05
PUBLISH_S = 0.05


class World:
    """Runs a run to its end.

    With `checked`, the journal is kept, the daemon may be killed, and after every step the
    invariants must hold: a violation raises `AssertionError`. Without, only what `simulate` needs
    is kept, which is many times as fast.
    """

    def __init__(
        self,
        facts: RunFacts,
        behaviour: Behaviour,
        *,
        seed: int = 0,
        kill_after: frozenset[int] = frozenset(),
        checked: bool = True,
    ) -> None:
        self.facts = facts = outlined(facts)
        self.journal: list[tuple[AnyEvent, list[AnyDecision]]] = []
        self.state = new_state(facts)
        self.up = True
        self.down_s = 1.0
        self.kills = 0
        self.events = 0
        self.published_at: float | None = None
        self._checked = checked
        self._heap = Heap()
        self.fleet = SimulatedFleet(
            behaviour, self._heap, random.Random(f"world {seed}"), self.tell, self._later
        )
        self.fleet.keep_facts = checked
        self._instant = facts.cluster.instant
        self._kill_after = set(kill_after)
        self._incarnation = 0
        self._inbox: deque[tuple[AnyEvent, ...]] = deque()
        self._busy = False
        self._asking: Asking | None = None
        self._answers: dict[str, PolicyAnswered] = {}

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self._heap.now

    def run(self) -> State:
        """From the start to the end of the run."""
        self.begin()
        return self.run_on()

    def begin(self) -> None:
        """The person starts the run."""
        start_s = 0.0 if self._instant else START_S
        self.at(start_s, lambda: self.tell(RunStarted(at=self.now, facts=self.facts)))

    def run_on(self) -> State:
        """From here to the end of the run."""
        while not self.state.finished:
            self._heap.turn()
        return self.state

    def turn(self) -> None:
        """Let the next thing happen."""
        self._heap.turn()

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Let something happen at a moment, after what was put there before."""
        self._heap.at(when, action)

    # ------------------------------------------------------------ the daemon

    def tell(self, *events: AnyEvent) -> None:
        """A batch reaches the daemon, after what is waiting there; lost if there is no daemon."""
        self._inbox.append(events)
        if self._busy:
            return
        self._busy = True
        while self._inbox:
            self._handle(self._inbox.popleft())
        self._busy = False

    def _handle(self, events: tuple[AnyEvent, ...]) -> None:
        """As the real daemon does it: all committed first, then all commands carried out."""
        if not self.up:
            return
        self.events += len(events)
        batch = [command for event in events for command in self._step(event)]
        if self._checked:
            problems = violations(self.state)
            assert not problems, f"after {events[-1]}: {problems}"
        if self._kill_after & set(
            range(self.state.clock.seq - len(events) + 1, self.state.clock.seq + 1)
        ):
            self._kill_after -= set(range(self.state.clock.seq + 1))
            self.kill_daemon()
            return
        incarnation = self._incarnation
        for command in batch:
            if incarnation == self._incarnation:
                self._carry_out(command)

    def _step(self, event: AnyEvent) -> list[AnyCommand]:
        """What must be carried out. A question is about the run as it is now, whatever else is
        handled before it is sent.
        """
        before = unfinished(self.state) if isinstance(event, RunResumed) else []
        decided = step(self.state, event)
        if self._checked:
            self.journal.append((event, decided))
        commands = [
            command for command in before if command.id in self.state.under_way
        ] + commands_of(decided)
        for command in commands:
            if isinstance(command, AskPolicy):
                self._answers[command.id] = self._ask(command)
        return commands

    def kill_daemon(self) -> None:
        """Everything but the journal is lost; a new daemon comes `down_s` later."""
        self.up = False
        self.kills += 1
        self._incarnation += 1
        lease_end = self.now + lease_s(self.state, self.now)
        if lease_end < self.now + self.down_s:
            per_instance = self.facts.cluster.per_instance
            self.at(lease_end, lambda: self.fleet.end_leases(power_off=per_instance))
        self.at(self.now + self.down_s, self.resume)

    def resume(self) -> None:
        """A new daemon reads the journal, looks at what is there, and goes on."""
        self._incarnation += 1
        self._asking = None
        self.state = self.read(self.state.rules)
        self.up = True
        if not self.journal:
            self.tell(RunStarted(at=self.now, facts=self.facts))
            return
        alive = tuple(machine.id for machine in self.fleet.machines.values() if machine.alive)
        resumed = RunResumed(at=self.now, alive=alive, outline=lacking(self.state.facts))
        self.tell(resumed, *self.fleet.missed())

    def read(self, rules: Rules | None = RULES) -> State:
        """The state at the end of the journal, as it lies on a disk; `rules`: of whoever goes on
        from there, None: nobody does.
        """
        state = new_state(self.facts, rules)  # type: ignore[arg-type]  # reading asks nobody for a rule
        for event, decided in self.journal:
            follow(
                state,
                decode_event(encode_event(event)),
                decode_decisions(encode_decisions(decided)),
            )
        return state

    def _ask(self, command: AskPolicy) -> PolicyAnswered:
        plan = self.state.plan
        if self._asking is None or plan.failures:
            self._asking = Asking(self.facts.problem, plan.memory, Order(plan.order))
        answer = self._asking.ask(View(self.state.now, self.facts.mode, self.state.trials))
        return PolicyAnswered(
            at=self.now, question=command.id, plan=answer.plan, memory=answer.memory
        )

    def _later(self, wait_s: float, event: Callable[[float], AnyEvent]) -> None:
        """An outcome for the daemon of now; a daemon that comes later does not hear of it."""
        incarnation = self._incarnation
        self.at(
            self.now + wait_s,
            lambda: self.tell(event(self.now)) if incarnation == self._incarnation else None,
        )

    def _carry_out(self, command: AnyCommand) -> None:
        match command:
            case StartTrial() | StopTrial():
                self.fleet.order(command)
            case SetTimer():
                self._set_timer(command)
            case AskPolicy():
                self._inbox.appendleft((self._answers.pop(command.id),))
            case Launch():
                self.fleet.launch(command)
            case Terminate():
                self.fleet.terminate(command)
            case Publish():
                wait_s = 0.0 if self._instant else PUBLISH_S
                self._later(wait_s, partial(self._published, command.id))
            case Finish():
                pass

    def _set_timer(self, command: SetTimer) -> None:
        """Where nothing takes time, a report that is due exactly when a stage ends still counts."""
        if not self._instant:
            self._later(
                max(0.0, command.due - self.now), lambda at: TimerFired(at=at, command=command.id)
            )
            return
        due = max(command.due, round(command.due, NANOSECONDS))
        self._heap.at(
            due, lambda: self.tell(TimerFired(at=self.now, command=command.id)), last=True
        )

    def _published(self, command: str, at: float) -> AnyEvent:
        self.published_at = at
        return ModelPublished(at=at, command=command, path="best")

    # ------------------------------------------------------------ what else may happen

    def lose(self, name: str) -> None:
        """The machine dies, and the daemon notices."""
        self.fleet.lose(name)

    def notice(self, name: str, what: Notice = "interruption", by: float | None = None) -> None:
        """The cloud says that it will take the machine away; somebody else must do so,
        with `lose`.
        """
        self.fleet.notice(name, what, by)

    def interrupt(self, *, hard: bool = False) -> None:
        """The person presses Ctrl-C."""
        self.tell(StopAsked(at=self.now, hard=hard))
