"""How each event changes the state: one small function per event, found by its type.

The one rule: only what the event says is written down here, and which trials must be looked at again. What should follow is decided
afterwards, in `decide` and `reconcile`.
"""

from __future__ import annotations

import math
from functools import singledispatch

from seerd.core.attempts import current, node_exited, node_lost, node_refused, node_started
from seerd.core.commands import Launch, Publish, StartTrial
from seerd.core.events import (
    AgentFact,
    AnyEvent,
    Event,
    InstanceLost,
    InstanceNoticed,
    InstanceReady,
    InstanceTerminated,
    LaunchRefused,
    ModelPublished,
    OrderRefused,
    PublishFailed,
    Remarked,
    RunResumed,
    RunStarted,
    StopAsked,
    TimerFired,
    TrialCheckpointed,
    TrialExited,
    TrialReported,
    TrialStalled,
    TrialStarted,
    TrialTraining,
    TrialWaited,
)
from seerd.core.launching import come, gone, refuse
from seerd.core.ledger import Charge
from seerd.core.lifecycle import InstancePhase, RunPhase
from seerd.core.limits import gone_by
from seerd.core.progress import confirm, fill, reconsider_result, reporting, rewind, take_saved, took
from seerd.core.state import THERE, Checkpoint, Instance, Published, Report, State
from seerd.core.triage import node_stalled, node_waited


def apply(state: State, event: AnyEvent) -> None:
    """Write the event down. A fact of an agent that was seen before changes nothing, and one of an instance that is gone only the record."""
    if isinstance(event, AgentFact):
        instance = state.instances.get(event.instance)
        if instance is None:
            if isinstance(event, InstanceNoticed):
                state.noticed[event.instance] = event.by
            return
        if event.fact <= instance.seen:
            return
        instance.seen = event.fact
        if instance.phase is InstancePhase.TERMINATED:
            if isinstance(event, TrialReported):
                fill(state, event)
            return
    _apply(event, state)


@singledispatch
def _apply(event: Event, state: State) -> None:
    raise TypeError(f"{type(event).__name__} is not handled")


@_apply.register
def _(event: RunStarted, state: State) -> None:
    state.replan = True


@_apply.register
def _(event: RunResumed, state: State) -> None:
    if state.phase is RunPhase.OVER and state.ending == "interrupted":
        _reopen(state)
    elif state.phase is RunPhase.OVER and state.published is None:
        state.go(RunPhase.RELEASING)
        state.finished = state.no_model = False
    take_saved(state, event.saved)
    ended = min(event.at, gone_by(state))
    for instance in list(state.instances.values()):
        if instance.phase in THERE and instance.ready_at is not None and instance.id not in event.alive:
            _lose(state, instance, event.ended.get(instance.id, ended), "it was gone when the run was resumed")
    for instance in state.instances.values():
        if instance.phase is InstancePhase.REQUESTED and instance.id in state.ledger.open:
            _redate(state, instance.id, event.at, ended)
    for trial in state.trials.values():
        # The order may never have reached an agent; if it has, its `TrialStarted` follows and says since when.
        for slots in trial.left if trial.start_command is not None else ():
            if slots.node not in trial.told and trial.key_on(slots.node) in state.ledger.open:
                state.ledger.begin_at(trial.key_on(slots.node), event.at)


def _redate(state: State, launch: str, at: float, ended: float) -> None:
    """What this launch has brought may be there yet, for as long as it goes on without an agent; if it is not, what it brings now begins now."""
    command, since = state.under_way.get(launch), state.ledger.open[launch].since_s
    alone_s = command.alone_s if isinstance(command, Launch) and command.alone_s is not None else 0.0
    gone = min(at, max(ended, since + alone_s))
    state.ledger.begin_at(launch, since + at - gone)


def _reopen(state: State) -> None:
    """An interrupted run goes on: its trials wait where their checkpoints left them."""
    state.go(RunPhase.RUNNING)
    state.ending = None
    state.hard = False
    state.finished = False
    state.published = None
    state.no_model = False
    state.close_by = None
    state.replan = True
    gone(state)


