"""Profiles of training scripts, `profiles/KEY.json` in the folder of all runs (docs/profile.md).

The one rule: a profile counts only for what it was measured with: the script's name, content and
arguments, the provider, and the kind of machine. An unreadable file, or another version, counts as
none.
"""

from __future__ import annotations

import contextlib
import hashlib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from seerd.agent.warm.gpu_share import allowed_bytes
from seerd.planner.clouds import assumed
from seerd.planner.fitting import Fit, Law, fit, latency, report_latency
from seerd.planner.gpu_parts import DIVISIONS, MOST_PARTS, gpus_number
from seerd.planner.profile import NONE, CloudProfile, JobProfile, Latency, Profile, Scaling
from seerd.planning.cloud_times import applied
from seerd.shell import files
from seerd.spec.spec import Spec
from seerd.units import count

if TYPE_CHECKING:
    from seerd.planning.measured import Measured

VERSION = 1
MOST_GPUS, LONGEST_S = 1 << 20, 1e8
DOUBTFUL = 0.1  # a law with a larger relative deviation gets a note


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a run measures, kept in its folder: all that decides where its profile belongs."""

    key: str  # the profile's file name without its end
    script: str  # the training script
    args: tuple[str, ...]
    provider: str  # the kind of cluster
    instance_type: str  # the kind of machine


class Times(msgspec.Struct, frozen=True):
    """How a time is distributed."""

    p50: float  # median, seconds
    p95: float  # 95th percentile, seconds
    samples: int  # how many samples these are of


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for one number of GPUs."""

    gpus: float  # a fraction: so many trials shared a GPU
    measured: bool  # whether it was measured, and not fitted
    report_s: float  # seconds per report
    samples: int  # how many reports were timed; 0 for fitted points
    speed: float  # throughput relative to one GPU
    efficiency: float  # throughput per GPU, relative to one


class KeptProfile(Target, frozen=True, kw_only=True):
    """A profile as it is kept, and as `seerd profile --json` prints it (docs/profile.md)."""

    version: int  # the format of the file
    run: str  # the run that measured
    measured_at: str  # when it ended, ISO 8601, UTC
    points: tuple[Point, ...]  # what holds for each number of GPUs
    law: Law
    fit_error: float  # the law's largest relative deviation from a measured point
    report_s: Times  # a report on one GPU
    start_s: Times | None  # from the order to start until the training loop, without a checkpoint
    restore_s: Times | None  # the same from a checkpoint
    stop_s: Times | None  # from being asked to save and exit until no process is left
    save_s: Times | None  # from the first byte of a checkpoint until it is in the store
    checkpoint_bytes: int | None  # bytes of the largest checkpoint; None: there was none
    memory_bytes: int | None = None  # most memory of a GPU that a trial took alone; None: not seen
    gpu_memory_bytes: int | None = None  # memory of that GPU; None: not seen
    pending_s: Times | None  # from the request until an instance runs
    boot_s: Times | None  # from there until it takes orders
    release_s: Times | None  # from the request to terminate until an instance is gone
    notes: tuple[str, ...]  # what one should know before trusting the figures, one sentence each


def target_of(spec: Spec, instance_type: str) -> Target:
    """Return what is measured when this spec is profiled on this kind of machine."""
    train, provider = spec.train, spec.cluster.provider
    path = train.source / train.script
    content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    what = msgspec.json.encode(
        [VERSION, train.script, content, train.args, provider, instance_type]
    )
    return Target(
        key=hashlib.sha256(what).hexdigest()[:16],
        script=train.script,
        args=train.args,
        provider=provider,
        instance_type=instance_type,
    )


def kept_of(
    target: Target, found: Measured, run: str, measured_at: str, notes: Sequence[str] = ()
) -> KeptProfile:
    """Make the profile of what was measured. Raises `ValueError` if there was no report."""
    whole = {int(gpus): samples for gpus, samples in found.report_s.items() if gpus >= 1}
    made = fit(whole)
    report = report_latency(whole, made.one_gpu_s)
    reports = sum(map(len, found.report_s.values()))
    names = ("start_s", "restore_s", "stop_s", "save_s", "pending_s", "boot_s", "release_s")
    times: dict[str, Any] = {name: _times(getattr(found, name)) for name in names}
    return KeptProfile(
        version=VERSION,
        **msgspec.structs.asdict(target),
        run=run,
        measured_at=measured_at,
        points=tuple(
            Point(
                gpus=gpus,
                measured=gpus < 1 or gpus in made.measured,
                report_s=made.one_gpu_s / speed,
                samples=len(found.report_s.get(gpus, ())),
                speed=speed,
                efficiency=speed / gpus,
            )
            for gpus, speed in sorted((*_of_parts(found, made), *made.scaling.points))
        ),
        law=made.law,
        fit_error=made.error,
        report_s=Times(report.p50_s, report.p95_s, reports),
        **times,
        checkpoint_bytes=found.checkpoint_bytes or None,
        memory_bytes=found.memory[0] or None,
        gpu_memory_bytes=found.memory[1] or None,
        notes=(*notes, *_doubts(made, found)),
    )


