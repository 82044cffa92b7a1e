"""What became of each trial, and the words for it in every table, file and page."""

from __future__ import annotations

from typing import Literal, NamedTuple

from seerd.core.failures import has_failed
from seerd.core.last_words import obstacle_of
from seerd.core.lifecycle import TrialPhase
from seerd.core.metrics import chosen, violations_of
from seerd.core.state import State, Trial
from seerd.planner.model import Compared
from seerd.planner.trial_ids import job_of
from seerd.telling.complaints import IN_THE_WAY
from seerd.units import ordinal

Word = Literal[  # what became of a trial
    "best",  # its model is the result of the run, or of its job
    "kept",  # it trained until the run ended, or until its training was complete
    "stopped",  # others trained on instead of it
    "failed",  # it failed, or the run ended before it was restarted after a crash
    "no-report",  # it was started, and the run ended before its first report
    "not-finite",  # no report of it had a finite metric
    "not-started",  # it was never started
    "waiting", "starting", "running", "stopping",  # its phase, while the run goes on
]  # fmt: skip
Cause = Literal[  # why a trial was kept or stopped, or has not reported
    "",
    "end",  # it trained when the run ended
    "job",  # it trained when its job ended
    "complete",  # it has made all reports of a training
    "script",  # its script came to its end
    "compared",  # `Trial.judged` says how it stood when it was compared last
    "eliminated",  # the policy eliminated it without a comparison
    "policy",  # the policy gave it no more GPUs, without a comparison
    "gpus",  # it waited for GPUs when the run ended
    "blocked",  # something was in its way, see `Trial.tail`
]
WHYS: dict[Cause, str] = {
    "end": "to the end",
    "job": "to its job's end",
    "complete": "fully trained",
    "script": "its script ended",
    "policy": "by the policy",
    "gpus": "no free GPUs",
}
AT_REPORT = " at report "


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
    if trial.stopped in ("closing", "hard"):
        return TrialOutcome("kept", "end")
    if trial.judged is not None:
        final = trial.judged.final
        return TrialOutcome("kept", "complete") if final else TrialOutcome("stopped", "compared")
    if state.jobs[job_of(trial.id)].over is not None:
        return TrialOutcome("kept", "job")
    return TrialOutcome("stopped", "policy" if trial.stopped in ("paused", "reached") else "gpus")


def fate(state: State, trial: Trial) -> str:
    """Return a trial's phase or, if it still waited when the run ended, how it ended: not-started,
    crashed, no-report, not-finite or survived.
    """
    if trial.phase is not TrialPhase.WAITING or not state.finished:
        return str(trial.phase)
    if not trial.attempt:
        return "not-started"
    job = state.jobs[job_of(trial.id)]
    alike = "alike" in (state.end.why, job.over)
    failed = has_failed(trial) and (not trial.history or alike)
    if trial.fault == "crashed" or failed:
        return "crashed"
    if not trial.history:
        return "not-started" if without_gpu(state) else "no-report"
    return "survived" if job.finite else "not-finite"


def without_gpu(state: State) -> bool:
    """Return whether no trial has ever begun, since others held the GPUs."""
    return state.signs.tried_s is None and "waits" in state.signs.complaints


def outcome_text(state: State, trial: Trial, outcome: TrialOutcome) -> str:
    """Write what became of a trial as a cell of a table, with the constraints that are not met."""
    broken = " and ".join(violations_of(state, trial))
    became = in_words(outcome.word, why_text(trial, outcome).partition(AT_REPORT)[0])
    return f"{became}, not {broken}" if broken else became


def in_words(word: str, why: str) -> str:
    """Write the word of an outcome with its reason, as `kept to the end`."""
    link = "" if not why else " " if why.startswith(("to ", "by ")) else ": "
    return f"{word.replace('-', ' ')}{link}{why}"


def why_text(trial: Trial, outcome: TrialOutcome) -> str:
    """Write why a trial was kept or stopped or has not reported; empty if the word says all."""
    if outcome.why == "blocked" and (obstacle := obstacle_of(trial.tail)) is not None:
        return IN_THE_WAY[obstacle]
    if outcome.why == "compared" and trial.judged is not None:
        return standing_text(trial.judged) or f"set aside{AT_REPORT}{trial.judged.reports}"
    return trial.why if outcome.why == "eliminated" else WHYS.get(outcome.why, "")


def standing_text(judged: Compared) -> str:
    """Write how a trial stood when it was compared; empty if there was no other trial."""
    if not judged.place or judged.of < 2:
        return ""
    return f"{ordinal(judged.place)} of {judged.of}{AT_REPORT}{judged.reports}"
