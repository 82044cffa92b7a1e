"""The rig as a pytest fixture: `tests/conftest.py` names it, and every test can ask for `rig`.

The one rule: one rig serves the whole session, and each test finds it empty.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.testbed.rig import NoRigError, Rig


@pytest.fixture(scope="session")
def session_rig() -> Iterator[Rig]:
    """One rig for all tests of the session: starting one takes a second or two."""
    try:
        started = Rig.start()
    except NoRigError as error:
        pytest.fail(str(error), pytrace=False)
    with started:
        yield started


@pytest.fixture
def rig(session_rig: Rig) -> Iterator[Rig]:
    """A rig with nothing in it; what goes wrong in the rig itself fails the test. A fast one:
    most tests want to see what happens, and those that want to see how long it takes say so with
    `rig.reset(fast=False)`.
    """
    session_rig.reset(fast=True)
    yield session_rig
    if troubles := session_rig.troubles():
        pytest.fail("the rig itself went wrong: " + "; ".join(troubles), pytrace=False)
