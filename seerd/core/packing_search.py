"""The exact answer for small cases of packing: branch and bound within a given effort.

The one rule: it never answers worse than what is known already, and with effort left at the end its
answer is the best there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

MAX_TRIALS = 16
"""With more trials at once the search is not begun: it would end on its effort."""
MAX_SETS = 64
"""So many choices of whole instances are tried for a trial that needs several."""

Home = tuple[str, ...]
"""Where a trial is: one instance, or several whole ones."""

Cost = tuple[int, int, int]
"""Instances used (if that counts), trials moved, resized trials away from their files. Less is
better, the first counts most.
"""


@dataclass(frozen=True, slots=True)
class SearchNode:
    """An instance that can take trials."""

    id: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Demand:
    """A trial and the number of GPUs that it should have, at least one."""

    trial: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Before:
    """Where trials are. `stay`: those that can be left as they are; `near`: resized ones, and the
    instance with their files.
    """

    stay: Mapping[str, Home]
    near: Mapping[str, str]

    def cost(self, homes: Mapping[str, Home], *, pack: bool) -> Cost:
        """What these homes cost."""
        steps = [self.step(trial, home) for trial, home in homes.items()]
        used = len({node for home in homes.values() for node in home}) if pack else 0
        return used, sum(moved for moved, _ in steps), sum(away for _, away in steps)

    def step(self, trial: str, home: Home) -> tuple[int, int]:
        """What one trial adds to moves and to resized trials away."""
        return int(self.stay.get(trial, home) != home), int(self.near.get(trial, home[0]) not in home)


@dataclass(slots=True)
class Effort:
    """How many options may still be looked at."""

    left: int


def search(
    demands: Sequence[Demand],
    before: Before,
    nodes: Sequence[SearchNode],
    *,
    known: dict[str, Home] | None,
    pack: bool,
    effort: Effort,
) -> dict[str, Home] | None:
    """The cheapest homes for all demands, or `known`. With nothing known, the first that are found
    will do.
    """
    if len(demands) > MAX_TRIALS or sum(d.gpus for d in demands) > sum(node.gpus for node in nodes):
        return known
    found = _Search(demands, before, _worth_a_look(demands, before, nodes), pack, effort)
    return found.run(known)


def _worth_a_look(demands: Sequence[Demand], before: Before, nodes: Sequence[SearchNode]) -> list[SearchNode]:
    """Instances that trials are on, and of the others as many of each size as could be needed."""
    old = _old_nodes(demands, before)
    seen: Counter[int] = Counter()
    worth: list[SearchNode] = []
    for node in nodes:
        seen[node.gpus] += node.id not in old
        if node.id in old or seen[node.gpus] <= sum(-(-d.gpus // node.gpus) for d in demands):
            worth.append(node)
    return worth


def _old_nodes(demands: Sequence[Demand], before: Before) -> set[str]:
    stay = {node for d in demands for node in before.stay.get(d.trial, ())}
    return stay | {before.near[d.trial] for d in demands if d.trial in before.near}


class _Search:
    """Depth first, largest demand first, its old place first; cut off where it cannot beat the best
    found.
    """

    def __init__(
        self, demands: Sequence[Demand], before: Before, nodes: Sequence[SearchNode], pack: bool, effort: Effort
    ) -> None:
        self._demands = sorted(demands, key=lambda d: (-d.gpus, d.trial not in before.stay, d.trial))
        self._remaining = [sum(d.gpus for d in self._demands[i:]) for i in range(len(demands) + 1)]
        self._before = before
        self._size = {node.id: node.gpus for node in nodes}
        self._free = dict(self._size)
        self._largest = max(self._size.values(), default=0)
        self._old = _old_nodes(demands, before)
        self._pack = pack
        self._effort = effort
        self._homes: dict[str, Home] = {}
        self._best: dict[str, Home] | None = None
        self._best_cost: Cost | None = None
        self._any_will_do = False

    def run(self, known: dict[str, Home] | None) -> dict[str, Home] | None:
        """The best homes; `known` are some to beat."""
        self._best = known
        self._best_cost = None if known is None else self._before.cost(known, pack=self._pack)
        self._any_will_do = known is None
        self._descend(0, (0, 0, 0))
        return self._best

    def _descend(self, index: int, cost: Cost) -> None:
        if self._hopeless(index, cost):
            return
        if index == len(self._demands):
            self._best, self._best_cost = dict(self._homes), cost
            return
        demand = self._demands[index]
        for home in self._options(demand):
            self._effort.left -= 1
            opened = sum(self._free[node] == self._size[node] for node in home) if self._pack else 0
            moved, away = self._before.step(demand.trial, home)
            self._take(demand, home, -1)
            self._homes[demand.trial] = home
            self._descend(index + 1, (cost[0] + opened, cost[1] + moved, cost[2] + away))
            del self._homes[demand.trial]
            self._take(demand, home, 1)

    def _hopeless(self, index: int, cost: Cost) -> bool:
        if self._effort.left <= 0 or (self._any_will_do and self._best is not None):
            return True
        if self._best_cost is None:
            return False
        return (cost[0] + self._to_open(index), cost[1], cost[2]) >= self._best_cost

    def _to_open(self, index: int) -> int:
        """At least so many more instances must be used for what remains."""
        if not self._pack:
            return 0
        free = sum(free for node, free in self._free.items() if free < self._size[node])
        return max(0, -(-(self._remaining[index] - free) // self._largest))

    def _options(self, demand: Demand) -> Iterator[Home]:
        """Its old place first, then the fullest instances."""
        if demand.gpus <= self._largest:
            return self._single(demand)
        own = self._before.stay.get(demand.trial, ())
        whole = [SearchNode(n, free) for n, free in self._free.items() if free == self._size[n]]
        whole.sort(key=lambda node: (node.id not in own, node.id in self._old, node.id))
        return islice(_whole_nodes(demand.gpus, whole), MAX_SETS)

    def _single(self, demand: Demand) -> Iterator[Home]:
        """Of instances that nobody comes from and that are equally full, one is enough."""
        own = self._before.stay.get(demand.trial, (self._before.near.get(demand.trial, ""),))
        fitting = [node for node, free in self._free.items() if free >= demand.gpus]
        fitting.sort(key=lambda node: (node not in own, self._free[node], node))
        seen: set[tuple[int, int]] = set()
        for node in fitting:
            alike = (self._free[node], self._size[node])
            if node not in self._old and alike in seen:
                continue
            if node not in self._old:
                seen.add(alike)
            yield (node,)

    def _take(self, demand: Demand, home: Home, sign: int) -> None:
        for node in home:
            self._free[node] += sign * min(demand.gpus, self._size[node])


def _whole_nodes(gpus: int, nodes: Sequence[SearchNode]) -> Iterator[Home]:
    """Every choice of whole instances of one size with so many GPUs together; earlier ones in
    `nodes` are taken first.
    """
    for size in sorted({node.gpus for node in nodes}, reverse=True):
        alike = [node.id for node in nodes if node.gpus == size]
        if gpus % size == 0 and gpus // size <= len(alike):
            for chosen in combinations(alike, gpus // size):
                yield tuple(sorted(chosen))
