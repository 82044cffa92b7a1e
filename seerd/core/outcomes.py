"""What became of each trial: the answer that every table, file and page of a run renders.

The one rule: it follows from the state alone. The words for people are in `seerd.telling.outcomes`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from seerd.core.diagnosis import fate
from seerd.core.incumbent import chosen
from seerd.core.state import State, Trial
from seerd.planner.trial_ids import job_of

Word = Literal[
    "best", "kept", "stopped", "failed", "no-report", "not-finite", "not-started",
    "waiting", "starting", "running", "stopping",
]  # fmt: skip
"""What became of a trial.

best         its model is the result of the run, or of its job
kept         it trained until the run ended, or until its training was complete
stopped      others trained on instead of it
failed       it failed, or the run ended before it was restarted after a crash
no-report    it was started, and the run ended before its first report
not-finite   no report of it had a finite metric
not-started  it was never started

The others are its phase, while the run goes on.
"""
Cause = Literal[
    "", "end", "job", "complete", "script", "compared", "eliminated", "policy", "gpus", "blocked",
]  # fmt: skip
"""Why a trial was kept or stopped, or has not reported.

end         it trained when the run ended
job         it trained when its job ended
complete    it has made all reports of a training
script      its script came to its end
compared    `Trial.judged` says how it stood when it was compared last
eliminated  the policy eliminated it without a comparison
policy      the policy gave it no more GPUs, without a comparison
gpus        it waited for GPUs when the run ended
blocked     something was in its way, see `Trial.tail`
"""


class TrialOutcome(NamedTuple):
    """What became of a trial, and why; an empty `why`: the word says all."""

    word: Word
    why: Cause = ""


def outcomes(state: State) -> dict[str, TrialOutcome]:
    """Return what became of every trial, or its phase while the run goes on, by the trial's id."""
    models = [chosen(state, job) for job in state.jobs] if state.finished else []
    best = {model.trial for model in models if model is not None}
    return {
        trial.id: TrialOutcome("best") if trial.id in best else _outcome(state, trial)
        for trial in state.trials.values()
    }


def _outcome(state: State, trial: Trial) -> TrialOutcome:
    match fate(state, trial):
        case "failed" | "crashed":
            return TrialOutcome("failed")
        case "finished" | "eliminated" | "survived" if _never_finite(state, trial):
            return TrialOutcome("not-finite")
        case "finished":
            return TrialOutcome("kept", "script")
        case "no-report" if trial.fault == "blocked":
            return TrialOutcome("no-report", "blocked")
        case "eliminated" if not trial.history:
            return TrialOutcome("no-report")
        case "eliminated":
            return TrialOutcome("stopped", "eliminated" if trial.judged is None else "compared")
        case "survived":
            return _survived(state, trial)
        case word:
            return TrialOutcome(word)  # type: ignore[arg-type]  # a phase, or a word of both


def _never_finite(state: State, trial: Trial) -> bool:
    """Return whether no report was finite; a report that violates a constraint may be."""
    goal = state.facts.goal_of(trial.id)
    finite = any(report.metric is not None for report in trial.history)
    return bool(trial.history) and not finite and not goal.constraints


def _survived(state: State, trial: Trial) -> TrialOutcome:
    """Return what became of a trial that could have trained on when the run ended."""
    if trial.stopped in ("closing", "hard"):
        return TrialOutcome("kept", "end")
    if trial.judged is not None:
        return (
            TrialOutcome("kept", "complete")
            if trial.judged.final
            else TrialOutcome("stopped", "compared")
        )
    if state.jobs[job_of(trial.id)].over is not None:
        return TrialOutcome("kept", "job")
    return TrialOutcome("stopped", "policy" if trial.stopped in ("paused", "reached") else "gpus")
