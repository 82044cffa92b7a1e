"""How many GPUs each of several jobs gets, by each way of sharing: whole steps of its smallest
trial, and never more than it can use.

Fair shares are those of runs on one machine (`agent.gpu_shares`).
What a job may still gain is expected from its results alone, so that jobs under any policy can be
compared (Li et al., Ease.ml, VLDB '18, sections 4.1 to 4.4): its regret is taken to fall like 1/t
with its GPU time t. Then what its best result has risen by since a part f of that time is 1/f - 1
times the regret that is left; the mean over several f is steadier than any one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum

from seerd.agent.gpu_shares import Claim, fair_shares
from seerd.planner.model import PlannedJob, Sharing, View

FROZEN_AFTER = 10  # s of section 4.4: greedy is frozen after so many steps without any change


@dataclass(frozen=True, slots=True)
class Offer:
    """What one job would do with the next share. Offers are in the order in which jobs came; among
    equal ones the first is chosen; None if no job has a further step. Larger results are better.
    """

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


PARTS = 0.25, 0.5, 0.75  # parts of a job's results after which its best result is looked at
FEW = 8  # a job with fewer results has not shown yet what may be gained


@dataclass(frozen=True, slots=True)
class Prospect:
    """What is expected of a job. Results are in units of the metric where all jobs have the same
    one; else of how far a job's best result is above its median trial.
    """

    job: str
    best: float | None = None  # its best result so far, larger is better; None: too few results
    regret: float = 0.0  # how much better it may become, by its weight
    spent_gpu_s: float = 0.0  # GPU-seconds that it has had

    def regret_after(self, gpu_s: float) -> float:
        """Return the regret that is expected after so many GPU-seconds more."""
        return self.regret * self.spent_gpu_s / (self.spent_gpu_s + gpu_s)


def prospects(
    jobs: Sequence[PlannedJob], views: Mapping[str, View], spent: Mapping[str, float]
) -> list[Prospect]:
    """Return what is expected of each job, or the largest regret seen; `spent`: its GPU-seconds."""
    alike = len({(job.metric, job.mode) for job in jobs}) == 1
    seen = [_prospect(job, views[job.id], spent.get(job.id, 0.0), alike=alike) for job in jobs]
    most = max((prospect.regret for prospect in seen if prospect.best is not None), default=1.0)
    return [
        Prospect(p.job, None, most, max(1.0, p.spent_gpu_s)) if p.best is None else p for p in seen
    ]


def _prospect(job: PlannedJob, view: View, spent_gpu_s: float, *, alike: bool) -> Prospect:
    sign = 1.0 if view.mode == "max" else -1.0
    results = [
        value
        for _, value in sorted(
            (report.at_s, sign * report.metric)
            for trial in view.trials.values()
            for report in trial.history
            if report.metric is not None
        )
    ]
    if len(results) < FEW or not spent_gpu_s:
        return Prospect(job.id, spent_gpu_s=spent_gpu_s)
    best, unit = max(results), 1.0
    if not alike:  # how far the best result is above the best of the median trial; 1 if it is not
        made = ([r.metric for r in t.history if r.metric is not None] for t in view.trials.values())
        bests = [max(sign * metric for metric in metrics) for metrics in made if metrics]
        unit = best - statistics.median(bests) or 1.0
    regrets = [(best - max(results[: int(len(results) * part)])) / (1 / part - 1) for part in PARTS]
    regret = job.weight * statistics.fmean(regrets) / unit
    return Prospect(job.id, best / unit, regret, spent_gpu_s)


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
    """Give step after step to the job that will have had least for its weight, or the heavier."""
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

    def largest_gap(offers: Sequence[Offer]) -> str | None:
        """Choose the largest gap; among equals, the job that has least yet."""
        best = max(offers, key=lambda offer: (offer.gap, -shares[offer.job]), default=None)
        return None if best is None else best.job

    fair, last = fair_shares(gpus, claims), by.last
    shares = {c.job: int(fair[c.job] * FLOOR / c.least) * c.least for c in claims}
    while True:
        able = {offer.job for offer in _able(gpus, claims, shares) if offer.open}
        offers_left = [_offer(job, shares[job.job], by) for job in by.jobs if job.job in able]
        job = greedy(offers_left, largest_gap)
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


def _able(gpus: int, claims: Sequence[Claim], shares: Mapping[str, int]) -> list[Offer]:
    left = gpus - sum(shares.values())
    return [Offer(c.job, open=c.least <= min(left, c.cap - shares[c.job])) for c in claims]


def _least(claims: Sequence[Claim], job: str) -> int:
    return next(claim.least for claim in claims if claim.job == job)
