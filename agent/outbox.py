"""What a trial writes for us (`out.jsonl`), turned into facts.

The one rule: the trial's output is not trusted. Whatever is not a well-formed line of docs/training-side.md is dropped with a word in the
agent's log; nothing in it can name a path, stop the agent or be told twice.
"""

from __future__ import annotations

import json
import logging
import math
import os
import stat
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from agent.journal import Maker
from agent.protocol import Checkpointed, Fact, Reported, Training
from agent.transfer import TransferError, is_safe, store

MOST_AT_ONCE = 1 << 20
LONGEST_LINE = 1 << 16
MOST_METRICS = 64

MOST_COMPLAINTS = 20
NEVER_AGAIN = 1 << 62
log = logging.getLogger("agent")


class Outbox:
    """The output of one attempt. `local` and `to`: its checkpoints here and in the store."""

    def __init__(self, path: Path, trial: str, attempt: int, local: Path, to: Path) -> None:
        self._path = path
        self._trial = trial
        self._attempt = attempt
        self._local = local
        self._to = to
        self._offset = 0
        self._read_to = 0
        self._complaints = 0
        self._told: Set[Tuple[str, Any]] = set()

    def forget_nothing(self, facts: List[Fact]) -> None:
        """These facts of this attempt were told by an agent before us."""
        for fact in facts:
            if isinstance(fact, Training):
                self._told.add(("training", 0))
            elif isinstance(fact, Reported):
                self._told.add(("report", fact.epoch))
            elif isinstance(fact, Checkpointed):
                self._told.add(("checkpoint", fact.name))

    def has_grown(self) -> bool:
        """Whether there is something that `drain` has not looked at."""
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return False
        return stat.S_ISREG(there.st_mode) and there.st_size > self._read_to

    def drain_all(self) -> Iterator[List[Maker]]:
        """All that is left once nobody writes any more."""
        while self.has_grown():
            yield self.drain()

    def drain(self) -> List[Maker]:
        """Facts for the whole lines that have come since the last time, a bounded amount at once; their checkpoints are in the store
        when this returns.
        """
        return [maker for line in self._lines() for maker in [self._fact(line)] if maker is not None]

    def _lines(self) -> Iterator[bytes]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read(MOST_AT_ONCE)
        except OSError as error:
            self._complain(error)
            self._read_to = NEVER_AGAIN
            return
        whole = data.rfind(b"\n") + 1
        self._read_to = self._offset + len(data)
        if not whole and len(data) == MOST_AT_ONCE:
            whole = len(data)
        self._offset += whole
        yield from data[:whole].splitlines()

    def _fact(self, line: bytes) -> Optional[Maker]:
        try:
            told = json.loads(line) if len(line) <= LONGEST_LINE else None
            if not isinstance(told, dict):
                raise ValueError("not an object, or too long")
            return self._known(told)
        except (ValueError, TypeError, KeyError, RecursionError, TransferError) as error:
            self._complain(error)
            return None

    def _complain(self, error: Exception) -> None:
        """Up to a point: a trial must not fill the disk with what we say about it."""
        self._complaints += 1
        if self._complaints <= MOST_COMPLAINTS:
            last = " (no more is said of later ones)" if self._complaints == MOST_COMPLAINTS else ""
            log.warning("%s/%s: dropped a line of its output: %s%s", self._trial, self._attempt, error, last)

    def _known(self, told: Dict[str, Any]) -> Optional[Maker]:
        kind = told["kind"]
        if kind == "training":
            return self._once(kind, 0, self._training, told)
        if kind == "report":
            return self._once(kind, _count(told["epoch"]), self._report, told)
        if kind == "checkpoint":
            return self._once(kind, _name(told["name"]), self._checkpoint, told)
        raise ValueError(f"no line is of kind {kind!r:.40}")

    def _once(
        self, kind: str, key: Any, make: Callable[[Dict[str, Any]], Maker], told: Dict[str, Any]
    ) -> Optional[Maker]:
        if (kind, key) in self._told:
            return None
        maker = make(told)
        self._told.add((kind, key))
        return maker

    def _training(self, told: Dict[str, Any]) -> Maker:
        at, epoch = _moment(told), _count(told["epoch"])
        return lambda seq: Training(seq, at, self._trial, self._attempt, epoch)

    def _report(self, told: Dict[str, Any]) -> Maker:
        at, epoch, unit_s = _moment(told), _count(told["epoch"]), _seconds(told.get("unit_s", 0.0))
        metrics = _metrics(told["metrics"])
        return lambda seq: Reported(seq, at, self._trial, self._attempt, epoch, metrics, unit_s)

    def _checkpoint(self, told: Dict[str, Any]) -> Maker:
        began = time.monotonic()
        manifest = store(self._local, self._to, told["name"])
        save_s = _seconds(told.get("save_s", 0.0)) + time.monotonic() - began
        metrics, epoch, at = _metrics(manifest.metrics), _count(manifest.epoch), time.time()
        return lambda seq: Checkpointed(
            seq,
            at,
            self._trial,
            self._attempt,
            manifest.name,
            epoch,
            metrics,
            manifest.sha256,
            manifest.size,
            save_s,
        )


def _moment(told: Dict[str, Any]) -> float:
    """When it says it was, if that is possible, else now."""
    now, at = time.time(), told.get("at")
    return at if isinstance(at, float) and now - 86400 < at <= now else now


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 10**9:
        raise ValueError(f"{value!r:.40} is no number of reports")
    return value


def _name(value: Any) -> str:
    if not is_safe(value):
        raise ValueError(f"{value!r:.80} is no name for a checkpoint")
    return str(value)


def _seconds(value: Any) -> float:
    return float(value) if type(value) in (int, float) and 0 <= value < 86400 else 0.0


def _metrics(value: Any) -> Dict[str, Optional[float]]:
    if not isinstance(value, dict) or len(value) > MOST_METRICS:
        raise ValueError("metrics are no table, or too many")
    return {str(name)[:64]: _finite(number) for name, number in value.items()}


def _finite(number: Any) -> Optional[float]:
    """None for NaN, infinity, and numbers too large to be one."""
    if number is None:
        return None
    if type(number) not in (int, float):
        raise ValueError(f"{number!r:.40} is no number")
    try:
        value = float(number)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None
