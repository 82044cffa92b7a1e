"""What the live view keeps of events, since a state does not: lines, and how many reports come.

There may be a thousand reports a second, so that one must cost next to nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby

from seerd.core.events import TrialReported
from seerd.core.metrics import sign_of, violated_by
from seerd.core.state import State, Trial
from seerd.planner.trial_ids import job_of
from seerd.shell.journal import Entry
from seerd.telling.harmless import printable
from seerd.telling.jobs import ranked_by_job
from seerd.telling.plain import line_of

MOST_LINES = 60
RATE_S = 10.0  # over how many seconds reports are counted
WEIGH_AGAIN = 1.1
"""Hyperparameters are weighed again when this many times as many trials have reported: columns
that change places all the time cannot be read.
"""


class Recent:
    """The latest events, and how often reports came."""

    def __init__(self) -> None:
        # the latest events in words, oldest first; of reports only those that are the best so far
        self.lines: deque[str] = deque(maxlen=MOST_LINES)
        self._best: dict[str, float] = {}
        self._counted: deque[tuple[int, int]] = deque()
        self._weighty: tuple[int, tuple[str, ...]] = (0, ())

    def read(self, entries: Sequence[Entry], state: State) -> None:
        """Take what was just committed; `state` is that after it."""
        for entry in entries:
            event = entry.event
            if isinstance(event, TrialReported):
                self._count(event.at)
                if self._beats(event, state):
                    name, job = state.facts.goal_of(event.trial).metric, job_of(event.trial)
                    report = f"report {event.reports}: {printable(name)} {event.metric:.6g}"
                    best = f"{report}, the best so far{f' of {job}' if job else ''}"
                    self.lines.append(f"{event.at:7.1f}s  {printable(event.trial)} {best}")
            elif (line := line_of(event, state, entry.decided)) is not None:
                self.lines.extend(line.splitlines())

    def rate(self, now_s: float) -> float:
        """Return how many reports came per second of late."""
        while self._counted and self._counted[0][0] < now_s - RATE_S - 1:
            self._counted.popleft()
        first = int(max(now_s - RATE_S, 0.0))
        reports = sum(number for second, number in self._counted if second >= first)
        return reports / max(1.0, min(RATE_S, now_s))

    def weighty(self, state: State) -> tuple[str, ...]:
        """Return the hyperparameters, those first that vary and matter most."""
        reported = sum(1 for trial in state.trials.values() if trial.history)
        before, names = self._weighty
        if not names or reported > before * WEIGH_AGAIN or reported < before:
            self._weighty = (reported, weighty(state))
        return self._weighty[1]

    def _count(self, at_s: float) -> None:
        second = int(at_s)
        if self._counted and self._counted[-1][0] == second:
            self._counted[-1] = (second, self._counted[-1][1] + 1)
        else:
            self._counted.append((second, 1))

    def _beats(self, event: TrialReported, state: State) -> bool:
        goal = state.facts.goal_of(event.trial)
        metrics = {**event.others, goal.metric: event.metric}
        if event.metric is None or violated_by(metrics, goal):
            return False
        sign, job = sign_of(goal), job_of(event.trial)
        if job not in self._best:  # the run may have been resumed
            earlier = (
                sign * report.metric
                for trial in state.trials.values()
                if job_of(trial.id) == job
                for report in trial.history
                if report.metric is not None and report.at_s < event.happened
            )
            self._best[job] = max(earlier, default=-math.inf)
        is_best = sign * event.metric > self._best[job]
        self._best[job] = max(self._best[job], sign * event.metric)
        return is_best


FEWEST = 8  # fewer trials with reports do not show what matters
GROUPS = 4  # into so many groups of equal size the values of a number are divided
CHANCE = 5.0  # A share of less than this over the number of trials is chance in 19 of 20 cases
STEP = 0.2  # differences smaller than this are not worth another order


def weighty(state: State) -> tuple[str, ...]:
    """Return all hyperparameters, those first that explain most of how trials stand."""
    spaces = [job.problem.space for job in state.facts.problem.jobs]
    spaces = [state.facts.problem.space, *spaces]
    names = dict.fromkeys(one.name for space in spaces for one in space.parameters)
    names.update(dict.fromkeys(n for trial in state.trials.values() for n in trial.config))
    by_job = [_weights(its, names) for its in ranked_by_job(state)]
    weights = {name: min(its[name] for its in by_job) for name in names}
    return tuple(sorted(names, key=weights.__getitem__))


def _weights(trials: Sequence[Trial], names: Iterable[str]) -> dict[str, tuple[bool, int]]:
    """Weigh each hyperparameter for trials of one job, best first: less is more."""
    ordered = [trial for trial in trials if trial.metric is not None]
    weights = {}
    for name in names:
        varies = len({trial.config.get(name) for trial in trials}) > 1
        values = [trial.config.get(name) for trial in ordered]
        explained = share(values) if len(ordered) >= FEWEST else 0.0
        explained *= explained * len(ordered) > CHANCE
        weights[name] = (not varies, -int(explained / STEP))
    return weights


def share(values: Sequence[Hashable]) -> float:
    """Return the share (0 to 1) of the variance of places that is between groups of like values,
    less what chance gives.

    values  best place first
    """
    places = range(len(values))
    groups = _groups(values)
    if len(groups) < 2 or len(values) <= len(groups):
        return 0.0
    mean = (len(values) - 1) / 2
    total = sum((place - mean) ** 2 for place in places)
    within = sum((place - sum(group) / len(group)) ** 2 for group in groups for place in group)
    return max(0.0, 1 - within / total * (len(values) - 1) / (len(values) - len(groups)))


def _groups(values: Sequence[Hashable]) -> list[list[int]]:
    """Divide the places by value; many numbers into a few groups of equal size."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) == len(values) and len(set(numbers)) > GROUPS:
        by_value = sorted(range(len(values)), key=numbers.__getitem__)
        size = len(values) / GROUPS
        return [
            by_value[round(size * group) : round(size * (group + 1))] for group in range(GROUPS)
        ]
    named = sorted(range(len(values)), key=lambda place: repr(values[place]))
    return [list(group) for _, group in groupby(named, key=lambda place: repr(values[place]))]
