"""The deadline and the budget as moments in time, in seconds since the run began. Every limit
includes the time that giving back takes, so it is kept even if the daemon dies right now.
"""

from __future__ import annotations

import math
from dataclasses import replace

from seerd.core import rules
from seerd.core.commands import Launch, Terminate
from seerd.core.ledger import NONE
from seerd.core.lifecycle import InstancePhase, RunPhase
from seerd.core.state import Instance, State
from seerd.core.verdicts import Promised, Retired
from seerd.planner.model import PlannedJob


def grace_s(state: State) -> float:
    """Return how many seconds trials have to save and exit at the end, by what this run has seen;
    0 where none saves.
    """
    return min(longest_grace_s(state), rules.learned_grace_s(state.end.seen, state.rules))


def longest_grace_s(state: State) -> float:
    """Return how many seconds a trial has to save and exit while no limit is near."""
    if not any(state.facts.problem_of(job).saves for job in state.jobs):
        return 0.0
    return rules.grace_within(
        state.facts.problem.limits.deadline_s, state.end.slowest_s, state.facts.cluster, state.rules
    )


def terminate_s(state: State) -> float:
    """Return the seconds from giving an instance back until it costs no more."""
    return 0.0 if state.facts.cluster.instant else state.facts.cluster.terminate_s


def end_s(state: State) -> float:
    """Return the seconds from the end of the grace period until nothing costs any more."""
    kill_s = _set_aside_s(state, state.rules.kill_s)
    return rules.learned_kill_s(kill_s, state.end.seen, state.rules) + terminate_s(state)


def publish_s(state: State) -> float:
    """Return the seconds from the last checkpoint until the best model is in its place. Fetching
    takes as long as storing, for which at most a tenth of the deadline is set aside.
    """
    if not state.facts.cluster.per_instance:
        assumed_s = _set_aside_s(state, state.rules.publish_s)
        beside_s = terminate_s(state)
        return rules.learned_publish_s(assumed_s, state.end.seen, beside_s, state.rules)
    most_s = state.facts.problem.limits.deadline_s / 10
    return _set_aside_s(state, state.rules.publish_s + min(state.signs.save_s, most_s))


def shortest_s(state: State) -> float:
    """Return how many seconds before the end the last attempts are started."""
    if state.facts.cluster.instant:
        return 0.0
    deadline_s = state.facts.problem.limits.deadline_s
    return rules.shortest_s(deadline_s, state.signs.first_s, state.rules)


def _set_aside_s(state: State, seconds: float) -> float:
    if state.facts.cluster.instant:
        return 0.0
    return rules.shortened(seconds, state.facts.problem.limits.deadline_s, state.rules)


def release_s(state: State) -> float:
    """Return the seconds from the decision to stop until the GPUs are free."""
    return grace_s(state) + end_s(state)


def close_at(state: State) -> float:
    """Return when all trials must stop for the best model to be published by the deadline."""
    return state.facts.problem.limits.deadline_s - release_s(state) - publish_s(state)


def exhausted_at(state: State) -> float:
    """Return when all trials must stop to keep the budget."""
    book, wait_s = state.ledger, release_s(state)
    if book.money is None:
        return book.exhausted_at(budget_gpu_s(state), wait_s)
    by_time_s = book.exhausted_at(state.facts.problem.limits.budget_gpu_s, wait_s)
    return min(by_time_s, book.money.exhausted_at(cost_gpu_s(state), at_most_s(state, wait_s)))


def budget_gpu_s(state: State) -> float:
    """Return the tighter of the two budgets, GPU time and money, in GPU-seconds."""
    return state.facts.problem.limits.gpu_s(state.ledger.usd_per_gpu_h)


def cost_gpu_s(state: State) -> float:
    """Return how many GPU-seconds at the run's price the budget of money is."""
    return replace(state.facts.problem.limits, budget_gpu_s=math.inf).gpu_s(
        state.ledger.usd_per_gpu_h
    )


