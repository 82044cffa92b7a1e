"""The safety properties that hold after every step, each written once: checked in tests, in
simulation and after every replay.

The one rule: a property is a sentence that a person can check against DESIGN part 3, and code that
says where it is broken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from seerd.core.lifecycle import InstancePhase, RunPhase, TrialPhase
from seerd.core.limits import budget_gpu_s
from seerd.core.state import LIVE, THERE, State

HOLDING = (TrialPhase.STARTING, TrialPhase.RUNNING, TrialPhase.STOPPING)
EPSILON_S = 1e-6


def violations(state: State) -> list[str]:
    """What is wrong, one line each; empty when all is well."""
    return [f"{check.__name__}: {what}" for check in CHECKS for what in check(state)]


def no_gpu_is_held_twice(state: State) -> Iterator[str]:
    """Every GPU belongs to at most one attempt, and both sides agree on which."""
    held = [(slots.node, gpu, t.id) for t in state.trials.values() for slots in t.left for gpu in slots.gpus]
    for (node, gpu), times in Counter((node, gpu) for node, gpu, _ in held).items():
        if times > 1:
            yield f"GPU {gpu} of {node} is held {times} times"
    busy = {(i.id, gpu, trial) for i in state.fleet.instances.values() for gpu, trial in i.busy.items()}
    if busy != set(held):
        yield f"instances and trials disagree: {busy ^ set(held)}"


def a_trial_that_fits_is_not_split(state: State) -> Iterator[str]:
    """A trial spans instances only if no instance has GPUs enough for it."""
    for trial in state.trials.values():
        if trial.held is None or len(trial.held) == 1:
            continue
        gpus = sum(len(slots.gpus) for slots in trial.held)
        if any(instance.gpus >= gpus for instance in state.fleet.instances.values()):
            yield f"{trial.id} with {gpus} GPUs spans {len(trial.held)} instances"


def phases_and_gpus_agree(state: State) -> Iterator[str]:
    """A trial holds GPUs exactly while an attempt of it may have processes."""
    for trial in state.trials.values():
        if (trial.phase in HOLDING) != (trial.held is not None):
            yield f"{trial.id} is {trial.phase} and holds {trial.held}"
    holding = sum(trial.held is not None for trial in state.trials.values())
    if holding != state.holding:
        yield f"{holding} trials hold GPUs, {state.holding} are counted"


def what_is_held_is_paid(state: State) -> Iterator[str]:
    """The open charges are exactly what costs now."""
    if state.facts.cluster.billing == "held":
        costs = {trial.key_on(slots.node) for trial in state.trials.values() for slots in trial.left}
    else:
        costs = {i.id for i in state.fleet.instances.values() if i.phase is InstancePhase.REQUESTED or i.phase in THERE}
    if costs != set(state.ledger.open):
        yield f"charged: {sorted(state.ledger.open)}, costs: {sorted(costs)}"


def instances_are_counted(state: State) -> Iterator[str]:
    """The number of live instances that is kept is theirs."""
    live = sum(instance.phase in LIVE for instance in state.fleet.instances.values())
    if live != state.fleet.live:
        yield f"{live} instances are live, {state.fleet.live} are counted"
    leaving = sum(instance.phase is InstancePhase.LEAVING for instance in state.fleet.instances.values())
    if leaving != state.fleet.leaving:
        yield f"{leaving} instances are leaving, {state.fleet.leaving} are counted"


def a_leaving_instance_gets_nothing_new(state: State) -> Iterator[str]:
    """Nothing is to go where the cloud takes the instance away, and what is there has been asked to
    stop.
    """
    leaving = {i.id for i in state.fleet.instances.values() if i.phase is InstancePhase.LEAVING}
    if not leaving:
        return
    for name in leaving:
        if state.fleet.instances[name].claims:
            yield f"GPUs of {name} are promised"
    for trial in state.trials.values():
        if any(slots.node in leaving for slots in trial.target or ()):
            yield f"{trial.id} is to go to {leaving & {slots.node for slots in trial.target or ()}}"
        if trial.phase is not TrialPhase.STOPPING and any(slots.node in leaving for slots in trial.left):
            yield f"{trial.id} is {trial.phase} on {leaving & {slots.node for slots in trial.left}}"


def the_nodes_of_an_attempt_end_together(state: State) -> Iterator[str]:
    """Where an attempt has ended on one of its instances, and nobody had asked for it, it is being
    ended on the others.
    """
    for trial in state.trials.values():
        if trial.ends and not trial.left:
            yield f"{trial.id} has ended everywhere and still holds {trial.held}"
        if trial.broken and trial.phase is not TrialPhase.STOPPING:
            yield f"{trial.id} is {trial.phase} on {[slots.node for slots in trial.left]} and has ended on {list(trial.ends)}"


def the_budget_is_kept(state: State) -> Iterator[str]:
    """What has been spent never exceeds the budget."""
    spent = state.ledger.spent_gpu_s(state.now)
    if spent > budget_gpu_s(state) + EPSILON_S:
        yield f"{spent:.3f} GPU-seconds spent of {budget_gpu_s(state):.3f}"


def nothing_is_left_at_the_end(state: State) -> Iterator[str]:
    """When the run is over no instance costs and no trial runs."""
    if state.phase is not RunPhase.OVER:
        return
    for instance in state.fleet.instances.values():
        if instance.phase not in (InstancePhase.TERMINATED, InstancePhase.REFUSED):
            yield f"{instance.id} is {instance.phase}"
    if state.holding:
        yield f"{state.holding} trials still hold GPUs"


def the_result_is_confirmed(state: State) -> Iterator[str]:
    """What is handed back is a checkpoint that an agent confirmed; newer ones of its trial may have
    taken its place in the store since.
    """
    if state.result.published is None:
        return
    best = state.result.published.incumbent
    kept = state.trials[best.trial].checkpoints
    if best.checkpoint not in kept and not any(one.reports > best.checkpoint.reports for one in kept):
        yield f"{best.checkpoint.name} of {best.trial} was never confirmed"


CHECKS: tuple[Callable[[State], Iterator[str]], ...] = (
    no_gpu_is_held_twice,
    a_trial_that_fits_is_not_split,
    phases_and_gpus_agree,
    what_is_held_is_paid,
    instances_are_counted,
    a_leaving_instance_gets_nothing_new,
    the_nodes_of_an_attempt_end_together,
    the_budget_is_kept,
    nothing_is_left_at_the_end,
    the_result_is_confirmed,
)