def _of_parts(found: Measured, made: Fit) -> Iterator[tuple[float, float]]:
    """Yield the parts of a GPU that were measured, each with its throughput beside a whole GPU."""
    for part, samples in found.report_s.items():
        if part < 1:
            yield part, made.one_gpu_s / statistics.median(samples)


def _times(samples: Sequence[float]) -> Times | None:
    if not samples:
        return None
    made = latency(samples)
    return Times(made.p50_s, made.p95_s, len(samples))


def _doubts(made: Fit, found: Measured) -> Iterator[str]:
    """Yield what to know before trusting the figures, one sentence each."""
    if len(made.measured) == 1:
        yield f"only {_gpus(made.measured)} measured: twice the GPUs are taken to be twice as fast"
    elif made.error > DOUBTFUL:
        yield (
            f"no law fits within {made.error:.0%}: what lies beyond {made.measured[-1]} "
            "GPUs is a guess"
        )
    elif made.law.terms >= len(made.measured):
        yield (
            "the law has as many terms as there are points: its error says nothing of more "
            f"than {count(made.measured[-1], 'GPU')}"
        )
    measured = [point for point in made.scaling.points if point[0] in made.measured]
    best = max(measured, key=lambda point: point[1])
    if len(made.measured) > 1 and best[0] == made.measured[0]:
        yield f"more than {_gpus(made.measured[:1])} per trial made nothing faster here"
    if found.rough:
        yield (
            f"on {_gpus(sorted(found.rough))}, every report that was timed had a warm-up or "
            "a checkpoint in it"
        )


def _gpus(numbers: Sequence[float]) -> str:
    return f"{' and '.join(map(gpus_number, numbers))} GPU{'s' * (numbers[-1] > 1)}"


def profile_of(kept: KeptProfile) -> Profile:
    """Turn a kept profile into that of planning and simulation."""
    job = JobProfile(
        report=_latency(kept.report_s),
        scaling=Scaling(tuple((point.gpus, point.speed) for point in kept.points)),
        start=_latency(kept.restore_s or kept.start_s),
        save=_latency(kept.stop_s),
        most_parts=_most_parts(kept.memory_bytes, kept.gpu_memory_bytes),
    )
    cloud = CloudProfile(_latency(kept.pending_s), _latency(kept.boot_s), _latency(kept.release_s))
    return Profile(job, cloud, f"measured on {kept.measured_at[:10]} by {kept.run}")


def _most_parts(memory: int | None, gpu_memory: int | None) -> int:
    """Return how many trials that each take so many bytes fit into a GPU with so many; None: not
    seen.
    """
    if memory is None or gpu_memory is None:
        return MOST_PARTS
    fits = (n for n in DIVISIONS if memory <= allowed_bytes(f"1/{n}", gpu_memory))
    return max(fits, default=1)


def _latency(times: Times | None) -> Latency:
    return NONE if times is None else Latency(times.p50, times.p95)


def path_of(home: Path, key: str) -> Path:
    """Return the file of a profile."""
    return home / "profiles" / f"{key}.json"


def keep(home: Path, kept: KeptProfile) -> Path:
    """Write a profile, whole or not at all; return its file. Raises `UsageError`."""
    return files.keep(path_of(home, kept.key), kept, "the profile")


def load_profile(home: Path, spec: Spec, machine_types: Sequence[str]) -> Profile | None:
    """Return the profile of this script on the first of these machines that has one."""
    for instance_type in machine_types:
        path = path_of(home, target_of(spec, instance_type).key)
        with contextlib.suppress(OSError, ValueError, ArithmeticError, RecursionError):
            # msgspec's errors are ValueErrors
            kept = msgspec.json.decode(path.read_bytes(), type=KeptProfile)
            if kept.version == VERSION and _is_possible(kept):
                return profile_of(kept)
    return None


def profile_for(home: Path, spec: Spec, machine_types: Sequence[str]) -> Profile:
    """Return what was measured of this script, else what is assumed of it and was measured of its
    cloud, with the data of the spec.

    How much an instance fetches, and its price, cannot be measured (RubberBand, EuroSys '21,
    section 4.1: "data price").
    """
    profile = load_profile(home, spec, machine_types)
    profile = profile or applied(assumed(rented=spec.cluster.rented), home, spec)
    job = replace(profile.job, ingress_gb=spec.train.ingress_gb)
    cloud = replace(profile.cloud, usd_per_ingress_gb=spec.cluster.ingress_price)
    return replace(profile, job=job, cloud=cloud)


def _is_possible(kept: KeptProfile) -> bool:
    """Return whether the figures can be true: a file with, say, a changed digit counts as none."""
    values = (getattr(kept, name) for name in KeptProfile.__struct_fields__)
    times = [value for value in values if isinstance(value, Times)]
    return (
        all(0 < point.gpus <= MOST_GPUS for point in kept.points)
        and kept.report_s.p50 > 0
        and all(0 <= time.p50 <= time.p95 <= LONGEST_S for time in times)
    )
