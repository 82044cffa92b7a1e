"""What a trial does, in one word, and why, in a few.

The one rule: only what the state and the last comparison say. The whole reasons are those of
`seerd.telling.explanation`, on the page of the trial.
"""

from __future__ import annotations

from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.state import State, Trial
from seerd.telling.explanation.sentences import STOPS
from seerd.telling.outcomes import AT_REPORT, WHYS, TrialOutcome, standing_text, why_text
from seerd.units import count

WORDS = {
    TrialPhase.WAITING: "waiting",
    TrialPhase.STARTING: "starting",
    TrialPhase.RUNNING: "running",
    TrialPhase.STOPPING: "saving",
    TrialPhase.FINISHED: "finished",
    TrialPhase.ELIMINATED: "out",
    TrialPhase.FAILED: "failed",
}


def word_of(trial: Trial) -> str:
    """Return in one word what a trial does."""
    if trial.phase is TrialPhase.RUNNING and not trial.training:
        return "loading"
    return WORDS[trial.phase]


def end_of(trial: Trial, outcome: TrialOutcome) -> str:
    """Write in a few words why a trial of a finished run ended as it did."""
    return trial.why.partition("\n")[0] if outcome.word == "failed" else why_text(trial, outcome)


def why_of(state: State, trial: Trial) -> str:
    """Write in a few words why a trial is where it is, or until when it goes on."""
    judged = trial.judged
    match trial.phase:
        case TrialPhase.FAILED:
            return trial.why.partition("\n")[0]
        case TrialPhase.ELIMINATED:
            return _stood(trial) or trial.why
        case TrialPhase.FINISHED:
            return WHYS["script"]
        case TrialPhase.STOPPING:
            cause = STOPS.get(trial.stopped or "", "")
            return f"{cause}: {_stood(trial)}" if trial.out and judged else cause
        case TrialPhase.STARTING:
            return "promoted" if _promoted(trial) else ""
        case TrialPhase.RUNNING:
            return _until(trial)
        case TrialPhase.WAITING:
            return _waits(state, trial)


def _waits(state: State, trial: Trial) -> str:
    judged = trial.judged
    if state.phase is not RunPhase.RUNNING:
        return WHYS["end"] if trial.stopped in ("closing", "hard") else _stood(trial)
    if trial.gpus:
        again = "restarts on " if trial.fault is not None else "for "
        return f"{again}{count(trial.gpus, 'GPU')}"
    if trial.reached is not None and (judged is None or judged.reports < trial.reached):
        return "to be compared"
    if judged is not None and judged.final:
        return WHYS["complete"]
    return _stood(trial) or ("not begun" if not trial.attempt else "not in the plan now")


def _until(trial: Trial) -> str:
    promoted = "promoted, " if _promoted(trial) else ""
    if trial.until is not None:
        return f"{promoted}to report {trial.until}"
    return f"{promoted}{_stood(trial).partition(AT_REPORT)[0]}" if promoted else ""


def _promoted(trial: Trial) -> bool:
    judged = trial.judged
    return judged is not None and trial.gpus > 0 and trial.reports >= judged.reports > 0


def _stood(trial: Trial) -> str:
    return "" if trial.judged is None else standing_text(trial.judged)
