"""How events and decisions change a run's instances. An instance costs from when it may run until
its cloud says, or must be believed, that it has ended; what runs there ends with it.
"""

from __future__ import annotations

import math

from seerd.core import commands, events, verdicts
from seerd.core.attempts import node_lost
from seerd.core.ledger import Charge
from seerd.core.lifecycle import InstancePhase
from seerd.core.progress import take_saved
from seerd.core.state import PRESENT, Instance, State
from seerd.units import format_duration

PROOF_S = 45.0
"""From the login until an instance has used the checkpoint store or failed to, at most, seconds."""
SAVING_S = 30.0
"""For trials to save where maintenance may have begun already, seconds."""


def keep_early(state: State, fact: events.AgentFact) -> None:
    """Keep what an agent reports before its instance is known to be ready."""
    fleet, name = state.fleet, fact.instance
    fleet.early[name] = fact.fact
    if isinstance(fact, events.InstanceNoticed) and fact.what == "maintenance":
        fleet.until[name] = _until(state, fact)
    elif isinstance(fact, events.InstanceNoticed) and not _is_hint(state, fact):
        fleet.noticed[name] = sooner(fleet.noticed.get(name), fact.by)
    elif isinstance(fact, events.InstanceNoticed) and fact.what == "cold":
        fleet.slow[name] = (fact.why, fact.happened)
    elif isinstance(fact, events.InstanceShared):
        fleet.shared[name] = fact


def ready(event: events.InstanceReady, state: State) -> None:
    """Record that an instance takes orders, with what its agent reported before."""
    if state.under_way.pop(event.command, None) is None:
        return
    fleet = state.fleet
    instance = fleet.instances.pop(event.command)
    requested_gpus, instance.id, instance.gpus = instance.gpus, event.instance, event.gpus
    if state.facts.cluster.other_sizes:
        requested_gpus = event.gpus
    fleet.go(instance, InstancePhase.READY)
    instance.ready_at = event.at
    instance.seen = fleet.early.pop(instance.id, 0)
    instance.boot = event.boot
    fleet.any_ready = True
    fleet.instances[event.instance] = instance
    state.agenda.some_ready = True
    state.agenda.roomy[instance.id] = None
    if state.facts.cluster.per_instance:
        state.ledger.void(event.command)
        _charge(state, instance.id, requested_gpus, event.running_since, instance.usd_per_h)
    fleet.slow.pop(instance.id, None)
    instance.maintained_s = fleet.until.pop(instance.id, None)
    if instance.id in fleet.shared:
        shared(fleet.shared.pop(instance.id), state)
    if instance.id in fleet.noticed:
        leave(state, instance, fleet.noticed.pop(instance.id))


def awaited(event: events.InstanceAwaited, state: State) -> None:
    """Record how far an instance is that is not ready yet; what comes too late changes nothing.
    Others follow a scout that can be logged in to when it has had the time to prove the store.
    """
    instance = state.fleet.instances.get(event.command)
    if instance is None or instance.phase is not InstancePhase.REQUESTED:
        return
    instance.cloud_id, instance.awaited = event.instance, event.what
    instance.where = event.where or instance.where
    instance.unreached = event.why if event.what == "unreached" else ""
    if event.what != "launched" and instance.ran_s is None:
        instance.ran_s = event.at
    if event.what == "reached":
        state.fleet.follow_s = max(state.fleet.follow_s, event.at + PROOF_S)
    if event.usd_per_h is not None:
        instance.usd_per_h = event.usd_per_h
    if event.gpus is not None and event.gpus != instance.gpus:
        instance.gpus = event.gpus
        state.agenda.refit = True  # more may be missing
        if instance.id in state.ledger.open:
            state.ledger.resize(instance.id, state.facts.gpus(event.gpus))
    if instance.id in state.ledger.open:
        state.ledger.name(instance.id, event.instance)
        if event.usd_per_h is not None:
            price = event.usd_per_h / state.facts.gpus(instance.gpus)
            state.ledger.price(instance.id, price)
            state.agenda.refit = True  # more may be affordable
    if state.fleet.follows(state.now, state.facts.cluster.scout_s):
        state.agenda.refit = True


def priced(event: events.InstancePriced, state: State) -> None:
    """Record that an instance has another price. Before it is ready the higher one counts."""
    fleet, book = state.fleet.instances, state.ledger
    instance = fleet.get(event.instance)
    if instance is None:
        unready = (i for i in fleet.values() if i.cloud_id == event.instance)
        instance = next(unready, None)
    if instance is None or instance.id not in book.open or instance.usd_per_h == event.usd_per_h:
        return
    gpus, state.agenda.refit = state.facts.gpus(instance.gpus), True  # more may be affordable
    if instance.phase is not InstancePhase.REQUESTED:
        instance.usd_per_h = event.usd_per_h
        book.reprice(instance.id, min(event.since, state.now), event.usd_per_h / gpus)
    elif event.usd_per_h > (instance.usd_per_h or 0.0):
        instance.usd_per_h = event.usd_per_h
        book.price(instance.id, event.usd_per_h / gpus)


