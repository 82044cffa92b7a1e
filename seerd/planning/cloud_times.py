"""What a cloud takes, as `seerd canary` measured it, by region and instance type; plans use it
until a script is profiled. Files are `clouds/REGION-TYPE.json` in the folder of all runs.

The one rule: times of another family make a plan more careful, never less: a machine without a GPU
boots sooner than one with eight. An unreadable file, or another version, counts as none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from seerd.errors import UsageError
from seerd.planner.fitting import latency
from seerd.planner.profile import CloudProfile, Latency, Profile
from seerd.shell import files
from seerd.spec.spec import Spec

VERSION = 1
LONGEST_S = 3600.0


class KeptTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one instance type, as they are kept."""

    version: int  # the format of the file
    region: str
    instance_type: str
    measured_at: str  # when, ISO 8601, UTC
    pending_s: tuple[float, ...]  # samples: from the request until EC2 said `running`
    boot_s: tuple[float, ...]  # samples: from there until the agent took connections
    release_s: tuple[float, ...]  # samples: from the request to terminate until EC2 had taken it


def keep(home: Path, kept: KeptTimes) -> Path:
    """Write times to their file, whole or not at all, and return the file. Raises `UsageError` if
    they cannot be written, or cannot be true: a machine that slept has measured its own sleep.
    """
    if not _is_possible(kept):
        raise UsageError(
            f"the times of {kept.instance_type} are not kept, as they cannot be true: one is "
            f"outside 0 to {LONGEST_S:.0f}s (has this machine slept, or its clock been set?)"
        )
    path = home / "clouds" / f"{kept.region}-{kept.instance_type}.json"
    return files.keep(path, kept, "the times")


def load(home: Path) -> list[KeptTimes]:
    """Read all kept times, the newest first."""
    good = []
    for path in (home / "clouds").glob("*.json"):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            kept = msgspec.json.decode(path.read_bytes(), type=KeptTimes)
            if kept.version == VERSION and _is_possible(kept):
                good.append(kept)
    return sorted(good, key=lambda kept: kept.measured_at, reverse=True)


def _is_possible(kept: KeptTimes) -> bool:
    samples = (*kept.pending_s, *kept.boot_s, *kept.release_s)
    return all(0.0 <= seconds <= LONGEST_S for seconds in samples)


def applied(profile: Profile, home: Path, spec: Spec) -> Profile:
    """Return the profile with the measured times of the spec's cloud, if any, and a note."""
    if not spec.cluster.rented or not (kept := load(home)):
        return profile
    region = spec.cluster.region
    if not region:  # that of the environment or AWS's files; AWS is not asked
        from seerd.aws.cloud import Cloud
        from seerd.aws.errors import AwsError

        with contextlib.suppress(AwsError):
            region = Cloud(None).region
    best = chosen(kept, region, spec.cluster.types)
    if best is None:
        return profile
    own = stands_for(best.instance_type, spec.cluster.types)
    cloud = cloud_of(best, profile.cloud, own=own)
    rest = "" if own else "; no shorter than assumed, as not every type here is of its kind"
    note = (
        f"an instance is pending for {cloud.pending.p50_s:.0f}s and boots for "
        f"{cloud.boot.p50_s:.0f}s, as seerd canary measured on {best.instance_type} in "
        f"{best.region} on {best.measured_at[:10]}{rest}"
    )
    return replace(profile, cloud=cloud, note=note)


def chosen(kept: Sequence[KeptTimes], region: str | None, types: Sequence[str]) -> KeptTimes | None:
    """Return this region's newest times: of these types, else of their family, else of any."""
    here = [times for times in kept if times.region == region]  # the newest first
    near = [times for times in here if family_of(times.instance_type) in map(family_of, types)]
    own = [times for times in near if times.instance_type in types]
    return next(iter([*own, *near, *here]), None)


def family_of(instance_type: str) -> str:
    """Return the family with its generation: "g4dn" of g4dn.xlarge."""
    return instance_type.partition(".")[0]


def stands_for(measured: str, types: Sequence[str]) -> bool:
    """Return whether times of this type may replace what is assumed for all of these. A bare metal
    machine takes minutes longer than others of its family.
    """
    return bool(types) and all(
        name == measured
        or (family_of(name) == family_of(measured) and ".metal" not in name + measured)
        for name in types
    )


def cloud_of(kept: KeptTimes, assumed: CloudProfile, *, own: bool) -> CloudProfile:
    """Return a cloud's times; none is shorter than assumed unless it is the spec's own (`own`)."""

    def taken(samples: Sequence[float], usual: Latency) -> Latency:
        if not samples:
            return usual
        time = latency(samples)
        # A few samples say little of the longest: it is taken to be as many medians as assumed.
        p95_s = max(time.p95_s, time.p50_s * usual.p95_s / usual.p50_s)
        time = Latency(time.p50_s, p95_s)
        if own:
            return time
        return Latency(max(time.p50_s, usual.p50_s), max(time.p95_s, usual.p95_s))

    return replace(
        assumed,
        pending=taken(kept.pending_s, assumed.pending),
        boot=taken(kept.boot_s, assumed.boot),
        release=taken(kept.release_s, assumed.release),
    )
