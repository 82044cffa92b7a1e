"""The simulated world with faults: the journal is kept as the daemon keeps it, the daemon may be
killed, and after every step the invariants must hold (else `AssertionError`).

The one rule: an event counts once it is in the journal. A killed daemon loses everything else, and
the next one reads its state from the journal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, cast

from msgspec import structs

from bench.testbed.invariants import violations
from seerd.core import commands, events
from seerd.core.codec import decode_decisions, decode_event, encode_decisions, encode_event
from seerd.core.enact import AnyDecision
from seerd.core.limits import lease_s
from seerd.core.rules import RULES, Rules
from seerd.core.state import State, new_state
from seerd.core.step import commands_of, follow, step, unfinished
from seerd.planner.model import Impossible, Outline, Problem
from seerd.planner.space import Config
from seerd.planner.trial_ids import job_of
from seerd.sim.behaviour import Behaviour as SimulatedBehaviour
from seerd.sim.fleet import SimulatedAttempt, SimulatedFleet, SimulatedMachine
from seerd.sim.setting import Outcome, Setting, behaviour_of, facts_of, outcome_of
from seerd.sim.world import START_S
from seerd.sim.world import World as SimulatedWorld

LACKED = (
    "OutOfMemoryError: Tried to allocate 512 MiB, of which 9 GiB is free. 3.17 GiB allowed; 3 GiB is used",
)
"""The last lines of a process whose part of a GPU has too little memory."""
REFUSAL_S = 0.5  # seconds until the cloud says that it has no instance


def _never(trial: str, attempt: int, report: int) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Behaviour(SimulatedBehaviour):
    """How a simulated world behaves in which more goes wrong."""

    # whether an attempt crashes instead of making a report: (trial, attempt, report)
    crashes: Callable[[str, int, int], bool] = _never
    # whether an attempt lacks GPU memory for its next report: (configuration, slots that it has)
    lacks: Callable[[Config, int], bool] = lambda config, slots: False
    # whether something is in the way of a new attempt, by how many of its job hold GPUs
    blocked: Callable[[int], bool] = lambda beside: False
    deaf: bool = False  # attempts ignore being asked to stop
    # instances that the cloud has for the run, by seconds since it began; None: as many as it wants
    capacity: Callable[[float], int] | None = None


def with_faults(behaviour: SimulatedBehaviour, **faults: Any) -> Behaviour:
    """Return a behaviour with these faults."""
    values = {each.name: getattr(behaviour, each.name) for each in fields(behaviour)}
    values["jobs"] = {job: with_faults(each) for job, each in behaviour.jobs.items()}
    return Behaviour(**{**values, **faults})


class Fleet(SimulatedFleet):
    """The simulated instances, with faults; agents repeat their facts for a new daemon."""

    def __init__(
        self, behaviour: SimulatedBehaviour, heap: Any, rng: Any, tell: Any, reply: Any, goal: Any
    ) -> None:
        super().__init__(with_faults(behaviour), heap, rng, self._keep, reply, goal)
        self._kept: dict[str, list[Any]] = defaultdict(list)
        self._to_daemon = tell
        self._blocked: set[tuple[str, int]] = set()

    def launch(self, command: commands.Launch) -> None:
        """Boot an instance if the cloud has one."""
        capacity, why = self.behaviour.capacity, "InsufficientInstanceCapacity"
        alive = sum(machine.alive for machine in self.machines.values())
        is_new = f"m{command.id}" not in self.machines
        if is_new and capacity is not None and alive >= capacity(self._heap.now):
            self._reply(
                REFUSAL_S,
                lambda at: events.LaunchRefused(at=at, command=command.id, why=why, retry=True),
            )
        else:
            super().launch(command)

    def begin(self, machine: SimulatedMachine, attempt: SimulatedAttempt) -> None:
        """Begin to train, unless something is in the way."""
        beside = sum(job_of(name) == job_of(attempt.trial) for name in self.running) - 1
        if not attempt.broken and self.behaviour.of(attempt.trial).blocked(beside):
            self._blocked.add(attempt.key)
            self._exit_all(attempt, "crashed", 1)
        else:
            super().begin(machine, attempt)

    def crashes(self, attempt: SimulatedAttempt) -> bool:
        """Return whether an attempt crashes now."""
        behaviour = self.behaviour.of(attempt.trial)
        if behaviour.lacks(attempt.config, attempt.gpus):
            attempt.tail = LACKED
            return True
        crashes = behaviour.crashes
        number, report = attempt.number, attempt.reports + 1
        return crashes(attempt.trial, number, report) or super().crashes(attempt)

    def stop(self, command: commands.StopTrial) -> None:
        """Ask an attempt to end, if it listens."""
        if not self.behaviour.deaf:
            super().stop(command)

    def _fact_of(
        self, attempt: SimulatedAttempt, machine: SimulatedMachine, kind: type[Any], **values: Any
    ) -> None:
        if kind is events.TrialExited and attempt.key in self._blocked:
            values["obstacle"] = "address"
        super()._fact_of(attempt, machine, kind, **values)

    def _keep(self, event: events.AnyEvent) -> None:
        if isinstance(event, events.AgentFact):
            self._kept[event.instance].append(event)
        self._to_daemon(event)

    def share(self, name: str, gpus: int) -> None:
        """Leave so many GPUs of the instance to this run, beside others."""
        if self.machines[name].alive:
            self._fact(self.machines[name], events.InstanceShared, gpus=gpus, why="others are here")

    def end_leases(self, *, power_off: bool) -> None:
        """End all leases, as no daemon renewed them: every agent lets its trials save and exit."""
        machines = self.machines.values()
        stuck = {a.key for machine in machines for a in machine.attempts.values() if a.broken}
        for machine in machines:
            for attempt in list(machine.attempts.values()):
                if machine.id == attempt.lead and attempt.key not in stuck:
                    self._save(machine, attempt)
                self._exit(machine.id, attempt, "lease", 0)
            if power_off and machine.alive:
                self.power_off(machine.id)

    def missed(self) -> list[events.AnyEvent]:
        """Repeat every fact of the living instances, as their agents do for a new daemon."""
        now_s = self._heap.now
        alive = (machine for machine in self.machines.values() if machine.alive)
        facts = (fact for machine in alive for fact in self._kept[machine.id])
        return [structs.replace(fact, at=now_s) for fact in facts]


class SteppedWorld(SimulatedWorld):
    """Simulates a run step by step, with faults."""

    fleet_type = Fleet
    fleet: Fleet

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


class World(SteppedWorld):
    """Simulates a run to its end, with a journal, killed daemons and checks."""

    def __init__(
        self,
        facts: events.RunFacts,
        behaviour: SimulatedBehaviour,
        *,
        seed: int = 0,
        kill_after: frozenset[int] = frozenset(),
    ) -> None:
        self.journal: list[tuple[events.AnyEvent, list[AnyDecision]]] = []
        self.up = True
        self.down_s = 1.0
        self.kills = 0
        self._kill_after = set(kill_after)
        self._incarnation = 0
        super().__init__(facts, behaviour, seed=seed)

    def handle(self, batch: tuple[events.AnyEvent, ...]) -> None:
        """Handle a batch, unless the daemon is down, and check the invariants."""
        if not self.up:
            return
        orders = self._commit(batch)
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

    def decide(self, event: events.AnyEvent) -> list[commands.AnyCommand]:
        """Decide on an event, and write both down; return the commands."""
        before = unfinished(self.state) if isinstance(event, events.RunResumed) else []
        decided = step(self.state, event)
        self.journal.append((event, decided))
        orders = [command for command in before if command.id in self.state.under_way]
        return orders + commands_of(decided)

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

    def _later(self, wait_s: float, event: Callable[[float], events.AnyEvent]) -> None:
        """Report an outcome later, to the present daemon only."""
        incarnation = self._incarnation
        self.at(
            self.now + wait_s,
            lambda: self.tell(event(self.now)) if incarnation == self._incarnation else None,
        )

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


def world_of(setting: Setting, problem: Problem, seed: int) -> World:
    """Make the world of one run, before it begins, whose limits fit something."""
    facts = facts_of(setting, problem, seed)
    assert not isinstance(facts, Impossible), facts
    return World(facts, behaviour_of(setting), seed=seed)


def checked_run(setting: Setting, problem: Problem, seed: int) -> Outcome:
    """Simulate one run as `seerd.sim.setting.run` does, with every step checked."""
    world = world_of(setting, problem, seed)
    return outcome_of(setting, world, world.run())
