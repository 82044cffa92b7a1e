"""Presigned URLs, in this memory and nowhere else. A place in the store that has been tried is not
used for another checkpoint while there is a fresh one: what was thought lost may still arrive.
"""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional, Union

from seerd.agent.protocol import Ask, Grant, Parts, Slot

Say = Callable[[Ask], bool]
"""Sends a question to the daemon, from any thread; returns whether a daemon is connected."""


class PresignedUrls:
    """What one attempt may put and get. The agent's thread calls `take`, others the rest."""

    def __init__(self, trial: str, attempt: int, say: Say, parts_s: float = 10.0) -> None:
        self.trial = trial
        self.attempt = attempt
        self._say = say
        self._parts_s = parts_s  # to wait for an answer to `Ask`
        self._changed = threading.Condition()
        self._grant: Optional[Grant] = None
        self._refused: Optional[Grant] = None
        self._sources: dict[str, Slot] = {}
        self._full: set[str] = set()
        self._tried: dict[str, int] = {}
        self._last = False
        self._closed = False
        self.asked: Optional[Ask] = None  # the question that waits for an answer
        self._answer: Optional[Parts] = None

    def take(self, message: Union[Grant, Parts]) -> None:
        """Take in a grant, or the answer to a question."""
        with self._changed:
            if isinstance(message, Grant):
                self._grant = message
                self._sources.update({slot.name: slot for slot in message.gets})
            else:
                self._answer = message
            self._changed.notify_all()

    def last_call(self) -> None:
        """Stop keeping a place back: the next checkpoint is the last."""
        self._last = True

    def close(self) -> None:
        """End all waiting, now and later, and offer no more places."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def place(self) -> Optional[Slot]:
        """Return where the next checkpoint goes; None: no place. One is kept for the last call, in
        case no daemon comes back to grant more.
        """
        with self._changed:
            if self._grant is None or self._grant is self._refused or self._closed:
                return None
            free = [slot for slot in self._grant.puts if slot.name not in self._full]
            fresh = [slot for slot in free if slot.name not in self._tried]
            kept_back = 0 if self._last or len(self._grant.puts) == 1 else 1
            if len(fresh) > kept_back:
                return fresh[0]
            tried = [slot for slot in free if slot.name in self._tried]
            return min(tried, key=lambda slot: self._tried[slot.name], default=None)

    def try_it(self, slot: Slot) -> None:
        """Note that something is put at this place now."""
        with self._changed:
            self._tried[slot.name] = max(self._tried.values(), default=0) + 1

    def is_full(self, slot: Slot) -> None:
        """Note that a whole checkpoint is at this place."""
        with self._changed:
            self._full.add(slot.name)

    def is_refused(self, slot: Slot) -> None:
        """Note that the store refuses this URL: its grant is not used again. No manifest has
        arrived at the place, and none will.
        """
        with self._changed:
            self._tried.pop(slot.name, None)
            if self._grant is not None and slot in self._grant.puts:
                self._refused = self._grant
            if self._sources.get(slot.name) == slot:
                del self._sources[slot.name]

    def ask_anew(self, slot: Slot) -> None:
        """Ask for other URLs, since the store refuses this one. Without a daemon nothing is asked:
        one that connects grants some anyway.
        """
        self._say(Ask(self.trial, self.attempt, slot.name, 0))

    def source(self, name: str, until: float) -> Optional[Slot]:
        """Return where this checkpoint can be got; wait until `until` (monotonic clock)."""
        with self._changed:
            self._wait(until, lambda: name in self._sources)
            return self._sources.get(name)

    def parts(self, slot: Slot, size: int) -> Optional[Parts]:
        """Ask where the parts of `size` bytes go; None: no parts, or no answer in time."""
        ask = Ask(self.trial, self.attempt, slot.name, size)
        with self._changed:
            self.asked, self._answer = ask, None
            try:
                if self._say(ask):
                    self._wait(time.monotonic() + self._parts_s, lambda: self._answers(slot))
                answer = self._answer if self._answers(slot) else None
                return answer if answer is not None and answer.urls else None
            finally:
                self.asked = None

    def _answers(self, slot: Slot) -> bool:
        return self._answer is not None and self._answer.name == slot.name

    def _wait(self, until: float, done: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: done() or self._closed, max(0.0, until - time.monotonic()))


class PresignedUrlsByAttempt:
    """The presigned URLs of all attempts, by trial and attempt."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._urls: dict[tuple[str, int], PresignedUrls] = {}

    def of(self, trial: str, attempt: int) -> PresignedUrls:
        """Return what this attempt may put and get, now and later."""
        urls = PresignedUrls(trial, attempt, self._say)
        return self._urls.setdefault((trial, attempt), urls)

    def take(self, message: Union[Grant, Parts]) -> None:
        """Pass a grant or an answer on to its attempt."""
        self.of(message.trial, message.attempt).take(message)

    def forget(self, trial: str, attempt: int) -> None:
        """Forget the grants of this attempt, which is over, and of the trial's earlier ones."""
        for key in [key for key in self._urls if key[0] == trial and key[1] <= attempt]:
            self._urls.pop(key).close()

    @property
    def asks(self) -> list[Ask]:
        """Questions without an answer yet; they are asked again on a new connection."""
        return [urls.asked for urls in self._urls.values() if urls.asked is not None]
