"""A run's story, a trial's life and a moment as JSON-ready values. Keys are documented in docs/json.md and only ever added to.

The one rule: pure functions; beats are printed as they are, with the sentence that people read beside them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from seerd.core.state import Report, State, Trial
from seerd.story.attempts import Attempt
from seerd.story.beats import AnyBeat
from seerd.story.chapters import Chapter, Story
from seerd.story.costs import Cost, InstanceCost, costs
from seerd.story.fates import fate
from seerd.story.words import sentence
from seerd.view.run_json import result

Json = dict[str, Any]


def story_json(story: Story, state: State, status: str) -> Json:
    """The object of `replay --json`, but for what the replay itself has found."""
    divided = costs(story, state, state.now)
    return {
        **result(state, status),
        "metric": {"name": state.facts.metric, "mode": state.facts.mode},
        "policy": state.facts.problem.params.name,
        "cost_usd": state.facts.problem.limits.cost_usd,
        "adjusted": list(state.outline.adjusted),
        "chapters": [chapter_json(*pair, state) for pair in zip(story.chapters, divided, strict=True)],
    }


def chapter_json(chapter: Chapter, cost: Cost, state: State) -> Json:
    """One stage as it went, or the end."""
    gpu_s = float(cost.billed)
    return {
        "stage": None if chapter.stage is None else chapter.stage + 1,
        "end": chapter.end,
        "times": chapter.times,
        "start_s": chapter.start_s,
        "until_s": state.now if chapter.until_s is None else chapter.until_s,
        "planned_end_s": chapter.planned_end_s,
        "groups": msgspec.to_builtins(chapter.groups),
        "gpu_min": round(gpu_s / 60, 4),
        "usd": round(state.ledger.usd(gpu_s), 4),
        "idle_gpu_min": round(cost.idle / 60, 4),
        "starting_gpu_min": round(cost.starting / 60, 4),
        "instances": [_instance(one, state) for one in cost.instances],
        "beats": beats_json(chapter.beats, state),
    }


def _instance(one: InstanceCost, state: State) -> Json:
    return {
        "instance": one.instance,
        "gpus": one.gpus,
        "gpu_min": round(float(one.billed) / 60, 4),
        "usd": round(state.ledger.usd(float(one.billed)), 4),
        "idle_gpu_min": round(one.idle / 60, 4),
        "starting_gpu_min": round(one.starting / 60, 4),
    }


def beats_json(beats: Iterable[AnyBeat], state: State) -> list[Json]:
    """What happened, each with its sentence."""
    return [{**msgspec.to_builtins(beat), "text": sentence(beat, state.facts.metric)} for beat in beats]


def trial_json(trial: Trial, story: Story, state: State) -> Json:
    """The object of `replay --trial --json`, but for what the replay itself has found."""
    became = fate(trial, story, state)
    attempts = story.attempts.of(trial.id)
    gpu_s = sum(attempt.gpu_s(state.now) for attempt in attempts)
    return {
        "run": state.facts.run,
        "metric": {"name": state.facts.metric, "mode": state.facts.mode},
        "trial": trial.id,
        "config": dict(trial.config),
        "phase": str(trial.phase),
        "fate": became.kind,
        "why": became.why,
        "handed_back": became.handed_back,
        "reports": trial.reports,
        "last_metric": trial.metric,
        "held_gpu_min": round(gpu_s / 60, 4),
        "attempts": [_attempt(attempt, state) for attempt in attempts],
        "beats": beats_json(story.of_trial(trial.id), state),
    }


def _attempt(attempt: Attempt, state: State) -> Json:
    return {
        "attempt": attempt.started.attempt,
        "on": msgspec.to_builtins(attempt.started.on),
        "gpus": attempt.gpus,
        "start_s": attempt.started.at_s,
        "training_s": attempt.training_s,
        "ended_s": attempt.ended_s,
        "checkpoint": attempt.started.checkpoint,
        "after_reports": attempt.after_reports,
        "reports": attempt.count,
        "first": _report(attempt.first),
        "last": _report(attempt.last),
        "best": _report(attempt.best),
        "how": None if attempt.ended is None else attempt.ended.how,
        "kept": None if attempt.ended is None else attempt.ended.kept,
        "held_gpu_min": round(attempt.gpu_s(state.now) / 60, 4),
    }


def _report(report: Report | None) -> Json | None:
    return None if report is None else {"at_s": report.at_s, "report": report.reports, "metric": report.metric}
