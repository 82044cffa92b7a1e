"""Quick mutants of everything but decisions are caught: a test of the tests. `make mutants` tries
all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants.bench import check_unmutated, copied, outcome
from tests.mutants.catalogue import AREAS, QUICK
from tests.mutants.mutant import Mutant

MINE = [m for m in QUICK if m not in (*AREAS["what is decided"], *AREAS["what is counted"])]


@pytest.fixture(scope="module")
def copy() -> Iterator[Path]:
    """Of the project: their tests pass in it, or a failure would prove nothing."""
    with copied() as copy:
        check_unmutated(MINE, copy)
        yield copy


@pytest.mark.parametrize("mutant", MINE, ids=lambda mutant: mutant.name)
def test_it_is_caught(mutant: Mutant, copy: Path) -> None:
    found = outcome(mutant, copy)
    assert found.caught_by, (
        f"no test notices it, and it breaks this: {mutant.breaks}\n{found.output}"
    )
