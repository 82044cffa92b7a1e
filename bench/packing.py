"""What a better way of packing trials onto instances could win at most; prints JSON.

Plans are those of runs drawn as people have them on EC2 (`drawn.py`), walked from stage to stage:
who goes on is drawn, in `odd` with 1 to 3 GPUs per trial and nu 2 or 3. The floor is what no
packing can go below: as many GPUs as all trials of a stage have, in whole instances. Moved are
trials whose number of GPUs is unchanged: each costs a save and a start.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.drawn import Drawn, draw
from seerd.core.packing import Demand, PackingNode
from seerd.core.placement import place
from seerd.errors import LimitsError, UsageError
from seerd.planner.model import Outline
from seerd.planning.planned import plan_for
from seerd.sim.setting import problem_of

POLICIES = ("seer", "e-grid", "e-hyperband", "sha", "random", "grid")


@dataclass(frozen=True, slots=True)
class Packed:
    """One plan: instance-seconds as packed and at least, trials that stayed as large, and of those
    who moved.
    """

    instance_s: float
    floor_s: float
    kept: int
    moved: int


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--runs", type=int, default=100)
    runs = asked.parse_args().runs
    print(
        json.dumps(
            {name: report(list(plans(runs, odd=name == "odd"))) for name in ("drawn", "odd")},
            indent=2,
        )
    )


def report(found: list[Packed]) -> dict[str, Any]:
    instance_s, floor_s = sum(one.instance_s for one in found), sum(one.floor_s for one in found)
    return {
        "plans": len(found),
        "instance_h": round(instance_s / 3600, 3),
        "floor_instance_h": round(floor_s / 3600, 3),
        "ratio": round(instance_s / floor_s, 5),
        "plans_above_the_floor": sum(one.instance_s > one.floor_s * (1 + 1e-9) for one in found),
        "trials_kept": sum(one.kept for one in found),
        "of_those_moved": sum(one.moved for one in found),
    }


def plans(runs: int, *, odd: bool) -> Iterator[Packed]:
    """Those of the drawn runs whose limits fit anything."""
    for number in range(runs):
        drawn = draw(number, 0, POLICIES)
        rng = random.Random(number)
        if odd:
            params = replace(
                drawn.params, p_min=rng.randint(1, 3), nu=rng.randint(2, 3), p_max=None
            )
            drawn = replace(drawn, params=params)
        outline = planned(drawn)
        if outline is not None:
            yield walked(outline, drawn.setting.cluster.gpus_per_instance, rng)


def planned(drawn: Drawn) -> Outline | None:
    try:
        return plan_for(
            problem_of(drawn.setting, drawn.params), drawn.setting.cluster, drawn.believed
        ).outline
    except (LimitsError, UsageError):
        return None


def walked(outline: Outline, size: int, rng: random.Random) -> Packed:
    """Stage after stage; survivors are dealt anew, the best to the most GPUs, as SEER does."""
    trials = [
        f"t{i:04}"
        for i in range(max(sum(g.trials for g in stage.groups) for stage in outline.stages))
    ]
    nodes = [
        PackingNode(f"i-{i:04}", size) for i in range(2 * outline.peak_gpus // size + len(trials))
    ]
    held, before, made = {}, {}, Packed(0.0, 0.0, 0, 0)
    for stage in outline.stages:
        gpus = [group.gpus_per_trial for group in stage.groups for _ in range(group.trials)]
        trials = rng.sample(trials, len(trials))[: len(gpus)] if len(gpus) < len(trials) else trials
        demands = [Demand(*pair) for pair in zip(trials, sorted(gpus, reverse=True), strict=False)]
        at = place(demands, held, nodes, pack=True)
        used = len({slots.node for assignment in at.values() for slots in assignment})
        same = [d.trial for d in demands if before.get(d.trial) == d.gpus]
        lasts_s = stage.end_s - stage.start_s
        made = Packed(
            made.instance_s + used * lasts_s,
            made.floor_s + -(-stage.gpus // size) * lasts_s,
            made.kept + len(same),
            made.moved + sum(at[trial] != held[trial] for trial in same),
        )
        held, before = dict(at), {d.trial: d.gpus for d in demands}
    return made


if __name__ == "__main__":
    main()
