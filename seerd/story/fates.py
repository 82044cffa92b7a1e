"""What became of each trial, and why, in one word and one sentence.

The one rule: whatever ended a trial is among its beats; the last one that could have is the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.state import State, Trial
from seerd.story.beats import AnyBeat, Closing, Judged, Stopped
from seerd.story.chapters import Story
from seerd.story.words import count, end_of, sentence, stop_reason

FateKind = Literal["finished", "eliminated", "failed", "survived", "paused", "never-started", "waiting", "running"]
"""survived: it trained until the run ended; paused: it waited then, the policy wanted others;
waiting: for GPUs; running: now.
"""


@dataclass(frozen=True, slots=True)
class Fate:
    """`handed_back`: its model is the run's result."""

    kind: FateKind
    why: str
    handed_back: bool


def fate(trial: Trial, story: Story, state: State) -> Fate:
    """Of one trial."""
    kind, why = _fate(trial, story, state)
    published = state.result.published
    return Fate(kind, why, published is not None and published.incumbent.trial == trial.id)


def _fate(trial: Trial, story: Story, state: State) -> tuple[FateKind, str]:
    beats, attempts = story.of_trial(trial.id), story.attempts.of(trial.id)
    judged = next((beat for beat in reversed(beats) if isinstance(beat, Judged)), None)
    last = attempts[-1] if attempts else None
    if trial.phase is TrialPhase.FINISHED:
        return "finished", f"its script came to its end by itself, after {count(trial.reports, 'report')}"
    if trial.phase is TrialPhase.FAILED:
        return "failed", end_of(last.ended) if last is not None and last.ended is not None else trial.why
    told = "" if judged is None else sentence(judged, state.facts.metric).partition(": ")[2]
    if trial.phase is TrialPhase.ELIMINATED or trial.out:
        return "eliminated", told or trial.why
    if state.phase is not RunPhase.OVER:
        return _present(trial, beats)
    if last is None:
        return "never-started", "there were never GPUs for it"
    if last.stopped is not None and _at_the_end(last.stopped, story):
        return "survived", f"it trained until the run ended, {count(trial.reports, 'report')} in all"
    if judged is not None and judged.verdict in ("paused", "complete"):
        return "paused", told
    why = end_of(last.ended) if last.ended is not None else "its last attempt never ended"
    return "paused", f"when the run ended it was waiting; its last attempt {why}"


def _present(trial: Trial, beats: Sequence[AnyBeat]) -> tuple[FateKind, str]:
    if trial.held is not None:
        return "running", f"it is {trial.phase}, with {count(trial.reports, 'report')} so far"
    if trial.gpus:
        return "waiting", f"it waits for {count(trial.gpus, 'GPU')}"
    stop = next((beat for beat in reversed(beats) if isinstance(beat, Stopped)), None)
    if stop is None:
        return "paused", "it has not been started yet"
    return "paused", f"it was stopped {stop_reason(stop)}".rstrip()


def _at_the_end(stopped: Stopped, story: Story) -> bool:
    """Whether it was asked to end because the run ended; if nobody knows why, after that."""
    if stopped.why != "unknown":
        return stopped.why in ("closing", "hard")
    ends = (beat for beat in story.chapters[-1].beats if isinstance(beat, Closing))
    return any(end.event <= stopped.event for end in ends)
