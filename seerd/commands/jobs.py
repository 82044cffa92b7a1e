"""`seerd add RUN SPEC`, `stop RUN JOB` and `set RUN JOB`: the jobs that share a run that goes on. A
job's source and spec are in the run's folder before the run is asked to take it; if it does not
take it, they are removed, at the latest when the next job is added.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from seerd.backends.by_name import by_name
from seerd.commands.asking import ask, check_running
from seerd.commands.common import say, tell
from seerd.commands.options import NewJob
from seerd.core.jobs import open_jobs
from seerd.core.state import GONE, State
from seerd.errors import UsageError
from seerd.planner.clouds import assumed
from seerd.planner.job_parts import never_begins, shortened
from seerd.planner.model import Impossible, Limits, PlannedJob
from seerd.planning.facts import job_facts, planned_job
from seerd.runs import reading, runs, wiring
from seerd.shell.home import RunFolder
from seerd.shell.inbox import Inbox, JobRequest, StopJobRequest, WeighRequest
from seerd.shell.source_copy import CopyTerms, outputs
from seerd.spec.doubts import doubts
from seerd.spec.experiment import JOB, job_of, require_report
from seerd.spec.spec import Spec
from seerd.telling.working import working

# until a job's source and data are present and its setup commands have been run
PATIENCE_S = 3600.0
GROUPS = (
    "{run} is one job, and takes no others: begin them together, with seerd run SPEC SPEC... or a "
    "group.toml"
)


def add(folder: RunFolder, spec: Path, new: NewJob, *, json: bool) -> None:
    """Add a job to a shared run. Raises `UsageError` if the run cannot take it, and `SpecError`."""
    if not folder.specs.is_dir():
        raise UsageError(GROUPS.format(run=folder.run))
    with contextlib.ExitStack() as alone:
        with working(f"waiting for another job that comes to {folder.run}"):
            alone.enter_context(folder.adding())
        job = _add(folder, spec, new)
    added_job = {"run": folder.run, "job": job}
    tell(added_job, lambda _: f"{job} shares {folder.run} from now on", json=json)


def _add(folder: RunFolder, spec: Path, new: NewJob) -> str:
    """Return the job's name in the run. The caller holds the lock for adding."""
    waiting = [request for _, request in Inbox(folder.requests).waiting()]
    asked = {request.starts.id for request in waiting if isinstance(request, JobRequest)}
    state = _running(folder, "no job can be added")
    for path in folder.specs.glob("*.json"):  # of jobs that were never taken
        if path.stem not in {*state.jobs, *asked}:
            _remove(folder, path.stem)
    request, job = _request(folder, state, spec, new)
    try:
        wiring.keep_added(folder, request.starts, job.train.data)
        elsewhere = by_name(wiring.load(folder).kind).elsewhere
        runs.copy_job(folder, job, CopyTerms(say, elsewhere=elsewhere))
        own = outputs(folder.source / job.id, job.train.script)
        starts = dataclasses.replace(request.starts, own=own)
        request = msgspec.structs.replace(request, starts=starts)
        wiring.keep_added(folder, starts, job.train.data)
    except BaseException as error:
        _remove(folder, job.id)
        if isinstance(error, OSError):
            raise UsageError(f"{job.id} was not added: it cannot be copied: {error}") from error
        raise
    # Without an answer all files stay: the run may take the job at this moment.
    try:
        why = ask(folder, request, PATIENCE_S)
    except SystemExit:  # Ctrl-C
        say(f"{job.id} is taken back, unless seerd show {folder.run} has it")
        raise
    if why:
        _remove(folder, job.id)
        raise UsageError(f"{job.id} was not added: {why}")
    return job.id


