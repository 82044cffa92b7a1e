"""Journals of format 1, which held events and commands alone. What else had been decided is found
again, as far as it shows.

The one rule: money, attempts, checkpoints, result and command ids come out exactly. What that
format never recorded stays unknown: plans, trials that were never started, which trials were
eliminated while they waited, why anything was asked for.

The rules that are used are those of the versions that wrote it, whatever they are now.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from seerd.core.commands import (
    AnyCommand,
    Command,
    Finish,
    Launch,
    Publish,
    StartTrial,
    Status,
    StopTrial,
)
from seerd.core.enact import AnyDecision, enact
from seerd.core.events import AnyEvent, RunResumed, RunStarted, StopAsked, TimerFired
from seerd.core.hangs import hangs
from seerd.core.lifecycle import InstancePhase, RunPhase
from seerd.core.limits import (
    close_at,
    exhausted_at,
    lease_s,
    limit_at,
    quiet_by,
    release_s,
    terminate_s,
)
from seerd.core.plans import Put
from seerd.core.rules import Rules
from seerd.core.settle import settle, since_s
from seerd.core.state import Agenda, State, new_state
from seerd.core.step import take
from seerd.core.verdicts import (
    AnyVerdict,
    Assumed,
    CloseCause,
    Closing,
    Eliminated,
    Gone,
    Releasing,
    Since,
    Warned,
)

RULES_1 = Rules(
    kept_checkpoints=2,
    keep_best=False,
    max_crashes=2,
    max_burst=2,
    burst_share=0.1,
    max_losses=10,
    grace_min_s=4.0,
    grace_max_s=30.0,
    kill_s=1.5,
    publish_s=1.0,
    short_s=0.0,
    shortest_s=5.0,
    shortest_share=1,
    start_s=5.0,
    lease_s=60.0,
    orphan_timeout_s=600.0,
    last_s=120.0,
    notice_margin_s=5.0,
    timer_slack_s=0.01,
    max_refusals=3,
    patience_share=10,
    retry_s=15.0,
    retry_most_s=120.0,
    retry_share=20,
    worth_packing=0.75,
    slow_share=0.25,
)

Row = tuple[AnyEvent, Sequence[AnyDecision]]
CAUSES: dict[Status, CloseCause] = {
    "deadline": "deadline",
    "budget": "budget",
    "interrupted": "person",
}


def convert(rows: Sequence[Row]) -> Iterator[tuple[AnyEvent, list[AnyDecision]]]:
    """Yield each event with what was decided.

    A journal that does not begin with `RunStarted` is left as it is.
    """
    if not rows or not isinstance(rows[0][0], RunStarted):
        yield from ((event, list(decided)) for event, decided in rows)
        return
    state = new_state(rows[0][0].facts, RULES_1)
    ends = _ends(rows)
    for number, (event, recorded) in enumerate(rows):
        decided: list[AnyDecision] = []
        take(state, event)
        commands = [
            one for one in recorded if isinstance(one, Command) and one.id not in state.under_way
        ]
        for decision in _decisions(state, event, commands, ends[number]):
            enact(state, decision)
            decided.append(decision)
        if number == len(rows) - 1 and state.phase is RunPhase.RUNNING:
            decided.append(_assumed(state))
        state.agenda = Agenda()
        yield event, decided


class _End(msgspec.Struct, frozen=True):
    """How the run ends next.

    status  how it ends, None if the journal does not say
    closes  True: it closes with this row at the latest
    """

    status: Status | None
    closes: bool


def _ends(rows: Sequence[Row]) -> list[_End]:
    """Find for each row how the run ends next.

    After the last start or launch, the last order to save and exit is the one that closed the run,
    unless it was over sooner.
    """
    ends = [_End(None, closes=False)] * len(rows)
    begin = 0
    for number, (_, commands) in enumerate(rows):
        finish = next((one for one in commands if isinstance(one, Finish)), None)
        if finish is None:
            continue
        closed = _closed(rows, begin, number)
        for row in range(begin, number + 1):
            ends[row] = _End(finish.status, closes=row >= closed)
        begin = number + 1
    return ends


def _closed(rows: Sequence[Row], begin: int, end: int) -> int:
    """Return the number of the row that closed the run which begins and ends with these rows."""
    last = next((row for row in range(begin, end + 1) if _has(rows[row], Publish, Finish)), end)
    started = max(
        (row for row in range(begin, last + 1) if _has(rows[row], StartTrial, Launch)),
        default=begin - 1,
    )
    saving = (row for row in range(last, started, -1) if any(_saves(one) for one in rows[row][1]))
    return next(saving, last)


def _has(row: Row, *kinds: type) -> bool:
    return any(isinstance(one, kinds) for one in row[1])


def _saves(one: AnyDecision) -> bool:
    return isinstance(one, StopTrial) and one.checkpoint


def _decisions(
    state: State, event: AnyEvent, commands: Sequence[AnyCommand], end: _End
) -> Iterator[AnyDecision]:
    if isinstance(event, RunResumed):
        yield from _missing(state)
    yield from (one for one in settle(state) if not isinstance(one, Warned))
    if state.phase is RunPhase.RUNNING and (end.closes or _closes(state, event)):
        yield _closing(state, end.status)
    for command in commands:
        if isinstance(command, Publish | Finish) and state.phase is RunPhase.CLOSING:
            yield Releasing()
        if isinstance(command, StopTrial) and not command.checkpoint:
            yield from _kill(state, command)
        else:
            yield command


def _kill(state: State, command: StopTrial) -> Iterator[AnyDecision]:
    """Say why an attempt was ended without saving.

    The person asked for it, something was wrong with the attempt, or the trial was out.
    """
    trial = state.trials[command.trial]
    if state.end.hard or trial.broken:
        yield command
    elif hangs(trial):
        yield msgspec.structs.replace(command, why="hung")
    else:
        yield Eliminated(trial=command.trial)
        yield msgspec.structs.replace(command, why="out")


def _missing(state: State) -> Iterator[AnyVerdict]:
    """Say since when missing instances have cost nothing, as `settle` does it now.

    What agents had been promised was not recorded, so `_gone_by` stands in for it.
    """
    missing, state.agenda.missing = state.agenda.missing or {}, None
    ended = min(state.now, _gone_by(state))
    for name, ended_s in missing.items():
        yield Gone(instance=name, at_s=ended if ended_s is None else ended_s)
    for instance in state.fleet.instances.values():
        if instance.phase is InstancePhase.REQUESTED and instance.id in state.ledger.open:
            yield Since(what=instance.id, at_s=since_s(state, instance.id, ended))


def _gone_by(state: State) -> float:
    """Return by when everything that a dead daemon left behind had let go."""
    if state.end.close_by is not None:
        return max(state.clock.heard_at, state.end.close_by + terminate_s(state))
    by_lease = state.clock.heard_at + lease_s(state, state.clock.heard_at) + release_s(state)
    return min(by_lease, max(state.clock.heard_at, limit_at(state) + release_s(state)))


def _closes(state: State, event: AnyEvent) -> bool:
    """Return whether the run closed with this event for certain, however it ended."""
    if isinstance(event, StopAsked):
        return True
    return isinstance(event, TimerFired) and state.now >= limit_at(state)


def _closing(state: State, status: Status | None) -> Closing:
    if status is None:
        status = state.end.status or ("deadline" if state.now >= close_at(state) else "budget")
    exhausted_s = exhausted_at(state)
    return Closing(
        status=status,
        why=CAUSES.get(status, "unknown"),
        by_s=quiet_by(state),
        close_at_s=round(close_at(state), 3),
        exhausted_at_s=round(exhausted_s, 3) if math.isfinite(exhausted_s) else None,
        release_s=round(release_s(state), 3),
    )


def _assumed(state: State) -> Assumed:
    held = [trial for trial in state.trials.values() if trial.held is not None and not trial.out]
    sizes = ((trial.id, sum(len(slots.gpus) for slots in trial.held or ())) for trial in held)
    return Assumed(
        put=tuple(Put(name, gpus, 0, None, place) for place, (name, gpus) in enumerate(sizes))
    )
