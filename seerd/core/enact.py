"""How each decision changes the state: one small function for each verdict and command, found by
its type.

The one rule: a run that goes on and a recorded run are treated alike. Nothing is decided here, and
no rule is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from seerd.core.attempts import count_crash, unwant
from seerd.core.commands import (
    AnyCommand,
    AskPolicy,
    Command,
    Finish,
    Launch,
    Publish,
    SetTimer,
    StartTrial,
    StopTrial,
    Terminate,
)
from seerd.core.events import AddAsked, ExtendAsked, JobAdded, JobStopAsked, JobWeighed
from seerd.core.ledger import Charge
from seerd.core.lifecycle import InstancePhase, RunPhase, TrialPhase
from seerd.core.obstacles import is_extra
from seerd.core.placement import Slots
from seerd.core.plans import Order, PlanChange
from seerd.core.record import leave, lose
from seerd.core.state import (
    GONE,
    Complaint,
    Incumbent,
    Instance,
    JobState,
    PlanInForce,
    State,
    Trial,
)
from seerd.core.verdicts import (
    Adopted,
    Again,
    AnyVerdict,
    Blocked,
    Closing,
    Declined,
    Denied,
    Failed,
    Gone,
    Granted,
    HeldBack,
    JobOver,
    Kept,
    Promised,
    Releasing,
    Retired,
    Since,
    Slow,
    Warned,
)
from seerd.planner.model import Limits, PlannedJob
from seerd.planner.trial_ids import job_of

AnyDecision = AnyVerdict | AnyCommand

SILENT = "ended without a report of {metric!r}: call trial.report({metric}=...)"
UNMATCHED = "ended, and printed no line that matches train.report {pattern!r}"


def enact(state: State, decision: AnyDecision) -> None:
    """Apply a decision to the state. A command counts as under way from now on."""
    _ENACT[type(decision)](state, decision)
    if isinstance(decision, Command):
        state.clock.given += 1


# ------------------------------------------------------------ the plan


def _ask(state: State, command: AskPolicy) -> None:
    state.plan.question = state.plan.asked = command.id
    state.plan.asked_s = state.now
    state.under_way[command.id] = command


def _adopted(state: State, verdict: Adopted) -> None:
    plan, answer = state.plan, state.plan.answer
    assert isinstance(answer, tuple)
    change, memory = answer
    plan.answer, plan.failures, plan.last = None, 0, change
    _remember(plan, memory)
    if change.note:
        state.result.notes.append(change.note)
    for new in change.new:
        seed = (state.facts.problem.params.seed * 1_000_003 + len(state.trials)) % 2**31
        state.trials[new.trial] = Trial(new.trial, new.config, seed)
    for name in change.eliminated:
        _eliminate(state, state.trials[name])
    plan.order.apply(change)
    _want(state, change, set(verdict.dropped))
    for one in change.compared:
        if one.trial in state.trials:
            state.trials[one.trial].judged = one.compared()


def _remember(plan: PlanInForce, changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if value is None:
            plan.memory.pop(key, None)
        else:
            plan.memory[key] = value


def _eliminate(state: State, trial: Trial) -> None:
    if trial.status != "live":
        return
    trial.out = True
    trial.why = f"eliminated after stage {state.plan.stage}" if state.plan.stage else "eliminated"
    state.touch(trial.id)
    if trial.phase is TrialPhase.WAITING:
        trial.go(TrialPhase.ELIMINATED)


def _want(state: State, change: PlanChange, dropped: set[str]) -> None:
    plan = state.plan
    for name in (*change.gone, *change.eliminated):
        plan.wanted.pop(name, None)
        trial = state.trials[name]
        trial.gpus, trial.until, trial.judged = 0, None, None
    for put in change.put:
        _want_one(state, put.trial, dropped)
    for name in plan.reached:
        if name in plan.wanted:
            state.trials[name].until, state.trials[name].reached = plan.wanted[name].until, None
    plan.reached.clear()


def _want_one(state: State, name: str, dropped: set[str]) -> None:
    trial, allocation = state.trials[name], state.plan.order.get(name)
    if allocation is None or name in dropped or trial.status != "live":
        state.plan.wanted.pop(name, None)
        return
    if name not in state.plan.wanted:
        trial.judged = None
    state.plan.wanted[name] = allocation
    trial.gpus, trial.bracket, trial.until, trial.reached = (
        allocation.gpus,
        allocation.bracket,
        allocation.until,
        None,
    )


def _declined(state: State, verdict: Declined) -> None:
    plan = state.plan
    plan.answer, plan.failures, plan.again_s = None, verdict.failures, verdict.again_s
    if verdict.failures == 1:
        state.result.notes.append(
            f"the policy gave no plan that can be used: {verdict.why}; the last one stands"
        )


# ------------------------------------------------------------ trials


def _start(state: State, command: StartTrial) -> None:
    trial = state.trials[command.trial]
    trial.go(TrialPhase.STARTING)
    trial.attempt, trial.ordered_s = command.attempt, state.now
    on = (
        Slots(command.instance, command.gpus),
        *(Slots(node, gpus) for node, gpus in command.beside),
    )
    if is_extra(state, trial.id, on):
        state.jobs[job_of(trial.id)].extra = trial.id
    trial.held = on
    trial.had = sum(len(slots.gpus) for slots in trial.held)
    trial.start_command = command.id
    trial.stopped = None
    state.fleet.holding += 1
    state.jobs[job_of(trial.id)].hold(trial.had, state.now)
    for slots in trial.held:
        state.fleet.instances[slots.node].busy.update(dict.fromkeys(slots.gpus, trial.id))
    if not state.facts.cluster.per_instance:
        for slots in trial.held:
            state.ledger.start(
                Charge(trial.key_on(slots.node), slots.node, len(slots.gpus), state.now)
            )
    state.under_way[command.id] = command


def _stop(state: State, command: StopTrial) -> None:
    trial = state.trials[command.trial]
    if trial.phase is TrialPhase.STOPPING:
        state.under_way.pop(trial.stop_command or "", None)
    else:
        trial.go(TrialPhase.STOPPING)
    trial.stop_command, trial.asked_s = command.id, state.now
    trial.stopped = command.why
    trial.hung = trial.hung or command.why == "hung"
    state.under_way[command.id] = command


def _failed(state: State, verdict: Failed) -> None:
    trial = state.trials[verdict.trial]
    trial.go(TrialPhase.FAILED)
    if verdict.why == "silent":
        goal = state.facts.goal_of(trial.id)
        pattern = goal.patterns.get(goal.metric)
        said = SILENT.format(metric=goal.metric)
        trial.why = UNMATCHED.format(pattern=pattern) if pattern else said
    unwant(state, trial)


def _blocked(state: State, verdict: Blocked) -> None:
    job = state.jobs[job_of(verdict.trial)]
    if verdict.own:
        count_crash(state, state.trials[verdict.trial])
        return
    job.blocked_s = state.now if job.block is None else job.blocked_s
    job.block, job.extra = verdict, None
    last_lines = "\n".join(state.trials[verdict.trial].tail)
    complaint = Complaint(verdict.why, verdict.trial, last_lines)
    state.signs.complaints.setdefault(verdict.why, complaint)


def _kept(state: State, verdict: Kept) -> None:
    trial = state.trials[verdict.trial]
    trial.checkpoints = tuple(
        one
        for place, one in enumerate(trial.checkpoints)
        if place < verdict.newest or one.name == verdict.best
    )


def _slow(state: State, verdict: Slow) -> None:
    trial = state.trials[verdict.trial]
    trial.slow[verdict.rank] = state.now
    trial.note = verdict.detail
    state.result.notes.append(verdict.detail)


def _warned(state: State, verdict: Warned) -> None:
    state.signs.warned[verdict.what] = state.now
    state.result.notes.append(verdict.detail)
    if verdict.what == "identical":
        state.signs.complaints[verdict.what] = Complaint(verdict.what, "", verdict.detail)


# ------------------------------------------------------------ instances and money


def _launch(state: State, command: Launch) -> None:
    state.fleet.add(Instance(command.id, command.gpus))
    cluster = state.facts.cluster
    if cluster.per_instance:
        # When it began to run is known only once it is ready. Until then it is charged from now on,
        # since it may run at any moment.
        state.ledger.start(
            Charge(command.id, command.id, command.gpus, state.now, minimum_s=cluster.minimum_s)
        )
    state.under_way[command.id] = command


def _terminate(state: State, command: Terminate) -> None:
    instance = state.fleet.instances[command.instance]
    if instance.phase is InstancePhase.REQUESTED:
        del state.under_way[instance.id]
    state.fleet.go(instance, InstancePhase.RELEASING)
    instance.terminate_command = command.id
    state.under_way[command.id] = command


def _gone(state: State, verdict: Gone) -> None:
    lose(
        state,
        state.fleet.instances[verdict.instance],
        verdict.at_s,
        "it was gone when the run was resumed",
    )


def _since(state: State, verdict: Since) -> None:
    state.ledger.begin_at(verdict.what, verdict.at_s)


def _again(state: State, verdict: Again) -> None:
    fleet = state.fleet
    if not fleet.refusals and verdict.refusals:
        fleet.refused_since = state.now
    fleet.refusals, fleet.refused = verdict.refusals, verdict.batch
    fleet.launch_at = math.inf if verdict.at_s is None else verdict.at_s
    fleet.until_change = verdict.changed


def _held_back(state: State, verdict: HeldBack) -> None:
    state.fleet.held_back = verdict if verdict.why is not None else None


def _retired(state: State, verdict: Retired) -> None:
    leave(state, state.fleet.instances[verdict.instance], verdict.by_s)
    state.result.notes.append(
        f"{verdict.instance} was rented for the limits that held before, and is replaced"
    )


def _granted(state: State, verdict: Granted) -> None:
    """Let what is asked for be so. An open question was about what was before: no answer to it is
    awaited any more.
    """
    asked = state.requests.open.pop(verdict.request)
    state.requests.answered[verdict.request] = None
    _GRANT[type(asked)](state, asked)
    plan = state.plan
    state.under_way.pop(plan.question or "", None)
    plan.question, plan.answer = None, None


def _add(state: State, asked: AddAsked) -> None:
    """Have the next configuration that is drawn be this one; those that wait come before."""
    problem = state.facts.problem
    number = max([len(state.trials), *(at + 1 for at, _ in problem.added)])
    problem = replace(problem, added=(*problem.added, (number, asked.config)))
    state.facts = msgspec.structs.replace(state.facts, problem=problem)


def _extend(state: State, asked: ExtendAsked) -> None:
    outline = asked.outline or state.facts.outline
    before = state.facts.problem
    jobs = tuple(_with_limits(one, before.limits, asked.problem.limits) for one in before.jobs)
    problem = replace(asked.problem, added=before.added, jobs=jobs)
    state.facts = msgspec.structs.replace(state.facts, problem=problem, outline=outline)
    for instance in state.fleet.instances.values():
        if instance.phase not in GONE and instance.until is None:
            instance.until = asked.rented_until_s
    state.result.notes.append("the limits were extended")


def _with_limits(job: PlannedJob, before: Limits, after: Limits) -> PlannedJob:
    """Give a job the run's new limits, but for those that are its own."""
    own = job.problem.limits
    limits = replace(
        own,
        deadline_s=own.deadline_s if own.deadline_s < before.deadline_s else after.deadline_s,
        budget_gpu_s=(
            own.budget_gpu_s if own.budget_gpu_s < before.budget_gpu_s else after.budget_gpu_s
        ),
    )
    return job if limits == own else replace(job, problem=replace(job.problem, limits=limits))


