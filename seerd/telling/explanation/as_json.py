"""Explanations of a run, a trial and a moment as values for JSON; docs/json.md has the keys."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import structs

from seerd.core.commands import Launch
from seerd.core.events import Objective, RunFacts
from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.limits import budget_gpu_s, close_at, exhausted_at, release_s
from seerd.core.metrics import best_saved, last_value, names_of, value_of, violations_of
from seerd.core.state import GONE, State, Trial
from seerd.planner.gpu_parts import gpus_text, whole_or_part
from seerd.planner.model import Report
from seerd.planner.parameter import plain
from seerd.planner.ranking import standing
from seerd.planner.trial_ids import job_of
from seerd.telling.explanation.explanations import (
    AttemptHistory,
    Explanation,
    held_gpu_s,
    places_json,
)
from seerd.telling.explanation.reasons import minutes, needed, wanted_sizes
from seerd.telling.explanation.sentences import fill, metric_of, predicate, reason, sentence
from seerd.telling.explanation.timeline import Cost, Timeline, costs
from seerd.telling.outcomes import outcomes, why_text
from seerd.telling.plan_json import Json
from seerd.telling.run_json import best, result, shared
from seerd.units import count

UNDER_WAY = {
    "set-timer": "look again at {due:at}",
    "ask-policy": "the policy is asked",
    "launch": "an instance with {gpus:GPU}",
    "terminate": "{instance} is being given back",
    "start-trial": "{trial} is being started on {nodes:names}",
    "stop-trial": "{trial} [{checkpoint:if}saves within {grace_s:at}|is being killed]",
    "grow-trial": "{trial} may use more of its GPU until it ends",
    "publish": "the model of {trial} is being fetched",
    "finish": "the end",
}
"""Kind of a command -> template of its text while it is under way."""


def explanations_json(explanations: Iterable[Explanation], state: State) -> list[Json]:
    """Return what happened, each with its sentence."""
    return [
        {
            "kind": one.kind,
            "event": one.event,
            "at_s": one.at_s,
            **msgspec.to_builtins(one.facts),
            "text": sentence(one, metric_of(one, state.facts)),
        }
        for one in explanations
    ]


def _metric(goal: Objective) -> Json:
    return {"name": goal.metric, "mode": goal.mode}


# ------------------------------------------------------------ a run


def timeline_json(timeline: Timeline, state: State, status: str) -> Json:
    """Return what `replay --json` prints; `status`: how the run ended or stands."""
    divided = zip(timeline.chapters, costs(timeline, state, state.now), strict=True)
    return {
        **result(state, status),
        "metric": _metric(state.facts),
        "policy": state.facts.problem.params.name,
        "cost_usd": state.facts.problem.limits.cost_usd,
        "adjusted": list(state.outline.adjusted),
        "chapters": [
            {
                "stage": None if chapter.stage is None else chapter.stage + 1,
                "end": chapter.end,
                "times": chapter.times,
                "start_s": chapter.start_s,
                "until_s": state.now if chapter.until_s is None else chapter.until_s,
                "planned_end_s": chapter.planned_end_s,
                "groups": msgspec.to_builtins(chapter.groups),
                **_cost(cost, state),
                "instances": [
                    {"instance": one.instance, "gpus": one.gpus, **_cost(one, state)}
                    for one in cost.instances
                ],
                "beats": explanations_json(chapter.explanations, state),
            }
            for chapter, cost in divided
        ],
    }


def _cost(cost: Cost, state: State) -> Json:
    gpu_s = float(cost.billed)
    return {
        "gpu_min": minutes(gpu_s),
        "usd": round(state.ledger.part_usd(gpu_s, state.now), 4),
        "idle_gpu_min": minutes(cost.idle),
        "starting_gpu_min": minutes(cost.starting),
    }


# ------------------------------------------------------------ a trial


def trial_json(trial: Trial, timeline: Timeline, state: State) -> Json:
    """Return what `replay --trial --json` prints."""
    explanations = timeline.by_trial().get(trial.id, [])
    attempts = timeline.attempts.by_trial().get(trial.id, [])
    fate, why = _fate(trial, explanations, attempts, state)
    outcome = outcomes(state)[trial.id]
    goal = state.facts.goal_of(trial.id)
    return {
        "run": state.facts.run,
        "metric": _metric(goal),
        "trial": trial.id,
        **({"job": job_of(trial.id)} if state.facts.jobs else {}),
        "config": plain(trial.config),
        "phase": str(trial.phase),
        "fate": fate,
        "outcome": outcome.word,
        "outcome_why": why_text(trial, outcome),
        "why": why,
        "handed_back": is_handed_back(state, trial),
        "reports": trial.reports,
        "best_saved": best_saved(state, trial),
        "last_metric": last_value(state, trial, goal.metric),
        "violates": violations_of(state, trial),
        "other_metrics": {
            name: {"first": v[0], "last": v[-1], "lowest": min(v), "highest": max(v)}
            if (v := finite_values(state, trial, name))
            else None
            for name in names_of(state)
            if name != goal.metric
        },
        "held_gpu_min": minutes(held_gpu_s(attempts, state.now)),
        "attempts": [_attempt(attempt, state) for attempt in attempts],
        "beats": explanations_json(explanations, state),
    }


def is_handed_back(state: State, trial: Trial) -> bool:
    """Return whether the trial's model is the result of the run, or of its job."""
    published = state.result.of_jobs.get(job_of(trial.id))
    return published is not None and published.incumbent.trial == trial.id


