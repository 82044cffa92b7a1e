"""BOHB: successive halving whose configurations come from a model of earlier ones (Falkner et al., ICML '18), on a fixed cluster.

The one rule: who goes on is decided by ASHA's rungs and brackets; only where configurations come from is different.

The model is Optuna's multivariate tree-structured Parzen estimator, one for each number of reports at which trials are compared. A
configuration comes from the one with the most reports that has d + 3 results, d being the number of parameters; one in three is drawn
at random, so that the model cannot shut out what it has not seen. Optuna is asked on the unit cube: how a share of a range becomes
a value is `planner.space`'s business.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

from planner.asha import Asha
from planner.model import Impossible, Mode, NeedsPackageError, Outline, Plan, Problem, View
from planner.rungs import Arrival
from planner.space import Config, Parameter, Space, Value

AT_RANDOM = 1 / 3
"""rho of the paper."""

QUANTILE = 0.15
"""q of the paper: so many of the results count as good."""

Point = Mapping[str, Value]
"""A configuration as the model knows it: a share of the range for each parameter that has one, else the choice's number."""


def _modelled(space: Space) -> Space:
    """Only with parameters that every row of the table has: recorded configurations may have come from several spaces."""
    everywhere = (p for p in space.parameters if all(p.name in row for row in space.table))
    return replace(space, parameters=tuple(everywhere))


def nearest(config: Config, rows: Sequence[Config], space: Space) -> Config:
    """The row most like a configuration; of equals the first. Ranges count by their share (log scale if `log`), other choices as 1 apart."""
    return min(rows, key=lambda row: sum(_apart(p, config[p.name], row[p.name]) ** 2 for p in space.parameters))


def _apart(parameter: Parameter, one: Value, other: Value) -> float:
    if parameter.choices:
        return float(one != other)
    return abs(parameter.share(one) - parameter.share(other))


def _point(config: Config, space: Space) -> Point:
    return {p.name: p.choices.index(v) if p.choices else p.share(v) for p in space.parameters for v in [config[p.name]]}


def _config(point: Point, space: Space) -> Config:
    return {
        p.name: p.choices[int(v)] if p.choices else p.at(float(v)) for p in space.parameters for v in [point[p.name]]
    }


def _optuna() -> Any:
    import optuna

    return optuna


def _require_optuna() -> None:
    """Without importing it, which takes longer than all of `seerd plan` may."""
    if find_spec("optuna") is None:
        raise NeedsPackageError('the policy bohb needs Optuna: pip install "seerd[bohb]"')


@contextmanager
def _quietly() -> Iterator[None]:
    """Optuna says what it does and which of its features are new; here nobody wants to know. What others set is as before afterwards."""
    logging = _optuna().logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)


def _good(parameters: int, results: int) -> int:
    """How many count as good: N_b,l of the paper, equation 3.

    At least d + 1: on a high rung there are few results, all of them good, and a model of the single best would lead away from the others.
    """
    return min(results, max(parameters + 1, int(QUANTILE * results)))


class Estimator:
    """What is known of configurations after one number of reports. `results`: how many of them have a metric."""

    def __init__(self, space: Space, mode: Mode, seed: int) -> None:
        optuna = _optuna()
        good = partial(_good, len(space.parameters))
        sampler = optuna.samplers.TPESampler(
            n_startup_trials=1, multivariate=True, constant_liar=True, gamma=good, seed=seed
        )
        direction = "maximize" if mode == "max" else "minimize"
        self._worst = float("-inf") if mode == "max" else float("inf")
        self._study = optuna.create_study(sampler=sampler, direction=direction)
        self._distributions = {parameter.name: _distribution(parameter) for parameter in space.parameters}
        self._numbers: dict[str, int] = {}
        self._asked = 0
        self.results = 0

    def suggest(self, trial: str, pending: Mapping[str, Point]) -> Point:
        """A promising point, away from those that have no result yet."""
        states = _optuna().trial.TrialState
        for name in pending.keys() - self._numbers.keys():
            self._add(name, pending[name], states.RUNNING, None)
        asked = self._study.ask(self._distributions)
        self._count(trial)
        return dict(asked.params)

    def tell(self, trial: str, point: Point, metric: float | None) -> None:
        """A trial has a result. One without a metric is worse than all others."""
        value = self._worst if metric is None else metric
        self.results += metric is not None
        if trial in self._numbers:
            self._study.tell(self._numbers.pop(trial), value)
        else:
            self._add(trial, point, _optuna().trial.TrialState.COMPLETE, value)
            del self._numbers[trial]

    def fail(self, trial: str) -> None:
        """A pending trial will have no result: worse than all others."""
        if trial in self._numbers:
            self._study.tell(self._numbers.pop(trial), self._worst)

    def forget(self, trial: str) -> None:
        """A trial is pending here no more."""
        if trial in self._numbers:
            self._study.tell(self._numbers.pop(trial), state=_optuna().trial.TrialState.FAIL)

    def _add(self, trial: str, point: Point, state: Any, value: float | None) -> None:
        made = _optuna().trial.create_trial(
            state=state, value=value, params=dict(point), distributions=self._distributions
        )
        self._study.add_trial(made)
        self._count(trial)

    def _count(self, trial: str) -> None:
        """Optuna numbers trials in the order in which it gets to know them."""
        self._numbers[trial] = self._asked
        self._asked += 1