def _add_job(state: State, asked: JobAdded) -> None:
    """Have one more job share the run."""
    state.jobs[asked.job.id] = JobState(since_s=state.now)
    jobs = (*state.facts.jobs, asked.facts)
    state.facts = msgspec.structs.replace(state.facts, jobs=jobs)
    _set_jobs(state, (*state.facts.problem.jobs, asked.job))
    state.result.notes.append(f"{asked.job.id} has come to share the run")


def _stop_job(state: State, asked: JobStopAsked) -> None:
    _end_job(state, JobOver(job=asked.job, why="person"))


def _weigh(state: State, asked: JobWeighed) -> None:
    jobs = state.facts.problem.jobs
    _set_jobs(
        state,
        tuple(replace(one, weight=asked.weight) if one.id == asked.job else one for one in jobs),
    )
    state.result.notes.append(f"{asked.job} has the weight {asked.weight:g} now")


def _end_job(state: State, verdict: JobOver) -> None:
    """Have a job get nothing any more, whenever the policy answers. An open question was about what
    was before.
    """
    job = state.jobs[verdict.job]
    job.over, job.detail = verdict.why, verdict.detail
    jobs = state.facts.problem.jobs
    _set_jobs(state, tuple(replace(o, over=o.over or o.id == verdict.job) for o in jobs))
    detail = f": {verdict.detail}" if verdict.detail else ""
    state.result.notes.append(f"{verdict.job} is over ({verdict.why}){detail}")
    plan = state.plan
    state.under_way.pop(plan.question or "", None)
    plan.question, plan.answer = None, None
    for name in [name for name in plan.wanted if job_of(name) == verdict.job]:
        unwant(state, state.trials[name])
        state.touch(name)


