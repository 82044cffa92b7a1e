"""Budget margin: what a cloud takes beyond the ideal plan is set aside before a policy plans, so
that the bill stays within the limits.

The one rule: of all plans that are tried, the first is taken whose forecast at the 95th percentile
is within the person's GPU time and money. Every change that this took is told in a sentence. The
deadline is kept by construction: the last stage ends early enough for what comes after it.

SEER as published counts no boot, no billing minimum and no idle GPU of a whole instance (section
3.4). Here stages begin when instances can be expected to be ready, and the last one ends early
enough for everything to be given back. The budget that is planned with shrinks (fewer trials, a
longer first round, fewer instances) until its bill fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from seerd.planner.fixed_cluster import whole_instances
from seerd.planner.forecast import Forecast, closed_early, forecast_outline
from seerd.planner.model import ClusterFacts, Impossible, Limits, Outline, Problem
from seerd.planner.profile import Z95, Profile

SHRINK = 0.97
LEAST = 0.05
HALVINGS = 5
"""How often the step between a plan that does not fit and the next one that does is halved, so that
no more is set aside than necessary.
"""
SAMPLES = 200
"""Samples of every forecast here. The plan that was found is forecast with as many elsewhere, so
that its figures are those by which it was chosen.
"""

OutlineOf = Callable[[Problem], Outline | Impossible]


@dataclass(frozen=True, slots=True)
class Terms:
    """What planning is done for."""

    cluster: ClusterFacts  # what machines can be had, and how they are billed
    profile: Profile  # how long things take
    closing_s: float  # seconds from the last stage's end until the best model is in the store


def with_margin(problem: Problem, terms: Terms, outline_of: OutlineOf) -> Problem | Impossible:
    """Set the cloud's costs aside; return the problem unchanged where there are none.

    `Impossible` names the least deadline and budget that would do.
    """
    problem = _shaped(problem, terms.cluster)
    if terms.cluster.per_instance:
        unplanned = _later(problem, terms)
        if isinstance(unplanned, Impossible):
            return unplanned
        problem = unplanned
    allowed = problem.planned.gpu_s(terms.cluster.usd_per_gpu_h)
    first: Impossible | None = None
    for candidate in _smaller(problem, terms):
        result = _tried(candidate, terms, outline_of)
        if result is True:
            return (
                candidate
                if candidate.planned.budget_gpu_s >= allowed
                else _most_of(problem, candidate, terms, outline_of)
            )
        if isinstance(result, Impossible):
            first = first or result
    return _nothing_fits(problem, terms, first)


def _tried(candidate: Problem, terms: Terms, outline_of: OutlineOf) -> bool | Impossible:
    """Tell whether the forecast bill of a candidate's plan fits; `Impossible` if it has no plan."""
    outline = outline_of(candidate)
    if isinstance(outline, Impossible):
        return outline
    forecast = forecast_outline(outline, terms.cluster, terms.profile, samples=SAMPLES)
    by_s = candidate.limits.deadline_s - terms.closing_s
    return fits(closed_early(forecast, outline, by_s), candidate.limits, terms)


def _most_of(problem: Problem, fitting: Problem, terms: Terms, outline_of: OutlineOf) -> Problem:
    """Search for a larger budget between one that fits and the step before it, which did not."""
    allowed = problem.planned.gpu_s(terms.cluster.usd_per_gpu_h)
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
    """Tell whether the forecast bill is within the limits at the 95th percentile.

    The core sees to the deadline and to closing.
    """
    dear = limits.cost_usd is not None and forecast.usd.p95 > limits.cost_usd
    return not dear and forecast.gpu_s.p95 <= limits.budget_gpu_s * (1 + 1e-9)


