"""How many GPUs each job of a run, or each run on a machine, gets by weight: water-filling (Li et
al., ASHA, MLSys '20, section 5.3). The planner and every agent get the same result from the same
claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Sequence


@dataclass(frozen=True)
class Claim:
    """What a job, or a run on a shared machine, may have."""

    job: str
    cap: int  # the most GPUs that it can use, at least 0
    weight: float = 1.0  # its share beside that of others, above 0
    least: int = 1  # GPUs of its smallest step: it gets none, or at least so many; at least 1


def fair_shares(gpus: int, claims: Sequence[Claim]) -> dict[str, int]:
    """Divide whole GPUs by weight. What a job cannot use goes to the others; what rounding leaves,
    to the largest remainders, then to the heaviest, then to the first. Of jobs below their smallest
    step those furthest below have none, one after the other (of equals the lightest first); what is
    left goes to jobs that it is enough for.
    """
    able = [claim for claim in claims if 0 < claim.least <= min(claim.cap, gpus)]
    shares = _whole(gpus, able)
    while short := [claim for claim in able if 1 < claim.least > shares[claim.job]]:
        lacks = {c.job: (1 - shares[c.job] / c.least, -c.weight, c.least) for c in short}
        able.remove(max(reversed(short), key=lambda claim: lacks[claim.job]))
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
            return {**exact, **{claim.job: level * Fraction(claim.weight) for claim in open_}}
        left -= sum(claim.cap for claim in full)
        open_ = [claim for claim in open_ if claim not in full]
    return exact


def _whole(gpus: int, claims: Sequence[Claim]) -> dict[str, int]:
    exact = water_level(gpus, claims)
    shares = {job: int(share) for job, share in exact.items()}
    left = int(sum(exact.values())) - sum(shares.values())
    order = sorted(_heaviest(claims), key=lambda claim: shares[claim.job] - exact[claim.job])
    for claim in order[:left]:
        shares[claim.job] += 1
    return shares


def _heaviest(claims: Sequence[Claim]) -> list[Claim]:
    return sorted(claims, key=lambda claim: -claim.weight)
