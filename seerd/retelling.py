"""What `seerd replay` tells: of a whole run, of one trial, or of one moment.

The one rule: the whole journal is replayed and compared, whatever part of it is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from planner.names import same_trial
from seerd.core.state import State, Trial
from seerd.errors import UsageError
from seerd.replay import begin, follow
from seerd.shell.journal import Entry, Journal
from seerd.show import status_of
from seerd.story.historian import Historian, Story
from seerd.story.moment import moment_json
from seerd.story.moment_page import moment_page
from seerd.story.pages import story_page
from seerd.story.told import story_json, trial_json
from seerd.story.trial_page import trial_page
from seerd.story.words import at, count
from seerd.units import parse_duration

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Moment:
    """Until when a story is told: `at_s` seconds since the run began, or until the event with this number."""

    at_s: float | None = None
    event: int | None = None

    def before(self, entry: Entry) -> bool:
        """Whether an entry is later."""
        if self.event is not None:
            return entry.seq > self.event
        return self.at_s is not None and entry.event.at > self.at_s


@dataclass(frozen=True, slots=True)
class Retold:
    """For scripts, and for people."""

    told: Json
    page: RenderableType


def moment_of(text: str) -> Moment:
    """Of `90s`, `12m`, or `@57`: after event number 57. Raises `UsageError`."""
    try:
        if text.startswith("@"):
            return Moment(event=int(text[1:]))
        return Moment(at_s=parse_duration(text))
    except ValueError as error:
        raise UsageError(
            f"--at {text}: write how long after the run began, 90s or 12m, or the number of an event, @57"
        ) from error


def retell(journal: Journal, trial: str | None, until: Moment | None, *, alive: bool) -> Retold:
    """Replay the journal and tell of it; `alive`: somebody runs the run. Raises `JournalError`, `UsageError`."""
    state, entries = begin(journal)
    historian = Historian()
    rest = _walk(state, entries, historian, until)
    moment_s = _moment(state, until, later=bool(rest))
    retold = _tell(historian.story, state, trial, moment_s, status_of(state, alive))
    events, commands = historian.story.events, historian.story.commands
    if rest:
        rest_of = list(entries)
        follow(state, [*rest, *rest_of])
        events += len(rest) + len(rest_of)
        commands += sum(len(entry.commands) for entry in [*rest, *rest_of])
    told = {**retold.told, "events": events, "commands": commands, "same": True}
    same = f"replayed {count(events, 'event')}: the same {count(commands, 'command')} came out"
    return Retold(told, Group(retold.page, Text(same)))


def _walk(state: State, entries: Iterator[Entry], historian: Historian, until: Moment | None) -> list[Entry]:
    """Step up to the moment; the first entry behind it, if there is one."""
    for entry in entries:
        if until is not None and until.before(entry):
            if state.seq == 0:
                raise UsageError(f"nothing had happened yet: the first event is at {at(entry.event.at)}")
            return [entry]
        follow(state, [entry], historian.step)
    return []


def _moment(state: State, until: Moment | None, *, later: bool) -> float | None:
    """The moment that is told of; a journal that ends before it is told of as it ends."""
    if until is None:
        return None
    if until.event is not None:
        if not 0 < until.event <= state.seq:
            raise UsageError(f"the journal of {state.facts.run} has events 1 to {state.seq}, and no {until.event}")
        return state.now
    return until.at_s if later else state.now


def _tell(story: Story, state: State, trial: str | None, moment_s: float | None, status: str) -> Retold:
    if trial is not None:
        told = trial_json(_trial(state, trial), story, state)
        return Retold(told, trial_page(told, story, state))
    if moment_s is not None:
        told = moment_json(moment_s, story, state)
        return Retold(told, moment_page(told, state))
    return Retold(story_json(story, state, status), story_page(story, state))


def _trial(state: State, name: str) -> Trial:
    """By its name, with or without the zeros."""
    for trial in state.trials.values():
        if same_trial(trial.id, name):
            return trial
    known = list(state.trials)
    some = f"; there are {known[0]} to {known[-1]}" if known else "; it has none yet"
    raise UsageError(f"{state.facts.run} has no trial {name}{some}")
