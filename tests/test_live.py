"""The live view fits its screen whatever happens, says what matters, and is cheap to draw."""

from __future__ import annotations

import io
import time
from collections.abc import Callable

import pytest
from rich.console import Console

from seerd.core.events import RunFacts
from seerd.core.state import State
from seerd.planner.model import ClusterFacts, Limits, PolicyParams, Problem
from seerd.planner.space import Parameter, Space
from seerd.sim.behaviour import Behaviour
from seerd.sim.world import World
from seerd.view.live import sparkline, view
from seerd.view.plain import line_of
from seerd.view.summary import summary

MakeFacts = Callable[..., RunFacts]


def metric(config, epoch):
    return float(config["lr"]) * (1 - 0.5**epoch) if epoch % 7 else None


def world(facts: RunFacts, until_s: float) -> World:
    made = World(
        facts, Behaviour(metric=metric, crashes=lambda trial, attempt, epoch: trial == "t0002")
    )
    made.begin()
    while made.now < until_s and not made.state.finished:
        made.turn()
    return made


def drawn(state: State, now_s: float, size: tuple[int, int], recent: list[str]) -> list[str]:
    out = io.StringIO()
    console = Console(
        file=out, width=size[0], height=size[1], color_system=None, legacy_windows=False
    )
    console.print(view(state, now_s, recent, size))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 20), (40, 12)])
@pytest.mark.parametrize("until_s", [0.1, 1.0, 15.0, 25.0, 70.0])
def test_it_fits_the_screen(facts: MakeFacts, size: tuple[int, int], until_s: float) -> None:
    made = world(facts(), until_s)
    recent = [
        line for event, _ in made.journal if (line := line_of(event, made.state)) is not None
    ][-12:]
    lines = drawn(made.state, made.now, size, recent)
    assert len(lines) <= size[1]
    assert all(len(line.rstrip()) <= size[0] for line in lines)


def test_it_says_what_matters(facts: MakeFacts) -> None:
    made = world(facts(), 25.0)
    text = "\n".join(drawn(made.state, made.now, (100, 30), []))
    for part in (
        "deadline",
        "budget",
        "2 of 2",
        "running",
        "out",
        "failed",
        "best",
        "lr=",
        "m2.0:",
    ):
        assert part in text, part


def test_a_frame_of_a_large_run_is_cheap() -> None:
    problem = Problem(
        Limits(600, 200_000, 600),
        Space((Parameter("lr", low=0.1, high=1),)),
        PolicyParams(eta=4, t_min_s=60),
    )
    cluster = ClusterFacts(billing="held", gpus_per_instance=600, max_instances=1)
    facts = RunFacts(
        run="large", name="large", metric="accuracy", mode="max", problem=problem, cluster=cluster
    )
    made = World(facts, Behaviour(metric=metric, unit_s=lambda config, epoch, gpus: 20.0))
    made.begin()
    while made.now < 30:
        made.turn()
    assert len(made.state.trials) > 50
    drawn(made.state, made.now, (80, 24), [])
    began = time.process_time()
    for _ in range(10):
        drawn(made.state, made.now, (80, 24), [])
    assert (time.process_time() - began) / 10 < 0.1


def test_the_summary_tells_the_end(facts: MakeFacts) -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(summary(world(facts(), 70.0).state))
    text = out.getvalue()
    assert "the plan is carried out" in text
    assert "t0002 failed: ended with exit status 1" in text
    assert "last line" in text
    assert "seerd best small --to DIR" in text


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ([0.0, 1.0], 2, "▁█"),
        ([1.0, 1.0], 4, "▁▁"),
        ([0.0, None, 1.0], 3, "▁ █"),
        ([], 5, ""),
        ([None], 3, " "),
    ],
)
def test_sparklines(values: list[float | None], width: int, line: str) -> None:
    assert sparkline(values, width) == line
