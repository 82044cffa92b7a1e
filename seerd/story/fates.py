"""What became of each trial, and why, in one word and one sentence.

The one rule: whatever ended a trial is among its beats; the last one that could have is the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.state import State, Trial
from seerd.story.attempts import Attempt
from seerd.story.beats import AnyBeat, Judged, Stopped
from seerd.story.historian import Story
from seerd.story.words import count, end_of, sentence, stop_reason

FateKind = Literal["finished", "eliminated", "failed", "survived", "paused", "never-started", "waiting", "running"]
"""survived: it trained until the run ended; paused: it waited then, the policy wanted others; waiting: for GPUs; running: now."""


@dataclass(frozen=True, slots=True)
class Fate:
    """`handed_back`: its model is the run's result."""

    kind: FateKind
    why: str
    handed_back: bool


def fate(trial: Trial, story: Story, state: State) -> Fate:
    """Of one trial."""
    return fate_of(trial, story.of_trial(trial.id), story.attempts.of(trial.id), state)


def fate_of(trial: Trial, beats: Sequence[AnyBeat], attempts: Sequence[Attempt], state: State) -> Fate:
    """The same, with what names the trial, and its attempts."""
    kind, why = _fate(trial, beats, attempts, state)
    handed_back = state.result.published is not None and state.result.published.incumbent.trial == trial.id
    return Fate(kind, why, handed_back)


def _fate(trial: Trial, beats: Sequence[AnyBeat], attempts: Sequence[Attempt], state: State) -> tuple[FateKind, str]:
    judged = next((beat for beat in reversed(beats) if isinstance(beat, Judged)), None)
    last = attempts[-1] if attempts else None
    if trial.phase is TrialPhase.FINISHED:
        return "finished", f"its script came to its end by itself, after {count(trial.reports, 'report')}"
    if trial.phase is TrialPhase.FAILED:
        return "failed", end_of(last.ended) if last is not None and last.ended is not None else trial.why
    if trial.phase is TrialPhase.ELIMINATED or trial.out:
        return "eliminated", _after_name(sentence(judged, state.facts.metric)) if judged is not None else trial.why
    if state.phase is not RunPhase.OVER:
        return _present(trial, beats)
    if last is None:
        return "never-started", "there were never GPUs for it"
    stops = [beat for beat in beats if isinstance(beat, Stopped)]
    if stops and stops[-1].attempt == last.started.attempt and stops[-1].why in ("closing", "hard"):
        return "survived", f"it trained until the run ended, {count(trial.reports, 'report')} in all"
    if judged is not None and judged.verdict in ("paused", "complete"):
        return "paused", _after_name(sentence(judged, state.facts.metric))
    why = end_of(last.ended) if last.ended is not None else "its last attempt never ended"
    return "paused", f"when the run ended it was waiting; its last attempt {why}"


def _present(trial: Trial, beats: Sequence[AnyBeat]) -> tuple[FateKind, str]:
    if trial.held is not None:
        return "running", f"it is {trial.phase}, with {count(trial.reports, 'report')} so far"
    if trial.gpus:
        return "waiting", f"it waits for {count(trial.gpus, 'GPU')}"
    stop = next((beat for beat in reversed(beats) if isinstance(beat, Stopped)), None)
    return "paused", "it has not been started yet" if stop is None else f"it was stopped {stop_reason(stop)}"


def _after_name(text: str) -> str:
    return text.partition(": ")[2]
