"""What people and scripts are told of a run, as JSON-ready values. Keys are documented in
docs/json.md and only ever added to.

The one rule: pure functions of the state; numbers are in the units that their keys name.
"""

from __future__ import annotations

from seerd.core.incumbent import averaged, incumbent
from seerd.core.ledger import Charge
from seerd.core.lifecycle import RunPhase
from seerd.core.limits import grace_s, release_s
from seerd.core.provisioning import refused
from seerd.core.state import Incumbent, State, Trial
from seerd.shell.providers.base import Leftovers
from seerd.view.plan_json import Json, stage_row

EXIT_MODEL, EXIT_NO_MODEL, EXIT_REFUSED, EXIT_INTERRUPTED = 0, 4, 5, 130


def exit_code(state: State) -> int:
    """Return the exit code of a run that is over."""
    if state.end.status == "interrupted":
        return EXIT_INTERRUPTED
    if state.facts.cluster.per_instance and refused(state) is not None:
        return EXIT_REFUSED
    return EXIT_MODEL if state.result.published is not None else EXIT_NO_MODEL


def status_of(state: State, alive: bool) -> str:
    """Return how the run ended, in one word; "running"; or "stopped" if it can be resumed."""
    if state.phase is RunPhase.OVER:
        return state.end.status or "failed"
    return "running" if alive else "stopped"


def result(state: State, status: str) -> Json:
    """Make the object that `run --json` ends with."""
    limits = state.facts.problem.limits
    spent = state.ledger.spent_gpu_s(state.now)
    return {
        "run": state.facts.run,
        "status": status,
        "best": best(state),
        "elapsed_s": round(state.now, 3),
        "deadline_s": limits.deadline_s,
        "gpu_min": round(spent / 60, 4),
        "budget_gpu_min": limits.budget_gpu_s / 60,
        "usd": round(state.ledger.usd(spent), 4),
        "trials": len(state.trials),
        "instances": len(state.fleet.instances),
        "stages": _known(state, len(state.outline.stages)),
    }


def leftovers(left: Leftovers | None) -> Json:
    """Make the keys that say what a run has left; None: nothing is rented."""
    return {
        "leftovers": None if left is None else left.costing,
        "ending": None if left is None else left.ending,
    }


def unreadable(run: str, why: str) -> Json:
    """Make the row of a run whose journal cannot be read; what is not known is null."""
    known = dict.fromkeys(
        (
            "best",
            "elapsed_s",
            "deadline_s",
            "gpu_min",
            "budget_gpu_min",
            "usd",
            "trials",
            "instances",
            "stages",
        )
    )
    return {"run": run, "status": "unreadable", **known, "why": why}


def best(state: State) -> Json | None:
    """Return the model that was handed back or, before the end, the incumbent; None: there is
    none.
    """
    chosen: Incumbent | None = (
        state.result.published.incumbent if state.result.published else incumbent(state)
    )
    if chosen is None:
        return None
    return {
        "trial": chosen.trial,
        "config": dict(state.trials[chosen.trial].config),
        "metric": chosen.metric,
        "mean_of": averaged(state, chosen.checkpoint),
        "checkpoint": state.result.published.path if state.result.published else None,
        "epoch": chosen.checkpoint.reports,
    }


def _known(state: State, figure: int) -> int | None:
    """Return the figure, or None if it was not recorded, as in journals of format 1."""
    return None if state.facts.outline is None else figure


def details(state: State, status: str) -> Json:
    """Make the object of `show --json`: the result, and every trial, instance and stage."""
    return {
        **result(state, status),
        "metric": {
            "name": state.facts.metric,
            "mode": state.facts.mode,
            "target": state.facts.target,
            "smooth": state.facts.smooth,
        },
        "policy": state.facts.problem.params.name,
        "stage": _known(state, state.plan.stage + 1),
        "all_trials": [trial_row(state, trial) for trial in state.trials.values()],
        "all_instances": [
            {
                "instance": i.id,
                "gpus": i.gpus,
                "phase": str(i.phase),
                "ready_s": i.ready_at,
                "ended_s": i.ended_at,
                "why": i.why,
            }
            for i in state.fleet.instances.values()
        ],
        "all_stages": [
            stage_row(stage, state.facts.cluster.gpus_per_instance)
            for stage in state.outline.stages
        ],
        "adjusted": list(state.outline.adjusted),
        "notes": list(state.result.notes),
    }


def trial_row(state: State, trial: Trial) -> Json:
    """Make the row of one trial."""
    return {
        "trial": trial.id,
        "config": dict(trial.config),
        "phase": str(trial.phase),
        "gpus": trial.gpus,
        "attempts": trial.attempt,
        "reports": trial.reports,
        "metric": trial.metric,
        "checkpoint_epoch": trial.checkpoints[0].reports if trial.checkpoints else None,
        "crashes": trial.crashes,
        "why": trial.why,
        "pid": trial.pid,
        "on": [{"instance": slots.node, "gpus": list(slots.gpus)} for slots in trial.held or ()],
        "history": [[round(r.at_s, 3), r.reports, r.metric] for r in trial.history],
    }


def ledger(state: State, now_s: float) -> Json:
    """Make the object of `ledger --json`."""
    limits = state.facts.problem.limits
    book = state.ledger
    now_s = state.now if state.phase is RunPhase.OVER else max(now_s, state.now)
    spent, wait_s = book.spent_gpu_s(now_s), release_s(state)
    committed = spent if not book.open else book.committed_gpu_s(now_s, wait_s)
    return {
        "run": state.facts.run,
        "billing": state.facts.cluster.billing,
        "spent_gpu_min": round(spent / 60, 4),
        "committed_gpu_min": round(committed / 60, 4),
        "budget_gpu_min": limits.budget_gpu_s / 60,
        "spent_usd": round(book.usd(spent), 4),
        "cost_usd": limits.cost_usd,
        "release_s": wait_s,
        "grace_s": grace_s(state),
        "charges": [
            _charge(charge, now_s, book.usd(charge.gpu_s(now_s))) for charge in book.charges()
        ],
    }


def _charge(charge: Charge, now_s: float, usd: float) -> Json:
    return {
        "what": charge.what,
        "instance": charge.instance,
        "gpus": charge.gpus,
        "since_s": round(charge.since_s, 3),
        "until_s": None if charge.until_s is None else round(charge.until_s, 3),
        "gpu_min": round(charge.gpu_s(now_s) / 60, 4),
        "usd": round(usd, 4),
    }
