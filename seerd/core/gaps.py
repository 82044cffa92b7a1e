"""What a journal lacks: its end was lost, or an older copy was put back. A fact is acknowledged,
and an order given, only once it is committed, so agents and store reveal lost events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from seerd.core.aiming import instances_needed
from seerd.core.events import AgentFact, AnyEvent, AttemptFact, EventsMissing
from seerd.core.ledger import LOST, Charge
from seerd.core.lifecycle import InstancePhase
from seerd.core.state import Instance, State


def lacks(state: State, instance: str, launch: str) -> bool:
    """Return whether the journal lacks an instance and its launch (numbers may be reused)."""
    instances = state.fleet.instances
    if instance in instances or not launch.partition(".")[0].isdecimal():
        return False
    return all(recorded.launch != launch for recorded in instances.values())


def gap(
    state: State,
    acked: Mapping[str, int],
    strays: Mapping[str, float],
    facts: Iterable[AnyEvent],
    missing_until_s: float,
) -> tuple[float, float] | None:
    """Return from when until when events are missing, in seconds since the run began; None: none.

    acked            instance -> number of the last fact that was acknowledged to its agent
    strays           what the journal has never started or launched -> when it was last at work
    facts            what agents have reported since
    missing_until_s  until when events are missing for another reason
    """
    ahead = any(acked.get(i.id, 0) > i.seen for i in state.fleet.instances.values())
    if not ahead and not strays:
        return (state.now, missing_until_s) if missing_until_s > state.now else None
    times = (event.happened for event in facts if isinstance(event, AgentFact))
    return state.now, max(state.now, missing_until_s, *strays.values(), *times)


def events_missing(event: EventsMissing, state: State) -> None:
    """Charge for missing events if an agent was acknowledged more than the journal has."""
    clock, instance = state.clock, state.fleet.instances.get(event.instance)
    seen = state.fleet.early.get(event.instance, 0) if instance is None else instance.seen
    if event.acked > seen and clock.gap_s < clock.resumed_s:
        _charge_lost(state, clock.left_s, clock.resumed_s)
        state.result.note("events-missing", event.instance)


def note_unknown_attempt(state: State, event: AttemptFact) -> None:
    """Charge for missing events if an agent reports an unknown attempt from before the resume."""
    trial = state.trials.get(event.trial)
    is_unknown = trial is None or event.attempt > trial.attempt
    if is_unknown and state.ledger.least_s < event.happened < state.clock.resumed_s:
        _charge_lost(state, event.happened, event.at)
        state.result.note("unknown-attempt", event.trial, event.attempt, event.instance)


def add_lost(
    state: State, lost: tuple[float, float], strays: Mapping[str, tuple[float | None, float | None]]
) -> None:
    """Charge for what a damaged journal has lost; add the instances of which it has lost all."""
    gpus, minimum_s = state.facts.cluster.sizes[0], state.facts.cluster.minimum_s
    for name, (since_s, until_s) in strays.items():
        over = InstancePhase.TERMINATED
        state.fleet.instances[name] = Instance(name, gpus, phase=over, ended_at=until_s)
        if since_s is not None:
            paid = state.facts.gpus(gpus)
            charge = Charge(name, name, paid, since_s, None, minimum_s, _price(state))
            state.ledger.start(charge)
            state.ledger.end(name, until_s or state.now, state.now)
    _charge_lost(state, *lost)


def _price(state: State) -> float | None:
    """Return the price of what nobody knows more of; None: the run's."""
    return state.facts.cluster.most_usd_per_gpu_h or None


def _charge_lost(state: State, since_s: float, until_s: float) -> None:
    """Charge lost events as all GPUs of the run, less those that are charged anyway."""
    state.clock.gap_s = state.now  # from now on ids are above those of lost events
    until_s = state.ledger.least_s = min(until_s, state.now)
    cluster, most = state.facts.cluster, state.facts.problem.limits.max_gpus
    size = cluster.gpus_per_instance
    machines = None if cluster.max_instances is None else cluster.max_instances * size
    bounds = (bound for bound in (most, machines) if bound is not None)
    wanted = Counter(allocation.gpus for allocation in state.plan.wanted.values())
    gpus = cluster.gpus(min(bounds, default=instances_needed(wanted, cluster) * size))
    for job in state.jobs.values():
        job.gpu_s += max(0, gpus - job.gpus) * max(0.0, until_s - since_s)
    rest_gpu_s = gpus * (until_s - since_s) - state.ledger.between_gpu_s(since_s, until_s)
    if rest_gpu_s > 0:
        what = f"{LOST} {since_s:.0f}"
        since_s = until_s - rest_gpu_s / gpus
        state.ledger.start(Charge(what, "", gpus, since_s, usd_per_gpu_h=_price(state)))
        state.ledger.end(what, until_s, state.now)
