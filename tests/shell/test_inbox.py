"""The requests of a run: each appears whole, is answered once, and junk is nobody's request."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd.core.events import ExtendAsked
from seerd.shell.inbox import Inbox, Reply
from tests.conftest import small_facts
from tests.fuzz.kit import fuzzed

ASKS = ExtendAsked(at=0.0, request="", problem=small_facts().problem)


def test_a_request_waits_until_it_is_answered(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "requests")
    assert list(inbox.waiting()) == [], "nobody has asked anything yet"
    name = inbox.put(ASKS)
    assert list(inbox.waiting()) == [(name, ASKS)]
    assert inbox.reply(name) is None
    inbox.answer(name, Reply("lower"))
    assert list(inbox.waiting()) == []
    reply = inbox.reply(name)
    assert reply is not None
    assert reply.denied == "lower"
    inbox.withdraw(name)
    assert list(inbox.path.iterdir()) == []
    inbox.withdraw(name)


def test_what_is_being_written_is_not_read(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    name = inbox.put(ASKS)
    (tmp_path / f"{name}.json").rename(tmp_path / f".{name}")
    assert list(inbox.waiting()) == []


@given(st.binary(max_size=200))
@fuzzed(60)
def test_junk_is_left_out(tmp_path_factory, data: bytes) -> None:
    inbox = Inbox(tmp_path_factory.mktemp("requests"))
    name = inbox.put(ASKS)
    for other in ("0" * 16, "..%2f", "x" * 16):
        (inbox.path / f"{other}.json").write_bytes(data)
    (inbox.path / f"{'1' * 16}.json").mkdir()
    (inbox.path / f"{'2' * 16}.reply").write_bytes(data)
    assert list(inbox.waiting()) == [(name, ASKS)]
    assert inbox.reply("2" * 16) is None


def test_what_cannot_be_written_whole_is_no_request_and_no_answer(tmp_path: Path) -> None:
    """The disk ends in the middle of it: nothing has the name that the other side reads."""
    inbox = Inbox(tmp_path)
    name = inbox.put(ASKS)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            inbox.put(ASKS)
        with pytest.raises(OSError, match="too large"):
            inbox.answer(name, Reply("lower", "told at some length"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == [f"{name}.json"]
    assert list(inbox.waiting()) == [(name, ASKS)]
