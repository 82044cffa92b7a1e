"""A run at one moment, as JSON-ready values: what ran where, what was wanted and under way, what it had cost, which limit comes next.

The one rule: a pure function of the state after the last event before that moment, and of the moment.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from seerd.core.commands import (
    AnyCommand,
    AskPolicy,
    Launch,
    Publish,
    SetTimer,
    StartTrial,
    StopTrial,
    Terminate,
)
from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.limits import budget_gpu_s, close_at, exhausted_at, release_s
from seerd.core.state import GONE, Instance, State, Trial
from seerd.story.beats import AnyBeat, Decision
from seerd.story.chapters import Story, needed, wanted
from seerd.story.told import beats_json
from seerd.story.words import at
from seerd.view.run_json import best

Json = dict[str, Any]


def moment_json(at_s: float, story: Story, state: State) -> Json:
    """The object of `replay --at --json`, but for what the replay itself has found."""
    stages, stage = state.outline.stages, state.plan.stage
    present = [instance for instance in state.fleet.instances.values() if instance.phase not in GONE]
    waiting = [name for name in state.plan.wanted if state.trials[name].held is None]
    return {
        "run": state.facts.run,
        "metric": {"name": state.facts.metric, "mode": state.facts.mode},
        "at_s": at_s,
        "event": state.clock.seq,
        "phase": str(state.phase),
        "stage": stage + 1 if stages else None,
        "stages": len(stages),
        "stage_end_s": stages[stage].end_s if stages else None,
        "wanted": msgspec.to_builtins(wanted(state)),
        "instances_needed": needed(state),
        "instances_live": state.fleet.live,
        "running": [_running(t) for t in state.trials.values() if t.held is not None],
        "waiting": [{"trial": name, "gpus": state.trials[name].gpus} for name in waiting],
        "instances": [_instance(instance) for instance in present],
        **_limits(at_s, state),
        "under_way": [_under_way(command) for command in state.under_way.values()],
        "best": best(state),
        "decided": beats_json(_last_decision(story), state),
    }


def _running(trial: Trial) -> Json:
    word = "loading" if trial.phase is TrialPhase.RUNNING and not trial.training else str(trial.phase)
    return {
        "trial": trial.id,
        "phase": word,
        "attempt": trial.attempt,
        "gpus": sum(len(slots.gpus) for slots in trial.held or ()),
        "on": [{"instance": slots.node, "gpus": list(slots.gpus)} for slots in trial.held or ()],
        "reports": trial.reports,
        "metric": trial.metric,
    }


def _instance(instance: Instance) -> Json:
    return {
        "instance": instance.id,
        "phase": str(instance.phase),
        "gpus": instance.gpus,
        "busy": len(instance.busy),
        "ready_s": instance.ready_at,
        "by_s": instance.by,
    }


def _limits(at_s: float, state: State) -> Json:
    """What is spent, committed and left, and which limit ends what goes on now, and when."""
    book, budget = state.ledger, budget_gpu_s(state)
    spent = book.spent_gpu_s(at_s)
    committed = book.committed_gpu_s(at_s, release_s(state)) if book.open else spent
    return {
        "spent_gpu_min": round(spent / 60, 4),
        "committed_gpu_min": round(committed / 60, 4),
        "left_gpu_min": round((budget - committed) / 60, 4),
        "budget_gpu_min": round(budget / 60, 4),
        "spent_usd": round(book.usd(spent), 4),
        "committed_usd": round(book.usd(committed), 4),
        "gpus_billed": sum(charge.gpus for charge in book.open.values()),
        "next": _next(state),
    }


def _next(state: State) -> list[Json]:
    """What is due, soonest first. Only while trials run: afterwards the limits have been kept."""
    if state.phase is RunPhase.CLOSING and state.end.close_by is not None:
        return [{"what": "closed", "at_s": round(state.end.close_by, 3)}]
    if state.phase is not RunPhase.RUNNING:
        return []
    due = [("deadline", close_at(state)), ("budget", exhausted_at(state))]
    plan, fleet = state.plan, state.fleet
    ask_s = plan.again_s if plan.failures else plan.last.ask_at_s
    what = "again" if plan.failures else "plan"
    due += [(what, ask_s)] if ask_s is not None and plan.question is None else []
    launches = state.now < fleet.launch_at and fleet.live < (needed(state) or 0)
    due += [("launch", fleet.launch_at)] if launches else []
    soonest = sorted((seconds, what) for what, seconds in due if math.isfinite(seconds))
    return [{"what": what, "at_s": round(seconds, 3)} for seconds, what in soonest]


def _under_way(command: AnyCommand) -> Json:
    kind = str(type(command).__struct_config__.tag)
    return {"command": command.id, "event": int(command.id.partition(".")[0]), "kind": kind, "text": _asked(command)}


def _asked(command: AnyCommand) -> str:
    match command:
        case SetTimer():
            return f"look again at {at(command.due)}"
        case AskPolicy():
            return "the policy is asked"
        case Launch():
            return f"an instance with {command.gpus} GPUs"
        case Terminate():
            return f"{command.instance} is being given back"
        case StartTrial():
            return f"{command.trial} is being started on {' and '.join(command.nodes)}"
        case StopTrial():
            how = f"saves within {at(command.grace_s)}" if command.checkpoint else "is being killed"
            return f"{command.trial} {how}"
        case Publish():
            return f"the model of {command.trial} is being fetched"
        case _:
            return "the end"


def _last_decision(story: Story) -> list[AnyBeat]:
    """All that was decided with the last event that decided anything."""
    decided = [beat for beat in story.beats if isinstance(beat, Decision)]
    return [beat for beat in decided if beat.event == decided[-1].event]
