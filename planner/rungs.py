"""Rungs: at how many reports trials are compared, how they stand there, and who may go on (Li et al., ASHA, MLSys '20, Algorithm 2).

The one rule: a trial goes on from a rung only while it is among the best 1/eta of all that have arrived there, and from each rung only once.

Arriving and going on cost O(log n), however many trials there have been. What a trial is worth at a rung is the metric that it had
there, also if it has trained on since.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from planner.model import Compared, Mode, PolicyParams, TrialView, View
from planner.ranking import Standing, metric_at, standing

MAX_REPORTS = 256
"""R, unless the person says how long a whole training is."""

RUNGS = 5
"""From r to R, unless the person says what r is (section 5.1)."""


def rung_reports(params: PolicyParams, bracket: int = 0) -> tuple[int, ...]:
    """Reports r eta^(s+k) for k = 0, 1, ..., with s = `bracket`; the last is R itself, as RubberBand reads SHA.

    Where R/r is a power of eta this is Algorithm 2; elsewhere that would stop short of R, which is what the person asked for.
    """
    most = MAX_REPORTS if params.max_reports is None else params.max_reports
    eta = Fraction(params.eta)
    least = max(1, round(most / eta ** (RUNGS - 1))) if params.min_reports is None else params.min_reports
    reports: list[int] = []
    exact = Fraction(least)
    while exact <= most:
        if not reports or round(exact) > reports[-1]:
            reports.append(round(exact))
        exact *= eta
    kept = reports[min(bracket, len(reports) - 1) :] if reports else [most]
    return (*kept[:-1], most)


class Rung:
    """Everyone who has arrived, in order, and who of them waits to go on."""

    def __init__(self, reports: int) -> None:
        self.reports = reports
        self._arrived: list[Standing] = []
        self._waiting: list[Standing] = []
        self._gone: set[str] = set()

    def arrive(self, trial: str, metric: float | None, mode: Mode, *, waits: bool = True) -> None:
        """`waits`: whether it can go on at all."""
        place = standing(trial, metric, mode)
        insort(self._arrived, place)
        if waits:
            heapq.heappush(self._waiting, place)

    def among_the_best(self, place: Standing, eta: Fraction) -> bool:
        """Whether fewer than 1/eta of all that have arrived are better."""
        return bisect_left(self._arrived, place) < int(len(self._arrived) / eta)

    def place_of(self, place: Standing) -> tuple[int, int]:
        """1 for the best, and of how many that have arrived."""
        return bisect_left(self._arrived, place) + 1, len(self._arrived)

    def promotable(self, eta: Fraction) -> str | None:
        """The best that waits, if it is among the best 1/eta of those that have arrived."""
        name = self.best_waiting()
        return name if name is not None and self.among_the_best(self._waiting[0], eta) else None

    def best_waiting(self) -> str | None:
        """The best that waits, promotable or not."""
        while self._waiting and self._waiting[0][2] in self._gone:
            self._gone.remove(heapq.heappop(self._waiting)[2])
        return self._waiting[0][2] if self._waiting else None

    def leave(self, trial: str) -> None:
        """It waits no more: it goes on, or cannot."""
        self._gone.add(trial)


@dataclass(frozen=True, slots=True)
class Job:
    """A trial on its way to a rung of its bracket, where it will have made `until` reports."""

    trial: str
    bracket: int
    rung: int
    until: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """A trial has come to a rung with this metric."""

    job: Job
    metric: float | None


class Ladders:
    """The rungs of every bracket, and who is on the way to which. Never looks at a trial that is neither running nor about to."""

    def __init__(self, brackets: Sequence[Sequence[int]], eta: float) -> None:
        self.running: dict[str, Job] = {}
        self._eta = Fraction(eta)
        self._brackets = tuple(tuple(Rung(reports) for reports in bracket) for bracket in brackets)
        rungs = [(bracket, rung) for bracket, made in enumerate(self._brackets) for rung in range(len(made) - 1)]
        self._highest_first = sorted(rungs, key=lambda at: -self._brackets[at[0]][at[1] + 1].reports)
        self._arrivals: list[Arrival] = []
        self._lost: list[str] = []
        self._judged: dict[tuple[str, int, int], float | None] = {}

    def enter(self, trial: str, bracket: int) -> None:
        """A new trial is on its way to the lowest rung of a bracket."""
        self.running[trial] = Job(trial, bracket, 0, self._brackets[bracket][0].reports)

    def settle(self, view: View) -> None:
        """Whoever has come to a rung stands there now; a failed trial stands nowhere."""
        for name, job in list(self.running.items()):
            trial = view.trials.get(name)
            if trial is not None and (trial.status != "live" or trial.reports >= job.until):
                self._settle(job, trial, view.mode)

    def promote(self, view: View) -> bool:
        """Algorithm 2's `get_job` without its last line: one trial goes on, from the highest rung that lets one. False: none can.

        A trial that made so many reports more while it was being asked to stop that it has come to the next rung stands there at once.
        """
        return self._go_on(view, lambda rung: rung.promotable(self._eta))

    def promote_best(self, view: View) -> bool:
        """The best that waits on the highest rung where one does goes on, among the best 1/eta or not. False: none waits."""
        return self._go_on(view, Rung.best_waiting)

    def carry_on(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Those of the arrivals go on that are among the best 1/eta; whoever was paused before stays so."""
        for job in (arrival.job for arrival in arrivals):
            rungs = self._brackets[job.bracket]
            rung, trial = rungs[job.rung], view.trials[job.trial]
            place = standing(job.trial, metric_at(trial, job.until), view.mode)
            if rung is not rungs[-1] and trial.status == "live" and rung.among_the_best(place, self._eta):
                rung.leave(job.trial)
                self._send(job.trial, job.bracket, job.rung + 1, view)

    def take_news(self) -> tuple[list[Arrival], list[str]]:
        """Who has come to a rung since this was last asked, in order, and who has failed on the way."""
        news = self._arrivals, self._lost
        self._arrivals, self._lost = [], []
        return news

    def take_compared(self, mode: Mode) -> tuple[Compared, ...]:
        """How those stand now who have come to a rung, or gone on from one, since this was last asked."""
        judged, self._judged = self._judged, {}
        found = []
        for (trial, bracket, number), metric in judged.items():
            rungs = self._brackets[bracket]
            place, of = rungs[number].place_of(standing(trial, metric, mode))
            final = number + 1 == len(rungs)
            best = 0 if final else int(of / self._eta)
            found.append(Compared(trial, metric, rungs[number].reports, place, of, best, bracket, final))
        return tuple(found)

    def _go_on(self, view: View, choose: Callable[[Rung], str | None]) -> bool:
        for bracket, number in self._highest_first:
            rung = self._brackets[bracket][number]
            while (name := choose(rung)) is not None:
                rung.leave(name)
                if view.trials[name].status == "live":
                    self._send(name, bracket, number + 1, view)
                    return True
        return False

    def _send(self, name: str, bracket: int, number: int, view: View) -> None:
        job = Job(name, bracket, number, self._brackets[bracket][number].reports)
        self.running[name] = job
        trial = view.trials[name]
        before = self._brackets[bracket][number - 1].reports
        self._judged[name, bracket, number - 1] = metric_at(trial, before)
        if trial.reports >= job.until:
            self._settle(job, trial, view.mode)

    def _settle(self, job: Job, trial: TrialView, mode: Mode) -> None:
        del self.running[job.trial]
        if trial.status in ("failed", "eliminated"):
            self._lost.append(job.trial)
            return
        metric = metric_at(trial, job.until)
        self._judged[job.trial, job.bracket, job.rung] = metric
        self._brackets[job.bracket][job.rung].arrive(job.trial, metric, mode, waits=trial.status == "live")
        self._arrivals.append(Arrival(job, metric))
