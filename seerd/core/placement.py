"""Placing trials on the GPUs of instances (Misra et al., RubberBand, EuroSys '21, section 4.4,
Algorithm 3).

A trial that fits an instance is never split; a larger one takes whole instances of one size. A
trial whose number of GPUs is unchanged keeps exactly its GPUs, unless a more valuable or larger
trial, or packing, needs them.

`choose` is bin packing that remembers where trials are. Its aims, the most important first: place
the most valuable trials; if asked, use the fewest instances; move the fewest trials; put the fewest
resized trials away from their files. Trials that can stay do so, the others are placed largest
first where the least room is left over, and smaller trials are displaced where nothing else helps.
If sizes divide each other, as 1, 2, 4 and 8 do, this finds room whenever there is any, with the
fewest moves (`bench/packing.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import accumulate, chain

from seerd.planner.model import Group
from seerd.planner.stages import instances_for


@dataclass(frozen=True, slots=True)
class Slots:
    """Some GPUs of one instance."""

    node: str  # id of the instance
    gpus: tuple[int, ...]  # indices of the GPUs


Assignment = tuple[Slots, ...]
"""Where a trial runs: one element, or one for each whole instance if it spans several."""


def place(
    demands: Sequence[Demand],
    current: Mapping[str, Assignment],
    nodes: Sequence[PackingNode],
    *,
    pack: bool = False,
) -> dict[str, Assignment]:
    """Place the demands, given where trials are now; return the GPUs of those that fit.

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
    others = (d for d in demands if d.trial in homes and d.trial not in kept)
    return kept | _new_slots(others, homes, kept, sizes)


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


CANDIDATES = 32  # how many instances on which room could be made are compared


Home = tuple[str, ...]  # where a trial is: one instance, or several whole ones

Cost = tuple[int, int, int]
"""Instances used (0 if that does not count), trials moved, resized trials away from their files."""


@dataclass(frozen=True, slots=True)
class PackingNode:
    """An instance that can take trials."""

    id: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Demand:
    """A trial to be placed."""

    trial: str
    gpus: int  # how many GPUs it should have, at least one


@dataclass(frozen=True, slots=True)
class Before:
    """Where trials are now."""

    stay: Mapping[str, Home]  # trial -> home, for those that can be left as they are
    near: Mapping[str, str]  # trial -> instance with its files, for resized ones

    def cost(self, homes: Mapping[str, Home], *, pack: bool) -> Cost:
        """Return what these homes cost. Instances count only if `pack` is set."""
        used = len({node for home in homes.values() for node in home}) if pack else 0
        moved = sum(self.stay.get(trial, home) != home for trial, home in homes.items())
        away = sum(self.near.get(trial, home[0]) not in home for trial, home in homes.items())
        return used, moved, away


