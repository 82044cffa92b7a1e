"""How many instances to launch now, and when again after a refusal. An instance is launched only if
it could be ready in time, can be paid, and keeps within the user's largest number of GPUs.
Instances that the cloud is taking away count until they are being given back.
"""

from __future__ import annotations

import math
from dataclasses import replace

from seerd.core.commands import Status
from seerd.core.events import LaunchRefused
from seerd.core.instances import number_of
from seerd.core.ledger import Charge
from seerd.core.lifecycle import InstancePhase
from seerd.core.limits import affordable_launch, close_at, orphan_timeout_s, time_left
from seerd.core.state import State
from seerd.core.verdicts import Again, HoldCause


def after_refusal(state: State, refusal: LaunchRefused) -> Again:
    """Decide when to launch again after a refusal, which counts once for each batch. After an
    unknown reason launches rest until an instance has come or gone; where none can, they are
    repeated. Until an instance is ready, launches end if one that was asked for after such a cause
    is useless for the same cause.
    """
    fleet, rules = state.fleet, state.rules
    refusals, number = fleet.refusals, number_of(refusal.command)
    batch = max(fleet.refused, number)
    over = fleet.launch_at == math.inf and not fleet.until_change
    cause = refusal.cause if state.facts.cluster.per_instance and not fleet.any_ready else None
    same_again = cause == fleet.setback and number >= fleet.setback_from
    if (cause and same_again) or (not refusal.retry and not refusal.unknown):
        refusals, over = refusals + rules.max_refusals, True
    elif number > fleet.refused:
        refusals += 1
    if over:
        return Again(refusals=refusals, batch=batch)
    cause = None if cause == fleet.setback else cause
    if (refusal.unknown or fleet.until_change) and fleet.present:
        return Again(refusals=refusals, batch=batch, changed=True, cause=cause)
    rest_s = state.now + _wait_s(state, refusals)
    at_s = rest_s if fleet.until_change else max(fleet.launch_at, rest_s)
    return Again(refusals=refusals, batch=batch, at_s=at_s, cause=cause)


def after_coming(state: State) -> Again | None:
    """Count refusals anew, since an instance has come. None if there is nothing to change."""
    fleet = state.fleet
    if not fleet.refusals and fleet.launch_at == -math.inf:
        return None
    at_s = fleet.launch_at
    if at_s < math.inf or fleet.until_change:
        at_s = min(at_s, state.now + _wait_s(state, 0))
    return Again(refusals=0, batch=fleet.refused, at_s=at_s if at_s < math.inf else None)


def _wait_s(state: State, refusals: int) -> float:
    return 0.0 if state.facts.cluster.instant else doubling_s(state, refusals)


def doubling_s(state: State, times: int) -> float:
    """Return how many seconds to wait after so many refusals in a row, or anything like them."""
    rules, deadline_s = state.rules, state.facts.problem.limits.deadline_s
    doubled_s = rules.retry_s * 2.0 ** min(10, max(0, times - 1))
    return min(doubled_s, rules.retry_most_s, deadline_s / rules.retry_share)


def launches(state: State) -> int:
    """Return how many more instances are wanted and allowed now, affordable or not."""
    if state.now < state.fleet.launch_at or not _in_time(state):
        return 0
    cluster, most_gpus = state.facts.cluster, state.facts.problem.limits.max_gpus
    more = state.aims.needed
    if most_gpus is not None:  # so many may be present at once, and what wanted trials need
        most = max(more, most_gpus // cluster.gpus_per_instance)
        more = min(more, most - state.fleet.leaving)
    if scouts(state):
        more = min(more, 1)
    more -= state.fleet.live
    if not cluster.per_instance and cluster.max_instances is not None:
        # These are always the same machines: one that is being left must be free first.
        return min(more, cluster.max_instances - state.fleet.present)
    return more


def scouts(state: State) -> bool:
    """Return whether no more than one instance is asked for, to see whether it is of use."""
    return state.fleet.scouts(state.now, state.facts.cluster.scout_s)


def asked_together(state: State) -> tuple[int, float | None]:
    """Return how many instances to launch now, all affordable together, and for how many seconds
    each may run without an agent (None: they cost nothing by themselves).
    """
    most, asked = launches(state), 0
    ahead = replace(state, ledger=state.ledger.copy()) if most > 0 else state
    cluster = state.facts.cluster
    size, minimum_s = cluster.gpus_per_instance, cluster.minimum_s
    while asked < most and affordable_one(ahead):
        asked += 1
        name = f"one of {asked}"
        if cluster.per_instance:
            gpus = cluster.gpus(size)
            price = cluster.most_usd_per_gpu_h or None
            ahead.ledger.start(Charge(name, name, gpus, ahead.now, None, minimum_s, price))
    return asked, orphan_timeout_s(ahead) if asked else None


def affordable_one(state: State) -> bool:
    """Return whether the budget allows one more instance."""
    return affordable_launch(state, state.facts.cluster.gpus_per_instance)


def held_back(state: State) -> HoldCause | None:
    """Return why wanted instances are not launched; None if none is wanted or it is about to be."""
    if state.fleet.live >= state.aims.needed or state.now < state.fleet.launch_at:
        return None
    if not _in_time(state):
        return "late"
    if launches(state) <= 0:
        return "scout" if state.fleet.live and scouts(state) else "most"
    return None if affordable_one(state) else "budget"


def _in_time(state: State) -> bool:
    return time_left(state, state.facts.cluster.boot_s)


def hopeless(state: State, *, in_last_stage: bool) -> Status | None:
    """Return how a run ends that has no instance and can get none; else None."""
    if state.fleet.live or state.fleet.leaving:
        return None
    patience_is_over = not state.fleet.until_change and state.fleet.launch_at >= _asks_until(state)
    least = state.rules.max_refusals if state.facts.cluster.wait_s is None else 1
    if state.fleet.refusals >= least and patience_is_over:
        return "failed"
    if state.fleet.present or not state.aims.needed or not state.facts.cluster.per_instance:
        return None
    if not _in_time(state):
        return "done" if in_last_stage else "deadline"
    return None if affordable_one(state) else "budget"


def _asks_until(state: State) -> float:
    """Return until when a run without an instance asks for one: by default, while a first round
    still fits before the deadline.
    """
    cluster, deadline_s = state.facts.cluster, state.facts.problem.limits.deadline_s
    if cluster.wait_s is not None:
        return state.fleet.refused_since + cluster.wait_s
    if not cluster.per_instance:
        return state.fleet.refused_since + deadline_s / state.rules.patience_share
    round_s = min(state.outline.first_round_s, state.facts.problem.params.t_min_s)
    return close_at(state) - cluster.boot_s - round_s


def refused(state: State) -> str | None:
    """Return why the cloud refused instances, if the run ended without any attempt."""
    attempted = any(trial.attempt for trial in state.trials.values())
    if not state.finished or state.end.status == "interrupted" or attempted:
        return None
    whys = [i.why for i in state.fleet.instances.values() if i.phase is InstancePhase.REFUSED]
    return whys[-1] if whys else None
