"""Draw the pictures of docs/pictures: what this version shows of runs that are simulated.

`make docs` draws all of them, `python docs/pictures.py live` only that one.

The one rule: nothing in a picture is drawn by hand, and the same version draws the same bytes, so
that a test can tell when a picture is of another one.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, Group

from bench.testbed.checked_world import Behaviour, World
from seerd.core.events import RunFacts
from seerd.planner.model import ClusterFacts, Limits, PolicyParams, Problem
from seerd.planner.parameter import Config, Parameter
from seerd.planner.profile import Latency
from seerd.planner.space import Space
from seerd.shell.journal import Entry
from seerd.telling.live.board import Recent, board_of
from seerd.telling.live.frame import frame
from seerd.telling.live.look import LiveLook

FOLDER = Path(__file__).with_name("pictures")
SIZE = (120, 34)
MOMENT_S = 620.0
SPACE = Space(
    (
        Parameter("lr", low=1e-4, high=1.0, log=True),
        Parameter("momentum", choices=(0.9, 0.95, 0.99)),
        Parameter("width", low=32, high=256, step=32, integer=True),
        Parameter("dropout", low=0.0, high=0.5),
    )
)


def live() -> str:
    """Draw the live view of a run on rented instances, in its second stage."""
    world = played()
    recent = Recent()
    recent.read([Entry(seq, *one) for seq, one in enumerate(world.journal, 1)], world.state)
    board = board_of(world.state, MOMENT_S, recent)
    shown = frame(board, replace(LiveLook(), owner=True, cursor=board.rows[1].id), SIZE)
    console = Console(
        record=True, width=SIZE[0], height=SIZE[1], file=io.StringIO(), force_terminal=True,
        color_system="truecolor", legacy_windows=False,
    )  # fmt: skip
    console.print(Group(*shown.lines), no_wrap=True)
    # A page must not load fonts from elsewhere.
    form = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    svg = console.export_svg(
        title="seerd run spec.toml --policy seer --deadline 30m", code_format=form, unique_id="live"
    )
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


PICTURES: dict[str, Callable[[], str]] = {"live.svg": live}
"""Name of a picture -> what draws it."""


@cache
def played() -> World:
    """Play a run up to the moment that is shown."""
    params = PolicyParams(name="seer", seed=7, p_max=4, t_min_s=120.0)
    limits = Limits(1800.0, 16 * 1800.0, 32, 10.0)
    facts = RunFacts(
        run="cifar10-20260703-091412-5c1e",
        name="cifar10",
        metric="accuracy",
        mode="max",
        problem=Problem(limits, SPACE, params, gpus_per_instance=4),
        cluster=ClusterFacts("rented", 4, usd_per_gpu_h=1.15, boot_s=75.0),
    )
    behaviour = Behaviour(
        metric=curve, unit_s=lambda config, epoch, gpus: 14.0 / gpus**0.9, boot=Latency(75.0, 90.0)
    )
    world = World(facts, behaviour)
    world.begin()
    while world.now < MOMENT_S:
        world.turn()
    return world


def curve(config: Config, epoch: int) -> float:
    """Return an accuracy that depends on all but the dropout, most on the learning rate."""
    off = abs(SPACE.parameters[0].share(config["lr"]) - 0.55)
    best = 0.93 - 0.9 * off**1.5 - 0.4 * abs(float(config["momentum"]) - 0.95)
    best += 0.02 * SPACE.parameters[2].share(config["width"])
    wave = 0.01 * ((epoch * 7919) % 13 - 6) / 6
    return max(0.1, best * (1 - 0.93 ** (epoch + 1)) + wave)


def main(names: list[str]) -> None:
    """Draw these pictures, or all."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        if not names or Path(name).stem in names:
            (FOLDER / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
