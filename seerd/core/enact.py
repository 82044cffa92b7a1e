"""How each decision changes the state, in live and recorded runs alike. Nothing is decided here."""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch
from typing import Any

import msgspec

from seerd.core import commands, instances, verdicts
from seerd.core.attempts import count_crash, unwant
from seerd.core.commands import AnyCommand, Command
from seerd.core.events import AddAsked, ExtendAsked, JobAdded, JobStopAsked, JobWeighed
from seerd.core.failures import is_extra
from seerd.core.ledger import Charge
from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.placement import Slots
from seerd.core.plans import Order, PlanChange
from seerd.core.state import GONE, Complaint, Incumbent, JobState, State, Trial
from seerd.core.verdicts import AnyVerdict, JobOver, Verdict
from seerd.planner.model import Limits, PlannedJob
from seerd.planner.trial_ids import job_of

AnyDecision = AnyVerdict | AnyCommand

SILENT = "ended without a report of {metric!r}: call trial.report({metric}=...)"
UNMATCHED = "ended, and printed no line that matches train.report {pattern!r}"


def enact(state: State, decision: AnyDecision) -> None:
    """Apply a decision to the state. A command counts as under way from now on."""
    _enact(decision, state)
    if isinstance(decision, Command):
        state.clock.issued += 1
        if not isinstance(decision, commands.Finish):
            state.under_way[decision.id] = decision


@singledispatch
def _enact(decision: Verdict | Command, state: State) -> None:
    match decision:
        case verdicts.Slow():
            trial = state.trials[decision.trial]
            trial.slow[decision.rank] = state.now
            trial.note = decision.detail
            state.result.notes.append(decision.detail)
        case verdicts.Gone():
            instance = state.fleet.instances[decision.instance]
            instances.lose(state, instance, decision.at_s, "it was gone when the run was resumed")
        case verdicts.Since():
            state.ledger.begin_at(decision.what, decision.at_s)
        case verdicts.HeldBack():
            state.fleet.held_back = decision if decision.why is not None else None
        case verdicts.Denied():
            del state.requests.open[decision.request]
            state.requests.answered[decision.request] = decision.why
        case verdicts.Promised():
            state.end.promised = decision
        case verdicts.Releasing():
            state.go(RunPhase.RELEASING)
            state.result.no_model.clear()
        case _:
            raise TypeError(f"{type(decision).__name__} is not applied")


for _handler in (instances.launch, instances.terminate, instances.retired, instances.ask_again):
    _enact.register(_handler)


@_enact.register
def _(verdict: verdicts.Adopted, state: State) -> None:
    plan, answer = state.plan, state.plan.answer
    assert isinstance(answer, tuple)
    change, memory = answer
    plan.answer, plan.failures, plan.last = None, 0, change
    for key, value in memory.items():
        if value is None:
            plan.memory.pop(key, None)
        else:
            plan.memory[key] = value
    if change.note:
        state.result.notes.append(change.note)
    for new in change.new:
        seed = (state.facts.problem.params.seed * 1_000_003 + len(state.trials)) % 2**31
        state.trials[new.trial] = Trial(new.trial, new.config, seed)
    for trial in (state.trials[name] for name in change.eliminated):
        if trial.status == "live":
            trial.out = True
            trial.why = f"eliminated after stage {plan.stage}" if plan.stage else "eliminated"
            state.touch(trial.id)
            if trial.phase is TrialPhase.WAITING:
                trial.go(TrialPhase.ELIMINATED)
    plan.order.apply(change)
    _want(state, change, set(verdict.dropped))
    for compared in change.compared:
        if compared.trial in state.trials:
            state.trials[compared.trial].judged = compared


def _want(state: State, change: PlanChange, dropped: set[str]) -> None:
    plan = state.plan
    for name in (*change.gone, *change.eliminated):
        plan.wanted.pop(name, None)
        trial = state.trials[name]
        trial.gpus, trial.until, trial.judged = 0, None, None
    for name in (put.trial for put in change.put):
        trial, allocation = state.trials[name], plan.order.get(name)
        if allocation is None or name in dropped or trial.status != "live":
            plan.wanted.pop(name, None)
            continue
        if name not in plan.wanted:
            trial.judged = None
        plan.wanted[name] = allocation
        trial.gpus, trial.bracket = max(allocation.gpus, trial.least), allocation.bracket
        trial.until, trial.reached = allocation.until, None
    for name in plan.reached:
        if name in plan.wanted:
            state.trials[name].until, state.trials[name].reached = plan.wanted[name].until, None
    plan.reached.clear()