def choose(
    demands: Sequence[Demand], before: Before, nodes: Sequence[PackingNode], *, pack: bool
) -> dict[str, Home]:
    """Find instances for as many trials as fit, the most valuable first; `pack`: few instances."""
    chosen, placed = _most_valuable(demands, nodes, lambda some: _greedy(some, before, nodes))
    largest = max((node.gpus for node in nodes), default=1)
    least = -(-sum(demand.gpus for demand in chosen) // largest), 0, 0  # full, and no moves
    if not pack or before.cost(placed, pack=True) <= least:
        return placed
    packed = _squeezed(chosen, before, nodes) or placed
    return min(placed, packed, key=lambda homes: before.cost(homes, pack=True))


Fit = Callable[[Sequence[Demand]], dict[str, Home] | None]  # homes for all of them, or None


def _most_valuable(
    demands: Sequence[Demand], nodes: Sequence[PackingNode], fit: Fit
) -> tuple[list[Demand], dict[str, Home]]:
    """Return the trials that are placed, and homes: the first that fit, then others."""
    largest = max((node.gpus for node in nodes), default=0)
    capacity = sum(node.gpus for node in nodes)
    chosen: list[Demand] = []
    homes: dict[str, Home] = {}
    rest = list(demands)
    while rest:
        count, fitting = _longest(rest, chosen, capacity - sum(d.gpus for d in chosen), fit)
        homes = fitting or homes
        chosen += rest[:count]
        failed = rest[count].gpus if count < len(rest) else 0
        # If no instance has room for this trial, none has for a larger one. A trial that spans
        # instances may still find whole ones of another size.
        rest = [d for d in rest[count + 1 :] if d.gpus != failed and not failed < d.gpus <= largest]
    return chosen, homes


def _longest(
    rest: Sequence[Demand], chosen: Sequence[Demand], room: int, fit: Fit
) -> tuple[int, dict[str, Home] | None]:
    """Return how many of the first of `rest` fit in `room` GPUs beside `chosen`, and homes."""
    high = sum(1 for total in accumulate(d.gpus for d in rest) if total <= room)
    low, middle, homes = 0, high, None
    while low < high:
        fitting = fit([*chosen, *rest[:middle]])
        low, high, homes = (low, middle - 1, homes) if fitting is None else (middle, high, fitting)
        middle = (low + high + 1) // 2
    return low, homes


def _greedy(
    demands: Sequence[Demand], before: Before, nodes: Sequence[PackingNode]
) -> dict[str, Home] | None:
    """Return the better of two tries: resized trials near their files, or where it is tightest."""
    best = _best_fit(demands, before, nodes, near_first=True)
    if not before.near or (best is not None and not before.cost(best, pack=False)[1]):
        return best
    other = _best_fit(demands, before, nodes, near_first=False)
    results = [homes for homes in (best, other) if homes is not None]
    return min(results, key=lambda homes: before.cost(homes, pack=False), default=None)


def _best_fit(
    demands: Sequence[Demand], before: Before, nodes: Sequence[PackingNode], *, near_first: bool
) -> dict[str, Home] | None:
    rooms = _Rooms(nodes)
    waiting: list[Demand] = []
    for demand in demands:
        home = before.stay.get(demand.trial)
        if home is not None and all(node in rooms.free for node in home):
            rooms.put(demand, home)
        else:
            waiting.append(demand)
    waiting.sort(key=_largest_first, reverse=True)
    while waiting:
        demand = waiting.pop()
        home = _find_home(demand, before.near.get(demand.trial), rooms, near_first=near_first)
        if home is None:
            return None
        displaced = rooms.make_room(demand, home)
        rooms.put(demand, home)
        if displaced:
            waiting = sorted([*waiting, *displaced], key=_largest_first, reverse=True)
    return rooms.homes


def _largest_first(demand: Demand) -> tuple[int, str]:
    return -demand.gpus, demand.trial


def _find_home(demand: Demand, near: str | None, rooms: _Rooms, *, near_first: bool) -> Home | None:
    if demand.gpus > rooms.largest:
        return rooms.emptiest(demand.gpus)
    if near_first and near is not None and rooms.free.get(near, 0) >= demand.gpus:
        return (near,)
    return rooms.tightest(demand.gpus, near) or rooms.cheapest(demand.gpus)


class _Rooms:
    """Free GPUs by instance, instances by free GPUs, and which trials are where."""

    def __init__(self, nodes: Sequence[PackingNode]) -> None:
        self.largest = max((node.gpus for node in nodes), default=0)
        self.free = {node.id: node.gpus for node in nodes}
        self.homes: dict[str, Home] = {}
        self._size = dict(self.free)
        self._by_free: dict[int, dict[str, None]] = {}
        for node in nodes:
            self._by_free.setdefault(node.gpus, {})[node.id] = None
        self._inside: dict[str, list[Demand]] = {node.id: [] for node in nodes}

    def put(self, demand: Demand, home: Home) -> None:
        self.homes[demand.trial] = home
        for node in home:
            self._inside[node].append(demand)
            self._change(node, -min(demand.gpus, self._size[node]))

    def tightest(self, gpus: int, near: str | None) -> Home | None:
        """Return the instance with the least room that is enough, if possible `near`."""
        for free in sorted(self._by_free):
            if free >= gpus and self._by_free[free]:
                return (near,) if near in self._by_free[free] else (min(self._by_free[free]),)
        return None

    def cheapest(self, gpus: int) -> Home | None:
        """Return the instance where the fewest and smallest trials must leave for `gpus` GPUs."""
        costs: list[tuple[int, int, str]] = []
        by_room = (sorted(self._by_free[free]) for free in sorted(self._by_free, reverse=True))
        for node in chain.from_iterable(by_room):
            leaving = _leaving(self._inside[node], gpus - self.free[node], gpus)
            if leaving is not None:
                costs.append((len(leaving), sum(d.gpus for d in leaving), node))
            if len(costs) == CANDIDATES:
                break
        return (min(costs)[2],) if costs else None

    def emptiest(self, gpus: int) -> Home | None:
        """Return whole instances of one size with `gpus` GPUs where the fewest must leave."""

        def leaving(node: str) -> tuple[int, int, str]:
            return len(self._inside[node]), self._size[node] - self.free[node], node

        for size in sorted(set(self._size.values()), reverse=True):
            empty = [node for node in self._by_free.get(size, ()) if self._size[node] == size]
            if gpus % size:
                continue
            if len(empty) * size < gpus:
                same = [node for node in self._inside if self._size[node] == size]
                empty = [
                    node for node in same if all(d.gpus <= self.largest for d in self._inside[node])
                ]
            if len(empty) * size >= gpus:
                return tuple(sorted(nsmallest(gpus // size, empty, key=leaving)))
        return None

    def make_room(self, demand: Demand, home: Home) -> list[Demand]:
        """Take out the trials that the demand displaces, and return them."""
        displaced: list[Demand] = []
        for node in home:
            need = min(demand.gpus, self._size[node]) - self.free[node]
            for leaving in _leaving(self._inside[node], need, demand.gpus) or ():
                self._inside[node].remove(leaving)
                self._change(node, leaving.gpus)
                displaced.append(leaving)
        return displaced

    def _change(self, node: str, by: int) -> None:
        del self._by_free[self.free[node]][node]
        self.free[node] += by
        self._by_free.setdefault(self.free[node], {})[node] = None


def _leaving(inside: Sequence[Demand], need: int, smaller_than: int) -> list[Demand] | None:
    """Return the fewest trials, smaller than the newcomer, to leave for `need` GPUs, if any."""
    smaller = sorted((d for d in inside if d.gpus < smaller_than), key=_largest_first)
    if sum(d.gpus for d in smaller) < need:
        return None
    leaving: list[Demand] = []
    while need > 0:
        enough = [d for d in smaller if d.gpus >= need]
        leaves = enough[-1] if enough else smaller[0]
        smaller.remove(leaves)
        leaving.append(leaves)
        need -= leaves.gpus
    return leaving


def _squeezed(
    demands: Sequence[Demand], before: Before, nodes: Sequence[PackingNode]
) -> dict[str, Home] | None:
    """Place the demands on as few instances as an empty cluster would need, those on which the most
    trials can stay. None if that does not work.
    """
    largest = max(node.gpus for node in nodes)
    sizes = Counter(demand.gpus for demand in demands)
    needed = instances_for([Group(*size) for size in sizes.items()], largest)
    staying = Counter(node for home in before.stay.values() for node in home)
    liked = sorted(nodes, key=lambda node: (-staying[node.id], node.id))[:needed]
    return _greedy(demands, before, liked) or _greedy(demands, Before({}, {}), liked)
