"""The policy of `seerd profile`: the space's default configuration, trained as one trial on more
and more GPUs (RubberBand section 4.2, profiling): `p_min`, then twice as many each step.

Where GPUs have parts, steps below one GPU have as many trials of the configuration beside it as
share the GPU: a part does more while its neighbours rest.

A step ends as soon as enough of it has been seen. All steps have the same trial, so that each but
the first also shows how long saving, restoring and starting take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated

from msgspec import Meta, convert

from seerd.planner.caching import prepared
from seerd.planner.memory import FORGOTTEN, Memory, holding, recall
from seerd.planner.model import (
    Allocation,
    Bracket,
    Group,
    Impossible,
    NewTrial,
    Outline,
    Plan,
    Problem,
    Stage,
    View,
)
from seerd.planner.trial_ids import highest, in_order, trial_name

VERSION = 1  # of what is remembered

SETTLING = 2
"""The first reports of a step, which do not count: one contains the warm-up, one the first
checkpoint, and the last report from before the trial moved may come late.
"""
STEADY = 3  # how many reports after the settling ones are enough, if they take `STEADY_S`
STEADY_S = 2.0  # least seconds that the steady reports take: quick reports vary more
FEWEST = 2  # a step whose time is up still waits for this many reports, to measure anything
USED = 0.9  # the share of the deadline that steps may use; the rest is for closing
SHORTEST_S = 10.0  # least seconds for a step: in less it would hardly start


@dataclass(frozen=True, slots=True)
class Progress:
    """What is remembered."""

    # the present step, from 0; -1 before the first; the number of steps after the last
    step: Annotated[int, Meta(ge=-1)]
    trial: str
    since_s: float  # when it began, seconds since the run began
    ends_s: float  # when its time is up, seconds since the run began


def _outline(problem: Problem, gpus: tuple[int, ...]) -> Outline:
    """Outline the steps as if each took its whole share of the time."""
    each_s = problem.planned.deadline_s * USED / len(gpus)
    return Outline(
        brackets=tuple(
            Bracket(p, _beside(problem, p) * int(p == gpus[0]), p * each_s) for p in gpus
        ),
        stages=tuple(
            Stage(step * each_s, (step + 1) * each_s, (Group(p, _beside(problem, p)),))
            for step, p in enumerate(gpus)
        ),
        first_round_s=each_s,
    )


def _plan(
    problem: Problem, gpus: tuple[int, ...], memory: Memory, view: View
) -> tuple[Plan, Memory]:
    remembered = recall(memory, VERSION, lambda values: convert(values, Progress))
    # without a memory, the last trial, if there is any, is to go on
    now = remembered or Progress(-1, in_order(view.trials)[-1] if view.trials else "", 0.0, 0.0)
    new: tuple[NewTrial, ...] = ()
    again = _look_again(now, view) if 0 <= now.step < len(gpus) else None
    if again is None and now.step < len(gpus):
        now, new = _next(problem, gpus, now, view)
        if now.step < len(gpus):
            again = (SETTLING + STEADY, now.ends_s) if new else _look_again(now, view)
    note = FORGOTTEN if remembered is None and view.trials else ""
    if again is None:
        wanted = Plan(stage=len(gpus) - 1, done=True, note=note)
    else:
        until, ask_at_s = again
        size, step = gpus[now.step], now.step
        neighbours, more = _neighbours(problem, size, now.trial, view.with_new(new))
        wanted = Plan(
            (
                Allocation(now.trial, size, step, until),
                *(Allocation(name, size, step) for name in neighbours),
            ),
            (*new, *more),
            stage=step,
            ask_at_s=ask_at_s,
            note=note,
        )
    return wanted, holding(memory, {"version": VERSION, **asdict(now)})


def _beside(problem: Problem, size: int) -> int:
    """Return how many trials of this size share the GPU of the measured one, with it."""
    return max(1, problem.parts // size)


def _neighbours(
    problem: Problem, size: int, measured: str, view: View
) -> tuple[list[str], tuple[NewTrial, ...]]:
    """Return the trials beside the measured one, and those of them that are new."""
    live = [t.id for t in view.trials.values() if t.status == "live" and t.id != measured]
    names, first = live[: _beside(problem, size) - 1], highest(view.trials) + 1
    missing = range(first, first + _beside(problem, size) - 1 - len(names))
    new = tuple(NewTrial(trial_name(n), problem.space.defaults()) for n in missing)
    return [*names, *(trial.id for trial in new)], new


def _steps(problem: Problem) -> tuple[int, ...] | Impossible:
    limits, p_min, gpus = problem.planned, problem.params.p_min, steps(problem)
    if not gpus:
        reason = f"a trial needs {p_min} GPUs (p_min), and there may be {limits.max_gpus}"
    elif limits.deadline_s < SHORTEST_S * (len(gpus) + 1):
        listed = f"{', '.join(map(str, gpus))} GPU{'s' * (gpus[-1] > 1)}"
        reason = f"measuring on {listed} takes longer than {limits.deadline_s:g}s"
    elif limits.budget_gpu_s < SHORTEST_S * p_min:
        reason = f"the first step alone needs more than {limits.budget_gpu_s / 60:g} GPU-min"
    else:
        return gpus
    return Impossible(reason, SHORTEST_S * (len(gpus) + 1), SHORTEST_S * (sum(gpus) or p_min))


def _look_again(now: Progress, view: View) -> tuple[int | None, float | None] | None:
    """Return after how many reports, and when, this step may be over; None: enough has been seen of
    it, or as much as there is time for.
    """
    trial = view.trials[now.trial]
    if trial.status != "live":
        return None
    # by time: after a crash a trial counts its reports again from its last checkpoint
    made = [report for report in trial.history if report.at_s > now.since_s]
    late = view.now_s >= now.ends_s
    if len(made) >= SETTLING + STEADY:
        over_s = min(now.ends_s, made[SETTLING].at_s + STEADY_S)
        return None if view.now_s >= over_s else (None, over_s)
    if late and len(made) >= FEWEST:
        return None
    missing = (FEWEST if late else SETTLING + STEADY) - len(made)
    return trial.reports + missing, None if late else now.ends_s


def _next(
    problem: Problem, gpus: Sequence[int], now: Progress, view: View
) -> tuple[Progress, tuple[NewTrial, ...]]:
    """Begin the next step; with a new trial if the present one has ended. One that failed ends the
    steps, unless it had a part of a GPU: the whole may be enough.
    """
    trial = view.trials.get(now.trial)
    step = now.step + 1
    failed = trial is not None and trial.status == "failed"
    if (failed and gpus[now.step] >= problem.parts) or step == len(gpus):
        return replace(now, step=len(gpus)), ()
    left_s = problem.planned.deadline_s * USED - view.now_s
    ends_s = view.now_s + max(0.0, left_s) / (len(gpus) - step)
    if trial is not None and trial.status == "live":
        return Progress(step, now.trial, view.now_s, ends_s), ()
    new = NewTrial(trial_name(highest(view.trials) + 1), problem.space.defaults())
    return Progress(step, new.id, view.now_s, ends_s), (new,)


def steps(problem: Problem) -> tuple[int, ...]:
    """List the numbers of GPUs to measure on: `p_min`, doubled while `p_max` and cluster allow."""
    most = problem.planned.max_gpus
    if most is None:
        most = problem.params.p_max or problem.gpus_per_instance
    return problem.params.doubled(most)


MEASURE = prepared(_steps, _outline, _plan)