@_apply.register
def _(event: Remarked, state: State) -> None:
    state.notes.append(event.text)


@_apply.register
def _(event: StopAsked, state: State) -> None:
    state.hard = state.hard or event.hard
    if state.ending is None:
        state.ending = "interrupted"
    if event.hard:
        for trial in state.trials:
            state.touch(trial)


@_apply.register
def _(event: TimerFired, state: State) -> None:
    state.under_way.pop(event.command, None)
    if state.timer is not None and state.timer.id == event.command:
        state.timer = None
    state.woken = True
    ask_at = state.plan.ask_at_s
    state.replan = state.replan or (ask_at is not None and state.now >= ask_at)
    state.refit = state.refit or -math.inf < state.launch_at <= state.now


@_apply.register
def _(event: InstanceReady, state: State) -> None:
    if state.under_way.pop(event.command, None) is None:
        return
    instance = state.instances.pop(event.command)
    requested_gpus, instance.id, instance.gpus = instance.gpus, event.instance, event.gpus
    state.go_instance(instance, InstancePhase.READY)
    instance.ready_at = event.at
    instance.boot = event.boot
    state.instances[event.instance] = instance
    come(state, event.at)
    state.roomy[instance.id] = None
    cluster = state.facts.cluster
    if cluster.billing == "rented":
        state.ledger.void(event.command)
        state.ledger.start(
            Charge(instance.id, instance.id, requested_gpus, event.running_since, minimum_s=cluster.minimum_s)
        )
    if instance.id in state.noticed:
        _leave(state, instance, state.noticed.pop(instance.id))


@_apply.register
def _(event: LaunchRefused, state: State) -> None:
    if state.under_way.pop(event.command, None) is None:
        return
    instance = state.instances[event.command]
    state.go_instance(instance, InstancePhase.REFUSED)
    if instance.id in state.ledger.open:
        _settle_unready(state, instance.id, event)
    instance.why = event.why
    instance.ended_at = event.at
    refuse(state, event)
    state.replace = True
    state.notes.append(f"no instance: {event.why}")


@_apply.register
def _(event: InstanceLost, state: State) -> None:
    instance = state.instances.get(event.instance)
    if instance is not None and instance.phase in THERE:
        take_saved(state, event.saved)
        _lose(state, instance, _ended(event), event.why)


def _lose(state: State, instance: Instance, at: float, why: str) -> None:
    instance.why = why
    _end_instance(state, instance, at, f"{instance.id} was lost: {why}")
    state.replace = True
    state.notes.append(f"{instance.id} was lost: {why}")


def _end_instance(state: State, instance: Instance, at: float, why: str) -> None:
    """The instance and all that ran there are gone; what was asked of it has no outcome any more."""
    state.go_instance(instance, InstancePhase.TERMINATED)
    instance.ended_at = at
    instance.claims.clear()
    if instance.id in state.ledger.open:
        state.ledger.end(instance.id, at)
    for name in dict.fromkeys(instance.busy.values()):
        node_lost(state, state.trials[name], instance.id, why, at)
    state.under_way.pop(instance.terminate_command or "", None)
    gone(state)


@_apply.register
def _(event: InstanceNoticed, state: State) -> None:
    instance = state.instances[event.instance]
    if instance.phase is InstancePhase.READY:
        gone = f"the cloud will take {instance.id} away ({event.what})"
        state.notes.append(f"{instance.id} is not used any more: {event.why}" if event.what == "unhealthy" else gone)
        _leave(state, instance, event.by)
    elif instance.phase is InstancePhase.LEAVING and event.by is not None:
        instance.by = event.by if instance.by is None else min(instance.by, event.by)


def _leave(state: State, instance: Instance, by: float | None) -> None:
    """Nothing new is placed there, what runs there moves, and another one is wanted in its place."""
    state.go_instance(instance, InstancePhase.LEAVING)
    instance.by = by
    instance.claims.clear()
    state.idle[instance.id] = None
    state.replace = state.refit = True
    gone(state)


