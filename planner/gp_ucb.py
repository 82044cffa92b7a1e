"""GP-UCB: candidates of a finite set (the user's guesses and the points of the grid), each trained
once and to the end, chosen by cost-aware upper bounds (Li et al., Ease.ml, VLDB '18, section 3.2).

Costs are seconds per report. The paper trains one model at a time; here those under way count as if
they came to what is expected of them (Desautels, Krause and Burdick, ICML '12, GP-BUCB).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seerd.planner.asha import asha
from seerd.planner.baselines import grid_points
from seerd.planner.caching import per_problem
from seerd.planner.draws import added_for, draws
from seerd.planner.finite_gp import Floats, Posterior, before_results, from_configurations
from seerd.planner.model import Mode, Policy, Problem
from seerd.planner.parameter import Config, Key, key_of
from seerd.planner.ranking import metric_at
from seerd.planner.rungs import MAX_REPORTS, Arrival
from seerd.planner.surrogate import one_thread

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


class FromCandidates:
    """The source: the candidate with the largest bound that has no trial. A trial is pending until
    its result; one that fails before counts as the worst result.
    """

    def __init__(self, problem: Problem) -> None:
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
            return draws(self._problem)[number]
        with one_thread():
            step = len(self._at) + 1
            bounds = upper_bounds(self._belief(mode), *self._width(step))
        at = chosen(bounds, untried)
        return self._candidates[0 if at is None else at]

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

    def _belief(self, mode: Mode) -> Posterior:
        """Return the posterior in standard deviations of the results; larger is better."""
        results = [(self._at[t], self._results[t]) for t in sorted(self._at) if t in self._results]
        results += self._earlier()
        sign = 1 if mode == "max" else -1
        finite = [sign * result for _, result in results if result is not None]
        worst = min(finite, default=0.0)
        values = [(at, worst if result is None else sign * result) for at, result in results]
        posterior = self._likeliest(values)[0]
        for trial in sorted(self._at.keys() - self._results.keys()):
            at = self._at[trial]
            posterior = posterior.observed(at, float(posterior.mean[at]))
        return posterior

    def _earlier(self) -> list[tuple[int, float | None]]:
        reports = _reports(self._problem)
        return [
            (self._place[key], metric_at(trial, reports))
            for trial in self._problem.params.earlier
            if (key := key_of(trial.config)) in self._place
        ]

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
