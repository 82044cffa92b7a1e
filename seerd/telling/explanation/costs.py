"""What each chapter of a run cost: the ledger's charges, cut where the next chapter begins.

Arithmetic is exact, so that chapters add up to the ledger's total. What EC2 bills beyond the end of
a charge (60 seconds at least) counts in the chapter in which it ended.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from seerd.core.ledger import Charge
from seerd.core.state import State
from seerd.telling.explanation.timeline import Timeline


@dataclass(slots=True)
class Cost:
    """What one chapter cost, or one instance in it, in GPU-seconds."""

    instance: str  # id of the instance; empty for a chapter
    gpus: int  # how many GPUs it has; for a chapter, all its instances together
    billed: Fraction = Fraction(0)  # what was billed
    held: float = 0.0  # of that, while a trial held the GPUs; the rest is idle
    starting: float = 0.0  # of `held`, until the trial trained: processes, imports, loading
    instances: tuple[Cost, ...] = ()  # of a chapter: the cost of each of its instances

    @property
    def idle(self) -> float:
        """GPU-seconds that were billed while no trial held the GPUs."""
        return max(0.0, float(self.billed) - self.held)

    @classmethod
    def of(cls, instances: Iterable[Cost]) -> Cost:
        """Sum up a chapter from its instances."""
        some = tuple(one for one in instances if one.billed or one.held)
        billed = sum((one.billed for one in some), Fraction(0))
        held, starting = sum(one.held for one in some), sum(one.starting for one in some)
        return cls("", sum(one.gpus for one in some), billed, held, starting, some)


def costs(timeline: Timeline, state: State, now_s: float) -> list[Cost]:
    """Divide what the run cost up to `now_s` (seconds since it began) between its chapters."""
    starts = [chapter.start_s for chapter in timeline.chapters]
    books: list[dict[str, Cost]] = [{} for _ in starts]
    for charge in state.ledger.charges() if starts else ():
        instance = state.fleet.instances.get(charge.instance)
        gpus = charge.gpus if instance is None else instance.gpus
        for chapter, seconds in _billed(charge, starts, now_s):
            fresh = Cost(charge.instance, gpus)
            books[chapter].setdefault(charge.instance, fresh).billed += charge.gpus * seconds
    unbilled = Cost("", 0)
    for attempt in timeline.attempts.all:
        for held in attempt.held:
            for chapter, seconds in _cut(held.since_s, held.end_s(now_s), starts):
                books[chapter].get(held.instance, unbilled).held += held.gpus * float(seconds)
            for chapter, seconds in _cut(held.since_s, attempt.trains_s(held, now_s), starts):
                books[chapter].get(held.instance, unbilled).starting += held.gpus * float(seconds)
    for one in (one for book in books for one in book.values()):
        if not state.facts.cluster.per_instance:
            one.held = float(one.billed)
        # After a restart the beginning of a charge may be corrected to later than the attempt was
        # seen to start.
        one.starting = min(one.held, one.starting)
    return [Cost.of(book.values()) for book in books]


Parts = Iterator[tuple[int, Fraction]]  # index of a chapter, and seconds in it


def _billed(charge: Charge, starts: Sequence[float], now_s: float) -> Parts:
    until_s = charge.end_s(now_s)
    lasted, least = Fraction(until_s) - Fraction(charge.since_s), Fraction(charge.minimum_s)
    yield from _cut(charge.since_s, until_s, starts)
    # What the minimum adds. The ledger counts a charge that begins after `now_s` as less than
    # nothing, and the chapters must add up to its total.
    more = (max(least, lasted) if least else lasted) - max(Fraction(0), lasted)
    if more:
        yield _chapter_of(until_s, starts), more


def _cut(since_s: float, until_s: float, starts: Sequence[float]) -> Parts:
    """Cut an interval where chapters begin; what was before the first one is part of it."""
    first, last = _chapter_of(since_s, starts), _chapter_of(until_s, starts)
    for chapter in range(first, last + 1):
        begin = Fraction(since_s if chapter == first else starts[chapter])
        end = Fraction(until_s if chapter == last else starts[chapter + 1])
        if end > begin:
            yield chapter, end - begin


def _chapter_of(at_s: float, starts: Sequence[float]) -> int:
    return max(0, bisect_right(starts, at_s) - 1)
