"""Policies by the clock where limits are extended (`renewed`), or whole instances are paid
(`open_ended`), and by progress where a stopped trial begins anew (`unpaused`). The policies know
nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf, nextafter

from msgspec import convert

from seerd.planner.asha import places
from seerd.planner.caching import IndexCache, per_problem
from seerd.planner.draws import draws
from seerd.planner.fixed_cluster import FixedCluster, fixed_cluster
from seerd.planner.memory import Count, Json, Memory, Values, differing, holding
from seerd.planner.model import (
    Allocation,
    Compared,
    Impossible,
    NewTrial,
    Outline,
    Plan,
    Policy,
    Problem,
    TrialView,
    View,
    renamed,
)
from seerd.planner.ranking import metric_at, rank, standing_at
from seerd.planner.rungs import MAX_REPORTS
from seerd.planner.space import Config
from seerd.planner.trial_ids import highest, in_order, trial_name

EXTENDED, PLACES = "extended", "places"
"""Keys of the memory beside the policy's own: which extension its plan is of, and the trial in each
place.
"""
NOBODY = ""  # the trial of a place that is empty
TRIES = 100  # draws for each place that are looked at for a configuration that was not tried


def renewed(policy: Policy) -> Policy:
    """Let a policy plan anew what is left whenever the limits were extended."""

    def plan(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
        if not problem.extended:
            return policy.plan(problem, memory, view)
        places = _places(problem, memory)
        if places is None:
            return _begin(policy, problem, memory, view)
        inner = Memory({k: v for k, v in memory.values.items() if k not in (EXTENDED, PLACES)})
        wanted, after = policy.plan(problem, inner, _seen(view, places))
        return _named(wanted, places), memory.after(after.changes)

    return Policy(policy.outline, plan)


def open_ended(policy: Policy) -> Policy:
    """Let the last stage go on where whole instances are paid: its end is never shown."""

    @per_problem
    def end_s(problem: Problem) -> float:
        outline = policy.outline(problem)
        return inf if isinstance(outline, Impossible) else outline.stages[-1].end_s

    def plan(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
        if not problem.whole:
            return policy.plan(problem, memory, view)
        before_s = min(view.now_s, nextafter(end_s(problem), 0.0))
        wanted, after = policy.plan(problem, memory, replace(view, now_s=before_s))
        last = wanted.ask_at_s == end_s(problem)
        return replace(wanted, ask_at_s=None if last else wanted.ask_at_s), after

    return Policy(policy.outline, plan)


def _places(problem: Problem, memory: Memory) -> dict[str, str] | None:
    if memory.values.get(EXTENDED) != problem.extended:
        return None
    try:
        names = convert(memory.values.get(PLACES), list[str])
    except ValueError:
        return None
    width = len(str(len(names)))
    return {trial_name(number, width): name for number, name in enumerate(names, 1)}


def _begin(policy: Policy, problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
    """Ask the policy for a plan as at the beginning of a run, and fill its places."""
    begun, after = policy.plan(problem, Memory(), View(view.now_s, view.mode, {}))
    places, new, out = _fill(problem, begun.new, view)
    # ask again: the policy has not seen yet which trials have the places
    wanted, after = policy.plan(problem, after, _seen(view.with_new(new), places))
    plan = _named(wanted, places)
    plan = replace(plan, new=tuple(new), eliminated=(*out, *plan.eliminated))
    own: Values = {EXTENDED: problem.extended, PLACES: [*places.values()]}
    return plan, holding(memory, {**after.values, **own})


def _fill(
    problem: Problem, asked: Sequence[NewTrial], view: View
) -> tuple[dict[str, str], list[NewTrial], list[str]]:
    """Return place -> its trial, the new trials, and the live trials that have no place."""
    live = rank((t for t in view.trials.values() if t.status == "live"), view.mode)
    left = [trial.id for trial in live]
    tried = [trial.config for trial in view.trials.values()]
    places = in_order(trial.id for trial in asked)
    fresh = _untried(problem, asked[len(left) :], tried)
    number, new, filled = highest(view.trials), [], {}
    for place in places:
        if left:
            filled[place] = left.pop(0)
        elif (config := next(fresh, None)) is not None:
            number += 1
            made = NewTrial(trial_name(number, len(max(view.trials, default="")) - 1), config)
            new.append(made)
            filled[place] = made.id
        else:
            filled[place] = NOBODY
    return filled, new, left


def _untried(problem: Problem, asked: Sequence[NewTrial], tried: list[Config]) -> Iterator[Config]:
    """Yield untried configurations: the policy's, then, unless it is a grid, further draws."""
    for trial in asked:
        if trial.config not in tried:
            tried.append(trial.config)
            yield trial.config
    if problem.params.name == "grid":
        return
    drawn = draws(problem)
    first = len(tried)
    for number in range(first, first + TRIES * (1 + len(asked))):
        if drawn[number] not in tried:
            tried.append(drawn[number])
            yield drawn[number]


def _seen(view: View, places: Mapping[str, str]) -> View:
    seen: dict[str, TrialView] = {
        place: renamed(view.trials[name], place)
        if name in view.trials
        else NewTrial(place, {}, status="failed")
        for place, name in places.items()
    }
    return replace(view, trials=seen)


def _named(plan: Plan, places: Mapping[str, str]) -> Plan:
    filled = {place: name for place, name in places.items() if name != NOBODY}
    return replace(
        plan,
        allocations=tuple(
            a._replace(trial=filled[a.trial]) for a in plan.allocations if a.trial in filled
        ),
        new=(),
        eliminated=tuple(filled[name] for name in plan.eliminated if name in filled),
        compared=tuple(
            c._replace(trial=filled[c.trial]) for c in plan.compared if c.trial in filled
        ),
    )


# the key of the memory beside the policy's own: trial -> the rung to which it was sent
TRAINING = "training"
NOTE = "no trial is paused: each trains until it ends, or is out since others are better"


def unpaused(policy: Policy) -> Policy:
    """Let trials train on that the policy would pause, if they would begin anew. One is out, for
    good, once another trial needs its GPUs and it is not among the best 1/eta at its rung.
    """
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
        try:
            sent = convert(memory.values.get(TRAINING), dict[str, Count])
        except ValueError:
            sent = {}
        answer, training = _carried_on(problem, wanted, sent, view)
        after = memory.after({**inner.changes, **differing(memory, {TRAINING: training})})
        cache.keep(problem, after, inner)
        return answer, after

    return Policy(outline, plan)


def longest_training(problem: Problem, view: View) -> int | None:
    """Return how many reports the longest training makes, or None."""
    ended = [t.reports for t in view.trials.values() if t.status == "finished" and t.reports]
    return problem.params.max_reports or max(ended, default=None)


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
