"""One question to SEER+: what is remembered of the search, and what has been decided so far."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import Struct, convert, to_builtins

from seerd.planner.adapted import longest_training
from seerd.planner.asha import sizes
from seerd.planner.chance import Chances, evidence_of, learned
from seerd.planner.fixed_cluster import FixedCluster
from seerd.planner.memory import Count, Json, Memory, Values, holding
from seerd.planner.model import Allocation, Mode, NewTrial, Problem, TrialView, Tried, View
from seerd.planner.pace import MeasuredPace
from seerd.planner.profile import Scaling
from seerd.planner.ranking import RankKey, metric_at, standing_at
from seerd.planner.surrogate import Kernel, RungResult
from seerd.planner.trial_ids import Names, names, names_after
from seerd.planner.windows import ElasticRound, Windows

VERSION = 1
TURN = "turn "  # begins the key of a trial's turn


class Turn(Struct, frozen=True, array_like=True):
    """A trial's present time on GPUs."""

    gpus: Count
    since_s: float  # from when, seconds since the run began
    until: Count | None  # its turn is over with this many reports; None: with the run


@dataclass(slots=True)
class SearchMemory:
    """What is remembered."""

    names: Names  # how trials are named
    turns: dict[str, Turn] = field(default_factory=dict)  # the trials that have GPUs
    drawn: int = 0  # how many configurations were asked for
    pace: MeasuredPace = field(default_factory=MeasuredPace)  # how long reports and starts take
    kernel: Kernel | None = None  # the model's, as it was last fitted
    chances: Kernel | None = None  # that of the chances, as it was last fitted
    asked_s: float = 0.0  # when the last question was asked, seconds since the run began

    @classmethod
    def new(cls, view: View, most: int) -> SearchMemory:
        """Begin without a memory, perhaps in the middle of a run; `most`: trials there may be."""
        count = len(view.trials)
        made = names_after(max(view.trials), count, most) if count else names(len(str(most)))
        return cls(made, drawn=count, pace=MeasuredPace(view.now_s if count else 0.0))

    def look(self, view: View, scaling: Scaling) -> None:
        """Note how long the reports took that were made since the last look."""
        self.asked_s = self.pace.heard_s
        for name, turn in self.turns.items():
            if (trial := view.trials.get(name)) is not None:
                speed = scaling.speed(turn.gpus)
                self.pace.note(turn.since_s, trial.history, speed)
        self.pace.heard(view.now_s)

    def remembered(self, memory: Memory) -> Memory:
        """Return the next memory."""
        values: dict[str, Json] = {
            "version": VERSION,
            "drawn": self.drawn,
            "names": to_builtins(self.names),
            **to_builtins(self.pace),
        }
        if self.kernel is not None:
            values["kernel"] = to_builtins(self.kernel)
        if self.chances is not None:
            values["chances"] = to_builtins(self.chances)
        for name, turn in self.turns.items():
            values[TURN + name] = to_builtins(turn)
        return holding(memory, values)


def read_search(values: Values) -> SearchMemory:
    """Read what was remembered. Raises `ValueError` if no search can have written it."""
    turns = {k.removeprefix(TURN): v for k, v in values.items() if k.startswith(TURN)}
    return SearchMemory(
        names=convert(values.get("names"), Names),
        turns=convert(turns, dict[str, Turn]),
        drawn=convert(values.get("drawn"), Count),
        pace=convert(values, MeasuredPace),
        kernel=convert(values.get("kernel"), Kernel | None),
        chances=convert(values.get("chances"), Kernel | None),
    )


PATIENCE = 5  # reports after which a trial may be found to have stopped improving
WORTH = 1.1  # least times as far as before that a trial must get with more GPUs, to be given them


