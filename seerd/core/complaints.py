"""What agents complain of, and checkpoints that may fill the disk, in sentences for people.

The one rule: each says what happened, what was done about it, and what to do.
"""

from __future__ import annotations

import math

from seerd.core.events import Obstacle, TrialComplained
from seerd.core.hints import hint
from seerd.core.last_words import error_line
from seerd.core.state import State, Trial
from seerd.core.verdicts import Warned
from seerd.planner.trial_ids import job_of
from seerd.units import format_size

SIDE = "docs/training-side.md"
FEW, DIGITS = 3, 9
"""So many numbers, if they have so many digits in all, are hardly the same by chance in two trials;
nor is one number in so many trials beside another. Accuracies on few samples have two digits.
"""
GOES_ON = ("error", "still")
"""Complaints that are forgotten when the trial reports."""
IN_THE_WAY: dict[Obstacle, str] = {
    "address": "an address was in use",
    "device": "a device was busy",
    "lock": "a lock was held",
    "network": "a server could not be reached",
}
"""What was in the way of an attempt -> how it is written."""
ADVICE: dict[Obstacle, str] = {
    "address": "have the script ask for port 0, so that each trial gets a port of its own",
    "device": "nvidia-smi shows which process has it",
    "lock": "give each trial a file of its own, or have train.setup write what all read",
    "network": "have train.setup fetch what all trials need, or let the script work offline",
}
"""What was in the way of an attempt -> what to do, if the error says nothing more certain."""


def complaint_text(event: TrialComplained) -> str:
    """Write what is wrong with what a trial writes, and what to do."""
    trial, why = event.trial, event.why
    if event.what == "output":
        return f"what {trial} writes for seerd cannot be read: {why}; {SIDE} has the format"
    if event.what == "not-stored":
        full = hint("", [why], "RUN", ())
        then = full or "it is tried again"
        return f"a checkpoint of {trial} could not be stored: {why}; {then}"
    if event.what == "untracked":
        return (
            f"the checkpoints of {trial} hold no model, since nothing was given to "
            "trial.track(model=..., optimizer=...)"
        )
    if event.what == "error":
        lines = why.splitlines()
        then = hint("", lines, "RUN", ()) or "`seerd logs` shows all of it"
        return f"{trial} has written an error and goes on: {error_line(lines).rstrip(': ')}; {then}"
    if event.what == "often":
        return (
            f"{trial} reports more often than a run can keep: seerd keeps {why} of its "
            "reports a second, its best and its last one always; it trains as before, and "
            "reports are best made once an epoch"
        )
    if event.what == "skipped":
        return (
            f"{trial} writes faster for seerd than can be read: parts of it were skipped, and the "
            f"last of it is read; {SIDE} has what to write"
        )
    if event.what == "waits":
        return f"{trial} waits for GPUs, and costs nothing until it has them: {why}"
    if event.what == "still":
        return f"{trial} stands still: {why}; `seerd logs` shows its last words"
    return f"{trial}: {why}" if why else f"{trial}: {event.what}"


def blocked_text(state: State, trial: Trial, why: Obstacle) -> str:
    """Write what was in the way of a trial that has crashed, what follows, and what to do."""
    then = hint("", trial.tail, state.facts.run, tuple(trial.config)) or ADVICE[why]
    return (
        f"{IN_THE_WAY[why]} when {trial.id} began ({error_line(trial.tail)}), whatever its "
        "configuration: such trials wait and count as not tried, and fewer train side by side; "
        f"{then}"
    )


def disk_warning(state: State, trial: str) -> Warned | None:
    """Return the warning that the checkpoints to come may not fit on the disk, if that is so.

    trial  trial that has just saved

    The newest `Rules.kept_checkpoints` of each trial stay, and its best one. The warning is given
    once.
    """
    signs, saved = state.signs, state.trials[trial].checkpoints
    if signs.free is None or "disk" in signs.warned or not saved:
        return None
    each = state.rules.kept_checkpoints + state.rules.keep_best
    trials = max(len(state.trials), state.outline.trials)
    there = sum(len(one.checkpoints) for one in state.trials.values())
    size = saved[0].size
    more = size * max(0, each * trials - there)
    if more <= signs.free:
        return None
    return Warned(
        what="disk",
        detail=f"the disk may fill up: a checkpoint has {format_size(size)}, up to {each} of each "
        f"of {trials} trials are kept, so {format_size(more)} more may come, and "
        f"{format_size(signs.free)} are free; free space, or name another disk in cluster.store",
    )


def identical_warning(state: State, name: str) -> Warned | None:
    """Return the warning that a trial, which has just reported, reports what another one did of
    another configuration, if chance is no explanation. It is given once.
    """
    trial, job = state.trials[name], job_of(name)
    if "identical" in state.signs.warned or trial.metric is None:
        return None
    others = [
        other
        for other in state.trials.values()
        if other.history and other.config != trial.config and job_of(other.id) == job
    ]
    same = [other for other in others if _report_alike(trial, other)]
    if not same:
        return None
    numbers = list(dict.fromkeys(r.metric for r in trial.history if r.metric is not None))
    # Trials that have learned nothing report the same too: a tenth, where there are ten classes.
    digits = [_digits(number) for number in numbers]
    by_chance = len(numbers) < FEW or sum(digits) < DIGITS
    if by_chance and (max(digits) < 2 or len(same) < max(FEW, len(others))):
        return None
    shown = ", ".join(f"{number:.6g}" for number in numbers[:FEW])
    return Warned(
        what="identical",
        detail=f"{same[0].id} and {name} report the same ({shown}), and their configurations "
        "differ: see whether the script uses all hyperparameters that it is given",
    )


def _report_alike(trial: Trial, other: Trial) -> bool:
    """Return whether another trial has reported the same each time this one has."""
    if trial.history[0].metric != other.history[0].metric:
        return False  # as mostly, and trials may be many
    theirs = {report.reports: report.metric for report in other.history}
    return all(
        theirs.get(report.reports, math.nan) == report.metric
        and trial.others.get(report.reports) == other.others.get(report.reports)
        for report in trial.history
    )


def _digits(number: float) -> int:
    return len(f"{number:.6g}".partition("e")[0].replace(".", "").strip("-0"))
