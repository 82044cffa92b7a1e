"""What an event says, as beats: who came, went and ended.

The one rule: told from the event and the state after it; of the state before, only what the event
is about is looked at, so that telling costs the same with one trial as with ten thousand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seerd.core.enact import AnyDecision
from seerd.core.events import (
    AnyEvent,
    InstanceLost,
    InstanceNoticed,
    InstanceReady,
    InstanceTerminated,
    LaunchRefused,
    OrderRefused,
    PolicyAnswered,
    PublishFailed,
    Remarked,
    RunResumed,
    StopAsked,
    TrialExited,
)
from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.state import GONE, THERE, State, Trial
from seerd.core.verdicts import Gone
from seerd.story import beats
from seerd.story.attempts import Attempt
from seerd.story.beats import AnyBeat, tell
from seerd.story.chapters import Story

Decided = Sequence[AnyDecision]
Beats = Iterator[AnyBeat]

ENDS = (TrialExited, OrderRefused, InstanceLost, InstanceTerminated, RunResumed)
"""Events with which attempts end."""
THENS: dict[TrialPhase, beats.Then] = {
    TrialPhase.FINISHED: "finished",
    TrialPhase.ELIMINATED: "eliminated",
    TrialPhase.FAILED: "failed",
}


@dataclass(frozen=True, slots=True)
class Before:
    """What an event is about, as it was before.

    there   the instance that it names was there
    live    instances that were asked for or ready
    gpus    how many were wanted for each trial that an answer of the policy judges
    """

    there: bool
    live: int
    gpus: dict[str, int]

    @classmethod
    def of(cls, event: AnyEvent, state: State) -> Before:
        """Taken before `event` is read."""
        instance = state.fleet.instances.get(getattr(event, "instance", ""))
        gpus = _gpus(event, state) if isinstance(event, PolicyAnswered) else {}
        return cls(instance is not None and instance.phase in THERE, state.fleet.live, gpus)


def _gpus(event: PolicyAnswered, state: State) -> dict[str, int]:
    judged = [*(one.trial for one in event.plan.compared), *event.plan.eliminated]
    wanted = state.plan.wanted
    return {name: wanted[name].gpus for name in judged if name in wanted}


def facts(before: Before, event: AnyEvent, decided: Decided, story: Story, state: State) -> Beats:
    """What the event says; attempts that it ends are closed."""
    match event:
        case RunResumed():
            yield _resumed(event, decided, story, state)
        case StopAsked():
            yield tell(beats.StopWanted, state, event)
        case InstanceReady() if event.instance in state.fleet.instances:
            after_s = state.now - story.asked_s.get(event.command, state.now)
            yield tell(beats.Came, state, event, asked=event.command, after_s=round(after_s, 3))
        case LaunchRefused() if event.command in state.fleet.instances:
            yield _refused(event, state)
        case InstanceNoticed():
            yield from _noticed(event, state)
        case PublishFailed() if (model := story.published) and model.id == event.command:
            yield tell(beats.NotUsable, state, event, trial=model.trial, detail=event.why)
        case Remarked():
            yield tell(beats.Remark, state, event)
    if isinstance(event, ENDS):
        yield from _ends(before, event, decided, story, state)


def _resumed(event: RunResumed, decided: Decided, story: Story, state: State) -> beats.Resumed:
    gone = tuple(one.instance for one in decided if isinstance(one, Gone))
    silent_s = round(state.now - state.clock.heard_at, 3)
    reopened = state.phase is RunPhase.RUNNING and story.chapters[-1].end
    return tell(beats.Resumed, state, event, gone=gone, silent_s=silent_s, reopened=reopened)


def _refused(event: LaunchRefused, state: State) -> beats.Refused:
    again_s = state.fleet.launch_at
    again = state.phase is RunPhase.RUNNING and state.now < again_s < math.inf
    more = {"detail": event.why, "again_s": round(again_s, 3) if again else None}
    return tell(beats.Refused, state, instance=event.command, **more)


def _noticed(event: InstanceNoticed, state: State) -> Iterator[beats.Noticed]:
    instance = state.fleet.instances.get(event.instance)
    if instance is not None and instance.phase in GONE:
        return
    there = dict.fromkeys(instance.busy.values()) if instance is not None else ()
    more = {"notice": event.what, "detail": event.why, "by_s": event.by}
    sure = event.what == "interruption"
    yield tell(beats.Noticed, state, event, sure=sure, trials=tuple(there), **more)


# ------------------------------------------------------------ ends


def _ends(before: Before, event: AnyEvent, decided: Decided, story: Story, state: State) -> Beats:
    """Instances and attempts that are gone."""
    attempts = story.attempts
    match event:
        case TrialExited():
            attempts.leave(event)
        case InstanceLost() if before.there:
            yield _lost(event.instance, story, state)
        case InstanceTerminated():
            attempts.lose(event.instance, _gone_s(event.instance, state))
    for one in decided:
        if isinstance(one, Gone):
            yield _lost(one.instance, story, state)
    name = event.trial if isinstance(event, TrialExited) else None
    for attempt in attempts.gone(name, state):
        ended = _ended(attempt, event, state)
        attempts.end(ended, getattr(event, "happened", state.now))
        yield ended


def _lost(name: str, story: Story, state: State) -> beats.Lost:
    ended_s, why = _gone_s(name, state), state.fleet.instances[name].why
    trials = story.attempts.lose(name, ended_s)
    return tell(beats.Lost, state, instance=name, detail=why, ended_s=ended_s, trials=trials)


def _gone_s(name: str, state: State) -> float:
    instance = state.fleet.instances.get(name)
    return state.now if instance is None or instance.ended_at is None else instance.ended_at


def _ended(attempt: Attempt, event: AnyEvent, state: State) -> beats.Ended:
    trial = state.trials[attempt.started.trial]
    how = _end_cause(attempt, trial, event)
    told = how in ("crashed", "refused", "lost", "silent")
    return tell(
        beats.Ended,
        state,
        attempt.started,
        how=how,
        then=_then(attempt, trial),
        detail=trial.why if told and trial.phase is not TrialPhase.ELIMINATED else "",
        failures=trial.crashes,
        most_failures=state.rules.max_crashes,
        losses=trial.losses,
        reports=trial.reports,
        kept=trial.checkpoints[0].reports if trial.checkpoints else None,
    )


def _end_cause(attempt: Attempt, trial: Trial, event: AnyEvent) -> beats.EndCause:
    if trial.fault is not None:
        refused = trial.fault == "crashed" and isinstance(event, OrderRefused)
        return "refused" if refused else trial.fault
    if trial.phase is TrialPhase.FINISHED:
        return "finished"
    if trial.phase is TrialPhase.FAILED:
        return "silent"
    cause = event.cause if isinstance(event, TrialExited) else "lost"
    if cause in ("lease", "lost"):
        return "lease" if cause == "lease" else "lost"
    return "saved" if attempt.stopped is not None and attempt.stopped.saves else "killed"


def _then(attempt: Attempt, trial: Trial) -> beats.Then:
    if trial.phase in THENS:
        return THENS[trial.phase]
    goes_on = trial.gpus > 0 or trial.attempt > attempt.started.attempt
    return "restarts" if goes_on and trial.fault is not None else "waits"
