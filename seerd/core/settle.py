"""What follows from a fact at once, whatever is wanted: failed trials, needed checkpoints,
warnings, and when to launch again. Only the agenda is changed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from seerd.core.attempts import newly_slow
from seerd.core.commands import Launch
from seerd.core.extending import requested
from seerd.core.failures import again_is_useless, enough_memory, newly_blocked, still_quiet
from seerd.core.instances import keep_until
from seerd.core.lifecycle import InstancePhase, RunPhase
from seerd.core.limits import gone_by, retiring
from seerd.core.metrics import best_checkpoint
from seerd.core.provisioning import after_coming, after_refusal
from seerd.core.state import State, Trial
from seerd.core.store_outage import outage_warning
from seerd.core.verdicts import (
    AnyVerdict,
    Enlarged,
    FailCause,
    Failed,
    Gone,
    Kept,
    Since,
    Slow,
    Warned,
)
from seerd.planner.trial_ids import job_of
from seerd.units import format_size

COMPARED = 20  # trials that a report is compared with: runs may have thousands
FEW, DIGITS = 3, 9
"""So many numbers, if they have so many digits in all, are hardly the same by chance in two trials;
nor is one number in so many trials beside another. Accuracies on few samples have two digits.
"""


def settle(state: State) -> Iterator[AnyVerdict]:
    """Yield the verdicts on what the present event has put on the agenda."""
    if state.agenda.missing is not None:
        yield from _missing(state)
    yield from requested(state)
    if state.agenda.woken and state.phase is RunPhase.RUNNING:
        for retired in [retired for at, retired in retiring(state) if at <= state.now]:
            state.agenda.because = "replacement"
            yield retired
    yield from _checkpoints(state)
    yield from _warnings(state)
    yield from newly_blocked(state)
    judge, state.agenda.judge = state.agenda.judge, {}
    for name, why in judge.items():
        if why == "crashes" and (gpus := enough_memory(state, state.trials[name])):
            yield Enlarged(trial=name, gpus=gpus)
        elif _for_good(state, name, why):
            yield Failed(trial=name, why=why)
    refused, state.agenda.refused = state.agenda.refused, []
    yield from (after_refusal(state, refusal) for refusal in refused)
    some_ready, state.agenda.some_ready = state.agenda.some_ready, False
    if some_ready and (again := after_coming(state)) is not None:
        yield again


def _checkpoints(state: State) -> Iterator[Kept | Warned]:
    saved, state.agenda.saved = state.agenda.saved, []
    newest = state.rules.kept_checkpoints
    for name in saved:
        older = state.trials[name].checkpoints[newest:]
        best = best_checkpoint(state, state.trials[name]) if state.rules.keep_best else None
        kept = best.name if best is not None and best in older else None
        if len(older) > (kept is not None):
            yield Kept(trial=name, newest=newest, best=kept)
        if (warning := disk_warning(state, name)) is not None:
            yield warning


def _warnings(state: State) -> Iterator[Warned | Slow]:
    agenda = state.agenda
    quiet, agenda.quiet = agenda.quiet, None
    reported, agenda.reported = agenda.reported, None
    waited, agenda.waited = agenda.waited, []
    if quiet is not None and (warning := still_quiet(state, quiet)) is not None:
        yield warning
    if (warning := outage_warning(state)) is not None:
        yield warning
    if reported is not None and (warning := identical_warning(state, reported)) is not None:
        yield warning
    for name in waited:
        if (slow := newly_slow(state.trials[name], state.rules.slow_share)) is not None:
            yield slow


def _for_good(state: State, name: str, why: FailCause) -> bool:
    trial = state.trials[name]
    if why == "crashes":
        in_vain = trial.in_vain > state.rules.max_crashes
        within_s = state.facts.problem.limits.deadline_s / state.rules.burst_share
        burst = trial.crashed_s[-state.rules.max_burst - 1 :]  # with or without progress
        in_a_burst = len(burst) > state.rules.max_burst and state.now - burst[0] <= within_s
        return in_vain or in_a_burst or again_is_useless(state, trial)
    return why == "silent" or trial.losses > state.rules.max_losses


def _missing(state: State) -> Iterator[AnyVerdict]:
    """Decide since when missing instances cost nothing, and launches under way are charged."""
    missing, state.agenda.missing = state.agenda.missing or {}, None
    ended = min(state.now, gone_by(state))
    for name, ended_s in missing.items():
        given = state.fleet.instances[name].terminate_command
        by_s = max(ended, keep_until(state, given) or 0.0)  # it may be kept already
        yield Gone(instance=name, at_s=by_s if ended_s is None else ended_s)
    for instance in state.fleet.instances.values():
        if instance.phase is InstancePhase.REQUESTED and instance.id in state.ledger.open:
            yield Since(what=instance.id, at_s=since_s(state, instance.id, ended))


def since_s(state: State, launch: str, ended: float) -> float:
    """Return since when a launch under way is charged after a restart, given when all else of the
    dead daemon had `ended`: its instance may have run on without an agent.
    """
    command, since = state.under_way.get(launch), state.ledger.open[launch].since_s
    alone_s = command.orphan_timeout_s if isinstance(command, Launch) else None
    gone = min(state.now, max(ended, since + (alone_s or 0.0)))
    return since + state.now - gone


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
    reported = (t for t in state.trials.values() if t.history and job_of(t.id) == job)
    others = list(islice((t for t in reported if t.config != trial.config), COMPARED))
    same = [other for other in others if _report_alike(trial, other)]
    if not same:
        return None
    numbers = list(dict.fromkeys(r.metric for r in trial.history if r.metric is not None))
    # Trials that have learned nothing report the same too: a tenth, where there are ten classes.
    shown = [f"{number:.6g}".partition("e")[0] for number in numbers]
    digits = [len(text.replace(".", "").strip("-0")) for text in shown]
    by_chance = len(numbers) < FEW or sum(digits) < DIGITS
    if by_chance and (max(digits) < 2 or len(same) < max(FEW, len(others))):
        return None
    first = ", ".join(f"{number:.6g}" for number in numbers[:FEW])
    return Warned(
        what="identical",
        detail=f"{same[0].id} and {name} report the same ({first}), and their configurations "
        "differ: see whether the script uses all hyperparameters that it is given",
    )


def _report_alike(trial: Trial, other: Trial) -> bool:
    """Return whether another trial has reported the same each time this one has."""
    if trial.history[0].metric != other.history[0].metric:
        return False  # as mostly, and trials may be many
    theirs = {report.reports: report.metric for report in other.history}
    same_metric = (theirs.get(own.reports, math.nan) == own.metric for own in trial.history)
    numbers = (own.reports for own in trial.history)
    return all(same_metric) and all(trial.others.get(n) == other.others.get(n) for n in numbers)
