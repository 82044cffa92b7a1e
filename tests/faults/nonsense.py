"""Answers of a policy that cannot be the plan: what the real one says, with one mistake in it.

The one rule: each is wrong whatever the run is like, and all else in it is right.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from seerd.core.asking import Answer
from seerd.core.plans import STAYS, New, Order, PlanChange, Put
from seerd.planner.model import Problem, View

NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked. `order`: of the plan before; `stages`: how many there are."""

    view: View
    order: Order
    problem: Problem
    stages: int


def nonsense(dice: random.Random, question: Question, sense: Answer) -> tuple[str, Answer]:
    """One of them, and what kind it is of."""
    kinds = {kind: [*make(question, sense)] for kind, make in KINDS.items()}
    kind = dice.choice([kind for kind, made in kinds.items() if made])
    return kind, dice.choice(kinds[kind])


def _but(sense: Answer, **changes: object) -> Answer:
    return Answer(msgspec.structs.replace(sense.plan, **changes), sense.memory)


def _with_put(
    question: Question, sense: Answer, trial: str, gpus: int, until: int | None = None
) -> Answer:
    """And this trial behind all others."""
    after = Order(question.order)
    after.apply(sense.plan)
    return _but(sense, put=(*sense.plan.put, Put(trial, gpus, 0, until, len(after))))


def _resized(
    question: Question, sense: Answer, gpus: int, until: int | None = None
) -> Iterator[Answer]:
    """One of the trials that are wanted, with other GPUs."""
    put = sense.plan.put
    if put:
        other = Put(put[0].trial, gpus, put[0].bracket, until, put[0].place)
        yield _but(sense, put=(other, *put[1:]))
        return
    staying = [name for name in question.order.names if name not in sense.plan.gone]
    if staying:
        yield _but(sense, put=(Put(staying[0], gpus, 0, until, STAYS),))


def unknown_trial(question: Question, sense: Answer) -> Iterator[Answer]:
    """It was never asked for."""
    yield _with_put(question, sense, NOBODY, 1)
    yield _but(sense, eliminated=(*sense.plan.eliminated, NOBODY))
    yield _but(sense, gone=(*sense.plan.gone, NOBODY))


def too_many_gpus(question: Question, sense: Answer) -> Iterator[Answer]:
    """More than there may be, for one trial or for all together."""
    most, size = question.problem.limits.max_gpus, question.problem.gpus_per_instance
    if most is None:
        return
    yield from _resized(question, sense, (most // size + 1) * size)
    yield from _resized(question, sense, most * 1000 * size)
    put = [Put(one.trial, size, one.bracket, one.until, one.place) for one in sense.plan.put]
    if size <= most < len(put) * size:
        yield _but(sense, put=tuple(put))


def no_gpus(question: Question, sense: Answer) -> Iterator[Answer]:
    """It is wanted, on none, or on fewer."""
    yield from _resized(question, sense, 0)
    yield from _resized(question, sense, -1)


def no_instance_holds_it(question: Question, sense: Answer) -> Iterator[Answer]:
    """An instance and a part of another."""
    size = question.problem.gpus_per_instance
    if size > 1:
        yield from _resized(question, sense, size + 1)


def no_reports(question: Question, sense: Answer) -> Iterator[Answer]:
    """To be asked again when there are none."""
    yield from _resized(question, sense, 1, until=0)


def twice(question: Question, sense: Answer) -> Iterator[Answer]:
    """Nobody could say what is wanted of it."""
    plan = sense.plan
    if plan.put:
        yield _but(sense, put=(*plan.put, plan.put[-1]))
    if plan.new:
        yield _but(sense, new=(*plan.new, plan.new[0]))
    if plan.gone:
        yield _but(sense, gone=(*plan.gone, plan.gone[0]))
    for name in list(question.view.trials)[:1]:
        yield _but(sense, new=(*plan.new, New(name, {"lr": 0.5})))


def another_plans(question: Question, sense: Answer) -> Iterator[Answer]:
    """A change of a plan that is not the present one."""
    yield _but(sense, put=(Put(NOBODY, 1, 0, None, 10_000),), new=(New(NOBODY, {"lr": 0.5}),))
    left_out = [name for name in question.view.trials if name not in question.order]
    if left_out:
        yield _but(sense, put=(Put(left_out[0], 1, 0, None, STAYS), *sense.plan.put))
        yield _but(sense, gone=(*sense.plan.gone, left_out[0]))


def no_such_stage(question: Question, sense: Answer) -> Iterator[Answer]:
    """Before the first, or behind the last."""
    yield _but(sense, stage=-1)
    if question.stages:
        yield _but(sense, stage=question.stages)


def in_the_past(question: Question, sense: Answer) -> Iterator[Answer]:
    """To be asked again at a moment that is over."""
    if not sense.plan.done:
        for at_s in (question.view.now_s, question.view.now_s - 5.0, -math.inf):
            yield _but(sense, ask_at_s=at_s)


def no_number(question: Question, sense: Answer) -> Iterator[Answer]:
    """What cannot be written down as JSON."""
    plan = sense.plan
    yield _but(sense, ask_at_s=math.nan)
    yield _but(sense, ask_at_s=math.inf)
    yield _but(sense, new=(*plan.new, New(NOBODY, {"lr": math.nan})))
    yield Answer(PlanChange(), {**sense.memory, "x": math.nan})
    yield Answer(PlanChange(), {**sense.memory, "x": {"y": [math.inf]}})


KINDS: dict[str, Callable[[Question, Answer], Iterator[Answer]]] = {
    "unknown trial": unknown_trial,
    "too many GPUs": too_many_gpus,
    "no GPUs": no_gpus,
    "no instance holds it": no_instance_holds_it,
    "no reports": no_reports,
    "twice": twice,
    "another plan's": another_plans,
    "no such stage": no_such_stage,
    "in the past": in_the_past,
    "no number": no_number,
}
