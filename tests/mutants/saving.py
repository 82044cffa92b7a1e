"""A plugin of coverage for agents: what they have run is written several times a second.

The one rule: it is for agents alone, which tests end by SIGKILL. Processes that fork, as those that
import beforehand, must have no thread more.
"""

from __future__ import annotations

import sys
import threading
import time

import coverage

SAVE_S = 0.2


def coverage_init(*_: object) -> None:
    """Begin to write, if this process is an agent out of its zip."""
    if any(word.endswith(".pyz") for word in sys.orig_argv):
        threading.Thread(target=_keep_saving, daemon=True).start()


def _keep_saving() -> None:
    while True:
        time.sleep(SAVE_S)
        if running := coverage.Coverage.current():
            running.save()
