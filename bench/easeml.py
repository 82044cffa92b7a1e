"""Ease.ml's figures 9 to 15 on tables of tenants, and what is better; prints JSON.

`python bench/easeml.py [FOLDER] [--repetitions 50] [--jobs 2] [--tenants 10]` plays every table of
the folder, and the paper's four synthetic ones (section 5.1); without a folder only those. In each
repetition ten tenants are drawn, and all others are what is known beforehand.

`by_cost` and `by_runs` have the mean and the worst loss at each of `shares`. A speed of 2 is half
of the cost to the same loss. docs/easeml.md tells how to read the rest.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
from threadpoolctl import threadpool_limits

from bench.many import figures
from bench.many.play import PAPERS, Game, Strategy, play
from bench.many.priors import from_quality_vectors, from_rows
from bench.many.tables import Table, synthetic, tables
from seerd.planner.gp_ucb import Floats

SYNTHETIC = ((0.01, 0.1), (0.01, 1.0), (0.5, 0.1), (0.5, 1.0))
RUNS_UPTO = 0.5
"""Section 5.3.1: until 50% of all models are trained."""
PROTOCOL = 0.1
"""Section 5.2: for 10% of the time that all models take."""
KERNELS = {"10%": 0.1, "50%": 0.5}
BEYOND = Strategy("hybrid", "ei", "rows", by_gain=True)

BY_COST = {
    "hybrid": Strategy(),
    "greedy": Strategy("greedy"),
    "round-robin": Strategy("round-robin"),
    "random": Strategy("random"),
    "fcfs": Strategy("fcfs"),
    "best on average first": Strategy("round-robin", "order"),
    "random order": Strategy("round-robin", "random order"),
    "hybrid without cost": Strategy(cost_aware=False),
    "hybrid, kernel from 10%": Strategy(prior=f"{PAPERS} 10%"),
    "hybrid, kernel from 50%": Strategy(prior=f"{PAPERS} 50%"),
    "beyond": BEYOND,
    "beyond, paper's prior": Strategy("hybrid", "ei", by_gain=True),
    "beyond, paper's step": Strategy(prior="rows"),
    "beyond, round-robin": Strategy("round-robin", "ei", "rows"),
}
BY_RUNS = {
    "hybrid": Strategy(cost_aware=False),
    "greedy": Strategy("greedy", cost_aware=False),
    "round-robin": Strategy("round-robin", cost_aware=False),
    "random": Strategy("random", cost_aware=False),
    "beyond": Strategy("hybrid", "ei", "rows", cost_aware=False, by_gain=True),
}
OF_HALVES = {"hybrid": BY_COST["hybrid"], "beyond": BEYOND}

PUBLISHED = {
    "hybrid beside the better of most cited and most recent, mean loss": [9.8, "5.2, up to"],
    "the same, worst loss": [3.1, "5.2, up to"],
    "hybrid beside round-robin and random, by runs": [1.9, "5.3.1, up to"],
    "hybrid beside round-robin and random, by cost": [None, "figure 11, no figure printed"],
    "with cost beside without": [None, "figure 13, no figure printed"],
    "kernel from 10% and 50% beside 100%": [None, "figure 14: 50% is similar to 100%"],
    "hybrid beside greedy and round-robin": [None, "figure 15: best of the three"],
}

Curves = dict[str, list[Floats]]


def main() -> None:
    """Print one JSON object."""
    asked = argparse.ArgumentParser()
    asked.add_argument("folder", nargs="?", type=Path)
    asked.add_argument("--repetitions", type=int, default=50)
    asked.add_argument("--jobs", type=int, default=2)
    asked.add_argument("--tenants", type=int, default=10)
    args = asked.parse_args()
    began = time.monotonic()
    with ProcessPoolExecutor(args.jobs, initializer=threadpool_limits, initargs=(1,)) as beside:
        ask = partial(_played, beside, args.repetitions, args.tenants)
        found = {table.name: told(table, ask) for table in _all(args.folder)}
    shares = list(figures.SHOWN)
    took_s = round(time.monotonic() - began, 1)
    print(
        json.dumps(
            {"tables": found, "shares": shares, "published": PUBLISHED, "took_s": took_s}, indent=1
        )
    )


def _all(folder: Path | None) -> Iterator[Table]:
    if folder is not None:
        yield from tables(folder)
    for sigma, alpha in SYNTHETIC:
        yield synthetic(sigma, alpha)


def _played(
    beside: ProcessPoolExecutor,
    repetitions: int,
    tenants: int,
    table: Table,
    strategies: dict[str, Strategy],
    runs: bool,
) -> Curves:
    """The curve of every repetition, by strategy."""
    ask = partial(repetition, table, strategies, tenants, runs)
    found = list(beside.map(ask, range(repetitions)))
    return {name: [curves[name] for curves in found] for name in strategies}


def repetition(
    table: Table, strategies: dict[str, Strategy], tenants: int, runs: bool, number: int
) -> dict[str, Floats]:
    """One draw of tenants, played with every strategy."""
    users = np.random.default_rng(number).permutation(len(table.quality))
    served, others = users[:tenants], users[tenants:]
    rows = table.quality[others]
    few = {f"{PAPERS} {name}": rows[: max(2, round(s * len(rows)))] for name, s in KERNELS.items()}
    asked = {strategy.prior for strategy in strategies.values()}
    priors = {name: from_quality_vectors(some) for name, some in few.items() if name in asked}
    priors |= {PAPERS: from_quality_vectors(rows), "rows": from_rows(rows)}
    known = ~np.isnan(rows)
    means = np.where(known, rows, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    game = Game(
        Table(table.name, table.quality[served], table.cost[served]), priors, np.argsort(-means)
    )
    most = RUNS_UPTO if runs else 1.0
    return {
        name: figures.on_shares(play(game, strategy, number, most, runs=runs))
        for name, strategy in strategies.items()
    }


def told(table: Table, ask: Any) -> dict[str, Any]:
    """What came of one table."""
    began = time.monotonic()
    cost, runs = ask(table, BY_COST, False), ask(table, BY_RUNS, True)
    halves = [ask(table.half(number), OF_HALVES, False) for number in (0, 1)]
    return {
        "users": len(table.quality),
        "models": table.quality.shape[1],
        "costs": "measured" if table.real else "drawn from U(0, 1)",
        "speed_by_cost": _speeds(cost, [name for name in BY_COST if name != "hybrid"], 1.0),
        "speed_by_runs": _speeds(runs, [name for name in BY_RUNS if name != "hybrid"], RUNS_UPTO),
        "beyond": {
            "all tenants": _beyond(cost),
            **{f"half {number}": _beyond(half) for number, half in enumerate(halves)},
        },
        "by_cost": _curves(cost, 1.0),
        "by_runs": _curves(runs, RUNS_UPTO),
        "took_s": round(time.monotonic() - began, 1),
    }


def _speeds(curves: Curves, names: list[str], upto: float) -> dict[str, Any]:
    """How much sooner hybrid is than others; below 1: it is later."""
    averages = {name: figures.mean(games) for name, games in curves.items()}
    worst = {name: figures.worst(games) for name, games in curves.items()}
    hybrid = averages["hybrid"]
    levels = {
        "at 0.02": figures.TO,
        "at its loss at 5%": figures.loss_at(hybrid, PROTOCOL / 2),
        "at its loss at half": figures.loss_at(hybrid, upto / 2),
    }
    return {
        name: {
            "0.1 to 0.02": figures.rounded(figures.as_the_paper(averages[name], hybrid)),
            **{
                level: figures.rounded(figures.sooner(averages[name], hybrid, loss))
                for level, loss in levels.items()
            },
            "worst, 0.1 to 0.02": figures.rounded(
                figures.as_the_paper(worst[name], worst["hybrid"])
            ),
        }
        for name in names
    }


def _beyond(curves: Curves) -> dict[str, Any]:
    """How much sooner `beyond` has the loss that hybrid has at half of its cost: of a run for 10%
    of everything (section 5.2), and of everything.
    """
    hybrid, beyond = np.array(curves["hybrid"]), np.array(curves["beyond"])
    found: dict[str, Any] = {}
    for name, length in (("half of 10%", PROTOCOL), ("half of all", 1.0)):
        loss = figures.loss_at(hybrid.mean(axis=0), length / 2)
        speed = figures.at_half(hybrid.mean(axis=0), beyond.mean(axis=0), length)
        found[name] = {
            "loss": round(loss, 6),
            "speed": figures.rounded(speed),
            "middle 90%": figures.interval(hybrid, beyond, length),
        }
    return found


def _curves(curves: Curves, upto: float) -> dict[str, Any]:
    return {
        name: {
            "mean": figures.shown(figures.mean(games), upto),
            "worst": figures.shown(figures.worst(games), upto),
        }
        for name, games in curves.items()
    }


if __name__ == "__main__":
    main()
