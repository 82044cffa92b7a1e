"""The simulated instances and the attempts on them: what the cloud and the agents do.

The one rule: it acts on orders and on time alone, and reports what happens as events, numbered by
agent.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from seerd.core import events
from seerd.core.commands import GrowTrial, Launch, StartTrial, StopTrial, Terminate
from seerd.core.events import AnyEvent, ExitCause, Goal, Notice
from seerd.planner.space import Config
from seerd.sim.behaviour import Behaviour
from seerd.training.attempt import aggregate

# decimals of moments where nothing takes time, so that equal moments are equal floats
NANOSECONDS = 9


class Heap:
    """The queue of what will happen; `now`: seconds since the run began."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, bool, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, action: Callable[[], None], *, last: bool = False) -> None:
        """Schedule an action, after earlier ones of its moment; `last`: after all of them."""
        heapq.heappush(self._heap, (max(when, self.now), last, next(self._order), action))

    def turn(self) -> None:
        """Advance time to the next action, and run it."""
        self.now, _, _, action = heapq.heappop(self._heap)
        action()


NO_SHA256 = "0" * 64
NOTICED_S = 5.0  # most seconds from a crash on one instance until others fail, if they ever do
FINISHING_S = 2.0  # most seconds between the ends of a script on its instances


@dataclass(slots=True)
class SimulatedAttempt:
    """A simulated attempt. Moments are seconds since the run began."""

    trial: str
    number: int
    config: Config
    lead: str  # the instance that reports and saves
    parts: dict[str, int]  # GPUs on each instance where it still has processes
    gpus: int  # GPUs, or slots, that it has
    reports: int  # reports of the trial so far
    saved: int  # reports of the latest checkpoint
    pace: float  # how many times as long as usual it takes
    started: float  # when it started
    since: float = math.inf  # when it began or resumed the present unit of work; infinite: none
    unit_s: float = math.inf  # seconds of the present unit of work
    share: float = 0.0  # part of the present unit of work that was done before `since`
    saved_at: float = 0.0  # when it last saved, or started
    broken: bool = False  # it has ended on one of its instances: the others do nothing more
    tail: tuple[str, ...] = ()  # the last lines with which it crashes, if its configuration fails

    @property
    def key(self) -> tuple[str, int]:
        """What names it on its instances."""
        return self.trial, self.number


@dataclass(slots=True)
class SimulatedMachine:
    """A simulated instance with its agent. Moments are seconds since the run began."""

    id: str
    gpus: int
    asked: float  # when it was asked for
    running_since: float  # when it runs, and is billed
    alive: bool = True  # whether it has not ended
    ended: float | None = None  # when it ended, or will be billed no more; None: it has not ended
    facts: int = 0  # how many facts its agent has reported
    orders: set[str] = field(default_factory=set)  # orders that its agent has had
    # attempts that have processes on it
    attempts: dict[tuple[str, int], SimulatedAttempt] = field(default_factory=dict)

    @property
    def ran(self) -> bool:
        """Whether it has run: one that ended while it was pending has not, and costs nothing."""
        return self.ended is None or self.ended >= self.running_since

    @property
    def ran_from_to(self) -> tuple[float | None, float | None]:
        """When it began to run and when it ended; both None if it never ran."""
        return (self.running_since, self.ended) if self.ran else (None, None)