@_apply.register
def _(event: InstanceTerminated, state: State) -> None:
    state.under_way.pop(event.command, None)
    instance = state.instances.get(event.instance)
    if instance is None or instance.phase is InstancePhase.TERMINATED:
        return
    if instance.ready_at is None and instance.id in state.ledger.open:
        _settle_unready(state, instance.id, event)
    _end_instance(state, instance, _ended(event), f"{instance.id} was given back")
    state.refit = state.refit or state.facts.cluster.billing == "held"


def _settle_unready(state: State, instance: str, event: LaunchRefused | InstanceTerminated) -> None:
    """An instance that is gone before it was ready costs from when it ran, if it ever did."""
    if event.running_since is None:
        state.ledger.void(instance)
    else:
        state.ledger.begin_at(instance, event.running_since)
        state.ledger.end(instance, _ended(event))


def _ended(event: LaunchRefused | InstanceTerminated | InstanceLost) -> float:
    """When the instance ended: by its cloud's account, if it has one, never in the future."""
    return event.at if event.ended is None else min(event.ended, event.at)


@_apply.register
def _(event: OrderRefused, state: State) -> None:
    """Only an order to start can be refused, by an instance that got it; what else is under way is none of an agent's business."""
    command = state.under_way.get(event.command)
    if not isinstance(command, StartTrial):
        return
    trial = current(state, command.trial, command.attempt, event.instance)
    if trial is not None:
        node_refused(state, trial, event.instance, event.why, event.happened)


@_apply.register
def _(event: TrialStarted, state: State) -> None:
    trial = current(state, event.trial, event.attempt, event.instance)
    if trial is not None:
        node_started(state, trial, event.instance, event.pid, event.happened)


@_apply.register
def _(event: TrialTraining, state: State) -> None:
    trial = reporting(state, event)
    if trial is None:
        return
    trial.training = True
    rewind(trial, event.epoch)


@_apply.register
def _(event: TrialReported, state: State) -> None:
    trial = reporting(state, event)
    if trial is None:
        return
    rewind(trial, event.epoch - 1)
    trial.history.append(Report(event.happened, event.epoch, event.metric))
    took(state, event.unit_s)
    if trial.until is not None and event.epoch >= trial.until:
        trial.until = None
        state.replan = state.stirred = True


@_apply.register
def _(event: TrialCheckpointed, state: State) -> None:
    trial = reporting(state, event)
    if trial is None:
        return
    confirm(state, trial, Checkpoint(event.name, event.epoch, event.metric, event.sha256, event.size))
    took(state, event.save_s)


@_apply.register
def _(event: TrialExited, state: State) -> None:
    trial = current(state, event.trial, event.attempt, event.instance)
    if trial is not None:
        node_exited(state, trial, event)


@_apply.register
def _(event: TrialStalled, state: State) -> None:
    trial = current(state, event.trial, event.attempt, event.instance)
    if trial is not None:
        node_stalled(state, trial, event)


@_apply.register
def _(event: TrialWaited, state: State) -> None:
    trial = current(state, event.trial, event.attempt, event.instance)
    if trial is not None:
        node_waited(state, trial, event)


@_apply.register
def _(event: ModelPublished, state: State) -> None:
    command = state.under_way.pop(event.command, None)
    if isinstance(command, Publish) and state.publishing is not None:
        state.published = Published(state.publishing, event.path)
        state.publishing = None
        reconsider_result(state)


@_apply.register
def _(event: PublishFailed, state: State) -> None:
    command = state.under_way.pop(event.command, None)
    if isinstance(command, Publish):
        state.publishing = None
        if not event.damaged:
            state.no_model = True
            state.notes.append(f"the best model, {command.checkpoint} of {command.trial}, is in the store: {event.why}")
            return
        state.unreadable.add(f"{command.trial}/{command.checkpoint}")
        state.notes.append(f"the checkpoint {command.checkpoint} of {command.trial} cannot be used: {event.why}")
