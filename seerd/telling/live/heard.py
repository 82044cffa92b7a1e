"""What the live view keeps of what it hears, since a state does not say it of itself: the latest
events in words, and how many reports come.

The one rule: hearing a report costs next to nothing, whatever the run's size: there may be a
thousand a second.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from seerd.core.events import TrialReported
from seerd.core.incumbent import sign_of
from seerd.core.metrics import violated_by
from seerd.core.state import State
from seerd.planner.trial_ids import job_of
from seerd.shell.journal import Entry
from seerd.telling.harmless import printable
from seerd.telling.live.weights import weighty
from seerd.telling.plain import line_of

MOST_LINES = 60
RATE_S = 10.0
"""Over how many seconds reports are counted."""
WEIGH_AGAIN = 1.1
"""Hyperparameters are weighed again when this many times as many trials have reported: columns
that change places all the time cannot be read.
"""


class Heard:
    """What was heard so far."""

    def __init__(self) -> None:
        # the latest events in words, oldest first; of reports only those that are the best so far
        self.told: deque[str] = deque(maxlen=MOST_LINES)
        self._best: dict[str, float] = {}
        self._counted: deque[tuple[int, int]] = deque()
        self._weighty: tuple[int, tuple[str, ...]] = (0, ())

    def hear(self, entries: Sequence[Entry], state: State) -> None:
        """Take what was just committed; `state` is that after it."""
        for entry in entries:
            event = entry.event
            if isinstance(event, TrialReported):
                self._count(event.at)
                if self._beats(event, state):
                    self.told.append(_best(event, state))
                continue
            line = line_of(event, state, entry.decided)
            if line is not None:
                self.told.extend(line.splitlines())

    def rate(self, now_s: float) -> float:
        """Return how many reports came per second of late."""
        while self._counted and self._counted[0][0] < now_s - RATE_S - 1:
            self._counted.popleft()
        first = max(now_s - RATE_S, 0.0)
        return sum(number for second, number in self._counted if second >= int(first)) / max(
            1.0, min(RATE_S, now_s)
        )

    def weighty(self, state: State) -> tuple[str, ...]:
        """Return the hyperparameters, those first that vary and matter most."""
        reported = sum(1 for trial in state.trials.values() if trial.history)
        known, names = self._weighty
        if not names or reported > known * WEIGH_AGAIN or reported < known:
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
        worth = sign_of(goal) * event.metric
        job = job_of(event.trial)
        if job not in self._best:  # the run may have been resumed
            self._best[job] = _best_before(event, state)
        if worth <= self._best[job]:
            return False
        self._best[job] = worth
        return True


def _best_before(event: TrialReported, state: State) -> float:
    """Return what the best earlier report of this job is worth; minus infinity if there is none."""
    sign, job = sign_of(state.facts.goal_of(event.trial)), job_of(event.trial)
    reports = (
        sign * report.metric
        for trial in state.trials.values()
        if job_of(trial.id) == job
        for report in trial.history
        if report.metric is not None and report.at_s < event.happened
    )
    return max(reports, default=-math.inf)


def _best(event: TrialReported, state: State) -> str:
    """Write the line of a report that is the best so far, whatever has come since."""
    name, job = state.facts.goal_of(event.trial).metric, job_of(event.trial)
    told = f"report {event.reports}: {printable(name)} {event.metric:.6g}"
    whose = f" of {job}" if job else ""
    return f"{event.at:7.1f}s  {printable(event.trial)} {told}, the best so far{whose}"
