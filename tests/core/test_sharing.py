"""An instance that other runs use too: how many of its GPUs this run may use comes and goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from bench.testbed.invariants import violations
from seerd.core.aiming import derive
from seerd.core.commands import AnyCommand, Launch, StartTrial, StopTrial
from seerd.core.events import (
    InstanceReady,
    InstanceShared,
    RunFacts,
    RunStarted,
    TrialComplained,
    TrialExited,
    TrialStarted,
)
from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.state import State
from seerd.telling.complaints import notes_of
from seerd.telling.diagnosis import diagnose, fate
from seerd.telling.plain import line_of
from seerd.telling.run_json import EXIT_REFUSED, exit_code
from tests.by_hand import begun, handle, reconciled_again

MakeFacts = Callable[..., RunFacts]
WHY = "8 GPUs are shared with other of them (weight 1)"


class Machine:
    """A run that uses all GPUs of a machine of 8; the test is its agent."""

    has_gpus = True

    def __init__(self, facts: MakeFacts, **limits: object) -> None:
        made = facts(deadline_s=600.0, budget_gpu_s=4800.0, t_min_s=150.0)
        params = replace(made.problem.params, **limits)  # type: ignore[arg-type]
        made = msgspec.structs.replace(made, problem=replace(made.problem, params=params))
        self.state: State = begun(made)
        self.at = 0.0
        self.seen = 0
        (self.launch,) = (
            c for c in self.tell(RunStarted(at=0.0, facts=made)) if isinstance(c, Launch)
        )

    def tell(self, event: object) -> list[AnyCommand]:
        commands = handle(self.state, event)  # type: ignore[arg-type]
        assert violations(self.state) == []
        assert reconciled_again(self.state) == []
        for start in commands:
            if isinstance(start, StartTrial) and self.has_gpus:
                self.fact(TrialStarted, trial=start.trial, attempt=start.attempt, pid=1)
        return commands

    def ready(self) -> list[AnyCommand]:
        return self.tell(
            InstanceReady(
                at=self.at, command=self.launch.id, instance="m", gpus=8, running_since=self.at
            )
        )

    def fact(self, kind: type, **fields: object) -> list[AnyCommand]:
        self.at += 1.0
        self.seen += 1
        common = {"at": self.at, "happened": self.at, "instance": "m", "fact": self.seen}
        return self.tell(kind(**common, **fields))

    def share(self, gpus: int) -> list[AnyCommand]:
        return self.fact(InstanceShared, gpus=gpus, why=WHY)

    def exit(self, trial: str) -> list[AnyCommand]:
        attempt = self.state.trials[trial].attempt
        return self.fact(TrialExited, trial=trial, attempt=attempt, cause="asked", code=0)

    @property
    def running(self) -> dict[str, tuple[int, ...]]:
        return {
            trial.id: trial.held[0].gpus
            for trial in self.state.trials.values()
            if trial.held is not None and trial.phase is not TrialPhase.STOPPING
        }


def starts(commands: Sequence[AnyCommand]) -> dict[str, tuple[int, ...]]:
    return {c.trial: c.gpus for c in commands if isinstance(c, StartTrial)}


def stops(commands: Sequence[AnyCommand]) -> dict[str, tuple[str, bool]]:
    return {c.trial: (c.why, c.checkpoint) for c in commands if isinstance(c, StopTrial)}


def test_gpus_that_others_get_are_given_back_with_a_checkpoint(facts: MakeFacts) -> None:
    machine = Machine(facts)
    machine.ready()
    assert sum(map(len, machine.running.values())) == 8
    commands = machine.share(4)
    assert set(stops(commands).values()) == {("shared", True)}
    assert starts(commands) == {}
    assert all(gpu < 4 for gpus in machine.running.values() for gpu in gpus)
    assert sum(map(len, machine.running.values())) == 4
    for trial in stops(commands):
        assert starts(machine.exit(trial)) == {}


def test_gpus_that_come_back_are_used_at_once(facts: MakeFacts) -> None:
    machine = Machine(facts)
    machine.ready()
    for trial in stops(machine.share(4)):
        machine.exit(trial)
    again = starts(machine.share(8))
    assert sum(map(len, again.values())) == 4
    assert sum(map(len, machine.running.values())) == 8


def test_what_was_told_before_the_instance_was_ready_counts_from_then_on(facts: MakeFacts) -> None:
    machine = Machine(facts)
    assert machine.share(3) == []
    began = starts(machine.ready())
    assert sum(map(len, began.values())) <= 3
    assert all(gpu < 3 for gpus in began.values() for gpu in gpus)
    assert machine.state.fleet.shared == {}


def test_the_same_share_again_changes_nothing(facts: MakeFacts) -> None:
    machine = Machine(facts)
    machine.ready()
    before = machine.running
    assert machine.share(8) == []
    assert machine.running == before


def test_a_trial_that_is_larger_than_the_share_goes_on_with_fewer_gpus(facts: MakeFacts) -> None:
    machine = Machine(facts, p_max=8, p_min=1, nu=8)
    assert list(map(len, starts(machine.ready()).values())) == [8]
    for trial in stops(machine.share(1)):
        machine.exit(trial)
    assert list(map(len, machine.running.values())) == [1]
    assert machine.state.aims.most == 1
    for trial in stops(machine.share(8)):
        machine.exit(trial)
    assert machine.state.aims.most is None
    assert sum(map(len, machine.running.values())) == 8


def test_a_trial_waits_if_the_share_is_below_what_it_needs(facts: MakeFacts) -> None:
    machine = Machine(facts, p_min=4, p_max=4)
    assert len(starts(machine.ready())) == 2
    for trial in stops(machine.share(1)):
        machine.exit(trial)
    assert machine.running == {}
    assert len(starts(machine.share(4))) == 1


def test_a_daemon_that_takes_the_run_up_knows_the_share(facts: MakeFacts) -> None:
    machine = Machine(facts)
    machine.ready()
    commands = machine.share(4)
    derive(machine.state)
    kept = [t.id for t in machine.state.trials.values() if t.target is not None]
    assert set(kept).isdisjoint(stops(commands))
    assert kept
    assert machine.state.fleet.instances["m"].usable == 4


def test_people_are_told_of_it(facts: MakeFacts) -> None:
    machine = Machine(facts)
    machine.ready()
    machine.share(4)
    event = InstanceShared(at=9.0, happened=9.0, instance="m", fact=99, gpus=1, why=WHY)
    assert line_of(event, machine.state) == f"    9.0s  1 GPU of m may be used from now on: {WHY}"
    machine.share(5)
    assert notes_of(machine.state) == [
        f"m is not this run's alone: it may use 4 of 8 GPUs there, since {WHY}"
    ]


def test_a_daemon_that_takes_the_run_up_leaves_no_trial_above_the_share(facts: MakeFacts) -> None:
    """The GPUs that others got while it was away are given back, whatever ran on them."""
    machine = Machine(facts)
    machine.ready()
    machine.state.fleet.instances["m"].share = 4
    derive(machine.state)
    kept = [trial.target for trial in machine.state.trials.values() if trial.target is not None]
    assert kept
    assert all(gpu < 4 for target in kept for slots in target for gpu in slots.gpus)


class Crowded(Machine):
    """The same on a machine whose GPUs others have."""

    has_gpus = False

    def wait(self, trial: str, why: str = "process 7 of ada has gpu-0") -> list[AnyCommand]:
        attempt = self.state.trials[trial].attempt
        return self.fact(TrialComplained, trial=trial, attempt=attempt, what="waits", why=why)

    @property
    def spent_gpu_s(self) -> float:
        return self.state.ledger.spent_gpu_s(self.at)


def test_a_trial_that_waits_for_its_gpus_costs_nothing_until_it_has_them(facts: MakeFacts) -> None:
    machine = Crowded(facts, p_min=4, p_max=4)
    first, second = starts(machine.ready())
    for trial in (first, second, first, second):
        machine.wait(trial)
    assert machine.spent_gpu_s == 4 * 1.0, "what was told a second ago may be over"
    machine.fact(TrialStarted, trial=first, attempt=1, pid=1)
    began_s = machine.at
    machine.wait(first)
    machine.wait(second)
    assert machine.spent_gpu_s == 4 * (machine.at - began_s), "one that has begun does not wait"


def test_a_trial_that_never_had_its_gpus_has_cost_nothing(facts: MakeFacts) -> None:
    machine = Crowded(facts, p_min=4, p_max=4)
    first, second = starts(machine.ready())
    machine.wait(first)
    for trial in (first, second):
        never = {"cause": "asked", "code": None, "started": False}
        machine.fact(TrialExited, trial=trial, attempt=1, **never)
    assert [charge for charge in machine.state.ledger.closed if charge.gpus] == []


def test_a_run_without_any_gpu_says_who_has_them_and_blames_no_script(facts: MakeFacts) -> None:
    machine = Crowded(facts, p_min=4, p_max=4)
    first, _ = starts(machine.ready())
    machine.wait(first)
    machine.wait(first, "process 8 of ada has gpu-0")
    assert len(notes_of(machine.state)) == 1
    machine.state.end.phase, machine.state.end.status = RunPhase.OVER, "deadline"
    text = diagnose(machine.state).text
    assert "process 8 of ada has gpu-0" in text
    assert "script" not in text
    assert exit_code(machine.state) == EXIT_REFUSED
    trial = machine.state.trials[first]
    trial.phase = TrialPhase.WAITING
    assert fate(machine.state, trial) == "not-started"


def test_that_a_trial_waits_is_shown_once_and_over_when_it_has_begun(facts: MakeFacts) -> None:
    machine = Crowded(facts, p_min=4, p_max=4)
    first, second = starts(machine.ready())
    shown = []
    for trial in (first, second):
        machine.wait(trial)
        event = TrialComplained(
            at=machine.at,
            happened=machine.at,
            instance="m",
            fact=machine.seen,
            trial=trial,
            attempt=1,
            what="waits",
            why="process 7 of ada has gpu-0",
        )
        shown.append(line_of(event, machine.state))
    assert [bool(line) for line in shown] == [True, False]
    machine.fact(TrialStarted, trial=first, attempt=1, pid=1)
    assert machine.state.signs.complaints == {}


def test_what_a_trial_waits_for_costs_its_job_no_more_than_the_run(facts: MakeFacts) -> None:
    machine = Crowded(facts, p_min=4, p_max=4)
    first, second = starts(machine.ready())
    (job,) = machine.state.jobs.values()

    def both() -> tuple[float, float]:
        now = machine.state.now
        return job.spent_gpu_s(now), machine.state.ledger.spent_gpu_s(now)

    for _ in range(20):
        machine.wait(first)
    machine.wait(second)
    machine.fact(TrialStarted, trial=first, attempt=1, pid=1)
    for _ in range(10):
        machine.wait(second)
    machine.fact(TrialExited, trial=second, attempt=1, cause="asked", code=None, started=False)
    of_job, of_run = both()
    assert of_job == of_run
    assert 40.0 < of_job < 60.0
