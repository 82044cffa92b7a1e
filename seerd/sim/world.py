"""Instances, agents, trials and a daemon that can be killed, all simulated, around the real core.

The one rule: the core cannot tell it from the real thing. Agents number their facts, keep them until they are committed and carry out an
order's id once; a killed daemon loses everything but its journal.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from planner.space import Config
from seerd.core.codec import encode_commands
from seerd.core.commands import (
    AnyCommand,
    Finish,
    Launch,
    Publish,
    SetTimer,
    StartTrial,
    StopTrial,
    Terminate,
)
from seerd.core.events import (
    AnyEvent,
    InstanceLost,
    InstanceReady,
    InstanceTerminated,
    LaunchRefused,
    ModelPublished,
    RunFacts,
    RunResumed,
    RunStarted,
    StopAsked,
    TimerFired,
    TrialCheckpointed,
    TrialExited,
    TrialReported,
    TrialStarted,
    TrialTraining,
)
from seerd.core.invariants import violations
from seerd.core.limits import lease_s
from seerd.core.state import State, new_state
from seerd.core.step import step


@dataclass(frozen=True)
class Behaviour:
    """How the simulated parts behave; seconds.

    metric     the metric after so many reports (None: NaN)
    epoch_s    from report to report, on so many GPUs
    deaf       agents do not answer orders to stop
    crashes    whether this attempt ends with an error at this report
    """

    metric: Callable[[Config, int], float | None]
    epoch_s: Callable[[int], float] = lambda gpus: 1.0
    crashes: Callable[[str, int, int], bool] = lambda trial, attempt, epoch: False
    boot_s: float = 0.2
    start_s: float = 2.0
    save_s: float = 0.05
    stop_s: float = 0.5
    most_epochs: int | None = None
    deaf: bool = False


@dataclass
class Attempt:
    """A simulated attempt."""

    trial: str
    number: int
    config: Config
    gpus: int
    epoch: int
    saved: int


@dataclass
class Machine:
    """A simulated instance with its agent."""

    id: str
    alive: bool = True
    facts: int = 0
    kept: list[tuple[int, Callable[[float], AnyEvent]]] = field(default_factory=list)
    orders: set[str] = field(default_factory=set)
    attempts: dict[str, Attempt] = field(default_factory=dict)


class World:
    """Runs a run to its end. After every step the invariants are checked; a violation raises `AssertionError`."""

    def __init__(self, facts: RunFacts, behaviour: Behaviour, *, kill_after: frozenset[int] = frozenset()) -> None:
        self.facts = facts
        self.behaviour = behaviour
        self.now = 0.0
        self.journal: list[tuple[AnyEvent, list[AnyCommand]]] = []
        self.state = new_state(facts)
        self.machines: dict[str, Machine] = {}
        self.store: dict[str, list[tuple[str, int]]] = {}
        self.up = True
        self.down_s = 1.0
        self.kills = 0
        self.started: list[tuple[str, int]] = []
        self._kill_after = set(kill_after)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._incarnation = 0

    def run(self) -> State:
        """From the start to the end of the run."""
        self.begin()
        return self.run_on()

    def begin(self) -> None:
        """The person starts the run."""
        self.at(0.05, lambda: self.tell(RunStarted(at=self.now, facts=self.facts)))

    def run_on(self) -> State:
        """From here to the end of the run."""
        while not self.state.finished:
            self.turn()
        return self.state

    def turn(self) -> None:
        """Let the next thing happen."""
        self.now, _, action = heapq.heappop(self._heap)
        action()

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Let something happen at a moment, after what was put there before."""
        heapq.heappush(self._heap, (when, next(self._order), action))

    # ------------------------------------------------------------ the daemon

    def tell(self, event: AnyEvent) -> None:
        """An event reaches the daemon; lost if there is none."""
        self._tell([event])

    def _tell(self, events: list[AnyEvent]) -> None:
        """A batch, as the real daemon handles it: all committed first, then all commands carried out."""
        if not self.up:
            return
        batch: list[AnyCommand] = []
        for event in events:
            commands = step(self.state, event)
            self.journal.append((event, commands))
            batch += commands
        problems = violations(self.state)
        assert not problems, f"after {events[-1]}: {problems}"
        if self._kill_after & set(range(self.state.seq - len(events) + 1, self.state.seq + 1)):
            self._kill_after -= set(range(self.state.seq + 1))
            self.kill_daemon()
            return
        incarnation = self._incarnation
        for command in batch:
            if incarnation == self._incarnation:
                self._carry_out(command)

    def kill_daemon(self) -> None:
        """Everything but the journal is lost; a new daemon comes `down_s` later."""
        self.up = False
        self.kills += 1
        self._incarnation += 1
        lease_end = self.now + lease_s(self.state, self.now)
        if lease_end < self.now + self.down_s:
            self.at(lease_end, self._end_lease)
        self.at(self.now + self.down_s, self.resume)

    def _end_lease(self) -> None:
        """Nobody renewed it: every agent lets its trials save and exit."""
        for machine in self.machines.values():
            for attempt in list(machine.attempts.values()):
                self._save(machine, attempt)
                self._exit(machine, attempt, "lease", 0)
            if self.facts.cluster.billing == "rented":
                self.power_off(machine.id)

    def resume(self) -> None:
        """A new daemon reads the journal, looks at what is there, and goes on."""
        self._incarnation += 1
        self.state = new_state(self.facts)
        for event, commands in self.journal:
            again = step(self.state, event)
            assert encode_commands(again) == encode_commands(commands), f"replay differs at {event}"
        self.up = True
        if not self.journal:
            self.tell(RunStarted(at=self.now, facts=self.facts))
            return
        alive = tuple(m.id for m in self.machines.values() if m.alive)
        missed = [make(self.now) for m in self.machines.values() if m.alive for _, make in m.kept]
        self._tell([RunResumed(at=self.now, alive=alive), *missed])

    def _later(self, wait_s: float, event: Callable[[float], AnyEvent]) -> None:
        """An outcome for the daemon of now; a daemon that comes later does not hear of it."""
        incarnation = self._incarnation
        self.at(self.now + wait_s, lambda: self.tell(event(self.now)) if incarnation == self._incarnation else None)

    def _carry_out(self, command: AnyCommand) -> None:
        match command:
            case SetTimer():
                wait_s = max(0.0, command.due - self.now)
                self._later(wait_s, lambda at: TimerFired(at=at, command=command.id))
            case Launch():
                self._launch(command)
            case Terminate():
                self.power_off(command.instance)
                self._later(0.1, lambda at: InstanceTerminated(at=at, command=command.id, instance=command.instance))
            case StartTrial() | StopTrial():
                self._order_to(command)
            case Publish():
                self._later(0.05, lambda at: ModelPublished(at=at, command=command.id, path="best"))
            case Finish():
                pass

    def _launch(self, command: Launch) -> None:
        name = f"m{command.id}"
        machine = self.machines.setdefault(name, Machine(name))
        since = self.now + self.behaviour.boot_s

        def outcome(at: float) -> AnyEvent:
            if not machine.alive:
                return LaunchRefused(at=at, command=command.id, why="it died while it booted", retry=True)
            return InstanceReady(
                at=at, command=command.id, instance=machine.id, gpus=command.gpus, running_since=min(at, since)
            )

        self._later(self.behaviour.boot_s, outcome)

    # ------------------------------------------------------------ machines

    def power_off(self, name: str) -> None:
        """All that ran there is gone."""
        machine = self.machines[name]
        machine.alive = False
        machine.attempts.clear()

    def lose(self, name: str) -> None:
        """The machine dies, and the daemon notices."""
        self.power_off(name)
        self.tell(InstanceLost(at=self.now, instance=name, why="power failure"))

    def interrupt(self, *, hard: bool = False) -> None:
        """The person presses Ctrl-C."""
        self.tell(StopAsked(at=self.now, hard=hard))

    def _fact(self, machine: Machine, kind: type[Any], **fields: Any) -> None:
        machine.facts += 1
        number, happened = machine.facts, self.now

        def make(at: float) -> AnyEvent:
            event: AnyEvent = kind(at=at, instance=machine.id, fact=number, happened=happened, **fields)
            return event

        machine.kept.append((number, make))
        self.tell(make(self.now))

    def _order_to(self, command: StartTrial | StopTrial) -> None:
        machine = self.machines[command.instance]
        if not machine.alive or command.id in machine.orders:
            return
        machine.orders.add(command.id)
        if isinstance(command, StartTrial):
            self._start(machine, command)
        else:
            self._stop(machine, command)

    def _start(self, machine: Machine, command: StartTrial) -> None:
        known = dict(self.store.get(command.trial, []))
        epoch = next((known[name] for name in command.checkpoints if name in known), 0)
        attempt = Attempt(command.trial, command.attempt, command.config, len(command.gpus), epoch, epoch)
        running = [a for m in self.machines.values() for a in m.attempts.values() if a.trial == command.trial]
        assert not running, f"{command.trial} runs twice"
        machine.attempts[f"{command.trial}/{command.attempt}"] = attempt
        self.started.append((command.trial, command.attempt))
        self._fact(machine, TrialStarted, trial=command.trial, attempt=command.attempt, pid=1)
        self.at(self.now + self.behaviour.start_s, partial(self._begin, machine, attempt))

    def _runs(self, machine: Machine, attempt: Attempt) -> bool:
        return machine.alive and machine.attempts.get(f"{attempt.trial}/{attempt.number}") is attempt

    def _begin(self, machine: Machine, attempt: Attempt) -> None:
        if self._runs(machine, attempt):
            self._fact(machine, TrialTraining, trial=attempt.trial, attempt=attempt.number, epoch=attempt.epoch)
            self.at(self.now + self.behaviour.epoch_s(attempt.gpus), partial(self._epoch, machine, attempt))

    def _epoch(self, machine: Machine, attempt: Attempt) -> None:
        if not self._runs(machine, attempt):
            return
        if self.behaviour.crashes(attempt.trial, attempt.number, attempt.epoch + 1):
            self._exit(machine, attempt, "crashed", 1)
            return
        attempt.epoch += 1
        metric = self.behaviour.metric(attempt.config, attempt.epoch)
        self._fact(
            machine,
            TrialReported,
            trial=attempt.trial,
            attempt=attempt.number,
            epoch=attempt.epoch,
            metric=metric,
            unit_s=self.behaviour.epoch_s(attempt.gpus),
        )
        if attempt.epoch == 1 or attempt.epoch % 5 == 0:
            self._save(machine, attempt)
        if attempt.epoch == self.behaviour.most_epochs:
            self._exit(machine, attempt, "finished", 0)
            return
        self.at(self.now + self.behaviour.epoch_s(attempt.gpus), partial(self._epoch, machine, attempt))

    def _save(self, machine: Machine, attempt: Attempt) -> None:
        if attempt.epoch in (attempt.saved, 0):
            return
        attempt.saved = attempt.epoch
        name = f"{attempt.epoch:06d}-{attempt.number:08d}"
        self.store.setdefault(attempt.trial, []).append((name, attempt.epoch))
        self._fact(
            machine,
            TrialCheckpointed,
            trial=attempt.trial,
            attempt=attempt.number,
            name=name,
            epoch=attempt.epoch,
            metric=self.behaviour.metric(attempt.config, attempt.epoch),
            sha256="0" * 64,
            size=1000,
            save_s=self.behaviour.save_s,
        )

    def _stop(self, machine: Machine, command: StopTrial) -> None:
        attempt = machine.attempts.get(f"{command.trial}/{command.attempt}")
        if attempt is None or self.behaviour.deaf:
            return
        if not command.checkpoint:
            self._exit(machine, attempt, "asked", None)
            return
        wait_s = min(self.behaviour.stop_s, command.grace_s)
        self.at(self.now + wait_s, partial(self._stopped, machine, attempt))

    def _stopped(self, machine: Machine, attempt: Attempt) -> None:
        if self._runs(machine, attempt):
            self._save(machine, attempt)
            self._exit(machine, attempt, "asked", 0)

    def _exit(self, machine: Machine, attempt: Attempt, cause: str, code: int | None) -> None:
        del machine.attempts[f"{attempt.trial}/{attempt.number}"]
        self._fact(
            machine,
            TrialExited,
            trial=attempt.trial,
            attempt=attempt.number,
            cause=cause,
            code=code,
            tail=("last line",),
        )
