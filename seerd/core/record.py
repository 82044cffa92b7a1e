"""How each event changes the state. Only what the event says is recorded, and what must be looked
at next. No rule is read, so every version of seerd reads an event alike.
"""

from __future__ import annotations

import math
from functools import singledispatch

from seerd.core import events, instances, progress, store_outage
from seerd.core.attempts import current, node_ended, node_exited, node_started, node_waits
from seerd.core.commands import Publish, StartTrial
from seerd.core.events import AnyRequest
from seerd.core.gaps import add_lost, events_missing, note_unknown_attempt
from seerd.core.lifecycle import InstancePhase, RunPhase
from seerd.core.state import PRESENT, AttemptEnd, Complaint, Published, State
from seerd.planner.trial_ids import job_of


def record(state: State, event: events.AnyEvent) -> None:
    """Apply an event to the state. A repeated fact changes nothing; one of an instance that is not
    known yet is kept; a late report of a lost instance only completes the trial's history.
    """
    if isinstance(event, events.AgentFact):
        if isinstance(event, events.TrialStarted | events.TrialExited):
            note_unknown_attempt(state, event)
        instance = state.fleet.instances.get(event.instance)
        if instance is None:
            instances.keep_early(state, event)
            return
        if event.fact <= instance.seen:
            return
        instance.seen = event.fact
        if instance.phase is InstancePhase.TERMINATED:
            if isinstance(event, events.TrialReported):
                progress.fill(state, event)
            return
    _record(event, state)


@singledispatch
def _record(event: events.Event, state: State) -> None:
    match event:
        case events.RunStarted():
            state.agenda.ask = "began"
        case events.Remarked():
            state.result.notes.append(event.text)
        case events.InstanceComputed():
            instances.computed(event, state)
        case events.PolicyAnswered():
            if _answers(state, event.question):
                state.plan.answer = event.plan, event.memory
        case events.PolicyFailed():
            if _answers(state, event.question):
                state.plan.answer = event.why
        case _:
            raise TypeError(f"{type(event).__name__} is not handled")


for _handler in (
    events_missing,
    instances.awaited,
    instances.priced,
    instances.ready,
    instances.refused,
    instances.lost,
    instances.terminated,
    instances.kept,
    instances.noticed,
    instances.shared,
    progress.training,
    progress.reported,
    progress.checkpointed,
    progress.fetched,
):
    _record.register(_handler)


@_record.register
def _(event: events.RunResumed, state: State) -> None:
    state.agenda.resumed, state.agenda.because = True, "resumed"
    state.clock.left_s, state.clock.resumed_s = state.clock.previous_s, event.at
    if state.phase is RunPhase.OVER and state.end.status == "interrupted" and not event.stored:
        state.go(RunPhase.RUNNING)
        end = state.end
        end.status, end.hard, end.why, end.close_by, end.detail = None, False, None, None, ""
        state.result.of_jobs.clear()
        state.result.no_model.clear()
        state.agenda.ask = "resumed"
        instances.may_launch(state)
    elif state.phase is RunPhase.OVER and (
        event.stored or len(state.result.of_jobs) < len(state.jobs)
    ):
        state.go(RunPhase.RELEASING)
        state.result.no_model.clear()
    state.signs.outage = None  # it may be over by now
    if state.plan.question is not None:
        # The new daemon asks it again, with a view of this moment.
        state.plan.asked_s = state.now
    if event.lost is not None:
        add_lost(state, event.lost, event.strays)
    for stored in event.stored:
        progress.confirm(state, state.trials[stored.trial], stored)
    progress.take_saved(state, event.saved)
    present = [i for i in state.fleet.instances.values() if i.phase in PRESENT]
    ready = (i for i in present if i.ready_at is not None)
    missing = {i.id: event.ended.get(i.id) for i in ready if i.id not in event.alive}
    state.agenda.missing = missing
    for trial in state.trials.values():
        # The order may never have reached an agent, so the attempt counts from now on. If it has,
        # a `TrialStarted` follows and says since when.
        for slots in trial.left if trial.start_command is not None and event.lost is None else ():
            key, node = trial.key_on(slots.node), slots.node
            if node not in trial.told and node not in missing and key in state.ledger.open:
                state.ledger.begin_at(key, event.at)