def at_most_s(state: State, seconds: float) -> float:
    """Return in how many seconds at today's prices as much money is spent as in `seconds`, if all
    prices rise to the most that they may; they may have risen already.
    """
    book, cluster = state.ledger, state.facts.cluster
    if not cluster.most_usd_per_gpu_h or book.money is None or book.money.open_gpus < NONE:
        return seconds
    dearest = book.open_gpus * cluster.most_usd_per_gpu_h / book.usd_per_gpu_h
    more = max(0.0, dearest / book.money.open_gpus - 1.0)
    return seconds + more * (seconds + cluster.price_lag_s)


def quiet_by(state: State) -> float:
    """Return when no attempt may be left if all are stopped now; limits go before grace."""
    last_s = max(limit_at(state) + release_s(state), state.now + end_s(state))
    wanted_s = state.now + longest_grace_s(state) + end_s(state)
    return min(wanted_s, last_s) - terminate_s(state)


def grace_left_s(state: State) -> float:
    """Return the seconds that are left of the grace period; it begins when all trials must stop."""
    left_s = (state.end.close_by or 0.0) + terminate_s(state) - end_s(state) - state.now
    if state.phase is RunPhase.RUNNING:
        left_s = limit_at(state) + grace_s(state) - state.now
    return max(0.0, min(longest_grace_s(state), left_s))


def time_left(state: State, first_s: float = 0.0) -> bool:
    """Return whether an attempt that begins in `first_s` seconds can do something by the end."""
    return state.now + first_s < close_at(state) - shortest_s(state)


def affordable(state: State, gpus: int) -> bool:
    """Return whether the budget allows a trial `gpus` more slots until they can be given back."""
    wait_s = release_s(state)
    more = state.facts.gpus(gpus) * wait_s if not state.facts.cluster.per_instance else 0.0
    return state.ledger.within(budget_gpu_s(state) - more, state.now + wait_s)


def affordable_launch(state: State, gpus: int) -> bool:
    """Return whether the budget allows one more rented instance: its minimum and boot, with all
    launches under way until they would end themselves without a daemon.
    """
    cluster = state.facts.cluster
    if not cluster.per_instance:
        return True
    by_s = max(state.now + release_s(state), alone_until(state) + terminate_s(state))
    least_s = max(cluster.minimum_s, cluster.boot_s + release_s(state), by_s - state.now)
    return _affordable_by(state, state.facts.gpus(gpus) * least_s, by_s)


def affordable_keep(state: State, instance: Instance) -> bool:
    """Return whether the budget allows one more instance to be kept for another run until it ends
    itself, beside those that are being let go of.
    """
    ends = (c for c in state.under_way.values() if isinstance(c, Terminate))
    kept = [state.fleet.instances[end.instance] for end in ends if end.keep_until_s is not None]
    gpus = sum(state.facts.gpus(each.gpus) for each in (*kept, instance))
    more_gpu_s = gpus * state.facts.cluster.keep_s
    return _affordable_by(state, more_gpu_s, state.now + terminate_s(state))


def _affordable_by(state: State, more_gpu_s: float, by_s: float) -> bool:
    """Return whether what is rented now can be paid until `by_s`, and so many GPU-seconds more at
    the highest price.
    """
    book, cluster = state.ledger, state.facts.cluster
    if book.money is None and not cluster.most_usd_per_gpu_h:
        return book.within(budget_gpu_s(state) - more_gpu_s, by_s)
    dearer = (cluster.most_usd_per_gpu_h or book.usd_per_gpu_h) / book.usd_per_gpu_h
    left_gpu_s = cost_gpu_s(state) - more_gpu_s * dearer
    at_s = state.now + at_most_s(state, by_s - state.now)
    by_time = book.within(state.facts.problem.limits.budget_gpu_s - more_gpu_s, by_s)
    return by_time and (book.money or book).within(left_gpu_s, at_s)


def alone_until(state: State) -> float:
    """Return when the last launch under way would end by itself, or minus infinity."""
    charges, ends = state.ledger.open, [-math.inf]
    for name, command in state.under_way.items():
        if isinstance(command, Launch) and name in charges and command.orphan_timeout_s is not None:
            ends.append(charges[name].since_s + command.orphan_timeout_s)
    return max(ends)


