"""What a run's folder keeps beside its journal (`Setup`), and the run environment made of it."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar, cast

import msgspec

from seerd.agent.protocol import Download, Job
from seerd.backends.backend import MARGIN_S, PYTHON, Backend, Site
from seerd.backends.base import Quote
from seerd.backends.by_name import by_name
from seerd.core.events import JobFacts, RunFacts
from seerd.core.rules import RULES
from seerd.errors import JournalError, ProviderError
from seerd.registry import BACKENDS
from seerd.runs import clusters
from seerd.shell import files, places
from seerd.shell.collecting import Collector
from seerd.shell.home import RunFolder
from seerd.shell.inbox import Inbox
from seerd.shell.left_behind import LeftBehind
from seerd.shell.policy import PolicyProcess
from seerd.shell.run_environment import RunEnvironment
from seerd.spec import project_paths
from seerd.spec.experiment import Experiment
from seerd.spec.spec import Spec
from seerd.spec.values import Data
from seerd.stores.base import DataStore, Store
from seerd.stores.by_address import by_address

CHECKPOINT_EVERY_S = 10.0


class Setup(msgspec.Struct, frozen=True):
    """What the daemon needs beside the journal, kept as `setup.json`; in the file, `where` stands
    under the name of its kind.
    """

    job: Job  # how agents start trials; where jobs share the run, only what they share
    store: str  # a directory, or s3://bucket/prefix
    until: float  # when the run's URLs and instances end at the latest, seconds since 1970
    kind: str  # its backend, as in `registry.BACKENDS`
    where: Any  # what that kind keeps
    data: tuple[Data, ...] = ()  # what every instance fetches once
    on_end: str = ""  # the shell command that is run here when the run is over; empty: none
    spec_folder: str = ""  # where it is run: the folder of the spec
    export: dict[str, str] = {}  # tracker -> where the run is exported to as it goes on
    jobs: tuple[Job, ...] = ()  # how agents start the trials of each job that shares it


def setup_of(
    experiment: Experiment,
    folder: RunFolder,
    allocations: list[int],
    quote: Quote,
    until: float,
    own: Sequence[list[str]],
) -> Setup:
    """Collect what is kept of a new run beside its journal.

    allocations  numbers of GPUs that trials may get
    quote        what its backend offers
    until        when its URLs and instances end at the latest, wall clock, seconds since 1970
    own          of each job, the files of which each attempt gets a copy
    """
    kind, named = clusters.of(experiment), experiment.cluster.store
    own_store = str(folder.store.resolve())
    store = own_store if named is None else by_address(named).of_run(folder.run)
    source = kind.source(folder)
    common: dict[str, Any] = {
        "store": by_address(store).address,
        "allocations": allocations,
        "threads": quote.threads,
    }
    starts = tuple(
        replace(
            started_as(job, kind),
            **common,
            source=f"{source}/{job.id}" if job.id else source,
            id=job.id,
            own=names,
        )
        for job, names in zip(experiment.jobs, own, strict=True)
    )
    # Of a run's name and folder the run's own count, and of the rest those of its first job.
    first = replace(experiment.jobs[0], name=experiment.name, folder=experiment.folder)
    shared = replace(started_as(first, kind), **common, source=source)
    return Setup(
        job=shared if experiment.is_shared else starts[0],
        store=store,
        until=until,
        kind=experiment.cluster.provider,
        where=kind.kept(first, folder, quote, until),
        data=tuple(each for job in experiment.jobs for each in _below(job.id, job.train.data)),
        on_end=experiment.on_end,
        spec_folder=str(experiment.folder.resolve()),
        export=experiment.export,
        jobs=starts if experiment.is_shared else (),
    )


def started_as(spec: Spec, kind: Backend[Any] | type[Backend[Any]]) -> Job:
    """Return how agents start the trials of a spec, but for what depends on the run: the folder of
    its source, the store, the numbers of GPUs and threads. `kind`: of their cluster.
    """
    train, path = spec.train, project_paths.python_path(spec, os.environ)
    goal = msgspec.structs.asdict(spec.goal)
    compared = {each.name: goal[each.name] for each in fields(Job) if each.name in goal}
    compared["constraints"] = [str(constraint) for constraint in spec.goal.constraints]
    return Job(
        source="",
        script=train.script,
        args=project_paths.arguments(spec),
        launcher=train.launcher,
        python=train.python or (PYTHON if train.container else kind.python),
        python_in="" if train.container else kind.python_in(spec),
        env={**train.env, **({} if path is None else {"PYTHONPATH": path})},
        setup=list(train.setup),
        store="",
        **compared,
        allocations=[],
        threads=0,
        checkpoint_every_s=CHECKPOINT_EVERY_S,
        max_reports=spec.policy.max_reports,
        preload=None if train.preload is None else list(train.preload),
        names=spec.space.names,
        fill=list(train.fill),
        observed=train.observed,
        secrets=list(train.secrets),
        container=train.container,
        mounts=list(train.mounts),
    )


def save(setup: Setup, folder: RunFolder) -> None:
    """Write the setup into the run's folder, whole or not at all. Raises `OSError`."""
    body = msgspec.to_builtins(setup, enc_hook=str)
    body[body.pop("kind")] = body.pop("where")
    files.write(folder.setup, {**body, "sha256": _sum(body)})


