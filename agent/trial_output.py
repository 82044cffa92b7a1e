"""The trial's output: what it writes for its agent (`out.jsonl`), turned into facts.

Checkpoints take longer than lines. So those that `drain` finds wait until `store` puts the newest
of them into the store, while further reports are sent. One that a newer one has overtaken is not
stored any more, unless it is better than those that are stored and than the newest: then it goes
first, so that the store has them in the order of their age.

The one rule: the trial's output is not trusted. Whatever is not a well-formed line of
docs/training-side.md is dropped with a line in the agent's log, and the first is reported. Nothing
in it can name a path, stop the agent or be reported twice.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from seerd.agent import clock, plainfile
from seerd.agent.journal import Maker
from seerd.agent.kept_reports import A_SECOND, KeptReports, ReportLimit
from seerd.agent.manifest import (
    CheckpointError,
    Comparison,
    Manifest,
    allows,
    best_of,
    count_of,
    is_safe,
    metrics_of,
    needed,
)
from seerd.agent.protocol import Checkpointed, Complained, Fact, Reported, Training
from seerd.agent.transfer import CheckpointStore, NotNowError

MOST_AT_ONCE = 1 << 20
MOST_BEHIND = 8 << 20
"""Bytes that may wait to be read, which takes half a second. Of more only the last are read: a
trial can write faster than anybody reads, and the end of its attempt waits for its last line.
"""
LONGEST_LINE = 1 << 16

MOST_COMPLAINTS = 20
QUIET_S = 20.0
FAILURES_REPORTED = 3
"""Failures in a row to store a checkpoint that are reported: a single one may be transient."""
SHOWN = 60
"""Characters of a line that are reported."""
LONGEST_COMPLAINT = 1000
ABOUT = ("number", "constraint")
"""What a warning may be about, each of which is reported once."""
NEVER_AGAIN = 1 << 62
log = logging.getLogger("agent")


class TrialOutput:
    """The output of one attempt.

    `local` is the folder of its checkpoints here, which are compared by `goal`. `_waiting` has
    those that are to be stored, oldest first, with the seconds that each took to write; `_best` is
    the worth of the best one that this attempt has stored.
    """

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
        self._waiting: Dict[str, float] = {}
        self._worths: Dict[str, Optional[float]] = {}
        self._goal = goal
        self._best: Optional[float] = None
        self.checkpoint_store = checkpoint_store
        self._offset = 0
        self.read_to = 0  # bytes of the file that `drain` has looked at
        self._complaints = 0
        self._line = 0
        self._quiet_since: Optional[float] = None
        self._quiet_s = QUIET_S
        # when it last reported, or began, by the monotonic clock; infinite: it has not begun
        self.reported_at = math.inf
        self.longest_s = 0.0  # seconds of its longest wait for a report
        self._failures = 0
        self._unreported: List[Maker] = []
        self._reported: Set[Tuple[str, Any]] = set()
        self._reports: KeptReports[Maker] = KeptReports(limit)
        self._epoch = -1
        self._is_amid = False

    def note_reported(self, facts: List[Fact]) -> None:
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
        """Report if the attempt has run for `quiet_s` seconds without a report, and again
        whenever that time has tripled. `error` returns the error that it has written last, or
        nothing.
        """
        if self._quiet_since is None or time.monotonic() - self._quiet_since < self._quiet_s:
            return
        self._quiet_s *= 3
        self._report_later("quiet", "")
        if why := error():
            self.report_once("error", why)

    def has_grown(self) -> bool:
        """Return whether there is something that `drain` has not looked at."""
        return bool(self._unreported) or self._has_lines()

    def has_news(self) -> bool:
        """Return whether `drain` has something to return, or to look at."""
        return self.has_grown() or self._reports.may_send()

    def _has_lines(self) -> bool:
        return self.behind() > 0

    def behind(self) -> int:
        """Return how many bytes there are that `drain` has not looked at; negative: nothing more is
        read.
        """
        return plainfile.size(self._path) - self.read_to

    def drain_all(self) -> Iterator[List[Maker]]:
        """Yield the facts of all that is left, once nobody writes any more."""
        while self.has_grown():
            yield self.drain()
        yield self.last_reports()

    def last_reports(self) -> List[Maker]:
        """Return the facts of reports that were kept back, at the end of the attempt."""
        return self._reports.let_go()

    def drain(self) -> List[Maker]:
        """Return facts for the whole lines that have come since the last time, at most
        `MOST_AT_ONCE` bytes of them. Their checkpoints wait for `store`.
        """
        facts = [maker for line in self._lines() for maker in self._facts(line)]
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

    def store(self) -> List[Maker]:
        """Put the next checkpoint that waits into the store; return the fact. If that has failed,
        return what is to be said of it, or nothing if it was said before.

        A damaged one is dropped, so that the next call takes the one before. This takes long;
        `drain` may be called meanwhile.
        """
        with self._lock:
            waiting, worths = dict(self._waiting), dict(self._worths)
        name = self._next(worths)
        try:
            maker = self._checkpoint(name, waiting[name])
        except NotNowError as error:
            return self.put_off(error)
        except CheckpointError as error:
            self._complain("not-stored", error)
            self._wait_only_for(lambda other: other != name)
            return self._take_complaints()
        self._failures = 0
        self._reported.add(("checkpoint", name))
        self._has_stored(worths[name])
        overtaken = list(waiting)[: list(waiting).index(name) + 1]
        self._wait_only_for(lambda other: other not in overtaken)
        return [maker]

    def put_off(self, error: Exception) -> List[Maker]:
        """Note that checkpoints have to wait; return what is to be said of it, or nothing."""
        log.info("%s/%s: checkpoints have to wait: %s", self._trial, self._attempt, error)
        self._failures += 1
        if self._failures >= FAILURES_REPORTED:
            self.report_once("not-stored", str(error))
        return self._take_complaints()

    def _next(self, worths: Dict[str, Optional[float]]) -> str:
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
            self._waiting = {name: save_s for name, save_s in self._waiting.items() if these(name)}
            self._worths = {name: self._worths[name] for name in self._waiting}

    def _lines(self) -> Iterator[bytes]:
        if not self._has_lines():
            return
        self._skip()
        try:
            data = plainfile.read(self._path, self._offset, MOST_AT_ONCE)
        except (OSError, ValueError) as error:
            if self._offset or not isinstance(error, FileNotFoundError):
                # Without a file it was stopped before it said anything.
                self._complain("output", error)
            self.read_to = NEVER_AGAIN
            return
        whole = data.rfind(b"\n") + 1
        self.read_to = self._offset + len(data)
        if not whole and len(data) == MOST_AT_ONCE:
            whole = len(data)
        self._offset += whole
        yield from data[:whole].splitlines()

    def _skip(self) -> None:
        """Go on with the last half of `MOST_BEHIND` if there is more than that to be read."""
        behind = plainfile.size(self._path) - self._offset
        if behind > MOST_BEHIND:
            self._offset += behind - MOST_BEHIND // 2
            self._is_amid = True
            self.report_once("skipped", "")

    def _facts(self, line: bytes) -> List[Maker]:
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
        """Tell what is wrong, and log it, but only `MOST_COMPLAINTS` times: a trial must not fill
        the disk with our log.
        """
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        self.report_once(what, f"{where}{reason}")
        self._complaints += 1
        if self._complaints <= MOST_COMPLAINTS:
            last = " (no more is said of later ones)" if self._complaints == MOST_COMPLAINTS else ""
            log.warning(
                "%s/%s: dropped a line of its output: %s%s", self._trial, self._attempt, error, last
            )

    def report_once(self, what: str, why: str) -> None:
        """Report this, unless this kind was reported of the attempt before."""
        if ("complaint", what) in self._reported:
            return
        self._reported.add(("complaint", what))
        self._report_later(what, why)

    def _report_later(self, what: str, why: str) -> None:
        at, text = clock.now(), why[:LONGEST_COMPLAINT]
        self._unreported.append(
            lambda seq: Complained(seq, at, self._trial, self._attempt, what, text)
        )

    def _take_complaints(self) -> List[Maker]:
        with self._lock:
            unreported, self._unreported = self._unreported, []
        return unreported

    def _known(self, line: Dict[str, Any]) -> List[Maker]:
        kind = line["kind"]
        if kind == "training":
            if (kind, 0) in self._reported:
                return []
            maker = self._training(line)
            self._reported.add((kind, 0))
            return [maker]
        if kind == "report":
            return self._report(line, count_of(line["epoch"]))
        if kind == "checkpoint":
            is_new = self._saved(_name(line["name"]), _seconds(line.get("save_s", 0.0)))
            if line.get("tracked") == []:
                self.report_once("untracked", "")
            return self._reports.before_save() if is_new else []
        if kind == "warning":
            about = line.get("about")
            self.report_once(about if about in ABOUT else "warning", str(line["why"]))
            return []
        raise ValueError(f"no line is of kind {kind!r:.40}")

    def _training(self, line: Dict[str, Any]) -> Maker:
        at, epoch = _moment(line), count_of(line["epoch"])
        return lambda seq: Training(seq, at, self._trial, self._attempt, epoch)

    def _report(self, line: Dict[str, Any], epoch: int) -> List[Maker]:
        """Take a report, unless it or a later one was taken; return what may be sent now."""
        at, unit_s = _moment(line), _seconds(line.get("unit_s", 0.0))
        metrics = metrics_of(line["metrics"])
        if epoch <= self._epoch:
            return []
        now, self._quiet_since, self._epoch = time.monotonic(), None, epoch
        self.longest_s = max(self.longest_s, now - self.reported_at)
        self.reported_at = now
        maker = partial(
            Reported,
            at=at,
            trial=self._trial,
            attempt=self._attempt,
            epoch=epoch,
            metrics=metrics,
            unit_s=unit_s,
            line=str(line.get("line", ""))[:LONGEST_COMPLAINT],
        )
        allowed = allows(self._goal.constraints, metrics)
        return self._reports.add(maker, self._goal.worth(metrics) if allowed else None)

    def _saved(self, name: str, save_s: float) -> bool:
        """Have this checkpoint stored, and return whether it is new. Only those wait that are
        `needed`, since the trial itself keeps no others.
        """
        worth = self._worth(name)
        with self._lock:
            if ("checkpoint", name) in self._reported or name in self._waiting:
                return False
            self._waiting[name], self._worths[name] = save_s, worth
            stay = needed(self._worths)
        self._wait_only_for(stay.__contains__)
        return True

    def _worth(self, name: str) -> Optional[float]:
        try:
            return self._goal.worth(Manifest.read(self._local / f"{name}.json").metrics)
        except CheckpointError:
            return None

    def _checkpoint(self, name: str, wrote_s: float) -> Maker:
        began = time.monotonic()
        stored_as, manifest = self.checkpoint_store.put(self._local, name)
        at, save_s = clock.now(), wrote_s + time.monotonic() - began
        free = self.checkpoint_store.free()
        return lambda seq: Checkpointed(
            seq=seq,
            at=at,
            trial=self._trial,
            attempt=self._attempt,
            name=stored_as,
            epoch=manifest.epoch,
            metrics=manifest.metrics,
            sha256=manifest.sha256,
            size=manifest.size,
            save_s=save_s,
            free=free,
        )


def _moment(line: Dict[str, Any]) -> float:
    """Return the time that a line gives, if that is possible, else now (the agent's time)."""
    now, steady, wall = clock.now(), line.get("since_boot"), line.get("at")
    at = clock.of_boot(steady) if isinstance(steady, float) else now
    if not isinstance(steady, float) and isinstance(wall, float):
        at = clock.of_wall(wall)
    return at if now - 86400 < at <= now else now


def _name(value: Any) -> str:
    if not is_safe(value):
        raise ValueError(f"{value!r:.80} is no name for a checkpoint")
    return str(value)


def _seconds(value: Any) -> float:
    return float(value) if type(value) in (int, float) and 0 <= value < 86400 else 0.0
