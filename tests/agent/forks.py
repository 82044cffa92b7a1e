"""Forks of a test's process, for what becomes another process, or ends it."""

from __future__ import annotations

import atexit
import io
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

Say = Callable[[Any], None]


def forked(does: Callable[[], object]) -> int:
    """Do this in a fork, to which nothing of pytest belongs any more; return its process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        atexit._clear()
        logging.getLogger().handlers.clear()
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.FileIO(number, "w", closefd=False), write_through=True)
            for number in (1, 2)
        )
        does()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else error.code is not None
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(status)


def status_of(child: int) -> int:
    """Wait for a fork; return its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_a_fork(does: Callable[[Say], object]) -> list[Any]:
    """Do this in a fork, and return what it has said."""
    reading, writing = os.pipe()

    def talks() -> None:
        os.close(reading)
        does(lambda answer: os.write(writing, json.dumps(answer).encode() + b"\n"))

    child = forked(talks)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        assert status_of(child) == 0
        os.set_blocking(said.fileno(), False)  # what the fork has started may still have it open
        return [json.loads(line) for line in (said.read() or b"").splitlines()]
