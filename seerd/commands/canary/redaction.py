"""What may be shown to strangers: texts without account ids, ARNs, addresses, names and keys.

The one rule: pure, and rather too much is taken out than too little.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

COMMON = frozenset({"", "-", "root", "seerd", "ubuntu", "user", "runs", "home"})
"""Names that say nothing of anybody."""
SHORTEST_NAME, SHORT_NAME = 2, 6
"""Characters of the shortest name that is taken out, and of the shortest that is so wherever it is:
one that is shorter than that may be part of a word.
"""

_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("URL", re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+", re.IGNORECASE)),
    ("ARN", re.compile(r"\barn:[a-z-]*:[^\s\"',;)\]}]*", re.IGNORECASE)),
    ("key", re.compile(r"(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA|ASCA|APKA)[A-Z0-9]{12,}")),
    ("address", re.compile(r"\bip-\d{1,3}(?:-\d{1,3}){3}[\w.-]*")),
    ("host", re.compile(r"[\w.-]+\.(?:amazonaws\.com(?:\.cn)?|compute\.internal|ec2\.internal)")),
    ("mail", re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*")),
    ("address", re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?:/\d{1,2})?(?![\d.]*\d)")),
    ("address", re.compile(r"(?i)(?<![\w:])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])")),
    ("UUID", re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)),
    ("id", re.compile(r"(?<![a-z0-9])[a-z]{1,10}(?:-[a-z]{1,10})?-[0-9a-f]{8,17}(?![0-9a-f])")),
    ("account", re.compile(r"\d{12}")),
    ("digest", re.compile(r"[0-9a-f]{32,}", re.IGNORECASE)),
    ("digest", re.compile(r"SHA256:[A-Za-z0-9+/=]+")),
)


def redacted(text: str, names: Iterable[str] = ()) -> str:
    """Return the text without what identifies an account, and without these names. What was taken
    out is named in angle brackets.
    """
    for name in sorted(set(names), key=len, reverse=True):
        if name in COMMON or len(name) < SHORTEST_NAME:
            continue
        word = re.escape(name)
        if len(name) < SHORT_NAME:
            word = rf"(?<![A-Za-z0-9]){word}(?![A-Za-z0-9])"
        text = re.sub(word, "<name>", text)
    for what, pattern in _PATTERNS:
        text = pattern.sub(f"<{what}>", text)
    return text


def redacted_all(value: Any, names: Iterable[str] = ()) -> Any:
    """Do the same with every text in a JSON value; its keys stay."""
    known = tuple(names)
    if isinstance(value, str):
        return redacted(value, known)
    if isinstance(value, dict):
        return {key: redacted_all(one, known) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [redacted_all(one, known) for one in value]
    return value
