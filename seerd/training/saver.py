"""Writes a trial's checkpoints, on rank 0: behind training, from a copy in host memory.

The one rule: states are written one at a time and in their order, and at most two copies are held,
of the state that is being written and of the best report since.
"""

import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

from seerd.training import checkpoints
from seerd.training.attempt import Attempt
from seerd.training.copies import HostCopy
from seerd.training.pace import BEST_EVERY_S, Pace
from seerd.training.shards import PartWriter, Shard, split, taken

Dump = Callable[[checkpoints.Flushed], None]  # writes the bytes of a checkpoint
SHORT = (
    "host memory is too short for a copy of the state, so training waits while a checkpoint is "
    "written, and not every best model is saved"
)


@dataclass
class Save:
    """A state of the trial that becomes a checkpoint."""

    name: str  # of the checkpoint
    epoch: int  # reports so far
    metrics: Dict[str, Optional[float]]  # for its manifest
    tracked: Optional[List[str]]  # names of what is in it; None: a framework knows
    is_best: bool  # whether its report is better than that of every state before
    copy: Optional[HostCopy] = None  # the memory that they are in; None: elsewhere
    # seconds for which training waited until it was copied; None: until it is written
    pause_s: Optional[float] = 0.0


class Saver:
    """Writes the checkpoints of one attempt.

    Its thread lives while there is something to write: a script that forks between saves, or ends,
    has none.
    """

    def __init__(self, torch: Any, attempt: Attempt, pace: Pace) -> None:
        self.is_short = False  # whether there was too little host memory for a copy
        self._torch, self._attempt, self._pace = torch, attempt, pace
        self._least_s = min(BEST_EVERY_S, attempt.every_s)  # seconds between two checkpoints
        self.parts: Optional[PartWriter] = None  # of the states that are sharded; None: none is
        self._slots = [HostCopy(torch), HostCopy(torch)]
        self._copies = [*self._slots]  # those that are free
        self._changed = threading.Condition()  # held to change what follows
        self._thread: Optional[threading.Thread] = None
        self._waiting: Optional[Tuple[Save, Dump]] = None
        self._is_awaited = False  # whether the thread waits for a state that is being copied
        self._hurries = False  # whether what waits is written without a rest
        self._error: Optional[BaseException] = None  # what has stopped the thread
        self._is_checked = torch is None or bool(checkpoints.every(attempt.checkpoints))
        checkpoints.tidy(attempt.checkpoints)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being written, or waits for that."""
        return self._thread is None

    def check(self) -> None:
        """Raise what has stopped a write."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def put(self, save: Save, payload: Dict[str, Any], *, is_last: bool) -> None:
        """Save what `torch.save` can save: copy it now, and write it behind training. The last
        state, and one for whose copy host memory is short, is written now.

        Raises `RuntimeError` if it is the first and could not be loaded safely.
        """
        began = time.monotonic()
        held: List[Shard] = []
        if self.parts is not None:
            payload, held = split(self._torch, payload)
        if not self._is_checked:
            checkpoints.check_loadable(self._torch, payload["state"])
            self._is_checked = True
        if is_last or not save.is_best:  # a best state that waits comes first
            self.settle()
        if self.parts is not None:
            self._put_parts(self.parts, save, (payload, held), began, is_last=is_last)
        elif is_last or not self._is_copied(save, payload, began):
            self.write(save, partial(checkpoints.dump, self._torch, payload), began)

    def write(self, save: Save, dump: Dump, began: float) -> None:
        """Write a state now, after those that were copied; training has waited since `began`."""
        self.settle()
        self._write(save, dump, began)

    def write_behind(self, save: Save, dump: Dump) -> None:
        """Write a state behind training, in the place of one that waits."""
        with self._changed:
            self._waiting, self._is_awaited = (save, dump), False
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()

    def settle(self) -> None:
        """Wait until all is written. Raises what has stopped a write."""
        with self._changed:
            self._is_awaited = False
            self._hurries, thread = True, self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join()
        self._hurries = False
        self.check()

    def _is_copied(self, save: Save, payload: Dict[str, Any], began: float) -> bool:
        memory = save.copy = self._take_memory()
        copied, is_short = taken(memory, payload)
        if is_short:
            self._copies.insert(0, memory)
            self._tell_short()
            return False
        save.pause_s = time.monotonic() - began
        self.write_behind(save, partial(checkpoints.dump, self._torch, copied))
        return True

    def _put_parts(
        self, parts: PartWriter, save: Save, state: Any, began: float, *, is_last: bool
    ) -> None:
        """Save what `split` has returned: every rank copies its parts, and then writes them."""
        with self._changed:
            self._is_awaited, begins = True, self._thread is None
            memory = save.copy = self._take_memory()
        slot, is_short = self._slots.index(memory), False
        parts.lead(slot, begins=begins)
        if not is_last:
            state, is_short = taken(memory, state)
        is_short = parts.any(is_short)
        if is_short:
            self._tell_short()
        waits = is_short or is_last
        save.pause_s = None if waits else time.monotonic() - began
        self.check()
        self.write_behind(save, partial(parts.dump, slot, *state))
        if waits:
            self.settle()

    def _take_memory(self) -> HostCopy:
        """Return the memory for a copy: that of the state that waits, in whose place it comes."""
        with self._changed:
            replaced, self._waiting = self._waiting, None
            memory = replaced[0].copy if replaced is not None else None
            return memory or self._copies.pop()

    def _tell_short(self) -> None:
        if not self.is_short:
            self._attempt.tell("warning", why=SHORT)
        self.is_short = True

    def _end_thread(self) -> None:
        self._thread = None
        if self.parts is not None:
            self.parts.end()

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._waiting is None and self._is_awaited:
                    self._changed.wait()
                    continue
                if self._waiting is None:
                    self._end_thread()
                    return
                (save, dump), rest_s = self._waiting, self._pace.rest_s(self._least_s)
                if save.is_best and rest_s > 0 and not self._hurries:
                    self._changed.wait(rest_s)
                    continue
                self._waiting = None
            try:
                self._write(save, dump, time.monotonic(), save.pause_s)
            except BaseException as error:
                with self._changed:
                    self._error, self._waiting = error, None
                    self._end_thread()
                return
            finally:
                if save.copy is not None:
                    self._copies.append(save.copy)

    def _write(self, save: Save, dump: Dump, began: float, pause_s: Optional[float] = None) -> None:
        attempt = self._attempt
        checkpoints.write(
            *(attempt.checkpoints, save.name, save.epoch, save.metrics, dump, attempt.goal)
        )
        took_s = time.monotonic() - began
        self._pace.saved(took_s if pause_s is None else pause_s, took_s)
        save_s = took_s + (pause_s or 0.0)
        attempt.tell("checkpoint", name=save.name, save_s=save_s, tracked=save.tracked)
