"""Which instances trials go to, and with parts of a GPU which GPUs (Misra et al., RubberBand,
EuroSys '21, section 4.4, Algorithm 3).

`choose` is bin packing that remembers where trials are. Its aims, the most important first: place
the most valuable trials; if asked, use the fewest instances; move the fewest trials; put the fewest
resized trials away from where they were. Trials that can stay do so, the others are placed largest
first where the least room is left over, and smaller trials are displaced where nothing else helps.
If sizes divide each other, as 1, 2, 4 and 8 do, this finds room whenever there is any, with the
fewest moves (`bench/packing.py`).

Where GPUs have parts, nodes are GPUs: a trial of a part is on one, a larger one has whole GPUs of
one instance, or whole instances. Of GPUs that are equally full, those of the instance with the
fewest whole free ones are used first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from itertools import accumulate, chain

from seerd.planner.model import Group
from seerd.planner.stages import instances_for

CANDIDATES = 32  # how many instances on which room could be made are compared


Home = tuple[str, ...]  # where a trial is: one node, or several whole ones

GPU = "\0"  # follows the instance in the id of a node that is one of its GPUs


def instance_of(node: str) -> str:
    """Return the instance of a node: itself, or that of which it is a GPU."""
    return node.partition(GPU)[0]


Cost = tuple[int, int, int]
"""Instances used, or their GPUs (0 if that does not count), trials moved, resized trials away from
their files.
"""


@dataclass(frozen=True, slots=True)
class PackingNode:
    """An instance that can take trials; or, where GPUs have parts, one GPU of an instance."""

    id: str
    gpus: int  # how many GPUs it has, or slots
    parts: int = 0  # how many slots a whole GPU has; 0: it is an instance


def gpu_nodes(nodes: Iterable[PackingNode], parts: int) -> list[PackingNode]:
    """Return the GPUs of instances whose sizes are in slots; of the last one maybe not all slots
    may be used.
    """
    return [
        PackingNode(f"{node.id}{GPU}{slot // parts:04}", min(parts, node.gpus - slot), parts)
        for node in nodes
        for slot in range(0, node.gpus, parts)
    ]


@dataclass(frozen=True, slots=True)
class Demand:
    """A trial to be placed."""

    trial: str
    gpus: int  # how many GPUs it should have, at least one


@dataclass(frozen=True, slots=True)
class Before:
    """Where trials are now."""

    stay: Mapping[str, Home]  # trial -> home, for those that can be left as they are
    near: Mapping[str, str]  # trial -> node on which it was, with its files, for resized ones
    # GPUs of each instance, if a trial may have several where no single one has room; else empty
    sizes: Mapping[str, int] = field(default_factory=dict)

    def cost(self, homes: Mapping[str, Home], *, pack: bool) -> Cost:
        """Return what these homes cost. Instances count only if `pack` is set, and by their GPUs
        if `sizes` are given.
        """
        nodes = {node for home in homes.values() for node in home} if pack else ()
        used = sum(self.sizes.get(name, 1) for name in {instance_of(node) for node in nodes})
        moved = sum(self.stay.get(trial, home) != home for trial, home in homes.items())
        away = sum(self.near.get(trial, home[0]) not in home for trial, home in homes.items())
        return used, moved, away


def choose(
    demands: Sequence[Demand], before: Before, nodes: Sequence[PackingNode], *, pack: bool
) -> dict[str, Home]:
    """Find instances for as many trials as fit, the most valuable first; `pack`: few instances."""
    chosen, placed = _most_valuable(demands, nodes, lambda some: _greedy(some, before, nodes))
    largest = 1 if before.sizes else max(sizes_of(nodes).values(), default=1)
    least = -(-sum(demand.gpus for demand in chosen) // largest), 0, 0  # full, and no moves
    if not pack or before.cost(placed, pack=True) <= least:
        return placed
    squeeze = _on_fewest_gpus if before.sizes else _squeezed
    packed = squeeze(chosen, before, nodes) or placed
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
    rooms = _GpuRooms(nodes) if nodes and nodes[0].parts else _Rooms(nodes)
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
        if home is None and before.sizes:
            home = rooms.split(demand.gpus)
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
                most = min(self.largest, gpus - 1)
                same = [node for node in self._inside if self._size[node] == size]
                empty = [node for node in same if all(d.gpus <= most for d in self._inside[node])]
            if len(empty) * size >= gpus:
                return tuple(sorted(nsmallest(gpus // size, empty, key=leaving)))
        return None

    def split(self, gpus: int) -> Home | None:
        """Return whole instances of one size for a trial that none has room for alone."""
        return self.emptiest(gpus)

    def make_room(self, demand: Demand, home: Home) -> list[Demand]:
        """Take out the trials that the demand displaces, and return them."""
        displaced: list[Demand] = []
        for node in home:
            need = min(demand.gpus, self._size[node]) - self.free[node]
            for leaving in _leaving(self._inside[node], need, demand.gpus) or ():
                for left in self.homes.pop(leaving.trial):
                    self._inside[left].remove(leaving)
                    self._change(left, min(leaving.gpus, self._size[left]))
                displaced.append(leaving)
        return displaced

    def _change(self, node: str, by: int) -> None:
        del self._by_free[self.free[node]][node]
        self.free[node] += by
        self._by_free.setdefault(self.free[node], {})[node] = None


class _GpuRooms(_Rooms):
    """The same where nodes are GPUs: a trial of several GPUs has whole ones of one instance."""

    def __init__(self, nodes: Sequence[PackingNode]) -> None:
        super().__init__(nodes)
        self.largest = nodes[0].parts
        self._whole: dict[str, list[str]] = {}  # instance -> its GPUs all of whose slots are there
        for node in nodes:
            self._whole.setdefault(instance_of(node.id), [])
            if node.gpus == self.largest:
                self._whole[instance_of(node.id)].append(node.id)
        self._empty = Counter({name: len(whole) for name, whole in self._whole.items()})

    def tightest(self, gpus: int, near: str | None) -> Home | None:
        """Return the GPU with the least room that is enough: `near`, or on its instance."""
        enough = (free for free, some in self._by_free.items() if some and free >= gpus)
        free = min(enough, default=0)
        if not free:
            return None
        some, home = self._by_free[free], instance_of(near or "")
        if near in some:
            return (near,)

        def order(node: str) -> tuple[int, bool, str]:
            instance = instance_of(node)
            empty = self._empty[instance] if free == self.largest else 0
            return empty, instance != home, node

        return (min(some, key=order),)

    def emptiest(self, gpus: int) -> Home | None:
        """Return whole GPUs of one instance, or whole instances, where the fewest must leave."""
        count = gpus // self.largest
        able = [name for name, whole in self._whole.items() if len(whole) >= count]
        if not able:
            return self._instances(gpus)
        if free := [name for name in able if self._empty[name] >= count]:
            chosen = min(free, key=lambda name: (self._empty[name], name))
            return tuple(node for node in self._whole[chosen] if self._is_empty(node))[:count]
        ways: list[tuple[int, int, Home]] = []
        for name in sorted(able, key=lambda name: -self._empty[name]):
            if (way := self._vacated(self._whole[name], count, gpus)) is not None:
                ways.append(way)
            if len(ways) == CANDIDATES:
                break
        return min(ways)[2] if ways else None

    def _vacated(
        self, nodes: Sequence[str], count: int, smaller_than: int
    ) -> tuple[int, int, Home] | None:
        """Choose `count` of the GPUs of an instance; return how many trials must leave, all of
        fewer than `smaller_than` slots, their slots, and the GPUs. None: there are not so many.
        """
        units: dict[str, tuple[list[str], Sequence[Demand]]] = {}  # what leaves together
        for node in nodes:
            inside = self._inside[node]
            if all(demand.gpus < smaller_than for demand in inside):
                name = inside[0].trial if inside and inside[0].gpus > self.largest else node
                units.setdefault(name, ([], inside))[0].append(node)
        best: dict[int, tuple[int, int, Home]] = {0: (0, 0, ())}
        for freed, leaving in units.values():
            sizes = sum(demand.gpus for demand in leaving)
            for had, (left, slots, home) in list(best.items()):
                total = min(count, had + len(freed))
                way = left + len(leaving), slots + sizes, (*home, *freed)
                if had < count and (total not in best or way < best[total]):
                    best[total] = way
        if count not in best:
            return None
        left, slots, home = best[count]
        return left, slots, tuple(sorted(home)[:count])

    def split(self, gpus: int) -> Home | None:
        return self._instances(gpus)

    def _instances(self, gpus: int) -> Home | None:
        """Return all GPUs of instances of one size, where no instance alone has them."""
        able: dict[int, list[tuple[int, str]]] = {}  # GPUs -> how many must leave, of each instance
        for name, whole in self._whole.items():
            inside = {demand.trial: demand for node in whole for demand in self._inside[node]}
            if all(demand.gpus < gpus for demand in inside.values()):
                able.setdefault(len(whole), []).append((len(inside), name))
        for size in sorted(able, reverse=True):
            count, rest = divmod(gpus, size * self.largest) if size else (0, 1)
            if not rest and len(able[size]) >= count:
                chosen = sorted(name for _, name in nsmallest(count, able[size]))
                return tuple(node for name in chosen for node in self._whole[name])
        return None

    def _is_empty(self, node: str) -> bool:
        return self.free[node] == self.largest

    def _change(self, node: str, by: int) -> None:
        instance = instance_of(node)
        self._empty[instance] -= self._is_empty(node)
        super()._change(node, by)
        self._empty[instance] += self._is_empty(node)


def sizes_of(nodes: Iterable[PackingNode]) -> Counter[str]:
    """Return how many GPUs, or slots, each instance has."""
    sizes = Counter[str]()
    for node in nodes:
        sizes[instance_of(node.id)] += node.gpus
    return sizes


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
    instances = sizes_of(nodes)
    largest = max(instances.values())
    sizes = Counter(demand.gpus for demand in demands)
    needed = instances_for([Group(*size) for size in sizes.items()], largest)
    homes = ({instance_of(node) for node in home} for home in before.stay.values())
    staying = Counter(chain.from_iterable(homes))
    chosen = sorted(instances, key=lambda name: (-staying[name], name))[:needed]
    liked = [node for node in nodes if instance_of(node.id) in chosen]
    return _greedy(demands, before, liked) or _greedy(demands, Before({}, {}), liked)


def _on_fewest_gpus(
    demands: Sequence[Demand], before: Before, nodes: Sequence[PackingNode]
) -> dict[str, Home] | None:
    """Place the demands without each instance that can be spared, the largest first. None if none
    can be.
    """
    anew, best = replace(before, stay={}, near={}), None
    used = {instance_of(node) for home in before.stay.values() for node in home}
    for name in sorted(before.sizes, key=lambda name: (-before.sizes[name], name in used, name)):
        rest = [node for node in nodes if instance_of(node.id) != name]
        if sum(node.gpus for node in rest) < sum(demand.gpus for demand in demands):
            continue
        homes = _greedy(demands, before, rest) or _greedy(demands, anew, rest)
        if homes is not None:
            best, nodes = homes, rest
    return best
