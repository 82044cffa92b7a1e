"""GP-UCB: candidates of a finite set, each trained to the end, chosen by cost-aware upper bounds
(Li et al., Ease.ml, VLDB '18, section 3.2).

The one rule: a candidate is trained once, and nobody is stopped early.

The candidates are the person's guesses and the points of the grid, five values of a range. What
configurations have in common says how alike their results are, and their costs, which are seconds
per report as they were seen. The paper trains one model at a time; where several run side by side,
those on the way count as if they came to what is expected of them (Desautels, Krause and Burdick,
Parallelizing Exploration-Exploitation Tradeoffs with Gaussian Process Bandit Optimization, ICML
'12, GP-BUCB).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from seerd.planner.asha import asha
from seerd.planner.caching import per_problem
from seerd.planner.draws import added_for, draws
from seerd.planner.finite_gp import Floats, Posterior, before_results
from seerd.planner.grid import grid_points
from seerd.planner.likeness import from_configurations
from seerd.planner.memory import Memory
from seerd.planner.model import Impossible, Mode, Outline, Plan, Problem, View
from seerd.planner.protocol import Policy
from seerd.planner.ranking import metric_at
from seerd.planner.rungs import MAX_REPORTS, Arrival
from seerd.planner.space import Config, Value
from seerd.planner.surrogate import one_thread
from seerd.planner.ucb import beta, chosen, upper_bounds

MOST = 300
"""The most points of the grid that are candidates: of more, so many drawn at random."""
NOISE = 0.01
"""Variance of a result around what a candidate is worth, beside that of all results."""

SCALES = (0.5, 1.0, 2.0, 4.0)
"""Length scales between configurations, of which the one counts that makes what was seen most
likely.
"""

Key = tuple[tuple[str, Value], ...]


class FromCandidates:
    """The source of configurations: the candidate with the largest bound that has no trial.

    A trial is pending until its result; one that fails before counts as the worst result.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._candidates = candidates(problem)
        self._place = {_key(config): at for at, config in enumerate(self._candidates)}
        priors = (from_configurations(self._candidates, scale) for scale in SCALES)
        self._priors = [replace(prior, noise=NOISE) for prior in priors]
        self._at: dict[str, int] = {}
        self._results: dict[str, float | None] = {}
        self._seconds: dict[str, float] = {}

    def draw(self, number: int, mode: Mode) -> Config:
        """Choose the next candidate; guesses and what the person has added come first.

        Where all have a trial, it is a random draw.
        """
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
        if (at := self._place.get(_key(config))) is not None:
            self._at[trial] = at

    def told(self, arrivals: Sequence[Arrival], lost: Sequence[str]) -> None:
        """Note results and what they cost, and which trials have failed."""
        for arrival in arrivals:
            self._results[arrival.job.trial] = arrival.metric
            if arrival.seconds is not None:
                self._seconds[arrival.job.trial] = arrival.seconds
        self._results |= dict.fromkeys(lost)

    def _belief(self, mode: Mode) -> Posterior:
        """Make what is believed, in standard deviations of the results; larger is better."""
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
        """List the results of earlier runs for what is a candidate here too."""
        reports = _reports(self._problem)
        return [
            (self._place[key], metric_at(trial, reports))
            for trial in self._problem.params.earlier
            if (key := _key(trial.config)) in self._place
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
        """Return what is believed after these values, in standard deviations of them, their mean
        and their standard deviation.
        """
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
    """List the candidates, in an order that follows from the seed. Raises what `grid_points`
    raises.
    """
    points = grid_points(problem)
    drawn = draws(problem)
    guesses = [drawn[number] for number in range(len(problem.params.start))]
    named = [*guesses, *(config for _, config in problem.added)]
    rng = random.Random(problem.params.seed)
    shuffled = rng.sample(points, min(MOST, len(points)))
    return tuple({_key(config): config for config in [*named, *shuffled]}.values())


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


def _key(config: Config) -> Key:
    return tuple(sorted(config.items()))


_ALL = asha(FromCandidates, 1)


def _outline(problem: Problem) -> Outline | Impossible:
    return _ALL.outline(_to_the_end(problem))


def _plan(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
    return _ALL.plan(_to_the_end(problem), memory, view)


GP_UCB = Policy(_outline, _plan)
"""Raises `NoConfigurationError` if no point of the grid meets the constraints."""