def refused(event: events.LaunchRefused, state: State) -> None:
    """Record that a launch brings no instance."""
    if state.under_way.pop(event.command, None) is None:
        return
    instance = state.fleet.instances[event.command]
    state.fleet.go(instance, InstancePhase.REFUSED)
    if instance.id in state.ledger.open:
        _settle_unready(state, instance.id, event)
    instance.why = event.why
    instance.ended_at = event.at
    state.agenda.refused.append(event)
    state.agenda.replace = True
    state.result.note("no-instance", event.why)


def lost(event: events.InstanceLost, state: State) -> None:
    """Record that an instance is gone, with the checkpoints that its trials had stored."""
    instance = state.fleet.instances.get(event.instance)
    state.agenda.because = "replacement"
    if instance is not None and instance.phase in PRESENT:
        take_saved(state, event.saved)
        lose(state, instance, _ended_at(event), event.why)


def lose(state: State, instance: Instance, at: float, why: str) -> None:
    """Record that an instance is gone, unasked, and has cost nothing since `at`."""
    instance.why = why
    _end(state, instance, at, f"{instance.id} was lost: {why}")
    state.agenda.replace = True
    state.result.note("lost", instance.id, why)


def noticed(event: events.InstanceNoticed, state: State) -> None:
    """Record that the cloud takes an instance away, or what there is to know about it."""
    instance, result = state.fleet.instances[event.instance], state.result
    is_ready = instance.phase is InstancePhase.READY
    if event.what == "maintenance":
        instance.maintained_s = _until(state, event)
        return
    if _is_hint(state, event):
        if event.what == "cold" and event.why not in result.notes:  # others report the same
            result.notes.append(event.why)
        elif event.what != "cold" and is_ready:
            result.note("may-leave", instance.id)
        return
    state.agenda.because = "replacement"
    if is_ready:
        if event.what == "unhealthy":
            result.note("unhealthy", instance.id, event.why)
        else:
            result.note("leaves", instance.id, event.what)
        leave(state, instance, event.by)
    elif instance.phase is InstancePhase.LEAVING:
        instance.by = sooner(instance.by, event.by)


def sooner(first: float | None, second: float | None) -> float | None:
    """Return the earlier of two times; None is none."""
    return min((by for by in (first, second) if by is not None), default=None)


def _until(state: State, maintenance: events.InstanceNoticed) -> float | None:
    """Return until when an instance may be used; None: its maintenance is canceled."""
    return None if maintenance.by is None else max(maintenance.by, state.now + SAVING_S)


def _is_hint(state: State, event: events.InstanceNoticed) -> bool:
    """Return whether a notice changes nothing here: a cold start, or an interruption that is only
    expected. Recommendations come far more often than interruptions
    (github.com/kubernetes/kops/issues/14761, github.com/aws/karpenter-provider-aws/pull/4903), and
    each move costs an instance's boot.
    """
    expected = event.what == "rebalance" and not state.facts.cluster.hints_move
    return expected or event.what == "cold"


def shared(event: events.InstanceShared, state: State) -> None:
    """Record how many GPUs of an instance may be used."""
    instance = state.fleet.instances[event.instance]
    before, is_first = instance.usable, instance.share is None
    instance.share = event.gpus
    if instance.usable != before:
        state.agenda.replace = state.agenda.refit = True
    if is_first:  # later ones come and go with others' trials
        usable, gpus = map(state.facts.gpus, (instance.usable, instance.gpus))
        state.result.note("shared", instance.id, usable, gpus, event.why)


