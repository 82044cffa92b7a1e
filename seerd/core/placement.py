"""Trials onto the GPUs of instances (Misra et al., RubberBand, EuroSys '21, section 4.4, Algorithm 3).

The one rule, in this order: a trial that fits an instance is never split and a larger one takes whole instances; the most valuable trials
are placed; with `pack`, as few instances as possible are used, so that whole ones can be given back; as few trials as possible move.
A trial whose number of GPUs is unchanged and that stays on its instance keeps exactly its GPUs.

Small cases are searched exactly; large ones go by best fit, largest first, displacing smaller trials where nothing else helps. Nothing here
knows of time, processes or money.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

EXACT_TRIALS = 12
"""Up to so many trials the search is exact, unless it takes more than `EXACT_STEPS`."""
EXACT_STEPS = 50_000
EXACT_SUBSETS = 100


@dataclass(frozen=True, slots=True)
class Node:
    """An instance that can take trials."""

    id: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Slots:
    """Some GPUs of one instance, by index."""

    node: str
    gpus: tuple[int, ...]


Assignment = tuple[Slots, ...]
"""Where a trial runs: one element, or one per whole instance if it spans several."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A trial and the number of GPUs that it should have."""

    trial: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where trials go; `waiting` ones do not fit."""

    assignments: Mapping[str, Assignment]
    waiting: tuple[str, ...]


Homes = dict[str, str]
"""Trial -> node."""


def place(
    demands: Sequence[Demand], current: Mapping[str, Assignment], nodes: Sequence[Node], *, pack: bool = False
) -> Placement:
    """Place the demands (most valuable first), given where trials are now. Deterministic; the same answer when asked again."""
    largest = max((node.gpus for node in nodes), default=0)
    spanning = _spanning([d for d in demands if d.gpus > largest], current, nodes)
    taken = {slots.node for assignment in spanning.values() for slots in assignment}
    left = [node for node in nodes if node.id not in taken]
    singles = [d for d in demands if d.gpus <= largest]
    here = {node.id for node in left}
    stay = {
        d.trial: a[0].node
        for d in singles
        if (a := current.get(d.trial)) and len(a) == 1 and a[0].node in here and len(a[0].gpus) == d.gpus
    }
    near = {t: a[0].node for t, a in current.items() if len(a) == 1 and a[0].node in here}
    homes = _choose(singles, _Before(stay, near), left, pack=pack)
    assignments = {**spanning, **_indices(singles, homes, current, left)}
    return Placement(assignments, tuple(d.trial for d in demands if d.trial not in assignments))


@dataclass(frozen=True, slots=True)
class _Before:
    """Where trials are: `stay` those that need not move, `near` all of them (a resized one has its files there)."""

    stay: Homes
    near: Homes

    def moves(self, homes: Homes) -> int:
        return sum(1 for trial, node in self.stay.items() if homes.get(trial, node) != node)


# ---------------------------------------------------------------- trials larger than an instance


def _spanning(
    demands: Sequence[Demand], current: Mapping[str, Assignment], nodes: Sequence[Node]
) -> dict[str, Assignment]:
    """Whole instances of one size for each; those that hold the fewest others are taken first."""
    used = {slots.node: 0 for assignment in current.values() for slots in assignment}
    for assignment in current.values():
        for slots in assignment:
            used[slots.node] += len(slots.gpus)
    free = {node.id: node for node in nodes}
    placed: dict[str, Assignment] = {}
    for demand in demands:
        own = [slots.node for slots in current.get(demand.trial, ())]
        chosen = _whole_nodes(demand.gpus, own, used, list(free.values()))
        for node in chosen:
            del free[node.id]
        if chosen:
            placed[demand.trial] = tuple(Slots(node.id, tuple(range(node.gpus))) for node in chosen)
    return placed


def _whole_nodes(gpus: int, own: list[str], used: Mapping[str, int], nodes: list[Node]) -> list[Node]:
    for size in sorted({node.gpus for node in nodes}, reverse=True):
        alike = [node for node in nodes if node.gpus == size]
        if gpus % size == 0 and gpus // size <= len(alike):
            alike.sort(key=lambda node: (node.id not in own, used.get(node.id, 0), node.id))
            return sorted(alike[: gpus // size], key=lambda node: node.id)
    return []


# ---------------------------------------------------------------- which trials, on how many instances


def _choose(demands: Sequence[Demand], before: _Before, nodes: Sequence[Node], *, pack: bool) -> Homes:
    """Trial -> node for as many as fit, the most valuable first."""
    homes = _fit(demands, before, nodes)
    if homes is None:
        demands = _most_valuable(demands, before, nodes)
        homes = _fit(demands, before, nodes) or {}
    return _packed(demands, before, nodes) or homes if pack else homes


def _most_valuable(demands: Sequence[Demand], before: _Before, nodes: Sequence[Node]) -> list[Demand]:
    """The longest prefix that fits, and behind it whoever still finds room."""
    low, high = 0, len(demands)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _fit(demands[:middle], before, nodes) is not None else (low, middle)
    chosen = list(demands[:low])
    room = sum(node.gpus for node in nodes) - sum(d.gpus for d in chosen)
    for demand in demands[low:]:
        if demand.gpus <= room and _fit([*chosen, demand], before, nodes) is not None:
            chosen.append(demand)
            room -= demand.gpus
    return chosen


def _packed(demands: Sequence[Demand], before: _Before, nodes: Sequence[Node]) -> Homes | None:
    """On the fewest instances, and among those choices with the fewest moves."""
    need = sum(demand.gpus for demand in demands)
    for count in range(1, len(nodes) + 1):
        options = [s for s in _subsets(before, nodes, count) if sum(node.gpus for node in s) >= need]
        found = [homes for s in options if (homes := _fit(demands, before, s)) is not None]
        if found:
            return min(found, key=before.moves)
    return None


def _subsets(before: _Before, nodes: Sequence[Node], count: int) -> Iterator[Sequence[Node]]:
    """Every choice of so many instances if they are few, else the one whose instances are in use most."""
    if comb(len(nodes), count) <= EXACT_SUBSETS:
        yield from combinations(nodes, count)
        return
    trials: dict[str, int] = {}
    for home in before.stay.values():
        trials[home] = trials.get(home, 0) + 1
    yield sorted(nodes, key=lambda node: (-trials.get(node.id, 0), -node.gpus, node.id))[:count]


# ---------------------------------------------------------------- fitting trials onto given instances


def _fit(demands: Sequence[Demand], before: _Before, nodes: Sequence[Node]) -> Homes | None:
    """All demands on these nodes with few moves, or None if that cannot be (or, with many trials, is not found)."""
    if sum(d.gpus for d in demands) > sum(node.gpus for node in nodes):
        return None
    quick = _best_fit(demands, before, nodes)
    if len(demands) > EXACT_TRIALS or (quick is not None and before.moves(quick) == _must_move(demands, before, nodes)):
        return quick
    return _Search(demands, before, nodes).run(quick)


def _must_move(demands: Sequence[Demand], before: _Before, nodes: Sequence[Node]) -> int:
    """Moves that nothing can avoid: of trials whose node is not among these."""
    there = {node.id for node in nodes}
    return sum(1 for d in demands if d.trial in before.stay and before.stay[d.trial] not in there)


def _best_fit(demands: Sequence[Demand], before: _Before, nodes: Sequence[Node]) -> Homes | None:
    """Keep who can stay; put the others, largest first, where the least room is left over; displace smaller ones if need be."""
    rooms = _Rooms(nodes)
    waiting: list[Demand] = []
    for demand in demands:
        home = before.stay.get(demand.trial)
        if home is not None and rooms.free.get(home, 0) >= demand.gpus:
            rooms.put(demand, home)
        else:
            waiting.append(demand)
    waiting.sort(key=lambda d: (-d.gpus, d.trial))
    while waiting:
        demand = waiting.pop(0)
        home = rooms.tightest(demand.gpus, before.near.get(demand.trial)) or rooms.clear(demand.gpus, waiting)
        if home is None:
            return None
        rooms.put(demand, home)
    return rooms.homes()


class _Rooms:
    """Free GPUs by node, nodes by free GPUs, and who is where."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.free = {node.id: node.gpus for node in nodes}
        self._by_free: dict[int, dict[str, None]] = {}
        for node in nodes:
            self._by_free.setdefault(node.gpus, {})[node.id] = None
        self._inside: dict[str, list[Demand]] = {node.id: [] for node in nodes}

    def put(self, demand: Demand, home: str) -> None:
        self._inside[home].append(demand)
        self._change(home, -demand.gpus)

    def tightest(self, gpus: int, near: str | None) -> str | None:
        """The node with the least room that is enough; the trial's old one if it is as good."""
        for free in sorted(self._by_free):
            if free >= gpus and self._by_free[free]:
                return near if near in self._by_free[free] else min(self._by_free[free])
        return None

    def clear(self, gpus: int, waiting: list[Demand]) -> str | None:
        """Make room on the node where the fewest, smallest trials must leave; they go back to the waiting ones."""
        best: tuple[tuple[int, int, str], list[Demand]] | None = None
        for home, inside in self._inside.items():
            leaving = _leaving(inside, gpus - self.free[home], gpus)
            if leaving is not None:
                cost = (len(leaving), sum(d.gpus for d in leaving), home)
                best = (cost, leaving) if best is None or cost < best[0] else best
        if best is None:
            return None
        home = best[0][2]
        for demand in best[1]:
            self._inside[home].remove(demand)
            self._change(home, demand.gpus)
        waiting.extend(best[1])
        waiting.sort(key=lambda d: (-d.gpus, d.trial))
        return home

    def homes(self) -> Homes:
        return {demand.trial: home for home, inside in self._inside.items() for demand in inside}

    def _change(self, home: str, by: int) -> None:
        del self._by_free[self.free[home]][home]
        self.free[home] += by
        self._by_free.setdefault(self.free[home], {})[home] = None


