"""A run as values for JSON; docs/json.md has the keys, which are only ever added to."""

from __future__ import annotations

from dataclasses import asdict

from seerd.backends.base import Leftovers
from seerd.core.events import Goal
from seerd.core.lifecycle import RunPhase
from seerd.core.limits import grace_s, release_s
from seerd.core.metrics import (
    averaged,
    best_report,
    best_saved,
    chosen,
    last_value,
    metrics_of,
    names_of,
    value_of,
    violations_of,
)
from seerd.core.provisioning import refused
from seerd.core.results import best_configuration, result_of
from seerd.core.state import Incumbent, State, Trial
from seerd.planner.gpu_parts import whole_or_part
from seerd.planner.parameter import plain
from seerd.planner.trial_ids import job_of
from seerd.telling.complaints import notes_of
from seerd.telling.diagnosis import diagnose
from seerd.telling.explanation.explanations import places_json
from seerd.telling.front import front_of, modes_of
from seerd.telling.outcomes import (
    ShownJob,
    TrialOutcome,
    bill_of,
    fate,
    jobs_of,
    outcomes,
    why_text,
    without_gpu,
)
from seerd.telling.plan_json import Json, stage_row

EXIT_MODEL, EXIT_NO_MODEL, EXIT_REFUSED, EXIT_INTERRUPTED = 0, 4, 5, 130


def exit_code(state: State, *, need_model: bool = False) -> int:
    """Return the exit code of a run that is over. `need_model`: a configuration is no result."""
    if state.end.status == "interrupted":
        return EXIT_INTERRUPTED
    if without_gpu(state) or (state.facts.cluster.per_instance and refused(state) is not None):
        return EXIT_REFUSED
    if state.result.published is not None:
        return EXIT_MODEL
    configured = any(best_configuration(state, job) is not None for job in state.jobs)
    return EXIT_MODEL if configured and not need_model else EXIT_NO_MODEL


def status_of(state: State, alive: bool) -> str:
    """Return how the run ended, in one word; "running"; or "stopped" if it can be resumed."""
    if state.phase is RunPhase.OVER:
        return state.end.status or "failed"
    return "running" if alive else "stopped"


def result(state: State, status: str) -> Json:
    """Make the object that `run --json` ends with."""
    limits = state.facts.problem.limits
    spent, found = state.ledger.spent_gpu_s(state.now), best_report(state, next(iter(state.jobs)))
    return {
        "run": state.facts.run,
        "status": status,
        "result": result_of(state),
        "best": best(state),
        "best_report": found and _report(state, found[0], found[1].metric, found[1].reports),
        "no_model": no_model(state),
        "elapsed_s": round(state.now, 3),
        "deadline_s": limits.deadline_s,
        "gpu_min": round(spent / 60, 4),
        "budget_gpu_min": limits.budget_gpu_s / 60,
        "usd": round(state.ledger.spent_usd(state.now), 4),
        "trials": len(state.trials),
        "instances": len(state.fleet.instances),
        "stages": len(state.outline.stages),
        **front(state, next(iter(state.jobs))),
        **shared(state, state.now),
    }


def shared(state: State, now_s: float) -> Json:
    """Make the keys that say how jobs share the run up to `now_s`; none if it is one job."""
    jobs = jobs_of(state, now_s)
    if not jobs:
        return {}
    by_owner: dict[str, list[ShownJob]] = {}
    for job in jobs:
        by_owner.setdefault(job.facts.owner, []).append(job)
    return {
        "jobs": [
            {
                "job": job.facts.id,
                "owner": job.facts.owner,
                "weight": job.planned.weight,
                "policy": job.planned.problem.params.name,
                "over": own.over is not None,
                "why": own.over,
                "detail": own.detail,
                "metric": job.facts.metric,
                "mode": job.facts.mode,
                "target": job.facts.target,
                "result": result_of(state, job.facts.id),
                "best": best(state, job.facts.id),
                **front(state, job.facts.id),
                "gpus": whole_or_part(own.gpus),
                **_billed(state, job.gpu_s),
                "trials": job.trials,
            }
            for job in jobs
            for own in [state.jobs[job.facts.id]]
        ],
        "owners": [
            {
                "owner": owner,
                "jobs": [job.facts.id for job in own],
                "trials": sum(job.trials for job in own),
                **_billed(state, sum(job.gpu_s for job in own)),
            }
            for owner, own in by_owner.items()
        ],
        "shared": _billed(state, bill_of(state, now_s).shared),
    }


def _billed(state: State, gpu_s: float) -> Json:
    usd = round(state.ledger.part_usd(gpu_s, state.now), 4)
    return {"gpu_min": round(gpu_s / 60, 4), "usd": usd}


def listed(state: State, status: str) -> Json:
    """Make the row of `list --json`, without when the run began."""
    limits = state.facts.problem.limits
    return {
        **result(state, status),
        "metric": metric(state),
        "cost_usd": limits.cost_usd,
        "max_gpus": None if limits.max_gpus is None else state.facts.gpus(limits.max_gpus),
    }


def metric(state: State) -> Json:
    """Make the object that says by what models are compared."""
    goal = {name: getattr(state.facts, name) for name in Goal.__struct_fields__}
    constraints = [str(constraint) for constraint in goal["constraints"]]
    return {"name": goal.pop("metric"), **goal, "constraints": constraints}


def no_model(state: State) -> Json | None:
    """Return why a run that is over has no model; None: it has one, or is not over."""
    if state.phase is not RunPhase.OVER or any(chosen(state, job) for job in state.jobs):
        return None
    return asdict(diagnose(state))


