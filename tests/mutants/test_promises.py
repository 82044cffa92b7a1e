"""Every sentence of the pages that promises something has a mutant that breaks the promise.

`promises.txt` lists all sentences, page by page. Below each stand the names of its mutants, or `- `
and why it promises nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.sentences import PAGES, listed, sentences

HOW = (
    "put each changed or new sentence into tests/mutants/promises.txt, as one line at its page, and"
    " below it, indented, the names of the mutants that break what it promises (docs/mutants.md has"
    " them all), or `- an explanation`, `- a command`, `- a figure`, `- advice`, `- a title`,"
    " `- how tests look at it` or `- a limit of what is promised`; a promise that no mutant breaks"
    " needs one in tests/mutants/of_*.py"
)


@pytest.mark.parametrize("page", PAGES)
def test_each_sentence_is_listed_and_nothing_else(page: str) -> None:
    there, known = dict.fromkeys(sentences(page)), listed()[page]
    new = "\n".join(sentence for sentence in there if sentence not in known)
    gone = "\n".join(sentence for sentence in known if sentence not in there)
    assert not new, f"docs/{page} has what is not listed: {HOW}\n{new}"
    assert not gone, f"docs/{page} has this no more: {HOW}\n{gone}"


def test_each_has_mutants_that_there_are_or_a_reason() -> None:
    names = {mutant.name for mutant in MUTANTS}
    for entries in listed().values():
        for sentence, lines in entries.items():
            assert lines, sentence
            reasons = [line for line in lines if line.startswith("- ")]
            assert lines == reasons or set(lines) <= names, f"{sentence}\n{lines}\n{HOW}"
            assert "- no mutant yet" not in reasons, f"{sentence}\n{HOW}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "One thing.\nAnother one, in two\nlines. A third.",
            ["One thing.", "Another one, in two lines.", "A third."],
        ),
        ("# Title\n\n- **Bullet** (`a.py`). It is so.", ["**Bullet** (`a.py`).", "It is so."]),
        ("```sh\ncommand. It\n```\n| a | b |\n| --- | --- |\n| c. | d |", ["a | b", "c. | d"]),
    ],
)
def test_pages_are_split_into_sentences(text: str, expected: list[str], tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(text)
    assert sentences(str(path)) == expected