def lease_s(state: State, now: float) -> float:
    """Return how many seconds from `now` on agents may go on without the daemon. The lease ends
    before the run must close, so that an agent alone keeps deadline and budget; limits of single
    jobs do not shorten it.
    """
    if state.phase is not RunPhase.RUNNING:
        return max(0.0, (state.end.close_by or 0.0) - now)
    return max(0.0, min(state.rules.lease_s, _lease_by(state) - now))


def off_in_s(state: State, now: float) -> float:
    """Return how many seconds instances may still cost; less than 0 if a limit is past."""
    off_by = min(state.facts.problem.limits.deadline_s, exhausted_at(state) + release_s(state))
    return off_by - terminate_s(state) - now


def spare_s(state: State, now: float) -> float:
    """Return how many seconds the end of the run may still wait for a machine within its limits.
    Until it is given up it may hold back the last word on its trials, and so the model.
    """
    last_s = max(publish_s(state), _set_aside_s(state, state.rules.publish_s))
    deadline_s = state.facts.problem.limits.deadline_s - last_s
    return max(0.0, min(deadline_s, exhausted_at(state) + release_s(state)) - now)


def lease_grace_s(state: State, now: float) -> float:
    """Return how many seconds trials have to save after a lease; 0 while the run closes."""
    if state.phase is not RunPhase.RUNNING:
        return 0.0
    return max(0.0, grace_s(state) + min(0.0, _lease_by(state) - now))


def _lease_by(state: State) -> float:
    return limit_at(state) + end_s(state) / 2


def last_s(state: State, now: float) -> float:
    """Return how many seconds after lease and grace agents may store the last checkpoints. Deadline
    and budget count more than a checkpoint that is not stored by then.
    """
    alone_s = lease_s(state, now) + lease_grace_s(state, now)
    return max(0.0, min(state.rules.last_s, off_in_s(state, now) - alone_s))


def orphan_timeout_s(state: State) -> float | None:
    """Return how many seconds an instance that is launched now may run before it has an agent:
    limits are kept even without a daemon. None if instances cost nothing by themselves.
    """
    cluster = state.facts.cluster
    if not cluster.per_instance or cluster.instant:
        return None
    most_s = max(state.rules.orphan_timeout_s, cluster.orphan_s)
    return min(most_s, max(0.0, off_in_s(state, state.now)))


def job_ends(state: State, job: PlannedJob) -> tuple[float, float]:
    """Return by when nothing of a job may be left, for its own deadline and budget, or infinity."""
    own, whole, used = job.problem.limits, state.facts.problem.limits, state.jobs[job.id]
    by_s = exhausted_s = math.inf
    if own.deadline_s < whole.deadline_s:
        by_s = own.deadline_s - publish_s(state)
    if own.budget_gpu_s < whole.budget_gpu_s:
        left_gpu_s = own.budget_gpu_s - used.spent_gpu_s(state.now)
        if used.gpus:
            exhausted_s = state.now + left_gpu_s / used.gpus
        elif left_gpu_s <= 0:
            exhausted_s = state.now
    return by_s, exhausted_s


def _planned(state: State, name: str) -> PlannedJob | None:
    return next((job for job in state.facts.problem.jobs if job.id == name), None)


def own_limit_at(state: State) -> float:
    """Return when the next job's trials must stop for its own limits, or infinity."""
    if state.phase is not RunPhase.RUNNING:
        return math.inf
    ends = (min(job_ends(state, job)) for job in state.facts.problem.jobs if not job.over)
    return min(ends, default=math.inf) - release_s(state)


def job_grace_left_s(state: State, name: str) -> float:
    """Return the seconds that trials of a job still have to save and exit for its own limits."""
    job = _planned(state, name)
    if job is None:
        return math.inf
    return max(0.0, min(job_ends(state, job)) - end_s(state) - state.now)