@_enact.register
def _(verdict: verdicts.Declined, state: State) -> None:
    plan = state.plan
    plan.answer, plan.failures, plan.again_s = None, verdict.failures, verdict.again_s
    if verdict.failures == 1:
        state.result.note("declined", verdict.why)


@_enact.register
def _(command: commands.StartTrial, state: State) -> None:
    trial = state.trials[command.trial]
    trial.go(TrialPhase.STARTING)
    trial.attempt, trial.ordered_s = command.attempt, state.now
    nodes, job = ((command.instance, command.gpus), *command.beside), state.jobs[job_of(trial.id)]
    held = tuple(Slots(node, gpus) for node, gpus in nodes)
    if is_extra(state, trial.id, held):
        job.extra = trial.id
    trial.held, trial.had = held, sum(len(slots.gpus) for slots in held)
    trial.bound = trial.had if trial.had < state.facts.parts else 0
    trial.start_command, trial.stopped = command.id, None
    state.fleet.holding += 1
    job.hold(state.facts.gpus(trial.had), state.now)
    for slots in held:
        state.fleet.instances[slots.node].busy.update(dict.fromkeys(slots.gpus, trial.id))
    for slots in held if not state.facts.cluster.per_instance else ():
        key = trial.key_on(slots.node)
        gpus = state.facts.gpus(len(slots.gpus))
        state.ledger.start(Charge(key, slots.node, gpus, state.now))


@_enact.register
def _(verdict: verdicts.Grown, state: State) -> None:
    trial, now = state.trials[verdict.trial], state.now
    assert trial.held is not None
    node, more = trial.held[0].node, len(verdict.gpus) - trial.had
    trial.held, trial.had = (Slots(node, verdict.gpus),), len(verdict.gpus)
    state.jobs[job_of(trial.id)].hold(state.facts.gpus(more), now)
    state.fleet.instances[node].busy.update(dict.fromkeys(verdict.gpus, trial.id))
    if not state.facts.cluster.per_instance:
        state.ledger.end(trial.key, now, now)
        state.ledger.start(Charge(trial.key, node, state.facts.gpus(trial.had), now))


@_enact.register
def _(command: commands.GrowTrial, state: State) -> None:
    trial = state.trials[command.trial]
    state.under_way.pop(trial.grow_command or "", None)
    trial.grow_command = command.id


@_enact.register
def _(command: commands.StopTrial, state: State) -> None:
    trial = state.trials[command.trial]
    if trial.phase is TrialPhase.STOPPING:
        state.under_way.pop(trial.stop_command or "", None)
    else:
        trial.go(TrialPhase.STOPPING)
    trial.stop_command, trial.asked_s = command.id, state.now
    trial.stopped = command.why
    trial.hung = trial.hung or command.why == "hung"


@_enact.register
def _(verdict: verdicts.Failed, state: State) -> None:
    trial = state.trials[verdict.trial]
    trial.go(TrialPhase.FAILED)
    if verdict.why == "silent":
        goal = state.facts.goal_of(trial.id)
        pattern = goal.patterns.get(goal.metric)
        silent = SILENT.format(metric=goal.metric)
        trial.why = UNMATCHED.format(pattern=pattern) if pattern else silent
    unwant(state, trial)


@_enact.register
def _(verdict: verdicts.Enlarged, state: State) -> None:
    trial = state.trials[verdict.trial]
    trial.crashes, trial.in_vain, trial.fault = trial.crashes - 1, 0, "small"
    trial.crashed_s.pop()
    trial.least = verdict.gpus
    if trial.gpus:
        trial.gpus = max(trial.gpus, trial.least)
        state.agenda.replace = True


@_enact.register
def _(verdict: verdicts.Blocked, state: State) -> None:
    job = state.jobs[job_of(verdict.trial)]
    if verdict.own:
        count_crash(state, state.trials[verdict.trial])
        return
    job.blocked_s = state.now if job.block is None else job.blocked_s
    job.block, job.extra = verdict, None
    last_lines = "\n".join(state.trials[verdict.trial].tail)
    complaint = Complaint(verdict.why, verdict.trial, last_lines)
    state.signs.complaints.setdefault(verdict.why, complaint)


@_enact.register
def _(verdict: verdicts.Kept, state: State) -> None:
    trial, newest = state.trials[verdict.trial], verdict.newest
    best = (old for old in trial.checkpoints[newest:] if old.name == verdict.best)
    trial.checkpoints = (*trial.checkpoints[:newest], *best)


