"""The safety properties of the core that hold after every step, checked in tests and in the
simulated world with faults; each can be compared with docs/rules.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from seerd.core.commands import Publish
from seerd.core.lifecycle import InstancePhase, RunPhase, TrialPhase
from seerd.core.limits import budget_gpu_s
from seerd.core.state import GONE, LIVE, PRESENT, State, Trial
from seerd.planner.trial_ids import job_of

HOLDING = (TrialPhase.STARTING, TrialPhase.RUNNING, TrialPhase.STOPPING)
EPSILON_S = 1e-6

Active = Sequence[Trial]


def violations(state: State) -> list[str]:
    """Return what is wrong, one line each; empty if nothing is."""
    active = [trial for trial in state.trials.values() if _is_active(trial)]
    return [f"{check.__name__}: {what}" for check in CHECKS for what in check(state, active)]


def _is_active(trial: Trial) -> bool:
    """Whether the trial has, or says that it has, anything that only some trials have: most checks
    look at no others, since they are made after every event.
    """
    return (
        trial.held is not None
        or trial.target is not None
        or trial.start_command is not None
        or trial.stop_command is not None
        or bool(trial.ends)
        or trial.hung
        or trial.phase in HOLDING
    )


def _holding(active: Active) -> list[Trial]:
    return [trial for trial in active if trial.held is not None]


def no_gpu_is_held_twice(state: State, active: Active) -> Iterator[str]:
    """Every GPU belongs to at most one attempt, and instances and trials agree on which."""
    parts = [(trial.id, slots) for trial in _holding(active) for slots in trial.left]
    held = [(slots.node, gpu, name) for name, slots in parts for gpu in slots.gpus]
    for (node, gpu), times in Counter((node, gpu) for node, gpu, _ in held).items():
        if times > 1:
            yield f"GPU {gpu} of {node} is held {times} times"
    instances = state.fleet.instances.values()
    busy = {(i.id, gpu, trial) for i in instances for gpu, trial in i.busy.items()}
    if busy != set(held):
        yield f"instances and trials disagree: {busy ^ set(held)}"


def a_trial_that_fits_is_not_split(state: State, active: Active) -> Iterator[str]:
    """A trial spans instances only if no unshared instance has GPUs enough for it; where they come
    in several sizes those may have had no room.
    """
    for trial in () if state.facts.cluster.other_sizes else _holding(active):
        if trial.held is None or len(trial.held) == 1:
            continue
        gpus = sum(len(slots.gpus) for slots in trial.held)
        instances = state.fleet.instances.values()
        if any(instance.share is None and instance.gpus >= gpus for instance in instances):
            yield f"{trial.id} with {gpus} GPUs spans {len(trial.held)} instances"


def parts_of_a_trial_are_on_one_gpu(state: State, active: Active) -> Iterator[str]:
    """A trial has slots of one GPU, or whole GPUs."""
    parts = state.facts.parts
    for trial in _holding(active):
        for slots in trial.held or ():
            on = Counter(slot // parts for slot in slots.gpus)
            if len(on) > 1 and set(on.values()) != {parts}:
                yield f"{trial.id} has slots {slots.gpus} of {slots.node}, {parts} a GPU"


def phases_and_gpus_agree(state: State, active: Active) -> Iterator[str]:
    """A trial holds GPUs exactly while an attempt of it may have processes."""
    for trial in active:
        if (trial.phase in HOLDING) != (trial.held is not None):
            yield f"{trial.id} is {trial.phase} and holds {trial.held}"


def what_is_held_is_paid(state: State, active: Active) -> Iterator[str]:
    """The open charges are exactly what costs now."""
    costs = {trial.key_on(slots.node) for trial in _holding(active) for slots in trial.left}
    if state.facts.cluster.per_instance:
        phases = (InstancePhase.REQUESTED, *PRESENT)
        costs = {i.id for i in state.fleet.instances.values() if i.phase in phases}
    if costs != set(state.ledger.open):
        yield f"charged: {sorted(state.ledger.open)}, costs: {sorted(costs)}"


def what_is_counted_is_there(state: State, active: Active) -> Iterator[str]:
    """Every number that the fleet keeps is what a recount gives."""
    fleet, phases = state.fleet, [instance.phase for instance in state.fleet.instances.values()]
    recount = {
        "live": sum(phase in LIVE for phase in phases),
        "leaving": phases.count(InstancePhase.LEAVING),
        "present": sum(phase not in GONE for phase in phases),
        "holding": len(_holding(active)),
    }
    for name, count in recount.items():
        if getattr(fleet, name) != count:
            yield f"{count} are {name}, {getattr(fleet, name)} are counted"


def launches_rest_only_until_a_change_that_can_come(state: State, active: Active) -> Iterator[str]:
    """Launches wait for an instance to come or go only while one can."""
    if state.fleet.until_change and not state.fleet.present:
        yield "launches rest until an instance comes or goes, and there is none"


def a_leaving_instance_gets_nothing_new(state: State, active: Active) -> Iterator[str]:
    """Nothing new goes to a leaving instance, and attempts there are stopping."""
    leaving = {i.id for i in state.fleet.instances.values() if i.phase is InstancePhase.LEAVING}
    if not leaving:
        return
    for name in leaving:
        if state.fleet.instances[name].claims:
            yield f"GPUs of {name} are promised"
    for trial in active:
        if affected := leaving & {slots.node for slots in trial.target or ()}:
            yield f"{trial.id} is to go to {affected}"
    for trial in _holding(active):
        affected = leaving & {slots.node for slots in trial.left}
        if affected and trial.phase is not TrialPhase.STOPPING:
            yield f"{trial.id} is {trial.phase} on {affected}"


def the_nodes_of_an_attempt_end_together(state: State, active: Active) -> Iterator[str]:
    """An attempt that ended unasked on one instance is being ended on the others."""
    for trial in active:
        if not trial.ends and not trial.hung:
            continue
        if trial.ends and not trial.left:
            yield f"{trial.id} has ended everywhere and still holds {trial.held}"
        if trial.broken and trial.phase is not TrialPhase.STOPPING:
            nodes = [slots.node for slots in trial.left]
            yield f"{trial.id} is {trial.phase} on {nodes} and has ended on {list(trial.ends)}"


def the_budget_is_kept(state: State, active: Active) -> Iterator[str]:
    """What has been spent does not exceed the budget."""
    spent = state.ledger.spent_gpu_s(state.now)
    if spent > budget_gpu_s(state) + EPSILON_S:
        yield f"{spent:.3f} GPU-seconds spent of {budget_gpu_s(state):.3f}"


def nothing_is_left_at_the_end(state: State, active: Active) -> Iterator[str]:
    """No instance costs and no trial runs when the run is over."""
    if state.phase is not RunPhase.OVER:
        return
    for instance in state.fleet.instances.values():
        if instance.phase not in GONE:
            yield f"{instance.id} is {instance.phase}"
    if state.fleet.holding:
        yield f"{state.fleet.holding} trials still hold GPUs"


def the_result_is_confirmed(state: State, active: Active) -> Iterator[str]:
    """A published model is a confirmed checkpoint, which newer ones may have replaced since."""
    for job, published in state.result.of_jobs.items():
        best = published.incumbent
        kept = state.trials[best.trial].checkpoints
        newer = any(checkpoint.reports > best.checkpoint.reports for checkpoint in kept)
        if best.checkpoint not in kept and not newer:
            yield f"{best.checkpoint.name} of {best.trial} was never confirmed"
        if job_of(best.trial) != job:
            yield f"{best.trial} was handed back as the model of {job or 'the run'}"


def nothing_better_is_kept(state: State, active: Active) -> Iterator[str]:
    """No better model than the published one is kept when a run is over."""
    for job, published in state.result.of_jobs.items() if state.finished else ():
        sign = 1 if state.facts.goals[job].mode == "max" else -1
        best = sign * published.incumbent.metric
        its = (trial for trial in state.trials.values() if job_of(trial.id) == job)
        for kept in (checkpoint for trial in its for checkpoint in trial.checkpoints):
            name = f"{kept.trial}/{kept.name}"
            better = kept.metric is not None and sign * kept.metric > best
            if better and not {name, job} & (state.result.unreadable | state.result.no_model):
                yield f"{name} is better than the model of {job or 'the run'}"


def what_jobs_hold_is_counted(state: State, active: Active) -> Iterator[str]:
    """Each job's GPUs are those that its trials hold, and none are held outside of jobs."""
    held = Counter[str]()
    for trial in _holding(active):
        held[job_of(trial.id)] += sum(len(slots.gpus) for slots in trial.left)
    for name in held.keys() | state.jobs.keys():
        counted = state.jobs[name].gpus if name in state.jobs else 0
        gpus = state.facts.gpus(held[name])
        if counted != gpus:
            yield f"trials of {name or 'the run'} hold {gpus} GPUs, {counted} are counted"


