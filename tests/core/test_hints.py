"""What is said of a script's last words: each hint for the line that a library writes, and nothing
where there is doubt.
"""

from __future__ import annotations

import re

import pytest

from seerd.telling.complaints import HINTS, LAST, OF_SIGNALS, hint
from tests.mistakes.samples import SAMPLES

CRASHED = "ended with exit status 1"


def hint_of(*lines: str, names: tuple[str, ...] = ("lr", "width")) -> str:
    """What is said of a crash with these last lines."""
    return hint(CRASHED, ["Traceback:", *lines], "RUN", names)


@pytest.mark.parametrize(
    ("pattern", "sample"), list(zip(HINTS, SAMPLES, strict=True)), ids=lambda text: text[:40]
)
def test_each_hint_is_given_for_what_libraries_write(pattern: str, sample: str) -> None:
    found = re.search(pattern, sample)
    assert found
    assert hint_of(sample) == HINTS[pattern].format(*found.groups(), run="RUN")


@pytest.mark.parametrize("number", OF_SIGNALS)
def test_signals_have_hints(number: int) -> None:
    assert hint(f"was killed by signal {number} (rank 0)", [], "RUN", ()) == OF_SIGNALS[number]


def test_of_a_signal_that_says_nothing_by_itself_nothing_is_said() -> None:
    assert hint("was killed by signal 1 (rank 0)", ["Terminated"], "RUN", ()) == ""


def test_an_exit_status_without_a_traceback_is_explained() -> None:
    said = hint("ended with exit status 3", ["loading data", "done"], "RUN", ())
    assert said == "there is no traceback: the script ended itself, as sys.exit(3) does"
    assert hint("ended with exit status 3", ["Traceback:", "KeyError: 'lr'"], "RUN", ("lr",)) == ""
    assert hint("ended with exit status 3", ["Traceback:", "Killed"], "RUN", ()) == ""
    assert hint("ended with exit status 3", ["SyntaxError: bad"], "RUN", ()) == ""
    assert hint("ended with exit status 0", [], "RUN", ()) == ""


def test_a_key_that_no_hyperparameter_has_is_answered_with_those_that_there_are() -> None:
    assert hint_of("KeyError: 'rate'") == (
        "if 'rate' was looked for in trial.config: it has lr, width"
    )
    assert hint_of("KeyError: 'rate'", names=()).endswith("trial.config: it has nothing")


def test_only_the_last_lines_say_why_a_script_crashed() -> None:
    full, later = "OSError: [Errno 28] No space left on device", ["..."] * (LAST - 1)
    assert hint_of(full, *later).startswith("the disk is full")
    assert "disk" not in hint_of(full, *later, "...")


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: lr must be positive",
        "KeyError: 'lr'",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x784 and 512x10)",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.csv'",
        "",
    ],
)
def test_nothing_is_said_where_there_is_doubt(line: str) -> None:
    assert hint_of(line) == ""