def _leaving(inside: list[Demand], need: int, smaller_than: int) -> list[Demand] | None:
    """The fewest trials, all smaller than the newcomer, that give up enough GPUs; None if they cannot."""
    leaving: list[Demand] = []
    for demand in sorted((d for d in inside if d.gpus < smaller_than), key=lambda d: (-d.gpus, d.trial)):
        if need <= 0:
            break
        leaving.append(demand)
        need -= demand.gpus
    return leaving if need <= 0 else None


class _Search:
    """Exact: every way to put the demands onto the nodes, largest first, cut off where it cannot beat the best found."""

    def __init__(self, demands: Sequence[Demand], before: _Before, nodes: Sequence[Node]) -> None:
        self._demands = sorted(demands, key=lambda d: (-d.gpus, d.trial not in before.stay, d.trial))
        self._before = before
        self._free = {node.id: node.gpus for node in nodes}
        self._old = set(before.near.values())
        self._homes: Homes = {}
        self._best: Homes | None = None
        self._best_moves = len(demands) + 1
        self._steps = 0

    def run(self, known: Homes | None) -> Homes | None:
        """The best way; `known` is one to beat."""
        if known is not None:
            self._best, self._best_moves = known, self._before.moves(known)
        self._descend(0, 0)
        return self._best

    def _descend(self, index: int, moves: int) -> None:
        self._steps += 1
        if moves >= self._best_moves or self._steps > EXACT_STEPS:
            return
        if index == len(self._demands):
            self._best, self._best_moves = dict(self._homes), moves
            return
        demand = self._demands[index]
        stay = self._before.stay.get(demand.trial)
        for home in self._options(demand, self._before.near.get(demand.trial)):
            self._free[home] -= demand.gpus
            self._homes[demand.trial] = home
            self._descend(index + 1, moves + (stay is not None and home != stay))
            del self._homes[demand.trial]
            self._free[home] += demand.gpus

    def _options(self, demand: Demand, near: str | None) -> list[str]:
        """Nodes with room: its own first, then the fullest; of nodes that nobody comes from and that are equally free only one."""
        fitting = [home for home, free in self._free.items() if free >= demand.gpus]
        fitting.sort(key=lambda home: (home != near, self._free[home], home))
        seen: set[int] = set()
        options = []
        for home in fitting:
            if home not in self._old:
                if self._free[home] in seen:
                    continue
                seen.add(self._free[home])
            options.append(home)
        return options