def affordable_for_job(state: State, name: str, gpus: int) -> bool:
    """Return whether a job's own limits allow `gpus` more slots, long enough to do something."""
    job = _planned(state, name)
    if job is None:
        return True
    if job.over:
        return False
    own, (by_s, _) = job.problem.limits, job_ends(state, job)
    if own.budget_gpu_s < state.facts.problem.limits.budget_gpu_s:
        used = state.jobs[name]
        left_gpu_s = own.budget_gpu_s - used.spent_gpu_s(state.now)
        if left_gpu_s < (used.gpus + state.facts.gpus(gpus)) * least_s(state):
            return False
    return by_s - state.now > least_s(state)


def least_s(state: State) -> float:
    """Return the fewest seconds in which an attempt can do something and be stopped."""
    return shortest_s(state) + release_s(state)


def limit_at(state: State) -> float:
    """Return when all trials must be asked to stop, for whichever limit comes first."""
    return min(close_at(state), exhausted_at(state))


def training_ends_at(state: State) -> float:
    """Return when trials that go on until the end must expect to stop. Before the last stage that
    is the plan's end: the GPUs of the present stage do not predict the budget's end.
    """
    stages = state.outline.stages
    if stages and state.now < stages[-1].end_s and state.plan.stage < len(stages) - 1:
        return min(close_at(state), stages[-1].end_s)
    return limit_at(state)


def promise(state: State) -> Promised:
    """Return what agents may rely on from now on."""
    limit_s = limit_at(state)
    return Promised(
        lease_s=state.rules.lease_s,
        limit_s=limit_s if math.isfinite(limit_s) else None,
        grace_s=grace_s(state),
        end_s=end_s(state),
    )


def gone_by(state: State) -> float:
    """Return by when everything that a dead daemon left behind has let go: its last lease, which a
    limit may have cut short, and the time to save are over.
    """
    if state.end.close_by is not None:
        return max(state.clock.previous_s, state.end.close_by + terminate_s(state))
    promised, previous_s = state.end.promised or promise(state), state.clock.previous_s
    limit_s = math.inf if promised.limit_s is None else promised.limit_s
    lasts_s = max(0.0, min(promised.lease_s, limit_s - previous_s + promised.end_s / 2))
    by_lease = previous_s + lasts_s + promised.grace_s + promised.end_s
    return min(by_lease, max(previous_s, limit_s + promised.grace_s + promised.end_s))


def wake_at(state: State) -> float:
    """Return the next moment at which something is due, infinite if there is none."""
    if state.phase is RunPhase.CLOSING:
        return state.end.close_by if state.end.close_by is not None else math.inf
    if state.phase is not RunPhase.RUNNING:
        return math.inf
    fleet, launch_at = state.fleet, math.inf
    if state.now < fleet.launch_at and fleet.live < state.aims.needed:
        launch_at = fleet.launch_at
    scout_s = state.facts.cluster.scout_s
    scouts = fleet.live and fleet.live < state.aims.needed and fleet.scouts(state.now, scout_s)
    if scouts and fleet.setback is None and state.now < fleet.follow_s:
        launch_at = min(launch_at, fleet.follow_s)
    last_at = math.inf if fleet.holding else close_at(state) - shortest_s(state)
    blocks = (job.block.again_s for job in state.jobs.values() if job.block is not None)
    unblocks_at = min((again_s for again_s in blocks if again_s > state.now), default=math.inf)
    retire_at = min((at for at, _ in retiring(state)), default=math.inf)
    own = min(launch_at, last_at, retire_at, unblocks_at)
    return min(own, _ask_at(state), limit_at(state))


def retiring(state: State) -> list[tuple[float, Retired]]:
    """Return the instances that end before the run, or are rebooted, and when each is replaced."""
    lead_s, limit_s = state.rules.retire_s + release_s(state), limit_at(state)
    rented, ready = state.fleet.instances.values(), InstancePhase.READY
    ends = ((i.ends_s, i.id) for i in rented if i.phase is ready and i.ends_s - lead_s < limit_s)
    return [(ends_s - lead_s, Retired(instance=name, by_s=ends_s)) for ends_s, name in ends]


def _ask_at(state: State) -> float:
    plan = state.plan
    if plan.question is not None:
        return math.inf
    if plan.failures:
        return plan.again_s if plan.again_s > state.now else math.inf
    return math.inf if plan.last.ask_at_s is None else plan.last.ask_at_s
