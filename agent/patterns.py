"""How a script is observed that does not import seerd, with patterns for the numbers it prints.
A number is read whole: `{number}` stands for it, or a group says where it begins, and sign,
exponent and all that belong to it count.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from typing import Optional

NUMBER_PLACE = "{number}"
_DIGITS = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_WORD = r"(?i:nan(?:\((?:ind|snan)\))?|inf(?:inity)?)(?![A-Za-z0-9_])"
_NUMBER = rf"[-+]?(?:{_DIGITS}|{_WORD})"
WHOLE = re.compile(rf"(?:(?<!\w)[-+])?(?:{_DIGITS}|(?<![A-Za-z0-9_]){_WORD})")
"""A number in a text. A sign directly after a letter or a digit is a dash: `acc-0.93`."""
GOES_ON = re.compile(r"\.[0-9]+|#[A-Z]+|[kKMGBT]\b|[a-zA-Z]+[-+]?[0-9]+")
SEPARATED = re.compile("[,'_\u00a0\u2009\u202f][0-9]+")
"""What looks like more of a number and is not read: units, other notations (`0x10`, `1d-5`,
`1.#INF`); thousands and decimal commas, which follow digits alone.
"""
MINUS = "\u2212"
SAMPLES = ("5", "0.5", "12.3456")
PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?P<\w+>|\?)?|\)")
"""Parts of a pattern: escapes and sets of characters, which may hold parentheses, and these."""


@dataclass(frozen=True)
class ObservedScript:
    """How a script that does not import seerd is observed."""

    report: dict[str, str]  # per metric a regular expression whose first group is the value
    # file or folder that it saves to, relative to its working folder, as a glob; empty: none
    checkpoint: str = ""
    # arguments to go on from a checkpoint, whose path takes the place of `{checkpoint}`
    resume: list[str] = field(default_factory=list)


class NumberPattern:
    """A pattern of `train.report`. Raises `re.error` if it is invalid."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern.replace(NUMBER_PLACE, f"({_NUMBER}%?)"))
        self.groups = self._pattern.groups  # number of groups that can hold the number
        self._wider = None if NUMBER_PLACE in pattern else _wider(pattern)

    def read(self, line: str) -> Optional[tuple[float, str]]:
        """Return the first number, and the longer text that it begins, if any; None: no number."""
        line = line.replace(MINUS, "-")
        number = _first(self._pattern, line)
        if self._wider is not None:
            pattern, narrow = self._wider
            other = _first(pattern, line)
            is_first = other is not None and (number is None or other[0] < number[0])
            if other is not None and is_first and _is_meant(other[1], narrow):
                number = other
        if number is None:
            return None
        return float(number[1].partition("(")[0]), number[2]


def _first(pattern: re.Pattern[str], line: str) -> Optional[tuple[int, str, str]]:
    """Return a group's number: its place, its text, and the text that it only begins."""
    match = pattern.search(line)
    if match is None:
        return None
    wholes = list(WHOLE.finditer(line))
    for group in range(1, pattern.groups + 1):
        text = match[group] or ""
        begins = match.start(group) + len(text) - len(text.lstrip())
        for whole in wholes:
            rest = line[whole.end() : match.end(group)]
            if whole.start() <= begins < whole.end() and not re.search(r"[\w.]", rest):
                more = GOES_ON.match(line, whole.end()) or (
                    SEPARATED.match(line, whole.end()) if whole[0].isdigit() else None
                )
                begun = more is not None and match.end() <= whole.end()
                return begins, whole[0], f"{whole[0]}{more[0]}" if more and begun else ""
    return None


def _is_meant(number: str, narrow: re.Pattern[str]) -> bool:
    """Return whether a group for plain numbers would take this one's digits."""
    bare = number.lstrip("+-")
    return bare[0] in "nNiI" or "e" in bare.lower() or narrow.fullmatch(bare) is not None


def _wider(pattern: str) -> Optional[tuple[re.Pattern[str], re.Pattern[str]]]:
    """Widen a group for plain numbers to any number; return it and the group, if there is one."""
    for begin, end in _groups(pattern):
        with contextlib.suppress(re.error):
            narrow = re.compile(pattern[begin:end])
            if narrow.fullmatch("nan"):
                return None
            if any(map(narrow.fullmatch, SAMPLES)):
                within = f"{_NUMBER}{'()' * narrow.groups}"
                return re.compile(pattern[:begin] + within + pattern[end:]), narrow
    return None


def _groups(pattern: str) -> list[tuple[int, int]]:
    opened: list[Optional[int]] = []
    groups = []
    for part in PARTS.finditer(pattern):
        if part[0][0] == "(":
            plain = part[0] == "(" or part[0].startswith("(?P<")
            opened.append(part.end() if plain else None)
        elif part[0] == ")" and opened:
            begin = opened.pop()
            if begin is not None:
                groups.append((begin, part.start()))
    return sorted(groups)
