"""What is wanted now: whether the run goes on, whether an answer becomes the plan, and where trials
should run. Each verdict is applied before the next is looked for. An entry of an answer that has
become untrue since the question is left out, and the policy is asked again; one that was never
valid rejects the whole answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator

from seerd.core.aiming import aim_all, drop, fill
from seerd.core.commands import AskPolicy, Status
from seerd.core.failures import alike, hopeless_jobs
from seerd.core.jobs import ending_jobs, target_reached
from seerd.core.lifecycle import InstancePhase, RunPhase
from seerd.core.limits import close_at, exhausted_at, promise, quiet_by, release_s, time_left
from seerd.core.plans import Order, PlanChange, Put
from seerd.core.provisioning import hopeless
from seerd.core.state import State
from seerd.core.store_outage import cut_off
from seerd.core.verdicts import (
    Adopted,
    AnyVerdict,
    CloseCause,
    Closing,
    Declined,
    Promised,
    Releasing,
)
from seerd.planner.gpu_parts import fitting
from seerd.planner.trial_ids import job_of

Ending = tuple[Status, CloseCause]


def decide(state: State) -> Iterator[AnyVerdict]:
    """Decide what is wanted after the last event."""
    woken, state.agenda.woken = state.agenda.woken, False
    state.agenda.hold = False
    unstored, state.agenda.unstored = cut_off(state), False
    if state.phase is RunPhase.RUNNING:
        yield from _run_on(state, woken, unstored)
    if state.phase is RunPhase.CLOSING:
        by_s = state.end.close_by
        too_late = woken and by_s is not None and state.now >= by_s
        if state.fleet.holding == 0 or too_late:  # instances are given back as they are
            yield Releasing()


def _run_on(state: State, woken: bool, unstored: str) -> Iterator[AnyVerdict]:
    doubt, state.agenda.doubt = state.agenda.doubt, False
    failing = hopeless_jobs(state) if doubt else {}
    for over in ending_jobs(state, failing):
        yield over
        state.agenda.ask, state.agenda.about = "jobs", None
    _drop_ended(state)
    ending, answered = _ending(state, woken, failing), state.plan.answer is not None
    if ending is None and unstored:
        ending = "failed", "store"
    if ending is None and answered:
        verdict = judge(state)
        _look_ahead(state, verdict)
        yield verdict
        ending = _wanted_end(state)
    if ending is not None:
        status, why = ending
        exhausted_s = exhausted_at(state)
        yield Closing(
            status=status,
            why=why,
            by_s=quiet_by(state),
            close_at_s=round(close_at(state), 3),
            exhausted_at_s=round(exhausted_s, 3) if math.isfinite(exhausted_s) else None,
            release_s=round(release_s(state), 3),
            detail=unstored if why == "store" else _detail(state, why),
        )
        state.aims.waiting.clear()
        return
    plan_is_coming = state.plan.question is not None or (wants_to_ask(state) and not answered)
    state.agenda.hold = plan_is_coming and state.agenda.because != "replacement"
    if state.agenda.hold:
        return
    if state.agenda.roomy and not state.agenda.replace:
        fill(state)
    if state.agenda.replace:
        aim_all(state)


def ask(state: State) -> Iterator[AskPolicy]:
    """Yield the question to the policy, if there is one to ask and none is open."""
    agenda = state.agenda
    why, about = agenda.ask, agenda.about
    if why is not None and wants_to_ask(state):
        agenda.ask, agenda.about = None, None
        yield AskPolicy(id=state.next_id, why=why, trial=about)


def wants_to_ask(state: State) -> bool:
    """Return whether the policy must be asked now."""
    plan, may_ask = state.plan, state.phase is RunPhase.RUNNING and state.agenda.ask is not None
    return may_ask and plan.question is None and (not plan.failures or state.now >= plan.again_s)


def promises(state: State) -> Iterator[Promised]:
    """Yield what agents may rely on, if it is not what was promised last."""
    if state.phase is RunPhase.RUNNING and not state.facts.cluster.instant:
        promised = promise(state)
        if promised != state.end.promised:
            yield promised


def _drop_ended(state: State) -> None:
    """Stop wanting ended trials, and ask the policy if it wants that, or if none is left."""
    ended, state.agenda.ended = state.agenda.ended, {}
    for name, gpus in ended.items():
        drop(state, state.trials[name], gpus)
    if ended and (state.plan.last.ask_on_end or not state.plan.wanted) and state.agenda.ask is None:
        state.agenda.ask, state.agenda.about = "ended", next(iter(ended))


def _ending(state: State, woken: bool, failing: Collection[str]) -> Ending | None:
    if state.end.status is not None:
        return state.end.status, "person"
    over = {job.over for job in state.jobs.values()}
    if over == {"target"} if state.facts.jobs else target_reached(state, "") is not None:
        return "target", "target"
    if "" in failing or over == {"alike"}:
        return "failed", "alike"
    if woken and (ending := _limit_reached(state)) is not None:
        return ending
    if state.fleet.holding == 0 and not time_left(state):
        return "done" if _in_last_stage(state) else "deadline", "late"
    if state.fleet.live:
        return None
    status = hopeless(state, in_last_stage=_in_last_stage(state))
    causes: dict[Status, CloseCause] = {
        "done": "last-stage",
        "deadline": "deadline",
        "budget": "budget",
    }
    return None if status is None else (status, causes.get(status, "no-instance"))


def _limit_reached(state: State) -> Ending | None:
    if state.now >= close_at(state):
        return ("done", "last-stage") if _in_last_stage(state) else ("deadline", "deadline")
    if state.now >= exhausted_at(state):
        stages = state.outline.stages
        carried_out = stages and state.facts.problem.whole and state.now >= stages[-1].end_s
        return ("done", "last-stage") if carried_out else ("budget", "budget")
    return None


def _in_last_stage(state: State) -> bool:
    return state.plan.stage == len(state.outline.stages) - 1


def _wanted_end(state: State) -> Ending | None:
    if state.plan.failures >= state.rules.max_failures:
        return "failed", "policy"
    if not state.plan.last.done:
        return None
    reported = any(trial.history for trial in state.trials.values())
    return ("done", "plan") if reported else ("failed", "no-trial")


def _look_ahead(state: State, verdict: AnyVerdict) -> None:
    """Note whether the next plan places trials anew or leads to another question."""
    answer = state.plan.answer
    if not isinstance(verdict, Adopted) or not isinstance(answer, tuple):
        return
    change, wanted, agenda = answer[0], state.plan.wanted, state.agenda
    agenda.because = "plan"
    agenda.replace |= any(name in wanted for name in (*change.gone, *change.eliminated))
    for put in change.put:
        old = wanted.get(put.trial)
        is_moved = put.place >= 0 or old is None or old.gpus != put.gpus
        agenda.replace |= is_moved and put.trial not in verdict.dropped
    if verdict.dropped:
        agenda.ask = agenda.ask or "untrue"


def _detail(state: State, why: CloseCause) -> str:
    if why == "alike" and not state.facts.jobs:
        return alike(state, "") or ""
    if why == "alike":
        return "; ".join(f"{name}: {job.detail}" for name, job in state.jobs.items())
    if why == "target":
        reached = (target_reached(state, name) for name in state.jobs)
        return "; ".join(text for text in reached if text is not None)
    refused = [i.why for i in state.fleet.instances.values() if i.phase is InstancePhase.REFUSED]
    return refused[-1] if why == "no-instance" and refused else ""


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
    yield from _wrong_trials(state, change)
    for put in change.put:
        yield from _wrong_size(state, put)
    order = Order(state.plan.order)
    try:
        order.apply(change)
    except ValueError as error:
        yield str(error)
    yield from _too_many(state, change, order.gpus)
    yield from _wrong_time(state, change)


def _wrong_trials(state: State, change: PlanChange) -> Iterator[str]:
    for new in change.new:
        job = state.jobs.get(job_of(new.trial))
        if job is None or job.over is not None:
            yield f"it asks for {new.trial}, and there is no such job that goes on"
    for new in change.new:
        for name, value in new.config.items():
            if isinstance(value, float) and not math.isfinite(value):  # no JSON has it
                yield f"it wants to try {name} = {value} with {new.trial}"


def _wrong_size(state: State, put: Put) -> Iterator[str]:
    """Find impossible numbers; a trial that is larger than an instance takes whole ones, one that
    is larger than a GPU whole GPUs.
    """
    problem, size = state.facts.problem, state.facts.cluster.gpus_per_instance
    gpus = problem.gpus_text(put.gpus)
    if put.gpus < 1:
        yield f"it gives {put.trial} {gpus}"
    elif put.gpus > size and put.gpus % size:
        whole = f"takes whole ones of {problem.gpus(size)}"
        yield f"it gives {put.trial} {gpus}, and a trial that is larger than an instance {whole}"
    elif put.gpus != fitting(put.gpus, problem.parts):
        yield f"it gives {put.trial} {gpus}, and there are halves, quarters ... and whole GPUs"
    if put.until is not None and put.until < 1:
        yield f"it wants to be asked when {put.trial} has made {put.until} reports"


def _too_many(state: State, change: PlanChange, together: int) -> Iterator[str]:
    problem, most = state.facts.problem, state.facts.problem.limits.max_gpus
    if most is None:
        return
    largest = max((put for put in change.put), key=lambda put: put.gpus, default=None)
    bound = f"and there may be {problem.gpus(most)}"
    if largest is not None and largest.gpus > most:
        yield f"it gives {largest.trial} {problem.gpus_text(largest.gpus)}, {bound}"
    if together > most:
        yield f"it gives its trials {problem.gpus_text(together)} together, {bound}"


def _wrong_time(state: State, change: PlanChange) -> Iterator[str]:
    asked_s, at_s = state.plan.asked_s, change.ask_at_s
    if at_s is not None and (not math.isfinite(at_s) or (at_s <= asked_s and not change.done)):
        yield f"it wants to be asked again at {at_s:g}s, and it was asked at {asked_s:g}s"
    stages = len(state.outline.stages)
    if change.stage < 0 or (stages and change.stage >= stages):
        yield f"it speaks of stage {change.stage + 1} of {stages}"
