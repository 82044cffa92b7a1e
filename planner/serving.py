"""Which of several jobs is served next (Li et al., Ease.ml, VLDB '18, section 4), by what each
offers, so that jobs under any policy can be compared. Jobs are in the order in which they came;
among equal offers the first is chosen, and None if no job has a further step. Larger results are
better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import fsum

FROZEN_AFTER = 10  # s of section 4.4: greedy is frozen after so many steps without any change


@dataclass(frozen=True, slots=True)
class Offer:
    """What one job would do with the next share."""

    job: str
    bound: float = 0.0  # the largest upper bound among the results that its next step may lead to
    best: float | None = None  # the best result so far; None: none yet
    # the empirical confidence bound of Algorithm 2, line 6, less the last result; None: no step yet
    surplus: float | None = None
    gain: float = 0.0  # expected improvement of `best` by the next step, per unit of cost
    open: bool = True  # whether there is a next step

    @property
    def gap(self) -> float:
        """How far the largest bound is above the best so far; without a result, all of it."""
        return self.bound - (0.0 if self.best is None else self.best)


Rule = Callable[[Sequence[Offer]], str | None]
"""Chooses among candidates: line 8 of Algorithm 2, for which the paper allows any rule."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """Whether greedy is frozen, from one step to the next (section 4.4)."""

    candidates: frozenset[str] = frozenset()  # the candidate set at the last step
    # sum of all jobs' best results at the last step; it rises when the regret drops
    best: float = float("-inf")
    unchanged: int = 0  # for how many steps both have been the same

    @property
    def frozen(self) -> bool:
        """Whether greedy is frozen; it then stays so."""
        return self.unchanged >= FROZEN_AFTER


def first_come(offers: Sequence[Offer]) -> str | None:
    """Choose the job that came first (section 4.1)."""
    return next((offer.job for offer in offers if offer.open), None)


def round_robin(offers: Sequence[Offer], last: str | None) -> str | None:
    """Choose the job after the one that was served last (section 4.2)."""
    jobs = [offer.job for offer in offers]
    after = jobs.index(last) + 1 if last in jobs else 0
    return first_come([*offers[after:], *offers[:after]])


def candidates(offers: Sequence[Offer]) -> frozenset[str]:
    """Return the open jobs whose surplus is at least the mean, or those without a step (line 7)."""
    able = [offer for offer in offers if offer.open]
    new = frozenset(offer.job for offer in able if offer.surplus is None)
    if new or not able:
        return new
    surplus = {offer.job: offer.surplus or 0.0 for offer in able}
    total = fsum(surplus.values())
    ahead = frozenset(job for job, own in surplus.items() if own * len(surplus) >= total)
    return ahead or frozenset({max(surplus, key=lambda job: surplus[job])})


def greedy(offers: Sequence[Offer], rule: Rule) -> str | None:
    """Choose one of the candidate set (Algorithm 2, lines 7 and 8)."""
    among = candidates(offers)
    return rule([offer for offer in offers if offer.job in among])


def watched(freeze: Freeze, offers: Sequence[Offer]) -> Freeze:
    """Note candidates and results before a step; a better one means less regret (section 4.4)."""
    if freeze.frozen:
        return freeze
    best = sum(offer.best for offer in offers if offer.best is not None)
    same = Freeze(candidates(offers), best) == replace(freeze, unchanged=0)
    return Freeze(candidates(offers), best, freeze.unchanged + 1 if same else 0)