def load(folder: RunFolder) -> Setup:
    """Read the setup from the run's folder. Raises `JournalError` if it is missing or damaged."""
    try:
        body = msgspec.json.decode(folder.setup.read_bytes(), type=dict[str, Any])
        checksum = body.pop("sha256", None)  # None: an earlier version wrote it
        if checksum not in (None, _sum(body)):
            raise ValueError("its content is not what its checksum says")
        kinds = [kind for kind in BACKENDS if kind in body]
        if len(kinds) != 1:
            raise ValueError("it does not say where the run is")
        where = _value(body[kinds[0]], by_name(kinds[0]).kept_type())
        return cast("Setup", _value({**body, "kind": kinds[0], "where": where}, Setup))
    except (OSError, msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        models = "show, best" if folder.best.is_dir() or folder.store.is_dir() else "show"
        raise JournalError(
            f"{folder.setup} is damaged ({why}), so {folder.run} can neither be resumed nor take "
            f"jobs; {models}, ledger, logs, replay and report still read it. Put the file back "
            f"from a copy, or use in a new run what this one learned: seerd run SPEC --like "
            f"{folder.run}"
        ) from error


def _sum(body: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(body)).hexdigest()


def _value(body: Any, kind: Any) -> Any:
    return msgspec.convert(body, kind, dec_hook=lambda its_type, value: its_type(value))


def site_of(setup: Setup, folder: RunFolder) -> Site:
    """Connect the daemon with the instances of a run."""
    return by_name(setup.kind).site(setup.where, folder, setup.until, RULES.lease_s)


def environment_of(setup: Setup, site: Site, folder: RunFolder, facts: RunFacts) -> RunEnvironment:
    """Make the run environment."""
    folder.instances.mkdir(mode=0o700, exist_ok=True)
    store = by_address(setup.store).store(folder.run, setup.until, site.region)
    sources = site.sources
    jobs = [*setup.jobs, *(_added(folder, job, Job) for job in _come(setup, facts.jobs))]
    resources = RunResources(setup, store, folder, site, jobs)
    if sources is not None:
        sources.of_jobs(lambda: [job.id for job in jobs])
    named = {name for job in (setup.job, *jobs) for name in job.secrets}
    logs = folder.instances, [os.environ[name] for name in named if name in os.environ]
    return RunEnvironment(
        provider=site.provider,
        store=store,
        policy=PolicyProcess(facts.problem),
        job=setup.job,
        jobs=jobs,
        run=folder.run,
        metric=facts.metric,
        result=folder.best,
        rented=facts.cluster.per_instance,
        expected=site.expected,
        sources=sources,
        data=None if sources is None else resources.downloads,
        collector=None if site.printed is None else Collector(site.printed, *logs),
        uploads=None if sources is None else sources.uploads,
        inbox=Inbox(folder.requests),
        until=resources.until,
        prolong=resources.prolong,
        progress=site.progress,
        left_behind=LeftBehind(folder.fetched, store, site.read) if site.read else None,
        without_store=site.without_store,
        note_taken=site.note_taken,
        note_ready=None if site.place is None else partial(_note_ready, folder, site.place),
    )


def _note_ready(folder: RunFolder, place: Callable[[str], str], instance: str) -> None:
    with contextlib.suppress(ProviderError, OSError):  # then the next run tries one instance first
        places.note(folder.path.parent, place(instance))


class RunResources:
    """What a run's instances fetch, and when what it rents and signs ends at the latest."""

    def __init__(
        self, setup: Setup, store: Store, folder: RunFolder, site: Site, jobs: Sequence[Job]
    ) -> None:
        self._setup = setup
        self._store = store
        self._folder = folder
        self._site = site
        self._jobs = jobs  # the jobs that share the run; they may grow
        has_data = by_address(setup.store).by_urls
        self._source = cast("DataStore", store) if has_data else None

    async def downloads(self, job: str | None = None) -> list[Download]:
        """List the files that every instance fetches once, with fresh URLs: for all jobs, or for
        one that comes while the run goes on. Raises `StoreError` and `JournalError`.
        """
        data = [] if job is not None else [*self._setup.data]
        for come in _come(self._setup, self._jobs) if job is None else [job]:
            data += _added(self._folder, come, _AddedData).data
        if not data:
            return []
        if self._source is None:
            place = by_address(data[0].source)
            store = place.store(self._folder.run, self._setup.until, self._site.region)
            self._source = cast("DataStore", store)
        source = self._source
        return [file for each in data for file in await source.downloads(each.source, each.to)]

    def until(self) -> float:
        """Return when instances rented now end themselves, seconds since 1970; infinite: none."""
        return math.inf if self._site.prolong is None else self._setup.until

    def prolong(self, deadline: float) -> None:
        """Extend what is rented and signed from now on to a later deadline, seconds since 1970."""
        until = max(self._setup.until, deadline + MARGIN_S)
        self._setup = msgspec.structs.replace(self._setup, until=until)
        save(self._setup, self._folder)
        if self._site.prolong is not None:
            self._site.prolong(until)
        for store in {self._store, self._source or self._store}:
            store.prolong(until)


def _come(setup: Setup, jobs: Iterable[Job | JobFacts]) -> list[str]:
    """Return the ids of the jobs that came while the run went on."""
    first = {job.id for job in setup.jobs}
    return [job.id for job in jobs if job.id not in first]


class _AddedData(msgspec.Struct, frozen=True):
    """What stands in the file of a job that came later beside what `Job` has."""

    data: tuple[Data, ...] = ()


K = TypeVar("K", Job, _AddedData)


def keep_added(folder: RunFolder, job: Job, data: Sequence[Data]) -> None:
    """Keep how agents start the trials of a job that came while the run went on, and what instances
    fetch for it, before the run is asked to take the job. Raises `OSError`.
    """
    body = msgspec.to_builtins(job) | msgspec.to_builtins(_AddedData(_below(job.id, data)))
    folder.added_job(job.id).write_bytes(msgspec.json.encode(body))


def _added(folder: RunFolder, job: str, kind: type[K]) -> K:
    """Read what `keep_added` has written. Raises `JournalError`."""
    try:
        return msgspec.json.decode(folder.added_job(job).read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise JournalError(f"{folder.run} cannot go on: {job} cannot be read: {error}") from error


def _below(job: str, data: Sequence[Data]) -> tuple[Data, ...]:
    """Return a job's data, placed below its id; the only job of a run has an empty id."""
    return tuple(replace(each, to=f"{job}/{each.to}" if job else each.to) for each in data)


def readable_store(folder: RunFolder) -> Store:
    """Return the store of a run that may be moved or damaged. Raises `JournalError`."""
    if folder.store.is_dir():
        return by_address(str(folder.store)).store(folder.run, 0.0, None)
    setup = load(folder)
    region = site_of(setup, folder).region
    return by_address(setup.store).store(folder.run, setup.until, region)
