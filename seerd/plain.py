"""What happened, as one plain line per event, for logs and for the foot of the live view.

The one rule: words that a person understands who has never read this code; nothing for what nobody needs to know.
"""

from __future__ import annotations

from functools import singledispatch

from seerd.core.events import (
    AnyEvent,
    Event,
    InstanceLost,
    InstanceReady,
    LaunchRefused,
    ModelPublished,
    OrderRefused,
    PublishFailed,
    RunResumed,
    RunStarted,
    StopAsked,
    TimerFired,
    TrialExited,
    TrialReported,
    TrialTraining,
)
from seerd.core.incumbent import incumbent
from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.state import State
from seerd.units import format_duration, format_gpu_time

ENDINGS = {
    "done": "the plan is carried out",
    "deadline": "the deadline is near",
    "budget": "the budget is used up",
    "interrupted": "interrupted",
    "failed": "nothing can run any more",
}


def line_of(event: AnyEvent, state: State) -> str | None:
    """The line for an event; `state` is what was after it."""
    text = _text(event, state)
    return None if text is None else f"{event.at:7.1f}s  {text}"


def stage_text(state: State) -> str:
    """Which stage it is, and who runs in it."""
    stage = state.outline.stages[state.plan.stage]
    groups = ", ".join(
        f"{group.trials} trial{'s' * (group.trials > 1)} x {group.gpus_per_trial} GPU{'s' * (group.gpus_per_trial > 1)}"
        for group in stage.groups
    )
    return f"stage {state.plan.stage + 1} of {len(state.outline.stages)} until {format_duration(round(stage.end_s, 1))}: {groups}"


@singledispatch
def _text(event: Event, state: State) -> str | None:
    return None


@_text.register
def _(event: RunStarted, state: State) -> str:
    limits = event.facts.problem.limits
    notes = "".join(f"\n{'':10}{sentence}" for sentence in state.outline.adjusted)
    budget = format_gpu_time(limits.budget_gpu_s)
    return f"{state.outline.trials} trials, deadline {format_duration(limits.deadline_s)}, budget {budget}{notes}"


@_text.register
def _(event: RunResumed, state: State) -> str:
    return f"resumed; {len(event.alive)} of the instances are still there"


@_text.register
def _(event: StopAsked, state: State) -> str:
    return "stopping at once" if event.hard else "stopping: trials save and exit (again to stop at once)"


@_text.register
def _(event: TimerFired, state: State) -> str | None:
    if state.phase is RunPhase.CLOSING and state.ending is not None:
        return f"{ENDINGS[state.ending]}: trials save and exit"
    if state.plan.stage and event.at - state.outline.stages[state.plan.stage].start_s < 0.5:
        return stage_text(state)
    return None


@_text.register
def _(event: InstanceReady, state: State) -> str:
    return f"{event.instance} is ready with {event.gpus} GPU slots; {stage_text(state)}"


@_text.register
def _(event: LaunchRefused, state: State) -> str:
    return f"no instance: {event.why}"


@_text.register
def _(event: InstanceLost, state: State) -> str:
    return f"{event.instance} is lost: {event.why}; its trials go on from their last checkpoints elsewhere"


@_text.register
def _(event: OrderRefused, state: State) -> str:
    return f"{event.instance} refused an order: {event.why}"


@_text.register
def _(event: TrialTraining, state: State) -> str:
    trial = state.trials[event.trial]
    slots = "" if trial.held is None else f" on GPU {', '.join(str(g) for s in trial.held for g in s.gpus)}"
    since = f"goes on after report {event.epoch}" if event.epoch else "trains"
    return f"{event.trial} {since}{slots}  {config_text(trial.config)}"


@_text.register
def _(event: TrialReported, state: State) -> str:
    value = "not a finite number" if event.metric is None else f"{event.metric:.6g}"
    best = max(
        (t.metric * (1 if state.facts.mode == "max" else -1) for t in state.trials.values() if t.metric is not None),
        default=None,
    )
    sign = 1 if state.facts.mode == "max" else -1
    mark = "  (best)" if event.metric is not None and best == event.metric * sign else ""
    return f"{event.trial} report {event.epoch}: {state.facts.metric} {value}{mark}"


@_text.register
def _(event: TrialExited, state: State) -> str:
    trial = state.trials[event.trial]
    if trial.phase is TrialPhase.ELIMINATED:
        return f"{event.trial} is out: {trial.why}"
    if event.cause == "finished":
        return f"{event.trial} has finished" if trial.phase is TrialPhase.FINISHED else f"{event.trial} {trial.why}"
    if event.cause == "crashed":
        last = f": {event.tail[-1]}" if event.tail else ""
        then = "has failed" if trial.phase is TrialPhase.FAILED else "will be restarted"
        return f"{event.trial} {trial.why} and {then}{last}"
    if event.cause == "lost":
        return f"{event.trial} was lost with its agent and will be restarted"
    return f"{event.trial} has saved and stopped" if trial.checkpoints else f"{event.trial} has stopped"


@_text.register
def _(event: ModelPublished, state: State) -> str:
    best = state.published.incumbent if state.published else incumbent(state)
    return f"the best model is that of {best.trial}: {event.path}" if best else event.path


@_text.register
def _(event: PublishFailed, state: State) -> str:
    return f"a checkpoint cannot be used, trying the next best: {event.why}"


def config_text(config: object) -> str:
    """A configuration on one line."""
    if not isinstance(config, dict):
        return str(config)
    return " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in config.items())