def _request(folder: RunFolder, state: State, spec: Path, new: NewJob) -> tuple[JobRequest, Spec]:
    """Return request and job. Raises `UsageError` if the run cannot take it, and `SpecError`."""
    setup = wiring.load(folder)
    kind = by_name(setup.kind)
    taken = {*state.jobs, *(path.stem for path in folder.specs.iterdir())}
    if new.name in taken:
        raise UsageError(f"--name {new.name}: {folder.run} has a job of this name already")
    job = job_of(_read(spec, new), Path.cwd(), (), taken)
    require_report(job)
    for line in doubts(job):
        say(f"{job.id}: {line}")
    cluster, limits = state.facts.cluster, state.facts.problem.limits
    planned = planned_job(job, limits, cluster, assumed(rented=cluster.per_instance))
    never = _never_begins(planned, state)
    why = kind.why_not(job) or (None if never is None else never.reason)
    if why:
        raise UsageError(f"{job.id} was not added: {why}")
    like = setup.jobs[0]  # its trials are started on the same machines
    starts = dataclasses.replace(
        wiring.started_as(job, kind),
        id=job.id,
        source=str(PurePosixPath(like.source).with_name(job.id)),
        store=like.store,
        allocations=like.allocations,
        threads=like.threads,
    )
    return JobRequest(planned, job_facts(job), starts), job


def _remove(folder: RunFolder, job: str) -> None:
    """Remove the files of a job that was not taken, last the one that `_add` looks for."""
    shutil.rmtree(folder.source / job, ignore_errors=True)
    record = folder.added_job(job)
    for path in (record.with_suffix(".toml"), folder.made_from(job), record):
        path.unlink(missing_ok=True)


def _never_begins(job: PlannedJob, state: State) -> Impossible | None:
    """Return why a job added now could do nothing, or None."""
    run, own, now = state.facts.problem.limits, job.problem.limits, state.now
    left_gpu_s = run.budget_gpu_s - state.ledger.spent_gpu_s(now)
    most = [run.max_gpus, own.max_gpus]
    if not state.facts.cluster.per_instance:  # no more are rented
        present = (
            instance for instance in state.fleet.instances.values() if instance.phase not in GONE
        )
        most.append(sum(instance.gpus for instance in present))
    left = Limits(
        min(run.deadline_s, own.deadline_s) - now,
        min(left_gpu_s, own.budget_gpu_s),
        min((gpus for gpus in most if gpus is not None), default=None),
    )
    # Its rounds may be as short as what is left of the run, but not as a budget of its own.
    params = shortened(job.problem.params, replace(left, budget_gpu_s=left_gpu_s))
    short = replace(job, problem=replace(job.problem, params=params))
    return never_begins(short, left, state.facts.problem)


def stop(folder: RunFolder, job: str) -> None:
    """End one of the jobs; the others get what is left. Raises `UsageError` if it cannot be."""
    _check(folder, job, "no job of it can be stopped")
    if why := ask(folder, StopJobRequest(job)):
        raise UsageError(f"{job} was not stopped: {why}")
    print(f"{job} is over; its trials save, and the others get its share")


def weigh(folder: RunFolder, job: str, text: str, *, json: bool) -> None:
    """Give one of the jobs another weight, `weight=3`. Raises `UsageError` if that is refused."""
    name, _, value = text.partition("=")
    try:
        weight = float(value)
    except ValueError:
        weight = 0.0
    if name.strip() != "weight" or not 0 < weight < float("inf"):
        raise UsageError(f"{text}: write weight=NUMBER, more than 0, for example weight=3")
    _check(folder, job, "no weight can be set")
    if why := ask(folder, WeighRequest(job, weight)):
        raise UsageError(f"the weight of {job} was not set: {why}")
    set_to = {"run": folder.run, "job": job, "weight": weight}
    tell(set_to, lambda _: f"{job} has the weight {weight:g} from now on", json=json)


def _running(folder: RunFolder, what: str) -> State:
    """Read a run that goes on and that jobs share. Raises `UsageError` for any other."""
    check_running(folder, what)
    state = reading.read(folder)
    if not state.facts.jobs:
        raise UsageError(GROUPS.format(run=folder.run))
    return state


def _check(folder: RunFolder, job: str, what: str) -> None:
    jobs = open_jobs(_running(folder, what))
    if job not in jobs:
        others = ", ".join(jobs) or "none"
        raise UsageError(f"{folder.run} has no job {job!r} that goes on; it has {others}")


def _read(spec: Path, new: NewJob) -> dict[str, Any]:
    """Read the options as the keys of a `[[job]]`. Raises `UsageError`."""
    values: dict[str, Any] = {"spec": str(spec.resolve())}
    for key, value in dataclasses.asdict(new).items():
        if value is None:
            continue
        try:
            values[key] = JOB[key](value)
        except (ValueError, OverflowError) as error:
            raise UsageError(f"--{key.replace('_', '-')} {value}: {error}") from error
    return values