def finite_values(state: State, trial: Trial, name: str) -> list[float]:
    """Return what a trial's reports had of a metric, where that was finite."""
    values = (value_of(state, trial, report, name) for report in trial.history)
    return [value for value in values if value is not None]


def _attempt(attempt: AttemptHistory, state: State) -> Json:
    started, made, ended = attempt.started, attempt.made, attempt.ended
    mode = state.facts.goal_of(started.trial).mode
    finite = (one for one in made if one.metric is not None)
    best = min(finite, key=lambda one: standing("", one.metric, mode), default=None)
    return {
        "attempt": started.attempt,
        "on": msgspec.to_builtins(started.on),
        "gpus": attempt.gpus,
        "start_s": started.at_s,
        "training_s": attempt.training_s,
        "ended_s": attempt.ended_s,
        "checkpoint": started.checkpoint,
        "after_reports": attempt.after_reports,
        "reports": len(made),
        "first": _report(made[0]) if made else None,
        "last": _report(made[-1]) if made else None,
        "best": None if best is None else _report(best),
        "how": None if ended is None else ended.how,
        "kept": None if ended is None else ended.kept,
        "held_gpu_min": minutes(held_gpu_s([attempt], state.now)),
    }


def _report(report: Report) -> Json:
    return {"at_s": report.at_s, "report": report.reports, "metric": report.metric}


def fates(timeline: Timeline, state: State) -> dict[str, tuple[str, str]]:
    """Return in a word of docs/json.md what became of each trial, and in a sentence why."""
    by_trial, attempts = timeline.by_trial(), timeline.attempts.by_trial()
    return {
        trial.id: _fate(trial, by_trial.get(trial.id, ()), attempts.get(trial.id, ()), state)
        for trial in state.trials.values()
    }


def _fate(
    trial: Trial,
    explanations: Iterable[Explanation],
    attempts: Sequence[AttemptHistory],
    state: State,
) -> tuple[str, str]:
    newest = {one.kind: one for one in explanations}
    judged, stopped = newest.get("judged"), newest.get("stopped")
    attempt = attempts[-1] if attempts else None
    name, reports = state.facts.goal_of(trial.id).metric, count(trial.reports, "report")
    how = predicate(attempt.ended, name) if attempt and attempt.ended else trial.why
    stood = predicate(judged, name) if judged is not None else ""
    if trial.phase is TrialPhase.FINISHED:
        return "finished", f"its script came to its end by itself, after {reports}"
    if trial.phase is TrialPhase.FAILED:
        return "failed", how
    if trial.phase is TrialPhase.ELIMINATED or trial.out:
        return "eliminated", stood or trial.why
    if state.phase is not RunPhase.OVER:
        return _present(trial, stopped, state.facts)
    if attempt is None:
        return "never-started", "there were never GPUs for it"
    if attempt.stopped is not None and attempt.stopped.why in ("closing", "hard"):
        if not trial.history:
            return "no-report", "it ran until the run ended, and has not reported"
        return "survived", f"it trained until the run ended, {reports} in all"
    if judged is not None and judged.verdict in ("paused", "complete"):
        return "paused", stood
    return "paused", f"when the run ended it was waiting; its last attempt: {how}"


