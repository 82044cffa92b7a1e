"""Work in a forked process: its imports take no memory in a process that lives for days."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def aside(work: Callable[[], T], meanwhile: Callable[[], object] = lambda: None) -> T:
    """Call `work` in a forked process, while this process has one thread and calls `meanwhile`;
    return or raise its outcome. Raises `RuntimeError` if the process ends without an answer.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent reports what interrupts both
        try:
            try:
                answer = pickle.dumps((work(), None))
            except Exception as error:  # noqa: BLE001 - it is raised in the parent
                error.add_note(traceback.format_exc())
                answer = pickle.dumps((None, error))
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(answer)
        finally:
            os._exit(0)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            meanwhile()
            answer = pipe.read()
    except BaseException:  # the answer is not needed any more
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    if not answer:
        raise RuntimeError(f"a process ended with status {status} and left nothing to read")
    value, failure = pickle.loads(answer)  # noqa: S301 - our own words
    if failure is not None:
        raise failure
    result: T = value
    return result
