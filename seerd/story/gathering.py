"""What happened in one stage, line by line: alike things that happened together are one line, and what a table already says is none.

The one rule: nothing that went wrong is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seerd.story.beats import (
    AnyBeat,
    Came,
    Ended,
    Judged,
    Lost,
    Noticed,
    Planned,
    Refused,
    Started,
    Stopped,
)
from seerd.story.words import at, count, names, sentence, stop_reason

QUIET_STOPS = ("out", "resized", "reached", "paused", "closing", "hard")
"""Those that the table of who was compared, or the end itself, explains."""
QUIET_ENDS = ("saved", "killed")

Key = tuple[object, ...]


def lines_of(beats: Sequence[AnyBeat], name: str) -> Iterator[tuple[float, str]]:
    """(when, what); `name`: what the metric is called."""
    groups: dict[Key, list[AnyBeat]] = {}
    taken = {(b.event, trial) for b in beats if isinstance(b, Lost | Noticed) for trial in b.trials}
    for place, beat in enumerate(beats):
        if _shown(beat, taken):
            groups.setdefault(_key(beat, place), []).append(beat)
    for together in groups.values():
        yield together[0].at_s, _line(together, name)


def _shown(beat: AnyBeat, taken: set[tuple[int, str]]) -> bool:
    match beat:
        case Planned():
            return bool(beat.dropped or beat.note)
        case Judged() | Started():
            return False
        case Stopped():
            noticed = beat.why == "leaving" and (beat.event, beat.trial) in taken
            return beat.why not in QUIET_STOPS and not noticed
        case Ended():
            alone = beat.how != "lost" or (beat.event, beat.trial) not in taken or beat.then == "failed"
            return beat.how not in QUIET_ENDS and alone
        case _:
            return True


def _key(beat: AnyBeat, place: int) -> Key:
    match beat:
        case Came():
            return "came", round(beat.at_s), round(beat.after_s)
        case Refused():
            return "refused", beat.instance.partition(".")[0], beat.detail
        case Stopped():
            return "stopped", beat.event, beat.why, beat.saves
        case Ended():
            return "ended", beat.how, beat.detail, beat.then, round(beat.at_s)
        case _:
            return (place,)


def _line(together: Sequence[AnyBeat], name: str) -> str:
    first, many = together[0], len(together)
    if many == 1:
        return sentence(first, name)
    last = together[-1]
    match first:
        case Came():
            who = names([beat.instance for beat in together if isinstance(beat, Came)])
            return f"{count(many, 'instance')} are ready, {at(first.after_s)} after they were asked for: {who}"
        case Refused() if isinstance(last, Refused):
            return f"{sentence(last, name)} ({many} times)"
        case Stopped():
            who = names([beat.trial for beat in together if isinstance(beat, Stopped)])
            how = "save and exit" if first.saves else "are killed"
            return f"{who} {how} {stop_reason(first)}".rstrip()
        case _:
            who = names([beat.trial for beat in together if isinstance(beat, Ended)])
            return f"{sentence(first, name)} (so {who})"