def _set_jobs(state: State, jobs: tuple[PlannedJob, ...]) -> None:
    problem = replace(state.facts.problem, jobs=jobs)
    state.facts = msgspec.structs.replace(state.facts, problem=problem)


_GRANT: dict[type, Callable[[State, Any], None]] = {
    AddAsked: _add,
    ExtendAsked: _extend,
    JobAdded: _add_job,
    JobStopAsked: _stop_job,
    JobWeighed: _weigh,
}


def _denied(state: State, verdict: Denied) -> None:
    del state.requests.open[verdict.request]
    state.requests.answered[verdict.request] = verdict.why


def _promised(state: State, verdict: Promised) -> None:
    state.end.promised = verdict


# ------------------------------------------------------------ the run


def _closing(state: State, verdict: Closing) -> None:
    """Let every trial save and exit, and start nothing new.

    No answer of the policy is awaited any more.
    """
    end = state.end
    end.close_by, end.status, end.why = verdict.by_s, verdict.status, verdict.why
    end.detail = verdict.detail
    if verdict.why == "target":
        state.result.notes.append(f"the target was reached: {verdict.detail}")
    state.go(RunPhase.CLOSING)
    plan = state.plan
    state.under_way.pop(plan.question or "", None)
    plan.question, plan.answer, plan.wanted, plan.order = None, None, {}, Order()
    for instance in state.fleet.instances.values():
        instance.claims.clear()
    for trial in state.trials.values():
        trial.gpus, trial.until, trial.target = 0, None, None
        state.touch(trial.id)