def computed(event: events.InstanceComputed, state: State) -> None:
    """Record the utilisation of an instance's GPUs; what was reported before held until now."""
    instance, parts = state.fleet.instances[event.instance], state.facts.parts
    lasted_s = max(0.0, event.happened - instance.computed_s)
    for gpu in {slot // parts for slot in instance.busy}:
        share = instance.computed[gpu] if gpu < len(instance.computed) else None
        if share is not None:
            instance.known_gpu_s += lasted_s
            instance.busy_gpu_s += lasted_s * share
    instance.computed, instance.computed_s = event.shares, event.happened


def leave(state: State, instance: Instance, by: float | None) -> None:
    """Stop using an instance that will be taken away at `by` (None: unknown): its trials move."""
    state.fleet.go(instance, InstancePhase.LEAVING)
    instance.by = by
    instance.claims.clear()
    state.agenda.idle[instance.id] = None
    state.agenda.replace = state.agenda.refit = True
    may_launch(state)


def terminated(event: events.InstanceTerminated, state: State) -> None:
    """Record that an instance that was given back has ended."""
    state.under_way.pop(event.command, None)
    instance = state.fleet.instances.get(event.instance)
    if instance is None or instance.phase is InstancePhase.TERMINATED:
        return
    if instance.ready_at is None and instance.id in state.ledger.open:
        _settle_unready(state, instance.id, event)
    _end(state, instance, _ended_at(event), f"{instance.id} was given back")
    state.agenda.refit = state.agenda.refit or not state.facts.cluster.per_instance


def kept(event: events.InstanceKept, state: State) -> None:
    """Charge an instance that waits for another run until it ends itself, at the most that it may
    come to cost: from now on no process sees its price.
    """
    instance, until_s = state.fleet.instances.get(event.instance), keep_until(state, event.command)
    if instance is None or until_s is None or instance.phase is InstancePhase.TERMINATED:
        return
    book, most = state.ledger, state.facts.cluster.most_usd_per_gpu_h
    if most and instance.id in book.open:
        book.reprice(instance.id, event.at, most)
    price = most or (instance.usd_per_h or 0.0) / state.facts.gpus(instance.gpus)
    gpu_h = state.facts.gpus(instance.gpus) * max(0.0, until_s - event.at) / 3600
    _end(state, instance, until_s, f"{instance.id} was let go")
    kept_for = format_duration(max(0, round(until_s - event.at)))
    usd = gpu_h * (price or book.usd_per_gpu_h)
    state.result.note("kept", instance.id, kept_for, usd, gpu_h * 60)


def keep_until(state: State, command: str | None) -> float | None:
    """Return until when the instance that this command gives back is kept; None: it is not."""
    given = state.under_way.get(command or "")
    return given.keep_until_s if isinstance(given, commands.Terminate) else None


def _end(state: State, instance: Instance, at: float, why: str) -> None:
    """Record that an instance, all that ran there and commands to it are gone since `at`."""
    state.fleet.go(instance, InstancePhase.TERMINATED)
    instance.ended_at = at
    instance.claims.clear()
    if instance.id in state.ledger.open:
        state.ledger.end(instance.id, at, state.now)
    for name in dict.fromkeys(instance.busy.values()):
        node_lost(state, state.trials[name], instance.id, why, at)
    state.under_way.pop(instance.terminate_command or "", None)
    may_launch(state)


def may_launch(state: State) -> None:
    """Forget earlier refusals: an instance is gone or will be, so another may be had now."""
    fleet = state.fleet
    fleet.refusals = 0
    state.agenda.refit = state.agenda.refit or fleet.launch_at > state.now
    fleet.launch_at = -math.inf
    fleet.until_change = False


def _settle_unready(
    state: State, instance: str, event: events.LaunchRefused | events.InstanceTerminated
) -> None:
    """Charge an instance that ended before it was ready for the time that it ran, if any."""
    if event.running_since is None:
        state.ledger.void(instance)
    else:
        state.ledger.begin_at(instance, event.running_since)
        state.ledger.end(instance, _ended_at(event), state.now)


def _ended_at(
    event: events.LaunchRefused | events.InstanceTerminated | events.InstanceLost,
) -> float:
    """Return when the instance ended by its cloud's account, but never later than the event."""
    return event.at if event.ended is None else min(event.ended, event.at)


def launch(command: commands.Launch, state: State) -> None:
    """Add a requested instance. It is charged from now on until its true start is known."""
    if not state.fleet.live and not state.fleet.any_ready:
        state.fleet.follow_s = state.now + state.facts.cluster.scout_s
    state.fleet.add(Instance(command.id, command.gpus, launch=command.id))
    if state.facts.cluster.per_instance:
        _charge(state, command.id, command.gpus, state.now)


def _charge(
    state: State, instance: str, slots: int, since_s: float, usd_per_h: float | None = None
) -> None:
    gpus, cluster = state.facts.gpus(slots), state.facts.cluster
    price = cluster.most_usd_per_gpu_h or None if usd_per_h is None else usd_per_h / gpus
    charge = Charge(instance, instance, gpus, since_s, None, cluster.minimum_s, price)
    state.ledger.start(charge)


def terminate(command: commands.Terminate, state: State) -> None:
    """Record that an instance is being given back."""
    instance = state.fleet.instances[command.instance]
    if instance.phase is InstancePhase.REQUESTED:
        del state.under_way[instance.id]
    state.fleet.go(instance, InstancePhase.RELEASING)
    instance.terminate_command = command.id


def retired(verdict: verdicts.Retired, state: State) -> None:
    """Stop using an instance that ends itself before the run does."""
    leave(state, state.fleet.instances[verdict.instance], verdict.by_s)
    state.result.note("retired", verdict.instance)


def ask_again(verdict: verdicts.Again, state: State) -> None:
    """Record when instances may be asked for again."""
    fleet = state.fleet
    if not fleet.refusals and verdict.refusals:
        fleet.refused_since = state.now
    fleet.refusals, fleet.refused = verdict.refusals, verdict.batch
    fleet.launch_at = math.inf if verdict.at_s is None else verdict.at_s
    fleet.until_change = verdict.changed
    if verdict.cause is not None:
        fleet.setback, fleet.setback_from = verdict.cause, number_of(state.next_id)


def number_of(command: str) -> int:
    """Return the number of the event with which a command was decided, from its id."""
    return int(command.partition(".")[0])
