"""Runs of the simulated world, and their stories as `seerd replay` makes them: from the journal
alone.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console, RenderableType

from bench.testbed.checked_world import Behaviour, World
from seerd.core.events import RunFacts
from seerd.core.state import State, new_state
from seerd.core.step import follow
from seerd.planner.space import Config
from seerd.shell.journal import Entry, Journal
from seerd.sim.behaviour import exactly
from seerd.telling.explanation.explanations import Explanation, Kind
from seerd.telling.explanation.timeline import Follow, Timeline

MakeFacts = Callable[..., RunFacts]


def curve(config: Config, epoch: int) -> float | None:
    return float(config["lr"]) * (1 - 0.5**epoch)


def timeline_of(world: World) -> tuple[State, Timeline]:
    """Run the world, then read its journal."""
    world.run()
    return replayed(world)


def replayed(world: World, go: Follow = follow) -> tuple[State, Timeline]:
    """Of a world that has run; `go`: who leads the state from one event to the next."""
    state, timeline = new_state(world.facts), Timeline(go)
    for event, decided in world.journal:
        timeline.read(state, event, decided)
    return state, timeline


def explanations_of(timeline: Timeline, kind: Kind) -> list[Explanation]:
    return [explanation for explanation in timeline.explanations if explanation.kind == kind]


def printed(page: RenderableType, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, soft_wrap=True, highlight=False).print(page)
    return out.getvalue()


def policy_world(facts: MakeFacts, name: str, **params: object) -> World:
    """Eight slots for five minutes; every report takes 4 seconds on one GPU."""
    made = facts(deadline_s=300.0, budget_gpu_s=2400.0, t_min_s=20.0)
    chosen = {"eta": 3, "min_reports": 1, "max_reports": 27, **params}
    problem = replace(
        made.problem, params=replace(made.problem.params, name=name, **chosen), gpus_per_instance=8
    )  # type: ignore[arg-type]
    behaviour = Behaviour(metric=curve, unit_s=lambda config, epoch, gpus: 4.0 / gpus)
    return World(msgspec.structs.replace(made, problem=problem), behaviour)


def rented_world(facts: MakeFacts, behaviour: Behaviour | None = None, **limits: float) -> World:
    """Instances of four GPUs that boot for 30 seconds, at $3.06 for each GPU and hour."""
    given = {"deadline_s": 600.0, "budget_gpu_s": 4000.0, "t_min_s": 150.0, **limits}
    made = facts(billing="rented", gpus=4, usd_per_gpu_h=3.06, **given)
    usual = Behaviour(
        metric=curve, unit_s=lambda config, epoch, gpus: 20.0 / gpus, boot=exactly(30.0)
    )
    return World(made, behaviour or usual)


def write_run(home: Path, run: str, world: World) -> Path:
    """A run's folder with the journal of a world that has run."""
    folder = home / run
    folder.mkdir(parents=True)
    (folder / "spec.toml").touch()
    with Journal.create(folder / "journal.db", 1_700_000_000.0) as journal:
        entries = enumerate(world.journal, 1)
        journal.append([Entry(seq, event, decided) for seq, (event, decided) in entries])
    return folder
