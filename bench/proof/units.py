"""The units of the proof, one line of the results each, and how one is played."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

from bench.proof import loop
from bench.proof.split import ProofTask
from bench.proof.tool import Peer, PeerError
from bench.search.play import (
    WORST,
    came_of,
    decisions_of,
    planned,
    setting_of,
    unit_of,
)
from bench.search.tasks import Case, Cell, Where
from seerd.core.commands import AnyCommand
from seerd.core.events import AnyEvent, TrialReported
from seerd.planner.model import Impossible
from seerd.sim.setting import Setting, behaviour_of, facts_of, outcome_of
from seerd.sim.world import World

ROOT = Path(__file__).parents[2]

CELLS: dict[str, tuple[Where, Cell]] = {
    "2 GPUs, 30 min": ("fixed", Cell(1800.0, 2)),
    "8 GPUs, 30 min": ("fixed", Cell(1800.0, 8)),
    "4 GPUs, 2 h": ("fixed", Cell(7200.0, 4)),
    "rented, 8 x 15 min": ("rented", Cell(900.0, 8)),
    "rented, 16 x 30 min": ("rented", Cell(1800.0, 16)),
    "rented, 32 x 60 min": ("rented", Cell(3600.0, 32)),
}
"""Machines that are there, then GPUs that the budget pays for until the deadline."""

OURS = ("seer+", "hypersched", "asha")
"""Policies of seerd, played by its core; `hypersched` and `asha` are told R, as all others are."""
IN_LOOP = ("one-report",)
"""Played in the tools' loop without a process of its own."""
SEEDS = {
    "seer+": 10,
    "hypersched": 10,
    "asha": 10,
    "one-report": 10,
    "syne-asha": 10,
    "syne-bohb": 4,
    "optuna": 4,
    "dyhpo": 2,
}
"""How many paired seeds each method gets; the first is the one under test."""
SLOW_CELLS = {"dyhpo": ("2 GPUs, 30 min", "8 GPUs, 30 min", "rented, 8 x 15 min")}
"""The cells of a method whose decisions take too long for all of them."""
DYHPO = "dyhpo"
"""It needs an older Syne Tune, in another environment."""

FULL_CURVE_S = 3600.0
POINTS = 20
"""Moments of the curve of the best so far, evenly spread over the deadline."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One run of one method."""

    task: ProofTask
    cell: str
    method: str
    seed: int

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """What names it in the results."""
        return self.task.family, self.task.name, self.cell, self.method, self.seed


def units(tasks: list[ProofTask], most_seeds: int, methods: list[str]) -> Iterator[Unit]:
    """List all units: seed by seed, then cell by cell, a task of each family in turn, and the
    methods side by side, so that the runs of any moment are a fair sample. The slowest come last.
    """
    families: dict[str, list[ProofTask]] = {}
    for task in tasks:
        families.setdefault(task.family, []).append(task)
    mixed = [task for some in zip_longest(*families.values()) for task in some if task]
    groups = [[m for m in methods if (m in SLOW_CELLS) == slow] for slow in (False, True)]
    for group, seed, cell, task in product(groups, range(most_seeds), CELLS, mixed):
        for method in group:
            if seed < SEEDS[method] and cell in SLOW_CELLS.get(method, CELLS):
                yield Unit(task, cell, method, seed)


def python_of(method: str, environments: Path) -> Path:
    """Return the interpreter of a tool's environment."""
    return environments / ("dyhpo" if method == DYHPO else "tools") / "bin" / "python"


def played(unit: Unit, folder: Path, environments: Path) -> dict[str, Any]:
    """Play a unit; return its line of the results. `environments`: the folder of the tools'."""
    began, cpu = time.perf_counter(), time.process_time()
    where, cell = CELLS[unit.cell]
    policy = unit.method if unit.method in OURS else "asha"
    file = folder / unit.task.file_name
    case = Case(file, where, cell, policy, 1.0, FULL_CURVE_S)
    play = _ours if unit.method in OURS else _in_loop
    try:
        came = play(case, unit, python_of(unit.method, environments))
    except PeerError as error:
        came = {"error": str(error)}
    peer_s = came.pop("peer_s", 0.0)
    return {
        "family": unit.task.family,
        "task": unit.task.name,
        "cell": unit.cell,
        "method": unit.method,
        "seed": unit.seed,
        "code": code_of(unit.method),
        **came,
        "cpu_s": round(time.process_time() - cpu + peer_s, 3),
        "wall_s": round(time.perf_counter() - began, 3),
    }


