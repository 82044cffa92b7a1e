"""`python -m seerd.training.observer PID`: observes the script that the process PID has started.

It ends when the file `ended` appears in the attempt's folder, which has the exit status.
"""

import contextlib
import json
import math
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, Optional

from seerd.agent import host
from seerd.training.attempt import Attempt
from seerd.training.observer.printed import Line, Lines, Reports
from seerd.training.observer.saved import FILE_QUIET_S, Carrier, Saved, SoFar, Watch, follows
from seerd.training.pace import BEST_EVERY_S, Pace

POLL_S = 0.05  # seconds between two looks
FAST_POLL_S = 0.01  # the same while the script saves every moment, or is ending
LOOK_SHARE = 10  # the rest between fast looks is at least this many times the last look
WORTH_WAITING_S = 14.0  # a script that saves at least so often may save once more when it must end
AGAIN_S = 2.0  # seconds after which a checkpoint that could not be written is tried again
MOST_OF_LINE = 200  # characters of a report's line that are recorded
PARTIAL = "only the beginning of {!r} is read as a number: print it as Python does"
MISSED = 10  # states that were not taken, and so many more for each file, before a warning
MISSING = (
    "{} is written again before it can be taken whole, so it is in no checkpoint: have the script "
    "save less often, or write a file or folder of a new name each time (step_1, step_2, ...)"
)
UNPRINTED = (
    "{} is constrained, and train.report has found none yet in what is printed: "
    "the constraint counts from its first value on"
)


def main() -> None:
    """Observe until the script has ended."""
    folder = Path(os.environ["SEERD_DIR"])
    observed = json.loads((folder / "trial.json").read_text())["observed"]
    Observer(Attempt.read(folder), observed, int(sys.argv[1])).observe()


@dataclass
class Ending:
    """How the script is being ended."""

    asked_at: float  # when it was asked for, seconds of the monotonic clock
    signalled: bool = False  # whether the script has received its signal
    saved: bool = False  # whether it has saved since it was asked for


