"""What marks say of who waits for whom, what is usual, and what is work."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd.agent import host, progress_marks
from seerd.agent.hangs import (
    HangDetector,
    Stand,
    Standstill,
    is_idle,
    limit_s,
    standing,
)
from seerd.agent.host import Life
from seerd.agent.progress_marks import ENDED, MARK, REDUCING, SAVING, WAITING, WORKING, ProgressMark
from seerd.agent.timings import TIMINGS
from seerd.agent.watchdog import StragglerDetector

MARKED = ProgressMark(100, 0, 2, 41, 0, WORKING, 9, 3, 50, 0.5, 1.0, 2.0)
AHEAD = replace(MARKED, rank=1, doing=WAITING, units=10, ticks=0)


def shown(*found: ProgressMark) -> dict[int, ProgressMark]:
    """These marks, of ranks that are as many as there should be."""
    return {local: replace(mark, peers=len(found)) for local, mark in enumerate(found)}


def write(path: Path, *fields: float) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(MARK.pack(*fields))


def test_a_rank_that_others_have_passed_is_late():
    assert standing(shown(MARKED, AHEAD), set(), spans=False) == Stand((0,), (1,))
    assert standing(shown(AHEAD, MARKED, AHEAD), set(), spans=True) == Stand((1,), (0, 2))
    reducing = replace(MARKED, doing=REDUCING, ticks=4)
    assert standing(shown(reducing, MARKED), set(), spans=False) == Stand((1,), (0,))


@pytest.mark.parametrize(
    "found",
    [
        {},
        shown(MARKED),
        shown(MARKED, MARKED),
        shown(AHEAD, AHEAD),
        {0: MARKED, 1: replace(AHEAD, peers=3)},
        shown(MARKED, replace(AHEAD, units=9, ticks=3)),
        shown(MARKED, replace(AHEAD, units=8)),
        shown(MARKED, replace(AHEAD, doing=SAVING)),
        shown(replace(MARKED, doing=SAVING), AHEAD),
        shown(MARKED, AHEAD, replace(AHEAD, doing=ENDED)),
        shown(replace(MARKED, doing=ENDED), AHEAD),
        shown(MARKED, replace(AHEAD, units=0)),
        shown(replace(MARKED, units=2, spells=29), AHEAD),
        shown(MARKED, AHEAD, replace(MARKED, units=11)),
    ],
)
def test_nothing_is_said_of_ranks_that_are_late_together_save_end_or_have_only_begun(found):
    assert standing(found, set(), spans=False) is None


def test_on_gpus_a_rank_that_has_begun_a_later_step_waits_for_those_that_have_not():
    late, ahead = replace(MARKED, on_gpu=1, ticks=4), replace(MARKED, on_gpu=1, ticks=6)
    assert standing(shown(late, ahead, replace(ahead, ticks=8)), set(), spans=False) == Stand(
        (0,), (1, 2)
    )
    assert standing(shown(late, ahead, replace(ahead, ticks=5)), set(), spans=False) == Stand(
        (0, 2), (1,)
    )
    assert standing(shown(late, replace(late, ticks=5)), set(), spans=False) is None
    assert standing(shown(late, replace(ahead, units=10)), set(), spans=False) is None
    assert (
        standing(shown(replace(late, on_gpu=0), replace(ahead, on_gpu=0)), set(), spans=False)
        is None
    )


def test_of_several_instances_each_says_whether_it_waits_or_works():
    assert standing(shown(AHEAD), set(), spans=True) == Stand((), (0,))
    assert standing(shown(MARKED, MARKED), set(), spans=True) == Stand((0, 1), ())


def test_a_process_that_was_stopped_does_not_wait():
    assert standing(shown(AHEAD, AHEAD), {1}, spans=False) == Stand((1,), (0,))
    assert standing(shown(AHEAD, replace(AHEAD, units=11)), {1}, spans=False) is None


def test_what_is_usual_decides_how_long_is_too_long():
    assert limit_s(shown(MARKED, AHEAD), TIMINGS) == TIMINGS.hang_quiet_s
    slow = shown(MARKED, replace(AHEAD, longest_s=60.0))
    assert limit_s(slow, TIMINGS) == TIMINGS.hang_patience * 60.0


@pytest.mark.parametrize(
    ("after", "idle"),
    [
        (Life(7, False, 3.4, 5000), True),
        (Life(7, False, 3.6, 5000), False),
        (Life(7, False, 3.0, 5000 + (1 << 20)), False),
        (Life(7, True, 3.0, 5000), False),
        (Life(8, False, 3.0, 5000), False),
    ],
)
def test_computing_reading_and_writing_are_work(after, idle):
    assert is_idle(Life(7, False, 3.0, 5000), after, 10.0) == idle


@pytest.fixture
def waiting() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        while (life := host.life(process.pid, {process.pid})) is None or life.runs:
            time.sleep(0.01)
        yield process


def test_a_process_that_waits_stands_still_unless_it_writes_for_us(waiting):
    still, goes_on = Standstill(), Standstill()
    for now in (100, 105, 110):
        told = still.look(float(now), waiting.pid, 7, 0.0, 10.0)
        assert told.startswith("for 10 s it computed, ") == (now == 110), told
        assert goes_on.look(float(now), waiting.pid, now, 0.0, 10.0) == ""


def test_what_a_process_has_done_counts_its_children_and_only_ours_is_looked_at():
    mine = host.life(os.getpid(), {os.getpid()})
    assert mine.cpu_s > 0
    assert mine.moved_bytes > 0
    assert host.life(os.getpid(), set()) is None
    assert host.life(1 << 22, {1 << 22}) is None


class Ranks:
    """Two ranks on this machine, their marks in real files. The first is late; `process` is what it
    does.
    """

    def __init__(self, folder: Path, pid: int) -> None:
        self._folder = folder
        self.pid = pid
        self.watch = HangDetector(folder, lambda: {pid}, TIMINGS, spans=False)
        self._now = 1000.0
        self.show(9)

    def show(self, units: int) -> None:
        """The late rank has come so far, the other one waits behind that."""
        write(self._folder / "0", 1, self.pid, 0, 2, 0, 0, WORKING, units, 3, 50, 0.5, 1.0, 2.0)
        write(
            self._folder / "1", 1, os.getpid(), 1, 2, 0, 0, WAITING, units + 1, 0, 50, 0.5, 1.0, 2.0
        )

    def over(self, seconds: float) -> bool:
        """Look each half second of these; whether there was a stall."""
        end, stalled = self._now + seconds, False
        while self._now < end:
            self._now += 0.5
            self.watch.look(self._now)
            stalled = stalled or self.watch.stall is not None
        return stalled

    def suspend(self, seconds: float) -> None:
        """Nobody looks for so long."""
        self._now += seconds


@pytest.fixture
def asleep(tmp_path: Path) -> Iterator[Ranks]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield Ranks(tmp_path / "marks", process.pid)
        process.kill()


def test_a_rank_that_is_quiet_for_long_hangs(asleep):
    assert [asleep.over(TIMINGS.hang_quiet_s - 2.0), asleep.over(4.0)] == [False, True]
    stall = asleep.watch.stall
    assert (stall.hung.rank, stall.position) == (0, (9, 3))


def test_a_rank_that_moves_does_not(asleep):
    for units in range(10, 15):
        assert not asleep.over(TIMINGS.hang_quiet_s - 2.0)
        asleep.show(units)


def test_a_rank_that_computes_does_not(tmp_path):
    ranks = Ranks(tmp_path / "marks", os.getpid())
    for _ in range(3):
        assert not ranks.over(TIMINGS.hang_quiet_s - 2.0)


def test_what_was_seen_before_the_machine_was_suspended_says_nothing(asleep):
    assert not asleep.over(TIMINGS.hang_quiet_s - 2.0)
    asleep.suspend(3600.0)
    assert [asleep.over(TIMINGS.hang_quiet_s - 2.0), asleep.over(4.0)] == [False, True]


@given(st.binary(max_size=2 * MARK.size))
def test_whatever_is_written_there_is_a_mark_or_none(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("marks")
    (folder / "0").write_bytes(data)
    found = progress_marks.read(folder)
    assert all(
        0 < mark.peers <= progress_marks.MOST_RANKS and mark.pid > 1 for mark in found.values()
    )
    standing(found, set(), spans=True)
    limit_s(found, TIMINGS)


def test_marks_are_files_of_their_own(tmp_path):
    fields = (1, 100, 0, 3, 0, 0, WAITING, 9, 3, 50, 0.5, 1.0, 2.0)
    write(tmp_path / "m" / "0", *fields)
    (tmp_path / "m" / "1").symlink_to("0")
    assert list(progress_marks.read(tmp_path / "m")) == [0]
    (tmp_path / "m" / "1").unlink()
    os.mkfifo(tmp_path / "m" / "1")
    assert list(progress_marks.read(tmp_path / "m")) == [0]
    assert progress_marks.read(tmp_path / "elsewhere") == {}


def test_shares_of_waiting_are_counted_over_a_span_and_told_where_they_are_large():
    first = shown(replace(MARKED, waited_s=5.0, reduced_s=0.0), replace(AHEAD, waited_s=50.0))
    later = {
        local: replace(mark, waited_s=mark.waited_s + 7.0 * local) for local, mark in first.items()
    }
    detector = StragglerDetector(always=False, first_s=10.0)
    assert detector.look(100.0, shown(MARKED, replace(AHEAD, units=2))) is None
    assert detector.look(101.0, first) is None
    assert detector.look(110.0, later) is None
    told = detector.look(111.0, later)
    assert told == (10.0, [0, 1], [0.0, 0.7])
    assert detector.look(122.0, later) is None
    assert detector.look(131.0, later) is None
    always = StragglerDetector(always=True, first_s=10.0)
    assert [always.look(now, later) is None for now in (1.0, 11.0)] == [True, False]