def a_job_that_is_over_is_over_for_all(state: State, active: Active) -> Iterator[str]:
    """The policy knows which jobs are over, and nothing is wanted of them."""
    over = {name for name, job in state.jobs.items() if job.over is not None}
    planned = {job.id for job in state.facts.problem.jobs if job.over}
    if over != planned:
        yield f"over: {sorted(over)}, known to the policy: {sorted(planned)}"
    for name in state.plan.wanted:
        if job_of(name) in over:
            yield f"{name} is wanted, and its job is over"


def one_model_is_published_at_a_time(state: State, active: Active) -> Iterator[str]:
    """A model is being published exactly while a command to publish it is under way."""
    result = state.result
    under_way = [c.trial for c in state.under_way.values() if isinstance(c, Publish)]
    expected = [] if result.publishing is None else [result.publishing.trial]
    if under_way != expected:
        yield f"{under_way} are under way, {expected} is being published"
    if result.publishing is not None and job_of(result.publishing.trial) in result.no_model:
        yield f"{expected[0]} is being published, and the store gives no model"


def what_is_wanted_may_run(state: State, active: Active) -> Iterator[str]:
    """The plan wants only trials that are not out, and nothing once the run closes."""
    plan = state.plan
    for name in plan.wanted:
        if state.trials[name].status != "live" or name not in plan.order:
            yield f"{name} is wanted and {state.trials[name].status}"
    open_still = plan.wanted or plan.question is not None or plan.answer is not None
    if state.phase is not RunPhase.RUNNING and open_still:
        yield f"the run is {state.phase}; wanted: {list(plan.wanted)}; asked: {plan.question}"


