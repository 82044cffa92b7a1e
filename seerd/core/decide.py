"""What is wanted now: whether the run goes on, which trials should run on how many GPUs, and where.

The one rule: it only writes down what is wanted (`plan`, `gpus`, `target`, `phase`); asking for it is `reconcile`'s work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from planner.model import Allocation, ClusterFacts, Plan, View
from seerd.core.apply import MAX_REFUSALS
from seerd.core.commands import Status
from seerd.core.lifecycle import InstancePhase, RunPhase, TrialPhase
from seerd.core.limits import close_at, exhausted_at, quiet_by
from seerd.core.placement import Assignment, Demand, Node, place
from seerd.core.state import State, Trial


def decide(state: State) -> None:
    """Bring what is wanted up to date with what was just learned."""
    woken, state.woken = state.woken, False
    if state.phase is RunPhase.RUNNING:
        _run_on(state, woken)
    if state.phase is RunPhase.CLOSING and (state.holding == 0 or (woken and _too_late(state))):
        state.go(RunPhase.RELEASING)


def _run_on(state: State, woken: bool) -> None:
    ending = state.ending or (_limit_reached(state) if woken else None) or _nothing_to_run_on(state)
    if ending is None and state.replan:
        state.replan = False
        ending = _adopt(state, state.policy.plan(View(state.now, state.facts.mode, state.trials)))
    if ending is not None:
        _close(state, ending)
        return
    if state.fresh and not state.replace:
        _fill(state)
    if state.replace:
        _place(state)


def _limit_reached(state: State) -> Status | None:
    if state.now >= close_at(state):
        return "done" if _in_last_stage(state) else "deadline"
    if state.now >= exhausted_at(state):
        return "budget"
    return None


def _in_last_stage(state: State) -> bool:
    return state.plan.stage == len(state.outline.stages) - 1


def _nothing_to_run_on(state: State) -> Status | None:
    """Refused again and again without any instance: nothing will come of waiting."""
    return "failed" if state.refusals >= MAX_REFUSALS and not state.live else None


def _adopt(state: State, plan: Plan) -> Status | None:
    """Take the policy's plan as what is wanted; the way the run ends, if the plan is that it is done."""
    state.plan = plan
    for new in plan.new:
        seed = (state.facts.problem.params.seed * 1_000_003 + len(state.trials)) % 2**31
        state.trials[new.id] = Trial(new.id, new.config, seed)
    for name in plan.eliminated:
        _eliminate(state, state.trials[name])
    if plan.done:
        return "done" if any(trial.history for trial in state.trials.values()) else "failed"
    before = state.wanted
    state.wanted = {allocation.trial: allocation for allocation in plan.allocations}
    for name in before:
        if name not in state.wanted:
            state.trials[name].gpus = 0
            state.trials[name].until = None
    for allocation in plan.allocations:
        trial = state.trials[allocation.trial]
        trial.gpus, trial.bracket, trial.until = allocation.gpus, allocation.bracket, allocation.until
    state.replace = state.replace or _demands(before) != _demands(state.wanted)
    return None


def _demands(wanted: dict[str, Allocation]) -> list[tuple[str, int]]:
    return [(name, allocation.gpus) for name, allocation in wanted.items()]


def _eliminate(state: State, trial: Trial) -> None:
    if trial.status != "live":
        return
    trial.out = True
    trial.why = f"eliminated after stage {state.plan.stage}" if state.plan.stage else "eliminated"
    state.touch(trial.id)
    if trial.phase is TrialPhase.WAITING:
        trial.go(TrialPhase.ELIMINATED)


def _close(state: State, ending: Status) -> None:
    """Every trial saves and exits; nothing new is started."""
    state.close_by = quiet_by(state)
    state.go(RunPhase.CLOSING)
    state.ending = ending
    state.wanted = {}
    state.waiting = {}
    for instance in state.instances.values():
        instance.claims.clear()
    for trial in state.trials.values():
        trial.gpus = 0
        trial.target = None
        state.touch(trial.id)


def _too_late(state: State) -> bool:
    """Attempts that are still there did not end when they should have: their instances are given back as they are."""
    return state.close_by is not None and state.now >= state.close_by


def _place(state: State) -> None:
    """Give every wanted trial its GPUs, moving as few as possible; whoever is affected is looked at."""
    state.replace = False
    state.refit = True
    state.fresh = []
    nodes = [Node(i.id, i.gpus) for i in state.instances.values() if i.phase is InstancePhase.READY]
    demands = [Demand(a.trial, a.gpus) for a in state.wanted.values() if state.trials[a.trial].status == "live"]
    rented = state.facts.cluster.billing == "rented"
    placed = place(demands, _present(state, demands, nodes), nodes, pack=rented)
    state.needed = instances_needed([demand.gpus for demand in demands], state.facts.cluster)
    state.waiting = {demand.trial: demand for demand in demands if demand.trial not in placed.assignments}
    for node in nodes:
        state.instances[node.id].claims.clear()
        state.idle[node.id] = None
    before, state.aimed = state.aimed, {}
    for name in sorted({*before, *placed.assignments}):
        _aim(state, state.trials[name], placed.assignments.get(name))


def _fill(state: State) -> None:
    """Place waiting trials on instances that have just become ready; nobody else is looked at."""
    fresh, state.fresh = state.fresh, []
    state.refit = True
    for name in fresh:
        node = Node(name, state.instances[name].gpus)
        state.idle[name] = None
        first = _first(state.waiting, node.gpus)
        if any(demand.gpus > node.gpus for demand in first):
            state.replace = True
            return
        for trial, assignment in sorted(place(first, {}, [node]).assignments.items()):
            del state.waiting[trial]
            _aim(state, state.trials[trial], assignment)


def _first(waiting: dict[str, Demand], gpus: int) -> list[Demand]:
    """The most valuable ones: as many as could share so many GPUs."""
    return list(islice(waiting.values(), gpus))


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


def instances_needed(gpus: Sequence[int], cluster: ClusterFacts) -> int:
    """Instances that hold all these trials without splitting one that fits: first fit, largest first."""
    size = cluster.gpus_per_instance
    whole, free = 0, Counter[int]()
    for wanted in sorted(gpus, reverse=True):
        whole += wanted // size
        rest = wanted % size
        if not rest:
            continue
        room = min((room for room, count in free.items() if count and room >= rest), default=size)
        whole += room == size
        free[room] -= room != size
        free[room - rest] += 1
    return whole if cluster.max_instances is None else min(whole, cluster.max_instances)
