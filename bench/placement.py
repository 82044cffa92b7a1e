"""How long placing 1,000 trials on 1,000 instances of eight GPUs takes at a stage boundary; prints
JSON.

The floor is one pass over the demands that only looks up where each trial is. Placement runs inside
the daemon's event loop, so it must stay well under what a person or an agent would notice: 50 ms.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Container, Sequence

from seerd.core.packing import Demand, PackingNode
from seerd.core.placement import place

INSTANCES = 1000
TRIALS = 1000
LIMIT_MS = 50.0


def main() -> None:
    generator = random.Random(0)
    nodes = [PackingNode(f"i-{i:04}", 8) for i in range(INSTANCES)]
    first = [Demand(f"t{i:04}", generator.choice((1, 2, 4, 8))) for i in range(TRIALS)]
    held = place(first, {}, nodes)
    better = [Demand(d.trial, min(8, d.gpus * 4)) for d in first[::4]]
    mixed = [d if i % 2 else Demand(d.trial, min(8, d.gpus * 2)) for i, d in enumerate(first)]
    spread = {d.trial: held[d.trial] for d in first if generator.random() < 0.5}
    survivors = [d for d in first if d.trial in spread]
    result = {
        "trials": TRIALS,
        "instances": INSTANCES,
        "limit_ms": LIMIT_MS,
        "floor_ms": best_ms(lambda: one_pass(first, held)),
        "first_stage_ms": best_ms(lambda: place(first, {}, nodes)),
        "all_keep_ms": best_ms(lambda: place(first, held, nodes)),
        "quarter_survives_with_four_times_the_gpus_ms": best_ms(lambda: place(better, held, nodes)),
        "half_doubles_half_keeps_ms": best_ms(lambda: place(mixed, held, nodes)),
        "half_survives_and_is_packed_ms": best_ms(
            lambda: place(survivors, spread, nodes, pack=True)
        ),
        "a_quarter_of_the_instances_is_lost_ms": best_ms(
            lambda: place(mixed, held, nodes[: INSTANCES * 3 // 4])
        ),
        "half_has_no_room_ms": best_ms(lambda: place(mixed, held, nodes[: INSTANCES // 4])),
    }
    print(json.dumps(result, indent=2))


def one_pass(demands: Sequence[Demand], held: Container[str]) -> int:
    return sum(1 for demand in demands if demand.trial in held)


def best_ms(work: Callable[[], object], repeats: int = 5) -> float:
    """Fastest of several runs: what the work itself takes, without what else the machine did."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return round(min(times) * 1000, 3)


if __name__ == "__main__":
    main()
