"""How each event changes the state: one small function per event, found by its type.

The one rule: only what the event says is written down here, and which trials must be looked at again. What should follow is decided
afterwards, in `decide` and `reconcile`.
"""

from __future__ import annotations

from functools import singledispatch

from seerd.core.commands import Publish, StartTrial
from seerd.core.events import (
    AgentFact,
    AnyEvent,
    Event,
    InstanceLost,
    InstanceReady,
    InstanceTerminated,
    LaunchRefused,
    ModelPublished,
    OrderRefused,
    PublishFailed,
    RunResumed,
    RunStarted,
    StopAsked,
    TimerFired,
    TrialCheckpointed,
    TrialExited,
    TrialReported,
    TrialStarted,
    TrialTraining,
)
from seerd.core.ledger import Charge
from seerd.core.lifecycle import InstancePhase, RunPhase, TrialPhase
from seerd.core.limits import gone_by
from seerd.core.state import KEPT_CHECKPOINTS, Checkpoint, Instance, Published, Report, State, Trial

MAX_CRASHES = 2
"""A trial that ends by its own fault is restarted this often, then it has failed."""
MAX_REFUSALS = 3
"""So many launches in a row may be refused before a run that has no instance gives up."""
MAX_LOSSES = 10
"""The same for ends that were the machine's fault: generous, but a trial that takes its machine down must not do so for ever."""


def apply(state: State, event: AnyEvent) -> None:
    """Write the event down. A fact of an agent that was seen before, or of an instance that is gone, changes nothing."""
    if isinstance(event, AgentFact):
        instance = state.instances.get(event.instance)
        if instance is None or event.fact <= instance.seen or instance.phase is InstancePhase.TERMINATED:
            return
        instance.seen = event.fact
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
    ended = min(event.at, gone_by(state))
    for instance in list(state.instances.values()):
        if instance.phase in (InstancePhase.READY, InstancePhase.RELEASING) and instance.id not in event.alive:
            _lose(state, instance, event.ended.get(instance.id, ended), "it was gone when the run was resumed")
    for instance in state.instances.values():
        if instance.phase is InstancePhase.REQUESTED and instance.id in state.ledger.open:
            # What that launch had brought was gone by then too; what it brings now begins now.
            state.ledger.begin_at(instance.id, state.ledger.open[instance.id].since_s + event.at - ended)
    for trial in state.trials.values():
        # The order may never have reached the agent; if it has, its `TrialStarted` follows and says since when.
        if trial.start_command is not None and trial.key in state.ledger.open:
            state.ledger.begin_at(trial.key, event.at)


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
    state.refusals = 0
    state.roomy[instance.id] = None
    cluster = state.facts.cluster
    if cluster.billing == "rented":
        state.ledger.void(event.command)
        state.ledger.start(
            Charge(instance.id, instance.id, requested_gpus, event.running_since, minimum_s=cluster.minimum_s)
        )


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
    state.refusals += 1 if event.retry else MAX_REFUSALS
    state.replace = True
    state.notes.append(f"no instance: {event.why}")


@_apply.register
def _(event: InstanceLost, state: State) -> None:
    instance = state.instances.get(event.instance)
    if instance is not None and instance.phase in (InstancePhase.READY, InstancePhase.RELEASING):
        _lose(state, instance, event.at, event.why)


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
        trial = state.trials[name]
        _release(state, trial, at)
        _end_by_loss(state, trial, why)
    state.under_way.pop(instance.terminate_command or "", None)


@_apply.register
def _(event: InstanceTerminated, state: State) -> None:
    state.under_way.pop(event.command, None)
    instance = state.instances.get(event.instance)
    if instance is None or instance.phase is InstancePhase.TERMINATED:
        return
    if instance.ready_at is None and instance.id in state.ledger.open:
        _settle_unready(state, instance.id, event)
    _end_instance(state, instance, event.at, f"{instance.id} was given back")


def _settle_unready(state: State, instance: str, event: LaunchRefused | InstanceTerminated) -> None:
    """An instance that is gone before it was ready costs from when it ran, if it ever did."""
    if event.running_since is None:
        state.ledger.void(instance)
    else:
        state.ledger.begin_at(instance, event.running_since)
        state.ledger.end(instance, event.at if event.ended is None else event.ended)


@_apply.register
def _(event: OrderRefused, state: State) -> None:
    command = state.under_way.pop(event.command, None)
    if not isinstance(command, StartTrial):
        return
    trial = state.trials[command.trial]
    if trial.held is not None and trial.attempt == command.attempt:
        _release(state, trial, event.happened)
        _end_by_crash(state, trial, event.why)


@_apply.register
def _(event: TrialStarted, state: State) -> None:
    trial = _current(state, event.trial, event.attempt)
    if trial is None:
        return
    _settle_start(state, trial)
    trial.pid = event.pid
    if trial.key in state.ledger.open:
        state.ledger.begin_at(trial.key, event.happened)
    if trial.phase is TrialPhase.STARTING:
        trial.go(TrialPhase.RUNNING)


@_apply.register
def _(event: TrialTraining, state: State) -> None:
    trial = _current(state, event.trial, event.attempt)
    if trial is None:
        return
    trial.training = True
    _rewind(trial, event.epoch)


