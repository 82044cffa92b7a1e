"""Curves of many games, and how much sooner one of them comes to the same loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.many.play import Course
from seerd.planner.gp_ucb import Floats

SHARES = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 601)])
"""Shares of the cost, or of the runs, at which curves are known."""
SHOWN = (1e-4, 1e-3, 3e-3, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
FROM, TO = 0.1, 0.02
"""Between which losses the paper measures (section 5.2)."""
DRAWS = 400


def on_shares(course: Course) -> Floats:
    """The loss at each of `SHARES`; after the end the last one."""
    return np.asarray(course.loss[np.searchsorted(course.spent, SHARES, side="right") - 1])


def share_at(curve: Floats, loss: float) -> float:
    """The share at which a curve has come to this loss; infinite if it does not."""
    there = curve <= loss + 1e-12
    return float(SHARES[np.argmax(there)]) if there.any() else float("inf")


def loss_at(curve: Floats, share: float) -> float:
    return float(curve[np.searchsorted(SHARES, share * (1 + 1e-9), side="right") - 1])


def sooner(slow: Floats, fast: Floats, loss: float) -> float | None:
    """How many times as long the slow one takes to this loss; None: one of them is never there, or
    is there at once.
    """
    late, early = share_at(slow, loss), share_at(fast, loss)
    return late / early if 0 < early < np.inf and late < np.inf else None


def as_the_paper(slow: Floats, fast: Floats) -> float | None:
    """How many times as long the slow one takes from a loss of 0.1 to one of 0.02 (section 5.2)."""
    late, early = (share_at(one, TO) - share_at(one, FROM) for one in (slow, fast))
    return late / early if 0 < early < np.inf and 0 <= late < np.inf else None


def at_half(hybrid: Floats, other: Floats, length: float) -> float | None:
    """How much sooner another comes to the loss that hybrid has at half of a run of this length."""
    loss = loss_at(hybrid, length / 2)
    early = share_at(other, loss)
    return length / 2 / early if 0 < early < np.inf else None


def interval(hybrid: Floats, other: Floats, length: float) -> list[float | None]:
    """The middle 90% of `at_half`, from games drawn again; both of shape [games, shares]."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(DRAWS):
        games = rng.integers(len(hybrid), size=len(hybrid))
        one = at_half(hybrid[games].mean(axis=0), other[games].mean(axis=0), length)
        found.append(np.inf if one is None else one)
    return [rounded(float(q)) for q in np.quantile(found, (0.05, 0.95), method="nearest")]


def rounded(figure: float | None, digits: int = 2) -> float | None:
    return None if figure is None or not np.isfinite(figure) else round(figure, digits)


def shown(curve: Floats, upto: float = 1.0) -> list[float]:
    return [round(loss_at(curve, share), 5) for share in SHOWN if share <= upto]


def mean(games: Sequence[Floats]) -> Floats:
    return np.asarray(np.mean(games, axis=0))


def worst(games: Sequence[Floats]) -> Floats:
    return np.asarray(np.max(games, axis=0))