@_record.register
def _(event: events.StopAsked, state: State) -> None:
    state.end.hard = state.end.hard or event.hard
    state.end.status = state.end.status or "interrupted"
    for trial in state.trials if event.hard else ():
        state.touch(trial)


@_record.register
def _(event: AnyRequest, state: State) -> None:
    """Note the request, unless it was judged before and its answer was lost."""
    if event.request not in state.requests.answered:
        state.requests.open[event.request] = event


@_record.register
def _(event: events.TimerFired, state: State) -> None:
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
    if state.fleet.follows(state.now, state.facts.cluster.scout_s):
        agenda.refit = True


def _answers(state: State, question: str) -> bool:
    """Close the question and return True if it is the open one; else return False."""
    if state.plan.question != question:
        return False
    state.under_way.pop(question, None)
    state.plan.question = None
    return True


@_record.register
def _(event: events.OrderRefused, state: State) -> None:
    """End a trial's attempt on the instance whose agent could not start it."""
    command = state.under_way.get(event.command)
    if not isinstance(command, StartTrial):
        return
    trial = current(state, command.trial, command.attempt, event.instance)
    if trial is not None:
        end = AttemptEnd("refused", True, event.why)
        node_ended(state, trial, event.instance, end, event.happened)


@_record.register
def _(event: events.TrialComplained, state: State) -> None:
    """Keep the first complaint of each kind: the others say the same of other trials."""
    if event.what == "quiet":
        state.agenda.quiet = event.trial
        return
    if event.what in store_outage.COMPLAINTS:
        store_outage.unstored(state, event)
        return
    if event.what == "waits":
        trial = current(state, event.trial, event.attempt, event.instance)
        if trial is not None:
            node_waits(state, trial, event)
        return
    if event.trial in state.trials and event.what in ("promised", "not-stored"):
        state.jobs[job_of(event.trial)].promised = True
    if event.trial in state.trials and event.what == "untracked":
        state.jobs[job_of(event.trial)].empty = True
    if event.what == "promised":
        return
    if event.trial in state.trials and event.what not in state.signs.complaints:
        complaint = Complaint(event.what, event.trial, event.why)
        state.signs.complaints[event.what] = complaint
        state.result.notes.append(complaint)


@_record.register
def _(
    event: events.TrialStarted | events.TrialExited | events.TrialStalled | events.TrialWaited,
    state: State,
) -> None:
    trial = current(state, event.trial, event.attempt, event.instance)
    if trial is None:
        return
    match event:
        case events.TrialStarted():
            node_started(state, trial, event)
        case events.TrialExited():
            node_exited(state, trial, event)
        case events.TrialStalled(over=True):
            trial.stalls.pop(event.instance, None)
        case events.TrialStalled():
            trial.stalls[event.instance] = event
            state.touch(trial.id)
        case events.TrialWaited():
            trial.waits[event.instance] = dict(zip(event.ranks, event.shares, strict=False))
            state.agenda.waited.append(trial.id)


@_record.register
def _(event: events.ModelPublished, state: State) -> None:
    command = state.under_way.pop(event.command, None)
    result = state.result
    if isinstance(command, Publish) and result.publishing is not None:
        result.of_jobs[job_of(command.trial)] = Published(result.publishing, event.path)
        result.publishing = None


@_record.register
def _(event: events.PublishFailed, state: State) -> None:
    command = state.under_way.pop(event.command, None)
    if isinstance(command, Publish):
        state.result.publishing = None
        if not event.damaged:
            state.result.no_model.add(job_of(command.trial))
            state.result.note("not-fetched", command.checkpoint, command.trial, event.why)
            return
        state.result.unreadable.add(f"{command.trial}/{command.checkpoint}")
        state.result.note("unusable", command.checkpoint, command.trial, event.why)
