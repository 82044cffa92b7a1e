"""What the search bench runs: files of curves, pairs of limits, policies and seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Where = Literal["fixed", "rented"]

GPUS: dict[Where, tuple[int, ...]] = {"fixed": (1, 2, 4, 8), "rented": (8, 16, 32)}
"""GPUs of the machine; GPU-minutes that are paid for in each minute, as in SEER's figure 4."""

DEADLINES_S: dict[Where, tuple[float, ...]] = {
    "fixed": (1800.0, 7200.0),
    "rented": (900.0, 1800.0, 3600.0),
}

KNOWS_NO_R = "seer+"
"""The policy that is never told R, the reports of a whole curve."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A pair of limits.

    deadline_s  seconds
    gpus        the budget is so many GPUs for the whole time
    """

    deadline_s: float
    gpus: int


@dataclass(frozen=True, slots=True)
class Bench:
    """What is run.

    files         files of curves; names that agree up to the first `_` are one family
    where         machines that are there, or rented instances
    policies      the one under test, then those beside it
    seeds         runs of each policy on each file in each cell
    told          the others are told R times this; None: nothing
    full_curve_s  how long the median whole curve takes on one GPU, seconds
    """

    files: tuple[Path, ...]
    where: Where
    policies: tuple[str, ...]
    seeds: int
    told: float | None
    full_curve_s: float

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All pairs of limits, the shortest deadline first."""
        gpus = GPUS[self.where]
        return tuple(Cell(t, p) for t in DEADLINES_S[self.where] for p in gpus)

    @property
    def families(self) -> dict[str, list[int]]:
        """The numbers of the files of each family."""
        found: dict[str, list[int]] = {}
        for number, file in enumerate(self.files):
            found.setdefault(family_of(file), []).append(number)
        return found

    def tasks(self) -> Iterator[Task]:
        """List all runs: file by file, then by policy, cell and seed."""
        for file in self.files:
            for policy in self.policies:
                for cell in self.cells:
                    case = Case(file, self.where, cell, policy, self.told, self.full_curve_s)
                    for seed in range(self.seeds):
                        yield Task(case, seed, timed=policy == self.policies[0])


def family_of(file: Path) -> str:
    """The family of a file of curves."""
    return file.stem.partition("_")[0]


@dataclass(frozen=True, slots=True)
class Case:
    """Everything about a run but its seed; the fields are those of `Bench`."""

    file: Path
    where: Where
    cell: Cell
    policy: str
    told: float | None
    full_curve_s: float


@dataclass(frozen=True, slots=True)
class Task:
    """One run.

    case   what is run
    seed   the seed
    timed  whether the policy's decisions are timed
    """

    case: Case
    seed: int
    timed: bool = False
