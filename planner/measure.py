"""The policy of `seerd profile`: the space's default configuration, trained as one trial on ever more GPUs (RubberBand section 4.2, profiling).

The one rule: a step ends as soon as enough of it has been seen, and no step takes time that the ones behind it need.

A step is one number of GPUs: `p_min`, then twice as many each time. The trial is the same all the way, so that each step but the first also
shows what saving, restoring and starting take; only if its script comes to its end by itself another one begins.
"""

from __future__ import annotations

from planner.model import (
    Allocation,
    Bracket,
    Group,
    Impossible,
    NewTrial,
    Outline,
    Plan,
    Problem,
    ReportView,
    Stage,
    View,
)

SETTLING = 2
"""The first reports of a step tell little: one has the warm-up in it, one the first checkpoint, and the trial's last one before it
moved may be late."""
STEADY = 3
"""So many reports behind them are enough, if they last..."""
STEADY_S = 2.0
"""...so long: quick reports vary more."""
FEWEST = 2
"""A step whose time is up waits for this many: less would measure nothing."""
USED = 0.9
"""The share of the deadline that steps may use; the rest is for the end of the run."""
SHORTEST_S = 10.0
"""A step that has less would hardly start."""


class Measure:
    """One trial, step by step."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._gpus = steps(problem)
        self._step = -1
        self._trial = ""
        self._since_s = 0.0
        self._ends_s = 0.0

    def outline(self) -> Outline | Impossible:
        """The steps as if each took its whole share of the time."""
        if impossible := self._impossible():
            return impossible
        each_s = self._problem.planned.deadline_s * USED / len(self._gpus)
        return Outline(
            brackets=tuple(Bracket(gpus, int(gpus == self._gpus[0]), gpus * each_s) for gpus in self._gpus),
            stages=tuple(Stage(i * each_s, (i + 1) * each_s, (Group(p, 1),)) for i, p in enumerate(self._gpus)),
            first_round_s=each_s,
        )

    def plan(self, view: View) -> Plan:
        """The present step, or the next one. Raises `ValueError` if the limits fit nothing, which `outline` tells before."""
        if impossible := self._impossible():
            raise ValueError(impossible.reason)
        new: tuple[NewTrial, ...] = ()
        if self._step < 0 or (self._step < len(self._gpus) and self._over(view)):
            new = self._next(view)
        if self._step == len(self._gpus):
            return Plan(stage=len(self._gpus) - 1, done=True)
        until, ask_at_s = (SETTLING + STEADY, self._ends_s) if new else self._look_again(view)
        wanted = Allocation(self._trial, self._gpus[self._step], self._step, until)
        return Plan((wanted,), new, stage=self._step, ask_at_s=ask_at_s)

    def _impossible(self) -> Impossible | None:
        limits, p_min = self._problem.planned, self._problem.params.p_min
        if not self._gpus:
            reason = f"a trial needs {p_min} GPUs (p_min), and there may be {limits.max_gpus}"
        elif limits.deadline_s < SHORTEST_S * (len(self._gpus) + 1):
            reason = f"measuring on {_listed(self._gpus)} takes longer than {limits.deadline_s:g}s"
        elif limits.budget_gpu_s < SHORTEST_S * p_min:
            reason = f"the first step alone needs more than {limits.budget_gpu_s / 60:g} GPU-min"
        else:
            return None
        return Impossible(reason, SHORTEST_S * (len(self._gpus) + 1), SHORTEST_S * (sum(self._gpus) or p_min))

    def _over(self, view: View) -> bool:
        """Whether enough has been seen of this step, or as much as there is time for."""
        if view.trials[self._trial].status != "live":
            return True
        made = self._made(view)
        if len(made) >= SETTLING + STEADY and view.now_s >= made[SETTLING].at_s + STEADY_S:
            return True
        return len(made) >= FEWEST and view.now_s >= self._ends_s

    def _look_again(self, view: View) -> tuple[int | None, float | None]:
        """After how many reports, and when, this step may be over."""
        made = self._made(view)
        if len(made) >= SETTLING + STEADY:
            return None, min(self._ends_s, made[SETTLING].at_s + STEADY_S)
        late = view.now_s >= self._ends_s
        missing = (FEWEST if late else SETTLING + STEADY) - len(made)
        return view.trials[self._trial].reports + missing, None if late else self._ends_s

    def _made(self, view: View) -> list[ReportView]:
        """Reports of this step. Their numbers would not tell: after a crash a trial counts again from its last checkpoint."""
        return [report for report in view.trials[self._trial].history if report.at_s > self._since_s]

    def _next(self, view: View) -> tuple[NewTrial, ...]:
        """Begin the next step, with another trial if there is none that can go on."""
        trial = view.trials.get(self._trial)
        failed = trial is not None and trial.status == "failed"
        self._step = len(self._gpus) if failed else self._step + 1
        if self._step == len(self._gpus):
            return ()
        self._since_s = view.now_s
        left_s = self._problem.planned.deadline_s * USED - view.now_s
        self._ends_s = view.now_s + max(0.0, left_s) / (len(self._gpus) - self._step)
        if trial is not None and trial.status == "live":
            return ()
        self._trial = f"t{len(view.trials) + 1:04d}"
        return (NewTrial(self._trial, self._problem.space.defaults()),)


def steps(problem: Problem) -> tuple[int, ...]:
    """Numbers of GPUs to measure on: `p_min`, doubled for as long as `p_max` and the cluster allow."""
    bounds = [n for n in (problem.params.p_max, problem.planned.max_gpus) if n is not None]
    most = min(bounds, default=problem.gpus_per_instance)
    found = []
    gpus = problem.params.p_min
    while gpus <= most:
        found.append(gpus)
        gpus *= 2
    return tuple(found)


def _listed(gpus: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, gpus))} GPU{'s' * (gpus[-1] > 1)}"
