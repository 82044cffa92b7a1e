"""What follows from a fact at once, whatever is wanted: which trials have failed for good, which
checkpoints are needed, and when to launch again.

The one rule: these functions yield verdicts and change nothing but the agenda. Each verdict is
applied before the next is looked for.
"""

from __future__ import annotations

from collections.abc import Iterator

from seerd.core.alike import again_is_useless, still_quiet
from seerd.core.commands import Launch
from seerd.core.extending import requested, retiring
from seerd.core.hangs import newly_slow
from seerd.core.incumbent import best_checkpoint
from seerd.core.lifecycle import InstancePhase, RunPhase
from seerd.core.limits import gone_by
from seerd.core.obstacles import newly_blocked
from seerd.core.provisioning import after_coming, after_refusal
from seerd.core.state import Agenda, State, Trial
from seerd.core.suspicious import disk_warning, identical_warning
from seerd.core.verdicts import AnyVerdict, Blocked, FailCause, Failed, Gone, Kept, Since, Warned


def settle(state: State) -> Iterator[AnyVerdict]:
    """Yield the verdicts on what the present event has put on the agenda."""
    agenda = state.agenda
    if agenda.missing is not None:
        yield from _missing(state, agenda)
    if state.requests.open:
        yield from requested(state)
    if agenda.woken and state.phase is RunPhase.RUNNING:
        yield from retiring(state)
    if agenda.saved:
        yield from _checkpoints(state, agenda)
    if agenda.quiet is not None or agenda.reported is not None:
        yield from _warnings(state, agenda)
    if agenda.judge or agenda.blocked:
        yield from _failures(state, agenda)
    if agenda.waited:
        yield from _slow_ranks(state, agenda)
    if agenda.refused or agenda.came:
        yield from _launches(state, agenda)


def _checkpoints(state: State, agenda: Agenda) -> Iterator[Kept | Warned]:
    saved, agenda.saved = agenda.saved, []
    newest = state.rules.kept_checkpoints
    for name in saved:
        older = state.trials[name].checkpoints[newest:]
        best = best_checkpoint(state, state.trials[name]) if state.rules.keep_best else None
        kept = best.name if best is not None and best in older else None
        if len(older) > (kept is not None):
            yield Kept(trial=name, newest=newest, best=kept)
        if (warning := disk_warning(state, name)) is not None:
            yield warning


def _warnings(state: State, agenda: Agenda) -> Iterator[Warned]:
    quiet, agenda.quiet = agenda.quiet, None
    reported, agenda.reported = agenda.reported, None
    if quiet is not None and (warning := still_quiet(state, quiet)) is not None:
        yield warning
    if reported is not None and (warning := identical_warning(state, reported)) is not None:
        yield warning


def _failures(state: State, agenda: Agenda) -> Iterator[Failed | Blocked]:
    yield from newly_blocked(state)
    judge, agenda.judge = agenda.judge, {}
    for name, why in judge.items():
        if _for_good(state, name, why):
            yield Failed(trial=name, why=why)


def _for_good(state: State, name: str, why: FailCause) -> bool:
    trial = state.trials[name]
    if why == "crashes":
        in_vain = trial.in_vain > state.rules.max_crashes
        return in_vain or _in_a_burst(state, trial) or again_is_useless(state, trial)
    return why == "silent" or trial.losses > state.rules.max_losses


def _in_a_burst(state: State, trial: Trial) -> bool:
    """Return whether a trial has crashed too often in a short time, even if it came further each
    time.
    """
    rules, crashed_s = state.rules, trial.crashed_s
    within_s = state.facts.problem.limits.deadline_s / rules.burst_share
    return (
        len(crashed_s) > rules.max_burst and state.now - crashed_s[-rules.max_burst - 1] <= within_s
    )


def _slow_ranks(state: State, agenda: Agenda) -> Iterator[AnyVerdict]:
    waited, agenda.waited = agenda.waited, []
    for name in waited:
        slow = newly_slow(state.trials[name], state.rules.slow_share)
        if slow is not None:
            yield slow


def _launches(state: State, agenda: Agenda) -> Iterator[AnyVerdict]:
    refused, agenda.refused = agenda.refused, []
    for refusal in refused:
        yield after_refusal(state, refusal)
    came, agenda.came = agenda.came, False
    if came and (again := after_coming(state)) is not None:
        yield again


def _missing(state: State, agenda: Agenda) -> Iterator[AnyVerdict]:
    """Decide since when missing instances have cost nothing: by their cloud, or by the end of their
    lease. Launches under way are charged anew (`since_s`).
    """
    missing, agenda.missing = agenda.missing or {}, None
    ended = min(state.now, gone_by(state))
    for name, ended_s in missing.items():
        yield Gone(instance=name, at_s=ended if ended_s is None else ended_s)
    for instance in state.fleet.instances.values():
        if instance.phase is InstancePhase.REQUESTED and instance.id in state.ledger.open:
            yield Since(what=instance.id, at_s=since_s(state, instance.id, ended))


def since_s(state: State, launch: str, ended: float) -> float:
    """Return since when a launch under way is charged after a restart, given when all else that the
    dead daemon had left had `ended`. An instance that it brought may still be there for as long as
    it goes on without an agent; if none is, what it brings now begins now.
    """
    command, since = state.under_way.get(launch), state.ledger.open[launch].since_s
    orphan_timeout_s = (
        command.orphan_timeout_s
        if isinstance(command, Launch) and command.orphan_timeout_s is not None
        else 0.0
    )
    gone = min(state.now, max(ended, since + orphan_timeout_s))
    return since + state.now - gone
