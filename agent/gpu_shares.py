"""How many GPUs each run gets of those that several want, by weight: what `seerd.planner.dividing`
computes, for agents, which have no planner. Each agent gets the same result from the same runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Sequence, Tuple

if TYPE_CHECKING:
    from fractions import Fraction


@dataclass(frozen=True)
class Wish:
    """What a run may have."""

    run: str
    cap: int  # the most GPUs that it can use
    weight: float  # above 0
    least: int = 1  # GPUs of its smallest step: it gets none, or at least so many; at least 1


def fair_shares(gpus: int, wishes: Sequence[Wish]) -> Dict[str, int]:
    """Divide GPUs between runs by weight, in whole GPUs; returns GPUs by run.

    What a run cannot use goes to the others. What rounding leaves goes to the largest remainders,
    then to the heaviest, then to the first. If not every run can have its smallest step, those that
    are furthest below theirs get none.
    """
    able = [wish for wish in wishes if 0 < wish.least <= min(wish.cap, gpus)]
    shares = _whole(gpus, able)
    while True:
        short = [wish for wish in able if 1 < wish.least > shares[wish.run]]
        if not short:
            break
        able.remove(max(reversed(short), key=lambda wish: _lack(wish, shares)))
        shares = _whole(gpus, able)
    for wish in _heaviest(wishes):
        left = gpus - sum(shares.values())
        if wish.run not in shares and wish.least <= min(left, wish.cap):
            shares[wish.run] = min(left, wish.cap)
    return {wish.run: shares.get(wish.run, 0) for wish in wishes}


def _whole(gpus: int, wishes: Sequence[Wish]) -> Dict[str, int]:
    exact = _water_level(gpus, wishes)
    shares = {run: int(share) for run, share in exact.items()}
    left = int(sum(exact.values())) - sum(shares.values())
    order = sorted(_heaviest(wishes), key=lambda wish: shares[wish.run] - exact[wish.run])
    for wish in order[:left]:
        shares[wish.run] += 1
    return shares


def _heaviest(wishes: Sequence[Wish]) -> List[Wish]:
    return sorted(wishes, key=lambda wish: -wish.weight)


def _lack(wish: Wish, shares: Dict[str, int]) -> Tuple[float, float, int]:
    """Return how far a run is below its smallest step; of equals the lightest lacks most."""
    return (1 - shares[wish.run] / wish.least, -wish.weight, wish.least)


def _water_level(gpus: int, wishes: Sequence[Wish]) -> "Dict[str, Fraction]":
    from fractions import Fraction  # takes time to import, and a run alone needs no shares

    exact = {wish.run: Fraction(wish.cap) for wish in wishes}
    left, open_ = Fraction(gpus), list(wishes)
    while open_:
        level = left / sum(Fraction(wish.weight) for wish in open_)
        full = [wish for wish in open_ if wish.cap <= level * Fraction(wish.weight)]
        if not full:
            exact.update({wish.run: level * Fraction(wish.weight) for wish in open_})
            return exact
        left -= sum(wish.cap for wish in full)
        open_ = [wish for wish in open_ if wish not in full]
    return exact
