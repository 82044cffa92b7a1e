"""Turns what a terminal sends for keys into their names.

The one rule: pure. A letter is its own name; what is not known is no key. An escape alone is told
from the beginning of a longer sequence only by what follows, or by silence (`rest`).
"""

from __future__ import annotations

SEQUENCES = {
    "[A": "up", "OA": "up",
    "[B": "down", "OB": "down",
    "[C": "right", "OC": "right",
    "[D": "left", "OD": "left",
    "[5~": "page up",
    "[6~": "page down",
    "[H": "home", "OH": "home", "[1~": "home", "[7~": "home",
    "[F": "end", "OF": "end", "[4~": "end", "[8~": "end",
}  # fmt: skip
"""What follows an escape (xterm's control sequences in both modes; rxvt's and Linux's)."""
CONTROL = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace", "\x15": "clear"}
ESCAPE = "\x1b"


def decode(text: str) -> tuple[list[str], str]:
    """Return the keys in what was read, and what may be the beginning of another one."""
    keys = []
    while text:
        if text[0] != ESCAPE:
            key = CONTROL.get(text[0], text[0] if text[0].isprintable() else "")
            keys += [key] if key else []
            text = text[1:]
            continue
        length = _length(text)
        if length is None:
            return keys, text
        name = "escape" if length == 1 else SEQUENCES.get(text[1:length], "")
        keys += [name] if name else []
        text = text[length:]
    return keys, ""


def rest(text: str) -> list[str]:
    """Return the keys in the beginning of a sequence that nothing followed."""
    return ["escape"] if text == ESCAPE else []


def _length(text: str) -> int | None:
    """Return how long the sequence is at the start of `text`; None: it may not be whole."""
    if len(text) == 1:
        return None
    if text[1] == "O":
        return 3 if len(text) > 2 else None
    if text[1] != "[":
        return 1
    for place, letter in enumerate(text[2:], 2):
        if "@" <= letter <= "~":
            return place + 1
        if not " " <= letter <= "?":
            return place
    return None
