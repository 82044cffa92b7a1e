"""What `seer+` remembers: which trials have GPUs, how long things take, how many were drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import median

from seerd.planner.memory import Json, Memory, Values, holding, integer, items, real, text
from seerd.planner.model import Report, View
from seerd.planner.scaling import Scaling
from seerd.planner.surrogate import Kernel, read_kernel
from seerd.planner.trial_ids import Names, names, names_after

VERSION = 1
NEWEST = 15  # how many of the newest times are kept; their median counts
TURN = "turn "  # begins the key of a trial's turn


@dataclass(frozen=True, slots=True)
class Turn:
    """A trial's present time on GPUs."""

    gpus: int
    since_s: float  # from when, seconds since the run began
    until: int | None  # its turn is over when it has made this many reports; None: with the run


@dataclass(slots=True)
class SearchMemory:
    """What is remembered."""

    names: Names  # how trials are named
    turns: dict[str, Turn] = field(default_factory=dict)  # the trials that have GPUs
    drawn: int = 0  # how many configurations were asked for
    heard_s: float = 0.0  # reports have been read until then, seconds since the run began
    reports_s: list[float] = field(default_factory=list)  # seconds of the newest reports on one GPU
    # seconds of the newest starts, the first report included
    firsts_s: list[float] = field(default_factory=list)
    kernel: Kernel | None = None  # the model's, as it was last fitted
    asked_s: float = 0.0  # when the last question was asked, seconds since the run began

    @classmethod
    def new(cls, view: View, most: int) -> SearchMemory:
        """Begin without a memory, perhaps in the middle of a run; `most`: trials there may be."""
        count = len(view.trials)
        made = names_after(max(view.trials), count, most) if count else names(len(str(most)))
        return cls(made, drawn=count, heard_s=view.now_s if count else 0.0)

    @property
    def report_s(self) -> float | None:
        """Seconds of a report on one GPU; the first counts, start included, until others come."""
        times = self.reports_s if len(self.reports_s) > 1 else self.firsts_s
        return median(times) if times else None

    @property
    def start_s(self) -> float:
        """Seconds from being given GPUs to training."""
        if not self.firsts_s or not self.reports_s:
            return 0.0
        return max(0.0, median(self.firsts_s) - median(self.reports_s))

    def name(self, number: int) -> str:
        """Return the id of the trial that is asked for as number `number`, from 1."""
        return self.names.of(number)

    def look(self, view: View, scaling: Scaling) -> None:
        """Note how long the reports took that were made since the last look."""
        self.asked_s = self.heard_s
        for name, turn in self.turns.items():
            if (trial := view.trials.get(name)) is not None:
                self._note(turn, trial.history, scaling.speed(turn.gpus))
        self.heard_s = view.now_s
        del self.reports_s[:-NEWEST], self.firsts_s[:-NEWEST]

    def _note(self, turn: Turn, history: Sequence[Report], speed: float) -> None:
        latest_first = takewhile(lambda report: report.at_s > turn.since_s, reversed(history))
        before = None
        for report in reversed([*latest_first]):
            at_s, count = report.at_s, report.reports
            if at_s > self.heard_s and before is None:
                self.firsts_s.append((at_s - turn.since_s) * speed)
            elif before is not None and at_s > max(self.heard_s, before[0]) and count > before[1]:
                self.reports_s.append((at_s - before[0]) / (count - before[1]) * speed)
            before = at_s, count

    def remembered(self, memory: Memory) -> Memory:
        """Return the next memory."""
        values: dict[str, Json] = {
            "version": VERSION,
            "drawn": self.drawn,
            "names": [self.names.prefix, self.names.offset, self.names.width],
            "heard_s": self.heard_s,
            "reports_s": [*self.reports_s],
            "firsts_s": [*self.firsts_s],
        }
        if self.kernel is not None:
            values["kernel"] = self.kernel.remembered
        for name, turn in self.turns.items():
            values[TURN + name] = [turn.gpus, turn.since_s, turn.until]
        return holding(memory, values)


def read_search(values: Values) -> SearchMemory:
    """Read what was remembered. Raises `ValueError` if no search can have written it."""
    prefix, offset, width = items(values.get("names"), 3)
    kernel = values.get("kernel")
    return SearchMemory(
        names=Names(text(prefix), integer(offset, -(10**9)), integer(width, 1)),
        turns={
            k.removeprefix(TURN): _read_turn(v) for k, v in values.items() if k.startswith(TURN)
        },
        drawn=integer(values.get("drawn"), 0),
        heard_s=real(values.get("heard_s")),
        reports_s=_reals(values.get("reports_s")),
        firsts_s=_reals(values.get("firsts_s")),
        kernel=None if kernel is None else read_kernel(kernel),
    )


def _read_turn(remembered: Json) -> Turn:
    gpus, since_s, until = items(remembered, 3)
    return Turn(integer(gpus, 1), real(since_s), None if until is None else integer(until, 1))


def _reals(values: Json) -> list[float]:
    if not isinstance(values, list):
        raise ValueError(values)
    return [real(value) for value in values]
