"""Reaps the orphans that the agent has adopted, as soon as they have ended.

The one rule: a child for which the agent waits keeps its exit status until then. Each of those is
in the agent's own session or leads another one, and is waited for as soon as it has ended. So any
other child is reaped at once, and one of those when it has been a zombie for `PATIENCE_S` seconds.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Dict

from seerd.agent import host

PATIENCE_S = 1.0


class Reaper:
    """Reaps children that have ended."""

    def __init__(self) -> None:
        self._since: Dict[int, float] = {}

    def look(self) -> None:
        """Reap the orphans that have ended. Call this often."""
        now, ended = time.monotonic(), host.zombies()
        self._since = {pid: self._since.get(pid, now) for pid in ended}
        for pid, since in self._since.items():
            # Who waits for it may have done so by now.
            with contextlib.suppress(ChildProcessError, ProcessLookupError):
                may_be_waited_for = os.getsid(pid) in (pid, os.getsid(0))
                if not may_be_waited_for or now - since >= PATIENCE_S:
                    os.waitpid(pid, os.WNOHANG)
