"""A plan as values for JSON. Keys are documented in docs/json.md and only ever added to.

No run is needed for it, so that `seerd plan` need not import the core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seerd.planner.model import ClusterFacts, Impossible, Stage
from seerd.planner.parameter import plain
from seerd.planner.space import Config
from seerd.planner.stages import instances_for

if TYPE_CHECKING:
    from seerd.backends.backend import Uncounted
    from seerd.planner.forecast import Forecast
    from seerd.planning.planned import Planned

Json = dict[str, Any]


def plan_json(
    planned: Planned,
    others: Mapping[str, Planned | Impossible],
    configs: Sequence[Config] = (),
    uncounted: Uncounted | None = None,
) -> Json:
    """Make the object of `plan --json`; its `forecast` is what will be billed."""
    problem, outline, cluster = planned.problem, planned.outline, planned.cluster
    ideal_gpu_s = outline.gpu_s / cluster.parts
    return {
        "policy": problem.params.name,
        "deadline_s": problem.limits.deadline_s,
        "budget_gpu_min": problem.limits.budget_gpu_s / 60,
        "cost_usd": problem.limits.cost_usd,
        "rounds": len(outline.stages),
        "first_round_s": outline.first_round_s,
        "r_star": outline.r_star,
        "brackets": [
            {
                "gpus_per_trial": cluster.gpus(b.gpus_per_trial),
                "trials": b.trials,
                "budget_gpu_min": b.budget_gpu_s / 60,
            }
            for b in outline.brackets
        ],
        "stages": [stage_row(stage, cluster) for stage in outline.stages],
        "gpu_min": ideal_gpu_s / 60,
        "usd": ideal_gpu_s / 3600 * cluster.usd_per_gpu_h,
        "ideal_s": outline.stages[-1].end_s - outline.stages[0].start_s,
        "forecast": _forecast(planned.forecast),
        "uncounted": uncounted and {"usd": round(uncounted.usd, 4), "text": uncounted.text},
        "adjusted": list(outline.adjusted),
        "warnings": list(planned.warnings),
        "configs": [plain(config) for config in configs],
        "others": [
            {"policy": name, "impossible": other.reason}
            if isinstance(other, Impossible)
            else {
                "policy": name,
                "trials": other.outline.trials,
                "stages": len(other.outline.stages),
                "peak_gpus": cluster.gpus(other.outline.peak_gpus),
                "gpu_min": other.outline.gpu_s / cluster.parts / 60,
                "forecast": _forecast(other.forecast),
            }
            for name, other in others.items()
        ],
    }


def _forecast(forecast: Forecast) -> Json:
    return {
        "time_s": {"p50": forecast.time_s.p50, "p95": forecast.time_s.p95},
        "gpu_min": {"p50": forecast.gpu_s.p50 / 60, "p95": forecast.gpu_s.p95 / 60},
        "usd": {"p50": forecast.usd.p50, "p95": forecast.usd.p95},
    }


def stage_row(stage: Stage, cluster: ClusterFacts) -> Json:
    """Make the object of one stage."""
    groups = stage.groups
    return {
        "start_s": stage.start_s,
        "end_s": stage.end_s,
        "groups": [
            {"gpus_per_trial": cluster.gpus(g.gpus_per_trial), "trials": g.trials} for g in groups
        ],
        "gpus": cluster.gpus(stage.gpus),
        "instances": instances_for(groups, cluster.gpus_per_instance),
        "gpu_min": stage.gpu_s / cluster.parts / 60,
    }
