"""The page of the keys, and of what the columns mean. docs/watch.md says the same."""

from __future__ import annotations

from rich.text import Text

from seerd.telling.live.look import LiveLook

KEYS = (
    ("↑ ↓  j k", "one trial, or one line, up or down"),
    ("PgUp PgDn", "a screen up or down"),
    ("g G", "to the first, to the last"),
    ("s r", "sort by the next column; the other way round"),
    ("/", "only trials that have these words in id, state, why or configuration"),
    ("Enter", "open the marked trial: its curve, its history and why, the end of its log"),
    ("Esc", "back; without a page: all trials again"),
    ("m", "the next metric"),
    ("p", "the view stands still, or goes on; the run always goes on"),
)
TIMES = ("← →  [ ]", "back and forth in time; End or 0: the present")
LEAVES = "leave the view; the run goes on"
STOPS = "stop the run, after a question; Ctrl-C does it at once"
COLUMNS = (
    ("last METRIC", "of the trial's last report"),
    ("best saved", "of its best checkpoint in the store; the model that is handed back is the"),
    ("", "best of these, so it may have a better figure than any last report"),
    ("job", "whose trial it is, where jobs share the run: it stands among those of its job, by"),
    ("", "the metric of that job"),
    ("br", "the bracket: trials are compared with those of their own"),
    ("why", "until when it goes on, what it waits for, or how it stood if that decided:"),
    ("", "3rd of 8 at report 4"),
    ("0-3 t7 96%", "GPUs that are lent to t7; of late they computed for so much of the time"),
    ("█ ▒ ·", "used, committed (what giving everything back now would take), left"),
)


def help_lines(look: LiveLook, width: int) -> list[Text]:
    """Draw the page."""
    keys = [*KEYS, ("?", "these keys"), ("q", STOPS if look.owner else LEAVES)]
    keys += [TIMES] if look.journeys else []
    lines = [Text("keys", style="bold"), *(_line(*one) for one in keys), Text()]
    return [*lines, Text("what is shown", style="bold"), *(_line(*one) for one in COLUMNS)]


def _line(what: str, means: str) -> Text:
    return Text(f"  {what:<12}").append(means, style="dim" if not what else "")
