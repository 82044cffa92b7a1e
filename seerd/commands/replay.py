"""What `seerd replay` tells: of a whole run, of one trial, or of one moment.

The one rule: the whole journal is read and decided again, whatever part of it is told; where this
version would decide otherwise, the story is the one that was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from rich.console import Group, RenderableType

from seerd.commands.common import tell
from seerd.core.again import DecidingAgain, Difference
from seerd.core.codec import FORMAT
from seerd.core.state import State, Trial
from seerd.core.step import follow as follow_one
from seerd.errors import UsageError
from seerd.planner.trial_ids import same_trial
from seerd.runs.reading import Go, begin, follow
from seerd.shell.home import RunFolder
from seerd.shell.journal import Entry, Journal
from seerd.story.pages import moment_page, story_page, trial_page, wrapped
from seerd.story.timeline import Timeline
from seerd.story.told import moment_json, story_json, trial_json
from seerd.story.words import at, count
from seerd.units import parse_duration
from seerd.version import VERSION
from seerd.view.harmless import printable
from seerd.view.plan_json import Json
from seerd.view.run_json import status_of

MOST_SHOWN = 500
"""So many characters of what was decided are shown."""
UNKNOWN = "nothing was decided again: its format (1) has only commands of what was decided"


@dataclass(frozen=True, slots=True)
class Moment:
    """Until when a story is told: `at_s` seconds since the run began, or this event."""

    at_s: float | None = None
    event: int | None = None

    def before(self, entry: Entry) -> bool:
        """Tell whether an entry is later."""
        if self.event is not None:
            return entry.seq > self.event
        return self.at_s is not None and entry.event.at > self.at_s


@dataclass(frozen=True, slots=True)
class Retold:
    """For scripts, and for people."""

    told: Json
    page: RenderableType


def replay(folder: RunFolder, trial: str | None, at: str | None, *, json: bool) -> None:
    """Tell of a run, one trial or one moment. Raises `JournalError`, `UsageError`."""
    until = moment_of(at) if at is not None else None
    with Journal.open(folder.journal, read_only=True) as journal:
        retold = retell(journal, trial, until, alive=folder.owner() is not None)
    tell(retold.told, lambda _: retold.page, json=json)


def moment_of(text: str) -> Moment:
    """Read `90s`, `12m`, or `@57`: after event number 57. Raises `UsageError`."""
    try:
        if text.startswith("@"):
            return Moment(event=int(text[1:]))
        return Moment(at_s=parse_duration(text))
    except ValueError as error:
        how = "how long after the run began, 90s or 12m, or the number of an event, @57"
        raise UsageError(f"--at {text}: write {how}") from error


def retell(journal: Journal, trial: str | None, until: Moment | None, *, alive: bool) -> Retold:
    """Read the journal, decide again, and tell of it; `alive`: somebody runs the run. Raises
    `JournalError`, `UsageError`.
    """
    state, entries = begin(journal)
    # Since format 2 all that was decided is recorded.
    comparable = journal.format == FORMAT and state.facts.outline is not None
    again = DecidingAgain() if comparable else None
    go: Go = follow_one if again is None else again.follow
    timeline = Timeline(go)
    rest = _walk(state, entries, timeline, until)
    moment_s = _moment(state, until, later=bool(rest))
    retold = _tell(timeline, state, trial, moment_s, status_of(state, alive))
    rest += entries if rest else ()
    follow(state, rest, go)
    events = timeline.events + len(rest)
    commands = timeline.commands + sum(len(entry.commands) for entry in rest)
    compared = _compared(again, journal.version, events, commands)
    return Retold({**retold.told, **compared.told}, Group(retold.page, compared.page))


def _walk(
    state: State,
    entries: Iterator[Entry],
    timeline: Timeline,
    until: Moment | None,
) -> list[Entry]:
    """Read up to the moment; give the first entry behind it, if there is one."""
    for entry in entries:
        if until is not None and until.before(entry):
            if state.clock.seq == 0:
                first = at(entry.event.at)
                raise UsageError(f"nothing had happened yet: the first event is at {first}")
            return [entry]
        follow(state, [entry], timeline.read)
    return []


def _moment(state: State, until: Moment | None, *, later: bool) -> float | None:
    """Find the moment that is told of; a journal that ends before it is told of as it ends."""
    if until is None:
        return None
    if until.event is not None:
        if not 0 < until.event <= state.clock.seq:
            known = f"the journal of {state.facts.run} has events 1 to {state.clock.seq}"
            raise UsageError(f"{known}, and no {until.event}")
        return state.now
    return until.at_s if later else state.now


def _tell(
    timeline: Timeline,
    state: State,
    trial: str | None,
    moment_s: float | None,
    status: str,
) -> Retold:
    if trial is not None:
        told = trial_json(_trial(state, trial), timeline, state)
        return Retold(told, trial_page(told, timeline, state))
    if moment_s is not None:
        told = moment_json(moment_s, timeline, state)
        return Retold(told, moment_page(told, state))
    return Retold(story_json(timeline, state, status), story_page(timeline, state))


def _trial(state: State, name: str) -> Trial:
    """Find it by its name, with or without the zeros."""
    for trial in state.trials.values():
        if same_trial(trial.id, name):
            return trial
    known = list(state.trials)
    some = f"; there are {known[0]} to {known[-1]}" if known else "; it has none yet"
    raise UsageError(f"{state.facts.run} has no trial {name}{some}")


# ------------------------------------------------------------ what came out


def _compared(again: DecidingAgain | None, version: str, events: int, commands: int) -> Retold:
    """Tell what deciding again has given."""
    difference = None if again is None else again.difference
    told: Json = {"events": events, "commands": commands, "same": None, "difference": None}
    read, came = count(events, "event"), count(commands, "command")
    if again is None:
        page = f"read {read} and {came}; {UNKNOWN}"
    elif difference is None:
        told["same"] = True
        page = f"replayed {read}: the same {came} came out"
    else:
        was, now = msgspec.to_builtins((difference.was, difference.would_be))
        other = {"event": difference.seq, "recorded": was, "now": now}
        told |= {"same": False, "difference": other}
        page = f"replayed {read}; {_other(difference, version)}"
    return Retold(told, wrapped(page))


def _other(difference: Difference, version: str) -> str:
    """Tell the first decision that would be another one now, and by whom."""
    return (
        f"after event {difference.seq} something else would be decided now than then, "
        "and is told as it was then:\n"
        f"  recorded: {_shown(difference.was)}\n  now:      {_shown(difference.would_be)}\n"
        f"The journal was begun by seerd {version or '(it does not say which)'}, "
        f"this is seerd {VERSION}."
    )


def _shown(one: object) -> str:
    text = "nothing more" if one is None else printable(str(one))
    left_out = len(text) - MOST_SHOWN
    if left_out <= 0:
        return text
    return f"{text[:MOST_SHOWN]}... ({count(left_out, 'character')} left out; --json has them all)"