@dataclass(slots=True)
class PlanDraft:
    """One question, and what has been decided of the answer so far."""

    problem: Problem  # what is planned for
    cluster: FixedCluster  # the GPUs of the present moment
    view: View  # what the policy was shown
    search: SearchMemory  # what it remembers
    windows: Windows  # how the time is divided
    stage: int = 0  # the number of the round, from 0
    round: ElasticRound | None = None  # the round of rented GPUs; None: windows of one cluster
    # which trials train, with how many GPUs and until how many reports
    allocations: dict[str, Allocation] = field(default_factory=dict)
    new: list[NewTrial] = field(default_factory=list)  # configurations that are asked for
    out: list[str] = field(default_factory=list)  # trials that are out for good
    chances: Chances | None = None  # which configurations can be trained; None: none has failed
    doubtful: set[str] = field(default_factory=set)  # trials that will probably fail

    def __post_init__(self) -> None:
        """Learn which configurations can be trained."""
        trials = list(self.view.trials.values())
        self.chances = learned(self.problem, evidence_of(trials), self.search.chances)
        if self.chances is not None:
            self.search.chances = self.chances.kernel
            self.doubtful = self.chances.doubtful(trials)

    @property
    def number(self) -> int:
        """The window."""
        return self.windows.at(self.view.now_s)

    @property
    def ends_soon(self) -> bool:
        """Whether a trial that begins now makes no report before the window ends."""
        now_s, report_s = self.view.now_s, self.search.pace.report_s or 0.0
        return self.windows.changes_s(now_s) < now_s + self.search.pace.start_s + report_s

    @property
    def free(self) -> int:
        """GPUs that no trial has."""
        return self.cluster.gpus - sum(a.gpus for a in self.allocations.values())

    def runnable(self) -> Iterator[TrialView]:
        """Yield the trials that may train on."""
        most = self.problem.params.max_reports or math.inf
        for trial in self.view.trials.values():
            if trial.status == "live" and not diverged(trial) and trial.reports < most:
                yield trial

    def standing(self, trial: TrialView, level: int) -> RankKey:
        """Return how a trial stands at the rung of a level, from 1; level 0: by what it has."""
        reports = self.windows.rungs[level - 1] if level else trial.reports
        return standing_at(trial, reports, self.view.mode)

    def best_first(self, trial: TrialView) -> tuple[int, RankKey]:
        """Order trials by the rung that they have come to, the highest first, then by standing."""
        level = self.windows.level(trial)
        return -level, self.standing(trial, level)

    def waiting(self) -> list[TrialView]:
        """List the trials that may train on, best first."""
        return sorted(self.runnable(), key=lambda t: (self.comes_last(t), self.best_first(t)))

    def comes_last(self, trial: TrialView) -> bool:
        """Return whether others train first: it stopped improving, or will probably fail."""
        return trial.id in self.doubtful or settled(trial, self.view.mode)

    def arrived(self, level: int) -> list[TrialView]:
        """List the trials that have come to the rung of a level, best first."""
        rung = self.windows.rungs[level - 1]
        trials = (t for t in self.view.trials.values() if t.reports >= rung)
        return sorted(trials, key=lambda trial: self.standing(trial, level))

    def share(self, ordered: Sequence[TrialView], finalists: int) -> None:
        """Let the best of `ordered` share the GPUs, where worth a restart; then the next ones."""
        size = self.problem.params.p_min
        chosen = ordered[: min(finalists, self.free // size)]
        spare = self.free - size * len(chosen)
        for trial in chosen:
            most = size + spare
            if len(chosen) > 1:
                most = min(most, max(size, self.problem.gpus_per_instance))
            gpus = self._worth(trial, most)
            spare -= gpus - size
            self.allocate(trial, gpus, None)
        for trial in ordered[len(chosen) :]:
            if size > self.free:
                return
            self.allocate(trial, size, None)

    def _worth(self, trial: TrialView, most: int) -> int:
        """Return the GPUs with which a trial gets furthest, a restart included; one that gets more
        of its own GPU needs none.
        """
        speed, left_s = self.problem.scaling.speed, self.windows.end_s - self.view.now_s
        turn, start_s = self.search.turns.get(trial.id), self.search.pace.start_s
        allowed = [gpus for gpus in sizes(self.problem, self.cluster.gpus) if gpus <= most]
        best = turn.gpus if turn is not None and turn.gpus in allowed else allowed[0]
        trained_s = left_s if turn is not None else left_s - start_s
        for gpus in allowed:
            grows = turn is not None and gpus <= self.problem.parts
            trains_s = left_s if grows else left_s - start_s
            if gpus > best and speed(gpus) * trains_s > WORTH * speed(best) * trained_s:
                best, trained_s = gpus, trains_s
        return best

    def allocate(self, trial: TrialView, gpus: int, until: int | None) -> None:
        """Let a trial train, but not beyond `max_reports`."""
        most = self.problem.params.max_reports
        if most is not None:
            until = most if until is None else min(most, until)
        self.allocations[trial.id] = Allocation(trial.id, gpus, 0, until)

    def is_beaten(self, trial: TrialView) -> bool:
        """Return whether a trial is not worth its GPUs any more; not if it is about to end."""
        if trial.reports >= (longest_training(self.problem, self.view) or math.inf):
            return False
        level = self.windows.level(trial)
        if settled(trial, self.view.mode) or level == 0 or self.number == self.windows.last:
            return settled(trial, self.view.mode)
        arrived = [other.id for other in self.arrived(level)]
        return trial.id not in arrived[: max(1, int(len(arrived) / self.problem.params.eta))]

    def results(self) -> list[RungResult]:
        """List what the model learns from: not from a trial that has diverged, see `chance`."""
        sign = 1.0 if self.view.mode == "max" else -1.0
        results = []
        trials: Sequence[Tried] = (*self.problem.params.earlier, *self.view.trials.values())
        for number, trial in enumerate(trials):
            if not trial.history or trial.history[-1].metric is None:
                continue
            for rung, reports in enumerate(self.windows.rungs):
                if trial.history[-1].reports >= reports:
                    metric = metric_at(trial, reports)
                    value = None if metric is None else sign * metric
                    results.append(RungResult(number, rung, value))
        return results


def diverged(trial: TrialView) -> bool:
    """Return whether a trial's last report is not finite."""
    return trial.reports > 0 and trial.metric is None


def settled(trial: Tried, mode: Mode) -> bool:
    """Return whether none of the later half of its reports is better than the best before; False
    below `PATIENCE` reports.
    """
    count = trial.history[-1].reports if trial.history else 0
    if count < PATIENCE:
        return False
    sign = 1.0 if mode == "max" else -1.0
    early = late = -math.inf
    for report in trial.history:
        value = -math.inf if report.metric is None else sign * report.metric
        if 2 * report.reports <= count:
            early = max(early, value)
        else:
            late = max(late, value)
    return late <= early