def _present(trial: Trial, stopped: Explanation | None, facts: RunFacts) -> tuple[str, str]:
    if trial.held is not None:
        return "running", f"it is {trial.phase}, with {count(trial.reports, 'report')} so far"
    if trial.gpus:
        return "waiting", f"it waits for {gpus_text(facts.gpus(trial.gpus))}"
    if stopped is None:
        return "paused", "it has not been started yet"
    return "paused", f"it was stopped{reason(stopped)}"


# ------------------------------------------------------------ a moment


def moment_json(at_s: float, timeline: Timeline, state: State) -> Json:
    """Return what `replay --at --json` prints; `state`: the one at `at_s`."""
    stages, stage, trials = state.outline.stages, state.plan.stage, state.trials
    waiting = (trials[name] for name in state.plan.wanted if trials[name].held is None)
    decided = [one for one in timeline.explanations if one.decided]
    book, budget, facts = state.ledger, budget_gpu_s(state), state.facts
    wait_s = release_s(state)
    spent, committed = book.spent_gpu_s(at_s), book.committed_gpu_s(at_s, wait_s)
    under_way = []
    for command in state.under_way.values():
        kind, event = str(type(command).__struct_config__.tag), int(command.id.partition(".")[0])
        fields = {**structs.asdict(command), "nodes": getattr(command, "nodes", ())}
        if isinstance(command, Launch):
            fields["gpus"] = facts.gpus(command.gpus)
        row = {"command": command.id, "event": event, "kind": kind}
        under_way.append({**row, "text": fill(UNDER_WAY[kind], fields)})
    return {
        "run": state.facts.run,
        "metric": _metric(state.facts),
        "at_s": at_s,
        "event": state.clock.seq,
        "phase": str(state.phase),
        "stage": stage + 1,
        "stages": len(stages),
        "stage_end_s": stages[stage].end_s,
        "wanted": msgspec.to_builtins(wanted_sizes(state)),
        "instances_needed": needed(state),
        "instances_live": state.fleet.live,
        "running": [
            {
                "trial": trial.id,
                "phase": "loading"
                if trial.phase is TrialPhase.RUNNING and trial.training_s is None
                else str(trial.phase),
                "attempt": trial.attempt,
                "gpus": facts.gpus(sum(len(slots.gpus) for slots in trial.held)),
                "on": places_json(trial.held, facts),
                "reports": trial.reports,
                "metric": trial.metric,
            }
            for trial in trials.values()
            if trial.held is not None
        ],
        "waiting": [{"trial": trial.id, "gpus": facts.gpus(trial.gpus)} for trial in waiting],
        "instances": [
            {
                "instance": instance.id,
                "phase": str(instance.phase),
                "gpus": facts.gpus(instance.gpus),
                "busy": facts.gpus(len(instance.busy)),
                "ready_s": instance.ready_at,
                "by_s": instance.by,
            }
            for instance in state.fleet.instances.values()
            if instance.phase not in GONE
        ],
        # GPU-minutes and USD; committed: if everything were given back at `at_s`
        "spent_gpu_min": minutes(spent),
        "committed_gpu_min": minutes(committed),
        "left_gpu_min": minutes(budget - committed),
        "budget_gpu_min": minutes(budget),
        "spent_usd": round(book.spent_usd(at_s), 4),
        "committed_usd": round(book.committed_usd(at_s, wait_s), 4),
        "gpus_billed": whole_or_part(sum(charge.gpus for charge in book.open.values())),
        "next": _next(state),
        "under_way": under_way,
        "best": best(state),
        **shared(state, at_s),
        "decided": explanations_json(
            (one for one in decided if one.event == decided[-1].event), state
        ),
    }


def _next(state: State) -> list[Json]:
    plan, fleet = state.plan, state.fleet
    due: list[tuple[float | None, str]] = []
    if state.phase is RunPhase.CLOSING:
        due = [(state.end.close_by, "closed")]
    elif state.phase is RunPhase.RUNNING:
        due = [(close_at(state), "deadline"), (exhausted_at(state), "budget")]
        if plan.question is None:
            due += [(plan.again_s, "again") if plan.failures else (plan.last.ask_at_s, "plan")]
        if state.now < fleet.launch_at and fleet.live < needed(state):
            due += [(fleet.launch_at, "launch")]
    finite = sorted((at_s, what) for at_s, what in due if at_s is not None and math.isfinite(at_s))
    return [{"what": what, "at_s": round(at_s, 3)} for at_s, what in finite]
