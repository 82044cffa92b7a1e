"""The difference between what is wanted and what is, as commands.

The one rule: what is under way counts as done, so reconciling twice asks for nothing new.
"""

from __future__ import annotations

import math
from typing import TypeVar

from seerd.core.closing import GRACE_MIN_S
from seerd.core.commands import (
    AnyCommand,
    Finish,
    Launch,
    Publish,
    SetTimer,
    StartTrial,
    StopTrial,
    Terminate,
)
from seerd.core.incumbent import incumbent
from seerd.core.launching import affordable_one, launches
from seerd.core.ledger import Charge
from seerd.core.lifecycle import InstancePhase, RunPhase, TrialPhase
from seerd.core.limits import affordable, alone_s, grace_left_s, time_left, wake_at
from seerd.core.placement import Assignment
from seerd.core.state import Instance, State, Trial

NOTICE_MARGIN_S = 5.0
"""So long before the cloud takes an instance away its trials are gone: saved and told, not only asked to."""
TIMER_SLACK_S = 0.01

C = TypeVar("C", bound=AnyCommand)


class Orders:
    """Collects the commands of one step, gives them their ids and writes them down as under way."""

    def __init__(self, state: State) -> None:
        self.commands: list[AnyCommand] = []
        self._state = state

    def next_id(self, later: int = 0) -> str:
        """The id of the next command, or of one so many later."""
        return f"{self._state.seq}.{len(self.commands) + later}"

    def give(self, command: AnyCommand) -> None:
        """Ask for it."""
        self._state.under_way[command.id] = command
        self.commands.append(command)


def reconcile(state: State) -> list[AnyCommand]:
    """What must be asked for now."""
    orders = Orders(state)
    touched, state.touched = list(state.touched), {}
    for name in touched:
        _stop_if_misplaced(state, state.trials[name], orders)
    for name in touched:
        _start_if_possible(state, state.trials[name], orders)
    if state.phase is RunPhase.RUNNING:
        _fit_instances(state, orders)
    elif state.phase is RunPhase.RELEASING:
        _release_and_publish(state, orders)
    _set_timer(state, orders)
    return orders.commands


def _stop_if_misplaced(state: State, trial: Trial, orders: Orders) -> None:
    """An attempt that should not be where it is: eliminated and broken ones are killed, others may save first."""
    if trial.held is None or (trial.held == trial.target and not trial.out and not trial.broken):
        return
    kill = trial.out or state.hard or (trial.broken and not trial.saved)
    if trial.phase is TrialPhase.STOPPING:
        before = state.under_way.get(trial.stop_command or "")
        if not kill or not isinstance(before, StopTrial) or not before.checkpoint:
            return
        del state.under_way[before.id]
    else:
        trial.go(TrialPhase.STOPPING)
    first, *others = [slots.node for slots in trial.left]
    trial.stop_command = orders.next_id()
    orders.give(
        StopTrial(
            id=orders.next_id(),
            trial=trial.id,
            attempt=trial.attempt,
            instance=first,
            checkpoint=not kill,
            grace_s=0.0 if kill else _grace_s(state, trial),
            beside=tuple(others),
        )
    )


def _grace_s(state: State, trial: Trial) -> float:
    """How long it may take to save and exit; once node 0 has, the others only have to exit, as they are about to."""
    left_s = min(grace_left_s(state), GRACE_MIN_S) if trial.saved else grace_left_s(state)
    if not state.leaving:
        return left_s
    by = min((by for slots in trial.left if (by := state.instances[slots.node].by) is not None), default=math.inf)
    return min(left_s, max(0.0, by - NOTICE_MARGIN_S - state.now))


def _start_if_possible(state: State, trial: Trial, orders: Orders) -> None:
    """A waiting trial whose GPUs are all free and affordable."""
    if trial.phase is not TrialPhase.WAITING or trial.target is None or trial.held is not None:
        return
    if not _free(state, trial.target) or not _worthwhile(state, trial):
        return
    trial.go(TrialPhase.STARTING)
    trial.attempt += 1
    trial.held = trial.target
    state.holding += 1
    trial.start_command = orders.next_id()
    for slots in trial.held:
        state.instances[slots.node].busy.update(dict.fromkeys(slots.gpus, trial.id))
    if state.facts.cluster.billing == "held":
        for slots in trial.held:
            state.ledger.start(Charge(trial.key_on(slots.node), slots.node, len(slots.gpus), state.now))
    orders.give(
        StartTrial(
            id=orders.next_id(),
            trial=trial.id,
            attempt=trial.attempt,
            instance=trial.held[0].node,
            gpus=trial.held[0].gpus,
            config=dict(trial.config),
            seed=trial.seed,
            checkpoints=tuple(c.name for c in trial.checkpoints),
            beside=tuple((slots.node, slots.gpus) for slots in trial.held[1:]),
        )
    )