@_enact.register
def _(verdict: verdicts.Warned, state: State) -> None:
    state.signs.warned[verdict.what] = state.now
    state.result.notes.append(verdict.detail)
    if verdict.what == "identical":
        state.signs.complaints[verdict.what] = Complaint(verdict.what, "", verdict.detail)


@_enact.register
def _(verdict: verdicts.Granted, state: State) -> None:
    asked = state.requests.open.pop(verdict.request)
    state.requests.answered[verdict.request] = None
    state.forget_question()
    problem, note = state.facts.problem, state.result.note
    match asked:
        case AddAsked():
            number = max([len(state.trials), *(at + 1 for at, _ in problem.added)])
            _replace(state, added=(*problem.added, (number, asked.config)))
        case ExtendAsked():
            before, after = problem.limits, asked.problem.limits
            jobs = tuple(_with_limits(job, before, after) for job in problem.jobs)
            outline = asked.outline or state.facts.outline
            state.facts = msgspec.structs.replace(
                state.facts,
                problem=replace(asked.problem, added=problem.added, jobs=jobs),
                outline=outline,
            )
            for instance in state.fleet.instances.values():
                if instance.phase not in GONE:
                    instance.until = instances.sooner(instance.until, asked.rented_until_s)
            note("extended")
        case JobAdded():
            state.jobs[asked.job.id] = JobState(since_s=state.now)
            jobs_facts = (*state.facts.jobs, asked.facts)
            state.facts = msgspec.structs.replace(state.facts, jobs=jobs_facts)
            _replace(state, jobs=(*problem.jobs, asked.job))
            note("job-added", asked.job.id)
        case JobStopAsked():
            _end_job(JobOver(job=asked.job, why="person"), state)
        case JobWeighed():
            own = {asked.job: asked.weight}
            weighed = (replace(job, weight=own.get(job.id, job.weight)) for job in problem.jobs)
            _replace(state, jobs=tuple(weighed))
            note("job-weighed", asked.job, asked.weight)


def _replace(state: State, **changes: Any) -> None:
    problem = replace(state.facts.problem, **changes)
    state.facts = msgspec.structs.replace(state.facts, problem=problem)


def _with_limits(job: PlannedJob, before: Limits, after: Limits) -> PlannedJob:
    """Give a job the run's new limits, except for those that are its own."""
    own = limits = job.problem.limits
    if own.deadline_s >= before.deadline_s:
        limits = replace(limits, deadline_s=after.deadline_s)
    if own.budget_gpu_s >= before.budget_gpu_s:
        limits = replace(limits, budget_gpu_s=after.budget_gpu_s)
    return job if limits == own else replace(job, problem=replace(job.problem, limits=limits))


@_enact.register
def _end_job(verdict: JobOver, state: State) -> None:
    job = state.jobs[verdict.job]
    job.over, job.detail = verdict.why, verdict.detail
    jobs = state.facts.problem.jobs
    _replace(state, jobs=tuple(replace(o, over=o.over or o.id == verdict.job) for o in jobs))
    detail = [verdict.detail] if verdict.detail else []
    state.result.note("job-over-since" if detail else "job-over", verdict.job, verdict.why, *detail)
    state.forget_question()
    for name in [name for name in state.plan.wanted if job_of(name) == verdict.job]:
        unwant(state, state.trials[name])
        state.touch(name)


@_enact.register
def _(verdict: verdicts.Closing, state: State) -> None:
    end = state.end
    end.close_by, end.status, end.why = verdict.by_s, verdict.status, verdict.why
    end.detail = verdict.detail
    if verdict.why == "target":
        state.result.note("target", verdict.detail)
    state.go(RunPhase.CLOSING)
    state.forget_question()
    state.plan.wanted, state.plan.order = {}, Order()
    for instance in state.fleet.instances.values():
        instance.claims.clear()
    for trial in state.trials.values():
        trial.gpus, trial.until, trial.target = 0, None, None
        state.touch(trial.id)


@_enact.register
def _(
    command: commands.AskPolicy | commands.Publish | commands.Finish | commands.SetTimer,
    state: State,
) -> None:
    match command:
        case commands.AskPolicy():
            state.plan.question = state.plan.asked = command.id
            state.plan.asked_s = state.now
        case commands.Publish():
            kept = state.trials[command.trial].checkpoints
            checkpoint = next(saved for saved in kept if saved.name == command.checkpoint)
            state.result.publishing = Incumbent(command.trial, checkpoint, command.metric)
        case commands.Finish():
            state.go(RunPhase.OVER)
        case commands.SetTimer():
            if state.clock.timer is not None:
                state.under_way.pop(state.clock.timer.id, None)
            state.clock.timer = command
