"""Which configuration to try next, learned from those that were tried: a Gaussian process over
configurations and rungs. Linear algebra runs on one thread, so that a proposal is the same on any
number of cores.

What is modelled is a trial's normal score among all trials that have come to the same rung. Those
that come to a higher rung were chosen, so their scores are shifted and scaled to what their scores
one rung below lead to expect. The covariance of trials i and j at rungs l and m is

(amplitude * matern(x_i, x_j) + (1 - amplitude) * [i = j]) * memory^|l - m| + noise

with a Matern kernel of smoothness 5/2 (Rasmussen and Williams, Gaussian Processes for Machine
Learning, 2006, equation 4.17). A number counts as its place among random draws, so that no scale
must be known; a missing one lies in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from itertools import compress, product
from statistics import NormalDist
from typing import cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from seerd.planner.caching import per_problem
from seerd.planner.draws import draws
from seerd.planner.memory import Count
from seerd.planner.model import Problem
from seerd.planner.parameter import Config, Value, key_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CANDIDATES = 400  # how many random draws a proposal is chosen from
APART = 7  # the candidates of a draw begin so many numbers after those of the draw before it
BEFORE = 1000  # draws that are never candidates: the first configurations are random ones
LANDMARKS = 300  # how many random draws a value is placed among
MOST = 300  # most results that are used; of more, those from higher rungs and the newest
AGAIN = 1.15  # the kernel is fitted again when there are this many times as many results
PASSES = 2
SHORTEST, USUAL, LONGEST = 0.15, 1.5, 12.0  # length scales, as shares of a parameter's range
OTHER = 0.7  # distance of two choices, as a share of a range, divided by the square root of two
# hyperparameters of the kernel that are tried when it is fitted, beside the length scales
TRIED = (
    *(("amplitude", value) for value in (0.3, 0.5, 0.7, 0.9)),
    *(("memory", value) for value in (0.5, 0.7, 0.85, 0.95)),
    *(("noise", value) for value in (0.03, 0.1, 0.3)),
)
CARRIED = 0.85  # correlation of scores at neighbouring rungs, before anything was fitted


@dataclass(frozen=True, slots=True)
class RungResult:
    """The result of one trial at one rung."""

    # the trial's place, from 0, in the order of their requests; those of earlier runs come first
    trial: int
    rung: int  # the rung, from 0
    value: float | None  # its metric, larger is better; None: not finite


class Kernel(Struct, frozen=True, array_like=True):
    """The hyperparameters of the covariance."""

    results: Count  # how many results they were fitted to; 0: to none
    scales: list[float]  # length scale of each parameter
    amplitude: float = 0.6  # share of the variance that the configuration explains
    memory: float = CARRIED  # correlation of a trial's scores at rungs that follow each other
    noise: float = 0.1  # variance of what nothing explains

    def scaled(self, place: int, factor: float) -> Kernel:
        """Return the kernel with one length scale multiplied, within `SHORTEST` and `LONGEST`."""
        scales = list(self.scales)
        scales[place] = min(LONGEST, max(SHORTEST, scales[place] * factor))
        return replace(self, scales=scales)


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter as the model sees it."""

    name: str  # the parameter
    choices: tuple[Value, ...]  # its values if it is a choice
    landmarks: Floats  # its values in random draws, ascending, if it is a range

    def columns(self, configs: Sequence[Config]) -> list[Floats]:
        """Place configurations along this parameter: one column, or one for each choice."""
        values = [config.get(self.name) for config in configs]
        if self.choices:
            return [np.array([OTHER * (v == choice) for v in values]) for choice in self.choices]
        numbers = np.array([math.nan if v is None else float(cast("float", v)) for v in values])
        count = len(self.landmarks)
        left = np.searchsorted(self.landmarks, numbers)
        places = left + np.searchsorted(self.landmarks, numbers, side="right")
        return [np.where(np.isnan(numbers), 0.5, places / (2 * count))]


@per_problem
def axes(problem: Problem) -> tuple[Axis, ...]:
    """List the parameters that differ among random draws."""
    drawn = [draws(problem)[number] for number in range(LANDMARKS)]
    made = []
    for parameter in problem.space.parameters:
        values = [c[parameter.name] for c in drawn if c.get(parameter.name) is not None]
        if len(set(values)) <= 1:
            continue
        if parameter.choices:
            made.append(Axis(parameter.name, tuple(dict.fromkeys(values)), np.zeros(0)))
        else:
            made.append(Axis(parameter.name, (), np.sort(np.array(values, dtype=float))))
    return tuple(made)


