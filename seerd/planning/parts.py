"""Parts of a GPU, from a spec to a plan: how many slots each GPU has, and what is asked for and
offered, counted in slots (`planner/gpu_parts.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from seerd.backends.base import Quote
from seerd.errors import UsageError
from seerd.planner.gpu_parts import MOST_PARTS, gpus_number, gpus_text
from seerd.planner.model import ClusterFacts
from seerd.planner.profile import Profile
from seerd.spec.experiment import Experiment
from seerd.spec.program import TO_HOLD
from seerd.spec.spec import Spec, SpecLimits

TO_MEASURE = 4  # how many parts `seerd profile` measures for "auto"
WORTH = 1.1  # least times as much that a GPU must do with more trials on it
NOT_MEASURED = (
    'cluster.parts = "auto" is 1: how much a GPU does with several trials on it was not measured; '
    "`seerd profile` measures it"
)
NOT_HELD = (
    'cluster.parts = "auto" is 1: no Python file of the source imports torch or JAX, and without '
    f"MPS nothing else holds trials to their parts of a GPU's memory; {TO_HOLD}"
)
NO_GPUS = (
    "cluster.parts = {parts}: trials run on CPU slots, and only a GPU can be shared by trials; "
    "leave it out, and give as many slots as trials that run side by side"
)


@dataclass(frozen=True, slots=True)
class InSlots:
    """An experiment and its cluster, counted in slots."""

    experiment: Experiment
    cluster: ClusterFacts
    profiles: list[Profile]  # of each job
    notes: tuple[str, ...] = ()  # what the user should know of it, one sentence each


def in_slots(
    experiment: Experiment, quote: Quote, profiles: Sequence[Profile], *, whole: bool = False
) -> InSlots:
    """Count an experiment in slots. `whole`: GPUs are not shared, whatever is asked for. Raises
    `UsageError` for parts of CPU slots.
    """
    asked, notes = experiment.cluster.parts, tuple[str, ...]()
    is_auto = asked is None and quote.cuda and not whole
    if is_auto and any(job.takes_any_memory() for job in experiment.jobs):
        asked, notes = 1, (NOT_HELD,)
    parts = 1 if whole else asked
    if experiment.jobs[0].policy.name == "profile" and quote.cuda and asked != 1:
        parts = asked or TO_MEASURE
    if not quote.cuda and asked is not None and asked > 1:
        raise UsageError(NO_GPUS.format(parts=asked))
    if parts is None:
        parts = min(best_parts(profile) or 1 for profile in profiles) if quote.cuda else 1
        unknown = quote.cuda and any(best_parts(profile) is None for profile in profiles)
        notes = (NOT_MEASURED,) * unknown
    return InSlots(
        replace(
            experiment,
            limits=_limits(experiment.limits, parts),
            jobs=tuple(job if whole else job_in_slots(job, parts) for job in experiment.jobs),
        ),
        cluster_in_slots(quote.facts, parts),
        [profile.in_slots(parts) for profile in profiles],
        notes,
    )


def best_parts(profile: Profile) -> int | None:
    """Return how many trials should share a GPU: as many as make it do more than fewer do and fit
    into its memory; None if that was not measured.
    """
    most, best, does = profile.job.most_parts, 1, 1.0
    measured = sorted((p for p in profile.job.scaling.points if p[0] < 1), reverse=True)
    if not measured and most > 1:
        return None
    for part, speed in measured:
        if 1 / part <= most and speed / part >= WORTH * does:
            best, does = round(1 / part), speed / part
    return best


def job_in_slots(job: Spec, parts: int) -> Spec:
    """Return a job with its sizes in slots. Raises `UsageError` for a size that is not a part."""
    if parts == 1 and (job.p_min or 1) >= 1 and (job.p_max or 1) >= 1:
        return job
    p_min = 1 if job.p_min is None else _slots(job.p_min, parts, "p_min")
    p_max = None if job.p_max is None else _slots(job.p_max, parts, "p_max")
    policy = replace(job.policy, p_min=p_min, p_max=p_max)
    return replace(job, policy=policy, limits=_limits(job.limits, parts))


def cluster_in_slots(cluster: ClusterFacts, parts: int) -> ClusterFacts:
    """Return what machines can be had, in slots."""
    others = tuple(size * parts for size in cluster.other_sizes)
    size = cluster.gpus_per_instance * parts
    return replace(cluster, gpus_per_instance=size, other_sizes=others, parts=parts)


def _limits(limits: SpecLimits, parts: int) -> SpecLimits:
    most = limits.max_gpus
    return replace(limits, max_gpus=None if most is None else most * parts)


def _slots(gpus: float, parts: int, key: str) -> int:
    slots = gpus * parts
    if slots < 1:
        raise UsageError(
            f"policy.{key} = {gpus_number(gpus)}, and a GPU has {parts} part{'s' * (parts > 1)}: "
            f"write cluster.parts = {min(MOST_PARTS, round(1 / gpus))}, or {key} of at least "
            f"{gpus_text(1 / parts)}"
        )
    return int(slots)
