"""Placing trials on the GPUs of instances (Misra et al., RubberBand, EuroSys '21, section 4.4,
Algorithm 3). `packing` chooses the instances.

The one rule: a trial that fits an instance is never split; a larger one takes whole instances of
one size. A trial whose number of GPUs is unchanged keeps exactly its GPUs, unless a more valuable
or larger trial, or packing, needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from seerd.core.packing import Before, Demand, Home, PackingNode, choose

__all__ = ["Assignment", "Demand", "PackingNode", "Placement", "Slots", "Waiting", "place"]


@dataclass(frozen=True, slots=True)
class Slots:
    """Some GPUs of one instance."""

    node: str  # id of the instance
    gpus: tuple[int, ...]  # indices of the GPUs


Assignment = tuple[Slots, ...]
"""Where a trial runs: one element, or one for each whole instance if it spans several."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where trials go."""

    assignments: Mapping[str, Assignment]  # trial -> its GPUs
    waiting: tuple[str, ...]  # trials that do not fit, most valuable first


def place(
    demands: Sequence[Demand],
    current: Mapping[str, Assignment],
    nodes: Sequence[PackingNode],
    *,
    pack: bool = False,
) -> Placement:
    """Place the demands, given where trials are now.

    demands  most valuable first, no trial twice
    current  trial -> the GPUs that it has
    nodes    instances that can take trials
    pack     True: use as few instances as possible, so that the others can be given back

    If not all fit, the most valuable are placed, and behind them those that still find room. Moves
    are the fewest, or nearly so if sizes do not divide each other. Placing again from the result
    changes nothing.
    """
    sizes = {node.id: node.gpus for node in nodes}
    stay = _unchanged(demands, current, sizes)
    near = {
        d.trial: old[0].node
        for d in demands
        if d.trial not in stay and (old := current.get(d.trial)) and old[0].node in sizes
    }
    before = Before({trial: tuple(s.node for s in a) for trial, a in stay.items()}, near)
    homes = choose(demands, before, sorted(nodes, key=lambda node: node.id), pack=pack)
    kept = {trial: a for trial, a in stay.items() if homes.get(trial) == before.stay[trial]}
    assignments = kept | _new_slots(
        (d for d in demands if d.trial in homes and d.trial not in kept), homes, kept, sizes
    )
    return Placement(assignments, tuple(d.trial for d in demands if d.trial not in homes))


def _unchanged(
    demands: Sequence[Demand], current: Mapping[str, Assignment], sizes: Mapping[str, int]
) -> dict[str, Assignment]:
    """Return the trials that could stay, with their GPUs; of rivals the more valuable."""
    largest = max(sizes.values(), default=0)
    claimed: set[tuple[str, int]] = set()
    stay: dict[str, Assignment] = {}
    for demand in demands:
        old = current.get(demand.trial, ())
        held = {(slots.node, gpu) for slots in old for gpu in slots.gpus}
        fits = len(held) == demand.gpus and _proper(demand.gpus, old, sizes, largest)
        if fits and not held & claimed:
            stay[demand.trial] = old
            claimed |= held
    return stay


def _proper(gpus: int, old: Assignment, sizes: Mapping[str, int], largest: int) -> bool:
    """Return whether these GPUs exist and are held by the module's rule."""
    if any(gpu >= sizes.get(slots.node, 0) for slots in old for gpu in slots.gpus):
        return False
    if gpus <= largest:
        return len(old) == 1
    whole = all(len(slots.gpus) == sizes[slots.node] for slots in old)
    return whole and len({sizes[slots.node] for slots in old}) == 1


def _new_slots(
    demands: Iterable[Demand],
    homes: Mapping[str, Home],
    kept: Mapping[str, Assignment],
    sizes: Mapping[str, int],
) -> dict[str, Assignment]:
    """Choose GPUs beside those that are kept, largest trial first."""
    free = {node: set(range(gpus)) for node, gpus in sizes.items()}
    for assignment in kept.values():
        for slots in assignment:
            free[slots.node] -= set(slots.gpus)
    placed: dict[str, Assignment] = {}
    for demand in sorted(demands, key=lambda d: (-d.gpus, d.trial)):
        for node in homes[demand.trial]:
            gpus = _neighbours(free[node], min(demand.gpus, sizes[node]))
            free[node] -= set(gpus)
            placed[demand.trial] = (*placed.get(demand.trial, ()), Slots(node, gpus))
    return placed


def _neighbours(free: set[int], count: int) -> tuple[int, ...]:
    """Choose the lowest aligned run, which fast links join, else the lowest run, else free GPUs."""
    for stride in (count, 1):
        for start in range(0, max(free) + 1, stride):
            run = range(start, start + count)
            if free.issuperset(run):
                return tuple(run)
    return tuple(sorted(free)[:count])


@dataclass(slots=True)
class Waiting:
    """Wanted trials without GPUs: number of GPUs -> trials that want so many -> place in the order.
    Those to place on freed GPUs are found without looking at all of them.
    """

    _by_size: dict[int, dict[str, int]] = field(default_factory=dict)

    def __init__(self, demands: Iterable[Demand] = ()) -> None:
        self._by_size = {}
        for place, demand in enumerate(demands):
            self._by_size.setdefault(demand.gpus, {})[demand.trial] = place

    def __bool__(self) -> bool:
        return bool(self._by_size)

    def remove(self, trial: str, gpus: int) -> None:
        """Remove a trial, if it waits."""
        same = self._by_size.get(gpus, {})
        same.pop(trial, None)
        if not same:
            self._by_size.pop(gpus, None)

    def first(self, gpus: int) -> list[Demand]:
        """Return the trials that could be among the most valuable that share so many GPUs."""
        first = [
            (place, Demand(trial, size))
            for size, same in self._by_size.items()
            if size <= gpus
            for trial, place in islice(same.items(), gpus // size)
        ]
        return [demand for _, demand in sorted(first, key=lambda pair: pair[0])]

    @property
    def largest(self) -> int:
        """GPUs of the largest waiting trial, 0 if none waits."""
        return max(self._by_size, default=0)
