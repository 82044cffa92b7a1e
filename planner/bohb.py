"""`bohb`: ASHA whose configurations come from TPE, a model of earlier ones as in BOHB (Falkner et
al., ICML '18; its section 3.2 stops trials by Hyperband's brackets), on a fixed cluster.

The models are Optuna's multivariate tree-structured Parzen estimators on the unit cube, one for
each number of reports at which trials are compared. With d parameters a model needs d + 3 results;
the one with the most reports that has them is used. It is made anew for each draw, with a seed of
its own, so that a draw follows from its number and from the reports.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import compress
from typing import Any

from seerd.planner.asha import AtRandom, asha
from seerd.planner.chance import Chances, Evidence, is_weighed, learned, likely_draw
from seerd.planner.model import Impossible, Mode, NeedsPackageError, Outline, Policy, Problem
from seerd.planner.parameter import Config, Key, Parameter, Value, key_of
from seerd.planner.rungs import Arrival
from seerd.planner.space import Space

AT_RANDOM = 1 / 3  # the share of configurations that are drawn at random: rho of the paper

QUANTILE = 0.15  # the share of the results that count as good: q of the paper

# most results, the latest ones, that a model is made from, which takes time for each
MODELLED = 1000

ASKED = 20  # how many points are asked for until one meets the constraints

Point = Mapping[str, float]  # the share (0 to 1) of a range at which a value lies, or its index


def nearest(config: Config, rows: Sequence[Config], space: Space) -> Config:
    """Return the row with the least distance; choices that differ, or only one has, count as 1."""
    return min(
        rows,
        key=lambda row: sum(
            _apart(p, config.get(p.name), row.get(p.name)) ** 2 for p in space.parameters
        ),
    )


def _apart(parameter: Parameter, one: Value | None, other: Value | None) -> float:
    if parameter.choices or one is None or other is None:
        return float(one != other)
    return abs(parameter.share(one) - parameter.share(other))


def _config(point: Point, space: Space) -> Config:
    return {
        p.name: p.choices[int(v)] if p.choices else p.at(float(v))
        for p in space.parameters
        if (v := point.get(p.name)) is not None
    }


@dataclass(frozen=True, slots=True)
class Observed:
    """Configurations and their results after one number of reports."""

    # points and their metrics; one without a metric is worse than all others
    results: Sequence[tuple[Point, float | None]]
    pending: Sequence[Point] = ()  # points that have no result yet


def suggest(
    space: Space,
    observed: Observed,
    mode: Mode,
    seed: int,
    chances: Chances | None = None,
) -> Point | None:
    """Ask Optuna for a promising point; None if none of `ASKED` meets the constraints and is likely
    enough to train.
    """
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of new features
            study = _study(space, observed, mode, seed)
            asked = (_asked(study.ask(), space) for _ in range(ASKED))
            fits = (point for point in asked if space.allows(_config(point, space)))
            if chances is not None:
                fits = (p for p in fits if chances.is_likely(_config(p, space)))
            return next(fits, None)
    finally:
        optuna.logging.set_verbosity(verbosity)


def _study(space: Space, observed: Observed, mode: Mode, seed: int) -> Any:
    """Make an Optuna study that knows what was observed."""
    import optuna

    distributions: dict[str, Any] = {
        p.name: optuna.distributions.CategoricalDistribution(range(len(p.choices)))
        if p.choices
        else optuna.distributions.FloatDistribution(0.0, 1.0)
        for p in space.parameters
    }

    def trial(point: Point, state: optuna.trial.TrialState, value: float | None = None) -> Any:
        of_point = {name: distributions[name] for name in point}
        return optuna.trial.create_trial(
            params=dict(point), distributions=of_point, state=state, value=value
        )

    results = sum(metric is not None for _, metric in observed.results)
    good = _good(len(space.parameters), results)
    states, worst = optuna.trial.TrialState, float("-inf") if mode == "max" else float("inf")
    sampler = optuna.samplers.TPESampler(
        n_startup_trials=1,
        multivariate=True,
        group=any(parameter.when for parameter in space.parameters),
        constant_liar=True,
        gamma=lambda results: min(results, good),
        seed=seed,
    )
    direction = "maximize" if mode == "max" else "minimize"
    study = optuna.create_study(sampler=sampler, direction=direction)
    for point, metric in observed.results:
        value = worst if metric is None else metric
        study.add_trial(trial(point, states.COMPLETE, value))
    for point in observed.pending:
        study.add_trial(trial(point, states.RUNNING))
    return study


def _good(parameters: int, results: int) -> int:
    """Return how many results count as good: N_b,l (equation 3), but d + 1 where few have come."""
    return min(results, max(parameters + 1, int(QUANTILE * results)))


def _asked(trial: Any, space: Space) -> Point:
    point: dict[str, float] = {}
    for parameter in space.parameters:
        if not parameter.active(_config(point, space)):
            continue
        name, choices = parameter.name, range(len(parameter.choices))
        point[name] = (
            trial.suggest_categorical(name, choices)
            if parameter.choices
            else trial.suggest_float(name, 0.0, 1.0)
        )
    return point


class FromModel(AtRandom):
    """The source: a model of the results, or chance. A trial that fails early counts as worst."""

    def __init__(self, problem: Problem) -> None:
        _require_optuna()
        super().__init__(problem)
        self._problem = problem
        self._space = problem.space
        self._seed = problem.params.seed
        self._guesses = len(problem.params.start)
        self._added = {number for number, _ in problem.added}
        self._table = [(row, key_of(row)) for row in problem.space.table]
        self._tried: Counter[Key] = Counter()
        self._results: dict[int, dict[str, float | None]] = {}
        self._points: dict[str, Point] = {}
        self._pending: set[str] = set()
        self._failed: set[str] = set()
        self._configs: dict[str, Config] = {}

    def draw(self, number: int, mode: Mode) -> Config:
        """Draw from the model with the most reports that has enough results, or at random."""
        config, reports = self._draws[number], self.modelled_at()
        if number in self._added:
            return config
        rng, chances = random.Random(f"{self._seed} {number}"), self._chances(number)
        if number >= self._guesses:
            config = likely_draw(self._problem, number, chances)
            if rng.random() >= AT_RANDOM and reports is not None:
                seed = random.Random(f"{self._seed} {reports} {number}").getrandbits(32)
                point = suggest(self._space, self.known(reports), mode, seed, chances)
                config = config if point is None else _config(point, self._space)
        if not self._table:
            return config
        counts = Counter(key for _, key in self._table)
        rounds = min(self._tried[key] // n for key, n in counts.items())
        left = {key for key, n in counts.items() if self._tried[key] < n * (rounds + 1)}
        rows = [row for row, key in self._table if key in left]  # those that fewest trials have had
        if chances is not None:
            rows = list(compress(rows, chances.likely(rows)))
        return nearest(config, rows, self._space) if self._space.parameters else rng.choice(rows)

    def drew(self, trial: str, config: Config) -> None:
        """Note that a trial is pending; the model knows nothing of one outside of the space."""
        self._tried[key_of(config)] += 1
        if _fits(config, self._space):
            self._points[trial] = {
                p.name: p.place(v) if p.choices else p.share(v)
                for p in self._space.parameters
                if (v := config.get(p.name)) is not None
            }
            self._configs[trial] = config
            self._pending.add(trial)

    def learn(self, arrivals: Sequence[Arrival], lost: Sequence[str]) -> None:
        """Note results, by the number of reports after which they were made, in all brackets."""
        for arrival in arrivals:
            trial = arrival.job.trial
            if trial in self._points:
                self._results.setdefault(arrival.job.until, {})[trial] = arrival.metric
                self._pending.discard(trial)
        self._failed |= self._pending.intersection(lost)
        self._pending.difference_update(lost)

    def _chances(self, number: int) -> Chances | None:
        """Return what is known of what can be trained; None: nothing, or this draw is made as if
        nothing had failed.
        """
        at_rungs = [result for results in self._results.values() for result in results.items()]
        failed = self._failed | {trial for trial, metric in at_rungs if metric is None}
        if not failed or not is_weighed(self._problem, number):
            return None
        known = sorted(failed | {trial for trial, _ in at_rungs})
        return learned(self._problem, [Evidence(self._configs[t], t in failed) for t in known])

    def modelled_at(self) -> int | None:
        """Return the most reports with enough finite results for a model, or None."""
        enough = len(self._space.parameters) + 3
        epochs = [
            reports
            for reports, results in self._results.items()
            if sum(metric is not None for metric in results.values()) >= enough > 3
        ]
        return max(epochs, default=None)

    def known(self, reports: int) -> Observed:
        """Return results and pending points at this number of reports, by the trials' ids."""
        results = dict.fromkeys(self._failed) | self._results[reports]
        latest = sorted(results)[-MODELLED:]
        return Observed(
            [(self._points[trial], results[trial]) for trial in latest],
            [self._points[trial] for trial in sorted(self._pending)],
        )


def _fits(config: Config, space: Space) -> bool:
    for parameter in space.parameters:
        if parameter.name not in config:
            fits = not parameter.active(config)
        elif parameter.choices:
            fits = config[parameter.name] in parameter.choices
        else:
            fits = isinstance(config[parameter.name], int | float)
        if not fits:
            return False
    return True


def _require_optuna() -> None:
    """Raise `NeedsPackageError` if Optuna is missing, without an import that takes long."""
    if find_spec("optuna") is None:
        raise NeedsPackageError("the policy bohb needs Optuna", "bohb")


_BY_RUNGS = asha(FromModel)


def _outline(problem: Problem) -> Outline | Impossible:
    _require_optuna()
    return _BY_RUNGS.outline(problem)


BOHB = Policy(_outline, _BY_RUNGS.plan)
