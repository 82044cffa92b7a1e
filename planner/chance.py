"""How likely it is that a configuration can be trained, by those that could not: their trials have
crashed or hung by their own fault, or their last metric is not finite or violates a constraint.

The process of `surrogate`, over configurations alone and fitted by itself, learns -1 from each of
these and 1 from each trial that has come further than half of them had; one that has not says
little. A configuration is drawn if the chance is `ENOUGH` where the process is right, and the more
readily the less it knows of it (`HOPE`). One draw in `ANYWAY` is made as if nothing had failed:
what stood in the way may be gone.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from seerd.planner.draws import draws
from seerd.planner.model import Problem, TrialView
from seerd.planner.parameter import Config
from seerd.planner.surrogate import (
    AGAIN,
    USUAL,
    Floats,
    Kernel,
    Model,
    axes,
    candidates,
    one_thread,
    points_of,
)

ENOUGH = 0.8
LEAST = 2 * ENOUGH - 1  # the same where 1 can be trained and -1 cannot
HOPE = 0.6  # standard deviations on that scale
ANYWAY = 20
LIKELIEST = 0.05  # the share of draws that is likely enough even if none is
MOST = 60  # the newest trials that count, of those that have failed and of the others
UNSURE = 1.0  # variance of what a trial says that has not come as far as others that failed


class Evidence(NamedTuple):
    """What one trial says of its configuration."""

    config: Config
    failed: bool
    sure: bool = True


def evidence_of(trials: Sequence[TrialView]) -> list[Evidence]:
    """Return what trials say that have reported or failed, in their order."""
    judged = [(trial, has_failed(trial)) for trial in trials if trial.reports or trial.failing]
    came = _came(trials)
    return [Evidence(t.config, failed, failed or t.reports > came) for t, failed in judged]


def has_failed(trial: TrialView) -> bool:
    """Return whether a trial says that its configuration cannot be trained."""
    return trial.failing or (trial.reports > 0 and trial.metric is None)


def _came(trials: Sequence[TrialView]) -> float:
    """Return to how many reports with a finite metric half of those have come that have failed."""
    histories = [trial.history for trial in trials if has_failed(trial)]
    finite = ([r.reports for r in reports if r.metric is not None] for reports in histories)
    return median(max(reports, default=0) for reports in finite) if histories else 0


@dataclass(frozen=True, slots=True)
class Chances:
    """What is known of which configurations can be trained."""

    problem: Problem
    model: Model
    kernel: Kernel

    def likely(self, configs: Sequence[Config], likeliest: float = LIKELIEST) -> NDArray[np.bool_]:
        """Return which configurations are likely enough: at least a share `likeliest` of them."""
        if not configs:
            return np.zeros(0, dtype=bool)
        hoped = self._hoped(configs)
        return np.asarray(hoped >= min(LEAST, float(np.quantile(hoped, 1 - likeliest))))

    def is_likely(self, config: Config) -> bool:
        """Return whether a configuration is likely enough, whatever others are."""
        return bool(self._hoped([config])[0] >= LEAST)

    def _hoped(self, configs: Sequence[Config]) -> Floats:
        with one_thread():
            points = points_of(axes(self.problem), configs)
            mean, deviation = self.model.predict(self.kernel, points)
        # the part of the variance that other configurations could tell of
        shared = np.sqrt(np.maximum(deviation**2 - (1 - self.kernel.amplitude), 0.0))
        return np.asarray(mean + HOPE * shared)

    def doubtful(self, trials: Sequence[TrialView]) -> set[str]:
        """Return the trials that have reported and will probably fail before they have come as far
        as others that did; half of those of which it is not known may go on.
        """
        came = _came(trials)
        open_ = [t for t in trials if t.status == "live" and not has_failed(t)]
        open_ = [trial for trial in open_ if 0 < trial.reports <= came]
        likely = self.likely([trial.config for trial in open_], 0.5)
        return {trial.id for trial, is_likely in zip(open_, likely, strict=True) if not is_likely}


def learned(
    problem: Problem, evidence: Iterable[Evidence], kernel: Kernel | None = None
) -> Chances | None:
    """Learn from trials; None: none has failed. `kernel`: the one that was fitted last."""
    pieces = list(evidence)
    failed, ran = ([e for e in pieces if e.failed is kind][-MOST:] for kind in (True, False))
    every_axis, used = axes(problem), [*failed, *ran]
    if not failed or not every_axis:
        return None
    with one_thread():
        alone = np.zeros(len(used))
        model = Model.of(
            points_of(every_axis, [e.config for e in used]),
            np.arange(len(used)),
            alone,
            np.array([-1.0 if e.failed else 1.0 for e in used]),
        )
        model = replace(model, unsure=np.array([0.0 if e.sure else UNSURE for e in used]))
        if kernel is None or len(kernel.scales) != len(every_axis):
            kernel = Kernel(0, [USUAL] * len(every_axis))
        if not 0 < kernel.results <= len(pieces) < AGAIN * kernel.results + 2:
            kernel = msgspec.structs.replace(model.fitted(kernel), results=len(pieces))
    return Chances(problem, model, kernel)


def is_weighed(problem: Problem, number: int) -> bool:
    """Return whether draw `number` is one that must be likely enough."""
    return random.Random(f"{problem.params.seed} {number} anyway").random() >= 1 / ANYWAY


def likely_draw(problem: Problem, number: int, chances: Chances | None) -> Config:
    """Return draw `number`, or where it is not likely enough the next of its candidates that is."""
    drawn = [draws(problem)[number]]
    if chances is None or not is_weighed(problem, number):
        return drawn[0]
    drawn += candidates(problem, number)
    return drawn[int(np.argmax(chances.likely(drawn)))]
