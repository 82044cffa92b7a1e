"""Whether every trial fails in the same way, so that to go on would only cost time and money; and
what is said while no trial has reported.

The one rule: nothing is concluded from one configuration. A run ends for this only if several
trials, and all that were tried, have failed alike, and if one of them has failed again when it was
started anew.
"""

from __future__ import annotations

import re

from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.state import State, Trial
from seerd.core.verdicts import Warned
from seerd.units import count

LONGEST = 200
"""How many characters of a line that a script has written are repeated at most."""
DIFFERS = re.compile(r"0x[0-9a-f]+|[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?", re.IGNORECASE)
"""What may differ between two failures that are alike: numbers and addresses."""


def tried(state: State) -> list[Trial]:
    """Return the trials that were started at least once."""
    return [trial for trial in state.trials.values() if trial.attempt]


def alike(state: State) -> str | None:
    """Say in which way all trials fail, for people; None if they do not."""
    trials = tried(state)
    if len(trials) < state.rules.alike_trials:
        return None
    if _crash_alike(trials):
        return f"all {len(trials)} trials that were tried failed alike: {failure_text(trials[0])}"
    return None if state.signs.finite else _never_finite(state, trials)


def _crash_alike(trials: list[Trial]) -> bool:
    again = any(trial.crashes > 1 or trial.phase is TrialPhase.FAILED for trial in trials)
    return again and all(map(has_failed, trials)) and len(set(map(signature, trials))) == 1


def _never_finite(state: State, trials: list[Trial]) -> str | None:
    """Judge trials none of which has reported a finite metric.

    A trial counts when it has reported twice, or was eliminated after its first report.
    """
    if not all(trial.reports > 1 or (trial.out and trial.reports) for trial in trials):
        return None
    name, reports = state.facts.metric, sum(len(trial.history) for trial in trials)
    made = f"{count(reports, 'report')} of {count(len(trials), 'trial')}"
    return f"none of the {made} had a finite {name}"


def has_failed(trial: Trial) -> bool:
    """Tell whether an attempt of the trial has ended by its own fault, and none has saved."""
    return not trial.checkpoints and (trial.crashes > 0 or trial.phase is TrialPhase.FAILED)


def signature(trial: Trial) -> tuple[str, str]:
    """Return what two trials have in common that fail alike: how they ended, and their last
    line.
    """
    return DIFFERS.sub("#", trial.why), DIFFERS.sub("#", last_line(trial))


def failure_text(trial: Trial) -> str:
    """Write how the trial's last attempt failed, with the last line that it wrote."""
    line = last_line(trial)
    return f"{trial.why}: {line[:LONGEST]}" if line else trial.why


def last_line(trial: Trial) -> str:
    """Return the last line that is not empty of what its last attempt wrote; empty if none is."""
    return next((line.strip() for line in reversed(trial.tail) if line.strip()), "")


def in_words(seconds: float) -> str:
    """Write a time for people: in seconds up to two minutes, then in minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def still_quiet(state: State) -> Warned | None:
    """Return the warning that no trial has reported yet, if it is due: agents tell of each trial
    that is silent, and people are told again when that has lasted for twice as long.
    """
    began_s, told_s = state.signs.tried_s, state.signs.warned.get("no-report")
    if state.phase is not RunPhase.RUNNING or state.signs.reported or began_s is None:
        return None
    if told_s is not None and state.now - began_s < 2 * (told_s - began_s):
        return None
    since = in_words(state.now - began_s)
    running = [trial for trial in state.trials.values() if trial.held is not None]
    training = sum(trial.training for trial in running)
    name = state.facts.metric
    if not running:
        doing = "no trial runs now"
    elif pattern := state.facts.patterns.get(name):
        doing = (
            f"no line that {count(len(running), 'running trial')} printed matched train.report "
            f"{pattern!r} (`seerd logs` shows what they print)"
        )
    elif not training:
        doing = (
            "no trial has come to its first trial.running(): they still import, read data or "
            "compile, or the script does not call it"
        )
    else:
        doing = (
            f"training: {training} of {count(len(running), 'trial')}; a unit of work takes longer "
            f"than that, or the script does not call trial.report({name}=...)"
        )
    return Warned(what="no-report", detail=f"{since} and no report yet; {doing}")
