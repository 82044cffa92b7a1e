"""docs/errors.md has every code that the code knows, under the kind that it has there, and no
other; and every error that a command can end with, with its exit status.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.web import AGAIN_CODES, OLD_CODES
from seerd import errors as ours
from seerd.aws import errors
from seerd.aws.errors import ErrorKind
from seerd.backends.ec2.register import NEVER_RAN, REASONS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    """Return what is below the heading that ends so, up to the next one."""
    found = re.search(rf"(?m)^#+ .*{re.escape(heading)}\n((?:(?!#+ ).*\n)*)", PAGE)
    assert found is not None, heading
    return found[1]


def rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of each row but the head."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            yield cells


def codes(text: str) -> list[str]:
    """Return the names in the first column, but where they depend on AWS's words."""
    first = [cells[0] for cells in rows(text) if " with " not in cells[0]]
    return sorted(name for cell in first for name in re.findall(r"`([^`]+)`", cell))


@pytest.mark.parametrize("kind", ErrorKind, ids=lambda kind: kind.value)
def test_codes_of_aws_are_under_their_kinds(kind: ErrorKind) -> None:
    known = [code for code in errors.KIND_OF if errors.KIND_OF[code] is kind]
    assert codes(section(f"kind `{kind.value}`")) == sorted(known)


def test_codes_that_mean_something_else_with_other_words_are_there() -> None:
    told = {cells[0] for cells in rows(section("kind `refused`")) if " with " in cells[0]}
    assert told == {f'`{code}` with "{words}"' for (code, words), _, _ in errors.MEANT}


@pytest.mark.parametrize(
    ("heading", "known"),
    [
        ("Before AWS is asked", {kind.__name__ for kind in errors.SETUP}),
        ("Checkpoints and data in S3", {*AGAIN_CODES, *OLD_CODES}),
        ("Why an instance has ended", {*REASONS, *NEVER_RAN}),
    ],
)
def test_codes_of_other_places_are_there(heading: str, known: set[str]) -> None:
    assert set(codes(section(heading))) == known


def every(kind: type[ours.SeerdError]) -> Iterator[type[ours.SeerdError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from every(one)


def test_every_error_of_ours_is_there_with_its_exit_status() -> None:
    told = {cells[0].strip("`"): int(cells[1]) for cells in rows(section("seerd's own errors"))}
    known = {
        kind.__name__: kind.exit_code
        for kind in every(ours.SeerdError)
        if kind.__module__.startswith("seerd.")
    }
    assert told == known
