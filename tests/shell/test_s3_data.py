"""From objects to what agents are told to download."""

from __future__ import annotations

from pathlib import PurePosixPath

from hypothesis import given
from hypothesis import strategies as st

from seerd.agent.protocol import MAX_LINE, Download
from seerd.agent.wire import encode
from seerd.errors import StoreError
from seerd.shell.translate import chunks
from seerd.stores.s3.address import Address

KEYS = st.text(st.sampled_from("ab./\0é"), max_size=12)
ITEMS = st.lists(
    st.builds(Download, st.text(max_size=3000), st.text(max_size=50), st.integers(0, 10**12)),
    max_size=60,
)


@given(ITEMS)
def test_every_item_travels_once_in_order_and_only_the_first_message_begins_anew(items):
    messages = chunks(items)
    assert [item for message in messages for item in message.items] == items
    assert [message.first for message in messages] == [True] + [False] * (len(messages) - 1)


def test_many_items_are_several_lines_that_are_short_enough():
    messages = chunks([Download("x" * 2000, f"data/{n}", n) for n in range(2000)])
    assert len(messages) > 5
    assert all(len(encode(message)) <= MAX_LINE for message in messages)


@given(KEYS, KEYS, KEYS)
def test_a_key_becomes_a_path_below_the_folder_or_nothing_or_an_error(prefix, key, to):
    try:
        path = Address("bucket", prefix.strip("/")).path_of(key, to)
    except StoreError:
        return
    if path is not None:
        parts = PurePosixPath(path).parts
        assert parts
        assert not path.startswith("/")
        assert ".." not in parts
        assert "\0" not in path
