"""Policies by progress, where a trial that is stopped begins anew: none is paused.

A trial that such a policy would pause at a rung trains on. It is out, for good, once another trial
needs its GPUs and it is not among the best 1/eta at that rung, as in ASHA's variant that stops
trials.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from seerd.planner.asha import places
from seerd.planner.caching import IndexCache
from seerd.planner.fixed_cluster import FixedCluster, fixed_cluster
from seerd.planner.memory import Json, Memory, differing, integer
from seerd.planner.model import (
    Allocation,
    Compared,
    Impossible,
    Outline,
    Plan,
    Policy,
    Problem,
    TrialView,
    View,
)
from seerd.planner.ranking import metric_at, standing_at
from seerd.planner.rungs import MAX_REPORTS

# the key of the memory beside the policy's own: trial -> the rung to which it was sent
TRAINING = "training"
NOTE = "no trial is paused: each trains until it ends, or is out since others are better"


def unpaused(policy: Policy) -> Policy:
    """Let trials train on that the policy would pause, if they would begin anew."""
    cache = IndexCache[Memory]()

    def outline(problem: Problem) -> Outline | Impossible:
        result = policy.outline(problem)
        if isinstance(result, Impossible) or not problem.begins_anew:
            return result
        return replace(result, adjusted=(*result.adjusted, NOTE))

    def plan(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
        if not problem.begins_anew:
            return policy.plan(problem, memory, view)
        own = {key: value for key, value in memory.values.items() if key != TRAINING}
        wanted, inner = policy.plan(problem, cache.take(problem, memory) or Memory(own), view)
        answer, training = _carried_on(problem, wanted, _sent(memory), view)
        after = memory.after({**inner.changes, **differing(memory, {TRAINING: training})})
        cache.keep(problem, after, inner)
        return answer, after

    return Policy(outline, plan)


def longest_training(problem: Problem, view: View) -> int | None:
    """Return how many reports the longest training makes, or None."""
    ended = [t.reports for t in view.trials.values() if t.status == "finished" and t.reports]
    return problem.params.max_reports or max(ended, default=None)


def _sent(memory: Memory) -> dict[str, int]:
    remembered = memory.values.get(TRAINING)
    try:
        pairs = remembered.items() if isinstance(remembered, dict) else ()
        return {name: integer(until, 0) for name, until in pairs}
    except ValueError:
        return {}


def _carried_on(
    problem: Problem, wanted: Plan, sent: dict[str, int], view: View
) -> tuple[Plan, dict[str, Json]]:
    """Return the plan in which no trial is paused, and trial -> rung; `sent`: the same before."""
    cluster, params = fixed_cluster(problem), problem.params
    if not isinstance(cluster, FixedCluster) or cluster.over(view.now_s):
        return wanted, {}
    waiting = {allocation.trial: allocation for allocation in wanted.allocations}
    out, most = list(wanted.eliminated), params.max_reports or MAX_REPORTS
    live = {name: t for name, t in view.trials.items() if t.status == "live" and name not in out}
    training: dict[str, Allocation] = {}
    paused: list[TrialView] = []
    for name, rung in sent.items():
        if name in live and live[name].reports < most:
            arrived = live[name].reports >= rung
            paused += [live[name]] if arrived and name not in waiting else []
            on = Allocation(name, params.p_min, until=None if arrived else rung)
            training[name] = waiting.pop(name, on)
    judged = (_compared(problem, trial, sent[trial.id], view) for trial in paused)
    beaten = [c for c in judged if c.metric is None or c.place > c.best]
    stood = list(wanted.compared)
    room = places(cluster.gpus, params.p_min, problem.gpus_per_instance)
    for name, allocation in waiting.items():
        if len(training) >= room and beaten:
            stood.append(beaten.pop())
            out.append(stood[-1].trial)
            del training[out[-1]]
        if len(training) < room:
            training[name] = allocation
    answer = replace(
        wanted,
        allocations=tuple(training.values())[:room],
        eliminated=tuple(out),
        ask_at_s=cluster.ask_at_s,
        done=not training,
        compared=tuple(stood),
    )
    return answer, {name: a.until or sent.get(name, 0) for name, a in training.items()}


def _compared(problem: Problem, trial: TrialView, rung: int, view: View) -> Compared:
    """Return how a trial stands at a rung; a complete one goes on. No metric: it diverged."""
    arrived = [other for other in view.trials.values() if other.reports >= rung]
    order = sorted(standing_at(other, rung, view.mode) for other in arrived)
    best = max(1, int(len(order) / Fraction(problem.params.eta)))
    if trial.reports >= (longest_training(problem, view) or MAX_REPORTS):
        best = len(order)
    place = order.index(standing_at(trial, rung, view.mode)) + 1
    metric = None if trial.metric is None else metric_at(trial, rung)
    return Compared(trial.id, metric, rung, place, len(order), best)
