"""`seerd replay`: explains a whole run, one trial, or one moment. The whole journal is read and
decided again in any case. Where this version would decide otherwise, the explanation is of what was
recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from rich.console import Group, RenderableType

from seerd.commands.common import tell
from seerd.core.state import State
from seerd.core.step import DecidingAgain
from seerd.errors import UsageError
from seerd.planner.trial_ids import same_trial
from seerd.runs.reading import begin, follow
from seerd.shell.home import RunFolder
from seerd.shell.journal import Entry, Journal
from seerd.telling.explanation.as_json import moment_json, timeline_json, trial_json
from seerd.telling.explanation.pages import moment_page, timeline_page, trial_page, wrapped
from seerd.telling.explanation.sentences import at
from seerd.telling.explanation.timeline import Timeline
from seerd.telling.harmless import printable
from seerd.telling.plan_json import Json
from seerd.telling.run_json import status_of
from seerd.telling.working import working
from seerd.units import count, parse_duration
from seerd.version import VERSION

MOST_SHOWN = 500  # characters of a decision


@dataclass(frozen=True, slots=True)
class Moment:
    """Until when a run is explained; both None: to its end."""

    at_s: float | None = None  # seconds since the run began
    event: int | None = None  # number of an event

    def before(self, entry: Entry) -> bool:
        """Return whether an entry is later than this moment."""
        if self.event is not None:
            return entry.seq > self.event
        return self.at_s is not None and entry.event.at > self.at_s

    def seconds(self, state: State, *, later: bool) -> float | None:
        """Return when that is, in seconds since the run began; at most the journal's end."""
        if self.event is not None and not 0 < self.event <= state.clock.seq:
            events = f"events 1 to {state.clock.seq}, and no {self.event}"
            raise UsageError(f"the journal of {state.facts.run} has {events}")
        return self.at_s if later and self.event is None else state.now


def replay(folder: RunFolder, trial: str | None, at: str | None, *, json: bool) -> None:
    """Explain a run, one trial or one moment. Raises `JournalError`, `UsageError`."""
    until = moment_of(at) if at is not None else None
    reading = working("reading the run, and deciding again")
    with Journal.open(folder.journal, read_only=True) as journal, reading:
        explained, page = explain(journal, trial, until, alive=folder.owner() is not None)
    tell(explained, lambda _: page, json=json)


def moment_of(text: str) -> Moment:
    """Read `90s`, `12m` (since the run began), or `@57` (after event 57). Raises `UsageError`."""
    try:
        if text.startswith("@"):
            return Moment(event=int(text[1:]))
        return Moment(at_s=parse_duration(text))
    except ValueError as error:
        how = "how long after the run began, 90s or 12m, or the number of an event, @57"
        raise UsageError(f"--at {text}: write {how}") from error


def explain(
    journal: Journal, trial: str | None, until: Moment | None, *, alive: bool
) -> tuple[Json, RenderableType]:
    """Read the journal, decide again, and return the explanation, for scripts and for people.
    `alive`: whether a process runs the run. Raises `JournalError`, `UsageError`.
    """
    state, entries = begin(journal)
    again = DecidingAgain()
    timeline = Timeline(again.follow)
    rest = _walk(state, entries, timeline, until)
    moment_s = None if until is None else until.seconds(state, later=bool(rest))
    if trial is not None:
        found = next((one for one in state.trials.values() if same_trial(one.id, trial)), None)
        if found is None:
            ids = list(state.trials)
            some = f"there are {ids[0]} to {ids[-1]}" if ids else "it has none yet"
            raise UsageError(f"{state.facts.run} has no trial {trial}; {some}")
        explained = trial_json(found, timeline, state)
        page = trial_page(explained)
    elif moment_s is not None:
        explained = moment_json(moment_s, timeline, state)
        page = moment_page(explained, state)
    else:
        explained = timeline_json(timeline, state, status_of(state, alive))
        page = timeline_page(timeline, state)
    rest += entries if rest else ()
    follow(state, rest, again.follow)
    commands = timeline.commands + sum(len(entry.commands) for entry in rest)
    events, difference = state.clock.seq, again.difference
    explained |= {"events": events, "commands": commands, "same": True, "difference": None}
    replayed = f"replayed {count(events, 'event')}"
    verdict = f"{replayed}: the same {count(commands, 'command')} came out"
    if difference is not None:
        was, now = msgspec.to_builtins((difference.was, difference.would_be))
        other = {"event": difference.seq, "recorded": was, "now": now}
        explained |= {"same": False, "difference": other}
        verdict = (
            f"{replayed}; after event {difference.seq} something else would be decided now than "
            "then; what is told is what was decided then:\n"
            f"  recorded: {_shown(difference.was)}\n  now:      {_shown(difference.would_be)}\n"
            + _writer(journal.version)
        )
    return explained, Group(page, wrapped(verdict))


def _writer(version: str) -> str:
    if version == VERSION:
        return f"The journal is of seerd {VERSION} too: of another commit, or it was changed since."
    return f"The journal was begun by seerd {version or '(unknown)'}, this is seerd {VERSION}."


def _walk(
    state: State, entries: Iterator[Entry], timeline: Timeline, until: Moment | None
) -> list[Entry]:
    """Read up to the moment; return the first entry after it, in a list, empty if there is none."""
    for entry in entries:
        if until is not None and until.before(entry):
            if state.clock.seq == 0:
                first = at(entry.event.at)
                raise UsageError(f"nothing had happened yet: the first event is at {first}")
            return [entry]
        follow(state, [entry], timeline.read)
    return []


def _shown(decision: object) -> str:
    text = "nothing more" if decision is None else printable(str(decision))
    left_out = len(text) - MOST_SHOWN
    if left_out <= 0:
        return text
    return f"{text[:MOST_SHOWN]}... ({count(left_out, 'character')} left out; --json has them all)"