def propose(
    problem: Problem,
    configs: Sequence[Config],
    results: Sequence[RungResult],
    number: int,
    kernel: Kernel | None,
    likely: Callable[[Sequence[Config]], NDArray[np.bool_]] | None = None,
) -> tuple[Config | None, Kernel | None]:
    """Choose the configuration of draw `number`; return it and the kernel that it was chosen with.

    It is that of the random draws whose score at the highest rung is the largest in one sample from
    the posterior (Thompson sampling). None: there is nothing to learn from.

    configs  those of earlier runs' trials, then those that were tried or are about to be, in order
    kernel   the one that the last call has returned
    likely   says which configurations are likely enough to train; None: all are
    """
    every_axis = axes(problem)
    tried = {key_of(config) for config in configs[len(problem.params.earlier) :]}
    fresh = [config for config in candidates(problem, number) if key_of(config) not in tried]
    if likely is not None:
        fresh = list(compress(fresh, likely(fresh)))
    newest = sorted(results, key=lambda result: (-result.rung, -result.trial))[:MOST]
    scores = scored(sorted(newest, key=lambda result: (result.rung, result.trial)))
    if not every_axis or not fresh or not scores:
        return None, kernel
    with one_thread():
        points = points_of(every_axis, [configs[trial] for trial, _, _ in scores])
        model = Model.of(
            points,
            np.array([trial for trial, _, _ in scores], dtype=np.int64),
            np.array([rung for _, rung, _ in scores], dtype=float),
            np.array([score for _, _, score in scores]),
        )
        usual = Kernel(0, [USUAL] * len(every_axis))
        kernel = kernel if kernel is not None and len(kernel.scales) == len(every_axis) else usual
        if not 0 < kernel.results <= len(results) < AGAIN * kernel.results + 2:
            kernel = replace(model.fitted(kernel), results=len(results))
        mean, deviation = model.predict(kernel, points_of(every_axis, fresh))
        noise = np.random.default_rng([problem.params.seed, number]).standard_normal(len(fresh))
    return fresh[int(np.argmax(mean + deviation * noise))], kernel


def candidates(problem: Problem, number: int) -> list[Config]:
    """Return the random draws that the configuration of draw `number` is chosen from."""
    first = BEFORE + APART * number
    return [draws(problem)[n] for n in range(first, first + CANDIDATES)]


def scored(results: Iterable[RungResult]) -> list[tuple[int, int, float]]:
    """Return (trial, rung, score) for each result, lowest rungs first; one alone says nothing."""
    by_rung: dict[int, list[RungResult]] = {}
    for result in results:
        by_rung.setdefault(result.rung, []).append(result)
    scores_of_all: list[tuple[int, int, float]] = []
    below: dict[int, float] = {}
    for rung in sorted(by_rung):
        here = by_rung[rung]
        if len(here) < 2:
            continue
        scores = normal_scores([-math.inf if r.value is None else r.value for r in here])
        if below:
            earlier = np.array([below.get(r.trial, 0.0) for r in here])
            spread = math.sqrt(CARRIED**2 * float(np.var(earlier)) + 1 - CARRIED**2)
            scores = CARRIED * float(np.mean(earlier)) + spread * scores
        below = {r.trial: float(score) for r, score in zip(here, scores, strict=True)}
        scores_of_all += [(r.trial, rung, below[r.trial]) for r in here]
    return scores_of_all


def normal_scores(values: Sequence[float]) -> Floats:
    """Return the normal score of each value by its rank (Blom); equal values share theirs."""
    numbers = np.array(values)
    order = np.argsort(numbers, kind="stable")
    _, same = np.unique(numbers, return_inverse=True)
    scores = np.empty(len(numbers))
    inverse = NormalDist().inv_cdf
    scores[order] = [inverse((i + 0.625) / (len(numbers) + 0.25)) for i in range(len(numbers))]
    return np.asarray((np.bincount(same, weights=scores) / np.bincount(same))[same])