def _distribution(parameter: Parameter) -> Any:
    distributions = _optuna().distributions
    if parameter.choices:
        return distributions.CategoricalDistribution(range(len(parameter.choices)))
    return distributions.FloatDistribution(0.0, 1.0)


class FromModel:
    """The source of configurations. A trial is pending until its first result."""

    def __init__(self, problem: Problem) -> None:
        _require_optuna()
        self._space = _modelled(problem.space)
        self._seed = problem.params.seed
        self._rng = random.Random(self._seed)
        self._untried = list(problem.space.table)
        self._estimators: dict[int, Estimator] = {}
        self._points: dict[str, Point] = {}
        self._pending: dict[str, Point] = {}

    def draw(self, trial: str) -> Config:
        """From the estimator with the most reports that knows enough, or at random."""
        estimator = self._best_estimator()
        config = self._space.sample(self._rng)
        if self._rng.random() >= AT_RANDOM and estimator is not None:
            with _quietly():
                config = _config(estimator.suggest(trial, self._pending), self._space)
        config = self._allowed(config)
        self._points[trial] = self._pending[trial] = _point(config, self._space)
        return config

    def told(self, arrivals: Sequence[Arrival], lost: Sequence[str], mode: Mode) -> None:
        """A trial that failed before its first result is worse than all others wherever it is pending."""
        with _quietly():
            for arrival in arrivals:
                self._told(arrival, mode)
            for trial in lost:
                if self._pending.pop(trial, None) is not None:
                    for estimator in self._estimators.values():
                        estimator.fail(trial)

    def _told(self, arrival: Arrival, mode: Mode) -> None:
        trial, reports = arrival.job.trial, arrival.job.until
        self._pending.pop(trial, None)
        if reports not in self._estimators:
            self._estimators[reports] = Estimator(self._space, mode, self._seed + reports)
        for at, estimator in self._estimators.items():
            if at == reports:
                estimator.tell(trial, self._points[trial], arrival.metric)
            else:
                estimator.forget(trial)

    def _best_estimator(self) -> Estimator | None:
        enough = len(self._space.parameters) + 3
        known = [reports for reports, estimator in self._estimators.items() if estimator.results >= enough > 3]
        return self._estimators[max(known)] if known else None

    def _allowed(self, config: Config) -> Config:
        """If there is a table: the nearest row that has not been tried; of all, when all have been."""
        if not self._space.table:
            return config
        self._untried = self._untried or list(self._space.table)
        known = self._space.parameters
        row = nearest(config, self._untried, self._space) if known else self._rng.choice(self._untried)
        self._untried = [other for other in self._untried if other is not row]
        return row


class Bohb:
    """ASHA with the model as its source. Raises `NeedsPackageError` if Optuna is missing."""

    def __init__(self, problem: Problem) -> None:
        self._asha = Asha(problem, FromModel(problem))

    def outline(self) -> Outline | Impossible:
        """As ASHA's."""
        return self._asha.outline()

    def plan(self, view: View) -> Plan:
        """Who runs now. Raises `ValueError` if the limits fit nothing, which `outline` tells before."""
        return self._asha.plan(view)