def _rewind(trial: Trial, epoch: int) -> None:
    """Training goes on from `epoch` reports: later ones, made by an attempt that was lost, are taken back."""
    while trial.history and trial.history[-1].epoch > epoch:
        trial.history.pop()


@_apply.register
def _(event: TrialReported, state: State) -> None:
    trial = _current(state, event.trial, event.attempt)
    if trial is None:
        return
    _rewind(trial, event.epoch - 1)
    trial.history.append(Report(event.happened, event.epoch, event.metric))
    _took(state, event.unit_s)
    if trial.until is not None and event.epoch >= trial.until:
        trial.until = None
        state.replan = state.stirred = True


@_apply.register
def _(event: TrialCheckpointed, state: State) -> None:
    trial = _current(state, event.trial, event.attempt)
    if trial is None or any(known.name == event.name for known in trial.checkpoints):
        return
    new = Checkpoint(event.name, event.epoch, event.metric, event.sha256, event.size)
    trial.checkpoints = (new, *trial.checkpoints)[:KEPT_CHECKPOINTS]
    state.stirred = state.no_model
    state.no_model = False
    _took(state, event.save_s)


def _took(state: State, seconds: float) -> None:
    """A unit of work or a save: the slowest one decides how early trials are asked to stop."""
    if seconds > state.slowest_s:
        state.slowest_s = seconds
        state.stirred = True


@_apply.register
def _(event: TrialExited, state: State) -> None:
    trial = _current(state, event.trial, event.attempt)
    if trial is None:
        return
    asked = trial.phase is TrialPhase.STOPPING
    _release(state, trial, event.happened)
    trial.tail = event.tail
    if event.cause == "finished":
        _end_by_itself(state, trial)
    elif trial.out:
        trial.go(TrialPhase.ELIMINATED)
    elif event.cause == "lost":
        _end_by_loss(state, trial, "its agent had to be started again")
    elif event.cause == "crashed" and not asked:
        _end_by_crash(state, trial, _crash_text(event))
    else:
        trial.go(TrialPhase.WAITING)
    state.touch(trial.id)


def _crash_text(event: TrialExited) -> str:
    rank = "" if event.rank is None else f" (rank {event.rank})"
    if event.code is not None and event.code < 0:
        return f"ended by signal {-event.code}{rank}"
    return f"ended with exit status {event.code}{rank}"


@_apply.register
def _(event: ModelPublished, state: State) -> None:
    command = state.under_way.pop(event.command, None)
    if isinstance(command, Publish) and state.publishing is not None:
        state.published = Published(state.publishing, event.path)
        state.publishing = None


@_apply.register
def _(event: PublishFailed, state: State) -> None:
    command = state.under_way.pop(event.command, None)
    if isinstance(command, Publish):
        state.publishing = None
        state.unreadable.add(f"{command.trial}/{command.checkpoint}")
        state.notes.append(f"the checkpoint {command.checkpoint} of {command.trial} cannot be used: {event.why}")


def _current(state: State, name: str, attempt: int) -> Trial | None:
    """The trial, if this is its present attempt and it holds GPUs; facts of earlier attempts come too late."""
    trial = state.trials.get(name)
    if trial is None or trial.held is None or trial.attempt != attempt:
        return None
    return trial


def _settle_start(state: State, trial: Trial) -> None:
    """Whether the present attempt was started is known."""
    if trial.start_command is not None:
        state.under_way.pop(trial.start_command, None)
        trial.start_command = None


def _release(state: State, trial: Trial, at: float) -> None:
    """The attempt's GPUs are free; whoever is to get them is looked at."""
    _settle_start(state, trial)
    if trial.stop_command is not None:
        state.under_way.pop(trial.stop_command, None)
        trial.stop_command = None
    for slots in trial.held or ():
        instance = state.instances[slots.node]
        for gpu in slots.gpus:
            del instance.busy[gpu]
            claimant = instance.claims.get(gpu)
            if claimant is not None:
                state.touch(claimant)
        if not instance.busy:
            state.idle[instance.id] = None
            state.refit = True
    if trial.key in state.ledger.open:
        state.ledger.end(trial.key, at)
    trial.held = None
    state.holding -= 1
    trial.pid = None
    trial.training = False
    state.touch(trial.id)


def _end_by_itself(state: State, trial: Trial) -> None:
    if trial.history:
        trial.go(TrialPhase.FINISHED)
    else:
        trial.why = f"ended without a report of {state.facts.metric!r}: call trial.report({state.facts.metric}=...)"
        trial.go(TrialPhase.FAILED)
    state.ended.append(trial.id)


def _end_by_loss(state: State, trial: Trial, why: str) -> None:
    trial.losses += 1
    trial.why = why
    _end(state, trial, trial.losses > MAX_LOSSES)


def _end_by_crash(state: State, trial: Trial, why: str) -> None:
    trial.crashes += 1
    trial.why = why
    _end(state, trial, trial.crashes > MAX_CRASHES)


def _end(state: State, trial: Trial, for_good: bool) -> None:
    if trial.out:
        trial.go(TrialPhase.ELIMINATED)
    elif for_good:
        trial.go(TrialPhase.FAILED)
        state.ended.append(trial.id)
    else:
        trial.go(TrialPhase.WAITING)
