"""Rungs: at how many reports trials are compared, how they stand there, and who may go on (Li et
al., ASHA, MLSys '20, Algorithm 2).

The one rule: a trial goes on from a rung only while it is among the best 1/eta of all that have
arrived there, and from each rung only once.

Arriving and going on cost O(log n), however many trials there have been. What a trial is worth at a
rung is the metric that it had there, also if it has trained on since.

What is remembered of a trial is its `RungPlace`: everything here can be made again from places and
a view. How a trial stood is then read from the reports that the view has now. They are those that
it arrived with, unless a restart from an older checkpoint has taken some back since: then it stands
as they say.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from seerd.planner.memory import Json, integer, items
from seerd.planner.model import Allocation, Compared, Mode, PolicyParams, TrialView, View
from seerd.planner.ranking import Standing, metric_at, standing

MAX_REPORTS = 256
"""R, unless the person says how long a whole training is."""

RUNGS = 5
"""From r to R, unless the person says what r is (section 5.1)."""


def rung_reports(params: PolicyParams, bracket: int = 0) -> tuple[int, ...]:
    """List the reports r eta^(s+k) for k = 0, 1, ..., with s = `bracket`; the last is R itself, as
    RubberBand reads SHA.

    Where R/r is a power of eta this is Algorithm 2; elsewhere that would stop short of R, which is
    what the person asked for.
    """
    most = MAX_REPORTS if params.max_reports is None else params.max_reports
    eta = Fraction(params.eta)
    least = (
        max(1, round(most / eta ** (RUNGS - 1)))
        if params.min_reports is None
        else params.min_reports
    )
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
        """Put a trial onto the rung; `waits`: whether it can go on at all."""
        place = standing(trial, metric, mode)
        insort(self._arrived, place)
        if waits:
            heapq.heappush(self._waiting, place)

    def arrive_all(self, arrived: Sequence[Standing], waiting: Sequence[Standing]) -> None:
        """Put everyone at once on a rung where nobody is yet; `waiting`: those of them that can go
        on.
        """
        self._arrived = sorted(arrived)
        self._waiting = sorted(waiting)

    def among_the_best(self, place: Standing, eta: Fraction) -> bool:
        """Tell whether fewer than 1/eta of all that have arrived are better."""
        return bisect_left(self._arrived, place) < int(len(self._arrived) / eta)

    def place_of(self, place: Standing) -> tuple[int, int]:
        """Return 1 for the best, and of how many that have arrived."""
        return bisect_left(self._arrived, place) + 1, len(self._arrived)

    def promotable(self, eta: Fraction) -> str | None:
        """Return the best that waits, if it is among the best 1/eta of those that have arrived."""
        name = self.best_waiting()
        return name if name is not None and self.among_the_best(self._waiting[0], eta) else None

    def best_waiting(self) -> str | None:
        """Return the best that waits, promotable or not."""
        while self._waiting and self._waiting[0][2] in self._gone:
            self._gone.remove(heapq.heappop(self._waiting)[2])
        return self._waiting[0][2] if self._waiting else None

    def leave(self, trial: str) -> None:
        """Take a trial off those that wait: it goes on, or cannot."""
        self._gone.add(trial)


PAUSED, LOST = 0, -1
"""In place of a job's number: it is on the way to no rung; it failed on the way."""


@dataclass(frozen=True, slots=True)
class RungPlace:
    """Where a trial is in its bracket.

    stood  it has come to so many rungs
    job    the number of its job, or why it has none
    """

    bracket: int
    stood: int
    job: int

    @property
    def remembered(self) -> Json:
        """As JSON."""
        return [self.bracket, self.stood, self.job]


def read_place(remembered: Json, brackets: Sequence[Sequence[int]]) -> RungPlace:
    """Read a place from JSON. Raises `ValueError` if there is no such place in these brackets."""
    bracket, stood, job = items(remembered, 3)
    rungs = brackets[integer(bracket, 0, len(brackets) - 1)]
    job = integer(job, LOST)
    most = len(rungs) if job == PAUSED else len(rungs) - 1
    return RungPlace(integer(bracket, 0), integer(stood, 0, most), job)


@dataclass(frozen=True, slots=True)
class RungJob:
    """A trial on its way to a rung of its bracket, where it will have made `until` reports.

    number      later jobs have larger ones
    allocation  on as few GPUs as a trial may have; made once, for it is asked for again and again
    """

    trial: str
    bracket: int
    rung: int
    until: int
    number: int
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class Arrival:
    """A trial has come to a rung with this metric."""

    job: RungJob
    metric: float | None