def _shaped(problem: Problem, cluster: ClusterFacts) -> Problem:
    """Round down to whole instances: trials larger than an instance, and a rented cluster."""
    limits, params, size = problem.limits, problem.params, cluster.gpus_per_instance
    notes: list[str] = []
    if params.p_max is not None and (whole := whole_instances(params.p_max, size)) < params.p_max:
        notes.append(
            f"a trial has at most {whole} instead of {params.p_max} GPUs: "
            f"beyond {size} it takes whole instances"
        )
        params = replace(params, p_max=whole)
    most = _most_gpus(limits, cluster)
    if (
        cluster.per_instance
        and most is not None
        and limits.max_gpus is not None
        and most < limits.max_gpus
    ):
        notes.append(
            f"{most} instead of {limits.max_gpus} GPUs at most: they come in instances of {size}"
        )
    within = None if most == limits.max_gpus else replace(limits, max_gpus=most)
    whole = cluster.per_instance
    return replace(
        problem, params=params, within=within, whole=whole, adjusted=(*problem.adjusted, *notes)
    )


def _most_gpus(limits: Limits, cluster: ClusterFacts) -> int | None:
    size = cluster.gpus_per_instance
    if not cluster.per_instance:
        return limits.max_gpus
    counts = [
        n
        for n in (cluster.max_instances, limits.max_gpus and limits.max_gpus // size)
        if n is not None
    ]
    return min(counts) * size if counts else None


def _later(problem: Problem, terms: Terms) -> Problem | Impossible:
    """Set time aside: for boot before the first stage, and for closing after the last."""
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
    return replace(
        problem,
        within=replace(limits, deadline_s=left_s),
        start_s=boot_s,
        adjusted=(*problem.adjusted, *notes),
    )


def _smaller(problem: Problem, terms: Terms) -> Iterator[Problem]:
    """Yield the problem with all of the allowed budget, then with less and less of it."""
    limits = problem.planned
    allowed = limits.gpu_s(terms.cluster.usd_per_gpu_h)
    yield replace(
        problem,
        within=None
        if problem.within is None and allowed == limits.budget_gpu_s
        else _with(limits, allowed),
    )
    share = SHRINK
    while share > LEAST:
        yield _with_share(problem, allowed, share)
        share *= SHRINK


def _with_share(problem: Problem, allowed: float, share: float) -> Problem:
    """Plan with this share of the allowed GPU-seconds, and add a note that says so."""
    note = (
        f"planned with {allowed * share / 60:.4g} of {allowed / 60:.4g} GPU-min: "
        "boot, whole instances, their minimum and moves are billed too"
    )
    return replace(
        problem, within=_with(problem.planned, allowed * share), adjusted=(*problem.adjusted, note)
    )


def _with(limits: Limits, budget_gpu_s: float) -> Limits:
    return replace(limits, budget_gpu_s=budget_gpu_s)


def _nothing_fits(problem: Problem, terms: Terms, impossible: Impossible | None) -> Impossible:
    """Return that no plan fits, and what one trial of one shortest stage needs."""
    cluster, profile, params = terms.cluster, terms.profile, problem.params
    if impossible is not None and impossible.job:
        return impossible
    if not cluster.per_instance:
        return impossible or Impossible(
            "no plan fits", params.t_min_s, params.t_min_s * params.p_min
        )
    size = cluster.gpus_per_instance
    gpus = -(-params.p_min // size) * size
    boot_s = profile.cloud.boot.quantile(Z95)
    least_s = profile.cloud.pending.quantile(Z95) + boot_s + params.t_min_s + terms.closing_s
    billed_s = max(cluster.minimum_s, boot_s + params.t_min_s + terms.closing_s)
    reason = (
        f"one trial for {params.t_min_s:g}s (t_min) takes {least_s:.0f}s with boot and closing, "
        f"and {gpus * billed_s / 60:.3g} GPU-min of {gpus} billed GPUs"
    )
    if problem.limits.max_gpus is not None and problem.limits.max_gpus < gpus:
        reason = f"the smallest cluster has {gpus} GPUs, and there may be {problem.limits.max_gpus}"
    return Impossible(reason, least_s, gpus * billed_s * 1.05)
