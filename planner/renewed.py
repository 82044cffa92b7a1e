"""Policies by the clock, when the limits are extended while a run goes on: what is left is planned
anew.

The one rule: the policies themselves know nothing of it. With each extension a new plan begins, for
the time and the GPU time that are left then. Its places are filled by the trials that are still
live, best first, and then by new configurations that were not tried before. Live trials beyond its
places are out. Who was out before stays out.

The policy goes on naming trials as if the run had begun then; here these names are those of places,
and each place has a trial or none. A place without one, since there was no configuration left that
was not tried, looks like a trial that has failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from seerd.planner.draws import draws
from seerd.planner.memory import Memory, Values, holding, texts
from seerd.planner.model import NewTrial, Plan, Problem, Report, TrialStatus, TrialView, View
from seerd.planner.protocol import Policy
from seerd.planner.ranking import rank
from seerd.planner.space import Config
from seerd.planner.trial_ids import highest, in_order, trial_name

EXTENDED, PLACES = "extended", "places"
"""The keys of the memory that are not the policy's own: which extension its plan is of, and the
trial in each place, in the order of the places; an empty text: none.
"""
NOBODY = ""
TRIES = 100
"""Draws for each place that are looked at for a configuration that was not tried before."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A trial as the policy sees it: under the name of its place."""

    id: str
    trial: TrialView | None

    @property
    def status(self) -> TrialStatus:
        return "failed" if self.trial is None else self.trial.status

    @property
    def config(self) -> Config:
        return {} if self.trial is None else self.trial.config

    @property
    def reports(self) -> int:
        return 0 if self.trial is None else self.trial.reports

    @property
    def metric(self) -> float | None:
        return None if self.trial is None else self.trial.metric

    @property
    def history(self) -> Sequence[Report]:
        return () if self.trial is None else self.trial.history


@dataclass(frozen=True, slots=True)
class _Filled:
    """Who has the places of a new plan."""

    places: dict[str, str]  # the trial of each place, by the place's name
    new: tuple[NewTrial, ...]  # those that are asked for
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


def _places(problem: Problem, memory: Memory) -> dict[str, str] | None:
    """Return the trial of each place; None if the memory is not of this extension."""
    if memory.values.get(EXTENDED) != problem.extended:
        return None
    try:
        names = texts(memory.values.get(PLACES))
    except ValueError:
        return None
    return dict(zip(_place_names(len(names)), names, strict=True))


def _place_names(count: int) -> Iterator[str]:
    return (trial_name(number, len(str(count))) for number in range(1, count + 1))


def _begin(policy: Policy, problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
    """Ask the policy for a plan as at the beginning of a run, and fill its places."""
    begun, after = policy.plan(problem, Memory(), View(view.now_s, view.mode, {}))
    filled = _fill(problem, begun.new, view)
    # Once more, since the policy has not seen yet who has the places.
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
    places = in_order(one.id for one in asked)
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
    """Yield configurations that were not tried: those that the policy asks for, then further
    draws; a grid has only its own points.
    """
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
    """Show the policy its places."""
    seen = {place: _Placed(place, view.trials.get(name)) for place, name in places.items()}
    return replace(view, trials=seen)


def _named(plan: Plan, places: Mapping[str, str]) -> Plan:
    """Name the trials of a plan by what they are called in the run."""
    return replace(
        plan,
        allocations=tuple(
            one._replace(trial=places[one.trial])
            for one in plan.allocations
            if places[one.trial] != NOBODY
        ),
        new=(),
        eliminated=tuple(places[name] for name in plan.eliminated if places[name] != NOBODY),
        compared=tuple(
            replace(one, trial=places[one.trial])
            for one in plan.compared
            if places[one.trial] != NOBODY
        ),
    )
