"""Ease.ml's rules that no policy of a run uses (Li et al., VLDB '18, sections 3 to 5): serving at
random or by gain, the paper's hybrid, surpluses, and expected improvement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from seerd.planner.dividing import Freeze, Offer, Rule, greedy, round_robin
from seerd.planner.gp_ucb import Floats, Posterior

FREEDOM = 5
"""Degrees of freedom of what is believed in an expected improvement, and how many results the scale
of a prior counts for there: other jobs' results spread more, or less, than this one's.
"""


def largest_gap(offers: Sequence[Offer]) -> str | None:
    """Choose the job with the largest gap (section 4.3, strategy for line 8)."""
    return first_largest(offers, lambda offer: offer.gap)


def first_largest(offers: Sequence[Offer], key: Callable[[Offer], float]) -> str | None:
    """Choose the open job with the largest key, the first of equals."""
    able = [offer for offer in offers if offer.open]
    return max(able, key=key).job if able else None


def at_random(offers: Sequence[Offer], drawn: float) -> str | None:
    """Choose by a number that was drawn between 0 and 1, 1 excluded (section 5.3)."""
    jobs = [offer.job for offer in offers if offer.open]
    return jobs[int(drawn * len(jobs))] if jobs else None


def most_gain(offers: Sequence[Offer]) -> str | None:
    """Choose the job whose next step gains most for its cost; one without any result goes first."""
    new = [offer for offer in offers if offer.best is None]
    return first_largest(new, lambda offer: offer.gain) or first_largest(
        offers, lambda offer: offer.gain
    )


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


def expected_improvement(posterior: Posterior, best: float) -> Floats:
    """Compute by how much each candidate is expected to be better than `best`, shape [K].

    Worths are taken to follow Student's t with `FREEDOM` degrees, not a normal distribution: the
    kernel is learned from other jobs, and under a normal one a candidate that it thinks little of
    would never be tried, whatever it costs. A candidate that is certain improves by what it is
    above `best`, or not at all.
    """
    scale = doubting(posterior, FREEDOM)
    certain = scale <= 0
    ahead = posterior.mean - best
    z = ahead / np.where(certain, 1.0, scale)
    density, share = _student(z)
    tail = (FREEDOM + z**2) / (FREEDOM - 1) * density
    gain = np.where(certain, ahead, ahead * share + scale * tail)
    return np.maximum(gain, 0.0)


def _student(z: Floats) -> tuple[Floats, Floats]:
    """Density, and share below z, of Student's t with 5 degrees of freedom, in closed form."""
    angle = np.arctan(z / math.sqrt(5))
    cosine = np.cos(angle)
    share = 0.5 + (angle + np.sin(angle) * (cosine + 2 / 3 * cosine**3)) / math.pi
    return 8 / (3 * math.pi * math.sqrt(5)) * cosine**6, share


def doubting(posterior: Posterior, worth: float) -> Floats:
    """Standard deviation where the prior's scale is doubted, and learned from the misfit, shape [K]
    (Shah, Wilson and Ghahramani, Student-t Processes as Alternatives to Gaussian Processes, AISTATS
    '14, lemma 3).

    worth  how many results the prior's scale is worth
    """
    doubt = (worth + posterior.misfit) / (worth + len(posterior.rows))
    return np.asarray(posterior.deviation * np.sqrt(doubt))
