"""Work in a forked process: its value and its errors come back, and nothing else of it."""

from __future__ import annotations

import os
import sys

import pytest

from seerd.errors import LimitsError, Mistake, SeerdError, SpecError
from seerd.shell.aside import aside

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
"""xdist has threads, a command has none when it plans."""

KEPT: list[int] = []


def test_what_is_returned_comes_back_and_what_is_imported_stays_away() -> None:
    def work() -> tuple[int, bool]:
        import colorsys  # noqa: F401 - nothing here uses it

        KEPT.append(1)
        return os.getpid(), "colorsys" in sys.modules

    sys.modules.pop("colorsys", None)
    process, was_there = aside(work)
    assert process != os.getpid()
    assert was_there
    assert "colorsys" not in sys.modules
    assert KEPT == []


def test_this_process_does_something_else_meanwhile() -> None:
    reading, writing = os.pipe()
    here: list[int] = []

    def meanwhile() -> None:
        here.append(os.getpid())
        os.write(writing, b"go on")

    assert aside(lambda: os.read(reading, 5), meanwhile) == b"go on"
    assert here == [os.getpid()]


def test_what_fails_meanwhile_ends_both() -> None:
    reading, writing = os.pipe()

    def fails() -> None:
        raise ValueError("too late")

    with pytest.raises(ValueError, match="too late"):
        aside(lambda: os.read(reading, 1), fails)
    os.close(writing)
    os.close(reading)


@pytest.mark.parametrize(
    "error",
    [
        SeerdError("so"),
        LimitsError("too little", 60.0, 120.0, "more"),
        SpecError("spec.toml", [Mistake("space.lr", "nothing", "a range")]),
        ValueError("a bug"),
    ],
)
def test_what_is_raised_is_raised_with_all_that_it_says(error: Exception) -> None:
    def work() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        aside(work)
    assert str(raised.value) == str(error)
    there = {key: value for key, value in vars(raised.value).items() if key != "__notes__"}
    assert there == vars(error)
    assert "in work" in raised.value.__notes__[0], "where it was raised"


def test_a_process_that_dies_is_told_of() -> None:
    with pytest.raises(RuntimeError, match="status 9 and left nothing"):
        aside(lambda: os.kill(os.getpid(), 9))
