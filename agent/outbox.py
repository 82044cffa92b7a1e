"""What a trial writes for us (`out.jsonl`), turned into facts.

The one rule: the trial's output is not trusted. Whatever is not a well-formed line of docs/training-side.md is dropped with a word in the
agent's log; nothing in it can name a path, stop the agent or be told twice.
"""

from __future__ import annotations

import json
import logging
import math
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from agent.protocol import Checkpointed, Fact, Reported, Training
from agent.transfer import TransferError, is_safe, store

MOST_AT_ONCE = 1 << 20
LONGEST_LINE = 1 << 16
MOST_METRICS = 64

Maker = Callable[[int], Fact]
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

    def drain(self) -> List[Maker]:
        """Facts for every whole line that has come since the last time; checkpoints are in the store when this returns."""
        return [maker for line in self._lines() for maker in [self._fact(line)] if maker is not None]

    def _lines(self) -> Iterator[bytes]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read(MOST_AT_ONCE)
        except FileNotFoundError:
            return
        whole = data.rfind(b"\n") + 1
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
            log.warning("%s/%s: dropped a line of its output: %s", self._trial, self._attempt, error)
            return None

    def _known(self, told: Dict[str, Any]) -> Optional[Maker]:
        kind = told["kind"]
        if kind == "training":
            return self._training(told) if self._first(kind, 0) else None
        if kind == "report":
            return self._report(told) if self._first(kind, _count(told["epoch"])) else None
        if kind == "checkpoint":
            return self._checkpoint(told) if self._first(kind, told["name"]) else None
        raise ValueError(f"no line is of kind {kind!r:.40}")

    def _first(self, kind: str, key: Any) -> bool:
        if (kind, key) in self._told:
            return False
        self._told.add((kind, key))
        return True

    def _training(self, told: Dict[str, Any]) -> Maker:
        at, epoch = _moment(told), _count(told["epoch"])
        return lambda seq: Training(seq, at, self._trial, self._attempt, epoch)

    def _report(self, told: Dict[str, Any]) -> Maker:
        at, epoch, unit_s = _moment(told), _count(told["epoch"]), _seconds(told.get("unit_s", 0.0))
        metrics = _metrics(told["metrics"])
        return lambda seq: Reported(seq, at, self._trial, self._attempt, epoch, metrics, unit_s)

    def _checkpoint(self, told: Dict[str, Any]) -> Maker:
        if not is_safe(told["name"]):
            raise ValueError(f"{told['name']!r:.80} is no name for a checkpoint")
        began = time.monotonic()
        manifest = store(self._local, self._to, told["name"])
        save_s = _seconds(told.get("save_s", 0.0)) + time.monotonic() - began
        metrics, epoch = _metrics(manifest.metrics), _count(manifest.epoch)
        return lambda seq: Checkpointed(
            seq,
            time.time(),
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
