"""Why the run ended when it did, and why this model was chosen.

The one rule: pure functions of the state after a step; the limits are asked exactly as the core asks them.
"""

from __future__ import annotations

import math

from planner.ranking import standing
from seerd.core.commands import Finish, Publish
from seerd.core.events import PublishFailed, RunResumed
from seerd.core.incumbent import better_report
from seerd.core.lifecycle import InstancePhase, RunPhase
from seerd.core.limits import budget_gpu_s, close_at, exhausted_at, release_s
from seerd.core.state import Checkpoint, State
from seerd.story.beats import Chosen, CloseCause, Closing, NotUsable, Over, Resumed
from seerd.story.before import Before


def closing(before: Before, state: State) -> Closing:
    """The step after which nothing new is started."""
    spent, wait_s = state.ledger.spent_gpu_s(state.now), release_s(state)
    committed = state.ledger.committed_gpu_s(state.now, wait_s) if state.ledger.open else spent
    exhausted_s = exhausted_at(state)
    why, detail = _close_cause(before, state)
    return Closing(
        event=state.seq,
        at_s=state.now,
        status=state.ending or "failed",
        why=why,
        detail=detail,
        close_at_s=round(close_at(state), 3),
        exhausted_at_s=round(exhausted_s, 3) if math.isfinite(exhausted_s) else None,
        release_s=round(wait_s, 3),
        spent_gpu_min=round(spent / 60, 4),
        committed_gpu_min=round(committed / 60, 4),
        budget_gpu_min=round(budget_gpu_s(state) / 60, 4),
    )


def _close_cause(before: Before, state: State) -> tuple[CloseCause, str]:
    if state.ending == "interrupted":
        return "person", ""
    if state.ending == "deadline":
        return "deadline", ""
    if state.ending == "budget":
        return "budget", ""
    if state.ending == "done":
        return "plan" if state.plan.last.done else "last-stage", ""
    if state.plan is not before.plan and state.plan.last.done:
        return "no-trial", ""
    whys = [i.why for i in state.fleet.instances.values() if i.phase is InstancePhase.REFUSED]
    return "no-instance", whys[-1] if whys else ""


def resumed(before: Before, event: RunResumed, state: State) -> Resumed:
    """A new daemon, and what it found."""
    return Resumed(
        event=state.seq,
        at_s=state.now,
        alive=event.alive,
        gone=tuple(name for name in before.there if name not in event.alive),
        silent_s=round(max(0.0, state.now - before.now_s), 3),
        reopened=before.phase is RunPhase.OVER and state.phase is RunPhase.RUNNING,
    )


def chosen(command: Publish, state: State) -> Chosen:
    """The checkpoint that is to be handed back, beside what else there was."""
    mode = state.facts.mode
    best: dict[str, tuple[float, Checkpoint]] = {}
    for trial in state.trials.values():
        usable = (c for c in trial.checkpoints if f"{trial.id}/{c.name}" not in state.result.unreadable)
        for found in usable:
            if found.metric is None:
                continue
            worth = standing("", found.metric, mode)[1]
            if trial.id not in best or worth < best[trial.id][0]:
                best[trial.id] = (worth, found)
    others = [(worth, name) for name, (worth, _) in best.items() if name != command.trial]
    runner_up = min(others)[1] if others else None
    unsaved = better_report(state, command.metric)
    checkpoint = next(c for c in state.trials[command.trial].checkpoints if c.name == command.checkpoint)
    return Chosen(
        event=state.seq,
        at_s=state.now,
        trial=command.trial,
        metric=command.metric,
        reports=checkpoint.epoch,
        checkpoint=command.checkpoint,
        among=len(best),
        runner_up=runner_up,
        runner_up_metric=None if runner_up is None else best[runner_up][1].metric,
        better_unsaved=unsaved[0] if unsaved else None,
        better_unsaved_metric=unsaved[1] if unsaved else None,
    )


def not_usable(event: PublishFailed, command: Publish, state: State) -> NotUsable:
    """A chosen checkpoint that could not be fetched."""
    return NotUsable(event=state.seq, at_s=state.now, trial=command.trial, detail=event.why, damaged=event.damaged)


def over(command: Finish, state: State) -> Over:
    """The last thing that is asked for."""
    best = state.result.published.incumbent if state.result.published else None
    return Over(
        event=state.seq,
        at_s=state.now,
        status=command.status,
        trial=best.trial if best else None,
        metric=best.metric if best else None,
        path=state.result.published.path if state.result.published else None,
    )


def ends(before: Before, state: State) -> bool:
    """Whether this step has decided that the run ends."""
    return before.phase is RunPhase.RUNNING and state.phase is not RunPhase.RUNNING
