"""What people see of a run of any earlier version, after each of its events."""

from __future__ import annotations

import io
from itertools import cycle
from pathlib import Path

import pytest
from rich.console import Console, Group

from seerd.core.state import new_state
from seerd.core.step import follow
from seerd.shell.journal import Entry
from seerd.telling.live.board import Recent, board_of
from seerd.telling.live.frame import frame
from seerd.telling.live.look import LiveLook
from seerd.telling.plain import line_of
from seerd.telling.summary import summary
from tests.journals.reading import rows_of
from tests.journals.test_journals import JOURNALS, a_name

SIZES = ((80, 24), (140, 50))


@pytest.mark.parametrize("path", JOURNALS, ids=a_name)
def test_every_moment_can_be_shown(path: Path) -> None:
    rows = rows_of(path)
    state = new_state(rows[0][0].facts)  # type: ignore[union-attr]
    console, sizes, recent = Console(width=140, file=io.StringIO()), cycle(SIZES), Recent()
    for seq, (event, decided) in enumerate(rows, 1):
        follow(state, event, decided)
        console.print(line_of(event, state, decided))
        recent.read([Entry(seq, event, list(decided))], state)
        console.print(
            Group(*frame(board_of(state, state.now, recent), LiveLook(), next(sizes)).lines)
        )
    end = Console(width=140, file=io.StringIO())
    end.print(summary(state))
    shown = end.file.getvalue()  # type: ignore[attr-defined]
    assert state.facts.run in shown
    assert all(trial in shown for trial in list(state.trials)[:10])
