"""How much each hyperparameter matters for the metric, how sure that is, and what to try next.

A permutation importance (Breiman, "Random forests", 2001) on held-out trials: half of how much
worse a trial's place is predicted with another trial's value (the total effect of Jansen, 1999).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seerd.core.state import State
from seerd.planner.parameter import Parameter
from seerd.planner.ranking import standing
from seerd.telling.page.drawing import missing
from seerd.telling.page.tables import Ranked, share_of

FEWEST, MOST = 12, 400  # trials that are needed, and that are looked at
TREES, FOLDS, ROUNDS, DRAWS, SEED = 40, 4, 4, 8, 0
CAPTION = (
    "How much of the differences in place between trials each hyperparameter explains, alone or "
    "with others, for trials that were held out, and one standard deviation. A bar that is not "
    "longer than its deviation cannot be told from chance."
)
ABSENT = -0.5  # the share of a parameter that a configuration does not have


@dataclass(frozen=True, slots=True)
class Importance:
    """One hyperparameter."""

    name: str
    mean: float  # share of the variance of places that it explains, alone or with others, 0 to 1
    deviation: float  # standard deviation of that, over folds and repeats

    @property
    def is_significant(self) -> bool:
        """Whether it cannot be chance."""
        return self.mean > self.deviation


def importances(order: Sequence[Ranked], parameters: Sequence[Parameter]) -> list[Importance]:
    """Measure each hyperparameter, the most important first; nothing if there are too few trials.

    Places are predicted, so that a trial that exploded counts no more than any other bad one.
    """
    known = [one for one in order if one.metric is not None]
    if len(known) < FEWEST or not parameters:
        return []
    chosen = known[:: -(-len(known) // MOST)]
    import numpy as np

    shares = [[share_of(parameter, one.trial.config) for parameter in parameters] for one in chosen]
    rows = np.array([[ABSENT if share is None else share for share in row] for row in shares])
    places = np.linspace(1.0, 0.0, len(chosen))
    left, explained = _held_out(rows, places)
    # None explains more than all together, which is what the forest foretells; and if that cannot
    # be told from chance, nothing can.
    together = 1.0 - float(left.mean())
    together = together if together > float(left.std(ddof=1)) else 0.0
    measured = [
        Importance(parameter.name, min(together, max(0.0, float(mean))), float(deviation))
        for parameter, mean, deviation in zip(
            parameters, explained.mean(axis=0), explained.std(axis=0, ddof=1), strict=True
        )
    ]
    return sorted(measured, key=lambda one: -one.mean)


def _held_out(rows: Any, places: Any) -> tuple[Any, Any]:
    """Return the share of variance that a forest does not predict for held-out trials, as [fold],
    and what each column explains there, as [fold, column].
    """
    import numpy as np

    try:
        from sklearn.ensemble import RandomForestRegressor
        from sklearn.model_selection import RepeatedKFold
    except ImportError as error:
        raise missing() from error

    draw, (count, columns) = np.random.default_rng(SEED), rows.shape
    folds = RepeatedKFold(n_splits=FOLDS, n_repeats=ROUNDS, random_state=SEED)
    lost, explained = [], []
    for seen, held in folds.split(rows):
        forest = RandomForestRegressor(TREES, min_samples_leaf=2, random_state=SEED)
        forest.fit(rows[seen], places[seen])
        asked = np.tile(rows[held], (1 + columns * DRAWS, 1, 1))
        for column in range(columns):
            other = draw.integers(count, size=(DRAWS, len(held)))
            asked[1 + column * DRAWS :][:DRAWS, :, column] = rows[other, column]
        foretold = forest.predict(asked.reshape(-1, columns)).reshape(-1, len(held))
        errors = ((foretold - places[held]) ** 2).mean(axis=1) / places.var()
        lost.append(errors[0])
        explained.append((errors[1:].reshape(columns, DRAWS).mean(axis=1) - errors[0]) / 2)
    return np.array(lost), np.array(explained)


EDGE = 0.05  # how near to an end of its range a value is at the edge, as a share of the range
FEW = 4
MUCH = 0.25


def advice(
    state: State,
    order: Sequence[Ranked],
    parameters: Sequence[Parameter],
    measured: Sequence[Importance],
    shares: Mapping[str, float],
) -> list[str]:
    """Return pieces of advice on the trials of one job, maybe none; `order` has the best first."""
    best = [one for one in order if one.metric is not None][:FEW]
    if not best:
        return []
    texts = []
    for parameter in (one for one in parameters if not one.choices):
        values = [share_of(parameter, one.trial.config) for one in best]
        for end, name in ((0.0, "lower"), (1.0, "upper")):
            near = [value for value in values if value is not None and abs(value - end) <= EDGE]
            if len(near) * 2 > len(best):
                texts.append(
                    f"{len(near)} of the best {len(best)} trials have {parameter.name} at the "
                    f"{name} end of its range: widen it there."
                )
    winner = best[0].trial
    history = [one for one in winner.history if one.metric is not None]
    keys = [standing("", one.metric, state.facts.goal_of(winner.id).mode) for one in history]
    if len(keys) >= FEW and keys.index(min(keys)) == len(keys) - 1:
        texts.append(
            f"{winner.id} had its best report last, after {history[-1].reports} reports: it "
            "might have become better with more time. Try a longer deadline or fewer trials."
        )
    names = [one.name for one in measured if not one.is_significant and one.mean < EDGE]
    if names and any(one.is_significant for one in measured):
        verb = "explains" if len(names) == 1 else "explain"
        texts.append(
            f"{', '.join(names)} {verb} no more of the differences than chance would: a fixed "
            "value leaves more trials for the others."
        )
    return [*texts, *costly(shares)]


def costly(shares: Mapping[str, float]) -> Iterator[str]:
    """Yield parts of the bill that are large and not training."""
    total = sum(shares.values())
    for what, gpu_s in shares.items():
        if what != "training" and total and gpu_s / total > MUCH:
            yield f"{gpu_s / total:.0%} of what was billed was {what}, not training."