def points_of(every_axis: Sequence[Axis], configs: Sequence[Config]) -> list[Floats]:
    """Place configurations: shape (configs, columns) for each parameter."""
    return [np.stack(axis.columns(configs), axis=1) for axis in every_axis]


def _apart(some: Floats, others: Floats) -> Floats:
    squares = np.zeros((len(some), len(others)))
    for left, right in zip(some.T, others.T, strict=True):
        squares += np.square(left[:, None] - right)
    return squares


def _matern(squared: Floats) -> Floats:
    r = np.sqrt(5 * squared + 1e-12)
    return np.asarray((1 + r + r * r / 3) * np.exp(-r))


@dataclass(frozen=True, slots=True)
class Model:
    """Results, ready for the process. Arrays have one entry for each result."""

    points: list[Floats]  # for each parameter the configurations, of shape (results, columns)
    apart: list[Floats]  # squared distances of the results' configurations, along each parameter
    trials: Ints
    rungs: Floats
    scores: Floats
    unsure: Floats  # variance that one has beside the kernel's noise

    @classmethod
    def of(cls, points: list[Floats], trials: Ints, rungs: Floats, scores: Floats) -> Model:
        """Make the model of these results."""
        apart = [_apart(column, column) for column in points]
        return cls(points, apart, trials, rungs, scores, np.zeros(len(scores)))

    def covariance(self, kernel: Kernel) -> Floats:
        """Return the covariance of the results."""
        by_config = _matern(
            sum((d / s**2 for d, s in zip(self.apart, kernel.scales, strict=True)), np.zeros(()))
        )
        same = self.trials[:, None] == self.trials[None, :]
        shared = kernel.amplitude * by_config + (1 - kernel.amplitude) * same
        gap = np.abs(self.rungs[:, None] - self.rungs[None, :])
        noise = np.diag(kernel.noise + self.unsure)
        return np.asarray(shared * kernel.memory**gap + noise)

    def unlikely(self, kernel: Kernel) -> float:
        """Return the negative logarithm of the posterior density of the hyperparameters."""
        root = np.linalg.cholesky(self.covariance(kernel))
        white = np.linalg.solve(root, self.scores - self.scores.mean())
        prior = sum(math.log(scale / USUAL) ** 2 for scale in kernel.scales) / 2
        prior += ((kernel.amplitude - 0.6) / 0.3) ** 2 / 2
        return float(white @ white) / 2 + float(np.log(np.diag(root)).sum()) + prior

    def fitted(self, kernel: Kernel) -> Kernel:
        """Improve the hyperparameters one at a time, as long as it is worth it."""
        changes: list[Callable[[Kernel], Kernel]] = [
            partial(Kernel.scaled, place=place, factor=factor)
            for place, factor in product(range(len(kernel.scales)), (0.5, 2.0))
        ]
        changes += [partial(replace, **{name: value}) for name, value in TRIED]
        best = self.unlikely(kernel)
        for _ in range(PASSES):
            before = best
            for change in changes:
                other = change(kernel)
                unlikely = best if other == kernel else self.unlikely(other)
                if unlikely < best:
                    kernel, best = other, unlikely
            if before - best < 0.1:
                break
        return kernel

    def predict(self, kernel: Kernel, points: list[Floats]) -> tuple[Floats, Floats]:
        """Return mean and deviation of the scores of new points at the highest rung."""
        pairs = zip(points, self.points, kernel.scales, strict=True)
        distances = sum((_apart(new, old) / s**2 for new, old, s in pairs), np.zeros(()))
        gap = self.rungs.max() - self.rungs
        cross = kernel.amplitude * _matern(distances) * kernel.memory**gap
        root = np.linalg.cholesky(self.covariance(kernel))
        mean = self.scores.mean()
        weights = np.linalg.solve(root.T, np.linalg.solve(root, self.scores - mean))
        solved = np.linalg.solve(root, cross.T)
        variance = np.maximum(1.0 - (solved * solved).sum(axis=0), 1e-6)
        return np.asarray(mean + cross @ weights), np.asarray(np.sqrt(variance))


_controller = cache(ThreadpoolController)


def one_thread() -> AbstractContextManager[object]:
    """Run linear algebra on one thread meanwhile, so that it is the same on any machine."""
    limited: AbstractContextManager[object] = _controller().limit(limits=1, user_api="blas")
    return limited
