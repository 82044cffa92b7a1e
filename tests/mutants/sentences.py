"""Splits pages into sentences, and says which of them stand on the list of promises, and which not.

The one rule: a sentence is known by its words, however its lines are wrapped: a changed sentence is
a new one, which has to be put on the list again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.mutants.places import ROOT

PAGES = ("rules.md", "security.md", "reliability.md", "sharing-machines.md")
LIST = Path(__file__).with_name("promises.txt")
COUNTED = re.compile(r"\[\d+( mistakes\]\(mutants\.md\), )\d+( of them)")
"""How many mutants there are is no other sentence each time."""
ENDS = re.compile(r"(?<=[.!?])\s+(?=[^a-z\s(])(?<!e\.g\. )")
BEGINS = re.compile(r"^\s*(?:[-*]|\d+\.|\|)\s+")


def sentences(page: str) -> list[str]:
    """Return the sentences of a page, rows of tables among them, without code and headings."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    text = COUNTED.sub(r"[N\1N\2", text)
    return [
        sentence
        for paragraph in _paragraphs(re.sub(r"(?ms)^```.*?^```$", "", text))
        for sentence in ([paragraph] if " | " in paragraph else ENDS.split(paragraph))
        if sentence
    ]


def listed() -> dict[str, dict[str, list[str]]]:
    """Return, by page and sentence, what `promises.txt` has below it."""
    pages: dict[str, dict[str, list[str]]] = {}
    sentence = ""
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if line in {f"[{page}]" for page in PAGES}:
            entries = pages.setdefault(line[1:-1], {})
        elif line.startswith("    "):
            entries[sentence].append(line.strip())
        elif line:
            sentence = line
            entries.setdefault(sentence, [])
    return pages


def _paragraphs(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        is_new = not line.strip() or line.startswith(("#", "<!--", "|")) or BEGINS.match(line)
        if is_new and lines:
            yield " ".join(lines)
            lines = []
        if line.strip() and not line.startswith(("#", "<!--", "| ---")):
            lines.append(BEGINS.sub("", line, count=1).strip(" |"))
