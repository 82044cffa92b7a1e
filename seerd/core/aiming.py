"""Where wanted trials should run. A changed plan places all of them anew; else only those on
instances where something has changed. Only targets, claims and the need of instances are written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from seerd.core.lifecycle import InstancePhase, TrialPhase
from seerd.core.packing import Demand, PackingNode
from seerd.core.placement import Assignment, Slots, first_waiting, place
from seerd.core.sizes import need
from seerd.core.state import LIVE, Instance, State, Trial
from seerd.core.wanted import Agenda, Aims
from seerd.planner.model import ClusterFacts, Group
from seerd.planner.stages import instances_for


def aim_all(state: State) -> None:
    """Give every wanted trial its GPUs, moving as few as possible."""
    state.agenda.replace = False
    state.agenda.refit = True
    state.agenda.roomy = {}
    nodes = [PackingNode(instance.id, instance.usable) for instance in _ready(state)]
    ready = {node.id for node in nodes}
    demands, present = _demands(state), {}
    for trial in (state.trials[demand.trial] for demand in demands):
        where = trial.target or trial.held
        if not trial.out and where and all(slots.node in ready for slots in where):
            present[trial.id] = where
    placed = place(
        demands,
        present,
        nodes,
        pack=state.facts.cluster.per_instance,
        split=bool(state.facts.cluster.other_sizes),
        parts=state.facts.parts,
    )
    state.aims.waiting = {d.trial: d.gpus for d in demands if d.trial not in placed}
    for node in nodes:
        state.fleet.instances[node.id].claims.clear()
        state.agenda.idle[node.id] = None
    before, state.aims.aimed = state.aims.aimed, {}
    for name in sorted({*before, *placed}):
        _aim(state, state.trials[name], placed.get(name))


def derive(state: State) -> None:
    """Compute anew what is not recorded: trials that run where they should stay, or grow there;
    others wait.
    """
    agenda, aims = state.agenda, Aims()
    state.aims, state.agenda = (
        aims,
        Agenda(
            because=agenda.because,
            ask=agenda.ask,
            woken=agenda.woken,
            ended=dict.fromkeys(agenda.ended, 0),
            replace=agenda.replace,
            refit=True,
            touched=dict.fromkeys(state.trials),
        ),
    )
    for instance in state.fleet.instances.values():
        instance.claims.clear()
    for trial in state.trials.values():
        trial.target = None
    demands = _demands(state)
    trials = [(state.trials[demand.trial], demand.gpus) for demand in demands]
    for trial, gpus in trials:
        may_stay = trial.had == gpus or trial.had < gpus <= state.facts.parts
        if may_stay and _is_in_place(trial, state):
            _aim(state, trial, trial.held)
    for trial, gpus in trials:
        if trial.id in aims.aimed and trial.had < gpus:
            _aim_to_grow(state, trial, gpus)
    aims.waiting = {d.trial: d.gpus for d in demands if d.trial not in aims.aimed}
    state.agenda.roomy = {instance.id: None for instance in _ready(state)}
    # Without instances that are still being launched, since their ids will change.
    for name, instance in state.fleet.instances.items():
        if instance.phase in (InstancePhase.READY, InstancePhase.LEAVING):
            state.agenda.idle[name] = None


def _aim_to_grow(state: State, trial: Trial, gpus: int) -> None:
    """Aim a trial at more of its GPU: slots that no other claims, first those that are free."""
    assert trial.held is not None
    (slots,), parts = trial.held, state.facts.parts
    instance, first = state.fleet.instances[slots.node], slots.gpus[0] // parts * parts
    on_gpu = range(first, min(first + parts, instance.usable))
    rest = [gpu for gpu in on_gpu if gpu not in instance.claims]
    rest.sort(key=lambda gpu: gpu in instance.busy)
    more = rest[: gpus - trial.had]
    if trial.had + len(more) == gpus:
        _aim(state, trial, (Slots(slots.node, tuple(sorted([*slots.gpus, *more]))),))
    else:
        _unaim(state, trial)


def _is_in_place(trial: Trial, state: State) -> bool:
    if trial.held is None or trial.out or trial.phase is TrialPhase.STOPPING:
        return False
    instances = state.fleet.instances
    return all(
        instances[slots.node].phase is InstancePhase.READY
        and max(slots.gpus) < instances[slots.node].usable
        for slots in trial.held
    )


def _ready(state: State) -> list[Instance]:
    return [i for i in state.fleet.instances.values() if i.phase is InstancePhase.READY]


def _demands(state: State) -> list[Demand]:
    """Return what wanted trials demand; note their sizes and how many instances they need."""
    aims, ready = state.aims, _ready(state)
    largest = max((i.usable for i in ready), default=0)
    aims.most = None
    if any(i.usable < i.gpus for i in ready) and largest < state.facts.cluster.gpus_per_instance:
        fitting = (gpus for gpus in state.outline.allocations if gpus <= largest)
        aims.most = max(fitting, default=None)  # so that none waits where all are shared
    demands = wanted_demands(state)
    aims.sizes = Counter(demand.gpus for demand in demands)
    count_needed(state)
    return demands


def wanted_demands(state: State) -> list[Demand]:
    """Return how many GPUs each wanted trial should have, most valuable first."""
    wanted = state.plan.wanted
    wanting = (state.trials[a.trial] for a in state.plan.order if a.trial in wanted)
    return [Demand(trial.id, _size(state, trial, trial.gpus)) for trial in wanting]


def _size(state: State, trial: Trial, gpus: int) -> int:
    """Return how many GPUs a trial gets for which so many are wanted."""
    return max(state.facts.cluster.fitting(state.aims.cut(gpus)), trial.least)


def drop(state: State, trial: Trial, gpus: int) -> None:
    """Free for others what an ended trial had, or was to have (`gpus` GPUs)."""
    if not gpus:
        return
    gpus = _size(state, trial, gpus)
    state.aims.waiting.pop(trial.id, None)
    state.aims.sizes[gpus] -= 1
    _unaim(state, trial)
    count_needed(state)
    state.agenda.refit = True
    per_instance = state.facts.cluster.per_instance
    few = state.aims.needed <= state.rules.worth_packing * state.fleet.live
    if state.facts.cluster.other_sizes:
        live = [i for i in state.fleet.instances.values() if i.phase in LIVE]
        used = sum(i.gpus for i in live if i.id in state.aims.used)
        few = used <= state.rules.worth_packing * sum(i.gpus for i in live)
    state.agenda.replace = state.agenda.replace or (per_instance and few)


def fill(state: State) -> None:
    """Place waiting trials where GPUs have become free; no other trial is looked at."""
    roomy, state.agenda.roomy = state.agenda.roomy, {}
    state.agenda.refit = True
    for name in roomy:
        instance = state.fleet.instances.get(name)
        if instance is None or instance.phase is not InstancePhase.READY:
            continue
        state.agenda.idle[name] = None
        if max(state.aims.waiting.values(), default=0) > instance.usable:
            state.agenda.replace = True
            return
        first = first_waiting(state.aims.waiting, instance.usable - len(instance.claims))
        claimants = [state.trials[claimant] for claimant in dict.fromkeys(instance.claims.values())]
        present = {trial.id: trial.target for trial in claimants if trial.target is not None}
        if not first or any(len(target) > 1 for target in present.values()):
            continue
        claiming = (Demand(trial.id, _size(state, trial, trial.gpus)) for trial in claimants)
        demands = [*claiming, *first]
        nodes = [PackingNode(name, instance.usable)]
        placed = place(demands, present, nodes, parts=state.facts.parts)
        if any(placed.get(trial) != target for trial, target in present.items()):
            state.agenda.replace = True  # one needs a whole GPU that others have parts of
            return
        for trial in sorted(placed.keys() & {demand.trial for demand in first}):
            del state.aims.waiting[trial]
            _aim(state, state.trials[trial], placed[trial])


def _aim(state: State, trial: Trial, target: Assignment | None) -> None:
    for slots in target or ():
        state.fleet.instances[slots.node].claims.update(dict.fromkeys(slots.gpus, trial.id))
    if target is not None:
        state.aims.aimed[trial.id] = None
    trial.target = target
    if target != trial.held:
        state.touch(trial.id)


def _unaim(state: State, trial: Trial) -> None:
    for slots in trial.target or ():
        claims = state.fleet.instances[slots.node].claims
        for gpu in slots.gpus:
            claims.pop(gpu, None)
        state.agenda.roomy[slots.node] = None
    trial.target = None
    state.aims.aimed.pop(trial.id, None)


def count_needed(state: State) -> None:
    """Note how many instances are needed, and where they come in several sizes which are used and
    how many GPUs are missing.
    """
    aims = state.aims
    if not state.facts.cluster.other_sizes:
        aims.needed = _needed(state)
        return
    needs = need(state, wanted_demands(state))
    aims.needed, aims.missing, aims.used = needs.instances, needs.missing, needs.used


def _needed(state: State) -> int:
    """Return how many instances are needed: one more per instance shared with other runs."""
    cluster = state.facts.cluster
    needed = instances_needed(state.aims.sizes, cluster)
    if not needed or cluster.per_instance or cluster.max_instances is None:
        return needed
    needed += sum(instance.usable < instance.gpus for instance in _ready(state))
    return min(needed, cluster.max_instances)


def instances_needed(sizes: Mapping[int, int], cluster: ClusterFacts) -> int:
    """Return how many instances trials need if none that fits an instance is split. `sizes`: number
    of GPUs -> how many trials want so many.
    """
    needed = instances_for([Group(*size) for size in sizes.items()], cluster.gpus_per_instance)
    return needed if cluster.max_instances is None else min(needed, cluster.max_instances)
