"""Policies by the clock where limits are extended (`renewed`), or whole instances are paid
(`open_ended`); the policies know nothing of either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, nextafter

from seerd.planner.caching import per_problem
from seerd.planner.draws import draws
from seerd.planner.memory import Memory, Values, holding, texts
from seerd.planner.model import (
    Impossible,
    NewTrial,
    Plan,
    Policy,
    Problem,
    TrialView,
    View,
    renamed,
)
from seerd.planner.ranking import rank
from seerd.planner.space import Config
from seerd.planner.trial_ids import highest, in_order, trial_name

EXTENDED, PLACES = "extended", "places"
"""Keys of the memory beside the policy's own: which extension its plan is of, and the trial in each
place.
"""
NOBODY = ""  # the trial of a place that is empty
TRIES = 100  # draws for each place that are looked at for a configuration that was not tried


@dataclass(frozen=True, slots=True)
class _Filled:
    """The trials in the places of a new plan."""

    places: dict[str, str]  # place -> its trial
    new: tuple[NewTrial, ...]
    out: tuple[str, ...]  # live trials that have no place


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
        names = texts(memory.values.get(PLACES))
    except ValueError:
        return None
    width = len(str(len(names)))
    return {trial_name(number, width): name for number, name in enumerate(names, 1)}


def _begin(policy: Policy, problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
    """Ask the policy for a plan as at the beginning of a run, and fill its places."""
    begun, after = policy.plan(problem, Memory(), View(view.now_s, view.mode, {}))
    filled = _fill(problem, begun.new, view)
    # ask again: the policy has not seen yet which trials have the places
    with_new = view.with_new(filled.new)
    wanted, after = policy.plan(problem, after, _seen(with_new, filled.places))
    plan = _named(wanted, filled.places)
    plan = replace(plan, new=filled.new, eliminated=(*filled.out, *plan.eliminated))
    own: Values = {EXTENDED: problem.extended, PLACES: [*filled.places.values()]}
    return plan, holding(memory, {**after.values, **own})


def _fill(problem: Problem, asked: Sequence[NewTrial], view: View) -> _Filled:
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
    return _Filled(filled, tuple(new), tuple(left))


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
            replace(c, trial=filled[c.trial]) for c in plan.compared if c.trial in filled
        ),
    )