def time_does_not_go_back(state: State, active: Active) -> Iterator[str]:
    """The present event did not come before the one before it."""
    clock = state.clock
    if not 0 <= clock.previous_s <= clock.now or min(clock.seq, clock.issued) < 0:
        yield f"event {clock.seq} is of {clock.now}, the one before it of {clock.previous_s}"


def the_end_is_known_when_it_begins(state: State, active: Active) -> Iterator[str]:
    """Status, cause and moment of the end are known exactly while a run closes."""
    end = state.end
    decided = [value is not None for value in (end.status, end.why, end.close_by)]
    if end.phase is RunPhase.RUNNING and (any(decided) or end.hard):
        yield f"it goes on, and ends {end.status} ({end.why}) by {end.close_by}"
    if end.phase is not RunPhase.RUNNING and not all(decided):
        yield f"it is {end.phase}, and ends {end.status} ({end.why}) by {end.close_by}"


def what_is_under_way_is_awaited(state: State, active: Active) -> Iterator[str]:
    """Exactly those commands are under way whose outcome changes something."""
    under_way = state.under_way.keys()
    awaited: set[str | None] = {n for n, c in state.under_way.items() if isinstance(c, Publish)}
    awaited |= {state.plan.question, state.clock.timer.id if state.clock.timer else None}
    for trial in active:
        awaited |= {trial.start_command, trial.stop_command, trial.grow_command}
    for instance in state.fleet.instances.values():
        if instance.phase is InstancePhase.REQUESTED:
            awaited.add(instance.id)
        elif instance.phase is InstancePhase.RELEASING:
            awaited.add(instance.terminate_command)
    if awaited - {None} != under_way:
        yield f"awaited: {awaited - {None} - under_way}, under way: {under_way - awaited}"


def targets_and_claims_agree(state: State, active: Active) -> Iterator[str]:
    """While the run goes on, claims on GPUs are exactly those of trials with a target."""
    if state.phase is not RunPhase.RUNNING:
        return
    targets = {t.id: t.target for t in active if t.target is not None}
    if targets.keys() != state.aims.aimed.keys():
        yield f"aimed: {list(state.aims.aimed)}, with a target: {list(targets)}"
    parts = [(name, slots) for name, target in targets.items() for slots in target]
    aims = {(slots.node, gpu, name) for name, slots in parts for gpu in slots.gpus}
    instances = state.fleet.instances.values()
    claims = {(i.id, gpu, name) for i in instances for gpu, name in i.claims.items()}
    if aims != claims:
        yield f"targets and claims disagree: {aims ^ claims}"


Check = Callable[[State, Active], Iterator[str]]
CHECKS_OF: dict[str, tuple[Check, ...]] = {
    "trials": (
        no_gpu_is_held_twice,
        a_trial_that_fits_is_not_split,
        parts_of_a_trial_are_on_one_gpu,
        phases_and_gpus_agree,
        the_nodes_of_an_attempt_end_together,
    ),
    "fleet": (
        what_is_counted_is_there,
        launches_rest_only_until_a_change_that_can_come,
        a_leaving_instance_gets_nothing_new,
    ),
    "ledger": (what_is_held_is_paid, the_budget_is_kept),
    "plan": (what_is_wanted_may_run,),
    "jobs": (what_jobs_hold_is_counted, a_job_that_is_over_is_over_for_all),
    "result": (the_result_is_confirmed, nothing_better_is_kept, one_model_is_published_at_a_time),
    "clock": (time_does_not_go_back,),
    "end": (the_end_is_known_when_it_begins, nothing_is_left_at_the_end),
    "under_way": (what_is_under_way_is_awaited,),
    "aims": (targets_and_claims_agree,),
}
"""Field of `State` -> the checks of that field."""
CHECKS = tuple(check for checks in CHECKS_OF.values() for check in checks)