def _releasing(state: State, verdict: Releasing) -> None:
    state.go(RunPhase.RELEASING)
    state.result.no_model.clear()


def _publish(state: State, command: Publish) -> None:
    kept = state.trials[command.trial].checkpoints
    checkpoint = next(one for one in kept if one.name == command.checkpoint)
    state.result.publishing = Incumbent(command.trial, checkpoint, command.metric)
    state.under_way[command.id] = command


def _finish(state: State, command: Finish) -> None:
    state.go(RunPhase.OVER)


def _set_timer(state: State, command: SetTimer) -> None:
    if state.clock.timer is not None:
        state.under_way.pop(state.clock.timer.id, None)
    state.clock.timer = command
    state.under_way[command.id] = command


_ENACT: dict[type, Callable[[State, Any], None]] = {
    Adopted: _adopted,
    Again: _again,
    AskPolicy: _ask,
    Blocked: _blocked,
    Closing: _closing,
    Declined: _declined,
    Denied: _denied,
    Failed: _failed,
    Finish: _finish,
    Gone: _gone,
    Granted: _granted,
    HeldBack: _held_back,
    JobOver: _end_job,
    Kept: _kept,
    Launch: _launch,
    Promised: _promised,
    Publish: _publish,
    Releasing: _releasing,
    Retired: _retired,
    SetTimer: _set_timer,
    Since: _since,
    Slow: _slow,
    StartTrial: _start,
    StopTrial: _stop,
    Terminate: _terminate,
    Warned: _warned,
}
