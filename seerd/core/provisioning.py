"""How many instances to launch now, and when again after a refusal. An instance is launched only if
it could be ready in time, can be paid, and keeps within the user's largest number of GPUs.
Instances that the cloud is taking away count until they are being given back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from seerd.core.commands import Status
from seerd.core.events import LaunchRefused
from seerd.core.instances import number_of
from seerd.core.ledger import Charge
from seerd.core.lifecycle import InstancePhase
from seerd.core.limits import affordable_launch, close_at, orphan_timeout_s, time_left
from seerd.core.state import LIVE, State
from seerd.core.verdicts import Again, HoldCause

COUNTED = (*LIVE, InstancePhase.LEAVING)  # instances that count for the largest number of GPUs


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


def asked_together(state: State) -> tuple[list[int], float | None]:
    """Return the instances to launch now, each as the most GPUs that it may have, all affordable
    together, and for how many seconds each may run without an agent (None: they cost nothing by
    themselves).
    """
    most, asked = launches(state), list[int]()
    ahead = replace(state, ledger=state.ledger.copy()) if most > 0 else state
    cluster = state.facts.cluster
    while sum(asked) < most * cluster.gpus_per_instance and (size := _next(ahead, most, asked)):
        asked.append(size)
        name = f"one of {len(asked)}"
        if cluster.per_instance:
            gpus, minimum_s = cluster.gpus(size), cluster.minimum_s
            price = cluster.most_usd_per_gpu_h or None
            ahead.ledger.start(Charge(name, name, gpus, ahead.now, None, minimum_s, price))
    return asked, orphan_timeout_s(ahead) if asked else None


def _next(state: State, most: int, asked: Sequence[int]) -> int | None:
    """Return how many GPUs at most the next instance may have, where `most` of the preferred size
    are wanted and those in `asked` are asked for with it; None: there is to be no other.

    It may have more than are missing only where the run has no instance and was refused, and has to
    have fewer than the preferred ones where the limits allow no more.
    """
    fleet, cluster = state.fleet, state.facts.cluster
    sizes, preferred = cluster.sizes, cluster.gpus_per_instance
    limit = state.facts.problem.limits.max_gpus
    if len(sizes) > 1:
        if asked and scouts(state):
            return None
        here = (i.gpus for i in fleet.instances.values() if i.phase in COUNTED)
        most_slots = math.inf if limit is None else limit - sum(here) - sum(asked)
        if fleet.live or asked or not fleet.refusals:
            most_slots = min(most_slots, most * preferred - sum(asked))
        sizes = tuple(size for size in sizes if size <= most_slots)
    size = next((size for size in sizes if affordable_launch(state, size)), None)
    enough = sum(asked) >= state.aims.missing
    return None if size is None or (size < preferred and enough) else size


def affordable_one(state: State) -> bool:
    """Return whether the budget allows one more instance, however small."""
    return affordable_launch(state, state.facts.cluster.sizes[-1])


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
