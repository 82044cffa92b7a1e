"""A run as it is asked for: its limits, where it runs, and one or more jobs. A spec.toml, a
group.toml, several specs and a dict all become an `Experiment`.

The one rule: `[limits]` and `[cluster]` of a job's own spec do not count in a shared run; its
`[[job]]` has its limits there.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from seerd.errors import SpecError, UsageError
from seerd.planner.model import Sharing
from seerd.spec import values as v
from seerd.spec.clusters import cluster_of
from seerd.spec.keys import BackendKeys
from seerd.spec.reader import SECTIONS, Override, Reader, text_of, toml_of
from seerd.spec.spec import Spec, SpecLimits, exports_of, load_spec, spec_of, store_of

SHARING = ("fair", "greedy", "round-robin", "hybrid", "worst-first")
# the keys of a group, but for those of its jobs, and how each value is read
GROUP = {
    "": SECTIONS[""],
    "limits": SECTIONS["limits"],
    "sharing": {"policy": v.one_of(*SHARING)},
    "export": SECTIONS["export"],
    "cluster": SECTIONS["cluster"],
}
# the keys of a `[[job]]`
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
# what a spec says of its run, where that is its own
OF_ITS_RUN = ("name", "limits", "cluster", "folder", "text", "on_end", "export")
# overrides of these are for the group; others for each job's spec
FROM_THE_GROUP = ("limits.", "cluster.")


@dataclass(frozen=True, slots=True)
class Experiment:
    """A run as it is asked for."""

    name: str  # the beginning of its runs' names
    limits: SpecLimits  # the limits of the run, as far as they are given
    cluster: BackendKeys  # where trials run
    jobs: tuple[Spec, ...]  # in their order; the only job of a spec.toml has an empty id
    folder: Path  # what its file's relative paths are relative to
    text: str  # the text of its file; with overrides, all of it as TOML
    sharing: Sharing = "fair"  # how several jobs share the run
    on_end: str = ""  # the shell command that is run here when the run is over; empty: none
    # tracker -> where the run is exported to as it goes on
    export: dict[str, str] = field(default_factory=dict)

    @property
    def is_shared(self) -> bool:
        """Whether its jobs have names, and share the run."""
        return bool(self.jobs[0].id)


def of_one(spec: Spec) -> Experiment:
    """Return the experiment of a spec that has a run of its own."""
    own: dict[str, Any] = {name: getattr(spec, name) for name in OF_ITS_RUN}
    return Experiment(jobs=(spec,), **own)


def load(
    specs: Mapping[str, Any] | Sequence[Path], overrides: Sequence[Override] = ()
) -> Experiment:
    """Read a spec, a group, or several specs whose jobs share a run. `specs`: files, or one spec as
    a dict.

    Raises `SpecError` with all mistakes of the spec, the group, or the first job that has any, and
    `UsageError` for a group among several specs.
    """
    if isinstance(specs, Mapping):
        return of_one(spec_of(specs, overrides))
    path = specs[0]
    if len(specs) == 1:
        is_one = not is_group(path)
        return of_one(load_spec(path, overrides)) if is_one else _read(Reader(path), overrides)
    for each in specs:
        if is_group(each):
            raise UsageError(f"{each} is a group: give it alone, or add its jobs' specs instead")
    try:
        first = tomllib.loads(text_of(path))
    except (ValueError, RecursionError):
        first = {}  # reading it as a job reports what is wrong
    document: dict[str, Any] = {
        "name": "-and-".join(dict.fromkeys(each.resolve().parent.name for each in specs))[:40],
        "job": [{"spec": str(each.resolve())} for each in specs],
    }
    if isinstance(first.get("cluster"), dict):  # that of the first counts
        document["cluster"] = first["cluster"]
    return _read(Reader(path, toml_of(document)), overrides)


def is_group(path: Path) -> bool:
    """Return whether this file is a group; False if unreadable, which `load` reports."""
    try:
        return "job" in tomllib.loads(text_of(path))
    except (SpecError, ValueError, RecursionError):
        return False


def _read(reader: Reader, overrides: Sequence[Override]) -> Experiment:
    all_changes = [Override(*override) for override in overrides]
    own = [change for change in all_changes if change.key.startswith(FROM_THE_GROUP)]
    document = reader.document(own)
    values = reader.sections(document, GROUP, beside="job")
    cluster = cluster_of(values, store_of(values.get("cluster.store"), reader))
    for_jobs = [change for change in all_changes if change not in own]
    jobs: list[Spec] = []
    tables = document.get("job")
    if not isinstance(tables, list) or not tables:
        reader.wrong("job", tables, "at least one table [[job]] with a spec is needed")
        tables = []
    for number, table in enumerate(tables):
        path = f"job[{number}]"
        if not isinstance(table, dict):
            reader.wrong(path, table, "a table is needed")
            continue
        own_values = reader.table(path, table, JOB)
        if "spec" not in own_values:
            reader.wrong(f"{path}.spec", None, "is missing: the path of the job's spec")
            continue
        jobs.append(job_of(own_values, reader.folder, for_jobs, {job.id for job in jobs}))
    reader.check()
    return Experiment(
        name=values.get("name", _named(reader.folder.name)),
        limits=SpecLimits.of(values),
        cluster=cluster,
        jobs=tuple(replace(job, cluster=cluster) for job in jobs),
        folder=reader.folder,
        text=reader.as_run(document),
        sharing=values.get("sharing.policy", "fair"),
        on_end=values.get("on_end", ""),
        export=exports_of(values),
    )


def job_of(
    values: dict[str, Any], folder: Path, overrides: Sequence[Override], taken: set[str]
) -> Spec:
    """Make a job from its `[[job]]`. Raises `SpecError` with the mistakes of its spec.

    folder  what paths are relative to
    taken   ids of other jobs
    """
    spec = load_spec(folder / values["spec"], overrides)
    if "target" in values:
        spec = replace(spec, goal=msgspec.structs.replace(spec.goal, target=values["target"]))
    curves = values.get("curves")
    name = values.get("name") or _named(spec.name)
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    own = (values.get(key) for key in ("deadline", "budget", "cost", "max_gpus"))
    return replace(
        spec,
        id=next(free for free in names if free not in taken),
        limits=SpecLimits(*own),
        owner=values.get("owner", ""),
        weight=values.get("weight", 1.0),
        curves=None if curves is None else folder / curves,
    )


def _named(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[:32] or "job"


def require_report(job: Spec) -> None:
    """Raise `UsageError` if nothing would report."""
    train = job.train
    if train.observed is None and job.takes_no_part():
        raise UsageError(
            f"nothing would report: {train.script} does not import seerd, nor does a Python file "
            "beside it. Write `report` into [train], a pattern for what it prints (`seerd init` "
            "proposes one), or import seerd in it"
        )


def require_limits(experiment: Experiment, minimize: str | None = None) -> None:
    """Raise `UsageError` unless a deadline and a limit of spending are given, and every job
    reports. `minimize`: "time" or "cost", which needs no limit.
    """
    limits, rented = experiment.limits, experiment.cluster.rented
    missing = []
    if limits.deadline_s is None and minimize != "time":
        missing.append("a deadline: --deadline 30m")
    if (
        limits.budget_gpu_s is None
        and not (rented and limits.cost_usd is not None)
        and minimize != "cost"
    ):
        missing.append("a budget: --budget 480gpu-min")
    if missing:
        free = limits.cost_usd is not None and not rented
        note = "\n(--cost alone bounds nothing on machines that cost nothing.)" if free else ""
        raise UsageError(
            f"a limit is missing; give {' and '.join(missing)}, or put it into [limits].{note}"
        )
    for job in experiment.jobs:
        require_report(job)