def leftovers(left: Leftovers | None) -> Json:
    """Make the keys that say what a run has left; None: nothing is rented."""
    return {
        "leftovers": None if left is None else left.costing,
        "ending": None if left is None else left.ending,
    }


def unreadable(run: str, why: str) -> Json:
    """Make the row of a run whose journal cannot be read; what is not known is null."""
    keys = "result best best_report no_model elapsed_s deadline_s gpu_min budget_gpu_min usd "
    keys += "trials instances stages metric cost_usd max_gpus"
    return {"run": run, "status": "unreadable", **dict.fromkeys(keys.split()), "why": why}


def best(state: State, job: str | None = None) -> Json | None:
    """Return a job's model (None: of the run's one job, or of the first), published or else the
    best saved; of a script that saves none by design the best configuration; None: neither.
    """
    if (best := chosen(state, job)) is not None:
        return _model(state, best)
    if (configuration := best_configuration(state, job)) is None:
        return None
    trial, report = configuration
    row = _report(state, trial, report.metric, report.reports)
    return {**row, "mean_of": 1, "checkpoint": None}


def front(state: State, job: str) -> Json:
    """Make the key that has a job's front, the best first; no key without objectives."""
    reports = ((point.trial, point.report) for point in front_of(state, job))
    rows = [_report(state, trial, made.metric, made.reports) for trial, made in reports]
    return {"front": rows} if modes_of(state, job) else {}


def _model(state: State, best: Incumbent) -> Json:
    published = state.result.of_jobs.get(job_of(best.trial))
    return {
        **_report(state, state.trials[best.trial], best.metric, best.checkpoint.reports),
        "mean_of": averaged(state, best.checkpoint),
        "checkpoint": None if published is None else published.path,
    }


def _report(state: State, trial: Trial, metric: float | None, reports: int) -> Json:
    return {
        "trial": trial.id,
        "config": plain(trial.config),
        "metric": metric,
        "metrics": metrics_of(state, trial, reports),
        "epoch": reports,
    }


def details(state: State, status: str) -> Json:
    """Make the object of `show --json`: the result, and every trial, instance and stage."""
    became = outcomes(state)
    return {
        **result(state, status),
        "metric": metric(state),
        "metrics": names_of(state),
        "policy": state.facts.problem.params.name,
        "stage": state.plan.stage + 1,
        "all_trials": [
            trial_row(state, trial, became[trial.id]) for trial in state.trials.values()
        ],
        "all_instances": [
            {
                "instance": i.id,
                "cloud_id": i.cloud_id,
                "awaited": None if i.ready_at is not None else i.awaited,
                "unreached": i.unreached,
                "gpus": state.facts.gpus(i.gpus),
                "usable_gpus": state.facts.gpus(i.usable),
                "phase": str(i.phase),
                "ready_s": i.ready_at,
                "ended_s": i.ended_at,
                "computed": list(i.computed),
                "why": i.why,
            }
            for i in state.fleet.instances.values()
        ],
        "all_stages": [stage_row(stage, state.facts.cluster) for stage in state.outline.stages],
        "adjusted": list(state.outline.adjusted),
        "notes": notes_of(state),
    }


def trial_row(state: State, trial: Trial, outcome: TrialOutcome) -> Json:
    """Make the row of one trial."""
    own = state.facts.goal_of(trial.id).metric
    return {
        "trial": trial.id,
        **({"job": job_of(trial.id)} if state.facts.jobs else {}),
        "config": plain(trial.config),
        "phase": fate(state, trial),
        "outcome": outcome.word,
        "outcome_why": why_text(trial, outcome),
        "gpus": state.facts.gpus(trial.gpus),
        "attempts": trial.attempt,
        "reports": trial.reports,
        "metric": last_value(state, trial, own),
        "metrics": {name: last_value(state, trial, name) for name in names_of(state)},
        "best_saved": best_saved(state, trial),
        "violates": violations_of(state, trial),
        "checkpoint_epoch": trial.checkpoints[0].reports if trial.checkpoints else None,
        "crashes": trial.crashes,
        "why": trial.why,
        "pid": trial.pid,
        "on": places_json(trial.held, state.facts),
        "history": [
            [round(r.at_s, 3), r.reports, value_of(state, trial, r, own)] for r in trial.history
        ],
        "other_histories": {
            name: [value_of(state, trial, r, name) for r in trial.history]
            for name in names_of(state)
            if name != own
        },
    }


def ledger(state: State, now_s: float) -> Json:
    """Make the object of `ledger --json`."""
    limits, book = state.facts.problem.limits, state.ledger
    now_s = state.now if state.phase is RunPhase.OVER else max(now_s, state.now)
    spent, wait_s = book.spent_gpu_s(now_s), release_s(state)
    committed = spent if not book.open else book.committed_gpu_s(now_s, wait_s)
    return {
        "run": state.facts.run,
        "billing": state.facts.cluster.billing,
        "spent_gpu_min": round(spent / 60, 4),
        "committed_gpu_min": round(committed / 60, 4),
        "budget_gpu_min": limits.budget_gpu_s / 60,
        "spent_usd": round(book.spent_usd(now_s), 4),
        "cost_usd": limits.cost_usd,
        "release_s": wait_s,
        "grace_s": grace_s(state),
        "charges": [
            {
                "what": charge.what,
                "instance": charge.instance,
                "gpus": charge.gpus,
                "since_s": round(charge.since_s, 3),
                "until_s": None if charge.until_s is None else round(charge.until_s, 3),
                "gpu_min": round(charge.gpu_s(now_s) / 60, 4),
                "usd": round(book.charged_usd(charge, now_s), 4),
            }
            for charge in book.charges()
        ],
        **shared(state, now_s),
    }
