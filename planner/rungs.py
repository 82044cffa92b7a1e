"""Rungs: at how many reports trials are compared, how they stand there, and which may go on (Li et
al., ASHA, MLSys '20, Algorithm 2): from each rung once, and only while among the best 1/eta.

Arriving and going on cost O(log n) for n trials. A trial is judged at a rung by the metric that it
had there. Only `RungPlace`s are remembered; metrics are read from the reports of the view, which a
restart from an older checkpoint may have changed.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from msgspec import Meta, Struct, convert

from seerd.planner.memory import Count, Json
from seerd.planner.model import Allocation, Compared, Mode, PolicyParams, TrialView, View
from seerd.planner.ranking import RankKey, metric_at, seconds_per_report, standing

MAX_REPORTS = 256  # R, unless the spec says how many reports a whole training has

RUNGS = 5  # how many rungs from r to R, unless the spec gives r (section 5.1)


def rung_reports(params: PolicyParams, bracket: int = 0) -> tuple[int, ...]:
    """List the reports at which trials are compared: r eta^(s+k), k = 0, 1, ..., s = `bracket`, and
    R itself, as RubberBand reads SHA; Algorithm 2 would stop short of it.
    """
    most = MAX_REPORTS if params.max_reports is None else params.max_reports
    eta = Fraction(params.eta)
    least = params.min_reports
    if least is None:
        least = max(1, round(most / eta ** (RUNGS - 1)))
    reports: list[int] = []
    exact = Fraction(least)
    while exact <= most:
        if not reports or round(exact) > reports[-1]:
            reports.append(round(exact))
        exact *= eta
    kept = reports[min(bracket, len(reports) - 1) :] if reports else [most]
    return (*kept[:-1], most)


class Rung:
    """All trials that have arrived at a rung, in order, and those that wait to go on."""

    def __init__(self, reports: int) -> None:
        self.reports = reports
        self._arrived: list[RankKey] = []
        self._waiting: list[RankKey] = []
        self._gone: set[str] = set()

    def arrive(self, trial: str, metric: float | None, mode: Mode, *, waits: bool = True) -> None:
        """Put a trial onto the rung; `waits`: whether it can go on at all."""
        place = standing(trial, metric, mode)
        insort(self._arrived, place)
        if waits:
            heapq.heappush(self._waiting, place)

    def arrive_all(self, arrived: Sequence[RankKey], waiting: Sequence[RankKey]) -> None:
        """Put all trials at once onto an empty rung; `waiting`: those that can go on."""
        self._arrived = sorted(arrived)
        self._waiting = sorted(waiting)

    def among_the_best(self, place: RankKey, eta: Fraction) -> bool:
        """Return whether fewer than 1/eta of all that have arrived are better."""
        return bisect_left(self._arrived, place) < int(len(self._arrived) / eta)

    def place_of(self, place: RankKey) -> tuple[int, int]:
        """Return (place, trials that have arrived); place 1 is the best."""
        return bisect_left(self._arrived, place) + 1, len(self._arrived)

    def promotable(self, eta: Fraction) -> str | None:
        """Return the best waiting trial if it is among the best 1/eta, else None."""
        name = self.best_waiting()
        return name if name is not None and self.among_the_best(self._waiting[0], eta) else None

    def best_waiting(self) -> str | None:
        """Return the best waiting trial, promotable or not; None if none waits."""
        while self._waiting and self._waiting[0][2] in self._gone:
            self._gone.remove(heapq.heappop(self._waiting)[2])
        return self._waiting[0][2] if self._waiting else None

    def leave(self, trial: str) -> None:
        """Take a trial off those that wait, because it goes on or cannot."""
        self._gone.add(trial)


PAUSED, LOST = 0, -1  # instead of a job's number: on the way to no rung; failed on the way


class RungPlace(Struct, frozen=True, array_like=True):
    """Where a trial is in its bracket."""

    bracket: Count  # its bracket, from 0
    stood: Count  # how many rungs it has come to
    job: Annotated[int, Meta(ge=LOST)]  # its job's number; `PAUSED` or `LOST` if it has none


def read_place(remembered: Json, brackets: Sequence[Sequence[int]]) -> RungPlace:
    """Read a place from JSON. Raises `ValueError` if these brackets have no such place."""
    place = convert(remembered, RungPlace)
    rungs = len(brackets[place.bracket]) if place.bracket < len(brackets) else 0
    if place.stood >= rungs + (place.job == PAUSED):
        raise ValueError(remembered)
    return place


@dataclass(frozen=True, slots=True)
class RungJob:
    """A trial on its way to a rung of its bracket."""

    trial: str
    bracket: int  # its bracket, from 0
    rung: int  # the rung, from 0
    until: int  # the reports that it will have made there
    number: int  # later jobs have larger ones
    # the fewest GPUs that a trial may have; made once because it is used again and again
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class Arrival:
    """A trial that has come to a rung."""

    job: RungJob  # the job that brought it there
    metric: float | None  # its metric there; None: not finite
    seconds: float | None = None  # median seconds of its reports; None: it made one alone


class Ladders:
    """The rungs of every bracket, and which trials are on the way to which. It never looks at a
    trial that neither runs nor is about to.
    """

    def __init__(self, brackets: Sequence[Sequence[int]], params: PolicyParams) -> None:
        self.running: dict[str, RungJob] = {}  # jobs by trial, in the order of their numbers
        self.places: dict[str, RungPlace] = {}  # new places of trials since they were remembered
        self._idle: list[str] = []
        self._eta = Fraction(params.eta)
        self._p_min = params.p_min
        self._brackets = tuple(tuple(Rung(reports) for reports in bracket) for bracket in brackets)
        places = [(b, n) for b, rungs in enumerate(self._brackets) for n in range(len(rungs) - 1)]
        self._highest_first = sorted(places, key=lambda p: -self._brackets[p[0]][p[1] + 1].reports)
        self._arrivals: list[Arrival] = []
        self._lost: list[str] = []
        self._judged: dict[tuple[str, int, int], float | None] = {}

    def stand(self, places: Mapping[str, RungPlace], view: View) -> None:
        """Restore places; `take_news` then returns every trial on a rung as just arrived."""
        here = {name: at for name, at in places.items() if name in view.trials}
        for bracket, rungs in enumerate(self._brackets):
            inside = {name: at for name, at in here.items() if at.bracket == bracket}
            for number, rung in enumerate(rungs):
                inside = {name: at for name, at in inside.items() if at.stood > number}
                metrics = {name: metric_at(view.trials[name], rung.reports) for name in inside}
                keys = {name: standing(name, value, view.mode) for name, value in metrics.items()}
                waiting = [
                    keys[name]
                    for name, at in inside.items()
                    if at.job == PAUSED
                    and at.stood == number + 1
                    and view.trials[name].status == "live"
                ]
                rung.arrive_all(list(keys.values()), waiting)
                for name, metric in metrics.items():
                    job = self._job(name, bracket, number, PAUSED)
                    seconds = seconds_per_report(view.trials[name], rung.reports)
                    self._arrivals.append(Arrival(job, metric, seconds))
        self._lost = [name for name, at in places.items() if at.job == LOST]
        on_the_way = sorted((at.job, name) for name, at in places.items() if at.job > PAUSED)
        for number, name in on_the_way:
            self.running[name] = self._job(name, places[name].bracket, places[name].stood, number)
        idle = (name for name, at in here.items() if at.stood == 0 and at.job == PAUSED)
        self._idle = sorted(idle, reverse=True)

    def enter_idle(self, view: View) -> bool:
        """Send on a trial taken up before it came to any rung. Return False if there is none."""
        while self._idle:
            name = self._idle.pop()
            if view.trials[name].status == "live":
                self.start(name, 0, 0)
                return True
        return False

    def arrive(self, view: View) -> None:
        """Put running trials onto the rungs that they have come to, and drop failed ones."""
        for name, job in list(self.running.items()):
            trial = view.trials.get(name)
            if trial is not None and (trial.status != "live" or trial.reports >= job.until):
                self._settle(job, trial, view.mode)

    def promote(self, view: View) -> bool:
        """Let one trial go on, from the highest rung (`get_job` of Algorithm 2); if it has enough
        reports, it arrives at the next at once. Return False if none can.
        """
        return self._go_on(view, lambda rung: rung.promotable(self._eta))

    def promote_best(self, view: View) -> bool:
        """Let the best trial that waits on the highest rung go on. Return False if none waits."""
        return self._go_on(view, Rung.best_waiting)

    def promote_best_of(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Let those of the arrivals go on that are among the best 1/eta; paused trials stay so."""
        for job in (arrival.job for arrival in arrivals):
            rungs = self._brackets[job.bracket]
            rung, trial = rungs[job.rung], view.trials[job.trial]
            place = standing(job.trial, metric_at(trial, job.until), view.mode)
            may_go_on = rung is not rungs[-1] and trial.status == "live"
            if may_go_on and rung.among_the_best(place, self._eta):
                rung.leave(job.trial)
                self._send(job.trial, job.bracket, job.rung + 1, view)

    def take_news(self) -> tuple[list[Arrival], list[str]]:
        """Return the arrivals and the failed trials since the last call."""
        news = self._arrivals, self._lost
        self._arrivals, self._lost = [], []
        return news

    def take_compared(self, mode: Mode) -> tuple[Compared, ...]:
        """Return how trials stand that have come to a rung, or gone on, since the last call."""
        judged, self._judged = self._judged, {}
        judgements = []
        for (trial, bracket, number), metric in judged.items():
            rungs = self._brackets[bracket]
            place, of = rungs[number].place_of(standing(trial, metric, mode))
            final = number + 1 == len(rungs)
            best = 0 if final else int(of / self._eta)
            judgements.append(
                Compared(trial, metric, rungs[number].reports, place, of, best, bracket, final)
            )
        return tuple(judgements)

    def _go_on(self, view: View, choose: Callable[[Rung], str | None]) -> bool:
        for bracket, number in self._highest_first:
            rung = self._brackets[bracket][number]
            while (name := choose(rung)) is not None:
                rung.leave(name)
                if view.trials[name].status == "live":
                    self._send(name, bracket, number + 1, view)
                    return True
        return False

    def _job(self, name: str, bracket: int, rung: int, number: int) -> RungJob:
        until = self._brackets[bracket][rung].reports
        allocation = Allocation(name, self._p_min, bracket, until)
        return RungJob(name, bracket, rung, until, number, allocation)

    def start(self, name: str, bracket: int, rung: int) -> RungJob:
        """Send a trial to a rung of a bracket."""
        latest = next(reversed(self.running.values()), None)
        job = self._job(name, bracket, rung, 1 if latest is None else latest.number + 1)
        self.running[name] = job
        self.places[name] = RungPlace(bracket, rung, job.number)
        return job

    def _send(self, name: str, bracket: int, number: int, view: View) -> None:
        job = self.start(name, bracket, number)
        trial = view.trials[name]
        before = self._brackets[bracket][number - 1].reports
        self._judged[name, bracket, number - 1] = metric_at(trial, before)
        if trial.reports >= job.until:
            self._settle(job, trial, view.mode)

    def _settle(self, job: RungJob, trial: TrialView, mode: Mode) -> None:
        del self.running[job.trial]
        if trial.status in ("failed", "eliminated"):
            self._lost.append(job.trial)
            self.places[job.trial] = RungPlace(job.bracket, job.rung, LOST)
            return
        metric = metric_at(trial, job.until)
        self._judged[job.trial, job.bracket, job.rung] = metric
        self._brackets[job.bracket][job.rung].arrive(
            job.trial, metric, mode, waits=trial.status == "live"
        )
        self.places[job.trial] = RungPlace(job.bracket, job.rung + 1, PAUSED)
        self._arrivals.append(Arrival(job, metric, seconds_per_report(trial, job.until)))