def _worthwhile(state: State, trial: Trial) -> bool:
    return affordable(state, trial.gpus) and time_left(state)


def _free(state: State, target: Assignment) -> bool:
    instances = state.instances
    return all(
        instances[slots.node].phase is InstancePhase.READY
        and not any(gpu in instances[slots.node].busy for gpu in slots.gpus)
        for slots in target
    )


def _fit_instances(state: State, orders: Orders) -> None:
    """As many instances as the wanted trials need; on rented ones, no more."""
    if not state.refit:
        return
    state.refit = False
    idle, state.idle = state.idle, {}
    for name in idle if state.leaving else ():
        if state.instances[name].phase is InstancePhase.LEAVING and not state.instances[name].busy:
            _terminate(state, state.instances[name], orders)
    _launch(state, orders)
    if state.facts.cluster.billing == "rented":
        kept = max(state.needed, -(-state.plan.hold_gpus // state.facts.cluster.gpus_per_instance))
        for name in idle:
            if state.live > kept and _unused(state.instances[name]):
                _terminate(state, state.instances[name], orders)


def _launch(state: State, orders: Orders) -> None:
    """Every instance that is wanted and can be paid. What each may cost alone depends on how many there are."""
    asked: list[str] = []
    for _ in range(launches(state)):
        if not affordable_one(state):
            break
        asked.append(orders.next_id(len(asked)))
        _expect(state, asked[-1])
    for launch in asked:
        orders.give(Launch(id=launch, gpus=state.facts.cluster.gpus_per_instance, alone_s=alone_s(state)))


def _expect(state: State, launch: str) -> None:
    gpus = state.facts.cluster.gpus_per_instance
    state.instances[launch] = Instance(launch, gpus)
    state.live += 1
    state.present += 1
    if state.facts.cluster.billing == "rented":
        # It may run any moment, and its start is known only when it is ready: until then it counts from now on.
        minimum_s = state.facts.cluster.minimum_s
        state.ledger.start(Charge(launch, launch, gpus, state.now, minimum_s=minimum_s))


def _unused(instance: Instance) -> bool:
    return instance.phase is InstancePhase.READY and not instance.busy and not instance.claims


def _terminate(state: State, instance: Instance, orders: Orders) -> None:
    if instance.phase is InstancePhase.REQUESTED:
        del state.under_way[instance.id]
    state.go_instance(instance, InstancePhase.RELEASING)
    instance.terminate_command = orders.next_id()
    orders.give(Terminate(id=orders.next_id(), instance=instance.id))


def _release_and_publish(state: State, orders: Orders) -> None:
    """Everything is given back, the best model is put in its place, and when both have happened the run is over."""
    if state.live or state.leaving:
        _release_all(state, orders)
    if state.published is None and state.publishing is None and not state.no_model:
        _publish(state, orders)
    elif state.publishing is None and not state.present:
        state.go(RunPhase.OVER)
        state.finished = True
        orders.commands.append(Finish(id=orders.next_id(), status=state.ending or "failed"))


def _release_all(state: State, orders: Orders) -> None:
    """Those too that are still being asked for or made ready: nobody waits for them past the end."""
    for instance in state.instances.values():
        if instance.phase in (InstancePhase.REQUESTED, InstancePhase.READY, InstancePhase.LEAVING):
            _terminate(state, instance, orders)


def _publish(state: State, orders: Orders) -> None:
    best = state.publishing = incumbent(state)
    state.no_model = best is None
    if best is None:
        _release_and_publish(state, orders)
        return
    orders.give(
        Publish(
            id=orders.next_id(),
            trial=best.trial,
            config=dict(state.trials[best.trial].config),
            checkpoint=best.checkpoint.name,
            sha256=best.checkpoint.sha256,
            metric=best.metric,
        )
    )


def _set_timer(state: State, orders: Orders) -> None:
    """One timer at a time: set anew when something is due earlier than it, or when it has fired."""
    due = wake_at(state)
    if due == math.inf or (state.timer is not None and state.timer.due <= due + TIMER_SLACK_S):
        return
    if state.timer is not None:
        state.under_way.pop(state.timer.id, None)
    state.timer = SetTimer(id=orders.next_id(), due=max(due, state.now))
    orders.give(state.timer)
