"""What is wanted now: whether the run goes on, which trials should run on how many GPUs, and where.

The one rule: it only writes down what is wanted (`plan`, `gpus`, `target`, `phase`); asking for it is `reconcile`'s work.
"""

from __future__ import annotations

from planner.model import Allocation, Plan, View
from seerd.core.aiming import aim_all, drop, fill
from seerd.core.commands import Status
from seerd.core.launching import hopeless
from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.limits import close_at, exhausted_at, quiet_by
from seerd.core.state import State, Trial
from seerd.core.waiting import Waiting


def decide(state: State) -> None:
    """Bring what is wanted up to date with what was just learned."""
    woken, state.woken = state.woken, False
    if state.phase is RunPhase.RUNNING:
        _run_on(state, woken)
    if state.phase is RunPhase.CLOSING and (state.holding == 0 or (woken and _too_late(state))):
        state.go(RunPhase.RELEASING)


def _run_on(state: State, woken: bool) -> None:
    _drop_ended(state)
    ending = state.ending or (_limit_reached(state) if woken else None)
    ending = ending or (None if state.live else hopeless(state, in_last_stage=_in_last_stage(state)))
    if ending is None and state.replan:
        state.replan = False
        ending = _adopt(state, state.policy.plan(View(state.now, state.facts.mode, state.trials)))
    if ending is not None:
        _close(state, ending)
        return
    if state.roomy and not state.replace:
        fill(state)
    if state.replace:
        aim_all(state)


def _drop_ended(state: State) -> None:
    """Trials that have finished or failed are wanted no more; the policy is asked if it wants to be, or if nobody is left."""
    for name in state.ended:
        drop(state, state.trials[name])
    if state.ended:
        state.replan = state.replan or state.plan.ask_on_end or not state.wanted
        state.ended = []


def _limit_reached(state: State) -> Status | None:
    if state.now >= close_at(state):
        return "done" if _in_last_stage(state) else "deadline"
    if state.now >= exhausted_at(state):
        return "done" if _carried_out(state) else "budget"
    return None


def _carried_out(state: State) -> bool:
    """Whether the plan has come to its end, and only what it had left was still being used."""
    return state.facts.problem.whole and state.now >= state.outline.stages[-1].end_s


def _in_last_stage(state: State) -> bool:
    return state.plan.stage == len(state.outline.stages) - 1


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
    live = (a for a in plan.allocations if state.trials[a.trial].status == "live")
    state.wanted = {allocation.trial: allocation for allocation in live}
    for name in before:
        if name not in state.wanted:
            state.trials[name].gpus = 0
            state.trials[name].until = None
    for allocation in state.wanted.values():
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
    state.waiting = Waiting()
    for instance in state.instances.values():
        instance.claims.clear()
    for trial in state.trials.values():
        trial.gpus = 0
        trial.target = None
        state.touch(trial.id)


def _too_late(state: State) -> bool:
    """Attempts that are still there did not end when they should have: their instances are given back as they are."""
    return state.close_by is not None and state.now >= state.close_by
