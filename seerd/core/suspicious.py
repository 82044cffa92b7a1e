"""What is suspect while all goes on: checkpoints that may fill the disk, and trials of different
configurations that report the same.

The one rule: a warning is given once, and nothing else follows from it.
"""

from __future__ import annotations

import math

from seerd.core.state import State, Trial
from seerd.core.verdicts import Warned
from seerd.planner.trial_ids import job_of
from seerd.units import format_size

FEW, DIGITS = 3, 9
"""So many numbers, if they have so many digits in all, are hardly the same by chance in two trials;
nor is one number in so many trials beside another. Accuracies on few samples have two digits.
"""


def disk_warning(state: State, trial: str) -> Warned | None:
    """Warn if the checkpoints to come may not fit on the disk, after `trial` has saved."""
    signs, saved = state.signs, state.trials[trial].checkpoints
    if signs.free is None or "disk" in signs.warned or not saved:
        return None
    each = state.rules.kept_checkpoints + state.rules.keep_best
    trials = max(len(state.trials), state.outline.trials)
    present = sum(len(other.checkpoints) for other in state.trials.values())
    size = saved[0].size
    more = size * max(0, each * trials - present)
    if more <= signs.free:
        return None
    return Warned(
        what="disk",
        detail=f"the disk may fill up: a checkpoint has {format_size(size)}, up to {each} of each "
        f"of {trials} trials are kept, so {format_size(more)} more may come, and "
        f"{format_size(signs.free)} are free; free space, or name another disk in cluster.store",
    )


def identical_warning(state: State, name: str) -> Warned | None:
    """Warn if a trial reports what another one did of another configuration, unless by chance."""
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
