"""Fair shares of GPUs between jobs: water-filling by weight up to what each can use (Li et al.,
ASHA, MLSys '20, section 5.3). `agent.gpu_shares` has its own `fair_shares`, as an agent imports
nothing of the planner's; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Claim:
    """What a job may have."""

    job: str
    cap: int  # the most GPUs that it can use, at least 0
    weight: float = 1.0  # its share beside that of others, above 0
    least: int = 1  # GPUs of its smallest step: it gets none, or at least so many; at least 1


def fair_shares(gpus: int, claims: Sequence[Claim]) -> dict[str, int]:
    """Divide whole GPUs by weight. What a job cannot use goes to the others; what rounding leaves,
    to the largest remainders. Of jobs below their smallest step those furthest below have none, one
    after the other; what is left goes to jobs that it is enough for.
    """
    able = [claim for claim in claims if 0 < claim.least <= min(claim.cap, gpus)]
    shares = _whole(gpus, able)
    while short := [claim for claim in able if 1 < claim.least > shares[claim.job]]:
        able.remove(max(reversed(short), key=lambda claim: _lack(claim, shares)))
        shares = _whole(gpus, able)
    for claim in _heaviest(claims):
        left = gpus - sum(shares.values())
        if claim.job not in shares and claim.least <= min(left, claim.cap):
            shares[claim.job] = min(left, claim.cap)
    return {claim.job: shares.get(claim.job, 0) for claim in claims}


def water_level(gpus: int, claims: Sequence[Claim]) -> dict[str, Fraction]:
    """Divide GPUs by weight as if they could be split, up to each job's cap."""
    exact = {claim.job: Fraction(claim.cap) for claim in claims}
    left, open_ = Fraction(gpus), list(claims)
    while open_:
        level = left / sum(Fraction(claim.weight) for claim in open_)
        full = [claim for claim in open_ if claim.cap <= level * Fraction(claim.weight)]
        if not full:
            return exact | {claim.job: level * Fraction(claim.weight) for claim in open_}
        left -= sum(claim.cap for claim in full)
        open_ = [claim for claim in open_ if claim not in full]
    return exact


def _whole(gpus: int, claims: Sequence[Claim]) -> dict[str, int]:
    """Round exact shares to whole GPUs by largest remainders; among equals the heavier is first."""
    exact = water_level(gpus, claims)
    shares = {job: int(share) for job, share in exact.items()}
    left = int(sum(exact.values())) - sum(shares.values())
    order = sorted(_heaviest(claims), key=lambda claim: shares[claim.job] - exact[claim.job])
    for claim in order[:left]:
        shares[claim.job] += 1
    return shares


def _heaviest(claims: Sequence[Claim]) -> list[Claim]:
    return sorted(claims, key=lambda claim: -claim.weight)


def _lack(claim: Claim, shares: Mapping[str, int]) -> tuple[float, float, int]:
    """Return how far a job is below its smallest step; among equals the lightest lacks most."""
    return (1 - shares[claim.job] / claim.least, -claim.weight, claim.least)
