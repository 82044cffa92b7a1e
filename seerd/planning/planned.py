"""From a problem to a plan that can be started, what it would take, and what to know before. Only
pure functions; a plan whose bill does not fit is adjusted here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from seerd.core.rules import closing_s, shortest_s
from seerd.errors import LimitsError, UsageError
from seerd.extras import installing
from seerd.planner.budget_margin import SAMPLES, Terms, with_margin
from seerd.planner.clouds import assumed
from seerd.planner.draws import draws
from seerd.planner.forecast import Forecast, Spread, closed_early, forecast_outline
from seerd.planner.memory import Memory
from seerd.planner.model import (
    ClusterFacts,
    Impossible,
    Limits,
    Mode,
    NeedsPackageError,
    Outline,
    Problem,
    View,
)
from seerd.planner.policies import POLICIES, TO_THE_LAST_RUNG
from seerd.planner.policy import outline_of, plan_of
from seerd.planner.profile import Latency, Profile
from seerd.planner.space import Config, NoConfigurationError
from seerd.planner.stages import instances_for
from seerd.units import count

BOOT_SHARE = 0.1  # a warning follows if boots take a larger share of the budget
CONFIGS = 5  # configurations that the user is shown before they are tried
TRIES = 40
MORE = 1.1  # minima that do not suffice are raised by this factor, at most `TRIES` times

BOHB = (
    "bohb is ASHA with configurations from TPE: unlike the published BOHB, it stops trials as asha "
    "does, and not by Hyperband's brackets"
)
UNMEASURED = (
    "nothing was measured for this script yet: times are assumed; `seerd profile` measures them"
)


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and what it is expected to take."""

    problem: Problem  # what the policy plans with
    outline: Outline  # the whole run as the policy would have it
    cluster: ClusterFacts  # what machines can be had, and how they are billed
    forecast: Forecast  # time, GPU time and money that it will take
    # what may surprise the person, one sentence each, the most important first
    warnings: tuple[str, ...] = ()


def plan_for(
    problem: Problem, cluster: ClusterFacts, profile: Profile, *, ideal: bool = False
) -> Planned:
    """Plan what a problem's policy would do; `ideal`: as published, whatever is billed. Raises
    `LimitsError` if the limits fit nothing, `UsageError` for trials that do not fit whole
    instances.
    """
    p_min, size = problem.params.p_min, cluster.gpus_per_instance
    if cluster.max_instances != 1 and p_min > size and p_min % size:
        less, more = p_min // size * size, -(-p_min // size) * size
        gpus = problem.gpus
        raise UsageError(
            f"policy.p_min = {gpus(p_min)}: beyond one instance of {gpus(size)} GPUs a trial takes "
            f"whole ones; {gpus(less)} or {gpus(more)} can be had"
        )
    planned = _planned(problem, cluster, profile, ideal=ideal)
    if isinstance(planned, Impossible):
        advice = _advice(problem, cluster, planned)
        least = planned if ideal or advice else _that_do(problem, cluster, profile, planned)
        raise LimitsError(planned.reason, least.min_deadline_s, least.min_budget_gpu_s, advice)
    return replace(planned, warnings=tuple(warnings(planned, profile)))


def first_configs(problem: Problem, mode: Mode) -> list[Config]:
    """List `CONFIGS` configurations that the policy begins with, in its order. If it draws them by
    number and begins with fewer, the next draws follow.
    """
    plan, _ = plan_of(problem, Memory(), View(0.0, mode, {}))
    begun, drawn = [trial.config for trial in plan.new[:CONFIGS]], draws(problem)
    numbered = all(config == drawn[number] for number, config in enumerate(begun))
    return [drawn[number] for number in range(CONFIGS)] if numbered else begun


def others(
    problem: Problem,
    cluster: ClusterFacts,
    profile: Profile,
    *,
    ideal: bool = False,
    t_min_s: Callable[[str], float] | None = None,
) -> dict[str, Planned | Impossible]:
    """Plan for the same limits with each other policy. `t_min_s`: returns a policy's shortest first
    round; None: the problem's.
    """
    plans: dict[str, Planned | Impossible] = {}
    for name in (name for name in POLICIES if name != problem.params.name):
        least_s = problem.params.t_min_s if t_min_s is None else t_min_s(name)
        other = replace(problem, params=replace(problem.params, name=name, t_min_s=least_s))
        try:
            plan = _planned(other, cluster, profile, ideal=ideal)
        except UsageError as error:
            plan = Impossible(str(error), 0.0, 0.0)
        never = isinstance(plan, Planned) and not ideal and never_begun(plan, profile)
        plans[name] = Impossible(never, 0.0, 0.0) if never else plan
    return plans


