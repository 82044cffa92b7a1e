"""GP-UCB: candidates of a finite set (the user's guesses and the points of the grid), each trained
once and to the end, chosen by cost-aware upper bounds from a Gaussian process over them (Li et al.,
Ease.ml, VLDB '18, Algorithm 1, section 3.2). That of `surrogate` also spans rungs, and is fitted in
one piece, where this one grows by a row of a Cholesky factor with each result: O(t K) for K
candidates.

Costs are seconds per report. The paper trains one model at a time; here those under way count as if
they came to what is expected of them (Desautels, Krause and Burdick, ICML '12, GP-BUCB).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from seerd.planner.asha import AtRandom, asha
from seerd.planner.baselines import grid_points
from seerd.planner.caching import per_problem
from seerd.planner.chance import Chances, Evidence, is_weighed, learned
from seerd.planner.draws import added_for, draws
from seerd.planner.model import Mode, Policy, Problem
from seerd.planner.parameter import Config, Key, key_of
from seerd.planner.ranking import metric_at
from seerd.planner.rungs import MAX_REPORTS, Arrival
from seerd.planner.surrogate import one_thread

Floats = NDArray[np.float64]

JITTER = 1e-10  # the least noise, as a share of the largest prior variance
CERTAIN = 1e-8  # a candidate with less than this share of it left tells nothing of the others


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """What is believed before anything was observed."""

    mean: Floats  # expected result of each candidate, shape [K]
    covariance: Floats  # of the results, shape [K, K], symmetric and not negative definite
    noise: float = 0.0  # variance of a result around what the candidate is worth


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """What is believed after some results: a value, of which observing gives another one."""

    prior: Prior
    mean: Floats  # expected worth of each candidate, shape [K]
    variance: Floats  # of that worth, shape [K], not below 0
    rows: Floats  # rows of the Cholesky factor, one for each result, shape [t, K]
    # sum of the squares of how far results were from what was expected, in standard deviations:
    # about t where the prior is right
    misfit: float = 0.0
    evidence: float = 0.0  # logarithm of the results' likelihood under the prior, up to a constant

    @property
    def deviation(self) -> Floats:
        """Standard deviation of each candidate's worth, shape [K]."""
        return np.sqrt(self.variance)

    def observed(self, candidate: int, result: float) -> Posterior:
        """Return what is believed after one more result of this candidate, by index."""
        prior = self.prior
        largest = float(np.max(np.diag(prior.covariance)))
        before = float(self.variance[candidate])
        if before <= CERTAIN * largest:
            return self
        expected = before + max(prior.noise, JITTER * largest)
        covariance = prior.covariance[candidate] - self.rows[:, candidate] @ self.rows
        row = covariance / np.sqrt(expected)
        surprise = (result - self.mean[candidate]) / np.sqrt(expected)
        return Posterior(
            prior,
            self.mean + surprise * row,
            np.maximum(self.variance - row**2, 0.0),
            np.vstack((self.rows, row)),
            self.misfit + float(surprise) ** 2,
            self.evidence - 0.5 * (float(surprise) ** 2 + math.log(expected)),
        )


def before_results(prior: Prior) -> Posterior:
    """Return what is believed before the first result."""
    size = len(prior.mean)
    variance = np.maximum(np.diag(prior.covariance), 0.0)
    return Posterior(prior, np.array(prior.mean, dtype=float), variance, np.zeros((0, size)))


def from_configurations(configs: Sequence[Config], scale: float, noise: float = 0.0) -> Prior:
    """Guess a prior with mean 0 and variance 1: candidates are the more alike, the more of their
    values they share; the paper leaves this to standard kernels. Numbers are compared by their
    rank. `scale`: length scale, as a share of the distance of two that share no value.
    """
    names = sorted({name for config in configs for name in config})
    apart = sum((_apart([c.get(name) for c in configs]) for name in names), np.zeros(()))
    apart = np.broadcast_to(apart, (len(configs), len(configs))) / max(1, len(names))
    return Prior(np.zeros(len(configs)), np.asarray(np.exp(-(apart / scale**2) / 2)), noise)


