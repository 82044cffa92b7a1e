"""What to try next, from how a run went; each piece says what it was seen from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seerd.core.state import State
from seerd.planner.parameter import Parameter
from seerd.planner.ranking import standing
from seerd.telling.page.importance import Importance
from seerd.telling.page.tables import BilledPart, Ranked, share_of

EDGE = 0.05  # how near to an end of its range a value is at the edge, as a share of the range
FEW = 4
MUCH = 0.25


def advice(
    state: State,
    order: Sequence[Ranked],
    parameters: Sequence[Parameter],
    measured: Sequence[Importance],
    shares: Sequence[BilledPart],
) -> list[str]:
    """Return pieces of advice on the trials of one job, maybe none; `order` has the best first."""
    best = [one for one in order if one.metric is not None][:FEW]
    if not best:
        return []
    return [
        *_at_edges(best, parameters),
        *_still_better(state, best[0]),
        *_without_effect(measured),
        *costly(shares),
    ]


def _at_edges(best: Sequence[Ranked], parameters: Sequence[Parameter]) -> Iterator[str]:
    for parameter in (one for one in parameters if not one.choices):
        shares = [share_of(parameter, one.trial.config) for one in best]
        for end, name in ((0.0, "lower"), (1.0, "upper")):
            near = [share for share in shares if share is not None and abs(share - end) <= EDGE]
            if len(near) * 2 > len(best):
                yield (
                    f"{len(near)} of the best {len(best)} trials have {parameter.name} at the "
                    f"{name} end of its range: widen it there."
                )


def _still_better(state: State, winner: Ranked) -> Iterator[str]:
    history = [one for one in winner.trial.history if one.metric is not None]
    if len(history) < FEW:
        return
    mode = state.facts.goal_of(winner.trial.id).mode
    keys = [standing("", one.metric, mode) for one in history]
    if keys.index(min(keys)) == len(keys) - 1:
        yield (
            f"{winner.trial.id} had its best report last, after {history[-1].reports} reports: it "
            "might have become better with more time. Try a longer deadline or fewer trials."
        )


def _without_effect(measured: Sequence[Importance]) -> Iterator[str]:
    names = [one.name for one in measured if not one.is_told and one.mean < EDGE]
    if names and any(one.is_told for one in measured):
        verb = "explains" if len(names) == 1 else "explain"
        yield (
            f"{', '.join(names)} {verb} no more of the differences than chance would: a fixed "
            "value leaves more trials for the others."
        )


def costly(shares: Sequence[BilledPart]) -> Iterator[str]:
    """Yield parts of the bill that are large and not training."""
    total = sum(one.gpu_s for one in shares)
    for one in shares:
        if one.what != "training" and total and one.gpu_s / total > MUCH:
            yield f"{one.gpu_s / total:.0%} of what was billed was {one.what}, not training."
