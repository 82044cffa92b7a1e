"""What may be shown to strangers: texts without accounts, ARNs, addresses, paths, names and keys.

The one rule: pure, and rather too much is taken out than too little.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

COMMON = frozenset(
    {"", "-", ".", "..", "root", "seerd", "ubuntu", "user", "runs", "home", "python", "python3"}
)
"""Names that say nothing of anybody."""
SHORTEST_NAME, SHORT_NAME = 2, 6
"""Characters of the shortest name that is taken out, and of the shortest that is so wherever it is:
one that is shorter than that may be part of a word.
"""

_INNER = r"(?:[^\s\"'<>|;,:()\[\]{}]|[;,:()\[\]{}](?=[^\s\"']))"
"""A character of a path: punctuation belongs to it only if it goes on after that."""
_DOMAINS = (
    "local|localdomain|internal|intranet|lan|corp|home|example|test|invalid|com|net|org|io|dev|ai|"
    "co|app|tech|cloud|edu|gov|info|biz|xyz|eu|us|uk|de|fr|nl|ch|at|es|it|se|no|fi|dk|pl|ca|au|jp|"
    "cn|in|br|kr"
)
_HOST = r"(?<![\w.-])\.*[\w-]+(?:\.[\w-]+)*\."
_NAMED_HOST = rf"{_HOST}(?:{_DOMAINS})(?![\w-])(?:\.[\w-]+)*(?:[:/]{_INNER}*)?"
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("URL", re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+", re.IGNORECASE)),
    ("ARN", re.compile(r"\barn:[a-z-]*:(?:[^\s\"',;)\]}]|,(?=\S))*", re.IGNORECASE)),
    ("key", re.compile(r"(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA|ASCA|APKA)[A-Z0-9]{12,}")),
    ("key", re.compile(r"\balias/[\w/-]+")),
    ("address", re.compile(r"\bip-\d{1,3}(?:-\d{1,3}){3}[\w.-]*")),
    ("host", re.compile(_NAMED_HOST, re.IGNORECASE)),
    ("host", re.compile(rf"{_HOST}[\w-]+:\d{{1,5}}(?!\d)")),
    ("mail", re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*")),
    ("address", re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?:/\d{1,2})?(?![\d.]*\d)")),
    ("address", re.compile(r"(?i)(?<![\w:])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])")),
    ("UUID", re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)),
    ("id", re.compile(r"(?<![a-z0-9])[a-z]{1,10}(?:-[a-z]{1,10})?-[0-9a-f]{8,17}(?![0-9a-f])")),
    ("account", re.compile(r"\d{12}|(?<!\d)\d{4}-\d{4}-\d{4}(?!\d)")),
    ("digest", re.compile(r"[0-9a-f]{32,}", re.IGNORECASE)),
    ("digest", re.compile(r"SHA256:[A-Za-z0-9+/=]+")),
    ("path", re.compile(rf"(?<![\w./~>])(?:~\w*|\.{{1,2}})?/(?=[\w.~-]){_INNER}+")),
    ("path", re.compile(r"(?<=')/[\w.~-][^'\n]*(?=')|(?<=\")/[\w.~-][^\"\n]*(?=\")")),
)


@dataclass(frozen=True, slots=True)
class _Find:
    """What is to be taken out of a text."""

    begin: int  # where it begins
    end: int  # where it ends, exclusive
    what: str  # what it is called instead

    def joined(self, other: _Find) -> _Find:
        """Return both as one; the longer one says what it is."""
        longer = max(self, other, key=lambda one: one.end - one.begin)
        return _Find(min(self.begin, other.begin), max(self.end, other.end), longer.what)


def redacted(text: str, names: Iterable[str] = ()) -> str:
    """Return the text without what identifies an account, and without these names. What was taken
    out is named in angle brackets.
    """
    out, at = [], 0
    for one in _merged(_finds(text, names)):
        out += [text[at : one.begin], f"<{one.what}>"]
        at = one.end
    return "".join([*out, text[at:]])


def _finds(text: str, names: Iterable[str]) -> Iterator[_Find]:
    named = [("name", _pattern(name)) for name in set(names) if _is_telling(name)]
    for what, pattern in (*_PATTERNS, *named):
        for match in pattern.finditer(text):
            yield _Find(*match.span(), what)


def _merged(finds: Iterable[_Find]) -> Iterator[_Find]:
    """Join what overlaps: nothing stays of a name because a part of it looked like something
    else.
    """
    last: _Find | None = None
    for one in sorted(finds, key=lambda one: (one.begin, -one.end, one.what)):
        if last is None or one.begin >= last.end:
            if last is not None:
                yield last
            last = one
        else:
            last = last.joined(one)
    if last is not None:
        yield last


def _is_telling(name: str) -> bool:
    return name not in COMMON and len(name) >= SHORTEST_NAME


def _pattern(name: str) -> re.Pattern[str]:
    """Return what finds the name, and what is below it, if it is that of a folder."""
    word = re.escape(name)
    if len(name) < SHORT_NAME:
        word = rf"(?<![A-Za-z0-9]){word}(?![A-Za-z0-9])"
    return re.compile(rf"{word}(?:/{_INNER}+)?")