class SimulatedFleet:
    """All simulated instances."""

    def __init__(
        self,
        behaviour: Behaviour,
        heap: Heap,
        rng: random.Random,
        tell: Callable[[AnyEvent], None],
        reply: Callable[[float, Callable[[float], AnyEvent]], None],
        goal: Callable[[str], Goal],
    ) -> None:
        self.behaviour = behaviour
        self.machines: dict[str, SimulatedMachine] = {}
        self.store: dict[str, dict[str, int]] = {}
        self.shares: dict[str, tuple[int, float]] = {}
        self.started: list[tuple[str, int]] = []
        self.running: set[str] = set()
        self.held_gpu_s = 0.0
        self._heap = heap
        self._rng = rng
        self._tell = tell
        self._reply = reply
        self._goal = goal

    # ------------------------------------------------------------ instances

    def launch(self, command: Launch) -> None:
        """Boot an instance; the same launch gets the same instance again."""
        name, now = f"m{command.id}", self._heap.now
        machine = self.machines.get(name)
        if machine is None:
            running = now + self.behaviour.pending.draw(self._rng)
            machine = self.machines[name] = SimulatedMachine(name, command.gpus, now, running)
        boot_s = max(0.0, machine.running_since - now) + self.behaviour.boot.draw(self._rng)
        self._reply(boot_s, partial(self._booted, machine, command.id))

    def _booted(self, machine: SimulatedMachine, command: str, at: float) -> AnyEvent:
        if not machine.alive:
            since, ended = machine.ran_from_to
            return events.LaunchRefused(
                at=at,
                command=command,
                why="it died while it booted",
                retry=True,
                running_since=since,
                ended=ended,
            )
        if self.behaviour.lifetime_s is not None:
            lasts_s = self._rng.expovariate(1 / self.behaviour.lifetime_s)
            ends, sudden, notice_s = at + lasts_s, self.behaviour.sudden, self.behaviour.notice_s
            if notice_s is not None and not (sudden and self._rng.random() < sudden):
                announced = partial(self.notice, machine.id, "interruption", ends)
                self._heap.at(max(at, ends - notice_s), announced)
            self._heap.at(ends, partial(self.lose, machine.id, "its spot capacity was taken back"))
        return events.InstanceReady(
            at=at,
            command=command,
            instance=machine.id,
            gpus=machine.gpus,
            running_since=min(at, machine.running_since),
        )

    def notice(self, name: str, what: Notice = "interruption", by: float | None = None) -> None:
        """Announce that the cloud will take the instance away."""
        if self.machines[name].alive:
            self._fact(self.machines[name], events.InstanceNoticed, what=what, by=by)

    def terminate(self, command: Terminate) -> None:
        """Give back an instance, or the one that this launch has asked for."""
        name = command.instance if command.instance in self.machines else f"m{command.instance}"
        if name not in self.machines:  # the cloud had none to give
            self._reply(0.0, partial(_terminated, command, None, None))
            return
        machine = self.machines[name]
        wait_s = min(self.behaviour.release_most_s, self.behaviour.release.draw(self._rng))
        ran = machine.running_since <= self._heap.now
        self.power_off(name, self._heap.now + wait_s if ran else self._heap.now)
        self._reply(wait_s, partial(_terminated, command, *machine.ran_from_to))

    def power_off(self, name: str, ended: float | None = None) -> None:
        """End all on an instance; it is billed until `ended` (None: now), or its earlier end."""
        machine = self.machines[name]
        machine.alive = False
        if machine.ended is None:
            machine.ended = self._heap.now if ended is None else ended
        for attempt in list(machine.attempts.values()):
            self.end(machine, attempt)

    def lose(self, name: str, why: str = "power failure") -> None:
        """End an instance; the daemon learns of it."""
        if self.machines[name].alive:
            self.power_off(name)
            self._tell(events.InstanceLost(at=self._heap.now, instance=name, why=why))

    def billed_gpu_s(self, minimum_s: float) -> float:
        """Return the GPU-seconds billed for ended instances, at least `minimum_s` each."""
        return math.fsum(
            machine.gpus * max(minimum_s, machine.ended - machine.running_since)
            for machine in self.machines.values()
            if machine.ended is not None and machine.ran
        )

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._heap.at(self._heap.now + seconds, action)

    def _fact(self, machine: SimulatedMachine, kind: type[Any], **fields: Any) -> None:
        machine.facts += 1
        now = self._heap.now
        self._tell(kind(at=now, instance=machine.id, fact=machine.facts, happened=now, **fields))

    def _fact_of(
        self, attempt: SimulatedAttempt, machine: SimulatedMachine, kind: type[Any], **fields: Any
    ) -> None:
        self._fact(machine, kind, trial=attempt.trial, attempt=attempt.number, **fields)

    # ------------------------------------------------------------ attempts

    def _heeding(self, command: StartTrial | StopTrial | GrowTrial) -> list[SimulatedMachine]:
        """List an order's instances whose agents take it: the same order again changes nothing."""
        machines = [self.machines[name] for name in command.nodes]
        machines = [m for m in machines if m.alive and command.id not in m.orders]
        for machine in machines:
            machine.orders.add(command.id)
        return machines

    def start(self, command: StartTrial) -> None:
        """Start an attempt; without all of its instances it waits for the others."""
        machines = self._heeding(command)
        if not machines:
            return
        assert command.trial not in self.running, f"{command.trial} runs twice"
        self.running.add(command.trial)
        store = self.store.get(command.trial, {})
        reports = next((store[name] for name in command.checkpoints if name in store), 0)
        stopped_at, share = self.shares.get(command.trial, (reports, 0.0))
        share = share if stopped_at == reports else 0.0
        straggling = self.behaviour.straggling
        pace = 1 + abs(self._rng.gauss(0, straggling)) if straggling else 1.0
        now = self._heap.now
        nodes = ((command.instance, command.gpus), *command.beside)
        sizes = {name: len(gpus) for name, gpus in nodes}
        attempt = SimulatedAttempt(
            command.trial,
            command.attempt,
            command.config,
            command.instance,
            {machine.id: sizes[machine.id] for machine in machines},
            sum(sizes.values()),
            reports,
            reports,
            pace,
            now,
            share=share,
            saved_at=now,
            broken=len(machines) < len(sizes),
        )
        self.started.append(attempt.key)
        for machine in machines:
            machine.attempts[attempt.key] = attempt
        for machine in machines:
            self._fact_of(attempt, machine, events.TrialStarted, pid=1)
        self._heap.at(
            now + self.behaviour.start.draw(self._rng), partial(self.begin, machines[0], attempt)
        )

    def grow(self, command: GrowTrial) -> None:
        """Give an attempt on a part of a GPU more of it, from its next report."""
        for machine in self._heeding(command):
            attempt = machine.attempts.get((command.trial, command.attempt))
            if attempt is not None:
                held_s = self._heap.now - attempt.started
                self.held_gpu_s += attempt.gpus * held_s
                attempt.started = self._heap.now
                attempt.gpus = attempt.parts[machine.id] = len(command.gpus)

    def begin(self, machine: SimulatedMachine, attempt: SimulatedAttempt) -> None:
        """Begin to train."""
        if not attempt.broken:
            self._fact_of(attempt, machine, events.TrialTraining, reports=attempt.reports)
            self._next_unit(machine, attempt)

    def _next_unit(self, machine: SimulatedMachine, attempt: SimulatedAttempt) -> None:
        attempt.since = self._heap.now
        unit_s = self.behaviour.of(attempt.trial).unit_s
        attempt.unit_s = unit_s(attempt.config, attempt.reports + 1, attempt.gpus) * attempt.pace
        ends = attempt.since + attempt.unit_s * (1 - attempt.share)
        exact = self.behaviour.partial == "kept"
        self._heap.at(
            round(ends, NANOSECONDS) if exact else ends, partial(self._report, machine, attempt)
        )

    def _report(self, machine: SimulatedMachine, attempt: SimulatedAttempt) -> None:
        if attempt.broken:
            return
        behaviour = self.behaviour.of(attempt.trial)
        attempt.tail = behaviour.fails(attempt.config, attempt.reports + 1)
        if attempt.tail or self.crashes(attempt):
            self._crash(machine, attempt)
            return
        attempt.reports += 1
        attempt.share, attempt.since = 0.0, math.inf
        self._fact_of(
            attempt,
            machine,
            events.TrialReported,
            reports=attempt.reports,
            metric=behaviour.metric(attempt.config, attempt.reports),
            unit_s=attempt.unit_s,
        )
        if attempt.broken:
            return
        every_s, n = self.behaviour.saves_every_s, attempt.reports
        is_due = n == 1 or n % 5 == 0
        if is_due if every_s is None else self._heap.now - attempt.saved_at >= every_s:
            self._save(machine, attempt)
        if attempt.reports == behaviour.most_reports:
            self._finish(machine, attempt)
        elif not attempt.broken:
            self._next_unit(machine, attempt)

    def crashes(self, attempt: SimulatedAttempt) -> bool:
        """Return whether an attempt crashes instead of making its next report."""
        rate = self.behaviour.drop_rate
        return rate > 0 and self._rng.random() > (1 - rate) ** attempt.unit_s

    def _save(self, machine: SimulatedMachine, attempt: SimulatedAttempt) -> None:
        if attempt.reports in (attempt.saved, 0):
            return
        name = f"{attempt.reports:06d}-{attempt.number:08d}"
        first = attempt.reports - self._goal(attempt.trial).averages(attempt.reports) + 1
        metric_of = self.behaviour.of(attempt.trial).metric
        last = [metric_of(attempt.config, n) for n in range(first, attempt.reports + 1)]
        self.store.setdefault(attempt.trial, {})[name] = attempt.reports
        attempt.saved = attempt.reports
        attempt.saved_at = self._heap.now
        self._fact_of(
            attempt,
            machine,
            events.TrialCheckpointed,
            name=name,
            reports=attempt.reports,
            metric=aggregate(last),
            sha256=NO_SHA256,
            size=1000,
            save_s=self.behaviour.stop.p50_s,
        )

    def stop(self, command: StopTrial) -> None:
        """Ask an attempt to end; one that has not after its grace period is killed."""
        key = command.trial, command.attempt
        lead = next((m for m in self._heeding(command) if key in m.attempts), None)
        if lead is None:
            return
        attempt = lead.attempts[key]
        if not command.checkpoint:
            self._exit_all(attempt, "asked", None)
            return
        wait_s = self.behaviour.stop.draw(self._rng)
        if self.behaviour.partial == "finished" and attempt.since < math.inf:
            ends = attempt.since + attempt.unit_s * (1 - attempt.share)
            wait_s += max(0.0, ends - self._heap.now)
        if wait_s > command.grace_s or attempt.broken or len(attempt.parts) > 1:
            self._after(command.grace_s, partial(self._exit_all, attempt, "asked", -9))
        if wait_s > command.grace_s:
            return
        if wait_s > 0:
            self._after(wait_s, partial(self._stopped, lead, attempt))
        else:
            self._stopped(lead, attempt)

    def _stopped(self, machine: SimulatedMachine, attempt: SimulatedAttempt) -> None:
        if not attempt.broken:
            if self.behaviour.partial == "kept":
                share = attempt.share  # the part of the present unit of work that is done
                if attempt.since < math.inf:
                    share = min(1.0, share + (self._heap.now - attempt.since) / attempt.unit_s)
                self.shares[attempt.trial] = attempt.reports, share
            self._save(machine, attempt)
            self._exit_all(attempt, "asked", 0)

    def _crash(self, machine: SimulatedMachine, attempt: SimulatedAttempt) -> None:
        """Crash an attempt; its other instances notice later, or never."""
        if len(attempt.parts) == 1:
            self._exit(machine.id, attempt, "crashed", 1)
            return
        guilty, *others = self._rng.sample(sorted(attempt.parts), len(attempt.parts))
        for name in others:
            if self._rng.random() < 0.5:
                after_s = self._rng.uniform(0, NOTICED_S)
                self._after(after_s, partial(self._exit, name, attempt, "crashed", 1))
        self._exit(guilty, attempt, "crashed", 1)

    def _finish(self, machine: SimulatedMachine, attempt: SimulatedAttempt) -> None:
        """End the script on the instances of an attempt, one after the other."""
        if len(attempt.parts) == 1:
            self._exit(machine.id, attempt, "finished", 0)
            return
        attempt.broken = True
        for name in attempt.parts:
            after_s = self._rng.uniform(0, FINISHING_S)
            self._after(after_s, partial(self._exit, name, attempt, "finished", 0))

    def _exit_all(self, attempt: SimulatedAttempt, cause: ExitCause, code: int | None) -> None:
        for name in list(attempt.parts):
            self._exit(name, attempt, cause, code)

    def _exit(
        self, name: str, attempt: SimulatedAttempt, cause: ExitCause, code: int | None
    ) -> None:
        if name not in attempt.parts:
            return
        machine = self.machines[name]
        self.end(machine, attempt)
        self._fact_of(
            attempt,
            machine,
            events.TrialExited,
            cause=cause,
            code=code,
            tail=attempt.tail or ("last line",) if cause == "crashed" else (),
        )

    def end(self, machine: SimulatedMachine, attempt: SimulatedAttempt) -> None:
        """End an attempt on this instance; its trial stops running when none is left."""
        del machine.attempts[attempt.key]
        attempt.broken = True
        self.held_gpu_s += attempt.parts.pop(machine.id) * (self._heap.now - attempt.started)
        if not attempt.parts:
            self.running.remove(attempt.trial)


def _terminated(
    command: Terminate, since: float | None, ended: float | None, at: float
) -> AnyEvent:
    name = command.instance
    return events.InstanceTerminated(
        at=at, command=command.id, instance=name, running_since=since, ended=ended
    )
