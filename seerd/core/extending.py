"""Whether a user's request can be granted while a run goes on. Limits are never lowered here: that
would end what is under way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from seerd.core.commands import AskCause
from seerd.core.events import AddAsked, AnyRequest, ExtendAsked, JobAdded, JobStopAsked, JobWeighed
from seerd.core.jobs import open_jobs
from seerd.core.lifecycle import InstancePhase, RunPhase
from seerd.core.limits import limit_at, release_s
from seerd.core.state import State
from seerd.core.verdicts import AnyVerdict, Denied, DenyCause, Granted, Retired
from seerd.planner.model import Limits
from seerd.planner.policies import AT_ONCE

_ASKED: dict[type, AskCause] = {
    AddAsked: "added",
    ExtendAsked: "extended",
    JobAdded: "jobs",
    JobStopAsked: "jobs",
    JobWeighed: "jobs",
}


def requested(state: State) -> Iterator[AnyVerdict]:
    """Judge the user's requests. The policy is then asked again."""
    for request, event in list(state.requests.open.items()):
        why = _why_not(state, event)
        if why is not None:
            yield Denied(request=request, why=why)
            continue
        yield Granted(request=request)
        state.agenda.ask, state.agenda.about = _ASKED[type(event)], None
        state.agenda.refit = True


def _why_not(state: State, event: AnyRequest) -> DenyCause | None:
    if state.phase is not RunPhase.RUNNING or state.end.status is not None:
        return "ending"
    if isinstance(event, AddAsked):
        return _why_not_added(state, event)
    if isinstance(event, JobAdded):
        new = event.job.id not in state.jobs and bool(state.facts.jobs)
        return None if new and 0 < event.job.weight < math.inf else "no-job"
    if isinstance(event, JobStopAsked):
        return None if event.job in open_jobs(state) else "no-job"
    if isinstance(event, JobWeighed):
        is_open = event.job in open_jobs(state)
        return None if is_open and 0 < event.weight < math.inf else "no-job"
    return why_not_raised(state.facts.problem.limits, event.problem.limits)


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


def retiring(state: State) -> Iterator[Retired]:
    """Yield the instances that must be replaced now, since they end themselves before the run."""
    lead_s = state.rules.retire_s + release_s(state)
    for instance in list(state.fleet.instances.values()):
        if instance.until is None or instance.phase is not InstancePhase.READY:
            continue
        if state.now >= instance.until - lead_s and instance.until - lead_s < limit_at(state):
            state.agenda.because = "replacement"
            yield Retired(instance=instance.id, by_s=instance.until)
