"""What is said to people in every case: each sentence stands on a page.

`pytest tests/core --rewrite` accepts what comes out now; review the difference before you commit
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from seerd.core.attempts import crash_text
from seerd.core.events import TrialExited
from seerd.core.failures import failure_text, in_words, signature
from seerd.core.last_words import error_line, error_place, is_certain, obstacle_of
from seerd.core.state import Complaint
from seerd.telling.complaints import IN_THE_WAY, complaint_text
from tests.core.eventful import COMPLAINTS, TAILS
from tests.core.test_alike import run_of

FILE = Path(__file__).parent / "transcripts" / "words.txt"
LINES = (
    "OSError: [Errno 98] Address already in use",
    "RuntimeError: The server socket has failed to listen on any local network address",
    "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
    "sqlite3.OperationalError: database is locked",
    "BlockingIOError: [Errno 11] Resource temporarily unavailable",
    "BlockingIOError: [Errno 11] Resource temporarily unavailable: fork",
    "requests.exceptions.ConnectionError: HTTPSConnectionPool: Max retries exceeded",
    "torch.distributed.DistNetworkError: connection refused",
    "urllib.error.HTTPError: HTTP Error 503: Service Unavailable",
    "ValueError: lr must be positive",
    "train.py: error: unrecognized arguments: --lr",
    "ModuleNotFoundError: No module named 'x'",
    "",
)
AT = {"at": 9.0, "happened": 9.0, "instance": "i1", "fact": 1, "trial": "t0001", "attempt": 1}


def exits() -> Iterator[str]:
    codes, ranks = (None, 0, 1, -9, -11), (None, 3)
    for code, rank, signal, waited_s in product(codes, ranks, (None, 7, 9), (None, 41.6)):
        fields = {"code": code, "rank": rank, "signal": signal, "waited_s": waited_s}
        event = TrialExited(**AT, cause="crashed", **fields)  # type: ignore[arg-type]
        yield f"{code} {rank} {signal} {waited_s}: {crash_text(event)}"


def complaints() -> Iterator[str]:
    state = run_of("a").state
    whys = ("", "No space left on device", "Traceback\n  File \"a.py\", line 3\nKeyError: 'x'")
    for what, why in product(dict.fromkeys([*COMPLAINTS, "number", "constraint"]), whys):
        complaint = Complaint(what, "t0001", why)
        yield f"{what} {len(why)}: {complaint_text(state, complaint)}"


def last_words() -> Iterator[str]:
    frames = ("Traceback (most recent call last):", '  File "a.py", line 3, in f', "    f(x)")
    pipes = ('  File "/usr/lib/multiprocessing/connection.py", line 3, in recv',)
    for line, tail in product(LINES, ((), frames, pipes)):
        yield words((*tail, line))
    for tail in (*TAILS, ("x", "seerd: ended", " "), ("E: 1", "  more", ""), (*frames, "")):
        yield words(tail)


def words(tail: tuple[str, ...]) -> str:
    place, why = error_place(tail), obstacle_of(tail)
    return f"{len(tail)}: {error_line(tail)!r} {place!r} {is_certain(tail)} {why}"


def trials() -> Iterator[str]:
    run = run_of("a", "b")
    trial = run.trial("a")
    for why, tail in product(("", "ended with exit status 7"), (*TAILS, ("x" * 300,))):
        trial.why, trial.tail = why, tail
        yield f"{failure_text(trial)} {signature(trial)}"
        for obstacle in IN_THE_WAY:
            complaint = Complaint(obstacle, "a", "\n".join(tail))
            yield f"  {complaint_text(run.state, complaint)}"


def times() -> Iterator[str]:
    for seconds in (0.0, 0.6, 59.4, 119.4, 119.6, 120.0, 150.1, 3600.0):
        yield f"{seconds:g}: {in_words(seconds)}"


PARTS = (exits, complaints, last_words, trials, times)


def test_people_are_told_what_the_page_says(pytestconfig: pytest.Config) -> None:
    lines = [f"{part.__name__} {line}" for part in PARTS for line in part()]
    if pytestconfig.getoption("rewrite"):
        FILE.write_text("\n".join(lines) + "\n")
    assert FILE.read_text() == "\n".join(lines) + "\n"