def _apart(values: Sequence[object]) -> Floats:
    """Square the distance of every two values of one parameter, from 0 to 1, shape [K, K]."""
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in values]
    if all(numbers):
        levels, places = np.unique(np.array(values, dtype=float), return_inverse=True)
        shares = places / max(1, len(levels) - 1)
        return np.asarray((shares[:, None] - shares[None, :]) ** 2)
    return np.array([[float(value != other) for other in values] for value in values])


DELTA = 0.1  # the regret bounds of the paper hold with a probability of 1 - DELTA
MOST = 300  # most points of the grid that are candidates: of more, so many drawn at random
NOISE = 0.01  # variance of a result around a candidate's worth, as a share of that of all results
SCALES = (0.5, 1.0, 2.0, 4.0)
"""Length scales between configurations; the one under which the results are likeliest counts."""


def beta(step: int, candidates: int, *, jobs: int = 1, dearest: float = 1.0) -> float:
    """Compute beta_t = 2 c* log(pi^2 n K* t^2 / (6 delta)) (theorems 2 and 3; with one job theorem
    1).

    step        t, from 1: the job's own
    candidates  K*, the most that any job has
    jobs        n
    dearest     c*, the largest cost of any candidate of any job; 1 where costs do not count
    """
    return 2 * dearest * math.log(math.pi**2 * jobs * candidates * step**2 / (6 * DELTA))


def upper_bounds(posterior: Posterior, beta_t: float, costs: Floats) -> Floats:
    """Compute mu + sqrt(beta_t / c) sigma for each candidate, shape [K] (section 3.2)."""
    return np.asarray(posterior.mean + np.sqrt(beta_t / costs) * posterior.deviation)


def chosen(worth: Floats, untried: NDArray[np.bool_]) -> int | None:
    """Return the untried candidate that is worth most, the first of equals, or None."""
    if not untried.any():
        return None
    return int(np.argmax(np.where(untried, worth, -np.inf)))


