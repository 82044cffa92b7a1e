"""A run for trackers: trials that were ever started. Times are seconds since 1970."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.metrics import best_value, names_of, value_of
from seerd.core.state import State
from seerd.planner.space import Config
from seerd.telling.explanation.as_json import fates
from seerd.telling.explanation.timeline import RunHistory
from seerd.telling.front import on_front
from seerd.telling.outcomes import outcomes

Became = Literal["live", "complete", "pruned", "failed"]
"""What trackers tell apart. A trial of an interrupted run is live: the run can be resumed."""


@dataclass(frozen=True, slots=True)
class Values:
    """One report."""

    step: int  # number of the report
    at: float  # when it was made
    metrics: dict[str, float]  # its finite metrics, by name


@dataclass(frozen=True, slots=True)
class Tracked:
    """A trial."""

    name: str  # the trial
    config: Config  # its value of each hyperparameter
    state: str  # what became of it, in one word
    why: str  # why, in one sentence
    became: Became  # the same, as trackers tell it apart
    front: bool | None  # whether it is on its job's front; None: the job has no objectives
    started: float  # when it was first ordered
    ended: float | None  # when its last attempt was gone; None: it is not
    best: float | None  # its best metric; None: none was finite
    reports: int  # how many it has made


class Tracker:
    """A place elsewhere that has one run. Its methods raise what its library raises."""

    def __init__(self) -> None:
        # what was brought last of each trial, and of the run
        self._brought: dict[str, tuple[Any, ...]] = {}

    def bring(self, run: RunHistory) -> None:
        """Add what is not there yet."""
        self.open(run)
        for trial in tracked(run):
            progress = trial.front, trial.reports, trial.state, trial.became
            if self._brought.get(trial.name) != progress:
                self.add(trial, run)
                self._brought[trial.name] = progress
        models = tuple(one.incumbent.trial for one in run.state.result.of_jobs.values())
        stands = run.state.end.status, is_over(run.state), models, len(run.state.jobs)
        if self._brought.get("") != stands:
            self.conclude(run)
            self._brought[""] = stands

    def open(self, run: RunHistory) -> None:
        """Find what the place has of the run, or make it."""

    def add(self, trial: Tracked, run: RunHistory) -> None:
        """Add what is not there yet of a trial that has changed."""
        raise NotImplementedError

    def conclude(self, run: RunHistory) -> None:
        """Write how the run stands, which has changed."""

    def close(self) -> None:
        """Write what is held back until more comes; mostly nothing is."""


def tracked(run: RunHistory) -> list[Tracked]:
    """Return the trials that were ever started, in the order in which they were made."""
    state = run.state
    words, whys, front = outcomes(state), fates(run.timeline, state), on_front(state)
    trials = []
    for name, attempts in run.timeline.attempts.by_trial().items():
        trial, ended_s = state.trials[name], attempts[-1].ended_s
        best = best_value(state, trial)
        kind: Became = "failed" if best is None else "complete"
        if trial.phase is TrialPhase.FAILED:
            kind = "failed"
        elif trial.phase is TrialPhase.ELIMINATED:
            kind = "pruned"
        elif trial.phase is not TrialPhase.FINISHED and not is_over(state):
            kind = "live"
        became = (words[name].word, whys[name][1], kind, front.get(name))
        started = run.began + attempts[0].started.at_s
        ended = None if ended_s is None else run.began + ended_s
        trials.append(Tracked(name, trial.config, *became, started, ended, best, trial.reports))
    return trials


def values_of(run: RunHistory, trial: str, after: int = -1) -> Iterator[Values]:
    """Yield the trial's reports from the one after report number `after` on."""
    state, own = run.state, run.state.trials[trial]
    names = names_of(state)
    for report in (report for report in own.history if report.reports > after):
        values = {name: value_of(state, own, report, name) for name in names}
        finite = {name: value for name, value in values.items() if value is not None}
        yield Values(report.reports, run.began + report.at_s, finite)


def is_over(state: State) -> bool:
    """Return whether the run is over for good."""
    return state.phase is RunPhase.OVER and state.end.status != "interrupted"
