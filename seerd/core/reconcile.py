"""The difference between what is wanted and what is, as commands. What is under way counts as done.
Each command is applied before the next is looked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from seerd.core import commands, limits
from seerd.core.aiming import count_needed
from seerd.core.attempts import hangs
from seerd.core.commands import AnyCommand, PublishCause, StartCause, StopCause, TerminateCause
from seerd.core.failures import has_to_wait
from seerd.core.jobs import to_publish
from seerd.core.lifecycle import InstancePhase, RunPhase, TrialPhase
from seerd.core.metrics import incumbent, sign_of
from seerd.core.provisioning import asked_together, held_back
from seerd.core.state import LIVE, Instance, State, Trial
from seerd.core.store_outage import left_on
from seerd.core.verdicts import Grown, HeldBack, HoldCause
from seerd.planner.trial_ids import job_of

SOONER_S = 0.1  # a stop is not repeated for less than this
KEEPING = ("done", "target", "deadline", "budget")  # runs that end so keep their instances
FOR_OTHERS = ("paused", "reached", "resized", "displaced", "moved")  # stops to start something else


def reconcile(state: State) -> Iterator[AnyCommand | HeldBack | Grown]:
    """Yield what must be asked for now, but for what a coming plan might undo."""
    agenda = state.agenda
    touched, agenda.touched = state.aims.blocked | agenda.touched, {}
    for name in touched:
        yield from _stop_if_misplaced(state, state.trials[name])
    if agenda.hold:
        agenda.touched = touched | agenda.touched
        return
    waits: HeldBack | None = None
    state.aims.blocked = {}
    for name in touched:
        yield from _grow_if_possible(state, state.trials[name])
        yield from _start_if_possible(state, state.trials[name])
        waits = waits or _refused_start(state, state.trials[name])
    if state.phase is RunPhase.RUNNING:
        yield from _fit_instances(state)
        yield from _hold_back(state, waits)
        yield from _publish_next(state, to_publish(state))
    elif state.phase is RunPhase.RELEASING:
        yield from _release_and_publish(state)


def set_timer(state: State) -> Iterator[commands.SetTimer]:
    """Yield a new timer if something is due before the present one, or if none is set."""
    due, timer = min(limits.wake_at(state), limits.own_limit_at(state)), state.clock.timer
    set_already = timer is not None and timer.due <= due + state.rules.timer_slack_s
    if due < math.inf and not set_already:
        yield commands.SetTimer(id=state.next_id, due=max(due, state.now))


def _stop_if_misplaced(state: State, trial: Trial) -> Iterator[commands.StopTrial]:
    """Stop an attempt that should not be where it is. Those of eliminated, broken or hanging trials
    are killed; others may save first. A stop under way is repeated only as a kill, or with less
    time when the run closes.
    """
    hung, grows = hangs(trial), _grows_in_place(state, trial)
    is_placed = trial.held == trial.target or grows
    if trial.held is None or (is_placed and not trial.out and not trial.broken and not hung):
        return
    kill = trial.out or state.end.hard or hung or (trial.broken and not trial.saved)
    grace_s = 0.0 if kill else _grace_s(state, trial)
    if trial.phase is TrialPhase.STOPPING:
        before = state.under_way.get(trial.stop_command or "")
        if not isinstance(before, commands.StopTrial) or not before.checkpoint:
            return
        sooner_s = trial.asked_s + before.grace_s - state.now - grace_s
        is_due = state.phase is not RunPhase.RUNNING and sooner_s >= SOONER_S
        if not kill and (trial.saved or not is_due):
            return
    why = _stop_cause(state, trial, hung=hung)
    ends_s = min(state.end.slowest_s, _between_reports_s(trial)) + state.rules.kill_s
    fully_trained = trial.judged is not None and trial.judged.final
    is_over = fully_trained or state.jobs[job_of(trial.id)].over is not None
    if why in FOR_OTHERS and not is_over and not limits.time_left(state, ends_s):
        state.touch(trial.id)  # for another cause, or when the limits are extended
        return
    first, *others = [slots.node for slots in trial.left]
    yield commands.StopTrial(
        id=state.next_id,
        trial=trial.id,
        attempt=trial.attempt,
        instance=first,
        checkpoint=not kill,
        grace_s=grace_s,
        beside=tuple(others),
        why=why,
        others=_heirs(state, trial) if why in ("displaced", "moved") else (),
    )


def _between_reports_s(trial: Trial) -> float:
    """Return how many seconds before its last report a trial made the one before, or began."""
    times = [report.at_s for report in trial.history[-2:]]
    if len(times) == 1 and trial.began_s is not None:
        times.insert(0, trial.began_s)
    return times[1] - times[0] if len(times) == 2 else math.inf


def _stop_cause(state: State, trial: Trial, *, hung: bool) -> StopCause:
    if state.end.hard:
        return "hard"
    if trial.out:
        return "out"
    if hung:
        return "hung"
    if trial.broken:
        return "node"
    if state.phase is not RunPhase.RUNNING:
        return "closing"
    nodes = [(state.fleet.instances[slots.node], slots.gpus) for slots in trial.left]
    if any(node.phase is InstancePhase.LEAVING for node, _ in nodes):
        return "leaving"
    if trial.gpus == 0:
        return "paused" if trial.reached is None else "reached"
    if any(max(gpus) >= node.usable for node, gpus in nodes):
        return "shared"
    if trial.gpus != sum(len(slots.gpus) for slots in trial.held or ()):
        return "resized"
    return "displaced" if trial.target is None else "moved"


def _heirs(state: State, trial: Trial) -> tuple[str, ...]:
    claims = (state.fleet.instances[s.node].claims.get(gpu) for s in trial.left for gpu in s.gpus)
    return tuple(dict.fromkeys(name for name in claims if name is not None and name != trial.id))


def _grace_s(state: State, trial: Trial) -> float:
    """Return the seconds that an attempt has to save, and to exit before its instance is taken."""
    own_left_s = limits.job_grace_left_s(state, job_of(trial.id))
    if own_left_s < math.inf:  # when the job is over, a stop that is under way is not repeated
        own_left_s = min(own_left_s, limits.grace_s(state))
    left_s = min(limits.grace_left_s(state), own_left_s)
    if trial.saved:
        left_s = min(left_s, state.rules.grace_min_s)
    if not state.fleet.leaving:
        return left_s
    ends = (state.fleet.instances[slots.node].by for slots in trial.left)
    by = min((end for end in ends if end is not None), default=math.inf)
    return min(left_s, max(0.0, by - state.rules.notice_margin_s - state.now))


def _start_if_possible(state: State, trial: Trial) -> Iterator[commands.StartTrial]:
    if not _could_start(state, trial) or not limits.time_left(state):
        return
    own = limits.affordable_for_job(state, job_of(trial.id), trial.gpus)
    if not own or not limits.affordable(state, trial.gpus):
        return
    if has_to_wait(state, trial):
        state.aims.blocked[trial.id] = None
        return
    first, *others = trial.target or ()
    yield commands.StartTrial(
        id=state.next_id,
        trial=trial.id,
        attempt=max(trial.attempt, math.ceil(state.clock.gap_s)) + 1,
        instance=first.node,
        gpus=first.gpus,
        config=dict(trial.config),
        seed=trial.seed,
        checkpoints=tuple(c.name for c in trial.checkpoints),
        beside=tuple((slots.node, slots.gpus) for slots in others),
        why=_start_cause(trial),
    )


def _grows_in_place(state: State, trial: Trial) -> bool:
    """Return whether an attempt is to have more of the GPU of which it has a part."""
    if trial.held is None or trial.target is None or trial.phase is TrialPhase.STOPPING:
        return False
    if len(trial.held) > 1 or len(trial.target) > 1:
        return False
    (held,), (target,) = trial.held, trial.target
    is_part = held.node == target.node and len(target.gpus) <= state.facts.parts
    return is_part and set(held.gpus) < set(target.gpus)


def _grow_if_possible(state: State, trial: Trial) -> Iterator[Grown | commands.GrowTrial]:
    """Let an attempt have more of its GPU, once its neighbours have left and if it can be paid."""
    if trial.phase is not TrialPhase.RUNNING or not _grows_in_place(state, trial):
        return
    ((node, gpus),) = ((slots.node, slots.gpus) for slots in trial.target or ())
    busy, more = state.fleet.instances[node].busy, len(gpus) - trial.had
    is_free = all(busy.get(gpu, trial.id) == trial.id for gpu in gpus)
    own = limits.affordable_for_job(state, job_of(trial.id), more)
    if is_free and own and limits.affordable(state, more):
        yield Grown(trial=trial.id, gpus=gpus, had=trial.had)
        yield commands.GrowTrial(
            id=state.next_id, trial=trial.id, attempt=trial.attempt, instance=node, gpus=gpus
        )


def _start_cause(trial: Trial) -> StartCause:
    if not trial.attempt:
        return "first"
    if trial.fault is not None:
        return trial.fault
    if trial.stopped == "resized":
        return "resized"
    return "moved" if trial.stopped in ("moved", "displaced", "shared", "leaving") else "went-on"


def _could_start(state: State, trial: Trial) -> bool:
    """Return whether a trial waits and all its GPUs are free."""
    if trial.phase is not TrialPhase.WAITING or trial.target is None or trial.held is not None:
        return False
    nodes = ((state.fleet.instances[slots.node], slots.gpus) for slots in trial.target)
    return all(
        node.phase is InstancePhase.READY and not any(gpu in node.busy for gpu in gpus)
        for node, gpus in nodes
    )


def _refused_start(state: State, trial: Trial) -> HeldBack | None:
    """Return why a trial whose GPUs are free is not started; None if it is not such a trial."""
    if not _could_start(state, trial) or trial.id in state.aims.blocked:
        return None
    why: HoldCause = "budget" if limits.time_left(state) else "late"
    return HeldBack(why=why, trial=trial.id, needed=state.aims.needed, had=state.fleet.live)


def _fit_instances(state: State) -> Iterator[AnyCommand]:
    """Launch the instances that wanted trials need; give back rented ones that none needs."""
    agenda, fleet = state.agenda, state.fleet
    if not agenda.refit:
        return
    agenda.refit = False
    idle, agenda.idle = agenda.idle, {}
    for name in idle if fleet.leaving else ():
        instance = fleet.instances[name]
        if instance.phase is InstancePhase.LEAVING and not instance.busy:
            yield _termination(state, instance, "leaving")
    sizes_vary = bool(state.facts.cluster.other_sizes)
    if sizes_vary:
        count_needed(state)  # what has come may be smaller than what was asked for
    launched, alone_s = asked_together(state)
    for size in launched:
        why = agenda.because
        yield commands.Launch(id=state.next_id, gpus=size, orphan_timeout_s=alone_s, why=why)
    if launched and sizes_vary:
        count_needed(state)
    if state.facts.cluster.per_instance and idle:
        kept, hold = state.aims.needed, state.plan.last.hold_gpus
        held = sum(i.gpus for i in fleet.instances.values() if i.phase in LIVE)
        for instance in map(fleet.instances.__getitem__, idle):
            unused = not (instance.busy or instance.claims or instance.id in state.aims.used)
            spare = fleet.live > kept and held - instance.gpus >= hold
            if spare and instance.phase is InstancePhase.READY and unused:
                held -= instance.gpus
                yield _termination(state, instance, "idle")


def _termination(
    state: State, instance: Instance, why: TerminateCause, keep_until_s: float | None = None
) -> commands.Terminate:
    return commands.Terminate(
        id=state.next_id,
        instance=instance.id,
        why=why,
        left=left_on(state, instance.id),
        keep_until_s=keep_until_s,
    )


def _is_worth_keeping(state: State, instance: Instance) -> bool:
    """Return whether an instance is kept for another run: it works, nothing runs there, the run has
    ended by itself, with reports, and the limits have room for the time until it ends itself.
    """
    idle = instance.phase is InstancePhase.READY and not instance.busy and instance.until is None
    if not idle or not state.facts.cluster.keep_s or state.end.status not in KEEPING:
        return False
    reported = any(trial.history for trial in state.trials.values())
    return reported and limits.affordable_keep(state, instance)


def _hold_back(state: State, waits: HeldBack | None) -> Iterator[HeldBack]:
    """Report when something wanted begins not to be asked for, and when that ends."""
    before = state.fleet.held_back
    why = held_back(state)
    now = waits
    if why is not None:
        now = HeldBack(why=why, needed=state.aims.needed, had=state.fleet.live)
    if now is None and before is not None and before.trial is not None:
        now = _refused_start(state, state.trials[before.trial])
    if _kind(now) != _kind(before):
        yield now or HeldBack()


def _kind(held: HeldBack | None) -> tuple[HoldCause | None, bool] | None:
    return None if held is None else (held.why, held.trial is not None)


def _release_and_publish(state: State) -> Iterator[AnyCommand]:
    if state.fleet.live or state.fleet.leaving:
        for instance in list(state.fleet.instances.values()):
            if instance.phase in (*LIVE, InstancePhase.LEAVING):
                kept_s = state.now + state.facts.cluster.keep_s
                keep_until_s = kept_s if _is_worth_keeping(state, instance) else None
                yield _termination(state, instance, "end", keep_until_s)
    yield from _publish_next(state, state.jobs)
    if state.result.publishing is None and not state.fleet.present:
        yield commands.Finish(id=state.next_id, status=state.end.status or "failed")


def _publish_next(state: State, jobs: Iterable[str]) -> Iterator[commands.Publish]:
    """Publish the first of these jobs' models that is better than what is in its place."""
    if state.result.publishing is not None:
        return
    for job in (job for job in jobs if job not in state.result.no_model):
        best, published = incumbent(state, job), state.result.of_jobs.get(job)
        sign = sign_of(state.facts.goals[job])
        why: PublishCause = "better"
        if published is None:
            why = "next" if state.result.unreadable else "best"
        if best is None or (
            published is not None and not sign * best.metric > sign * published.incumbent.metric
        ):
            continue
        yield commands.Publish(
            id=state.next_id,
            trial=best.trial,
            config=dict(state.trials[best.trial].config),
            checkpoint=best.checkpoint.name,
            sha256=best.checkpoint.sha256,
            metric=best.metric,
            why=why,
        )
        return