class Watched(World):
    """A simulated run of the core that notes every finite report."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.reports: list[tuple[float, float]] = []

    def decide(self, event: AnyEvent) -> list[AnyCommand]:
        """Decide as the core does."""
        if isinstance(event, TrialReported) and event.metric is not None:
            self.reports.append((self.now, event.metric))
        return super().decide(event)


def _ours(case: Case, unit: Unit, python: Path) -> dict[str, Any]:
    """Play a policy of seerd's with its core; the model that is handed back counts."""
    setting, problem = setting_of(case), planned(case)
    if problem is None:
        return figures_of(setting, [], WORST, [])
    facts = facts_of(setting, problem, unit.seed)
    assert not isinstance(facts, Impossible)
    world = Watched(facts, behaviour_of(setting), seed=unit.seed)
    with decisions_of(case.policy, timed=True) as took_s:
        outcome = outcome_of(setting, world, world.run())
    came = came_of(case, setting, outcome)
    curves = setting.job.curves
    best = loop.best_so_far([(at_s, curves.regret(metric)) for at_s, metric in world.reports])
    more = {"trials": outcome.trials, "used": round(came.used, 4)}
    violated = {"violated": True} if came.violated else {}
    return figures_of(setting, best, came.regret, took_s) | more | violated


def _in_loop(case: Case, unit: Unit, python: Path) -> dict[str, Any]:
    """Play a tool on a cluster that stays the same; its best report counts."""
    setting, gpus = setting_of(case), case.cell.gpus
    curves, tool = setting.job.curves, None
    if unit.method == "one-report":
        deadline_s, less = setting.limits.deadline_s, curves.mode == "min"
        rows, reports = len(curves.metric), curves.epochs
        run = loop.OneReport(rows, unit.seed, reports, deadline_s, less=less)
        came = loop.play(run, setting, gpus, unit.seed)
    else:
        tool = Peer(python, unit.method, curves, gpus, unit.seed)
        came = loop.play(tool, setting, gpus, unit.seed)
    best, took_s = came.best(curves), tool.cpu_s if tool else []
    scale = unit_of(curves)
    regret = min(WORST, best[-1][1] / scale) if best else WORST
    used = sum(max(0.0, case.cell.deadline_s - at_s) for at_s in came.workers)
    more = {
        "trials": came.trials,
        "used": round(used / (gpus * case.cell.deadline_s), 4),
        "peer_s": sum(took_s),
    }
    return figures_of(setting, best, regret, took_s) | more


def figures_of(
    setting: Setting, best: list[tuple[float, float]], regret: float, took_s: list[float]
) -> dict[str, Any]:
    """Return what every method's line has.

    Args:
        setting: the world
        best: when the best report became better, and its regret, not scaled
        regret: of the result, scaled
        took_s: CPU seconds of each decision
    """
    scale, deadline_s = unit_of(setting.job.curves), setting.limits.deadline_s
    trace, place, now = [], 0, WORST
    for point in range(1, POINTS + 1):
        while place < len(best) and best[place][0] <= deadline_s * point / POINTS:
            now, place = min(WORST, best[place][1] / scale), place + 1
        trace.append(round(now, 4))
    decision_ms = 1000 * sum(took_s) / len(took_s) if took_s else 0.0
    return {"regret": round(regret, 5), "trace": trace, "decision_ms": round(decision_ms, 3)}


@cache
def code_of(method: str) -> str:
    """Return a digest of the code that a method's runs follow from: when it changes, the runs of
    this method are played again.
    """
    ours = sorted([*ROOT.glob("seerd/planner/*.py"), *ROOT.glob("seerd/core/**/*.py")])
    loops = [ROOT / "bench" / "proof" / name for name in ("loop.py", "peers.py")]
    shared = sorted(ROOT.glob("seerd/sim/*.py"))
    loops += [ROOT / "bench" / "proof" / f"requirements-{name}.txt" for name in ("tools", "dyhpo")]
    files = [*shared, *(ours if method in OURS else loops[:1] if method in IN_LOOP else loops)]
    digest = sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
