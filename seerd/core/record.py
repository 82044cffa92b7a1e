"""How each event changes the state: one small function for each event, found by its type. What was
decided is applied in `enact`.

The one rule: only what the event says is recorded here, and what must be looked at next. No rule is
read, so every version of seerd reads an event alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import singledispatch

from seerd.core.aiming import instances_needed
from seerd.core.attempts import (
    current,
    node_exited,
    node_lost,
    node_refused,
    node_started,
    node_waits,
)
from seerd.core.commands import Publish, StartTrial
from seerd.core.events import (
    AddAsked,
    AgentFact,
    AnyEvent,
    AnyRequest,
    Checkpoint,
    Event,
    EventsMissing,
    ExtendAsked,
    InstanceComputed,
    InstanceLost,
    InstanceNoticed,
    InstanceReady,
    InstanceShared,
    InstanceTerminated,
    JobAdded,
    JobStopAsked,
    JobWeighed,
    LaunchRefused,
    ModelPublished,
    OrderRefused,
    PolicyAnswered,
    PolicyFailed,
    PublishFailed,
    Remarked,
    RunResumed,
    RunStarted,
    StopAsked,
    TimerFired,
    TrialCheckpointed,
    TrialComplained,
    TrialExited,
    TrialReported,
    TrialStalled,
    TrialStarted,
    TrialTraining,
    TrialWaited,
)
from seerd.core.hangs import node_stalled, node_waited
from seerd.core.ledger import LOST, Charge
from seerd.core.lifecycle import InstancePhase, RunPhase
from seerd.core.metrics import keep
from seerd.core.progress import confirm, fill, reporting, rewind, take_saved, took
from seerd.core.state import GOES_ON, THERE, Complaint, Instance, Published, Refusal, State
from seerd.planner.model import Report
from seerd.planner.trial_ids import job_of


def record(state: State, event: AnyEvent) -> None:
    """Apply an event to the state.

    A fact that was seen before changes nothing. A notice for an instance that is not known yet is
    kept until it is. A late report of an instance that is gone only completes the trial's history.
    """
    if isinstance(event, AgentFact):
        if isinstance(event, TrialStarted | TrialExited):
            _note_gap(state, event)
        instance = state.fleet.instances.get(event.instance)
        if instance is None:
            state.fleet.early[event.instance] = event.fact
            if isinstance(event, InstanceNoticed) and not _is_hint(state, event):
                before = state.fleet.noticed.get(event.instance)
                state.fleet.noticed[event.instance] = _sooner(before, event.by)
            elif isinstance(event, InstanceNoticed) and event.what == "cold":
                state.fleet.slow[event.instance] = (event.why, event.happened)
            elif isinstance(event, InstanceShared):
                state.fleet.shared[event.instance] = event
            return
        if event.fact <= instance.seen:
            return
        instance.seen = event.fact
        if instance.phase is InstancePhase.TERMINATED:
            if isinstance(event, TrialReported):
                fill(state, event)
            return
    _record(event, state)


@singledispatch
def _record(event: Event, state: State) -> None:
    raise TypeError(f"{type(event).__name__} is not handled")


@_record.register
def _(event: RunStarted, state: State) -> None:
    state.agenda.ask = "began"


@_record.register
def _(event: RunResumed, state: State) -> None:
    state.agenda.resumed, state.agenda.because = True, "resumed"
    state.clock.left_s, state.clock.resumed_s = state.clock.heard_at, event.at
    if state.phase is RunPhase.OVER and state.end.status == "interrupted" and not event.stored:
        _reopen(state)
    elif state.phase is RunPhase.OVER and (
        event.stored or len(state.result.of_jobs) < len(state.jobs)
    ):
        state.go(RunPhase.RELEASING)
        state.result.no_model.clear()
    if state.plan.question is not None:
        # The new daemon asks it again, with a view of this moment.
        state.plan.asked_s = state.now
    if event.lost is not None:
        _add_strays(state, event.strays)
        _charge_lost(state, *event.lost)
    for stored in event.stored:
        confirm(state, state.trials[stored.trial], stored)
    take_saved(state, event.saved)
    missing = {
        instance.id: event.ended.get(instance.id)
        for instance in state.fleet.instances.values()
        if instance.phase in THERE
        and instance.ready_at is not None
        and instance.id not in event.alive
    }
    state.agenda.missing = missing
    for trial in state.trials.values():
        # The order may never have reached an agent, so the attempt counts from now on. If it has,
        # a `TrialStarted` follows and says since when.
        for slots in trial.left if trial.start_command is not None and event.lost is None else ():
            key = trial.key_on(slots.node)
            if (
                slots.node not in trial.told
                and slots.node not in missing
                and key in state.ledger.open
            ):
                state.ledger.begin_at(key, event.at)


@_record.register
def _(event: EventsMissing, state: State) -> None:
    clock, instance = state.clock, state.fleet.instances.get(event.instance)
    early = state.fleet.early.get(event.instance, 0)
    seen = early if instance is None else instance.seen
    if event.acked > seen and clock.gap_s < clock.resumed_s:
        _charge_lost(state, clock.left_s, clock.resumed_s)
        state.result.notes.append(
            f"the journal lacks events that {event.instance} tells, from before the run was resumed"
        )


def _note_gap(state: State, event: TrialStarted | TrialExited) -> None:
    """Note that events are missing, if an agent tells of an attempt that was never begun: one from
    before the last resume, since from then on it can only be invented.
    """
    trial = state.trials.get(event.trial)
    unknown = trial is None or event.attempt > trial.attempt
    if unknown and state.ledger.least_s < event.happened < state.clock.resumed_s:
        _charge_lost(state, event.happened, event.at)
        state.result.notes.append(
            f"the journal lacks {event.trial}/{event.attempt}, of which {event.instance} tells"
        )


def _add_strays(state: State, strays: Mapping[str, tuple[float | None, float | None]]) -> None:
    """Add instances that have ended, and of which the journal has lost all, see `RunResumed`."""
    gpus, minimum_s = state.facts.cluster.gpus_per_instance, state.facts.cluster.minimum_s
    for name, (since_s, until_s) in strays.items():
        over = InstancePhase.TERMINATED
        state.fleet.instances[name] = Instance(name, gpus, over, ended_at=until_s)
        if since_s is not None:
            state.ledger.start(Charge(name, name, gpus, since_s, minimum_s=minimum_s))
            state.ledger.end(name, until_s or state.now, state.now)


def _charge_lost(state: State, since_s: float, until_s: float) -> None:
    """Charge what nobody knows any more for as much as there can have been: all GPUs that the run
    may have, but for those that are charged in any case, which are until then at least: others may
    have followed on the same GPUs. From now on no name is given that the lost events may have.
    """
    state.clock.gap_s = state.now
    until_s = state.ledger.least_s = min(until_s, state.now)
    facts, limits = state.facts.cluster, state.facts.problem.limits
    size = facts.gpus_per_instance
    there = None if facts.max_instances is None else facts.max_instances * size
    bounds = (bound for bound in (limits.max_gpus, there) if bound is not None)
    wanted = Counter(allocation.gpus for allocation in state.plan.wanted.values())
    gpus = min(bounds, default=instances_needed(wanted, facts) * size)
    for job in state.jobs.values():
        job.gpu_s += max(0, gpus - job.gpus) * max(0.0, until_s - since_s)
    rest_gpu_s = gpus * (until_s - since_s) - state.ledger.between_gpu_s(since_s, until_s)
    if rest_gpu_s > 0:
        what = f"{LOST} {since_s:.0f}"
        state.ledger.start(Charge(what, "", gpus, until_s - rest_gpu_s / gpus))
        state.ledger.end(what, until_s, state.now)


def _reopen(state: State) -> None:
    """Go on with an interrupted run: its trials wait where their checkpoints left them."""
    state.go(RunPhase.RUNNING)
    state.end.reopen()
    state.result.of_jobs.clear()
    state.result.no_model.clear()
    state.agenda.ask = "resumed"
    _may_launch(state)


def _may_launch(state: State) -> None:
    """Forget earlier refusals: an instance is gone or will be, so another may be had now."""
    fleet = state.fleet
    fleet.refusals = 0
    state.agenda.refit = state.agenda.refit or fleet.launch_at > state.now
    fleet.launch_at = -math.inf
    fleet.until_change = False


@_record.register
def _(event: Remarked, state: State) -> None:
    state.result.notes.append(event.text)


@_record.register
def _(event: StopAsked, state: State) -> None:
    state.end.hard = state.end.hard or event.hard
    if state.end.status is None:
        state.end.status = "interrupted"
    if event.hard:
        for trial in state.trials:
            state.touch(trial)


@_record.register(ExtendAsked)
@_record.register(AddAsked)
@_record.register(JobAdded)
@_record.register(JobStopAsked)
@_record.register(JobWeighed)
def _(event: AnyRequest, state: State) -> None:
    """Note the request; one that is told twice, since its answer was lost, was judged before."""
    if event.request not in state.requests.answered:
        state.requests.open[event.request] = event


@_record.register
def _(event: TimerFired, state: State) -> None:
    state.under_way.pop(event.command, None)
    if state.clock.timer is not None and state.clock.timer.id == event.command:
        state.clock.timer = None
    agenda, plan = state.agenda, state.plan
    agenda.woken = True
    if plan.last.ask_at_s is not None and state.now >= plan.last.ask_at_s:
        agenda.ask, agenda.about = "clock", None
    elif plan.failures and state.now >= plan.again_s:
        agenda.ask = agenda.ask or "again"
    if -math.inf < state.fleet.launch_at <= state.now:
        agenda.refit, agenda.because = True, "again"


@_record.register
def _(event: PolicyAnswered, state: State) -> None:
    if _answers(state, event.question):
        state.plan.answer = event.plan, event.memory


@_record.register
def _(event: PolicyFailed, state: State) -> None:
    if _answers(state, event.question):
        state.plan.answer = event.why


def _answers(state: State, question: str) -> bool:
    """Close the question and return True if it is the one that is open; else return False."""
    if state.plan.question != question:
        return False
    state.under_way.pop(question, None)
    state.plan.question = None
    return True


@_record.register
def _(event: InstanceReady, state: State) -> None:
    if state.under_way.pop(event.command, None) is None:
        return
    instance = state.fleet.instances.pop(event.command)
    requested_gpus, instance.id, instance.gpus = instance.gpus, event.instance, event.gpus
    state.fleet.go(instance, InstancePhase.READY)
    instance.ready_at = event.at
    instance.seen = state.fleet.early.pop(instance.id, 0)
    instance.boot = event.boot
    state.fleet.instances[event.instance] = instance
    state.agenda.came = True
    state.agenda.roomy[instance.id] = None
    cluster = state.facts.cluster
    if cluster.per_instance:
        state.ledger.void(event.command)
        state.ledger.start(
            Charge(
                instance.id,
                instance.id,
                requested_gpus,
                event.running_since,
                minimum_s=cluster.minimum_s,
            )
        )
    state.fleet.slow.pop(instance.id, None)
    if instance.id in state.fleet.shared:
        _share(state, instance, state.fleet.shared.pop(instance.id))
    if instance.id in state.fleet.noticed:
        leave(state, instance, state.fleet.noticed.pop(instance.id))


@_record.register
def _(event: LaunchRefused, state: State) -> None:
    if state.under_way.pop(event.command, None) is None:
        return
    instance = state.fleet.instances[event.command]
    state.fleet.go(instance, InstancePhase.REFUSED)
    if instance.id in state.ledger.open:
        _settle_unready(state, instance.id, event)
    instance.why = event.why
    instance.ended_at = event.at
    state.agenda.refused.append(
        Refusal(int(event.command.partition(".")[0]), event.retry, event.unknown)
    )
    state.agenda.replace = True
    state.result.notes.append(f"no instance: {event.why}")


@_record.register
def _(event: InstanceLost, state: State) -> None:
    instance = state.fleet.instances.get(event.instance)
    state.agenda.because = "replacement"
    if instance is not None and instance.phase in THERE:
        take_saved(state, event.saved)
        lose(state, instance, _ended(event), event.why)


def lose(state: State, instance: Instance, at: float, why: str) -> None:
    """Record that an instance is gone that nobody had given back.

    at   when it stopped costing, in seconds since the run began
    why  text for people
    """
    instance.why = why
    _end_instance(state, instance, at, f"{instance.id} was lost: {why}")
    state.agenda.replace = True
    state.result.notes.append(f"{instance.id} was lost: {why}")


def _end_instance(state: State, instance: Instance, at: float, why: str) -> None:
    """Record that an instance and all that ran there are gone.

    at  when it ended, in seconds since the run began

    Commands that were under way on it have no outcome any more.
    """
    state.fleet.go(instance, InstancePhase.TERMINATED)
    instance.ended_at = at
    instance.claims.clear()
    if instance.id in state.ledger.open:
        state.ledger.end(instance.id, at, state.now)
    for name in dict.fromkeys(instance.busy.values()):
        node_lost(state, state.trials[name], instance.id, why, at)
    state.under_way.pop(instance.terminate_command or "", None)
    _may_launch(state)


@_record.register
def _(event: InstanceNoticed, state: State) -> None:
    instance = state.fleet.instances[event.instance]
    if _is_hint(state, event):
        _note_hint(state, instance, event)
        return
    state.agenda.because = "replacement"
    if instance.phase is InstancePhase.READY:
        gone = f"the cloud will take {instance.id} away ({event.what})"
        state.result.notes.append(
            f"{instance.id} is not used any more: {event.why}"
            if event.what == "unhealthy"
            else gone
        )
        leave(state, instance, event.by)
    elif instance.phase is InstancePhase.LEAVING:
        instance.by = _sooner(instance.by, event.by)


def _sooner(one: float | None, other: float | None) -> float | None:
    """Return the sooner of two moments, of which either may not be known."""
    return min((by for by in (one, other) if by is not None), default=None)


def _is_hint(state: State, event: InstanceNoticed) -> bool:
    """Tell whether this changes nothing here: starts are cold, or an interruption is expected.
    Then trials have saved, which their agent sees to, and stay until it is announced.

    Recommendations come far more often than interruptions (github.com/kubernetes/kops/issues/14761,
    github.com/aws/karpenter-provider-aws/pull/4903), and each move costs an instance's boot.
    """
    expected = event.what == "rebalance" and not state.facts.cluster.hints_move
    return expected or event.what == "cold"


def _note_hint(state: State, instance: Instance, event: InstanceNoticed) -> None:
    if event.what == "cold":
        if event.why not in state.result.notes:  # other instances say the same
            state.result.notes.append(event.why)
    elif instance.phase is InstancePhase.READY:
        state.result.notes.append(
            f"the cloud may take {instance.id} away; its trials save and stay"
        )


@_record.register
def _(event: InstanceShared, state: State) -> None:
    _share(state, state.fleet.instances[event.instance], event)


def _share(state: State, instance: Instance, event: InstanceShared) -> None:
    """Record how many GPUs of an instance may be used; trials are placed anew if it is another
    number than before.
    """
    before, is_first = instance.usable, instance.share is None
    instance.share = event.gpus
    if instance.usable != before:
        state.agenda.replace = state.agenda.refit = True
    if is_first:  # later ones come and go with others' trials
        state.result.notes.append(
            f"{instance.id} is not this run's alone: it may use {instance.usable} of "
            f"{instance.gpus} GPUs there, since {event.why}"
        )


def leave(state: State, instance: Instance, by: float | None) -> None:
    """Stop using an instance that will be taken away.

    Nothing new is placed there, what runs there moves, and another instance is wanted in its place.
    `by` is when it is taken away, in seconds since the run began; None if unknown.
    """
    state.fleet.go(instance, InstancePhase.LEAVING)
    instance.by = by
    instance.claims.clear()
    state.agenda.idle[instance.id] = None
    state.agenda.replace = state.agenda.refit = True
    _may_launch(state)


@_record.register
def _(event: InstanceComputed, state: State) -> None:
    state.fleet.instances[event.instance].computed = event.shares


@_record.register
def _(event: InstanceTerminated, state: State) -> None:
    state.under_way.pop(event.command, None)
    instance = state.fleet.instances.get(event.instance)
    if instance is None or instance.phase is InstancePhase.TERMINATED:
        return
    if instance.ready_at is None and instance.id in state.ledger.open:
        _settle_unready(state, instance.id, event)
    _end_instance(state, instance, _ended(event), f"{instance.id} was given back")
    state.agenda.refit = state.agenda.refit or not state.facts.cluster.per_instance


def _settle_unready(state: State, instance: str, event: LaunchRefused | InstanceTerminated) -> None:
    """Charge an instance that ended before it was ready for the time that it ran, if any."""
    if event.running_since is None:
        state.ledger.void(instance)
    else:
        state.ledger.begin_at(instance, event.running_since)
        state.ledger.end(instance, _ended(event), state.now)


def _ended(event: LaunchRefused | InstanceTerminated | InstanceLost) -> float:
    """Return when the instance ended, in seconds since the run began.

    That is the cloud's account if there is one, but never later than the event.
    """
    return event.at if event.ended is None else min(event.ended, event.at)


@_record.register
def _(event: OrderRefused, state: State) -> None:
    """Let a trial's attempt end on the instance whose agent could not start it.

    Agents can refuse only orders to start; whatever else is under way is none of their business.
    """
    command = state.under_way.get(event.command)
    if not isinstance(command, StartTrial):
        return
    trial = current(state, command.trial, command.attempt, event.instance)
    if trial is not None:
        node_refused(state, trial, event.instance, event.why, event.happened)


@_record.register
def _(event: TrialStarted, state: State) -> None:
    trial = current(state, event.trial, event.attempt, event.instance)
    if trial is not None:
        node_started(state, trial, event.instance, event.pid, event.happened)


@_record.register
def _(event: TrialTraining, state: State) -> None:
    trial = reporting(state, event)
    if trial is None:
        return
    trial.training = trial.trained = True
    rewind(trial, event.reports)


@_record.register
def _(event: TrialReported, state: State) -> None:
    trial = reporting(state, event)
    if trial is None:
        return
    rewind(trial, event.reports - 1)
    metric = keep(state, trial, event)
    trial.history.append(Report(event.happened, event.reports, metric))
    signs, state.agenda.reported = state.signs, trial.id
    if trial.ordered_s is not None:
        signs.first_s = min(signs.first_s, event.happened - trial.ordered_s)
        trial.ordered_s = None
    signs.reported, signs.named = True, signs.named or event.named
    for what in GOES_ON:
        if (complaint := signs.complaints.get(what)) and complaint.trial == trial.id:
            del signs.complaints[what]
    signs.finite = signs.finite or event.metric is not None
    job = state.jobs[job_of(trial.id)]
    job.finite = job.finite or event.metric is not None
    if not job.finite:
        state.agenda.doubt = state.agenda.stirred = True
    if job.extra == trial.id:  # it trains beside the others: nothing is in the way any more
        job.block, job.extra, state.agenda.stirred = None, None, True
    trial.blocked_s.clear()
    if state.facts.goal_of(trial.id).target is not None:
        state.agenda.stirred |= not state.facts.problem_of(job_of(trial.id)).saves
    took(state, event.unit_s)
    if trial.until is not None and event.reports >= trial.until:
        trial.reached, trial.until = trial.until, None
        state.plan.reached[trial.id] = None
        state.agenda.ask, state.agenda.about = "reports", trial.id
        state.agenda.stirred = True


@_record.register
def _(event: TrialCheckpointed, state: State) -> None:
    trial = reporting(state, event)
    if trial is None:
        return
    saved = Checkpoint(
        trial=event.trial,
        attempt=event.attempt,
        name=event.name,
        reports=event.reports,
        metric=event.metric,
        sha256=event.sha256,
        size=event.size,
    )
    confirm(state, trial, saved)
    state.signs.free = event.free
    state.signs.save_s = max(state.signs.save_s, event.save_s)
    took(state, event.save_s)


@_record.register
def _(event: TrialComplained, state: State) -> None:
    """Keep the first complaint of each kind: the others say the same of other trials."""
    if event.what == "quiet":
        state.agenda.quiet = event.trial
        return
    if event.what == "waits":
        trial = current(state, event.trial, event.attempt, event.instance)
        if trial is not None:
            node_waits(state, trial, event)
        return
    if event.trial in state.trials and event.what not in state.signs.complaints:
        complaint = Complaint(event.what, event.trial, event.why)
        state.signs.complaints[event.what] = complaint
        state.result.notes.append(complaint)


@_record.register
def _(event: TrialExited, state: State) -> None:
    trial = current(state, event.trial, event.attempt, event.instance)
    if trial is not None:
        node_exited(state, trial, event)


@_record.register
def _(event: TrialStalled, state: State) -> None:
    trial = current(state, event.trial, event.attempt, event.instance)
    if trial is not None:
        node_stalled(state, trial, event)


@_record.register
def _(event: TrialWaited, state: State) -> None:
    trial = current(state, event.trial, event.attempt, event.instance)
    if trial is not None:
        node_waited(state, trial, event)


@_record.register
def _(event: ModelPublished, state: State) -> None:
    command = state.under_way.pop(event.command, None)
    result = state.result
    if isinstance(command, Publish) and result.publishing is not None:
        result.of_jobs[job_of(command.trial)] = Published(result.publishing, event.path)
        result.publishing = None


@_record.register
def _(event: PublishFailed, state: State) -> None:
    command = state.under_way.pop(event.command, None)
    if isinstance(command, Publish):
        state.result.publishing = None
        if not event.damaged:
            state.result.no_model.add(job_of(command.trial))
            state.result.notes.append(
                f"the best model, {command.checkpoint} of {command.trial}, is in the store: "
                f"{event.why}"
            )
            return
        state.result.unreadable.add(f"{command.trial}/{command.checkpoint}")
        state.result.notes.append(
            f"the checkpoint {command.checkpoint} of {command.trial} cannot be used: {event.why}"
        )
