"""How many instances are needed where they come in several sizes. Which sizes come is known only
once the cloud has answered, so what is there and on the way counts with its own size, and what is
missing beyond that with the preferred one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from seerd.core.packing import Demand, PackingNode
from seerd.core.placement import place
from seerd.core.state import LIVE, State
from seerd.planner.model import Group
from seerd.planner.stages import instances_for


@dataclass(frozen=True, slots=True)
class Need:
    """What wanted trials need."""

    instances: int  # those that they use, and more of the preferred size
    missing: int  # the slots that are missing
    used: frozenset[str]  # the instances that they use, or will when all have come


def need(state: State, demands: Sequence[Demand]) -> Need:
    """Return what these trials need. One that has no room, and that idle instances help to get
    whole ones of one size, needs only what these lack. While some lack room, no instance is too
    many.
    """
    live = [i for i in state.fleet.instances.values() if i.phase in LIVE]
    nodes = [PackingNode(instance.id, instance.usable) for instance in live]
    ids, present = {node.id for node in nodes}, {}
    for trial in (state.trials[demand.trial] for demand in demands):
        where = trial.target or trial.held
        if where and all(slots.node in ids for slots in where):
            present[trial.id] = where
    parts = state.facts.parts
    placed = place(demands, present, nodes, pack=True, split=True, parts=parts)
    used = {slots.node for home in placed.values() for slots in home}
    idle = Counter(node.gpus for node in nodes if node.id not in used)
    lacking = Counter[int]()
    waiting = [demand.gpus for demand in demands if demand.trial not in placed]
    for gpus in sorted(waiting, reverse=True):
        ways = [(min(idle[n], gpus // n) * n, n) for n in idle if gpus % n == 0]
        helps, size = max(ways, default=(0, 1))
        idle[size] -= helps // size
        lacking[gpus - helps] += 1
    del lacking[0]
    preferred = state.facts.cluster.gpus_per_instance
    more = instances_for([Group(*pair) for pair in lacking.items()], preferred)
    missing = sum(gpus * trials for gpus, trials in lacking.items())
    return Need(len(live) + more if waiting else len(used), missing, frozenset(used))
