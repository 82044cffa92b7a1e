"""What a trial does, in one word, and why, in a few.

The one rule: only what the state and the last comparison say. The whole reasons are those of
`seerd.explanation`, on the page of the trial.
"""

from __future__ import annotations

from seerd.core.diagnosis import fate
from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.state import State, Trial
from seerd.explanation.words import count, ordinal
from seerd.planner.model import Compared

WORDS = {
    TrialPhase.WAITING: "waiting",
    TrialPhase.STARTING: "starting",
    TrialPhase.RUNNING: "running",
    TrialPhase.STOPPING: "saving",
    TrialPhase.FINISHED: "finished",
    TrialPhase.ELIMINATED: "out",
    TrialPhase.FAILED: "failed",
}
STOPPED = {
    "resized": "moves to {gpus}",
    "moved": "moves to other GPUs",
    "displaced": "makes room",
    "shared": "makes room for another run",
    "reached": "to be compared",
    "paused": "not in the plan now",
    "leaving": "its instance leaves",
    "node": "an instance of it failed",
    "hung": "it hung",
    "closing": "the run ends",
    "hard": "the run ends at once",
    "out": "is out",
}
"""Why an attempt is asked to end -> what is said of it."""
COMPLETE = "fully trained"


def word_of(state: State, trial: Trial) -> str:
    """Say in one word what a trial does."""
    if trial.phase is TrialPhase.RUNNING and not trial.training:
        return "loading"
    if state.finished and trial.phase is TrialPhase.WAITING:
        return fate(state, trial).replace("-", " ")
    return WORDS[trial.phase]


def why_of(state: State, trial: Trial, judged: Compared | None) -> str:
    """Say in a few words why a trial is where it is, or until when it goes on.

    judged  how it stood when it was compared last; None: that is not what has decided, or nobody
            knows
    """
    match trial.phase:
        case TrialPhase.FAILED:
            return trial.why.partition("\n")[0]
        case TrialPhase.ELIMINATED:
            return _stood(judged) or trial.why
        case TrialPhase.FINISHED:
            return "its script came to its end"
        case TrialPhase.STOPPING:
            said = STOPPED.get(trial.stopped or "", "").format(gpus=count(trial.gpus, "GPU"))
            return f"{said}: {_stood(judged)}" if trial.out and judged else said
        case TrialPhase.STARTING:
            return "promoted" if _promoted(trial, judged) else ""
        case TrialPhase.RUNNING:
            return _until(trial, judged)
        case TrialPhase.WAITING:
            return _waits(state, trial, judged)


def _waits(state: State, trial: Trial, judged: Compared | None) -> str:
    if state.phase is not RunPhase.RUNNING:
        return _waited(state, trial, judged)
    if trial.gpus:
        again = "restarts on " if trial.fault is not None else "for "
        return f"{again}{count(trial.gpus, 'GPU')}"
    if trial.reached is not None and (judged is None or judged.reports < trial.reached):
        return "to be compared"
    if judged is not None and judged.final:
        return COMPLETE
    return _stood(judged) or ("not begun" if not trial.attempt else "not in the plan now")


def _waited(state: State, trial: Trial, judged: Compared | None) -> str:
    """Say why a trial waited when the run ended."""
    if not trial.attempt:
        return "not begun"
    if trial.stopped in ("closing", "hard"):
        return "stopped at the end"
    if judged is not None and judged.final:
        return COMPLETE
    wanted = trial.id in state.plan.order
    return ("" if wanted else _stood(judged)) or "waited at the end"


def _until(trial: Trial, judged: Compared | None) -> str:
    promoted = "promoted, " if _promoted(trial, judged) else ""
    if trial.until is not None:
        return f"{promoted}to report {trial.until}"
    return f"{promoted}{_place(judged)}" if promoted else ""


def _promoted(trial: Trial, judged: Compared | None) -> bool:
    return judged is not None and trial.gpus > 0 and trial.reports >= judged.reports > 0


def _stood(judged: Compared | None) -> str:
    if judged is None or not judged.place or judged.of < 2:
        return ""  # of one trial its place says nothing
    return f"{_place(judged)} at report {judged.reports}"


def _place(judged: Compared | None) -> str:
    return f"{ordinal(judged.place)} of {judged.of}" if judged is not None and judged.place else ""
