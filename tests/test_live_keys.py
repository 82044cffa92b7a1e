"""What keys do in the live view, and how it goes back in time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from seerd.shell.journal import Entry, Journal
from seerd.telling.live.board import Board, board_of
from seerd.telling.live.frame import TrialLife, frame
from seerd.telling.live.look import Act, LiveLook, listed, press
from seerd.telling.live.terminal import decode
from seerd.telling.live.viewer import Player, moved
from tests.conftest import small_facts
from tests.test_live import asha, board, drawn, recent, world


@pytest.fixture(scope="module")
def rungs() -> Board:
    return board(asha(100.0))


def typed(shown: Board, look: LiveLook, *keys: str) -> tuple[LiveLook, list[Act]]:
    """The look after these keys, and what they ask for beyond looking."""
    acts = []
    for key in keys:
        look, act = press(look, key, shown, frame(shown, look, (100, 30)).height)
        acts += [act] if act else []
    return look, acts


@pytest.mark.parametrize(
    ("text", "keys", "pending"),
    [
        ("jk", ["j", "k"], ""),
        ("\x1b[A\x1bOB\x1b[5~", ["up", "down", "page up"], ""),
        ("\x1b[1;5A", [], ""),
        ("\r\x7f", ["enter", "backspace"], ""),
        ("a\x1b", ["a"], "\x1b"),
        ("\x1b[", [], "\x1b["),
        ("\x1bx", ["escape", "x"], ""),
        ("\x1b\x1b[D", ["escape", "left"], ""),
        ("\x00\x07é", ["é"], ""),
        ("\x1b[\x01q", ["q"], ""),
    ],
)
def test_what_a_terminal_sends_is_a_key(text: str, keys: list[str], pending: str) -> None:
    assert decode(text) == (keys, pending)


def test_the_mark_moves_and_the_list_scrolls(rungs: Board) -> None:
    ids = [row.id for row in listed(rungs, LiveLook())]
    look, _ = typed(rungs, LiveLook(), "j", "down", "k")
    assert look.cursor == ids[1]
    assert typed(rungs, look, "G")[0].cursor == ids[-1]
    assert typed(rungs, look, "end", "g")[0].cursor == ids[0]
    low, _ = typed(rungs, look, "page down", "page down", "page down", "page down")
    assert low.cursor == ids[-1]
    lines = drawn(rungs, low)
    assert any(line.startswith(f"›{ids[-1]}") for line in lines)
    assert not any(ids[0] in line for line in lines[8:20])


def test_the_mark_stays_at_its_trial_when_others_overtake(rungs: Board) -> None:
    look, _ = typed(rungs, LiveLook(), "j", "j")
    marked = look.cursor
    other = replace(rungs, rows=tuple(reversed(rungs.rows)))
    assert any(line.startswith(f"›{marked}") for line in drawn(other, look, (100, 60)))


def test_trials_are_sorted_by_each_column_both_ways(rungs: Board) -> None:
    look, _ = typed(rungs, LiveLook(), "s")
    assert look.sort == "saved"
    saved = [row.saved for row in listed(rungs, look) if row.saved is not None]
    assert saved == sorted(saved, reverse=True)
    assert listed(rungs, look)[-1].saved is None
    by_lr = replace(look, sort="lr")
    values = [float(row.config["lr"]) for row in listed(rungs, by_lr)]
    assert values == sorted(values)
    turned, _ = typed(rungs, by_lr, "r")
    assert [float(row.config["lr"]) for row in listed(rungs, turned)] == values[::-1]
    head = next(line for line in drawn(rungs, turned) if line.startswith(" trial"))
    assert "lr▲" in head
    columns = 6 + len(rungs.parameters)
    assert typed(rungs, LiveLook(), *"s" * columns)[0].sort == "last", "it goes round"


def test_only_trials_with_the_words_of_the_filter_are_listed(rungs: Board) -> None:
    look, acts = typed(rungs, LiveLook(), "/", *"waitingq", "backspace")
    assert look.typing
    assert not acts, "q is a letter here"
    assert {row.word for row in listed(rungs, look)} == {"waiting"}
    assert "/waiting_" in drawn(rungs, look)[-1]
    kept, _ = typed(rungs, look, "enter", "j")
    assert not kept.typing
    assert kept.filter == "waiting"
    assert typed(rungs, kept, "escape")[0].filter == ""
    nobody, _ = typed(rungs, LiveLook(), "/", *"nothing", "enter", "j", "enter")
    assert nobody.page == "run"
    assert "no trial has that" in "\n".join(drawn(rungs, nobody))


def test_a_trial_is_opened_and_left(rungs: Board) -> None:
    look, _ = typed(rungs, LiveLook(), "j", "enter")
    assert look.page == "trial"
    lines = drawn(rungs, look, life=TrialLife(None, ("epoch 3", "loss 0.1")))
    assert lines[0].startswith(f"{look.cursor}  ")
    assert any(line.startswith("accuracy by report  ") for line in lines)
    assert "  loss 0.1" in drawn(rungs, look, (100, 60), TrialLife(None, ("epoch 3", "loss 0.1")))
    assert typed(rungs, look, "escape")[0].page == "run"
    down, _ = typed(rungs, look, "j")
    assert drawn(rungs, down, (100, 9))[0] == lines[1]
    assert frame(rungs, replace(look, down=999), (100, 9)).down < 20, "not beyond its end"


def test_leaving_a_view_is_one_key_and_stopping_a_run_two(rungs: Board) -> None:
    assert typed(rungs, LiveLook(), "q")[1] == ["leave"]
    asked, acts = typed(rungs, LiveLook(owner=True), "q")
    assert not acts
    assert "stop the run?" in drawn(rungs, asked)[-1]
    assert typed(rungs, asked, "n") == (LiveLook(owner=True), [])
    assert typed(rungs, asked, "y") == (LiveLook(owner=True), ["stop"])


def test_time_has_keys_only_where_there_is_a_journal_to_go_back_in(rungs: Board) -> None:
    times = typed(rungs, LiveLook(journeys=True), "left", "[", "right", "]", "end")[1]
    assert times == ["back", "back", "forth", "forth", "live"]
    assert not typed(rungs, LiveLook(), "left", "[", "right", "]", "end")[1]


def test_a_pause_is_shown_and_ends_with_the_same_key(rungs: Board) -> None:
    look, _ = typed(rungs, LiveLook(), "p")
    assert look.paused
    assert "PAUSED" in drawn(rungs, look)[-1]
    assert not typed(rungs, look, "p")[0].paused


def test_the_page_of_keys_names_every_key(rungs: Board) -> None:
    look, _ = typed(rungs, LiveLook(), "?")
    text = "\n".join(drawn(rungs, look, (120, 40)))
    for key in ("PgUp", "s r", "/", "Enter", "Esc", "m", "p", "q"):
        assert f"  {key} " in text, key
    assert typed(rungs, look, "?")[0].page == "run"


# ------------------------------------------------------------ back in time


def test_a_run_is_shown_as_it_stood(tmp_path: Path) -> None:
    made = asha(100.0)
    with Journal.create(tmp_path / "journal.db", 0.0) as journal:
        journal.append([Entry(seq, *one) for seq, one in enumerate(made.journal, 1)])
        player = Player(journal)
        assert player.advance(None, 60.0)
        end = board_of(player.state, player.state.now, player.recent)
        assert end.rows == board_of(made.state, made.state.now, recent(made)).rows
        for at_s in (60.0, 30.0, 0.0, 80.0):
            while not player.advance(at_s, 0.0):
                pass
            assert player.state.now <= at_s
            seen = {r.id: r.reports for r in board_of(player.state, at_s, player.recent).rows}
            history = made.state.trials["t0001"].history
            assert seen.get("t0001", 0) == sum(report.at_s <= at_s for report in history)
        assert player.advance(None, 60.0)
        assert board_of(player.state, player.state.now, player.recent).rows == end.rows
        life = player.life("t0001")
        assert life is not None
        assert life["trial"] == "t0001"
        shown = drawn(end, LiveLook(page="trial", cursor="t0001"), (100, 60), TrialLife(life))
        assert any(line.startswith("why: ") for line in shown)
        assert "what happened to it, and why" in shown
        assert journal.last_s == made.state.now


def test_a_step_in_time_is_a_sixtieth_of_the_run_on_round_figures() -> None:
    assert moved(None, "back", 603.0) == 600.0
    assert moved(600.0, "back", 603.0) == 570.0
    assert moved(10.0, "back", 603.0) == 0.0
    assert moved(0.0, "back", 603.0) == 0.0
    assert moved(570.0, "forth", 603.0) == 600.0
    assert moved(600.0, "forth", 603.0) is None, "the present"
    assert moved(None, "forth", 603.0) is None
    assert moved(100.0, "live", 603.0) is None


def test_a_moment_after_the_end_is_the_end() -> None:
    made = world(small_facts(), 1e6)
    assert made.state.finished
    late = board_of(made.state, 99 * 3600.0, recent(made))
    assert late == board(made)
    assert "99h" not in "\n".join(drawn(late))


def test_of_a_run_that_is_over_nothing_is_left_and_nothing_runs() -> None:
    made = world(small_facts(), 25.0)
    text = "\n".join(drawn(board(made)))
    assert "2 of 2, " in text
    assert "now " in text
    text = "\n".join(drawn(board(world(small_facts(), 1e6))))
    assert "over: the plan is carried out" in text
    assert "2 of 2\n" in text
    assert "at last " in text
    assert " left" not in text.partition("instances:")[0].replace("·", "")
    assert "now " not in text


def test_back_before_a_trial_began_its_page_says_so(rungs: Board) -> None:
    look, _ = typed(rungs, LiveLook(journeys=True), "G", "enter")
    before = replace(rungs, rows=tuple(row for row in rungs.rows if row.id != look.cursor))
    lines = drawn(before, look)
    assert lines[0] == f"{look.cursor}  not there yet at this moment"
    assert "trials 1-" not in "\n".join(lines)
    assert "Esc all trials" not in lines[-1]
    assert "Esc back" in lines[-1]
    assert typed(before, look, "escape", "down")[0].page == "run"