class FromCandidates(AtRandom):
    """The source: the candidate with the largest bound that has no trial. A trial is pending until
    its result; one that fails before counts as the worst result.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._problem = problem
        self._candidates = candidates(problem)
        self._place = {key_of(config): at for at, config in enumerate(self._candidates)}
        self._priors = [from_configurations(self._candidates, scale, NOISE) for scale in SCALES]
        self._at: dict[str, int] = {}
        self._results: dict[str, float | None] = {}
        self._seconds: dict[str, float] = {}

    def draw(self, number: int, mode: Mode) -> Config:
        """Choose the next candidate, after guesses and added ones; at random if none is left."""
        untried = np.ones(len(self._candidates), dtype=bool)
        untried[list(self._at.values())] = False
        guess = number < len(self._problem.params.start) or added_for(self._problem, number)
        if guess or not untried.any():
            return self._draws[number]
        if (chances := self._chances(number)) is not None:
            likely = untried & chances.likely(self._candidates)
            untried = likely if likely.any() else untried
        with one_thread():
            bounds = upper_bounds(self._belief(mode), *self._width(len(self._at) + 1))
        return self._candidates[chosen(bounds, untried) or 0]

    def drew(self, trial: str, config: Config) -> None:
        """Note that a candidate has a trial."""
        if (at := self._place.get(key_of(config))) is not None:
            self._at[trial] = at

    def learn(self, arrivals: Sequence[Arrival], lost: Sequence[str]) -> None:
        """Note results and what they cost, and which trials have failed."""
        for arrival in arrivals:
            self._results[arrival.job.trial] = arrival.metric
            if arrival.seconds is not None:
                self._seconds[arrival.job.trial] = arrival.seconds
        self._results |= dict.fromkeys(lost)

    def _chances(self, number: int) -> Chances | None:
        """Return what is known of what can be trained; None: nothing, or this draw is made as if
        nothing had failed.
        """
        known = sorted(self._at.keys() & self._results.keys())
        if not is_weighed(self._problem, number):
            return None
        results = [(self._candidates[self._at[trial]], self._results[trial]) for trial in known]
        return learned(self._problem, [Evidence(c, result is None) for c, result in results])

    def _belief(self, mode: Mode) -> Posterior:
        """Return the posterior in standard deviations of the results; larger is better."""
        results = [(self._at[t], self._results[t]) for t in sorted(self._at) if t in self._results]
        reports = _reports(self._problem)
        results += [
            (self._place[key], metric_at(trial, reports))
            for trial in self._problem.params.earlier
            if (key := key_of(trial.config)) in self._place
        ]
        sign = 1 if mode == "max" else -1
        finite = [sign * result for _, result in results if result is not None]
        worst = min(finite, default=0.0)
        values = [(at, worst if result is None else sign * result) for at, result in results]
        posterior = self._likeliest(values)[0]
        for trial in sorted(self._at.keys() - self._results.keys()):
            at = self._at[trial]
            posterior = posterior.observed(at, float(posterior.mean[at]))
        return posterior

    def _width(self, step: int) -> tuple[float, Floats]:
        """Return beta_t and the costs, in seconds per report, as far as they were seen."""
        size = len(self._candidates)
        logs = {
            self._at[t]: math.log(s) for t, s in self._seconds.items() if t in self._at and s > 0
        }
        if not logs:
            return beta(step, size), np.ones(size)
        posterior, middle, spread = self._likeliest(sorted(logs.items()))
        costs = np.exp(middle + spread * posterior.mean)
        return beta(step, size, dearest=float(costs.max())), costs

    def _likeliest(self, values: Sequence[tuple[int, float]]) -> tuple[Posterior, float, float]:
        """Return the likeliest posterior of the standardised values, their mean and deviation."""
        seen = np.array([value for _, value in values])
        middle = float(seen.mean()) if len(seen) else 0.0
        spread = float(seen.std()) if len(seen) and np.ptp(seen) > 0 else 1.0
        posteriors = []
        for prior in self._priors:
            posterior = before_results(prior)
            for at, value in values:
                posterior = posterior.observed(at, (value - middle) / spread)
            posteriors.append(posterior)
        return max(posteriors, key=lambda posterior: posterior.evidence), middle, spread


@per_problem
def candidates(problem: Problem) -> tuple[Config, ...]:
    """List the candidates in an order that follows from the seed. Raises as `grid_points` does."""
    points = grid_points(problem)
    drawn = draws(problem)
    guesses = [drawn[number] for number in range(len(problem.params.start))]
    named = [*guesses, *(config for _, config in problem.added)]
    rng = random.Random(problem.params.seed)
    shuffled = rng.sample(points, min(MOST, len(points)))
    by_key: dict[Key, Config] = {key_of(config): config for config in [*named, *shuffled]}
    return tuple(by_key.values())


@per_problem
def _to_the_end(problem: Problem) -> Problem:
    """Have every trial make all reports at once, and no more trials than there are candidates."""
    params, count = problem.params, len(candidates(problem))
    trials = count if params.trials is None else min(count, params.trials)
    reports = _reports(problem)
    alone = replace(params, min_reports=reports, max_reports=reports, trials=max(1, trials))
    return replace(problem, params=alone)


def _reports(problem: Problem) -> int:
    return problem.params.max_reports or MAX_REPORTS


_ALL = asha(FromCandidates, 1)


GP_UCB = Policy(
    lambda problem: _ALL.outline(_to_the_end(problem)),
    lambda problem, memory, view: _ALL.plan(_to_the_end(problem), memory, view),
)
"""Raises `NoConfigurationError` if no point of the grid meets the constraints."""
