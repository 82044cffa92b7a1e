"""What an entry of the journal means, as explanations with the reason that was recorded.

Of the state before an entry only what the event is about is looked at, so that explaining costs the
same with ten thousand trials.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seerd.core import commands, events, verdicts
from seerd.core.aiming import instances_needed, wanted_demands
from seerd.core.commands import AnyCommand
from seerd.core.enact import AnyDecision
from seerd.core.events import AnyEvent
from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.limits import budget_gpu_s
from seerd.core.metrics import averaged, best_checkpoint, better_report
from seerd.core.plans import PlanChange
from seerd.core.sizes import need
from seerd.core.state import GONE, PRESENT, Incumbent, State, Trial
from seerd.core.step import QUIET
from seerd.planner.model import Compared, Group
from seerd.planner.parameter import plain
from seerd.planner.ranking import standing
from seerd.planner.trial_ids import job_of
from seerd.telling.explanation.explanations import (
    EndCause,
    Explanation,
    Judgement,
    Kind,
    KnownBefore,
    Sizes,
    gone_s,
    places_of,
    sizes_of,
)
from seerd.telling.harmless import config_text

Explanations = Iterator[Explanation]

SILENT = (*QUIET, events.TrialStarted)  # events that say nothing by themselves
UNTOLD = (verdicts.Kept, commands.AskPolicy, commands.SetTimer, commands.GrowTrial)
"""What needs no explanation of its own."""
AS_RECORDED: dict[type[object], tuple[Kind, str]] = {
    events.StopAsked: ("stop-wanted", "hard"),
    events.Remarked: ("remark", "text"),
    verdicts.Slow: ("slow", "trial rank detail"),
    verdicts.Warned: ("warned", "what detail"),
    verdicts.JobOver: ("job-over", "job why detail"),
    verdicts.Retired: ("retired", "instance by_s"),
}
"""What is explained by its own fields: the kind of explanation, and these fields."""
ABOUT_INSTANCES = (commands.Launch, commands.Terminate, verdicts.HeldBack)
OF_ATTEMPTS = (
    verdicts.Grown,
    commands.StartTrial,
    commands.StopTrial,
    commands.Publish,
    commands.Finish,
)
ASKED = commands.AskPolicy(id="", why="clock")  # the question to the policy, where it is not known
SETTLED = (TrialPhase.FINISHED, TrialPhase.ELIMINATED, TrialPhase.FAILED)


@dataclass(frozen=True, slots=True)
class Step:
    """One entry of the journal, with the state after it and what was known before."""

    event: AnyEvent
    decided: Sequence[AnyDecision]  # the decisions that followed
    known: KnownBefore  # what earlier entries have shown
    state: State  # the state, which moves on from before the entry to after it
    asked: AnyCommand | None  # command or question whose outcome the event is; None: none
    phase: RunPhase  # where the run was in its life before
    there: bool  # True: the run had the instance that the event names before
    live: int  # how many instances were asked for or ready before
    # trial -> GPUs that were wanted for it before, for trials that an answer of the policy judges
    gpus: Mapping[str, int]

    @classmethod
    def before(
        cls, event: AnyEvent, decided: Sequence[AnyDecision], known: KnownBefore, state: State
    ) -> Step:
        """Note what the event is about, before the event is read."""
        instance = state.fleet.instances.get(getattr(event, "instance", ""))
        there = instance is not None and instance.phase in PRESENT
        gpus, wanted = {}, state.plan.wanted
        if isinstance(event, events.PolicyAnswered):
            judged = [*(one.trial for one in event.plan.compared), *event.plan.eliminated]
            gpus = {name: wanted[name].gpus for name in judged if name in wanted}
        answers = getattr(event, "question", getattr(event, "command", ""))
        asked = state.under_way.get(answers)
        return cls(event, decided, known, state, asked, state.phase, there, state.fleet.live, gpus)

    def tell(
        self, kind: Kind, source: object = None, keys: str = "", /, **beside: Any
    ) -> Explanation:
        """Make an explanation of the `keys` of `source`, separated by spaces, and of `beside`."""
        recorded = {key: getattr(source, key) for key in keys.split()}
        return Explanation(kind, self.state.clock.seq, self.state.now, {**recorded, **beside})


def says(event: AnyEvent, decided: Sequence[AnyDecision]) -> bool:
    """Return whether there may be something to explain in an entry, which is mostly not so."""
    return not isinstance(event, SILENT) or not all(isinstance(one, UNTOLD) for one in decided)


def explanations_of(step: Step) -> Explanations:
    """Yield what happened, then what was decided. `step.state`: the state after the entry."""
    yield from _happened(step)
    for one in step.decided:
        if isinstance(one, verdicts.Grown):
            yield _grown(one, step)
        elif isinstance(one, verdicts.Enlarged):
            gpus = step.state.facts.gpus(one.gpus)
            yield step.tell("enlarged", one, "trial", gpus=gpus)
        else:
            yield from _decided(one, step)
    yield from _instances(step)


def explained_after(event: AnyEvent, decided: Sequence[AnyDecision], state: State) -> Explanations:
    """Yield what the state after an entry shows of it."""
    if not says(event, decided):
        return
    known, fleet = KnownBefore(planned=True), state.fleet
    had = getattr(event, "instance", "") in fleet.instances
    step = Step(event, decided, known, state, ASKED, state.phase, had, fleet.live, {})
    yield from _happened(step)
    for decision in decided:
        if not isinstance(decision, OF_ATTEMPTS):
            yield from _decided(decision, step)
    yield from _held_back(step)


def wanted(state: State) -> tuple[Group, ...]:
    """Count how many trials are wanted with each number of slots, largest number first."""
    sizes = Counter(trial.gpus for trial in state.plan.wanted.values())
    return tuple(Group(gpus, trials) for gpus, trials in sorted(sizes.items(), reverse=True))


def wanted_sizes(state: State) -> tuple[Sizes, ...]:
    """Return the same in GPUs."""
    return sizes_of(wanted(state), state.facts)


def minutes(seconds: float) -> float:
    """Return minutes, or GPU-minutes, rounded."""
    return round(seconds / 60, 4)


def needed(state: State) -> int:
    """Return how many instances the wanted trials need."""
    if state.facts.cluster.other_sizes:
        return need(state, wanted_demands(state)).instances
    sizes = {group.gpus_per_trial: group.trials for group in wanted(state)}
    return instances_needed(sizes, state.facts.cluster)


# ------------------------------------------------------------ what happened


def _happened(step: Step) -> Explanations:
    event, state = step.event, step.state
    match event:
        case events.RunResumed():
            reopened = step.phase is not RunPhase.RUNNING and state.phase is RunPhase.RUNNING
            gone = tuple(one.instance for one in step.decided if isinstance(one, verdicts.Gone))
            silent_s = round(state.now - state.clock.previous_s, 3)
            about = {"gone": gone, "silent_s": silent_s, "reopened": reopened}
            yield step.tell("resumed", event, "alive", **about)
            yield from _ends(step)
        case (
            events.TrialExited()
            | events.OrderRefused()
            | events.InstanceLost()
            | events.InstanceTerminated()
        ):
            yield from _ends(step)
        case events.InstanceAwaited() | events.InstanceReady() | events.LaunchRefused():
            yield from _of_a_launch(event, step)
        case events.InstanceNoticed():
            instance = state.fleet.instances.get(event.instance)
            if instance is not None and instance.phase in GONE:
                return
            deadline_s = state.facts.problem.limits.deadline_s
            if event.what == "maintenance" and event.by is not None and event.by >= deadline_s:
                return
            hinted = event.what == "rebalance" and not state.facts.cluster.hints_move
            stays = hinted or event.what in {"cold", "maintenance"}
            leaves = instance is not None and not stays
            trials = tuple(dict.fromkeys(instance.busy.values())) if instance and leaves else ()
            canceled = event.what == "maintenance" and event.by is None
            notice = "canceled" if canceled else event.what
            about = {"notice": notice, "detail": event.why, "by_s": event.by}
            sure = event.what == "interruption"
            yield step.tell("noticed", event, "instance", sure=sure, trials=trials, **about)
        case events.InstanceShared() if event.instance in state.fleet.instances:
            gpus = state.facts.gpus(event.gpus)
            yield step.tell("shared", event, "instance", gpus=gpus, detail=event.why)
        case events.PublishFailed() if isinstance(step.asked, commands.Publish):
            trial = step.asked.trial
            yield step.tell("not-usable", event, "damaged", trial=trial, detail=event.why)
        case _ if type(event) in AS_RECORDED:
            kind, keys = AS_RECORDED[type(event)]
            yield step.tell(kind, event, keys)


def _of_a_launch(
    event: events.InstanceAwaited | events.InstanceReady | events.LaunchRefused, step: Step
) -> Explanations:
    state = step.state
    instances, asked = state.fleet.instances, {"asked": event.command}
    match event:
        case events.InstanceAwaited():
            about = {"detail": event.why, "where": event.where}
            yield step.tell("awaited", event, "instance what", **asked, **about)
        case events.InstanceReady() if event.instance in instances:
            asked_s = step.known.asked_s.get(event.command)
            after_s = None if asked_s is None else round(state.now - asked_s, 3)
            gpus = state.facts.gpus(event.gpus)
            yield step.tell("came", event, "instance", gpus=gpus, **asked, after_s=after_s)
        case events.LaunchRefused() if event.command in instances:
            again_s, running = state.fleet.launch_at, state.phase is RunPhase.RUNNING
            again = round(again_s, 3) if running and state.now < again_s < math.inf else None
            yield step.tell("refused", instance=event.command, detail=event.why, again_s=again)


def _ends(step: Step) -> Explanations:
    event, attempts = step.event, step.known
    lost = [one.instance for one in step.decided if isinstance(one, verdicts.Gone)]
    for name in [event.instance] if isinstance(event, events.InstanceLost) and step.there else lost:
        ended_s, why = gone_s(name, step.state), step.state.fleet.instances[name].why
        about = {"instance": name, "detail": why, "ended_s": ended_s}
        yield step.tell("lost", trials=attempts.on(name), **about)
    for attempt in attempts.leave(event, step.state):
        stopped, trial = attempt.stopped, step.state.trials[attempt.started.trial]
        how = _end_cause(trial, event, saves=stopped is not None and stopped.saves)
        goes_on = trial.gpus > 0 or trial.attempt > attempt.started.attempt
        then = "restarts" if goes_on and trial.fault is not None else "waits"
        explained = how in ("crashed", "small", "blocked", "refused", "lost", "silent")
        attempt.ended = step.tell(
            "ended",
            trial=trial.id,
            attempt=attempt.started.attempt,
            how=how,
            then=str(trial.phase) if trial.phase in SETTLED else then,
            detail=trial.why if explained and trial.phase is not TrialPhase.ELIMINATED else "",
            failures=trial.crashes,
            in_vain=trial.in_vain,
            most_failures=step.state.rules.max_crashes,
            losses=trial.losses,
            reports=trial.reports,
            kept=trial.checkpoints[0].reports if trial.checkpoints else None,
        )
        del attempts.open[trial.id]
        yield attempt.ended


def _end_cause(trial: Trial, event: AnyEvent, *, saves: bool) -> EndCause:
    if trial.fault is not None:
        refused = trial.fault == "crashed" and isinstance(event, events.OrderRefused)
        return "refused" if refused else trial.fault
    if trial.phase is TrialPhase.FINISHED:
        return "finished"
    if trial.phase is TrialPhase.FAILED:
        return "silent"
    cause = event.cause if isinstance(event, events.TrialExited) else "lost"
    if cause == "lease" or cause == "lost":  # noqa: PLR1714 - narrows the type
        return cause
    return "saved" if saves else "killed"


# ------------------------------------------------------------ what was decided


def _decided(one: AnyDecision, step: Step) -> Explanations:
    """Explain a decision. Instances that come or go together are in `_instances`."""
    event, known = step.event, step.known
    match one:
        case verdicts.Adopted() if isinstance(event, events.PolicyAnswered):
            known.planned, plan = True, event.plan
            assert isinstance(step.asked, commands.AskPolicy)
            groups = wanted_sizes(step.state)
            about = {"groups": groups, "stage": plan.stage + 1, "new": len(plan.new)}
            why = {"because": step.asked.why, "trial": step.asked.trial, "note": plan.note}
            yield step.tell("planned", one, "dropped", **about, **why)
            yield from _judgements(plan, step)
        case verdicts.Declined():
            keys, stands = "failures again_s", known.planned
            yield step.tell("declined", one, keys, detail=one.why, stands=stands)
        case verdicts.Granted() | verdicts.Denied():
            yield from _answered(one, step)
        case verdicts.Closing():
            known.planned, book, now_s = False, step.state.ledger, step.state.now
            yield step.tell(
                "closing",
                one,
                "status why detail close_at_s exhausted_at_s release_s",
                spent_gpu_min=minutes(book.spent_gpu_s(now_s)),
                committed_gpu_min=minutes(book.committed_gpu_s(now_s, one.release_s)),
                budget_gpu_min=minutes(budget_gpu_s(step.state)),
            )
        case commands.StopTrial():
            trial = step.state.trials[one.trial]
            stopped = step.tell(
                "stopped",
                one,
                "trial attempt why others",
                saves=one.checkpoint,
                grace_s=round(one.grace_s, 3),
                gpus_before=step.state.facts.gpus(trial.had),
                gpus=step.state.facts.gpus(trial.gpus),
                until=trial.reached if one.why == "reached" else None,
            )
            known.open[one.trial].stopped = stopped
            yield stopped
        case commands.StartTrial():
            kept = step.state.trials[one.trial].checkpoints
            where = ((one.instance, one.gpus), *one.beside)
            on = places_of(where, step.state.facts)
            newest = one.checkpoints[0] if one.checkpoints else None
            since = {"checkpoint": newest, "after_reports": kept[0].reports if kept else 0}
            started = step.tell("started", one, "trial attempt why", on=on, **since)
            known.start(started, [gpus for _, gpus in where])
            yield started
        case commands.Publish():
            yield _chosen(one, step)
        case commands.Finish():
            result = step.state.result
            model = result.published and result.published.incumbent
            path = result.published and result.published.path
            of_jobs = ((job, result.of_jobs.get(job)) for job in step.state.jobs)
            models = tuple(
                {
                    "job": job,
                    "trial": m.incumbent.trial,
                    "metric": m.incumbent.metric,
                    "path": m.path,
                }
                for job, m in of_jobs
                if m is not None
            )
            shared = {"models": models} if step.state.facts.jobs else {}
            found = {"metric": model and model.metric, "path": path, "trial": model and model.trial}
            yield step.tell("over", one, "status", **found, **shared)
        case _ if type(one) in AS_RECORDED:
            kind, keys = AS_RECORDED[type(one)]
            yield step.tell(kind, one, keys)


def _grown(one: verdicts.Grown, step: Step) -> Explanation:
    before, now = step.known.open[one.trial].gpus, step.state.facts.gpus(len(one.gpus))
    step.known.grow(one.trial, now, one.gpus, step.state.now)
    return step.tell("grown", one, "trial", gpus_before=before, gpus=now)


def _answered(one: verdicts.Granted | verdicts.Denied, step: Step) -> Explanations:
    if isinstance(one, verdicts.Denied):
        taken = step.event.job.id if isinstance(step.event, events.JobAdded) else ""
        policy = step.state.facts.problem.params.name
        yield step.tell("denied", one, "why", policy=policy, taken=taken)
        return
    match event := step.event:
        case events.ExtendAsked():
            limits, replanned = event.problem.limits, event.outline is not None
            budget = {"budget_gpu_min": minutes(limits.budget_gpu_s)}
            keys = "deadline_s cost_usd"
            yield step.tell("extended", limits, keys, **budget, replanned=replanned)
        case events.AddAsked():
            about = {"config": plain(event.config), "text": config_text(event.config)}
            yield step.tell("added", **about)
        case events.JobAdded():
            about = {"job": event.job.id, "policy": event.job.problem.params.name}
            owner = {"owner": event.facts.owner}
            yield step.tell("job-added", event.job, "weight metric", **owner, **about)
        case events.JobStopAsked():
            yield step.tell("job-over", event, "job", why="person", detail="")
        case events.JobWeighed():
            yield step.tell("job-weighed", event, "job weight")


def _judgements(plan: PlanChange, step: Step) -> Explanations:
    def rivals(one: Compared) -> tuple[str, int, int]:
        return job_of(one.trial), one.bracket, one.of

    cuts = {rivals(one): one for one in plan.compared if one.place == one.best}
    names = {one.trial for one in plan.compared}
    dropped = (step.state.trials[name] for name in plan.eliminated if name not in names)
    alone = [Compared(t.id, t.metric, t.reports, 0, 0, 0, t.bracket) for t in dropped]
    for judged in (*plan.compared, *alone):
        cut = cuts.get(rivals(judged)) if judged.trial in names else None
        trial = step.state.trials[judged.trial]
        verdict: Judgement = "complete" if judged.final else "paused"
        if trial.phase is TrialPhase.FAILED:
            verdict = "failed"
        elif trial.out:
            verdict = "out"
        elif trial.id in step.state.plan.order:
            verdict = "goes-on"
        elif trial.phase is TrialPhase.FINISHED:
            verdict = "finished"
        yield step.tell(
            "judged",
            judged,
            "trial metric reports of best",
            verdict=verdict,
            place=judged.place or None,
            bracket=judged.bracket + 1,
            cut=cut and cut.trial,
            cut_metric=cut and cut.metric,
            gpus_before=step.state.facts.gpus(step.gpus.get(trial.id, 0)),
            gpus=step.state.facts.gpus(trial.gpus),
        )


def _instances(step: Step) -> Explanations:
    """Explain instances that are asked for or given back together, and what is held back."""
    if not any(isinstance(one, ABOUT_INSTANCES) for one in step.decided):
        return
    state = step.state
    launches = [one for one in step.decided if isinstance(one, commands.Launch)]
    if launches:
        ids, had = tuple(one.id for one in launches), state.fleet.live - len(launches)
        step.known.asked_s.update(dict.fromkeys(ids, state.now))
        gpus = state.facts.gpus(max(one.gpus for one in launches))
        about = {"why": launches[0].why, "gpus_each": gpus, "had": had, "needed": needed(state)}
        about["at_most"] = bool(state.facts.cluster.other_sizes)
        yield step.tell("asked", instances=ids, **about, wanted=wanted_sizes(state))
    given = (one for one in step.decided if isinstance(one, commands.Terminate))
    ended = [one for one in given if one.keep_until_s is None]
    for why in dict.fromkeys(one.why for one in ended):
        ids = tuple(one.instance for one in ended if one.why == why)
        left = 0 if why == "end" else needed(state)
        yield step.tell("given-back", why=why, instances=ids, needed=left, had=step.live)
    yield from _held_back(step)


def _held_back(step: Step) -> Explanations:
    for one in step.decided:
        if isinstance(one, verdicts.HeldBack) and one.why is not None:
            trials = (one.trial,) if one.trial else ()
            yield step.tell("held-back", one, "why needed had", trials=trials)


def _chosen(command: commands.Publish, step: Step) -> Explanation:
    state, mode = step.state, step.state.facts.goal_of(command.trial).mode
    best = ((t.id, best_checkpoint(state, t)) for t in state.trials_of(job_of(command.trial)))
    usable = [(name, one) for name, one in best if one is not None]
    others = (one for one in usable if one[0] != command.trial)
    second = min(others, key=lambda one: standing(one[0], one[1].metric, mode), default=None)
    kept = state.trials[command.trial].checkpoints
    saved = next(one for one in kept if one.name == command.checkpoint)
    unsaved = better_report(state, Incumbent(command.trial, saved, command.metric))
    return step.tell(
        "chosen",
        command,
        "why trial metric checkpoint",
        reports=saved.reports,
        mean_of=averaged(state, saved),
        among=len(usable),
        runner_up=second and second[0],
        runner_up_metric=second and second[1].metric,
        better_unsaved=unsaved and unsaved[0],
        better_unsaved_metric=unsaved and unsaved[1],
    )
