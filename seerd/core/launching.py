"""Asking for instances: how many now, when again after a refusal, and when it is of no use any more.

The one rule: an instance is asked for only if it could still be ready in time, be paid, and keep within the most GPUs that the person allows;
those that the cloud is taking away count until they are being given back.
"""

from __future__ import annotations

import math

from seerd.core.commands import Status
from seerd.core.events import LaunchRefused
from seerd.core.lifecycle import InstancePhase
from seerd.core.limits import affordable_launch, time_left
from seerd.core.state import State

MAX_REFUSALS = 3
PATIENCE_SHARE = 10
"""A run that has no instance gives up when launches have been refused so many times in a row, for this part of the deadline."""
RETRY_S = 15.0
RETRY_MOST_S = 120.0
"""From a refusal until launches are asked for again: at first, and at most. It doubles each time."""
RETRY_SHARE = 20
"""No wait takes more than this part of the deadline, so that a short run is not all waiting."""


def refuse(state: State, event: LaunchRefused) -> None:
    """Write down when to ask again. Launches that were asked for together are refused together: that counts once."""
    batch = int(event.command.partition(".")[0])
    if not state.refusals:
        state.refused_since = event.at
    if not event.retry:
        state.refusals += MAX_REFUSALS
        state.launch_at = math.inf
    elif batch > state.refused:
        state.refusals += 1
    state.refused = max(state.refused, batch)
    state.launch_at = max(state.launch_at, event.at + _wait_s(state))


def come(state: State, at: float) -> None:
    """An instance has come: refusals begin anew, and so does the time until the next launch."""
    state.refusals = 0
    if state.launch_at < math.inf:
        state.launch_at = min(state.launch_at, at + _wait_s(state))


def gone(state: State) -> None:
    """An instance is gone, or will be: what was refused beside it may be had now."""
    state.refusals = 0
    state.refit = state.refit or state.launch_at > state.now
    state.launch_at = -math.inf


def _wait_s(state: State) -> float:
    if state.facts.cluster.instant:
        return 0.0
    doubled = RETRY_S * 2.0 ** min(10, max(0, state.refusals - 1))
    return min(doubled, RETRY_MOST_S, state.facts.problem.limits.deadline_s / RETRY_SHARE)


def launches(state: State) -> int:
    """How many instances more are wanted and may be asked for now, each of which must still be affordable."""
    if state.now < state.launch_at or not _in_time(state):
        return 0
    more, cluster = min(state.needed, _most(state) - state.leaving) - state.live, state.facts.cluster
    if cluster.billing == "held" and cluster.max_instances is not None:
        return min(more, cluster.max_instances - state.present)  # the same machines again, once they have been left
    return more


def affordable_one(state: State) -> bool:
    """Whether one more instance may be paid."""
    return affordable_launch(state, state.facts.cluster.gpus_per_instance)


def _most(state: State) -> int:
    """Instances that may be there at one moment: what the wanted trials need is never too many."""
    most_gpus = state.facts.problem.limits.max_gpus
    if most_gpus is None:
        return state.needed + state.leaving
    return max(state.needed, most_gpus // state.facts.cluster.gpus_per_instance)


def _in_time(state: State) -> bool:
    return time_left(state, state.facts.cluster.boot_s)


def hopeless(state: State, *, in_last_stage: bool) -> Status | None:
    """How a run ends that has no instance and can get none, None if it has or can: nothing will come of waiting."""
    if state.live or state.leaving:
        return None
    if state.refusals >= MAX_REFUSALS and _patience_is_over(state):
        return "failed"
    if state.present or not state.needed or state.facts.cluster.billing == "held":
        return None
    if not _in_time(state):
        return "done" if in_last_stage else "deadline"
    return None if affordable_one(state) else "budget"


def _patience_is_over(state: State) -> bool:
    """Whether it will be over when launches may be asked for again; never, if asking again cannot help."""
    patience_s = state.facts.problem.limits.deadline_s / PATIENCE_SHARE
    return state.launch_at >= state.refused_since + patience_s


def refused(state: State) -> str | None:
    """Why the cloud refused, if a run has ended without a single attempt for want of an instance; None if that is not so."""
    if not state.finished or state.ending == "interrupted" or any(trial.attempt for trial in state.trials.values()):
        return None
    whys = [i.why for i in state.instances.values() if i.phase is InstancePhase.REFUSED]
    return whys[-1] if whys else None
