"""Placing trials on the GPUs of instances (Misra et al., RubberBand, EuroSys '21, section 4.4).

A trial that fits an instance is never split; a larger one takes whole instances of one size. Only
where instances come in several sizes may a trial that no instance has room for take smaller ones. A
trial whose number of GPUs is unchanged keeps exactly its GPUs, unless a more valuable or larger
trial, or packing, needs them. Which instances these are is `packing`'s.

Where a GPU has parts, all counts are of slots: slot 5 of an instance is part 1 of its GPU 1 if a
GPU has four. The slots of a trial are on one GPU, or are whole GPUs; one that grows on its GPU
keeps the slots that it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seerd.core.packing import (
    GPU,
    Before,
    Demand,
    Home,
    PackingNode,
    choose,
    gpu_nodes,
    instance_of,
    sizes_of,
)


@dataclass(frozen=True, slots=True)
class Slots:
    """Some GPUs of one instance."""

    node: str  # id of the instance
    gpus: tuple[int, ...]  # indices of the GPUs, or slots


Assignment = tuple[Slots, ...]
"""Where a trial runs: one element, or one for each whole instance if it spans several."""


def place(
    demands: Sequence[Demand],
    current: Mapping[str, Assignment],
    nodes: Sequence[PackingNode],
    *,
    pack: bool = False,
    split: bool = False,
    parts: int = 1,
) -> dict[str, Assignment]:
    """Place the demands, given where trials are now; return the GPUs of those that fit.

    demands  most valuable first, no trial twice
    current  trial -> the GPUs that it has
    nodes    instances that can take trials
    pack     True: use as few instances as possible, so that the others can be given back
    split    True: a trial that no instance has room for takes whole smaller ones of one size
    parts    how many slots a GPU has

    If not all fit, the most valuable are placed, and behind them those that still find room. Moves
    are the fewest, or nearly so if sizes do not divide each other. Placing again from the result
    changes nothing.
    """
    if parts == 1:
        return _placed(demands, current, nodes, pack=pack, split=split)
    on_gpus = {trial: _on_gpus(old, parts) for trial, old in current.items()}
    placed = _placed(demands, on_gpus, gpu_nodes(nodes, parts), pack=pack, split=split)
    return {trial: _on_instances(new, parts) for trial, new in placed.items()}


def _on_gpus(assignment: Assignment, parts: int) -> Assignment:
    """Return slots of instances as slots of their GPUs."""
    made: dict[str, list[int]] = {}
    for slots in assignment:
        for slot in slots.gpus:
            made.setdefault(f"{slots.node}{GPU}{slot // parts:04}", []).append(slot % parts)
    return tuple(Slots(node, tuple(made[node])) for node in sorted(made))


def _on_instances(assignment: Assignment, parts: int) -> Assignment:
    """Return slots of GPUs as slots of their instances."""
    made: dict[str, list[int]] = {}
    for slots in assignment:
        first = int(slots.node.partition(GPU)[2]) * parts
        made.setdefault(instance_of(slots.node), []).extend(first + slot for slot in slots.gpus)
    return tuple(Slots(node, tuple(some)) for node, some in made.items())


def _placed(
    demands: Sequence[Demand],
    current: Mapping[str, Assignment],
    nodes: Sequence[PackingNode],
    *,
    pack: bool,
    split: bool,
) -> dict[str, Assignment]:
    sizes = {node.id: node.gpus for node in nodes}
    stay = _unchanged(demands, current, sizes, split=split)
    near = {
        d.trial: old[0].node
        for d in demands
        if d.trial not in stay and (old := current.get(d.trial)) and old[0].node in sizes
    }
    before = Before(
        {trial: tuple(s.node for s in a) for trial, a in stay.items()},
        near,
        sizes_of(nodes) if split else {},
    )
    homes = choose(demands, before, sorted(nodes, key=lambda node: node.id), pack=pack)
    kept = {trial: a for trial, a in stay.items() if homes.get(trial) == before.stay[trial]}
    others = [d for d in demands if d.trial in homes and d.trial not in kept]
    held = {trial: current[trial] for trial in near} if nodes and nodes[0].parts else {}
    return kept | _new_slots(others, homes, kept, sizes, held)


def _unchanged(
    demands: Sequence[Demand],
    current: Mapping[str, Assignment],
    sizes: Mapping[str, int],
    *,
    split: bool,
) -> dict[str, Assignment]:
    """Return the trials that could stay, with their GPUs; of rivals the more valuable."""
    largest = max(sizes.values(), default=0)
    claimed: set[tuple[str, int]] = set()
    stay: dict[str, Assignment] = {}
    for demand in demands:
        old = current.get(demand.trial, ())
        held = {(slots.node, gpu) for slots in old for gpu in slots.gpus}
        most = len(held) - 1 if split and len(old) > 1 else largest
        fits = len(held) == demand.gpus and _proper(demand.gpus, old, sizes, min(most, largest))
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
    on = {instance_of(slots.node) for slots in old}
    few = len(on) == 1 or len(old) == sum(instance_of(node) in on for node in sizes)
    return whole and few and len({sizes[slots.node] for slots in old}) == 1


def _new_slots(
    demands: Sequence[Demand],
    homes: Mapping[str, Home],
    kept: Mapping[str, Assignment],
    sizes: Mapping[str, int],
    held: Mapping[str, Assignment],
) -> dict[str, Assignment]:
    """Choose GPUs beside those that are kept, largest trial first. `held`: the slots of resized
    trials, which those that stay on their GPU keep.
    """
    free = {node: set(range(gpus)) for node, gpus in sizes.items()}
    for assignment in kept.values():
        for slots in assignment:
            free[slots.node] -= set(slots.gpus)
    own = _kept_slots(demands, homes, held, free)
    taken = {(slots.node, gpu) for slots in own.values() for gpu in slots.gpus}
    placed: dict[str, Assignment] = {}
    for demand in sorted(demands, key=lambda d: (d.trial not in own, -d.gpus, d.trial)):
        for node in homes[demand.trial]:
            count = min(demand.gpus, sizes[node])
            if demand.trial in own:
                others = (gpu for gpu in sorted(free[node]) if (node, gpu) not in taken)
                gpus = tuple(sorted([*own[demand.trial].gpus, *others][:count]))
            else:
                gpus = _neighbours(free[node], count)
            free[node] -= set(gpus)
            placed[demand.trial] = (*placed.get(demand.trial, ()), Slots(node, gpus))
    return placed


def _kept_slots(
    demands: Sequence[Demand],
    homes: Mapping[str, Home],
    held: Mapping[str, Assignment],
    free: Mapping[str, set[int]],
) -> dict[str, Slots]:
    """Return the slots that resized trials keep, since they stay on their GPU."""
    own: dict[str, Slots] = {}
    claimed: set[tuple[str, int]] = set()
    for demand in demands:
        old = held.get(demand.trial, ())
        if len(old) != 1 or homes[demand.trial] != (old[0].node,):
            continue
        node, gpus = old[0].node, old[0].gpus[: demand.gpus]
        if free[node].issuperset(gpus) and claimed.isdisjoint((node, gpu) for gpu in gpus):
            own[demand.trial] = Slots(node, gpus)
            claimed.update((node, gpu) for gpu in gpus)
    return own


def _neighbours(free: set[int], count: int) -> tuple[int, ...]:
    """Choose the lowest aligned run, which fast links join, else the lowest run, else free GPUs."""
    for stride in (count, 1):
        for start in range(0, max(free) + 1, stride):
            run = range(start, start + count)
            if free.issuperset(run):
                return tuple(run)
    return tuple(sorted(free)[:count])


def first_waiting(waiting: Mapping[str, int], gpus: int) -> list[Demand]:
    """Return the trials that could be among the most valuable that share so many GPUs. `waiting`:
    trial -> how many GPUs it should have, most valuable first.
    """
    first: list[Demand] = []
    taken = Counter[int]()
    for trial, size in waiting.items():
        if taken[size] < gpus // size:
            taken[size] += 1
            first.append(Demand(trial, size))
    return first
