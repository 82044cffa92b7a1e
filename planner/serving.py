"""Which of several jobs is served next (Li et al., Ease.ml, VLDB '18, section 4).

The one rule: whatever a job's next step is, it is known here by what it offers alone: how much may
be gained, at what cost. So jobs under any policy can be compared.

Jobs are given in the order in which they came. Those that have no further step are never chosen;
None: there is none that has one. Of equal ones the first is chosen. Larger results are better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import fsum

FROZEN_AFTER = 10
"""s of section 4.4: after so many steps without any change greedy is frozen."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What one job would do with the next share."""

    job: str
    bound: float = 0.0  # the largest upper bound among the results that its next step may lead to
    best: float | None = None  # the best result so far; None: none yet
    # how far the result of its last step may be from the best that can be had: the empirical
    # confidence bound of `tightened` less that result; None: no step yet
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
    """What tells that greedy is frozen, from one step to the next."""

    candidates: frozenset[str] = frozenset()  # the candidate set at the last step
    # sum of all jobs' best results at the last step; it rises when the regret drops
    best: float = float("-inf")
    unchanged: int = 0  # for how many steps both have been the same

    @property
    def frozen(self) -> bool:
        """Whether greedy is frozen; once it is, it stays so."""
        return self.unchanged >= FROZEN_AFTER


def first_come(offers: Sequence[Offer]) -> str | None:
    """Choose the job that came first (section 4.1: first come, first served)."""
    return next((offer.job for offer in offers if offer.open), None)


def round_robin(offers: Sequence[Offer], last: str | None) -> str | None:
    """Choose the job after the one that was served last (section 4.2)."""
    jobs = [offer.job for offer in offers]
    after = jobs.index(last) + 1 if last in jobs else 0
    return first_come([*offers[after:], *offers[:after]])


def at_random(offers: Sequence[Offer], drawn: float) -> str | None:
    """Choose by a number that was drawn between 0 and 1, 1 excluded (section 5.3)."""
    jobs = [offer.job for offer in offers if offer.open]
    return jobs[int(drawn * len(jobs))] if jobs else None


def largest_gap(offers: Sequence[Offer]) -> str | None:
    """Choose the job with the largest gap between its largest bound and its best result (section
    4.3, strategy for line 8).
    """
    return _first_largest(offers, lambda offer: offer.gap)


def most_gain(offers: Sequence[Offer]) -> str | None:
    """Choose the job whose next step gains most for its cost; one without any result goes first."""
    new = [offer for offer in offers if offer.best is None]
    return _first_largest(new, lambda offer: offer.gain) or _first_largest(
        offers, lambda offer: offer.gain
    )


def candidates(offers: Sequence[Offer]) -> frozenset[str]:
    """Find the jobs whose surplus is at least the mean of all (Algorithm 2, line 7).

    A job without a step has not been through lines 1 to 4, and comes before all others. Jobs that
    are through count in neither: there is nothing to be gained there.
    """
    able = [offer for offer in offers if offer.open]
    new = frozenset(offer.job for offer in able if offer.surplus is None)
    if new or not able:
        return new
    surplus = {offer.job: offer.surplus or 0.0 for offer in able}
    total = fsum(surplus.values())
    ahead = frozenset(job for job, own in surplus.items() if own * len(surplus) >= total)
    return ahead or frozenset({max(surplus, key=lambda job: surplus[job])})


def greedy(offers: Sequence[Offer], rule: Rule = largest_gap) -> str | None:
    """Choose one of the candidate set (Algorithm 2, lines 7 and 8)."""
    among = candidates(offers)
    return rule([offer for offer in offers if offer.job in among])


def watched(freeze: Freeze, offers: Sequence[Offer]) -> Freeze:
    """Note the candidate set and the results before a step (section 4.4).

    The regret is not known; it has dropped where some job's best result has risen.
    """
    if freeze.frozen:
        return freeze
    best = sum(offer.best for offer in offers if offer.best is not None)
    same = Freeze(candidates(offers), best) == replace(freeze, unchanged=0)
    return Freeze(candidates(offers), best, freeze.unchanged + 1 if same else 0)


def hybrid(
    offers: Sequence[Offer], freeze: Freeze, last: str | None, rule: Rule = largest_gap
) -> str | None:
    """Choose as greedy does until it is frozen, and then in turn (section 4.4)."""
    return round_robin(offers, last) if freeze.frozen else greedy(offers, rule)


def tightened(before: float | None, bound: float, result: float) -> tuple[float, float]:
    """Return a job's empirical confidence bound after a step, and its surplus (Algorithm 2, line
    6).

    before  the empirical confidence bound after its last step; None: this is its first
    bound   B, the upper bound with which the candidate was chosen
    result  y, what the step came to

    The paper's indices leave open whether B is that from before or after the result; its proof of
    theorem 3 needs the one from before.
    """
    least = bound if before is None else min(bound, before)
    return least, least - result


def _first_largest(offers: Sequence[Offer], key: Callable[[Offer], float]) -> str | None:
    able = [offer for offer in offers if offer.open]
    return max(able, key=key).job if able else None
