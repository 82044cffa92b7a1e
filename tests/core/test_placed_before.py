"""Where trials are placed in cases that are drawn: few and many instances, of one size or several,
with trials that stay, grow or span, stand on a page.

`pytest tests/core --rewrite` accepts what comes out now; review the difference before you commit
it.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from seerd.core.packing import Demand, PackingNode
from seerd.core.placement import Assignment, Slots, place
from tests.digests import digest

FILE = Path(__file__).parent / "transcripts" / "placed.txt"
CASES = 300
SHOWN = 6
"""Of more demands only digits are shown."""


def nodes_of(rng: random.Random, most: int) -> list[PackingNode]:
    sizes = rng.choice([(4,), (4,), (8,), (1, 2), (2, 4, 8), (3, 5)])
    return [PackingNode(f"n{n:02d}", rng.choice(sizes)) for n in range(rng.randint(1, most))]


def demands_of(rng: random.Random, nodes: list[PackingNode]) -> list[Demand]:
    largest = max(node.gpus for node in nodes)
    left = sum(node.gpus for node in nodes) * rng.choice([0.5, 1.0, 1.0, 1.4])
    demands: list[Demand] = []
    while left > 0 and len(demands) < 60:
        gpus = rng.choice([1, 1, 1, 2, 3, largest, 2 * largest])
        demands.append(Demand(f"t{len(demands):02d}", gpus))
        left -= gpus
    rng.shuffle(demands)
    return demands


def present(
    rng: random.Random, demands: list[Demand], nodes: list[PackingNode]
) -> dict[str, Assignment]:
    """Where trials are that run: mostly with the GPUs that are wanted for them."""
    free = {node.id: list(range(node.gpus)) for node in nodes}
    held: dict[str, Assignment] = {}
    for demand in demands:
        gpus = demand.gpus if rng.random() < 0.8 else max(1, demand.gpus // 2)
        fitting = [name for name, left in free.items() if len(left) >= gpus]
        if fitting and rng.random() < 0.7:
            name = rng.choice(fitting)
            held[demand.trial] = (Slots(name, tuple(free[name][:gpus])),)
            del free[name][:gpus]
    return held


def line(case: int) -> str:
    rng = random.Random(f"placed {case}")
    nodes = nodes_of(rng, 45 if case % 50 == 0 else 5)
    demands = demands_of(rng, nodes)
    held = present(rng, demands, nodes)
    placed = place(demands, held, nodes, pack=rng.random() < 0.7)
    homes = {
        name: " ".join(f"{one.node}:{','.join(map(str, one.gpus))}" for one in slots)
        for name, slots in placed.items()
    }
    shown = f" {homes}" if len(homes) <= SHOWN else ""
    moved = sum(held.get(name, slots) != slots for name, slots in placed.items())
    return (
        f"{case}: {len(homes)} of {len(demands)} on {len(nodes)}, {moved} moved "
        f"{digest(placed)}{shown}"
    )


def test_trials_are_placed_as_they_were(pytestconfig: pytest.Config) -> None:
    lines = [line(case) for case in range(CASES)]
    if pytestconfig.getoption("rewrite"):
        FILE.write_text("\n".join(lines) + "\n")
    assert FILE.read_text().splitlines() == lines
