"""Whether a user's request can be granted while a run goes on. Limits are never lowered here: that
would end what is under way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from seerd.core.events import AddAsked, AnyRequest, ExtendAsked, JobAdded, JobWeighed
from seerd.core.jobs import open_jobs
from seerd.core.lifecycle import RunPhase
from seerd.core.state import State
from seerd.core.verdicts import AnyVerdict, Denied, DenyCause, Granted
from seerd.planner.model import Limits
from seerd.planner.policies import AT_ONCE


def requested(state: State) -> Iterator[AnyVerdict]:
    """Judge the user's requests. The policy is then asked again."""
    for request, event in list(state.requests.open.items()):
        why = _why_not(state, event)
        if why is not None:
            yield Denied(request=request, why=why)
            continue
        yield Granted(request=request)
        is_added, is_extended = isinstance(event, AddAsked), isinstance(event, ExtendAsked)
        state.agenda.ask = "added" if is_added else "extended" if is_extended else "jobs"
        state.agenda.about = None
        state.agenda.refit = True


def _why_not(state: State, event: AnyRequest) -> DenyCause | None:
    if state.phase is not RunPhase.RUNNING or state.end.status is not None:
        return "ending"
    if isinstance(event, AddAsked):
        return _why_not_added(state, event)
    if isinstance(event, ExtendAsked):
        return why_not_raised(state.facts.problem.limits, event.problem.limits)
    weight = 1.0
    if isinstance(event, JobAdded):
        fits, weight = event.job.id not in state.jobs and bool(state.facts.jobs), event.job.weight
    else:
        fits = event.job in open_jobs(state)
        weight = event.weight if isinstance(event, JobWeighed) else weight
    return None if fits and 0 < weight < math.inf else "no-job"


def _why_not_added(state: State, event: AddAsked) -> DenyCause | None:
    problem = state.facts.problem
    parameters = {parameter.name: parameter for parameter in problem.space.parameters}
    active = {name for name, parameter in parameters.items() if parameter.active(event.config)}
    fits = event.config.keys() == active and all(
        parameters[name].may_be(value) for name, value in event.config.items()
    )
    if not fits or not problem.space.allows(event.config):
        return "space"
    most = problem.params.trials
    waiting = sum(number >= len(state.trials) for number, _ in problem.added)
    spent = most is not None and len(state.trials) + waiting >= most
    return "no-more" if problem.params.name in AT_ONCE or spent else None


def why_not_raised(now: Limits, wanted: Limits) -> DenyCause | None:
    """Return why these limits cannot replace those that hold; None if they can."""
    pairs = [
        (wanted.deadline_s, now.deadline_s),
        (wanted.budget_gpu_s, now.budget_gpu_s),
        (_most(wanted.cost_usd), _most(now.cost_usd)),
        (_most(wanted.max_gpus), _most(now.max_gpus)),
    ]
    if any(new < old for new, old in pairs):
        return "lower"
    return None if any(new > old for new, old in pairs) else "same"


def _most(limit: float | None) -> float:
    return math.inf if limit is None else limit
