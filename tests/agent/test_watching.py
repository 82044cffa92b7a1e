"""What is concluded from looks at running attempts, look by look: over a /proc and marks of our
own, with a clock that only these tests advance.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seerd.agent import clock, host
from seerd.agent.hangs import HangDetector, Stall, Standstill, is_idle, standing
from seerd.agent.host import Life
from seerd.agent.launch import Places
from seerd.agent.progress_marks import (
    ENDED,
    MARK,
    MOST_RANKS,
    REDUCING,
    WAITING,
    WORKING,
    ProgressMark,
    read,
)
from seerd.agent.protocol import Node, Stalled, Start, Waited
from seerd.agent.timings import TIMINGS, Timings
from seerd.agent.watchdog import StragglerDetector, Watchdog
from tests.agent.test_processes import TICK, Proc

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")

LATE = ProgressMark(20, 0, 2, 41, 0, WORKING, 9, 3, 50, 0.5, 1.0, 2.0)
AHEAD = replace(LATE, pid=21, rank=1, doing=WAITING, units=10, ticks=0)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    root = tmp_path / "proc"
    root.mkdir()
    monkeypatch.setattr(host, "PROC", root)
    made = Proc(root)
    made.add(20, io=io(0))
    made.add(21)
    return made


def io(moved: int) -> str:
    return f"rchar: {moved}\n"


class Ranks:
    """The marks of ranks, and what looks at them each half second."""

    def __init__(self, folder: Path, *marks: ProgressMark, spans: bool = False) -> None:
        self.folder = folder / "marks"
        self.folder.mkdir(exist_ok=True)
        self.show(*(marks or (LATE, AHEAD)))
        self.detector = HangDetector(self.folder, lambda: {20, 21}, TIMINGS, spans)
        self.now = 1000.0
        assert self.detector.look(self.now)

    def show(self, *marks: ProgressMark) -> None:
        for local, mark in enumerate(marks):
            fields = [getattr(mark, name) for name in ProgressMark.__annotations__]
            (self.folder / str(local)).write_bytes(MARK.pack(1, *fields))

    def after(self, seconds: float, each_s: float = 0.5) -> Stall | None:
        """What is found when so much time has passed."""
        for _ in range(round(seconds / each_s)):
            self.now += each_s
            assert self.detector.look(self.now)
        return self.detector.stall


@pytest.mark.usefixtures("proc")
def test_a_late_rank_hangs_after_ten_seconds_of_doing_nothing(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    assert ranks.detector.marks == {0: LATE, 1: AHEAD}
    assert not ranks.detector.look(ranks.now + 0.49)
    assert ranks.after(10.0) is None
    stall = ranks.after(0.5)
    assert stall is not None
    assert stall == Stall((9, 3), LATE, 0, since=stall.since, quiet_s=10.0)
    assert clock.now() - stall.since == pytest.approx(10.0, abs=5.0)
    assert ranks.after(5.0) is stall


def test_the_hindmost_of_several_late_ranks_is_named(tmp_path: Path, proc: Proc) -> None:
    proc.add(22)
    further = replace(LATE, ticks=4, peers=3)
    ranks = Ranks(tmp_path, further, replace(AHEAD, peers=3), replace(LATE, peers=3))
    stall = ranks.after(10.5)
    assert stall is not None
    assert (stall.local, stall.position) == (2, (9, 3))


@pytest.mark.usefixtures("proc")
def test_on_several_instances_all_may_wait_for_ranks_elsewhere(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, replace(AHEAD, peers=1), spans=True)
    assert ranks.after(9.5) is None
    stall = ranks.after(0.5)
    assert stall is not None
    assert (stall.hung, stall.local, stall.quiet_s) == (None, 0, 10.0)
    assert ranks.after(3.0) is stall


@pytest.mark.usefixtures("proc")
def test_a_spell_of_work_that_took_long_gives_more_time(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, LATE, replace(AHEAD, longest_s=4.0))
    assert ranks.after(20.0) is None
    assert ranks.after(0.5) is not None


@pytest.mark.parametrize(("gap_s", "goes_on"), [(5.0, True), (5.5, False)])
@pytest.mark.usefixtures("proc")
def test_after_a_gap_between_looks_all_begins_anew(
    tmp_path: Path, gap_s: float, *, goes_on: bool
) -> None:
    ranks = Ranks(tmp_path)
    ranks.after(6.0)
    ranks.after(gap_s, each_s=gap_s)
    assert (ranks.after(0.5) is not None) is goes_on
    assert ranks.after(9.5) is None or goes_on
    assert ranks.after(0.5) is not None


@pytest.mark.usefixtures("proc")
def test_a_mark_that_moves_begins_all_anew(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    assert ranks.after(11.0) is not None
    ranks.show(replace(LATE, ticks=4), AHEAD)
    assert ranks.after(0.5) is None
    assert ranks.after(10.0) is None
    assert ranks.after(0.5) is not None
    ranks.show(replace(LATE, ticks=4, doing=REDUCING), AHEAD)
    assert ranks.after(0.5) is None


@pytest.mark.parametrize(
    ("does", "works"),
    [
        ({"cpu": (TICK // 4, 0, 0, 0)}, False),
        ({"cpu": (0, TICK, 0, 0)}, True),
        ({"io": io(500_000)}, False),
        ({"io": io(900_000)}, True),
        ({"state": "R"}, True),
        ({"born": 101}, True),
    ],
)
@pytest.mark.parametrize("is_found", [False, True], ids=["before", "after it was found"])
def test_a_late_rank_that_works_does_not_hang(
    tmp_path: Path, proc: Proc, does: dict[str, Any], *, works: bool, is_found: bool
) -> None:
    ranks = Ranks(tmp_path)
    assert (ranks.after(10.5 if is_found else 9.0) is not None) is is_found
    proc.add(20, **{"io": io(0), **does})
    assert (ranks.after(0.5 if is_found else 1.5) is None) is works
    if works and does != {"state": "R"}:
        assert ranks.after(10.0) is None
        assert ranks.after(0.5) is not None


@pytest.mark.parametrize("is_found", [False, True])
def test_a_late_rank_that_cannot_be_looked_at_is_not_said_to_hang(
    tmp_path: Path, proc: Proc, *, is_found: bool
) -> None:
    ranks = Ranks(tmp_path)
    ranks.after(10.5 if is_found else 5.0)
    (proc.root / "20" / "stat").unlink()
    assert ranks.after(0.5 if is_found else 6.0) is None
    assert ranks.after(30.0) is None


def test_a_stopped_rank_is_late_whatever_it_shows(tmp_path: Path, proc: Proc) -> None:
    proc.add(20, state="T")
    stopped, other = replace(AHEAD, pid=20), replace(AHEAD, pid=21)
    stall = Ranks(tmp_path, stopped, other).after(10.5)
    assert stall is not None
    assert stall.hung == stopped


@pytest.mark.usefixtures("proc")
def test_ranks_that_tell_nothing_are_never_found(tmp_path: Path) -> None:
    assert Ranks(tmp_path, LATE, replace(AHEAD, doing=ENDED)).after(30.0) is None


def test_a_mark_of_nothing_yet_says_nothing() -> None:
    late, ahead = replace(LATE, units=0, spells=50), replace(AHEAD, units=1)
    assert standing({0: late, 1: ahead}, set(), spans=False) is None
    assert standing({0: replace(late, units=1), 1: replace(ahead, units=2)}, set(), spans=False)
    assert standing({0: LATE, 1: replace(AHEAD, peers=1)}, set(), spans=False) is None


@pytest.mark.parametrize(
    ("spells", "units", "counts"), [(29, 2, False), (30, 2, True), (29, 3, True)]
)
def test_a_rank_has_to_have_worked_before_it_can_be_late(
    spells: int, units: int, *, counts: bool
) -> None:
    late = replace(LATE, spells=spells, units=units)
    ahead = replace(AHEAD, units=units + 1)
    assert (standing({0: late, 1: ahead}, set(), spans=False) is not None) is counts


def test_every_late_rank_has_to_be_behind_the_hindmost_that_waits() -> None:
    third = replace(LATE, units=10, ticks=0, peers=3)
    marks = {0: replace(LATE, peers=3), 1: replace(AHEAD, peers=3), 2: third}
    assert standing(marks, set(), spans=False) is None
    marks[1] = replace(AHEAD, peers=3, ticks=1)
    assert standing(marks, set(), spans=False) is not None
    marks[3] = replace(AHEAD, units=9, ticks=3)
    assert standing({n: replace(m, peers=4) for n, m in marks.items()}, set(), spans=False) is None


@pytest.mark.parametrize(
    ("cpu_s", "moved", "idle"),
    [(0.5, 655_360, True), (0.51, 0, False), (0.0, 655_361, False), (0.0, 0, True)],
)
def test_little_is_no_work(cpu_s: float, moved: int, *, idle: bool) -> None:
    before, after = Life(7, False, 0.0, 0), Life(7, False, cpu_s, moved)
    assert is_idle(before, after, 10.0) is idle


GOOD = (1, 100, 0, 3, 0, 0, WAITING, 9, 3, 50, 0.5, 1.0, 2.0)


@pytest.mark.parametrize(
    ("at", "value", "counts"),
    [
        *((0, 2, False), (0, 0, False), (1, 1, False), (1, 2, True), (2, -1, False)),
        *((3, 0, False), (3, 1, True), (3, MOST_RANKS, True), (3, MOST_RANKS + 1, False)),
        *((4, -1, False), (5, -1, False), (5, 1, True), (6, -1, False), (6, 0, True)),
        *((6, 4, True), (6, 5, False), (7, -1, False), (7, 0, True), (8, -1, False)),
        *((9, -1, False), (9, 0, True), (10, -0.1, False), (10, 0.0, True)),
        *((11, float("nan"), False), (12, float("inf"), False)),
    ],
)
def test_a_mark_counts_only_with_values_that_can_be(
    tmp_path: Path, at: int, value: float, *, counts: bool
) -> None:
    fields = [*GOOD[:at], value, *GOOD[at + 1 :]]
    (tmp_path / "0").write_bytes(MARK.pack(*fields))
    assert read(tmp_path) == ({0: ProgressMark(*fields[1:])} if counts else {})


def test_at_most_64_marks_are_read_up_to_the_first_that_is_missing(tmp_path: Path) -> None:
    for local in range(MOST_RANKS + 2):
        (tmp_path / str(local)).write_bytes(MARK.pack(*GOOD))
    assert list(read(tmp_path)) == [*range(64)]
    (tmp_path / "2").write_bytes(b"short")
    assert list(read(tmp_path)) == [0, 1]
    (tmp_path / "2").write_bytes(MARK.pack(*GOOD) + b"more")
    assert len(read(tmp_path)) == 64


def looks(
    still: Standstill, *at: float, told: int = 7, quiet_since: float = 0.0, limit_s: float = 4.0
) -> list[str]:
    return [still.look(now, 20, told, quiet_since, limit_s) for now in at]


NOTHING = "computed, read, wrote and reported nothing"


@pytest.mark.usefixtures("proc")
def test_an_attempt_stands_still_once_it_has_for_so_long() -> None:
    still = Standstill()
    assert looks(still, 100.0, 101.9, 102.0, 103.9) == [""] * 4
    assert looks(still, 103.999, 104.0) == ["", f"for 4 s it {NOTHING}"]
    assert looks(still, 105.9, 106.0) == ["", f"for 6 s it {NOTHING}"]


@pytest.mark.usefixtures("proc")
def test_who_has_reported_or_written_for_us_does_not_stand_still() -> None:
    still = Standstill()
    looks(still, 100.0, 102.0)
    assert looks(still, 104.0, 106.0, told=8) == ["", ""]
    assert looks(still, 108.0, told=8) == [f"for 4 s it {NOTHING}"]
    assert looks(still, 109.0, 110.9, told=8, quiet_since=109.0) == ["", ""]
    assert looks(still, 111.0, 113.0, told=8, quiet_since=109.0) == ["", ""]
    assert looks(still, 115.0, told=8, quiet_since=109.0) == [f"for 4 s it {NOTHING}"]


def test_who_works_does_not_stand_still(proc: Proc) -> None:
    still = Standstill()
    looks(still, 100.0)
    proc.add(20, io=io(1 << 20))
    assert looks(still, 102.0, 104.0) == ["", ""]
    assert looks(still, 106.0) == [f"for 4 s it {NOTHING}"]
    (proc.root / "20" / "stat").unlink()
    assert looks(still, 108.0, 112.0) == ["", ""]


def test_children_that_stand_still_and_those_that_have_ended_are_counted(proc: Proc) -> None:
    pool = "a multiprocessing.Pool waits for ever for a worker that was killed"
    still = Standstill()
    for pid in (30, 31, 32):
        proc.add(pid, 20)
    looks(still, 100.0)
    assert looks(still, 104.0) == [f"for 4 s it and its child processes (3) {NOTHING}; {pool}"]
    (proc.root / "20/task/20/children").write_text("30 31 ")
    said = f"for 6 s it and its child processes (2) {NOTHING}; 1 ended before; {pool}"
    assert looks(still, 106.0) == [said]
    (proc.root / "20/task/20/children").write_text("")
    assert looks(still, 108.0) == [f"for 8 s it {NOTHING}"]


def test_where_children_are_not_listed_nothing_stands_still(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host.sys, "platform", "darwin")
    assert looks(Standstill(), 100.0, 104.0, 108.0) == ["", "", ""]
    assert proc.root.exists()


def test_the_spans_over_which_waiting_is_counted_double_up_to_an_hour() -> None:
    detector = StragglerDetector(always=True)
    marks = {0: LATE, 1: AHEAD}
    now, spans = 0.0, []
    detector.look(now, marks)
    while len(spans) < 10:
        now += 1.0
        waits = detector.look(now, marks)
        spans += [] if waits is None else [waits[0]]
    assert spans == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


@pytest.mark.parametrize(
    ("waited_s", "shares"),
    [(2.5, [0.25, 0.0]), (2.4, None), (30.0, [1.0, 0.0]), (3.33333, [0.3333, 0.0])],
)
def test_much_waiting_is_told_with_its_share(waited_s: float, shares: list[float] | None) -> None:
    detector = StragglerDetector(always=False, first_s=10.0)
    assert detector.look(5.0, {0: LATE, 1: AHEAD}) is None
    later = replace(LATE, waited_s=LATE.waited_s + waited_s / 2, reduced_s=2.0 + waited_s / 2)
    less = replace(AHEAD, waited_s=0.0)
    waits = detector.look(15.0, {0: later, 1: less})
    assert waits == (None if shares is None else (10.0, [0, 1], shares))


@pytest.mark.parametrize(
    "marks",
    [
        {},
        {0: LATE},
        {0: LATE, 1: replace(AHEAD, doing=ENDED)},
        {0: replace(LATE, units=2), 1: AHEAD},
    ],
)
def test_nothing_is_counted_while_ranks_begin_or_end(marks: dict[int, ProgressMark]) -> None:
    detector = StragglerDetector(always=True, first_s=10.0)
    whole = {0: replace(LATE, units=3), 1: AHEAD}
    assert detector.look(0.0, whole) is None
    assert detector.look(9.0, marks) is None
    assert detector.look(10.0, whole) is None
    assert detector.look(19.0, whole) is None
    assert detector.look(20.0, whole) is not None


AT_ONCE = Timings(hang_look_s=0.0, hang_quiet_s=0.0, hang_patience=0)
"""What is late is hung at the second look."""


class Watched:
    """A watchdog of an attempt, and what it has told."""

    def __init__(self, folder: Path, *, spans: bool) -> None:
        self.places = Places(folder / "1", folder / "saved", folder, folder / "lock")
        self.places.logs.mkdir(parents=True)
        node = Node(0, 2, "10.0.0.9", "10.0.0.8:1", 4) if spans else None
        self.facts: list[Any] = []
        self.dog = Watchdog(
            Start("s", "t1", 1, [0], {}, 0, [], node),
            self.places,
            lambda: {20, 21},
            self._tell,
            AT_ONCE,
        )

    def _tell(self, facts: list[Any]) -> None:
        self.facts += [replace(fact, seq=7) for fact in facts]

    def show(self, *marks: ProgressMark) -> None:
        self.places.marks.mkdir(exist_ok=True)
        for local, mark in enumerate(marks):
            fields = [getattr(mark, name) for name in ProgressMark.__annotations__]
            (self.places.marks / str(local)).write_bytes(MARK.pack(1, *fields))


@pytest.mark.usefixtures("proc")
def test_a_node_that_stands_still_is_told_once_and_so_is_that_it_moves_again(
    tmp_path: Path,
) -> None:
    watched = Watched(tmp_path, spans=True)
    watched.show(LATE, AHEAD)
    before = clock.now()
    for _ in range(4):
        watched.dog.look()
    (told,) = watched.facts
    assert told == Stalled(7, told.at, "t1", 1, True, 9, 3, over=False)
    assert before <= told.at <= clock.now()
    assert watched.dog.hung is not None
    watched.show(replace(LATE, ticks=4), AHEAD)
    watched.dog.look()
    assert watched.facts[1:] == [replace(told, at=watched.facts[1].at, over=True)]
    assert watched.dog.hung is None


@pytest.mark.usefixtures("proc")
def test_a_node_whose_ranks_all_wait_tells_that_none_is_late_here(tmp_path: Path) -> None:
    watched = Watched(tmp_path, spans=True)
    watched.show(replace(AHEAD, peers=1))
    for _ in range(3):
        watched.dog.look()
    (told,) = watched.facts
    assert told == Stalled(7, told.at, "t1", 1, False, 10, 0, over=False)
    assert watched.dog.hung is None


@pytest.mark.usefixtures("proc")
def test_on_one_instance_a_stall_is_not_told_but_found(tmp_path: Path) -> None:
    watched = Watched(tmp_path, spans=False)
    watched.show(LATE, AHEAD)
    assert watched.dog.hung is None
    for _ in range(3):
        watched.dog.look()
    assert watched.facts == []
    assert watched.dog.hung is not None
    assert watched.dog.hung.hung == LATE


@pytest.mark.parametrize(("spans", "count"), [(True, 1), (False, 0)])
@pytest.mark.usefixtures("proc")
def test_waiting_is_told_where_it_is_much_or_of_several_instances(
    tmp_path: Path, count: int, *, spans: bool
) -> None:
    watched = Watched(tmp_path, spans=spans)
    watched.show(LATE, AHEAD)
    watched.dog._stragglers = StragglerDetector(always=spans, first_s=0.0)
    for _ in range(2):
        watched.dog.look()
    told = [fact for fact in watched.facts if isinstance(fact, Waited)]
    assert len(told) == count
    if told:
        (fact,) = told
        assert fact == Waited(7, fact.at, "t1", 1, fact.over_s, [0, 1], [0.0, 0.0])


def test_torchrun_is_ending_its_ranks_once_it_has_said_so(tmp_path: Path) -> None:
    watched = Watched(tmp_path, spans=False)
    log = watched.places.launcher_log
    assert not watched.dog.is_closing()
    log.write_text("starting\n")
    assert not watched.dog.is_closing()
    log.write_text("starting\nSending process 12 closing signal SIGTERM\n")
    assert watched.dog.is_closing()
    assert not watched.dog.is_closing(), "nothing new was written"
    log.write_text(log.read_text() + "received 15 death signal\n")
    assert not watched.dog.is_closing()