class Ladders:
    """The rungs of every bracket, and who is on the way to which.

    Never looks at a trial that is neither running nor about to.

    running  in the order of their numbers
    places   where trials are whose place is another than was last remembered
    """

    def __init__(self, brackets: Sequence[Sequence[int]], params: PolicyParams) -> None:
        self.running: dict[str, RungJob] = {}
        self.places: dict[str, RungPlace] = {}
        self._idle: list[str] = []
        self._eta = Fraction(params.eta)
        self._p_min = params.p_min
        self._brackets = tuple(tuple(Rung(reports) for reports in bracket) for bracket in brackets)
        rungs = [
            (bracket, rung)
            for bracket, made in enumerate(self._brackets)
            for rung in range(len(made) - 1)
        ]
        self._highest_first = sorted(
            rungs, key=lambda at: -self._brackets[at[0]][at[1] + 1].reports
        )
        self._arrivals: list[Arrival] = []
        self._lost: list[str] = []
        self._judged: dict[tuple[str, int, int], float | None] = {}

    def restore(self, places: Mapping[str, RungPlace], view: View) -> None:
        """Restore what is remembered; for `take_news`, everyone who stands on a rung has just come
        there.
        """
        here = {name: at for name, at in places.items() if name in view.trials}
        for bracket, rungs in enumerate(self._brackets):
            inside = {name: at for name, at in here.items() if at.bracket == bracket}
            for number in range(len(rungs)):
                inside = {name: at for name, at in inside.items() if at.stood > number}
                self._fill(bracket, number, inside, view)
        self._lost = [name for name, at in places.items() if at.job == LOST]
        on_the_way = sorted((at.job, name) for name, at in places.items() if at.job > PAUSED)
        for number, name in on_the_way:
            self.running[name] = self._job(name, places[name].bracket, places[name].stood, number)
        idle = (name for name, at in here.items() if at.stood == 0 and at.job == PAUSED)
        self._idle = sorted(idle, reverse=True)

    def enter(self, trial: str, bracket: int) -> None:
        """Send a new trial to the lowest rung of a bracket."""
        self._start(trial, bracket, 0)

    def enter_idle(self, view: View) -> bool:
        """Let a trial go on that was taken up before it had come to any rung.

        False: there is none.
        """
        while self._idle:
            name = self._idle.pop()
            if view.trials[name].status == "live":
                self._start(name, 0, 0)
                return True
        return False

    def settle(self, view: View) -> None:
        """Settle trials: whoever has come to a rung stands there now; a failed trial stands
        nowhere.
        """
        for name, job in list(self.running.items()):
            trial = view.trials.get(name)
            if trial is not None and (trial.status != "live" or trial.reports >= job.until):
                self._settle(job, trial, view.mode)

    def promote(self, view: View) -> bool:
        """Let one trial go on (Algorithm 2's `get_job` without its last line), from the highest
        rung that lets one. False: none can.

        A trial that made so many reports more while it was being asked to stop that it has come to
        the next rung stands there at once.
        """
        return self._go_on(view, lambda rung: rung.promotable(self._eta))

    def promote_best(self, view: View) -> bool:
        """Let the best that waits on the highest rung where one does go on, among the best 1/eta or
        not. False: none waits.
        """
        return self._go_on(view, Rung.best_waiting)

    def carry_on(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Let those of the arrivals go on that are among the best 1/eta; whoever was paused before
        stays so.
        """
        for job in (arrival.job for arrival in arrivals):
            rungs = self._brackets[job.bracket]
            rung, trial = rungs[job.rung], view.trials[job.trial]
            place = standing(job.trial, metric_at(trial, job.until), view.mode)
            if (
                rung is not rungs[-1]
                and trial.status == "live"
                and rung.among_the_best(place, self._eta)
            ):
                rung.leave(job.trial)
                self._send(job.trial, job.bracket, job.rung + 1, view)

    def take_news(self) -> tuple[list[Arrival], list[str]]:
        """Say who has come to a rung since this was last asked, in order, and who has failed on the
        way.
        """
        news = self._arrivals, self._lost
        self._arrivals, self._lost = [], []
        return news

    def take_compared(self, mode: Mode) -> tuple[Compared, ...]:
        """Say how those stand now who have come to a rung, or gone on from one, since this was last
        asked.
        """
        judged, self._judged = self._judged, {}
        found = []
        for (trial, bracket, number), metric in judged.items():
            rungs = self._brackets[bracket]
            place, of = rungs[number].place_of(standing(trial, metric, mode))
            final = number + 1 == len(rungs)
            best = 0 if final else int(of / self._eta)
            found.append(
                Compared(trial, metric, rungs[number].reports, place, of, best, bracket, final)
            )
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

    def _fill(self, bracket: int, number: int, places: Mapping[str, RungPlace], view: View) -> None:
        rung = self._brackets[bracket][number]
        metrics = {name: metric_at(view.trials[name], rung.reports) for name in places}
        at = {name: standing(name, metric, view.mode) for name, metric in metrics.items()}
        waiting = [name for name in places if _waits(places[name], number, view.trials[name])]
        rung.arrive_all(list(at.values()), [at[name] for name in waiting])
        for name, metric in metrics.items():
            self._arrivals.append(Arrival(self._job(name, bracket, number, PAUSED), metric))

    def _job(self, name: str, bracket: int, rung: int, number: int) -> RungJob:
        until = self._brackets[bracket][rung].reports
        return RungJob(
            name, bracket, rung, until, number, Allocation(name, self._p_min, bracket, until)
        )

    def _start(self, name: str, bracket: int, rung: int) -> RungJob:
        latest = next(reversed(self.running.values()), None)
        job = self._job(name, bracket, rung, 1 if latest is None else latest.number + 1)
        self.running[name] = job
        self.places[name] = RungPlace(bracket, rung, job.number)
        return job

    def _send(self, name: str, bracket: int, number: int, view: View) -> None:
        job = self._start(name, bracket, number)
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
        self._arrivals.append(Arrival(job, metric))


def _waits(at: RungPlace, number: int, trial: TrialView) -> bool:
    """Tell whether it is on this rung that it waits to go on."""
    return at.job == PAUSED and at.stood == number + 1 and trial.status == "live"
