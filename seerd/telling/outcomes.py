"""What became of a trial, in the words that every table, file and page uses."""

from __future__ import annotations

from seerd.core.complaints import IN_THE_WAY
from seerd.core.last_words import obstacle_of
from seerd.core.metrics import violations_of
from seerd.core.outcomes import Cause, TrialOutcome
from seerd.core.state import State, Trial
from seerd.planner.model import Compared
from seerd.units import ordinal

WHYS: dict[Cause, str] = {
    "end": "to the end",
    "job": "to its job's end",
    "complete": "fully trained",
    "script": "its script ended",
    "policy": "by the policy",
    "gpus": "no free GPUs",
}
AT_REPORT = " at report "


def outcome_text(state: State, trial: Trial, outcome: TrialOutcome) -> str:
    """Write what became of a trial as a cell of a table: also which constraints its last report
    does not meet, but not at which report it was compared.
    """
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
