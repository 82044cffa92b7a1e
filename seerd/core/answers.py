"""Whether a policy's answer can be the plan. An entry that has become untrue since the question is
left out, and the policy is asked again. An entry that was never valid rejects the whole answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from math import isfinite

from seerd.core.plans import STAYS, Order, PlanChange, Put
from seerd.core.state import State
from seerd.core.verdicts import Adopted, AnyVerdict, Declined
from seerd.planner.trial_ids import job_of
from seerd.units import count


def judge(state: State) -> AnyVerdict:
    """Return the verdict on the policy's answer."""
    answer = state.plan.answer
    question = state.plan.asked
    if isinstance(answer, tuple):
        why = next(_mistakes(state, answer[0]), None)
        if why is None:
            return Adopted(question=question, dropped=tuple(_untrue(state, answer[0])))
    else:
        why = answer or "there is none"
    return Declined(
        question=question,
        why=why,
        failures=state.plan.failures + 1,
        again_s=state.now + state.rules.ask_again_s,
    )


def _untrue(state: State, change: PlanChange) -> Iterator[str]:
    out, new = set(change.eliminated), {new.trial for new in change.new}
    for name in (put.trial for put in change.put if put.trial not in new):
        is_live = state.trials[name].status == "live" and state.jobs[job_of(name)].over is None
        if name in out or not is_live:
            yield name


def _mistakes(state: State, change: PlanChange) -> Iterator[str]:
    new = Counter(trial.trial for trial in change.new)
    for name, times in new.items():
        if name in state.trials or times > 1:
            yield f"it asks for {name} as a new trial, and there is one"
    named = [*change.gone, *change.eliminated, *(put.trial for put in change.put)]
    for name in named:
        if name not in state.trials and name not in new:
            yield f"it names {name}, and there is no such trial"
    yield from _wrong_job(state, change)
    yield from _wrong_values(change)
    for put in change.put:
        yield from _wrong_size(state, put)
    yield from _wrong_order(state.plan.order, change)
    yield from _too_many(state, change)
    yield from _wrong_time(state, change)


def _wrong_job(state: State, change: PlanChange) -> Iterator[str]:
    for new in change.new:
        job = state.jobs.get(job_of(new.trial))
        if job is None or job.over is not None:
            yield f"it asks for {new.trial}, and there is no such job that goes on"


def _wrong_values(change: PlanChange) -> Iterator[str]:
    """Find values that are not finite, which JSON and so the journal cannot hold."""
    for new in change.new:
        for name, value in new.config.items():
            if isinstance(value, float) and not isfinite(value):
                yield f"it wants to try {name} = {value} with {new.trial}"


def _wrong_order(order: Order, change: PlanChange) -> Iterator[str]:
    placed = [put for put in change.put if put.place != STAYS]
    named = [*change.gone, *(put.trial for put in change.put)]
    moved = sum(put.trial in order for put in placed)
    staying = len(order) - len(change.gone) - moved
    kept = [put.trial for put in change.put if put.place == STAYS]
    listed = all(name in order for name in (*change.gone, *kept))
    rising = all(first.place < second.place for first, second in pairwise(placed))
    fits = all(0 <= put.place - before <= staying for before, put in enumerate(placed))
    if len(set(named)) < len(named) or not (listed and rising and fits):
        yield "it changes another plan than the present one"


def _wrong_size(state: State, put: Put) -> Iterator[str]:
    """Find impossible numbers; a trial that is larger than an instance takes whole ones."""
    size = state.facts.cluster.gpus_per_instance
    if put.gpus < 1:
        yield f"it gives {put.trial} {count(put.gpus, 'GPU')}"
    elif put.gpus > size and put.gpus % size:
        whole = f"a trial that is larger than an instance takes whole ones of {size}"
        yield f"it gives {put.trial} {put.gpus} GPUs, and {whole}"
    if put.until is not None and put.until < 1:
        yield f"it wants to be asked when {put.trial} has made {put.until} reports"


def _too_many(state: State, change: PlanChange) -> Iterator[str]:
    most = state.facts.problem.limits.max_gpus
    if most is None:
        return
    largest = max((put for put in change.put), key=lambda put: put.gpus, default=None)
    if largest is not None and largest.gpus > most:
        yield f"it gives {largest.trial} {largest.gpus} GPUs, and there may be {most}"
    together = state.plan.order.gpus_after(change)
    if together > most:
        yield f"it gives its trials {together} GPUs together, and there may be {most}"


def _wrong_time(state: State, change: PlanChange) -> Iterator[str]:
    asked_s, at_s = state.plan.asked_s, change.ask_at_s
    if at_s is not None and (not isfinite(at_s) or (at_s <= asked_s and not change.done)):
        yield f"it wants to be asked again at {at_s:g}s, and it was asked at {asked_s:g}s"
    stages = len(state.outline.stages)
    if change.stage < 0 or (stages and change.stage >= stages):
        yield f"it speaks of stage {change.stage + 1} of {stages}"