# ---------------------------------------------------------------- which GPUs of its instance


def _indices(
    demands: Iterable[Demand], homes: Homes, current: Mapping[str, Assignment], nodes: Iterable[Node]
) -> dict[str, Assignment]:
    """Who stays keeps its GPUs; the others get neighbouring ones, largest first."""
    free = {node.id: set(range(node.gpus)) for node in nodes}
    placed: dict[str, Assignment] = {}
    others: list[Demand] = []
    for demand in demands:
        home = homes.get(demand.trial)
        before = current.get(demand.trial)
        if home is None:
            continue
        if before and len(before) == 1 and before[0].node == home and len(before[0].gpus) == demand.gpus:
            placed[demand.trial] = before
            free[home] -= set(before[0].gpus)
        else:
            others.append(demand)
    for demand in sorted(others, key=lambda d: (-d.gpus, d.trial)):
        home = homes[demand.trial]
        gpus = _neighbours(free[home], demand.gpus)
        free[home] -= set(gpus)
        placed[demand.trial] = (Slots(home, gpus),)
    return placed


def _neighbours(free: set[int], count: int) -> tuple[int, ...]:
    """The lowest aligned run of neighbours (fast links join those), else the lowest run, else the lowest free ones."""
    for stride in (count, 1):
        for start in range(0, max(free) + 1, stride):
            run = range(start, start + count)
            if free.issuperset(run):
                return tuple(run)
    return tuple(sorted(free)[:count])
