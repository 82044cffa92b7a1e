"""Why instances were asked for, refused, held back and given back.

The one rule: pure functions of the state before a step, its event and commands, and the state after it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from seerd.core.commands import Launch, Terminate
from seerd.core.events import (
    AnyEvent,
    InstanceLost,
    InstanceNoticed,
    InstanceReady,
    LaunchRefused,
    RunResumed,
    TimerFired,
)
from seerd.core.launching import affordable_one, launches
from seerd.core.lifecycle import InstancePhase, RunPhase, TrialPhase
from seerd.core.limits import affordable, time_left
from seerd.core.state import State
from seerd.story.beats import AskCause, Asked, Came, GiveCause, GivenBack, HeldBack, HoldCause, Lost, Noticed, Refused
from seerd.story.before import Before
from seerd.story.reasons_of_trials import sized


def asked(before: Before, event: AnyEvent, commands: Sequence[Launch], state: State) -> Asked:
    """Launches of one step, together."""
    return Asked(
        event=state.seq,
        at_s=state.now,
        why=_ask_cause(before, event, state),
        instances=tuple(command.id for command in commands),
        gpus_each=commands[0].gpus,
        wanted=sized(state.aims.sizes),
        needed=state.aims.needed,
        had=state.fleet.live - len(commands),
    )


def _ask_cause(before: Before, event: AnyEvent, state: State) -> AskCause:
    if state.plan is not before.plan:
        return "plan"
    if isinstance(event, RunResumed):
        return "resumed"
    if isinstance(event, InstanceLost | InstanceNoticed):
        return "replacement"
    if isinstance(event, TimerFired) and -math.inf < before.launch_at_s <= state.now:
        return "again"
    return "room"


def given_back(before: Before, event: AnyEvent, commands: Sequence[Terminate], state: State) -> Iterator[GivenBack]:
    """Orders to give instances back, those together that have the same reason."""
    causes: dict[GiveCause, list[str]] = {}
    for command in commands:
        cause: GiveCause = "end" if state.phase is not RunPhase.RUNNING else "idle"
        told = isinstance(event, InstanceNoticed) and event.instance == command.instance
        if cause == "idle" and (told or command.instance in before.leaving):
            cause = "leaving"
        causes.setdefault(cause, []).append(command.instance)
    for cause, names in causes.items():
        needed = 0 if cause == "end" else state.aims.needed
        yield GivenBack(
            event=state.seq, at_s=state.now, why=cause, instances=tuple(names), needed=needed, had=before.live
        )


def came(event: InstanceReady, asked_s: float, state: State) -> Came:
    """An instance that takes orders now."""
    after_s = round(max(0.0, state.now - asked_s), 3)
    return Came(
        event=state.seq,
        at_s=state.now,
        instance=event.instance,
        asked=event.command,
        gpus=event.gpus,
        after_s=after_s,
    )


def refused(event: LaunchRefused, state: State) -> Refused:
    """A launch that has come to nothing."""
    again = state.phase is RunPhase.RUNNING and state.now < state.fleet.launch_at < math.inf
    again_s = round(state.fleet.launch_at, 3) if again else None
    return Refused(event=state.seq, at_s=state.now, instance=event.command, detail=event.why, again_s=again_s)


def noticed(event: InstanceNoticed, trials: tuple[str, ...], state: State) -> Noticed:
    """An instance that the cloud will take away."""
    sure = event.what == "interruption"
    return Noticed(event=state.seq, at_s=state.now, instance=event.instance, sure=sure, by_s=event.by, trials=trials)


def lost(names: Sequence[str], before: Before, state: State) -> Iterator[Lost]:
    """Instances that are gone since this step, without having been given back."""
    for name in names:
        instance = state.fleet.instances[name]
        held = [t for t, old in before.trials.items() if any(slots.node == name for slots in old.held or ())]
        yield Lost(
            event=state.seq,
            at_s=state.now,
            instance=name,
            detail=instance.why,
            ended_s=state.now if instance.ended_at is None else instance.ended_at,
            trials=tuple(held),
        )


def held_back(state: State) -> HeldBack | None:
    """What is wanted and not asked for now, and the limit that is why; None if there is nothing of that kind."""
    if state.phase is not RunPhase.RUNNING:
        return None
    trials: tuple[str, ...] = ()
    why = _no_launch(state)
    if why is None:
        why, trials = _no_start(state)
    if why is None:
        return None
    return HeldBack(
        event=state.seq, at_s=state.now, why=why, needed=state.aims.needed, had=state.fleet.live, trials=trials
    )


def _no_launch(state: State) -> HoldCause | None:
    if state.fleet.live >= state.aims.needed or state.now < state.fleet.launch_at:
        return None
    if not time_left(state, state.facts.cluster.boot_s):
        return "late"
    if launches(state) <= 0:
        return "most"
    return None if affordable_one(state) else "budget"


def _no_start(state: State) -> tuple[HoldCause | None, tuple[str, ...]]:
    """Trials whose GPUs are free, and who do not get them."""
    for name in state.aims.aimed:
        trial = state.trials[name]
        if trial.phase is not TrialPhase.WAITING or trial.target is None:
            continue
        nodes = [(state.fleet.instances[slots.node], slots.gpus) for slots in trial.target]
        if any(i.phase is not InstancePhase.READY or i.busy.keys() & set(gpus) for i, gpus in nodes):
            continue
        return ("late" if not time_left(state) else "budget" if not affordable(state, trial.gpus) else None), (name,)
    return None, ()
