"""What a trial writes for its agent (`out.jsonl`), turned into facts. It is not trusted: malformed
lines (docs/training-side.md) are dropped, and nothing in it can name a path. Checkpoints wait until
`store` takes the newest, and before it one that is better than it and all stored ones.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

from seerd.agent import clock, plainfile
from seerd.agent.kept_reports import A_SECOND, KeptReports, ReportLimit
from seerd.agent.manifest import (
    CheckpointError,
    Comparison,
    allows,
    best_of,
    count_of,
    is_safe,
    metrics_of,
    needed,
)
from seerd.agent.protocol import Checkpointed, Complained, Fact, Reported, Training
from seerd.agent.remote_store import CheckpointStore, RemoteStore
from seerd.agent.transfer import NotNowError

MOST_AT_ONCE = 1 << 20
MOST_BEHIND = 8 << 20
"""Bytes that may wait. Of more, only the last half of this number is read: a trial can write faster
than anybody reads, and its end waits for its last line.
"""
LONGEST_LINE = 1 << 16

QUIET_S = 20.0
CLOSED_S = 20.0
"""Seconds until it is reported again that the store takes no checkpoint."""
FAILURES_REPORTED = 3
"""Failures in a row to store a checkpoint that are reported: a single one may be transient."""
SHOWN = 60
"""Characters of a line that are reported."""
LONGEST_COMPLAINT = 1000
PROMISED = "its script saves checkpoints"
ABOUT = ("number", "constraint")
"""Subjects of warnings that are reported once each."""
NEVER_AGAIN = 1 << 62
log = logging.getLogger("agent")


class TrialOutput:
    """The output of one attempt. `local` is the folder of its checkpoints, compared by `goal`."""

    def __init__(
        self,
        path: Path,
        trial: str,
        attempt: int,
        local: Path,
        checkpoint_store: CheckpointStore,
        goal: Comparison,
        limit: ReportLimit,
    ) -> None:
        self._path = path
        self._trial = trial
        self._attempt = attempt
        self._local = local
        self._lock = threading.Lock()
        # seconds to write, and worth, of the checkpoints to store, oldest first
        self._waiting: dict[str, tuple[float, Optional[float]]] = {}
        self._goal = goal
        self._best: Optional[float] = None  # worth of the best stored checkpoint of this attempt
        self.checkpoint_store = checkpoint_store
        self._offset = 0
        self.read_to = 0  # bytes of the file that `drain` has looked at
        self._line = 0
        self._quiet_since: Optional[float] = None
        self._quiet_s = QUIET_S
        self.reported_at = math.inf  # its last report or begin, by the monotonic clock
        self.longest_s = 0.0  # its longest wait for a report
        self._failures = 0
        self._closed_at = -math.inf  # when it was last reported that the store takes no checkpoint
        self._unreported: list[Fact] = []
        self._reported: set[tuple[str, Any]] = set()
        self._reports = KeptReports(limit)
        self._epoch = -1
        self._is_amid = False

    def note_reported(self, facts: list[Fact]) -> None:
        """Note what an earlier agent has reported of this attempt, so that it is not repeated."""
        for fact in facts:
            if isinstance(fact, Training):
                self._reported.add(("training", 0))
            elif isinstance(fact, Reported):
                self._epoch = fact.epoch
            elif isinstance(fact, Checkpointed):
                self._reported.add(("checkpoint", fact.name))
                self._has_stored(self._goal.worth(fact.metrics))
            elif isinstance(fact, Complained):
                self._reported.add(("complaint", fact.what))

    def begin(self, quiet_s: float = QUIET_S) -> None:
        """Note that the attempt runs from now on. `quiet_s`: see `look`."""
        self._quiet_since = self.reported_at = time.monotonic()
        self._quiet_s = quiet_s

    def look(self, error: Callable[[], str]) -> None:
        """Report when a report is overdue, with the last `error`, and after each threefold time."""
        if self._quiet_since is None or time.monotonic() - self._quiet_since < self._quiet_s:
            return
        self._quiet_s *= 3
        self._report_later("quiet", "")
        if why := error():
            self.report_once("error", why)

    def has_grown(self) -> bool:
        """Return whether there is something that `drain` has not looked at."""
        return bool(self._unreported) or self.behind() > 0

    def has_news(self) -> bool:
        """Return whether `drain` has something to return, or to look at."""
        return self.has_grown() or self._reports.may_send()

    def behind(self) -> int:
        """Return how many bytes `drain` has not looked at; negative: nothing more is read."""
        return plainfile.size(self._path) - self.read_to

    def drain_all(self) -> Iterator[list[Fact]]:
        """Yield the facts of all that is left, once nobody writes any more."""
        while self.has_grown():
            yield self.drain()
        yield self.last_reports()

    def last_reports(self) -> list[Fact]:
        """Return the facts of reports that were kept back, at the end of the attempt."""
        return self._reports.let_go()

    def promised(self) -> list[Fact]:
        """Return, at the attempt's end, whether it has saved something, none of which is stored,
        and whether the store lacks something that only this machine has.
        """
        is_stored = any(kind == "checkpoint" for kind, _ in self._reported)
        with contextlib.suppress(OSError):
            if not is_stored and any(self._local.iterdir()):
                self.report_once("promised", PROMISED)
        if self._waiting and isinstance(self.checkpoint_store, RemoteStore):
            self.report_once("left", "")
        return self._take_complaints()

    def drain(self) -> list[Fact]:
        """Return facts for the whole lines since the last time, at most `MOST_AT_ONCE` bytes."""
        facts = [fact for line in self._lines() for fact in self._facts(line)]
        kept_back = self._reports.let_go() if self._reports.may_send() else []
        if self._reports.has_dropped:
            self.report_once("often", f"at most {A_SECOND:g}")
        return [*facts, *kept_back, *self._take_complaints()]

    def can_store(self) -> bool:
        """Return whether `store` has something to do, and can do it."""
        return bool(self._waiting) and self.checkpoint_store.ready()

    def waits(self) -> bool:
        """Return whether a checkpoint is still to be stored."""
        return bool(self._waiting)

    def store(self) -> list[Fact]:
        """Store the next waiting checkpoint, slowly; return facts. A damaged one is dropped."""
        with self._lock:
            waiting = dict(self._waiting)
        name = self._next({name: worth for name, (_, worth) in waiting.items()})
        wrote_s, worth = waiting[name]
        try:
            fact: Fact = self._checkpoint(name, wrote_s)
        except NotNowError as error:
            return self.put_off(error)
        except CheckpointError as error:
            self._complain("not-stored", error)
            self._wait_only_for(lambda other: other != name)
            return self._take_complaints()
        self._failures = 0
        self._reported.add(("checkpoint", name))
        self._has_stored(worth)
        overtaken = list(waiting)[: list(waiting).index(name) + 1]
        self._wait_only_for(lambda other: other not in overtaken)
        return [fact]

    def put_off(self, error: Exception) -> list[Fact]:
        """Note that checkpoints have to wait; return facts about it."""
        log.info("%s/%s: checkpoints have to wait: %s", self._trial, self._attempt, error)
        self._failures += 1
        if what := getattr(error, "what", ""):
            if time.monotonic() >= self._closed_at + CLOSED_S:
                self._closed_at = time.monotonic()
                self._report_later(what, str(error))
        elif self._failures >= FAILURES_REPORTED:
            self.report_once("not-stored", str(error))
        return self._take_complaints()

    def _next(self, worths: dict[str, Optional[float]]) -> str:
        """Choose what is stored next: the newest, or before it one that is better."""
        newest, best = list(worths)[-1], best_of(worths)
        worth = None if best is None else worths[best]
        if best is None or worth is None or (self._best is not None and worth <= self._best):
            return newest
        return best

    def _has_stored(self, worth: Optional[float]) -> None:
        if worth is not None and (self._best is None or worth > self._best):
            self._best = worth

    def _wait_only_for(self, these: Callable[[str], bool]) -> None:
        with self._lock:
            self._waiting = {name: what for name, what in self._waiting.items() if these(name)}

    def _lines(self) -> Iterator[bytes]:
        if self.behind() <= 0:
            return
        behind = plainfile.size(self._path) - self._offset
        if behind > MOST_BEHIND:
            self._offset += behind - MOST_BEHIND // 2
            self._is_amid = True
            self.report_once("skipped", "")
        try:
            data = plainfile.read(self._path, self._offset, MOST_AT_ONCE)
        except (OSError, ValueError) as error:
            if self._offset or not isinstance(error, FileNotFoundError):
                # Without a file the trial was stopped before it wrote anything.
                self._complain("output", error)
            self.read_to = NEVER_AGAIN
            return
        whole = data.rfind(b"\n") + 1
        self.read_to = self._offset + len(data)
        if not whole and len(data) == MOST_AT_ONCE:
            whole = len(data)
        self._offset += whole
        yield from data[:whole].splitlines()

    def _facts(self, line: bytes) -> list[Fact]:
        if self._is_amid:
            self._is_amid = False
            return []
        self._line += 1
        try:
            body = json.loads(line) if len(line) <= LONGEST_LINE else None
            if not isinstance(body, dict):
                raise ValueError("not an object, or too long")
            return self._known(body)
        except (ValueError, TypeError, KeyError, RecursionError, CheckpointError) as error:
            text = line.decode(errors="replace")[:SHOWN]
            self._complain("output", error, f"line {self._line} of its out.jsonl ({text}): ")
            return []

    def _complain(self, what: str, error: Exception, where: str = "") -> None:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        self.report_once(what, f"{where}{reason}")

    def report_once(self, what: str, why: str) -> None:
        """Report this, unless this kind was reported of the attempt before."""
        if ("complaint", what) in self._reported:
            return
        self._reported.add(("complaint", what))
        self._report_later(what, why)

    def _report_later(self, what: str, why: str) -> None:
        text = why[:LONGEST_COMPLAINT]
        self._unreported.append(Complained(0, clock.now(), self._trial, self._attempt, what, text))

    def _take_complaints(self) -> list[Fact]:
        with self._lock:
            unreported, self._unreported = self._unreported, []
        return unreported

    def _known(self, line: dict[str, Any]) -> list[Fact]:
        kind = line["kind"]
        if kind == "training":
            if (kind, 0) in self._reported:
                return []
            at, epoch = _moment(line), count_of(line["epoch"])
            self._reported.add((kind, 0))
            return [Training(0, at, self._trial, self._attempt, epoch)]
        if kind == "report":
            return self._report(line, count_of(line["epoch"]))
        if kind == "checkpoint":
            if not is_safe(line["name"]):
                raise ValueError(f"{line['name']!r:.80} is no name for a checkpoint")
            is_new = self._saved(line["name"], _seconds(line.get("save_s", 0.0)))
            if line.get("tracked") == []:
                self.report_once("untracked", "")
            return self._reports.before_save() if is_new else []
        if kind == "warning":
            about = line.get("about")
            self.report_once(about if about in ABOUT else "warning", str(line["why"]))
            return []
        raise ValueError(f"no line is of kind {kind!r:.40}")

    def _report(self, line: dict[str, Any], epoch: int) -> list[Fact]:
        if line.get("promises") is True:
            self.report_once("promised", PROMISED)
        at, unit_s = _moment(line), _seconds(line.get("unit_s", 0.0))
        metrics = metrics_of(line["metrics"])
        if epoch <= self._epoch:
            return []
        now, self._quiet_since, self._epoch = time.monotonic(), None, epoch
        self.longest_s = max(self.longest_s, now - self.reported_at)
        self.reported_at = now
        text = str(line.get("line", ""))[:LONGEST_COMPLAINT]
        report = Reported(0, at, self._trial, self._attempt, epoch, metrics, unit_s, text)
        allowed = allows(self._goal.constraints, metrics)
        return self._reports.add(report, self._goal.worth(metrics) if allowed else None)

    def _saved(self, name: str, save_s: float) -> bool:
        """Let this checkpoint wait for `store`, and return whether it is new. Only those wait that
        are `needed`, since the trial itself keeps no others.
        """
        worth = self._goal.worth_at(self._local, name)
        with self._lock:
            if ("checkpoint", name) in self._reported or name in self._waiting:
                return False
            self._waiting[name] = save_s, worth
            stay = needed({name: worth for name, (_, worth) in self._waiting.items()})
        self._wait_only_for(stay.__contains__)
        return True

    def _checkpoint(self, name: str, wrote_s: float) -> Checkpointed:
        began = time.monotonic()
        stored_as, manifest = self.checkpoint_store.put(self._local, name)
        at, save_s = clock.now(), wrote_s + time.monotonic() - began
        free = self.checkpoint_store.free()
        return Checkpointed(
            *(0, at, self._trial, self._attempt, stored_as, manifest.epoch),
            *(manifest.metrics, manifest.sha256, manifest.size, save_s, free),
        )


def _moment(line: dict[str, Any]) -> float:
    """Return the time that a line gives, in the agent's time; now if that cannot be."""
    now, steady, wall = clock.now(), line.get("since_boot"), line.get("at")
    at = clock.of_boot(steady) if isinstance(steady, float) else now
    if not isinstance(steady, float) and isinstance(wall, float):
        at = clock.of_wall(wall)
    return at if now - 86400 < at <= now else now


def _seconds(value: Any) -> float:
    return float(value) if type(value) in (int, float) and 0 <= value < 86400 else 0.0
