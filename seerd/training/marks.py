"""What the agent sees of this rank while it works (`marks/LOCAL_RANK`, docs/training-side.md).

The one rule: an update takes a microsecond, and never waits for a disk.
"""

import contextlib
import faulthandler
import mmap
import os
import signal
import time
from pathlib import Path
from typing import Any, Optional

from seerd.agent.progress_marks import ENDED, MARK, REDUCING, VERSION, WAITING, WORKING
from seerd.training.ranks import Ranks

# counted from SIGRTMIN: the lowest are the C library's, and scripts use SIGUSR1 and SIGUSR2
STACK_SIGNAL = 7


class Mark:
    """Whether this rank works or waits for the others, and how far it has come. With other ranks
    and a `folder`, a file there shows it to the agent, mapped into memory.
    """

    def __init__(self, ranks: Ranks, folder: Optional[Path]) -> None:
        self._doing, self._since = ENDED, time.monotonic()
        self._units = self._ticks = self._spells = 0
        self._longest = self._waited = self._reduced = 0.0
        self._map: Optional[mmap.mmap] = None
        if folder is not None and ranks.world > 1:
            number, on_gpu = _stack_signal(), int(ranks.on_gpu)
            self._about = (VERSION, os.getpid(), ranks.rank, ranks.peers, number, on_gpu)
            path = folder / "marks" / str(ranks.local)
            with contextlib.suppress(OSError, ValueError):
                path.parent.mkdir(exist_ok=True)
                with open(path, "w+b", buffering=0) as file:
                    # Else a full disk would kill us at the first write to the map.
                    file.write(bytes(MARK.size))
                    self._map = mmap.mmap(file.fileno(), MARK.size)
        self.turn(WORKING)

    @property
    def shown(self) -> bool:
        """Whether the agent can see it."""
        return self._map is not None

    def turn(self, doing: int, units: int = 0, ticks: int = 0) -> None:
        """Show what this rank does from now on (`doing`), and count `units` (calls of `running()`)
        and `ticks` (backward passes and steps).

        A spell of work counts only after the first `running()`, and the first spell is never the
        longest: it compiles and loads.
        """
        if self._map is None:
            return
        now = time.monotonic()
        spent, self._since = now - self._since, now
        if self._doing == WAITING:
            self._waited += spent
        elif self._doing == REDUCING:
            self._reduced += spent
        elif self._doing == WORKING and self._units:
            self._longest = max(self._longest, spent) if self._spells else 0.0
            self._spells += 1
        self._doing, self._units = doing, self._units + units
        self._ticks = 0 if units else self._ticks + ticks
        counts = (doing, self._units, self._ticks, self._spells)
        MARK.pack_into(
            self._map, 0, *self._about, *counts, self._longest, self._waited, self._reduced
        )


class Steps:
    """Steps of the first tracked optimizer, and backward passes of the first tracked model."""

    def __init__(self, mark: Mark) -> None:
        self.counting = False  # whether there is an optimizer to count with
        self.done = 0  # steps in this attempt
        self.accumulate = 1  # backward passes for one step
        self._mark = mark
        self._passes, self._sees_passes = 0, False

    def watch(self, thing: Any) -> None:
        """Count with this optimizer or model, if it is the first of its kind."""
        if not self.counting and hasattr(thing, "register_step_post_hook"):
            thing.register_step_post_hook(self._step)
            self.counting = True
        if self._mark.shown and not self._sees_passes and hasattr(thing, "parameters"):
            first = next(
                (parameter for parameter in thing.parameters() if parameter.requires_grad), None
            )
            if first is not None:
                self._sees_passes = True
                first.register_hook(self._pass)

    def _step(self, *_: Any) -> None:
        self.done += 1
        self._passes = 0
        self._mark.turn(WORKING, ticks=1)

    def _pass(self, _: Any) -> None:
        """Count a backward pass. After the last one before a step, a rank waits for the others."""
        self._passes += 1
        self._mark.turn(WORKING if self._passes % self.accumulate else REDUCING, ticks=1)


def _stack_signal() -> int:
    """Have a signal write the Python stack to the log; return its number, 0: none."""
    try:
        number = signal.SIGRTMIN + STACK_SIGNAL
        faulthandler.register(number, all_threads=False)
    except (AttributeError, OSError, RuntimeError, ValueError):
        return 0
    return int(number)
