"""How many GPUs each of several jobs gets, by each way of sharing: whole steps of its smallest
trial, and never more than it can use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from seerd.planner.job_offers import Prospect
from seerd.planner.model import Sharing
from seerd.planner.serving import Freeze, Offer, greedy, round_robin, watched
from seerd.planner.sharing import Claim, fair_shares

FLOOR = 0.5  # the part of its fair share that every job keeps, whatever it offers


@dataclass(frozen=True, slots=True)
class Dividing:
    """What a division goes by."""

    sharing: Sharing  # the way of sharing
    # job -> GPU-seconds that it has had since jobs or weights were others
    spent: Mapping[str, float] = field(default_factory=dict)
    ahead_s: float = 0.0  # for how long the shares will hold where jobs take turns, seconds
    left_s: float = 0.0  # how long the run goes on, seconds
    # what is expected of each job, in the order of the claims; for the ways that go by it
    jobs: Sequence[Prospect] = ()
    freeze: Freeze = field(default_factory=Freeze)  # what tells whether greedy is frozen
    last: str | None = None  # the job that was given a GPU last; None: none yet


@dataclass(frozen=True, slots=True)
class Division:
    """The result of a division."""

    given: dict[str, int]  # job -> GPUs
    freeze: Freeze  # what tells whether greedy is frozen, for the next division
    last: str | None  # the job that was given a GPU last


def divided(gpus: int, claims: Sequence[Claim], by: Dividing) -> Division:
    """Divide GPUs between jobs. Where fair shares leave a job without a step, jobs take turns."""
    if by.sharing == "fair":
        shares = fair_shares(gpus, claims)
        starving = any(shares[c.job] < c.least <= min(c.cap, gpus) for c in claims)
        shares = _over_time(gpus, claims, by) if starving else shares
        return Division(shares, by.freeze, by.last)
    if by.sharing == "round-robin":
        return _in_turn(gpus, claims, by)
    freeze = watched(by.freeze, [_offer(prospect, 0, by) for prospect in by.jobs])
    by = replace(by, freeze=freeze)
    if by.sharing == "hybrid" and freeze.frozen:
        return _in_turn(gpus, claims, by)
    return _to_who_offers_most(gpus, claims, by)


def _over_time(gpus: int, claims: Sequence[Claim], by: Dividing) -> dict[str, int]:
    """Give step after step to the job that will have had least for its weight."""
    shares, weights = {c.job: 0 for c in claims}, {c.job: c.weight for c in claims}
    while able := [offer.job for offer in _able(gpus, claims, shares) if offer.open]:

        def had(job: str) -> tuple[float, float]:
            gpu_s = by.spent.get(job, 0.0) + shares[job] * by.ahead_s
            return gpu_s / weights[job], -weights[job]

        job = min(able, key=had)
        shares[job] += _least(claims, job)
    for claim in (claim for claim in claims if shares[claim.job]):
        shares[claim.job] += min(gpus - sum(shares.values()), claim.cap - shares[claim.job])
    return shares


def _in_turn(gpus: int, claims: Sequence[Claim], by: Dividing) -> Division:
    """Give step after step in turn, beginning after the job that had the last one."""
    shares, last = dict.fromkeys((claim.job for claim in claims), 0), by.last
    while (job := round_robin(_able(gpus, claims, shares), last)) is not None:
        shares[job] += _least(claims, job)
        last = job
    return Division(shares, by.freeze, last)


def _to_who_offers_most(gpus: int, claims: Sequence[Claim], by: Dividing) -> Division:
    """Give step after step to the job that offers most, beside a floor for all."""
    fair, last = fair_shares(gpus, claims), by.last
    shares = {c.job: int(fair[c.job] * FLOOR / c.least) * c.least for c in claims}
    while True:
        able = {offer.job for offer in _able(gpus, claims, shares) if offer.open}
        offers_left = [_offer(job, shares[job.job], by) for job in by.jobs if job.job in able]
        job = greedy(offers_left, lambda offers: _first(offers, shares))
        if job is None:
            return Division(shares, by.freeze, last)
        shares[job] += _least(claims, job)
        last = job


def _offer(job: Prospect, gpus: int, by: Dividing) -> Offer:
    """Return what one GPU more offers until the run ends: how much regret goes, or for worst-first
    how much there would be without it.
    """
    regret = job.regret_after(gpus * by.left_s)
    after = 0.0 if by.sharing == "worst-first" else job.regret_after((gpus + 1) * by.left_s)
    best, gain = job.best or 0.0, regret - after
    return Offer(job.job, best + gain, best, gain, gain)


def _first(offers: Sequence[Offer], shares: Mapping[str, int]) -> str | None:
    """Choose the largest gap; among equals, the job that has least yet."""
    best = max(offers, key=lambda offer: (offer.gap, -shares[offer.job]), default=None)
    return None if best is None else best.job


def _able(gpus: int, claims: Sequence[Claim], shares: Mapping[str, int]) -> list[Offer]:
    left = gpus - sum(shares.values())
    return [Offer(c.job, open=c.least <= min(left, c.cap - shares[c.job])) for c in claims]


def _least(claims: Sequence[Claim], job: str) -> int:
    return next(claim.least for claim in claims if claim.job == job)