class Observer:
    """Observes one attempt. `observed`: that part of `trial.json`."""

    def __init__(self, attempt: Attempt, observed: Dict[str, Any], launcher: int) -> None:
        self._attempt = attempt
        self._launcher = launcher
        self._by_torchrun = bool(observed["by_torchrun"])
        logs, of_ranks = Path(observed["logs"]), "*/attempt_*/0/std*.log"
        self._lines = Lines(
            lambda: sorted(logs.glob(of_ranks if self._by_torchrun else "launcher.log"))
        )
        self._reports = Reports(observed["report"], attempt)
        work = Path(observed["work"])
        began_ns = os.stat(attempt.folder / "trial.json").st_mtime_ns
        self._watch = Watch(work, observed["checkpoint"], began_ns)
        self._watches = bool(observed["checkpoint"])
        units = 0  # number of the last checkpoint
        if name := observed.get("checkpoint_name"):
            manifest = json.loads((attempt.checkpoints / f"{name}.json").read_text())
            self._reports.go_on(manifest["epoch"], manifest["metrics"], manifest["recent"])
            units = int(name.rpartition("-")[2])
        self._carrier = Carrier(attempt, work, self._watch, units)
        self._carried: Optional[Saved] = self._watch.look() if units else None
        self._seen = self._carried
        self._standing: Optional[SoFar] = None
        self._used = self._reports.epoch  # reports that belong to the save before the last
        # reports that were known just before the last save was seen, and once it stood
        self._at_save = (self._used, self._used)
        self._before_read = self._used  # reports that were known before the logs were last read
        self._has_reported = False
        self._pace = Pace()
        self._pace.best = attempt.goal.worth(self._reports.metrics) if units else None
        self._saved_at: Optional[float] = None
        self._between_s: Optional[float] = None
        self._ending: Optional[Ending] = None
        self._failed_at = -math.inf
        self._warned_out = ""
        # checkpoints that were not reported yet, with the seconds that each took
        self._unreported: Dict[str, float] = {}
        self._reported_at = -math.inf
        self._missed = 0  # states since the last checkpoint that were wanted and could not be taken

    def observe(self) -> None:
        """Observe until the script has ended."""
        self._attempt.tell("training", epoch=self._reports.epoch)
        ended = self._attempt.folder / "ended"
        while not ended.exists() and (
            host.is_there(self._launcher) or not self._attempt.is_alone()
        ):  # the script runs, or an agent will say how it ended
            began = time.monotonic()
            self._read(self._lines.new())
            self._look_at_saved()
            self._report_saved()
            self._see_to_end()
            is_fast = self._ending is not None or self._watch.is_busy
            rest_s = max(FAST_POLL_S, LOOK_SHARE * (time.monotonic() - began))
            time.sleep(min(POLL_S, rest_s) if is_fast else POLL_S)
        status = ""
        with contextlib.suppress(OSError):
            status = ended.read_text().strip()
        was_cut = status != "0" or (self._ending is not None and self._ending.signalled)
        self._read(self._lines.rest(was_cut=was_cut))
        self._report(self._reports.complete())
        if status:
            self._look_last(status)
        self._reported_at = -math.inf
        self._report_saved()

    # ------------------------------------------------------------ what is printed

    def _read(self, lines: Iterable[Line]) -> None:
        self._before_read = self._reports.epoch
        for line in lines:
            self._report(self._reports.take(line, time.monotonic()))
        self._report(self._reports.late(time.monotonic()))

    def _report(self, made: Iterable[None]) -> None:
        for _ in made:
            line = self._reports.text.strip()[:MOST_OF_LINE]
            first = {} if self._has_reported else {"line": line}
            self._has_reported = True
            self._attempt.tell(
                "report",
                epoch=self._reports.epoch,
                metrics=self._reports.metrics,
                unit_s=self._between_s if self._saves_often() else 0.0,
                **first,
            )
            if self._reports.partial:
                why = PARTIAL.format(self._reports.partial)
                self._attempt.tell("warning", about="number", why=why)
                self._reports.partial = ""
            for name in self._reports.unprinted:
                self._attempt.tell("warning", about="constraint", why=UNPRINTED.format(name))

    def _saves_often(self) -> bool:
        """Return whether the script may save once more when it must end."""
        return self._between_s is not None and self._between_s <= WORTH_WAITING_S

    def _now(self) -> SoFar:
        """Return how far the trial has come. A save without a new report has no metric: what was
        reported is of another model.
        """
        reports = self._reports
        metrics = reports.saved_metrics
        if reports.epoch <= self._used:
            metrics = {**metrics, self._attempt.metric: None}
        return SoFar(reports.epoch, metrics, reports.recent)

    # ------------------------------------------------------------ what is saved

    def _look_at_saved(self) -> None:
        saved = self._watch.look() if self._watches else None
        if saved is None or self._is_carried(saved):
            return
        if saved is not self._seen:
            self._note_change(saved)
        elif (  # neither this save nor the report of the same model is still to come
            self._standing is None
            and saved.age_s() >= self._watch.settles_s
            and saved.is_closed
            and not self._reports.waits
        ):
            self._standing = self._now()
            self._at_save = (self._at_save[0], self._reports.epoch)
        if (
            self._standing is not None
            and self._is_wanted(self._standing)
            and self._watch.may_be_whole(saved)
            and (self._watch.shows(saved) or self._runs())
        ):
            self._carry(saved, self._standing)

    def _note_change(self, saved: Saved) -> None:
        """Note that the script has saved again, or more of the same save.

        Nobody sees which reports came between two quick saves: those that were not seen before the
        first count for the second.
        """
        before, self._seen = self._seen, saved
        is_too_fast = self._watch.settles_s < FAST_POLL_S  # to be seen as it stands
        if before is not None and before.is_closed and self._is_wanted(self._now()):
            self._missed += 1
            if self._missed == MISSED + len(before.signature) * MISSED:
                self._attempt.tell("warning", why=MISSING.format(before.path))
        if before is not None and self._watch.is_more_of(before, saved, self._standing is None):
            self._standing = None
            return
        if before is not None and self._is_left(before, saved):
            self._carry(before, self._standing)  # type: ignore[arg-type]
        saved_at = -math.inf if self._saved_at is None else self._saved_at
        is_quick = time.monotonic() - saved_at < FILE_QUIET_S
        self._used = self._at_save[0 if is_quick else 1]
        if self._reports.waits:  # that report is of this save, not the one before it
            if self._reports.is_sparse:
                self._report(self._reports.complete())
            else:
                is_too_fast = False
        self._at_save = (self._before_read, self._reports.epoch)
        self._standing = self._now() if is_too_fast else None
        now = time.monotonic()
        if self._saved_at is not None:
            self._between_s = now - self._saved_at
        self._saved_at = now
        if self._ending is not None:
            self._ending.saved = True

    def _is_left(self, before: Saved, saved: Saved) -> bool:
        """Return whether to keep `before`, whole since the script went on (`step_4`, `step_3`)."""
        standing = self._standing
        wanted = follows(before, saved) and standing is not None and self._is_wanted(standing)
        return wanted and not self._is_carried(before) and self._watch.is_as_it_was(before)

    def _look_last(self, status: str) -> None:
        """Keep the last save of a script that has ended: if it ended by itself and in order, the
        save is whole; else only if it shows that itself.
        """
        saved = self._watch.look() if self._watches else None
        if saved is None or self._is_carried(saved) or not self._reports.epoch:
            return
        if saved is not self._seen:
            self._note_change(saved)
        if status == "0" or self._watch.shows(saved):
            self._carry(saved, self._now())
        if not self._is_carried(saved):
            _say(f"{saved.path} was not taken: it may not be whole (exit status {status})")

    def _is_carried(self, saved: Saved) -> bool:
        before = self._carried
        return before is not None and (before.path, before.signature) == (
            saved.path,
            saved.signature,
        )

    def _is_wanted(self, standing: SoFar) -> bool:
        """Return whether to write a checkpoint now: not before a report, which compares it."""
        if standing.epoch == 0 or time.monotonic() - self._failed_at < AGAIN_S:
            return False
        if self._ending is not None or self._pace.save_due(self._attempt.every_s):
            return True
        return self._pace.is_better(self._attempt.goal.worth(standing.metrics))

    def _carry(self, saved: Saved, standing: SoFar) -> None:
        began = time.monotonic()
        try:
            name = self._carrier.carry(saved, standing)
        except OSError as error:
            _say(f"no checkpoint could be made of {saved.path}: {error.strerror}")
            self._failed_at = time.monotonic()
            return
        if name is None:
            return
        if self._carrier.out not in ("", self._warned_out):
            self._warned_out = self._carrier.out
            _say(self._warned_out)
            self._attempt.tell("warning", why=self._warned_out)
        self._carried, self._missed = saved, 0
        took_s = time.monotonic() - began
        self._pace.copied(self._attempt.goal.worth(standing.metrics))
        self._pace.saved(took_s, took_s)
        self._unreported[name] = took_s
        self._report_saved()

    def _report_saved(self) -> None:
        """Report new checkpoints, at most every `BEST_EVERY_S`, since the store takes its time;
        those that better ones have replaced are gone.
        """
        now = time.monotonic()
        is_early = now - self._reported_at < BEST_EVERY_S and self._ending is None
        if is_early or not self._unreported:
            return
        for name, save_s in self._unreported.items():
            if (self._attempt.checkpoints / f"{name}.json").exists():
                self._attempt.tell("checkpoint", name=name, save_s=save_s)
        self._unreported, self._reported_at = {}, now

    # ------------------------------------------------------------ the end

    def _see_to_end(self) -> None:
        """End the script when the attempt is to end; if it soon saves, after that."""
        if self._ending is None:
            if not self._attempt.is_to_stop():
                return
            self._ending = Ending(time.monotonic())
        if not self._ending.signalled and not self._will_soon_save(self._ending):
            self._ending.signalled = True
            ranks = host.children(self._launcher) if self._by_torchrun else []
            for process in ranks or [self._launcher]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGTERM)

    def _will_soon_save(self, ending: Ending) -> bool:
        """Return whether the script will soon have saved, or a save of it will soon be taken."""
        is_worth = self._saves_often()
        soon_s = 1 + (1.5 * self._between_s if is_worth and self._between_s else 0.0)
        saved = self._watch.look() if self._watches else None
        if saved is not None and not self._is_carried(saved) and self._reports.epoch:
            since = max(ending.asked_at, min(saved.since, ending.asked_at + soon_s))
            return time.monotonic() < since + self._watch.quiet_s(saved) + 1
        if ending.saved or not is_worth or self._saved_at is None:
            return False
        return time.monotonic() < max(ending.asked_at, self._saved_at) + soon_s

    def _runs(self) -> bool:
        """Return whether the script is running (Linux; elsewhere assumed). What its death closed
        may be half written, and is left to `_look_last`.
        """
        if sys.platform != "linux":
            return True
        ranks = host.children(self._launcher) if self._by_torchrun else [self._launcher]
        return any(map(host.is_there, ranks))


def _say(text: str) -> None:
    print(f"seerd: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
