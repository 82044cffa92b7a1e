"""What the proof's results come to: `python -m bench.proof.tables RESULTS` prints JSON.

With `--page docs/comparison.md` it writes the page's section between two markers instead.

The one rule: methods are compared on the runs that both have: the same task, cell and seed. Figures
are means over seeds, then cells, then the tasks of a family, then families. Intervals are the
middle 95% of 2,000 draws of families, and of tasks within each.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from bench.proof import split
from bench.proof.__main__ import key_of, lines_of
from bench.proof.units import CELLS, POINTS, SEEDS, SLOW_CELLS
from bench.search.figures import MARGIN, Floats, interval

DRAWS = 2000
BEGINS, ENDS = "<!-- proof: begins -->", "<!-- proof: ends -->"
TITLES = {
    "seer+": "`seer+`",
    "hypersched": "`hypersched`, ours",
    "asha": "`asha`, ours",
    "one-report": "one report only, ours",
    "syne-asha": "Syne Tune 0.16, ASHA",
    "syne-bohb": "Syne Tune 0.16, BOHB",
    "optuna": "Optuna 5.0, TPE with Hyperband",
    "dyhpo": "Syne Tune 0.13, DyHPO",
}
WHERE: Mapping[str, Callable[[str], bool]] = {
    "fixed": lambda cell: not cell.startswith("rented"),
    "rented": lambda cell: cell.startswith("rented"),
}
PARTS = {
    "dev": "by which `seer+` may be chosen.",
    "test": "which were looked at once.",
}
SHOWN = (1, 2, 5, 10, 20)
"""The moments of the curves that the page shows, of `POINTS`."""

Place = tuple[str, str, str, int]  # family, task, cell, seed
Line = dict[str, Any]
Values = Mapping[Place, Any]


def by_method(lines: Iterable[Line]) -> dict[str, dict[Place, Line]]:
    """Sort the lines without an error by method and place; of two, the later one counts."""
    latest = {key_of(line): line for line in lines}
    found: dict[str, dict[Place, Line]] = {name: {} for name in SEEDS}
    for (family, task, cell, method, seed), line in latest.items():
        if "error" not in line:
            found[method][family, task, cell, seed] = line
    return {name: places for name, places in found.items() if places}


def of_tasks(values: Values) -> dict[str, list[Any]]:
    """Average over seeds, then cells: family -> the means of its tasks."""
    tasks: dict[tuple[str, str], dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for (family, task, cell, _), value in sorted(values.items()):
        tasks[family, task][cell].append(np.asarray(value, dtype=float))
    found: dict[str, list[Any]] = defaultdict(list)
    for (family, _), cells in tasks.items():
        found[family].append(np.mean([np.mean(seeds, axis=0) for seeds in cells.values()], axis=0))
    return found


def mean(values: Values) -> Any:
    """Average over seeds, cells, tasks, and families at last."""
    return np.mean([np.mean(tasks, axis=0) for tasks in of_tasks(values).values()], axis=0)


def drawn(values: Values, figure: Callable[[Floats], Floats]) -> list[float]:
    """Return a figure of the mean over families, and the middle 95% of it over draws.

    Args:
        values: pairs (this method's, the other's), or single values
        figure: of means, in its last axis one for each of the pair
    """
    families = [np.reshape(tasks, (len(tasks), -1)) for tasks in of_tasks(values).values()]
    rng = np.random.default_rng(0)
    picked = rng.integers(0, len(families), (DRAWS, len(families)))
    means = np.empty((*picked.shape, families[0].shape[1]))
    for number, tasks in enumerate(families):
        times = int((picked == number).sum())
        within = rng.integers(0, len(tasks), (times, len(tasks)))
        means[picked == number] = tasks[within].mean(axis=1)
    whole = np.mean([tasks.mean(axis=0) for tasks in families], axis=0)
    low, high = np.quantile(figure(means.mean(axis=1)), (0.025, 0.975))
    return [round(float(value), 4) for value in (figure(whole), low, high)]


def ratio(pairs: Floats) -> Floats:
    """Divide the first mean by the second."""
    return np.asarray(pairs[..., 0] / pairs[..., 1])


def paired(mine: Mapping[Place, Line], other: Mapping[Place, Line]) -> dict[Place, Any]:
    """Return the regrets of two methods where both have one."""
    both = [place for place in mine if place in other]
    return {place: (mine[place]["regret"], other[place]["regret"]) for place in both}


def complete(methods: Mapping[str, Mapping[Place, Line]]) -> list[Place]:
    """List the places that all these methods have."""
    first, *others = methods.values()
    return [place for place in first if all(place in other for other in others)]


def ranks(methods: Mapping[str, Mapping[Place, Line]]) -> dict[str, dict[Place, float]]:
    """Return the place of each method among all, where all were played; equals share a rank."""
    found: dict[str, dict[Place, float]] = {name: {} for name in methods}
    for place in complete(methods):
        regrets = {name: lines[place]["regret"] for name, lines in methods.items()}
        for name, regret in regrets.items():
            less = sum(other < regret for other in regrets.values())
            same = sum(other == regret for other in regrets.values())
            found[name][place] = 1 + less + (same - 1) / 2
    return found


def surely_worse(methods: Mapping[str, Mapping[Place, Line]]) -> list[dict[str, Any]]:
    """Test in which families the first method is more than `MARGIN` worse than the best other.

    The differences are one for each seed, means over tasks and cells; see `bench/search/figures`.
    """
    mine, *names = methods
    tests = []
    for family in sorted({place[0] for place in methods[mine]}):
        other, differences = min(
            ((name, _by_seed(methods[mine], methods[name], family)) for name in names),
            key=lambda pair: -pair[1].mean() if len(pair[1]) else np.inf,
        )
        if not len(differences):
            continue
        middle, low, high = interval(differences)
        between = [round(low, 4), round(high, 4)] if np.isfinite(low) else None
        tests.append(
            {
                "family": family,
                "other": other,
                "difference": round(middle, 4),
                "interval": between,
                "worse": bool(low > MARGIN),
            }
        )
    return tests


def _by_seed(mine: Mapping[Place, Line], other: Mapping[Place, Line], family: str) -> Floats:
    """Return the mean difference of each seed for which both have the whole family, or the part of
    it that was played.
    """
    pairs = {place: two for place, two in paired(mine, other).items() if place[0] == family}
    order = sorted(pairs, key=lambda place: place[3])
    seeds = [list(some) for _, some in groupby(order, key=lambda place: place[3])]
    most = max((len(some) for some in seeds), default=0)
    full = [some for some in seeds if len(some) == most]
    return np.array([np.mean([pairs[p][0] - pairs[p][1] for p in some]) for some in full])


def summary(lines: Sequence[Line]) -> dict[str, Any]:
    """Return everything that is printed."""
    methods = by_method(lines)
    common = {name: found for name, found in methods.items() if name not in SLOW_CELLS}
    mine = next(iter(methods))
    placed = ranks(common)
    rows = {name: row(found, methods[mine]) for name, found in methods.items()}
    for name, ranked in placed.items():
        if ranked:
            rows[name]["rank"] = drawn(ranked, lambda means: means[..., 0])
    best = min((name for name in common if name != mine), key=lambda n: rows[n]["regret"][0])
    played = {(place[0], place[1]) for place in methods[mine]}
    return {
        "parts": sorted({t.part for t in split.read() if (t.family, t.name) in played}),
        "runs": sum(map(len, methods.values())),
        "errors": sum("error" in line for line in lines),
        "violations": sum(bool(line.get("violated")) for line in lines),
        "families": {
            family: len(tasks)
            for family, tasks in of_tasks(
                {place: line["regret"] for place, line in methods[mine].items()}
            ).items()
        },
        "cells": list(CELLS),
        "ranked_on": len(complete(common)),
        "best_other": best,
        "beside_best_other": rows[best]["beside"],
        "on": {
            where: beside_best(common, where)
            for where, is_there in WHERE.items()
            if any(is_there(place[2]) for place in complete(common))
        },
        "worse_than_best_other": {"margin": MARGIN, "tests": surely_worse(common)},
        "methods": rows,
    }


def beside_best(methods: Mapping[str, Mapping[Place, Line]], where: str) -> dict[str, Any]:
    """Compare the first method with the best single other one, on fixed or on rented machines."""
    here = {
        name: {place: line for place, line in lines.items() if WHERE[where](place[2])}
        for name, lines in methods.items()
    }
    mine, *names = (name for name, lines in here.items() if lines)
    regrets = {
        name: drawn(
            {place: line["regret"] for place, line in here[name].items()}, lambda m: m[..., 0]
        )[0]
        for name in names
    }
    best = min(regrets, key=lambda name: regrets[name])
    return {"best_other": best, "beside": drawn(paired(here[mine], here[best]), ratio)}


def row(found: Mapping[Place, Line], mine: Mapping[Place, Line]) -> dict[str, Any]:
    """Return the figures of one method."""
    regrets = {place: line["regret"] for place, line in found.items()}
    cells = [cell for cell in CELLS if any(place[2] == cell for place in found)]
    return {
        "runs": len(found),
        "regret": drawn(regrets, lambda means: means[..., 0]),
        "beside": drawn(paired(mine, found), ratio),  # the first method's regret by this one's
        "families": {
            family: round(float(np.mean(tasks)), 4) for family, tasks in of_tasks(regrets).items()
        },
        "cells": {
            cell: round(float(mean({p: r for p, r in regrets.items() if p[2] == cell})), 4)
            for cell in cells
        },
        "trace": trace(found),
        "traces": {
            cell: trace({place: line for place, line in found.items() if place[2] == cell})
            for cell in cells
        },
        "codes": sorted({line["code"] for line in found.values()}),  # more than one: play it again
        "used": round(float(np.mean([line.get("used", 0.0) for line in found.values()])), 3),
        "decision_ms": round(float(np.mean([line["decision_ms"] for line in found.values()])), 2),
        "cpu_s": round(float(np.mean([line["cpu_s"] for line in found.values()])), 2),
    }


def trace(found: Mapping[Place, Line]) -> list[float]:
    """Return the regret of the best report so far at `POINTS` moments."""
    values = mean({place: line["trace"] for place, line in found.items()})
    return [round(float(value), 4) for value in values]


def section(figures: dict[str, Any], seeds: Mapping[str, int]) -> str:
    """Return the section of the page, with its markers."""
    counted = ", ".join(f"{family} {count}" for family, count in figures["families"].items())
    mine = TITLES[next(iter(figures["methods"]))]
    lines = [
        BEGINS,
        "",
        *(f"Tasks of `{part}`, {PARTS[part]}" for part in figures["parts"]),
        "",
        f"{figures['runs']:,} runs ({counted}).",
        "Regret and rank have the middle 95% of draws of families and tasks beside them.",
        f"The column *beside it* is the regret of {mine} divided by that of the row,",
        "on the runs that both have.",
        "",
        *rows_of(figures, seeds),
        "",
        *verdicts_of(figures, mine),
        "",
        ENDS,
    ]
    return "\n".join(lines)


def rows_of(figures: dict[str, Any], seeds: Mapping[str, int]) -> list[str]:
    """Return the lines of three tables: all in all, by family, and the best so far."""
    methods, families = figures["methods"], list(figures["families"])
    order = sorted(methods, key=lambda name: methods[name]["regret"][0])
    lines = [
        "| method | seeds | regret | rank | beside it | ms per decision |",
        "| --- | ---: | --- | --- | --- | ---: |",
    ]
    for name in order:
        own = methods[name]
        placed = between(own["rank"], 1) if "rank" in own else ""
        beside = "" if name == next(iter(methods)) else between(own["beside"], 2)
        regret, took = between(own["regret"], 3), f"{own['decision_ms']:.1f}"
        lines.append(
            f"| {TITLES[name]} | {seeds[name]} | {regret} | {placed} | {beside} | {took} |"
        )
    lines += ["", f"| regret by family | {' | '.join(families)} |"]
    lines += [f"| --- |{' ---: |' * len(families)}"]
    for name in order:
        of = methods[name]["families"]
        values = " | ".join(f"{of[f]:.3f}" if f in of else "" for f in families)
        lines.append(f"| {TITLES[name]} | {values} |")
    shares = " | ".join(f"{100 * point // POINTS}%" for point in SHOWN)
    lines += ["", f"| best report so far, after | {shares} |", f"| --- |{' ---: |' * len(SHOWN)}"]
    for name in order:
        best = methods[name]["trace"]
        values = " | ".join(f"{best[point - 1]:.3f}" for point in SHOWN)
        lines.append(f"| {TITLES[name]} | {values} |")
    return lines


def verdicts_of(figures: dict[str, Any], mine: str) -> list[str]:
    """Return what the page concludes. `mine`: the title of the first method."""
    lines = []
    for where, compared in figures["on"].items():
        beside = between(compared["beside"], 2)
        lines.append(f"- {where}: {mine} is at {beside} of the best single other,")
        lines.append(f"  {TITLES[compared['best_other']]}")
    tests, families = figures["worse_than_best_other"], len(figures["families"])
    worse = [test["family"] for test in tests["tests"] if test["worse"]]
    return [
        *lines,
        "",
        f"{mine} is surely more than {tests['margin']} worse than the best other method in",
        f"{len(worse)} of {families} families{': ' + ', '.join(worse) if worse else ''}.",
        f"Limits that were passed: {figures['violations']}; errors of tools: {figures['errors']}.",
    ]


def between(figures: Sequence[float], digits: int) -> str:
    """Return a figure with its interval as text."""
    value, low, high = (f"{figure:.{digits}f}" for figure in figures)
    return f"{value} ({low} to {high})"


def main() -> None:
    """Print the JSON, or write the section of a page."""
    parser = argparse.ArgumentParser(description="What the proof's results come to.")
    parser.add_argument("results", type=Path)
    parser.add_argument("--page", type=Path, help="write the section of this page instead")
    asked = parser.parse_args()
    lines = lines_of(asked.results)
    figures = summary(lines)
    if asked.page is None:
        print(json.dumps(figures, indent=1))
        return
    before, begins, rest = asked.page.read_text().partition(BEGINS)
    _, ends, after = rest.partition(ENDS)
    if not (begins and ends):
        sys.exit(f"{asked.page} has no lines {BEGINS} and {ENDS}")
    seeds = {name: len({place[3] for place in found}) for name, found in by_method(lines).items()}
    asked.page.write_text(before + section(figures, seeds) + after)


if __name__ == "__main__":
    main()
