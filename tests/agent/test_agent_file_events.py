"""What is written is told at once, and much of it together."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from seerd.agent import file_events
from seerd.agent.file_events import FileEvents

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has inotify")


class Told(list[str]):
    """The names of the files that something was told of."""

    def __init__(self) -> None:
        super().__init__()
        self._news = asyncio.Event()

    def of(self, name: str) -> Callable[[], None]:
        """Note that something was told of this file."""

        def note() -> None:
            self.append(name)
            self._news.set()

        return note

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until that is so."""
        async with asyncio.timeout(20):
            while not true():
                await self._news.wait()
                self._news.clear()


def play(scenario: Callable[[FileEvents, Told], Awaitable[None]]) -> None:
    """Run a scenario in a loop."""

    async def run() -> None:
        await scenario(FileEvents(), Told())

    asyncio.run(run())


def write(path: Path, text: str = "x") -> None:
    """Append this."""
    with path.open("a") as file:
        file.write(text)


def test_a_file_that_is_written_is_told_of_also_if_it_was_not_there_before(tmp_path):
    async def scenario(events: FileEvents, told: Told) -> None:
        assert events.watch(tmp_path / "out", told.of("out")) >= 0
        for count in (1, 2):
            write(tmp_path / "out")
            await told.until(lambda count=count: len(told) == count)

    play(scenario)


def test_nothing_is_told_of_other_files_nor_after_the_watch_has_ended(tmp_path):
    async def scenario(events: FileEvents, told: Told) -> None:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        ended = events.watch(tmp_path / "a/out", told.of("a"))
        events.watch(tmp_path / "b/out", told.of("b"))
        events.forget(ended)
        write(tmp_path / "a/out")
        write(tmp_path / "b/other")
        write(tmp_path / "b/out")
        await told.until(lambda: bool(told))
        assert told == ["b"]

    play(scenario)


def test_what_several_write_before_the_next_word_is_told_together(tmp_path, monkeypatch):
    monkeypatch.setattr(file_events, "GATHER_S", 0.2)
    monkeypatch.setattr(file_events, "MOST_S", 0.2)

    async def scenario(events: FileEvents, told: Told) -> None:
        names = [f"{number}" for number in range(8)]
        for name in names:
            (tmp_path / name).mkdir()
            events.watch(tmp_path / name / "out", told.of(name))
        write(tmp_path / "0/out")
        await told.until(lambda: told == ["0"])
        for name in names * 5:
            write(tmp_path / name / "out")
        await told.until(lambda: len(told) > 1)
        assert sorted(told[1:]) == names

    play(scenario)


def test_without_a_folder_nothing_is_told(tmp_path):
    async def scenario(events: FileEvents, told: Told) -> None:
        watch = events.watch(tmp_path / "none/out", told.of("out"))
        assert watch < 0
        events.forget(watch)

    play(scenario)


def watches(events: FileEvents) -> int:
    """How many the system keeps for it (proc(5), fdinfo)."""
    lines = Path(f"/proc/self/fdinfo/{events._queue}").read_text().splitlines()
    return sum(line.startswith("inotify ") for line in lines)


def test_a_watch_that_has_ended_costs_the_system_nothing(tmp_path: Path) -> None:
    async def scenario(events: FileEvents, told: Told) -> None:
        events.forget(7)
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        first = events.watch(tmp_path / "a/out", told.of("a"))
        second = events.watch(tmp_path / "b/out", told.of("b"))
        assert (watches(events), first != second) == (2, True)
        events.forget(first)
        events.forget(first)
        assert watches(events) == 1
        write(tmp_path / "b/out")
        await told.until(lambda: told == ["b"])

    play(scenario)


def test_where_nothing_can_be_watched_no_watch_has_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(events: FileEvents, told: Told) -> None:
        assert events.watch(tmp_path / "nowhere" / "out", told.of("out")) < 0
        monkeypatch.setattr(sys, "platform", "darwin")
        elsewhere = FileEvents()
        assert elsewhere.watch(tmp_path / "out", told.of("out")) == -1
        elsewhere.forget(-1)

    play(scenario)


def test_the_next_word_comes_the_later_the_more_the_last_one_was_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(file_events.time, "monotonic", lambda: now)

    async def scenario(events: FileEvents, told: Told) -> None:
        for count, until in ((1, 100.02), (3, 100.06), (9, 100.1)):
            for name in map(str, range(count)):
                (tmp_path / name).mkdir(exist_ok=True)
                events.watch(tmp_path / name / "out", told.of(name))
                write(tmp_path / name / "out")
            told.clear()
            events._next_at = 0.0
            await told.until(lambda count=count: len(told) == count)
            assert events._next_at == pytest.approx(until)

    play(scenario)
