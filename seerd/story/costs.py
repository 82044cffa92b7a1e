"""What each chapter of a run cost: the ledger's charges, cut where the chapters meet.

The one rule: every charge is divided without a remainder, in exact arithmetic, so that the chapters add up to the ledger's total.

A charge that was billed longer than it lasted (the 60 seconds that EC2 bills at least) has the rest in the chapter in which it ended.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from seerd.core.ledger import Charge
from seerd.core.state import State
from seerd.story.chapters import Story


@dataclass(frozen=True, slots=True)
class InstanceCost:
    """What one instance cost in one chapter, in GPU-seconds.

    held      while a trial held its GPUs; what was billed beside that is idle
    starting  of that, until the trial trained: processes, imports, loading
    """

    instance: str
    gpus: int
    billed: Fraction
    held: float
    starting: float

    @property
    def idle(self) -> float:
        """Billed, and no trial held the GPUs."""
        return max(0.0, float(self.billed) - self.held)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one chapter cost, by instance."""

    instances: tuple[InstanceCost, ...]

    @property
    def billed(self) -> Fraction:
        """GPU-seconds."""
        return sum((one.billed for one in self.instances), Fraction(0))

    @property
    def idle(self) -> float:
        """GPU-seconds that were billed while no trial held the GPUs."""
        return sum(one.idle for one in self.instances)

    @property
    def starting(self) -> float:
        """GPU-seconds that trials held before they trained."""
        return sum(one.starting for one in self.instances)


def costs(story: Story, state: State, now_s: float) -> list[Cost]:
    """One for each chapter, up to `now_s` (seconds since the run began)."""
    starts = [chapter.start_s for chapter in story.chapters]
    if not starts:
        return []
    billed: list[dict[str, Fraction]] = [{} for _ in starts]
    sizes: dict[str, int] = {}
    for charge in state.ledger.charges():
        for chapter, gpu_s in _divided(charge, starts, now_s):
            billed[chapter][charge.instance] = billed[chapter].get(charge.instance, Fraction(0)) + gpu_s
        known = state.fleet.instances.get(charge.instance)
        sizes[charge.instance] = charge.gpus if known is None else known.gpus
    held, starting = _held(story, starts, now_s)
    if state.facts.cluster.billing == "held":
        held = [{name: float(gpu_s) for name, gpu_s in one.items()} for one in billed]
    return [
        Cost(
            tuple(
                _instance_cost(name, sizes[name], gpu_s, (held[i].get(name, 0.0), starting[i].get(name, 0.0)))
                for name, gpu_s in billed[i].items()
                if gpu_s or held[i].get(name)
            )
        )
        for i in range(len(starts))
    ]


def _instance_cost(name: str, gpus: int, billed: Fraction, held_and_starting: tuple[float, float]) -> InstanceCost:
    """An attempt whose beginning was told anew after a restart may have been seen to start before it is charged."""
    held, starting = held_and_starting
    return InstanceCost(name, gpus, billed, held, min(held, starting))


def _divided(charge: Charge, starts: Sequence[float], now_s: float) -> Iterator[tuple[int, Fraction]]:
    until_s = now_s if charge.until_s is None else charge.until_s
    since, until = Fraction(charge.since_s), Fraction(until_s)
    least = Fraction(charge.minimum_s) - (until - since)
    if charge.minimum_s and least > 0:
        yield _chapter_of(until_s, starts), charge.gpus * least
    if until < since:
        # It was ordered after `now_s`: the ledger counts that as less than nothing until then.
        yield _chapter_of(until_s, starts), charge.gpus * (until - since)
        return
    for chapter, seconds in _cut(since, until, starts):
        yield chapter, charge.gpus * seconds


def _cut(since: Fraction, until: Fraction, starts: Sequence[float]) -> Iterator[tuple[int, Fraction]]:
    """An interval, cut where chapters begin; the first chapter has also what was before it."""
    first, last = _chapter_of(float(since), starts), _chapter_of(float(until), starts)
    for chapter in range(first, last + 1):
        begin = since if chapter == first else Fraction(starts[chapter])
        end = until if chapter == last else Fraction(starts[chapter + 1])
        if end > begin:
            yield chapter, end - begin


def _chapter_of(at_s: float, starts: Sequence[float]) -> int:
    return max(0, bisect_right(starts, at_s) - 1)


def _held(story: Story, starts: Sequence[float], now_s: float) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """GPU-seconds for which attempts held GPUs, and of these until they trained; by chapter and instance."""
    held: list[dict[str, float]] = [{} for _ in starts]
    starting: list[dict[str, float]] = [{} for _ in starts]
    for attempt, one in story.attempts.holding():
        until_s = max(one.since_s, now_s if one.until_s is None else one.until_s)
        trains_s = until_s if attempt.training_s is None else min(max(attempt.training_s, one.since_s), until_s)
        for book, end_s in ((held, until_s), (starting, trains_s)):
            for chapter, seconds in _cut(Fraction(one.since_s), Fraction(end_s), starts):
                gpu_s = len(one.gpus) * float(seconds)
                book[chapter][one.instance] = book[chapter].get(one.instance, 0.0) + gpu_s
    return held, starting
