"""What the runs of the search bench come to.

The one rule: every family counts the same, whether it has one file or twenty. Figures are means
over the files of a family first, then over families. Runs of different policies with the same file,
cell and seed are compared pair by pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.search.tasks import Cell

Floats = NDArray[np.float64]

MARGIN = 0.03
"""A difference in regret that counts."""
DRAWS = 1000
"""How often families are drawn for the interval of a ratio."""
BEST_OF_THEM = "best of them"
"""The row of whichever single other policy is best, for each family and cell."""


@dataclass(frozen=True, slots=True)
class Regrets:
    """All regrets, as (policies, families, cells, seeds); files of a family are averaged.

    policies  the one under test first
    families  names
    cells     pairs of limits
    values    the regrets
    """

    policies: tuple[str, ...]
    families: tuple[str, ...]
    cells: tuple[Cell, ...]
    values: Floats

    @property
    def by_cell(self) -> Floats:
        """Means over seeds: (policies, families, cells)."""
        return np.asarray(self.values.mean(axis=3))


def by_family(values: Floats, families: Sequence[Sequence[int]]) -> Floats:
    """Average the files of each family: (policies, files, ...) to (policies, families, ...)."""
    return np.stack([values[:, files].mean(axis=1) for files in families], axis=1)


def medians(values: Floats, families: Sequence[Sequence[int]]) -> Floats:
    """Compute each policy's median run of a family, and average over families."""
    found = [np.median(values[:, files].reshape(len(values), -1), axis=1) for files in families]
    return np.asarray(np.mean(found, axis=0))


def ranks(values: Floats) -> Floats:
    """Rank policies among runs of the same file, cell and seed: 1 is best, equals share a rank."""
    less = (values[None] < values[:, None]).sum(axis=1)
    same = (values[None] == values[:, None]).sum(axis=1)
    return np.asarray(1 + less + (same - 1) / 2)


def best_of_them(regrets: Regrets) -> Floats:
    """Take the best single other policy for each family and cell: (families, cells)."""
    return np.asarray(regrets.by_cell[1:].min(axis=0))


def ratio(mine: Floats, other: Floats) -> list[float]:
    """Divide two policies' regrets, (families, cells) each; with the middle 95% of draws of
    families.
    """
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(mine), (DRAWS, len(mine)))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = mine.mean(axis=1)[drawn].mean(axis=1) / other.mean(axis=1)[drawn].mean(axis=1)
        whole = mine.mean() / other.mean()
    low, high = np.quantile(ratios, (0.025, 0.975))
    return [round(float(value), 3) for value in (whole, low, high)]


def interval(differences: Floats) -> tuple[float, float, float]:
    """Compute the mean of paired differences, one for each seed, and its 95% interval.

    The interval is Student's; one seed has none, which is an infinite one.
    """
    count, mean = len(differences), float(differences.mean())
    if count < 2:
        return mean, -math.inf, math.inf
    half = student(count - 1) * float(differences.std(ddof=1)) / math.sqrt(count)
    return mean, mean - half, mean + half


def student(freedom: int) -> float:
    """Return the 97.5% quantile of Student's distribution.

    With one or two degrees of freedom in closed form, else by Cornish and Fisher's expansion
    (Abramowitz and Stegun, 26.7.5), which is within 1%.
    """
    p = 0.975
    if freedom == 1:
        return math.tan(math.pi * (p - 0.5))
    if freedom == 2:
        return (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
    z = NormalDist().inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


def worse_than_others(regrets: Regrets) -> dict[str, Any]:
    """Test in which families the policy under test is worse than the best single other one there.

    Differences are means over the cells; the other is the one with the best mean over them.
    """

    def test(family: int) -> dict[str, Any]:
        of_family = regrets.values[:, family].mean(axis=1)
        other = 1 + int(of_family[1:].mean(axis=1).argmin())
        found = _tested(of_family[0] - of_family[other])
        return {"family": regrets.families[family], "other": regrets.policies[other], **found}

    return _all_tests(test, range(len(regrets.families)))


def worse_with_more(regrets: Regrets) -> dict[str, Any]:
    """Test in which families the policy under test is worse with more budget or more time.

    A step is to the next cell with the same deadline, or with the same number of GPUs.
    """

    def test(case: tuple[int, tuple[int, int]]) -> dict[str, Any]:
        family, (less, more) = case
        mine = regrets.values[0, family]
        step = [_cell_json(regrets.cells[number]) for number in (less, more)]
        found = _tested(mine[more] - mine[less])
        return {"family": regrets.families[family], "step": step, **found}

    return _all_tests(test, product(range(len(regrets.families)), steps(regrets.cells)))


def steps(cells: Sequence[Cell]) -> list[tuple[int, int]]:
    """List the neighbours of cells that have more GPUs or more time, as pairs of numbers."""
    gpus = sorted({cell.gpus for cell in cells})
    deadlines = sorted({cell.deadline_s for cell in cells})
    found = []
    for less, more in product(range(len(cells)), repeat=2):
        wider = gpus.index(cells[more].gpus) - gpus.index(cells[less].gpus)
        longer = deadlines.index(cells[more].deadline_s) - deadlines.index(cells[less].deadline_s)
        if (wider, longer) in ((1, 0), (0, 1)):
            found.append((less, more))
    return found


def _all_tests(test: Callable[[Any], dict[str, Any]], cases: Any) -> dict[str, Any]:
    tests = [test(case) for case in cases]
    return {"margin": MARGIN, "tests": tests, "worse": sum(found["worse"] for found in tests)}


def _tested(differences: Floats) -> dict[str, Any]:
    mean, low, high = interval(differences)
    between = [round(low, 4), round(high, 4)] if math.isfinite(low) else None
    return {"difference": round(mean, 4), "interval": between, "worse": low > MARGIN}


def _cell_json(cell: Cell) -> dict[str, float]:
    return {"deadline_min": cell.deadline_s / 60, "gpus": cell.gpus}
