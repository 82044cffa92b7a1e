"""The rig for the tests of this folder; other folders make theirs the same way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rig import Rig


@pytest.fixture(scope="session")
def session_rig() -> Iterator[Rig]:
    """One rig for all tests of the session: starting one takes a second or two."""
    with Rig.start() as rig:
        yield rig


@pytest.fixture
def rig(session_rig: Rig) -> Iterator[Rig]:
    """A rig with nothing in it; a rig in trouble fails the test."""
    session_rig.reset()
    yield session_rig
    assert session_rig.troubles() == []
