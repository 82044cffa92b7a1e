"""What happened, as one plain line per event, for logs and for the foot of the live view.

The one rule: words that somebody who has never read this code understands; no line for what people
need not know.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import singledispatch
from itertools import groupby

from seerd.core.alike import OVER_TIME
from seerd.core.attempts import crash_text
from seerd.core.enact import AnyDecision
from seerd.core.events import (
    AddAsked,
    AnyEvent,
    AnyRequest,
    Event,
    EventsMissing,
    ExtendAsked,
    InstanceLost,
    InstanceNoticed,
    InstanceReady,
    InstanceShared,
    InstanceTerminated,
    JobAdded,
    JobStopAsked,
    JobWeighed,
    LaunchRefused,
    ModelPublished,
    OrderRefused,
    PolicyAnswered,
    PolicyFailed,
    PublishFailed,
    Remarked,
    RunResumed,
    RunStarted,
    StopAsked,
    TimerFired,
    TrialCheckpointed,
    TrialComplained,
    TrialExited,
    TrialReported,
    TrialTraining,
    TrialWaited,
)
from seerd.core.incumbent import metric_name, sign_of
from seerd.core.last_words import error_line
from seerd.core.lifecycle import InstancePhase, RunPhase, TrialPhase
from seerd.core.limits import time_left
from seerd.core.metrics import violated_by
from seerd.core.state import Complaint, State, Trial
from seerd.core.verdicts import Adopted, Closing, Declined, JobOver, OverCause, Warned
from seerd.planner.trial_ids import job_of
from seerd.telling.complaints import IN_THE_WAY, complaint_text
from seerd.telling.configs import config_text
from seerd.telling.harmless import harmless
from seerd.telling.outcomes import standing_text
from seerd.units import SLOW_S, count, format_duration, format_gpu_time, format_money, format_size

ENDINGS = {
    "done": "the plan is carried out",
    "target": "the target was reached",
    "deadline": "the deadline is near",
    "budget": "the budget is used up",
    "interrupted": "interrupted",
    "failed": "nothing can run any more",
}
OVER: dict[OverCause, str] = {
    "target": "its target was reached",
    "person": "the person asked for its end",
    "deadline": "its deadline is near",
    "budget": "its budget is used up",
    "alike": "all its trials fail in the same way",
}
"""Why one of the jobs that share a run gets nothing any more."""
ALIKE = "every trial fails in the same way"
TOO_LATE = "nothing runs, and it is too late to start anything"
MOST_OTHERS = 3
"""How many other metrics stand in the line of a report."""
LATE_S = 2.0
"""A stage is said to begin if its plan comes at most this many seconds after its start: the machine
may be busy.
"""


def ending(state: State) -> str:
    """Write how the run ended; empty if it goes on."""
    if state.end.status is None:
        return ""
    if state.end.why in ("alike", "late"):
        return ALIKE if state.end.why == "alike" else TOO_LATE
    tried = any(trial.attempt for trial in state.trials.values())
    return ENDINGS[state.end.status if tried or state.end.status != "done" else "deadline"]


def line_of(event: AnyEvent, state: State, decided: Sequence[AnyDecision] = ()) -> str | None:
    """Write the line about an event and what was decided; None: there is nothing to tell.

    `state` is that after the event. Nothing is told of trials that do not exist, whatever an agent
    says.
    """
    if (
        isinstance(event, TrialTraining | TrialReported | TrialExited)
        and event.trial not in state.trials
    ):
        return None
    said = (_decided(event, state, decided) or _text(event, state), *_beside(decided))
    lines = [f"{event.at:7.1f}s  {text}" for text in said if text is not None]
    return harmless("\n".join(lines)) if lines else None


def _beside(decided: Sequence[AnyDecision]) -> Iterator[str]:
    """Write what was decided that is told beside its event."""
    for decision in decided:
        match decision:
            case Closing(why="alike"):
                yield f"{decision.detail}; the run ends, since the others would do the same"
            case Closing(why="late"):
                yield f"{TOO_LATE}: the run ends"
            case JobOver():
                detail = f": {decision.detail}" if decision.detail else ""
                yield f"job {decision.job} is over, {OVER[decision.why]}{detail}"
            case Warned():
                yield decision.detail
            case _:
                pass


def _decided(event: AnyEvent, state: State, decided: Sequence[AnyDecision]) -> str | None:
    """Write what was decided without an event from outside; None: nothing worth telling."""
    if not isinstance(event, TimerFired | PolicyAnswered | PolicyFailed | TrialCheckpointed):
        return None
    for decision in decided:
        match decision:
            case Closing() if decision.why != "alike" and decision.status in ENDINGS:
                return ending(state) + ": trials save and exit" * (state.fleet.holding > 0)
            case Declined():
                return (
                    f"the policy gave no plan that can be used: {decision.why}; the last one stands"
                )
            case Adopted() if _begins(event, state):
                return stage_text(state)
            case _:
                pass
    return None


def _begins(event: AnyEvent, state: State) -> bool:
    """Tell whether a stage after the first one begins now."""
    stage, stages = state.plan.stage, state.outline.stages
    return 0 < stage < len(stages) and 0 <= event.at - stages[stage].start_s < LATE_S


def stage_text(state: State) -> str:
    """Write which stage it is, and how many trials run in it."""
    stage = state.outline.stages[state.plan.stage]
    groups = ", ".join(
        f"{count(group.trials, 'trial')} x {count(group.gpus_per_trial, 'GPU')}"
        for group in stage.groups
    )
    until = format_duration(round(stage.end_s, 1))
    return f"stage {state.plan.stage + 1} of {len(state.outline.stages)} until {until}: {groups}"


def gpus_text(gpus: Sequence[int]) -> str:
    """Write the numbers of GPUs, neighbours as a range: 0-3,6."""
    runs = [
        [gpu for _, gpu in run]
        for _, run in groupby(enumerate(sorted(gpus)), lambda pair: pair[1] - pair[0])
    ]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


@singledispatch
def _text(event: Event, state: State) -> str | None:
    return None


@_text.register
def _(event: RunStarted, state: State) -> str:
    limits = event.facts.problem.limits
    notes = "".join(f"\n{'':10}{sentence}" for sentence in state.outline.adjusted)
    trials, jobs = count(state.outline.trials, "trial"), len(event.facts.jobs)
    trials = f"{count(jobs, 'job')}, {trials}" if jobs else trials
    budget = format_gpu_time(limits.budget_gpu_s)
    return f"{trials}, deadline {format_duration(limits.deadline_s)}, budget {budget}{notes}"


@_text.register
def _(event: RunResumed, state: State) -> str:
    return f"resumed; instances that are still there: {', '.join(event.alive) or 'none'}"


@_text.register
def _(event: EventsMissing, state: State) -> str | None:
    if state.clock.gap_s < event.at:
        return None
    return (
        f"the journal lacks events that {event.instance} tells, from before the run was resumed: "
        "all GPUs are charged until then"
    )


@_text.register
def _(event: StopAsked, state: State) -> str:
    return (
        "stopping at once (once more to leave it as it is)"
        if event.hard
        else "stopping: trials save and exit (again to stop at once)"
    )


@_text.register
def _(event: AddAsked, state: State) -> str:
    told = config_text(event.config)
    if not _is_granted(event, state):
        return f"asked to try {told}, which cannot be"
    return f"to be tried next: {told}"


@_text.register
def _(event: ExtendAsked, state: State) -> str:
    if not _is_granted(event, state):
        return "other limits are asked for, and those that hold stay"
    limits = event.problem.limits
    cost = "" if limits.cost_usd is None else f", cost {format_money(limits.cost_usd)}"
    budget = format_gpu_time(limits.budget_gpu_s)
    return f"extended: deadline {format_duration(limits.deadline_s)}, budget {budget}{cost}"


@_text.register
def _(event: JobAdded, state: State) -> str:
    if not _is_granted(event, state):
        return f"job {event.job.id} is to be added, which cannot be"
    owner = f" for {event.facts.owner}" if event.facts.owner else ""
    return f"job {event.job.id}{owner} shares the run from now on, weight {event.job.weight:g}"


@_text.register
def _(event: JobStopAsked, state: State) -> str:
    if not _is_granted(event, state):
        return f"job {event.job} is to end, which cannot be"
    return f"job {event.job} is over, {OVER['person']}: its trials save and exit"


@_text.register
def _(event: JobWeighed, state: State) -> str:
    if not _is_granted(event, state):
        return f"job {event.job} is to have the weight {event.weight:g}, which cannot be"
    return f"job {event.job} has the weight {event.weight:g} from now on"


def _is_granted(event: AnyRequest, state: State) -> bool:
    return state.requests.answered.get(event.request, "unknown") is None


@_text.register
def _(event: InstanceReady, state: State) -> str:
    first = next(i.id for i in state.fleet.instances.values() if i.ready_at is not None)
    text = stage_text(state) if first == event.instance else ""
    stage = f"; {text}" if text else ""
    return f"{event.instance} is ready with {count(event.gpus, 'GPU slot')}{stage}"


@_text.register
def _(event: InstanceTerminated, state: State) -> str | None:
    return f"{event.instance} has been given back" if state.facts.cluster.per_instance else None


@_text.register
def _(event: LaunchRefused, state: State) -> str | None:
    """Write one line for all launches of one request that were refused for the same reason."""
    together = f"{event.command.partition('.')[0]}."
    same = [
        name
        for name, i in state.fleet.instances.items()
        if name.startswith(together) and i.why == event.why
    ]
    return None if event.command in same[1:] else f"no instance: {event.why}"


@_text.register
def _(event: InstanceNoticed, state: State) -> str:
    if event.what == "cold":
        return f"on {event.instance} {event.why}"
    if event.what == "unhealthy":
        return f"{event.instance} is not used any more: {event.why}; its trials go on elsewhere"
    again = "takes back" if event.what == "interruption" else "will probably take back"
    if event.what == "rebalance" and not state.facts.cluster.hints_move:
        return f"the cloud {again} {event.instance}; its trials save and stay"
    return f"the cloud {again} {event.instance}; its trials save and go on elsewhere"


@_text.register
def _(event: InstanceShared, state: State) -> str:
    gpus = count(event.gpus, "GPU")
    return f"{gpus} of {event.instance} may be used from now on: {event.why}"


@_text.register
def _(event: InstanceLost, state: State) -> str:
    return (
        f"{event.instance} is lost: {event.why}; "
        "its trials go on from their last checkpoints elsewhere"
    )


@_text.register
def _(event: OrderRefused, state: State) -> str:
    return f"{event.instance} refused an order: {event.why}"


@_text.register
def _(event: TrialTraining, state: State) -> str:
    trial = state.trials[event.trial]
    since = f"goes on after report {event.reports}" if event.reports else "trains"
    return f"{event.trial} {since}{_where(trial, state)}  {config_text(trial.config)}"


def _where(trial: Trial, state: State) -> str:
    """Write where a trial runs; instances are named only if there are several."""
    several = sum(i.phase is InstancePhase.READY for i in state.fleet.instances.values()) > 1
    parts = [
        f"{f'{slots.node} ' * several}GPU {gpus_text(slots.gpus)}" for slots in trial.held or ()
    ]
    return f" on {' and '.join(parts)}" if parts else ""


@_text.register
def _(event: TrialReported, state: State) -> str:
    value = "missing or not finite" if event.metric is None else f"{event.metric:.6g}"
    others = "".join(
        f", {name} {'not finite' if other is None else f'{other:.6g}'}"
        for name, other in list(event.others.items())[:MOST_OTHERS]
    )
    metric = state.facts.goal_of(event.trial).metric
    is_first = sum(len(trial.history) for trial in _of_its_job(event, state)) == 1
    read = f', read from "{event.line}"' if event.line and is_first else ""
    return (
        f"{event.trial} report {event.reports}: {metric} {value}{others}{read}{_mark(event, state)}"
    )


def _mark(event: TrialReported, state: State) -> str:
    """Write what is worth knowing of a report beside its metrics."""
    goal = state.facts.goal_of(event.trial)
    broken = violated_by({**event.others, goal.metric: event.metric}, goal)
    if broken:
        return f"  (not {' and '.join(map(str, broken))})"
    whose = f" of {job_of(event.trial)}" if state.facts.jobs else ""
    return f"  (best{whose})" if _beats_all(event, state) else ""


def _beats_all(event: TrialReported, state: State) -> bool:
    """Tell whether no other report of its job is as good.

    The last report of each trial is compared first, since that mostly decides, and all reports are
    many.
    """
    if event.metric is None:
        return False
    sign = sign_of(state.facts.goal_of(event.trial))
    worth, own = sign * event.metric, _of_its_job(event, state)
    if any(t.metric is not None and sign * t.metric >= worth and t.id != event.trial for t in own):
        return False
    earlier = (
        r for t in own for r in t.history if (t.id, r.reports) != (event.trial, event.reports)
    )
    return all(r.metric is None or sign * r.metric < worth for r in earlier)


def _of_its_job(event: TrialReported, state: State) -> Collection[Trial]:
    """Return the trials that this one is compared with."""
    trials, job = state.trials.values(), job_of(event.trial)
    return [t for t in trials if job_of(t.id) == job] if state.facts.jobs else trials


@_text.register
def _(event: TrialExited, state: State) -> str:
    trial = state.trials[event.trial]
    if trial.phase is TrialPhase.ELIMINATED:
        stood = "" if trial.judged is None else standing_text(trial.judged)
        return f"{event.trial} is out: {trial.why}{f', {stood}' if stood else ''}"
    if event.cause == "crashed":
        last = f": {error_line(event.tail)}" if event.tail else ""
        return f"{event.trial} {crash_text(event)}{_then(trial, state)}{last}"
    if trial.phase is TrialPhase.FAILED:
        return f"{event.trial} has failed: {trial.why}"
    if event.cause == "finished":
        return f"{event.trial} has finished"
    if event.cause == "lost":
        return f"{event.trial} was lost with its agent{_then(trial, state)}"
    if trial.checkpoints:
        return f"{event.trial} has stopped, saved up to report {trial.checkpoints[0].reports}"
    if trial.history or trial.began_s is None:
        return f"{event.trial} has stopped, nothing saved"
    after = format_duration(round(event.happened - trial.began_s))
    later = trial.stopped != "closing" and state.phase is RunPhase.RUNNING
    return f"{event.trial} has stopped after {after} without a report{f': {OVER_TIME}' * later}"


def _then(trial: Trial, state: State) -> str:
    """Write what follows for the trial; empty if that is nothing."""
    block = state.jobs[job_of(trial.id)].block
    if block is not None and trial.fault == "blocked":
        beside = f", and at most {block.most} train{'s' * (block.most == 1)} at a time"
        beside = beside if block.most and not block.on else ""
        again = f"until {format_duration(round(block.again_s, 1))}"
        return f" since {IN_THE_WAY[block.why]}; it waits{beside} {again}"
    if trial.phase is TrialPhase.FAILED:
        return " and has failed"
    return " and will be restarted" if trial.gpus and time_left(state) else ""


@_text.register
def _(event: TrialCheckpointed, state: State) -> str | None:
    if event.save_s < SLOW_S or event.save_s < state.end.slowest_s:
        return None
    took = format_duration(round(event.save_s, 1))
    return (
        f"{event.trial} took {took} to save {format_size(event.size)}: the end of the run allows "
        "for that; smaller checkpoints leave more time for training"
    )


@_text.register
def _(event: TrialComplained, state: State) -> str | None:
    """Write the first complaint of each kind."""
    complaint, first = Complaint(event.what, event.trial, event.why), state.signs.complaints
    is_first = first.get(event.what) == complaint
    if event.what == "waits":
        is_first = state.signs.warned.get("waits") == event.at
    return complaint_text(state, complaint) if is_first else None


@_text.register
def _(event: TrialWaited, state: State) -> str | None:
    """Write the note once: when it was made."""
    trial = state.trials[event.trial]
    return trial.note if event.at in trial.slow.values() else None


@_text.register
def _(event: ModelPublished, state: State) -> str:
    models = state.result.of_jobs.items()
    job, best = next(
        ((job, one.incumbent) for job, one in models if one.path == event.path), ("", None)
    )
    if best is None:
        return f"the best model is in {event.path}"
    whose = f" of {job}" if job else ""
    return (
        f"the best model{whose} is that of {best.trial}, "
        f"{metric_name(state, best)} {best.metric:.6g}: {event.path}"
    )


@_text.register
def _(event: PublishFailed, state: State) -> str:
    if not event.damaged:
        return f"the best model is in the store, but could not be fetched: {event.why}"
    return f"a checkpoint cannot be used, trying the next best: {event.why}"


@_text.register
def _(event: Remarked, state: State) -> str:
    return event.text