def never_begun(planned: Planned, profile: Profile) -> str | None:
    """Return why the plan has more trials than its GPU time can start; None if it has not."""
    start_s = profile.job.start.p50_s
    for bracket in planned.outline.brackets:
        gpus = planned.cluster.gpus(bracket.gpus_per_trial)
        if bracket.trials * gpus * start_s > bracket.budget_gpu_s:
            most = int(bracket.budget_gpu_s / (gpus * start_s))
            return (
                f"{count(bracket.trials, 'trial')} planned, and the limits have time to start "
                f"{most} of them, at {start_s:.3g}s for a start: give policy.trials, or more time"
            )
    return None


def _planned(
    problem: Problem, cluster: ClusterFacts, profile: Profile, *, ideal: bool
) -> Planned | Impossible:
    closing = closing_of(problem.limits.deadline_s, cluster, profile)
    if not ideal:
        adjusted = with_margin(problem, Terms(cluster, profile, closing), _outline)
        if isinstance(adjusted, Impossible):
            return adjusted
        problem = adjusted
    outline = _outline(problem)
    if isinstance(outline, Impossible):
        return outline
    if not ideal and (too_short := _no_time(problem, cluster, closing)) is not None:
        return too_short
    forecast = forecast_outline(outline, cluster, profile, samples=SAMPLES)
    if not ideal:
        forecast = closed_early(forecast, outline, cluster, problem.limits.deadline_s - closing)
    # The core has ended the run at the deadline.
    time_s, deadline_s = forecast.time_s, problem.limits.deadline_s
    figures = (min(each, deadline_s) for each in (time_s.p50, time_s.p95, time_s.mean))
    forecast = replace(forecast, time_s=Spread(*figures))
    if problem.params.name == "seer+":
        # Imported only when it is needed: its model's threadpoolctl takes long.
        from seerd.planning.expected import expectation

        own = outline.adjusted[len(problem.adjusted) :]
        notes = (*problem.adjusted, expectation(problem, outline, profile))
        problem = replace(problem, adjusted=notes)
        outline = replace(outline, adjusted=(*notes, *own))
    return Planned(problem, outline, cluster, forecast)


def _no_time(problem: Problem, cluster: ClusterFacts, closing_s: float) -> Impossible | None:
    """Return why the deadline leaves no time in which a trial could be started; None if it does."""
    if cluster.instant:
        return None
    deadline_s = problem.limits.deadline_s
    start_s = shortest_s(deadline_s)
    least_s = closing_s + start_s
    if deadline_s > least_s:
        return None
    return Impossible(
        f"of {deadline_s:g}s the last {closing_s:.2g}s are for saving and ending, and no trial is "
        f"started later than {start_s:.2g}s before that",
        math.ceil(least_s) + 1.0,
        problem.limits.budget_gpu_s,
    )


def _advice(problem: Problem, cluster: ClusterFacts, why: Impossible) -> str:
    """Return what would help where no other deadline or budget would; or nothing."""
    if why.job:
        return "Allow more, to the run or in that [[job]], or leave the job out."
    size = cluster.gpus_per_instance if cluster.per_instance else 1
    most = problem.limits.max_gpus
    if most is not None and most // size * size < problem.params.p_min:
        return "No deadline and no budget would help; allow more with --max-gpus."
    return ""


def _that_do(
    problem: Problem, cluster: ClusterFacts, profile: Profile, estimate: Impossible
) -> Impossible:
    """Find minima of deadline and budget by trying them: the estimate may be too low, since what is
    billed, and set aside for the end, is known only once there is a plan.
    """
    limits, least = problem.limits, estimate
    for _ in range(TRIES):
        larger = (
            max(limits.deadline_s, least.min_deadline_s),
            max(limits.budget_gpu_s, least.min_budget_gpu_s),
        )
        # both together, and each beside the other limit
        for both in ((least.min_deadline_s, least.min_budget_gpu_s), larger):
            enough = replace(problem, limits=Limits(*both, limits.max_gpus))
            again = _planned(enough, cluster, profile, ideal=False)
            if isinstance(again, Impossible):
                break
        else:
            return least
        more = 1.0 if again.min_deadline_s > least.min_deadline_s else MORE
        least = Impossible(
            estimate.reason,
            max(least.min_deadline_s, again.min_deadline_s) * more,
            max(least.min_budget_gpu_s, again.min_budget_gpu_s) * more,
        )
    return least


def _outline(problem: Problem) -> Outline | Impossible:
    try:
        return outline_of(problem)
    except NeedsPackageError as error:
        raise UsageError(f"{error}: {installing(error.extra)}") from error
    except NoConfigurationError as error:
        raise UsageError(str(error)) from error


