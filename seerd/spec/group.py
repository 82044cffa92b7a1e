"""group.toml: several jobs that share one run, its limits and its cluster.

The one rule: of a job's own spec everything counts but `[limits]` and `[cluster]`, which are for a
run of its own; what it may take of this run is said in its `[[job]]`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seerd.errors import SpecError, UsageError
from seerd.planner.model import Sharing
from seerd.spec import values as v
from seerd.spec.clusters import cluster_of
from seerd.spec.dicts import toml_of
from seerd.spec.reader import SECTIONS, Override, Reader, text_of
from seerd.spec.spec import Spec, SpecLimits, load_spec, store_of

SHARING = ("fair", "greedy", "round-robin", "hybrid", "worst-first")
GROUP = {
    "": SECTIONS[""],
    "limits": SECTIONS["limits"],
    "sharing": {"policy": v.one_of(*SHARING)},
    "export": SECTIONS["export"],
    "cluster": SECTIONS["cluster"],
}
"""Every key of a group but those of its jobs, and how its value is read."""
JOB = {
    "spec": v.text,
    "name": v.job_name,
    "owner": v.printed_name,
    "weight": v.more_than(0),
    "target": v.number,
    "deadline": v.duration,
    "budget": v.gpu_time,
    "max_gpus": v.whole(1),
    "curves": v.text,
}
"""The keys of a `[[job]]`, and how their values are read."""
FROM_THE_GROUP = ("limits.", "cluster.")
"""What the command line overrides in the group; anything else in each job's spec."""


@dataclass(frozen=True, slots=True)
class GroupJob:
    """One of the jobs."""

    id: str  # its name in the run
    spec: Spec  # its spec, with the cluster of the group and limits of its own as far as it has any
    owner: str = ""  # its owner; empty: none is named
    weight: float = 1.0  # its share beside the others'
    # the file of recorded curves that `seerd simulate` has it replay; None: made-up ones
    curves: Path | None = None


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Several jobs that share a run."""

    jobs: tuple[GroupJob, ...]  # the jobs, in their order
    sharing: Sharing  # how they share it
    # a spec with the run's name, limits, cluster and text; the rest is the first job's, and no job
    # goes by it
    lead: Spec


def is_group(paths: Sequence[Path]) -> bool:
    """Tell whether these files are a group, or specs that become one. What cannot be read is told
    when it is read as a spec.
    """
    if len(paths) > 1:
        return True
    try:
        return "job" in tomllib.loads(text_of(paths[0]))
    except (SpecError, ValueError, RecursionError):
        return False


def load_group(paths: Sequence[Path], overrides: Sequence[Override] = ()) -> JobGroup:
    """Read a group, or make one of several specs, which are its jobs.

    Raises `SpecError` with all mistakes of the group, or of the first job that has any, and
    `UsageError` for a group among specs.
    """
    if len(paths) > 1:
        return _of_specs(paths, overrides)
    path = paths[0]
    text = text_of(path)
    return _read(Reader(path, text), path.resolve().parent, text, overrides)


def _of_specs(paths: Sequence[Path], overrides: Sequence[Override]) -> JobGroup:
    """Make a group of specs: its cluster is the first one's."""
    for path in paths:
        if is_group([path]):
            raise UsageError(f"{path} is a group: give it alone, or add its jobs' specs instead")
    try:
        first = tomllib.loads(text_of(paths[0]))
    except (ValueError, RecursionError):
        first = {}  # what is wrong is told when it is read as a job
    document: dict[str, Any] = {
        "name": "-and-".join(dict.fromkeys(path.resolve().parent.name for path in paths))[:40],
        "job": [{"spec": str(path.resolve())} for path in paths],
    }
    if isinstance(first.get("cluster"), dict):
        document["cluster"] = first["cluster"]
    text = toml_of(document)
    reader = Reader(paths[0], text, in_a_file=False)
    return _read(reader, paths[0].resolve().parent, text, overrides)


def _read(reader: Reader, folder: Path, text: str, overrides: Sequence[Override]) -> JobGroup:
    given = [Override(*override) for override in overrides]
    own = [one for one in given if one.key.startswith(FROM_THE_GROUP)]
    document = reader.document(own)
    values = reader.sections(document, GROUP, beside="job")
    cluster = cluster_of(values, store_of(values.get("cluster.store"), folder, reader))
    limits = SpecLimits(*(values.get(f"limits.{key}") for key in LIMITS))
    rest = [one for one in given if one not in own]
    jobs = _jobs(reader, document.get("job"), folder, rest)
    if reader.problems:
        raise SpecError(str(reader.path), sorted(reader.problems, key=lambda p: p.line or 10**9))
    jobs = [replace(job, spec=replace(job.spec, cluster=cluster)) for job in jobs]
    lead = replace(
        jobs[0].spec,
        name=values.get("name", _named(folder.name)),
        limits=limits,
        text=f"# As it was run.\n{toml_of(document)}" if own else text,
        folder=folder,
        on_end=values.get("on_end", ""),
        export={k: values[f"export.{k}"] for k in GROUP["export"] if f"export.{k}" in values},
        like=(),
    )
    return JobGroup(tuple(jobs), values.get("sharing.policy", "fair"), lead)


LIMITS = ("deadline", "budget", "cost", "max_gpus")


def _jobs(
    reader: Reader, content: Any, folder: Path, overrides: Sequence[Override]
) -> list[GroupJob]:
    if not isinstance(content, list) or not content:
        reader.wrong("job", content, "at least one table [[job]] with a spec is needed")
        return []
    jobs: list[GroupJob] = []
    for number, one in enumerate(content):
        path = f"job[{number}]"
        if not isinstance(one, dict):
            reader.wrong(path, one, "a table is needed")
            continue
        values = reader.table(path, one, JOB)
        if "spec" not in values:
            reader.wrong(f"{path}.spec", None, "is missing: the path of the job's spec")
            continue
        jobs.append(job_of(values, folder, overrides, {job.id for job in jobs}))
    return jobs


def job_of(
    values: dict[str, Any], folder: Path, overrides: Sequence[Override], taken: set[str]
) -> GroupJob:
    """Make a job of what its `[[job]]` says. Raises `SpecError` with the mistakes of its spec.

    folder  what paths are relative to
    taken   ids that others have
    """
    spec = load_spec(folder / values["spec"], overrides)
    if "target" in values:
        spec = replace(spec, metric=replace(spec.metric, target=values["target"]))
    limits = SpecLimits(values.get("deadline"), values.get("budget"), None, values.get("max_gpus"))
    curves = values.get("curves")
    return GroupJob(
        id=_untaken(values.get("name") or _named(spec.name), taken),
        spec=replace(spec, limits=limits),
        owner=values.get("owner", ""),
        weight=values.get("weight", 1.0),
        curves=None if curves is None else folder / curves,
    )


def _named(text: str) -> str:
    """Make a name of a job out of a text."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[:32] or "job"


def _untaken(name: str, taken: set[str]) -> str:
    number, found = 2, name
    while found in taken:
        number, found = number + 1, f"{name}-{number}"
    return found
