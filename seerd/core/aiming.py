"""Where wanted trials should run: all of them anew when the plan has changed, or only those that concern the few instances where something has.

The one rule: it writes down targets and claims, and how many instances are needed; asking for anything is `reconcile`'s work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from planner.model import ClusterFacts
from seerd.core.lifecycle import InstancePhase
from seerd.core.placement import Assignment, Demand, Node, place
from seerd.core.state import State, Trial
from seerd.core.waiting import Waiting

WORTH_PACKING = 0.75
"""Between two plans, trials are moved together only if so few of the instances would do: each move costs a save and a start."""


def aim_all(state: State) -> None:
    """Give every wanted trial its GPUs, moving as few as possible; whoever is affected is looked at."""
    state.replace = False
    state.refit = True
    state.roomy = {}
    nodes = [Node(i.id, i.gpus) for i in state.instances.values() if i.phase is InstancePhase.READY]
    demands = [Demand(a.trial, a.gpus) for a in state.wanted.values()]
    rented = state.facts.cluster.billing == "rented"
    placed = place(demands, _present(state, demands, nodes), nodes, pack=rented)
    state.sizes = Counter(demand.gpus for demand in demands)
    state.needed = instances_needed(state.sizes, state.facts.cluster)
    state.waiting = Waiting(demand for demand in demands if demand.trial not in placed.assignments)
    for node in nodes:
        state.instances[node.id].claims.clear()
        state.idle[node.id] = None
    before, state.aimed = state.aimed, {}
    for name in sorted({*before, *placed.assignments}):
        _aim(state, state.trials[name], placed.assignments.get(name))


def drop(state: State, trial: Trial) -> None:
    """A wanted trial has ended: what it had, or was to have, is free for others."""
    allocation = state.wanted.pop(trial.id, None)
    if allocation is None:
        return
    trial.gpus, trial.until = 0, None
    state.waiting.remove(trial.id, allocation.gpus)
    state.sizes[allocation.gpus] -= 1
    for slots in trial.target or ():
        claims = state.instances[slots.node].claims
        for gpu in slots.gpus:
            claims.pop(gpu, None)
        state.roomy[slots.node] = None
        state.idle[slots.node] = None
    trial.target = None
    state.aimed.pop(trial.id, None)
    state.needed = instances_needed(state.sizes, state.facts.cluster)
    state.refit = True
    rented = state.facts.cluster.billing == "rented"
    state.replace = state.replace or (rented and state.needed <= WORTH_PACKING * state.live)


def fill(state: State) -> None:
    """Place waiting trials where room has appeared; nobody else is looked at."""
    roomy, state.roomy = state.roomy, {}
    state.refit = True
    for name in roomy:
        instance = state.instances.get(name)
        if instance is None or instance.phase is not InstancePhase.READY:
            continue
        state.idle[name] = None
        if state.waiting.largest > instance.gpus:
            state.replace = True
            return
        _fill_one(state, Node(name, instance.gpus), instance.claims)


def _fill_one(state: State, node: Node, claims: Mapping[int, str]) -> None:
    first = state.waiting.first(node.gpus - len(claims))
    there = [state.trials[name] for name in dict.fromkeys(claims.values())]
    present = {trial.id: trial.target for trial in there if trial.target is not None}
    if not first or any(len(target) > 1 for target in present.values()):
        return
    demands = [*(Demand(trial.id, trial.gpus) for trial in there), *first]
    placed = place(demands, present, [node]).assignments
    for demand in sorted(first, key=lambda demand: demand.trial):
        if demand.trial in placed:
            state.waiting.remove(demand.trial, demand.gpus)
            _aim(state, state.trials[demand.trial], placed[demand.trial])


def _present(state: State, demands: list[Demand], nodes: list[Node]) -> dict[str, Assignment]:
    """Where trials are or are already going to be, on the instances that are there."""
    there = {node.id for node in nodes}
    trials = (state.trials[demand.trial] for demand in demands)
    where = {trial.id: trial.target or trial.held for trial in trials if not trial.out}
    return {name: a for name, a in where.items() if a is not None and all(slots.node in there for slots in a)}


def _aim(state: State, trial: Trial, target: Assignment | None) -> None:
    for slots in target or ():
        state.instances[slots.node].claims.update(dict.fromkeys(slots.gpus, trial.id))
    if target is not None:
        state.aimed[trial.id] = None
    trial.target = target
    if target != trial.held:
        state.touch(trial.id)


def instances_needed(sizes: Mapping[int, int], cluster: ClusterFacts) -> int:
    """Instances that hold so many trials of each number of GPUs without splitting one that fits: largest first, where the least room is left."""
    size = cluster.gpus_per_instance
    needed, rooms = 0, Counter[int]()
    for gpus in sorted(sizes, reverse=True):
        left = sizes[gpus]
        needed += gpus // size * left
        rest = gpus % size
        for room in sorted(room for room in rooms if rest and room >= rest):
            took = min(left, rooms[room] * (room // rest))
            left -= took
            full, some = divmod(took, room // rest)
            rooms[room] -= full + (some > 0)
            rooms[room - room // rest * rest] += full
            rooms[room - some * rest] += some > 0
        if rest and left:
            opened, some = divmod(left, size // rest)
            needed += opened + (some > 0)
            rooms[size - size // rest * rest] += opened
            rooms[size - some * rest] += some > 0
    return needed if cluster.max_instances is None else min(needed, cluster.max_instances)
