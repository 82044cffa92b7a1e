"""Readable transcripts of small runs: what happened, what was asked for.

`pytest tests/scenarios --rewrite` accepts what comes out now; review the difference before you
commit it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bench.testbed.checked_world import Behaviour, World
from seerd.core.commands import Finish, Launch, Publish, SetTimer, StartTrial, StopTrial, Terminate
from seerd.core.enact import AnyDecision
from seerd.core.events import (
    AgentFact,
    AnyEvent,
    RunFacts,
    TrialCheckpointed,
    TrialExited,
    TrialReported,
    TrialTraining,
)
from seerd.core.verdicts import Adopted, Closing, Kept, Promised
from seerd.planner.space import Config
from seerd.sim.behaviour import exactly

FOLDER = Path(__file__).parent
MakeFacts = Callable[..., RunFacts]


def curve(config: Config, epoch: int) -> float | None:
    return float(config["lr"]) * (1 - 0.5**epoch)


def plain(facts: MakeFacts) -> World:
    return World(facts(), Behaviour(metric=curve, unit_s=lambda config, epoch, gpus: 4.0 / gpus))


def crash(facts: MakeFacts) -> World:
    def crashes(trial: str, _attempt: int, epoch: int) -> bool:
        return trial == "t0001" and epoch == 2

    return World(
        facts(),
        Behaviour(metric=curve, unit_s=lambda config, epoch, gpus: 4.0 / gpus, crashes=crashes),
    )


def killed_daemon(facts: MakeFacts) -> World:
    world = World(
        facts(),
        Behaviour(metric=curve, unit_s=lambda config, epoch, gpus: 4.0 / gpus),
        kill_after=frozenset({30}),
    )
    world.down_s = 6.0
    return world


def lost_instance(facts: MakeFacts) -> World:
    world = plain(facts)
    world.at(12.0, lambda: world.fleet.lose(next(iter(world.fleet.machines))))
    return world


def interrupted(facts: MakeFacts) -> World:
    world = plain(facts)
    world.at(11.0, world.interrupt)
    return world


def rented(facts: MakeFacts) -> World:
    made = facts(
        billing="rented",
        gpus=4,
        deadline_s=300.0,
        budget_gpu_s=1600.0,
        t_min_s=75.0,
        usd_per_gpu_h=3.06,
    )
    return World(
        made,
        Behaviour(metric=curve, unit_s=lambda config, epoch, gpus: 20.0 / gpus, boot=exactly(30.0)),
    )


def several(facts: MakeFacts, behaviour: Behaviour) -> World:
    """Trials on rented instances of two GPUs, the larger ones on two of them."""
    made = facts(billing="rented", gpus=2, deadline_s=300.0, budget_gpu_s=2400.0, t_min_s=75.0)
    params = replace(made.problem.params, name="random", trials=2, p_min=4, p_max=4)
    problem = replace(made.problem, params=params, gpus_per_instance=2)
    return World(msgspec.structs.replace(made, problem=problem), behaviour)


SLOW = Behaviour(metric=curve, unit_s=lambda config, epoch, gpus: 80.0 / gpus, boot=exactly(30.0))


def spot_notice(facts: MakeFacts) -> World:
    """Two minutes before one of two instances is taken away, its trials save and move; another one
    is on its way by then.
    """
    made = facts(billing="rented", gpus=4, deadline_s=600.0, budget_gpu_s=4000.0, t_min_s=150.0)
    world = World(
        made,
        Behaviour(metric=curve, unit_s=lambda config, epoch, gpus: 20.0 / gpus, boot=exactly(30.0)),
    )
    world.at(80.0, lambda: world.fleet.notice("m2.1", "interruption", 200.0))
    world.at(200.0, lambda: world.fleet.lose("m2.1"))
    return world


def lost_node(facts: MakeFacts) -> World:
    """One of the two instances of a trial dies: the other one is stopped, and both wait for the
    replacement.
    """
    world = several(facts, SLOW)
    world.at(100.0, lambda: world.fleet.lose("m2.1"))
    return world


def crashed_node(facts: MakeFacts) -> World:
    """A trial on two instances crashes on one of them and is killed on the other."""

    def crashes(trial: str, attempt: int, epoch: int) -> bool:
        return (trial, attempt, epoch) == ("t0001", 1, 4)

    return several(facts, replace(SLOW, crashes=crashes))


def little_capacity(facts: MakeFacts) -> World:
    """Of two instances one comes, and the most valuable trials run there; a second one comes when
    it is asked for the third time.
    """
    made = facts(billing="rented", gpus=4, deadline_s=600.0, budget_gpu_s=4000.0, t_min_s=150.0)
    slow = Behaviour(
        metric=curve, unit_s=lambda config, epoch, gpus: 20.0 / gpus, boot=exactly(30.0)
    )
    return World(made, replace(slow, capacity=lambda at: 1 if at < 40.0 else 2))


def refused(facts: MakeFacts) -> World:
    """The cloud has nothing at all, for longer than the user wants to wait."""
    made = facts(billing="rented", gpus=4, deadline_s=600.0, budget_gpu_s=4000.0, t_min_s=150.0)
    made = msgspec.structs.replace(made, cluster=replace(made.cluster, wait_s=60.0))
    return World(made, Behaviour(metric=curve, capacity=lambda at: 0))


SCENARIOS = {
    make.__name__: make
    for make in (
        plain,
        crash,
        killed_daemon,
        lost_instance,
        interrupted,
        rented,
        spot_notice,
        lost_node,
        crashed_node,
        little_capacity,
        refused,
    )
}


def transcript(world: World) -> str:
    state = world.run()
    lines = []
    spread = {
        (c.trial, c.attempt)
        for _, commands in world.journal
        for c in commands
        if getattr(c, "beside", ())
    }
    for event, decided in world.journal:
        commands = [one for one in decided if not isinstance(one, Kept | Promised)]
        if isinstance(event, (TrialReported, TrialCheckpointed)) and not commands:
            continue
        where = (
            f" on {event.instance}"
            if _attempt(event) in spread and isinstance(event, AgentFact)
            else ""
        )
        lines.append(f"{event.at:7.2f}  {said(event)}{where}")
        lines += [f"{'':9}  -> {asked(command)}" for command in commands]
    best = state.result.published.incumbent if state.result.published else None
    spent = state.ledger.spent_gpu_s(state.now)
    lines.append(
        f"{state.end.status} at {state.now:.2f}s, {spent:.1f} GPU-seconds, "
        f"{best.trial if best else 'no model'}"
    )
    return "\n".join(lines) + "\n"


def _attempt(event: AnyEvent) -> tuple[str, int]:
    return getattr(event, "trial", ""), getattr(event, "attempt", 0)


def said(event: AnyEvent) -> str:
    name = type(event).__name__
    match event:
        case TrialTraining():
            return f"{name} {event.trial}/{event.attempt} from report {event.reports}"
        case TrialExited():
            return f"{name} {event.trial}/{event.attempt} {event.cause}"
        case _:
            trial = f" {event.trial}/{event.attempt}" if hasattr(event, "trial") else ""
            return f"{name}{trial}" + (
                f" {event.instance}" if hasattr(event, "instance") and not trial else ""
            )


def asked(command: AnyDecision) -> str:
    why = getattr(command, "why", None)
    return _asked(command) + (f" ({why})" if why is not None else "")


def _asked(command: AnyDecision) -> str:
    name = type(command).__name__
    match command:
        case SetTimer():
            return f"{name} {command.due:.2f}"
        case StartTrial():
            gpus = ",".join(map(str, command.gpus))
            since = f", from {command.checkpoints[0]}" if command.checkpoints else ""
            beside = "".join(
                f" and {node} GPU {','.join(map(str, more))}" for node, more in command.beside
            )
            return (
                f"{name} {command.trial}/{command.attempt} on {command.instance} GPU "
                f"{gpus}{beside}{since}"
            )
        case StopTrial():
            how = f"may save within {command.grace_s:g}s" if command.beside else "may save"
            nodes = f" on {' and '.join(command.nodes)}" if command.beside else ""
            return (
                f"{name} {command.trial}/{command.attempt}{nodes}, "
                f"{how if command.checkpoint else 'killed'}"
            )
        case Publish():
            return f"{name} {command.trial} {command.checkpoint}"
        case Terminate():
            return f"{name} {command.instance}"
        case Launch():
            return f"{name} {command.gpus} GPUs"
        case Finish() | Closing():
            return f"{name} {command.status}"
        case Adopted():
            return " ".join([name, *(["without", *command.dropped] if command.dropped else [])])
        case _:
            trial = getattr(command, "trial", None) or getattr(command, "instance", None)
            return name if trial is None else f"{name} {trial}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str, facts: MakeFacts, request: pytest.FixtureRequest) -> None:
    found = transcript(SCENARIOS[name](facts))
    path = FOLDER / f"{name}.txt"
    if request.config.getoption("--rewrite"):
        path.write_text(found)
    assert found == path.read_text()
