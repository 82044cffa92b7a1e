"""What is wanted now: whether the run goes on, which trials should run on how many GPUs, and where.

The one rule: it only writes down what is wanted (`plan`, `gpus`, `target`, `phase`); asking for it is `reconcile`'s work.
"""

from __future__ import annotations

from planner.model import Plan, View
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
    elif state.replace:
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
    some = any(i.phase in (InstancePhase.REQUESTED, InstancePhase.READY) for i in state.instances.values())
    return "failed" if state.refusals >= MAX_REFUSALS and not some else None


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
    wanted = {allocation.trial: allocation for allocation in plan.allocations}
    for trial in state.trials.values():
        allocation = wanted.get(trial.id)
        trial.gpus = allocation.gpus if allocation else 0
        trial.bracket = allocation.bracket if allocation else trial.bracket
        trial.until = allocation.until if allocation else None
    state.replace = True
    return None


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
    state.claims.clear()
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
    nodes = [Node(i.id, i.gpus) for i in state.instances.values() if i.phase is InstancePhase.READY]
    demands = [Demand(a.trial, a.gpus) for a in state.plan.allocations if state.trials[a.trial].status == "live"]
    rented = state.facts.cluster.billing == "rented"
    placed = place(demands, _present(state, nodes), nodes, pack=rented).assignments
    state.claims.clear()
    for trial in state.trials.values():
        _aim(state, trial, placed.get(trial.id))


def _present(state: State, nodes: list[Node]) -> dict[str, Assignment]:
    """Where trials are or are already going to be, on the instances that are there."""
    there = {node.id for node in nodes}
    where = {trial.id: trial.target or trial.held for trial in state.trials.values() if not trial.out}
    return {name: a for name, a in where.items() if a is not None and all(slots.node in there for slots in a)}


def _aim(state: State, trial: Trial, target: Assignment | None) -> None:
    for slots in target or ():
        for gpu in slots.gpus:
            state.claims[slots.node, gpu] = trial.id
    trial.target = target
    if target != trial.held:
        state.touch(trial.id)
