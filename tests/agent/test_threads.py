"""Work in threads, and bytes that are split among them."""

from __future__ import annotations

import asyncio
import errno
import threading

import pytest

from seerd.agent.remote_store import pieces_of
from seerd.agent.threads import in_thread, in_thread_or_here, parallel
from seerd.agent.web import Piece, WebError
from tests.agent.waiting import no_threads


def test_as_many_threads_work_as_are_allowed_and_no_more() -> None:
    both, names = threading.Barrier(2), set()

    def work(item: int) -> None:
        names.add(threading.current_thread().name)
        both.wait(20)

    parallel(work, range(6), 2)
    assert len(names) == 2


def test_after_a_failure_nothing_is_begun_and_it_is_raised() -> None:
    begun = []

    def work(item: int) -> None:
        begun.append(item)
        if item == 2:
            raise ValueError(item)

    with pytest.raises(ValueError, match="2"):
        parallel(work, range(9), 1)
    assert begun == [0, 1, 2]


def test_without_a_thread_work_fails_as_any_work_of_the_system_does_or_is_done_here() -> None:
    async def works() -> threading.Thread:
        with pytest.raises(OSError, match="as many processes and threads") as failed:
            await in_thread(threading.current_thread)
        assert failed.value.errno == errno.EAGAIN
        return await in_thread_or_here(threading.current_thread)

    names = []
    with no_threads():
        assert asyncio.run(works()) is threading.current_thread()
        parallel(names.append, "abc", 2)
    assert names == ["a", "b", "c"]
    assert asyncio.run(in_thread_or_here(threading.current_thread)) != threading.current_thread()


@pytest.mark.parametrize(
    ("size", "sizes"), [(4, [4, 4, 2]), (5, [5, 5]), (10, [10]), (11, [10]), (1, [1] * 10)]
)
def test_pieces_cover_the_bytes_in_order(size: int, sizes: list[int]) -> None:
    pieces = pieces_of(Piece(3, 7, 10), size)
    assert [piece.size for piece in pieces] == sizes
    assert [piece.start for piece in pieces] == [7 + sum(sizes[:at]) for at in range(len(sizes))]
    assert {piece.descriptor for piece in pieces} == {3}


def test_parts_without_a_size_are_refused() -> None:
    with pytest.raises(WebError):
        pieces_of(Piece(3, 0, 10), 0)