def closing_of(deadline_s: float, cluster: ClusterFacts, profile: Profile) -> float:
    """Return the seconds that the core will set aside for the end of a run."""
    slowest_s = max(profile.job.report.p50_s / profile.job.scaling.speed(1), profile.job.save.p95_s)
    return closing_s(deadline_s, slowest_s, cluster)


def warnings(planned: Planned, profile: Profile) -> Iterator[str]:
    """Yield what may surprise a person who pays for this plan, one sentence each."""
    problem, outline, cluster = planned.problem, planned.outline, planned.cluster
    if problem.params.name == "bohb":
        yield BOHB
    if not cluster.instant and (why := never_begun(planned, profile)):
        yield why
    if cluster.per_instance:
        instances = instances_for(outline.stages[0].groups, cluster.gpus_per_instance)
        gpus = cluster.gpus(instances * cluster.gpus_per_instance)
        boot_gpu_s = gpus * profile.cloud.boot.p50_s
        if (share := boot_gpu_s / problem.limits.budget_gpu_s) > BOOT_SHARE:
            yield (
                f"booting {count(instances, 'instance')} takes about {share:.0%} of the budget: a "
                "longer deadline or a faster image would help"
            )
    # what few GPUs change in SEER's plan; other policies say so in their outline
    is_changed = len(outline.adjusted) > len(problem.adjusted)
    if problem.params.name == "seer" and is_changed and problem.limits.max_gpus is not None:
        yield (
            f"there may be only {problem.gpus_text(problem.limits.max_gpus)} at one moment: "
            "limits.max_gpus, or all that the cluster has"
        )
        if len(outline.stages) == 1:
            yield (
                f"seer begins with all trials at once, so it compares only {outline.trials} and "
                "eliminates none; with so few GPUs `--policy hyperband` tries more, one after "
                "another"
            )
    if not profile.is_measured:
        yield UNMEASURED
        return
    first = outline.stages[0]
    smallest = min(group.gpus_per_trial for group in first.groups)
    speed = profile.job.scaling.speed(smallest)
    report_s = profile.job.start.p50_s + profile.job.report.p50_s / speed
    if first.end_s - first.start_s < report_s:
        yield (
            f"the first stage lasts {first.end_s - first.start_s:.0f}s, and the first report comes "
            f"after about {report_s:.0f}s: trials would be judged without one; raise policy.t_min"
        )


def extended(
    problem: Problem,
    cluster: ClusterFacts,
    limits: Limits,
    *,
    now_s: float,
    spent_gpu_s: float,
    spent_usd: float,
) -> tuple[Problem, Outline | None]:
    """Plan what is left of a run under new limits, none of which is lower than before. Return what
    is planned with, and the rest of the run; None: the present plan stands.

    now_s                   seconds since the run began
    spent_gpu_s, spent_usd  spent, or cannot be kept from being spent
    """
    raised = replace(problem, limits=limits), None
    if problem.params.name in TO_THE_LAST_RUNG or problem.params.stage_gpus is not None:
        return raised
    rest = Limits(
        limits.deadline_s - now_s,
        limits.budget_gpu_s - spent_gpu_s,
        limits.max_gpus,
        None if limits.cost_usd is None else limits.cost_usd - spent_usd,
    )
    if rest.deadline_s <= 0 or rest.budget_gpu_s <= 0 or (rest.cost_usd or 1.0) <= 0:
        return raised
    fresh = replace(problem, limits=rest, within=None, start_s=0.0, adjusted=())
    ideal = cluster.instant or (problem.within is None and cluster.per_instance)
    planned = fresh if ideal else _within(fresh, limits, cluster)
    if isinstance(planned, Impossible):
        return raised
    left = replace(
        planned,
        limits=limits,
        within=planned.planned,
        start_s=now_s + planned.start_s,
        extended=problem.extended + 1,
        adjusted=(*problem.adjusted, "the limits were extended, and what was left planned anew"),
    )
    outline = outline_of(left)
    return raised if isinstance(outline, Impossible) else (left, outline)


def _within(fresh: Problem, limits: Limits, cluster: ClusterFacts) -> Problem | Impossible:
    """Set aside what the cloud takes, as for a new run. Profiles are found by the spec, which a
    running run does not need: boots take what was planned with, the rest is assumed.
    """
    profile: Profile = assumed(rented=cluster.per_instance)
    cloud = replace(profile.cloud, boot=Latency(cluster.boot_s, 1.5 * cluster.boot_s))
    profile = replace(
        profile,
        job=replace(profile.job, scaling=fresh.scaling),
        cloud=cloud if cluster.per_instance and cluster.boot_s else profile.cloud,
    )
    terms = Terms(cluster, profile, closing_of(limits.deadline_s, cluster, profile))
    return with_margin(fresh, terms, outline_of)
