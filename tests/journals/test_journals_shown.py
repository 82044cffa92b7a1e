"""What people see of a run of any earlier version, after each of its events: what that version never
recorded is shown as unknown, and nothing ends with a traceback.
"""

from __future__ import annotations

import io
from itertools import cycle
from pathlib import Path

import pytest
from rich.console import Console

from seerd.core.state import new_state
from seerd.core.step import follow
from seerd.view.live import view
from seerd.view.plain import line_of
from seerd.view.summary import summary
from tests.journals.reading import rows_of
from tests.journals.test_journals import JOURNALS, a_name

SIZES = ((80, 24), (140, 50))


@pytest.mark.parametrize("path", JOURNALS, ids=a_name)
def test_every_moment_can_be_shown(path: Path) -> None:
    rows = rows_of(path)
    state = new_state(rows[0][0].facts)  # type: ignore[union-attr]
    console, sizes = Console(width=140, file=io.StringIO()), cycle(SIZES)
    for event, decided in rows:
        follow(state, event, decided)
        console.print(line_of(event, state, decided))
        console.print(view(state, state.now, [], next(sizes)))
    end = Console(width=140, file=io.StringIO())
    end.print(summary(state))
    shown = end.file.getvalue()  # type: ignore[attr-defined]
    assert state.facts.run in shown
    assert all(trial in shown for trial in list(state.trials)[:10])
