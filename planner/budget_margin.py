"""Budget margin: what a cloud takes beyond the ideal plan (boot, billing minimum, idle GPUs of
whole instances; SEER section 3.4 counts none) is set aside, so that the bill stays within the
limits.

The first plan whose forecast at the 95th percentile is within the user's GPU time and money is
taken. The deadline is kept by construction: the last stage ends early enough for what comes after
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from seerd.planner.fixed_cluster import whole_instances
from seerd.planner.forecast import Forecast, closed_early, forecast_outline
from seerd.planner.model import ClusterFacts, Impossible, Limits, Outline, Problem
from seerd.planner.profile import Z95, Profile

SHRINK = 0.97
LEAST = 0.05
# how often the step between the last plan that does not fit and the next one is halved
HALVINGS = 5
SAMPLES = 200  # of every forecast here, and of that by which the chosen plan is shown

OutlineOf = Callable[[Problem], Outline | Impossible]


@dataclass(frozen=True, slots=True)
class Terms:
    """What planning is done for."""

    cluster: ClusterFacts  # what machines can be had, and how they are billed
    profile: Profile  # how long things take
    closing_s: float  # seconds from the last stage's end until the best model is in the store


def with_margin(problem: Problem, terms: Terms, outline_of: OutlineOf) -> Problem | Impossible:
    """Set the cloud's costs aside; `Impossible` names the least limits that would do."""
    problem = _shaped(problem, terms.cluster)
    if terms.cluster.per_instance:  # boot comes before the first stage, closing after the last
        cloud, limits = terms.profile.cloud, problem.planned
        boot_s = cloud.pending.quantile(Z95 / 2) + cloud.boot.quantile(Z95)
        left_s = limits.deadline_s - boot_s - terms.closing_s
        if limits.max_gpus == 0 or left_s < problem.params.t_min_s:
            return _nothing_fits(problem, terms, None)
        ready = f"stages begin after {boot_s:.0f}s, when instances are ready"
        left = "what the plan has left at the end of its last stage is used too"
        notes = (
            f"{ready}, and end {terms.closing_s:.0f}s before the deadline",
            f"{left}: it goes on as long as deadline and budget allow",
        )
        problem = replace(
            problem,
            within=replace(limits, deadline_s=left_s),
            start_s=boot_s,
            adjusted=(*problem.adjusted, *notes),
        )
    allowed, share = problem.planned.gpu_s(terms.cluster.usd_per_gpu_h), 1.0
    why: Impossible | None = None
    while share > LEAST:
        candidate = _with_share(problem, allowed, share)
        result = _tried(candidate, terms, outline_of)
        if result is True:
            return candidate if share == 1 else _most_of(candidate, allowed, terms, outline_of)
        if isinstance(result, Impossible):
            why = why or result
        share *= SHRINK
    return _nothing_fits(problem, terms, why)


def _tried(candidate: Problem, terms: Terms, outline_of: OutlineOf) -> bool | Impossible:
    """Return whether the forecast bill of a candidate's plan fits, or why it has no plan."""
    outline = outline_of(candidate)
    if isinstance(outline, Impossible):
        return outline
    forecast = forecast_outline(outline, terms.cluster, terms.profile, samples=SAMPLES)
    by_s = candidate.limits.deadline_s - terms.closing_s
    return fits(closed_early(forecast, outline, terms.cluster, by_s), candidate.limits, terms)


def _most_of(fitting: Problem, allowed: float, terms: Terms, outline_of: OutlineOf) -> Problem:
    """Search for a larger budget between one that fits and the step before it, which did not."""
    problem = replace(fitting, adjusted=fitting.adjusted[:-1])
    low = fitting.planned.budget_gpu_s / allowed
    high = min(1.0, low / SHRINK)
    for _ in range(HALVINGS):
        share = (low + high) / 2
        candidate = _with_share(problem, allowed, share)
        if _tried(candidate, terms, outline_of) is True:
            low, fitting = share, candidate
        else:
            high = share
    return fitting


def fits(forecast: Forecast, limits: Limits, terms: Terms) -> bool:
    """Return whether the forecast bill is within the limits at the 95th percentile."""
    dear = limits.cost_usd is not None and forecast.usd.p95 > limits.cost_usd
    return not dear and forecast.gpu_s.p95 <= limits.budget_gpu_s * (1 + 1e-9)


def _shaped(problem: Problem, cluster: ClusterFacts) -> Problem:
    """Round down to whole instances: trials larger than an instance, and a rented cluster."""
    limits, params, size = problem.limits, problem.params, cluster.gpus_per_instance
    notes: list[str] = []
    if params.p_max is not None and (whole := whole_instances(params.p_max, size)) < params.p_max:
        notes.append(
            f"a trial has at most {problem.gpus(whole)} instead of "
            f"{problem.gpus_text(params.p_max)}: beyond {problem.gpus(size)} it takes whole "
            "instances"
        )
        params = replace(params, p_max=whole)
    most = limits.max_gpus
    if cluster.per_instance:
        counts = cluster.max_instances, None if most is None else most // size
        most = min((count * size for count in counts if count is not None), default=None)
    if most is not None and limits.max_gpus is not None and most < limits.max_gpus:
        notes.append(
            f"{problem.gpus(most)} instead of {problem.gpus_text(limits.max_gpus)} at most: they "
            f"come in instances of {problem.gpus(size)}"
        )
    within = None if most == limits.max_gpus else replace(limits, max_gpus=most)
    whole, adjusted = cluster.per_instance, (*problem.adjusted, *notes)
    return replace(problem, params=params, within=within, whole=whole, adjusted=adjusted)


def _with_share(problem: Problem, allowed: float, share: float) -> Problem:
    """Return the problem with a share of the budget that the limits allow."""
    adjusted = problem.adjusted
    if share < 1:
        note = (
            f"planned with {allowed * share / 60:.4g} of {allowed / 60:.4g} GPU-min: "
            "boot, whole instances, their minimum and moves are billed too"
        )
        adjusted = (*adjusted, note)
    elif problem.within is None and allowed == problem.limits.budget_gpu_s:
        return problem
    within = replace(problem.planned, budget_gpu_s=allowed * share)
    return replace(problem, within=within, adjusted=adjusted)


def _nothing_fits(problem: Problem, terms: Terms, impossible: Impossible | None) -> Impossible:
    """Return what one trial of one shortest stage needs, unless `impossible` is a job's."""
    cluster, profile, params = terms.cluster, terms.profile, problem.params
    if impossible is not None and impossible.job:
        return impossible
    if not cluster.per_instance:
        least_gpu_s = params.t_min_s * problem.gpus(params.p_min)
        return impossible or Impossible("no plan fits", params.t_min_s, least_gpu_s)
    size = cluster.gpus_per_instance
    slots = -(-params.p_min // size) * size
    gpus = problem.gpus(slots)
    boot_s = profile.cloud.boot.quantile(Z95)
    least_s = profile.cloud.pending.quantile(Z95) + boot_s + params.t_min_s + terms.closing_s
    billed_s = max(cluster.minimum_s, boot_s + params.t_min_s + terms.closing_s)
    reason = (
        f"one trial for {params.t_min_s:g}s (t_min) takes {least_s:.0f}s with boot and closing, "
        f"and {gpus * billed_s / 60:.3g} GPU-min of {gpus} billed GPUs"
    )
    if problem.limits.max_gpus is not None and problem.limits.max_gpus < slots:
        there = problem.gpus(problem.limits.max_gpus)
        reason = f"the smallest cluster has {gpus} GPUs, and there may be {there}"
    return Impossible(reason, least_s, gpus * billed_s * 1.05)
