"""What a user asks of a run that goes on: to try a configuration or take a job (`seerd add`), for
later and larger limits (`seerd extend`), whose plan is made here as `seerd run` makes a run's first
plan, or to end a job or give it another weight. The answer is waited for; a request without one is
withdrawn. A job's source and spec are in the run's folder before the run is asked to take it; if it
does not take it, they are removed, at the latest when the next job is added.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import re
import shutil
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from seerd.backends.by_name import by_name
from seerd.commands.common import quickly, say, tell
from seerd.commands.options import NewJob, NewLimits
from seerd.core.events import AddAsked, ExtendAsked, JobAdded, JobStopAsked, JobWeighed
from seerd.core.extending import why_not_raised
from seerd.core.jobs import open_jobs
from seerd.core.lifecycle import RunPhase
from seerd.core.state import GONE, State
from seerd.core.verdicts import DenyCause
from seerd.errors import UsageError
from seerd.planner.clouds import assumed
from seerd.planner.job_parts import never_begins, shortened
from seerd.planner.model import Impossible, Limits, PlannedJob
from seerd.planner.parameter import Config, Value, plain
from seerd.planner.policy import in_slots
from seerd.planner.space import NoConfigurationError, Space, why_not
from seerd.planning.facts import job_facts, planned_job
from seerd.planning.parts import job_in_slots
from seerd.runs import reading, runs, wiring
from seerd.shell import edits
from seerd.shell.home import RunFolder
from seerd.shell.inbox import Inbox, JobRequest, Request
from seerd.shell.source_copy import CopyTerms
from seerd.spec import values as spec_values
from seerd.spec.doubts import doubts
from seerd.spec.experiment import JOB, job_of, require_report
from seerd.spec.spec import Spec
from seerd.telling.explanation.sentences import REASONS, fill
from seerd.telling.harmless import config_text
from seerd.telling.plan_json import Json
from seerd.telling.working import working
from seerd.units import (
    format_duration,
    format_gpu_time,
    format_money,
    parse_duration,
    parse_gpu_time,
    parse_money,
)

PATIENCE_S = 30.0
POLL_S = 0.1
# what the user can do where a run denies a request
ADVICE: dict[DenyCause, str] = {
    "ending": "; if it was interrupted: seerd resume {run}",
    "lower": "; to end it sooner: seerd stop {run}",
    "no-more": "; seer+, asha, bohb, hypersched and hyperband go on to begin new ones",
}
HOUR_S = 3600.0
NEXT = re.compile(r",(?=[^\[\],='\"]+=)")  # the comma before the next name: not one inside a list


def check_running(folder: RunFolder, what: str) -> None:
    """Raise `UsageError` if no process runs the run. `what`: what cannot be done, for people."""
    if folder.owner() is not None:
        return
    state = reading.read(folder)
    if state.phase is RunPhase.OVER and state.end.status != "interrupted":
        raise UsageError(
            f"{folder.run} is over, so {what}; a new run learns from it: seerd run SPEC --like "
            f"{folder.run}"
        )
    raise UsageError(
        f"{folder.run} is not running, so {what}; go on first with: seerd resume {folder.run}"
    )


def why_denied(folder: RunFolder, cause: DenyCause, taken: str = "") -> str:
    """Return why the run denies a request, and what the user can do. `taken`: the name of a job
    that was to be added.
    """
    policy = reading.read(folder).facts.problem.params.name if cause == "no-more" else ""
    reason = fill(REASONS["denied"][cause], {"policy": policy, "taken": taken})
    return reason + ADVICE.get(cause, "").format(run=folder.run)


def ask(folder: RunFolder, request: Request, patience_s: float = PATIENCE_S) -> str:
    """Return why the run denies it, empty if it does not. Raises `UsageError` without an answer."""
    inbox = Inbox(folder.requests)
    try:
        name = inbox.put(request)
    except OSError as error:
        raise UsageError(f"{folder.run} cannot be asked: {error.strerror}") from error
    end = time.monotonic() + patience_s
    show = f"seerd show {folder.run}"
    try:
        with working(f"waiting for an answer of {folder.run}"):
            while True:
                alive = folder.owner() is not None
                reply = inbox.reply(name)
                if reply is not None:
                    detail = f": {reply.detail}" if reply.detail else ""
                    taken = request.added.job.id if isinstance(request, JobRequest) else ""
                    return why_denied(folder, reply.denied, taken) + detail if reply.denied else ""
                if not alive:
                    what = f"the process of {folder.run} has ended before it answered"
                    raise UsageError(f"{what}; what holds: {show}")
                if time.monotonic() > end:
                    what = f"{folder.run} has not answered in {patience_s:g} s"
                    raise UsageError(f"{what}, and is asked no more; what holds: {show}")
                time.sleep(POLL_S)
    finally:
        inbox.withdraw(name)


def completed(space: Space, wanted: Config, rng: random.Random) -> Config:
    """Draw what a configuration leaves open. Raises `UsageError` if it is not in the space."""
    if why := why_not(space, wanted):
        raise UsageError(f"{config_text(wanted)} was not added: {why}")
    try:
        return space.fixed(wanted).sample(rng)
    except NoConfigurationError as error:
        raise UsageError(f"{config_text(wanted)} was not added: {error}") from error


def values(texts: Sequence[str]) -> dict[str, Value]:
    """Read `lr=0.1,optimizer=sgd`. Numbers, lists, true and false are what they are in a spec,
    anything else without a comma is text. Raises `UsageError`.
    """
    config: dict[str, Value] = {}
    for part in (part for text in texts for part in NEXT.split(text)):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not name or not equals or not value:
            raise UsageError(f"--config {part}: write NAME=VALUE, for example lr=0.1,momentum=0.9")
        if name in config:
            raise UsageError(f"--config gives {name} twice")
        try:
            config |= spec_values.config({name: tomllib.loads(f"it = {value}")["it"]})
        except ValueError:
            if "," in value:
                how = "after a comma write NAME=VALUE, or quote the text"
                raise UsageError(f"--config {value}: {how}") from None
            config[name] = value
    return config


def extend(folder: RunFolder, asked: NewLimits, *, json: bool) -> None:
    """Ask the run for these limits, and print its answer. Raises `UsageError`, `JournalError`."""
    check_running(folder, "its limits cannot be extended")
    state, origin = reading.read_with_origin(folder)
    now_s = time.time() - origin
    limits = wanted(state, asked)
    not_extended = f"{folder.run} was not extended"
    if cause := why_not_raised(state.facts.problem.limits, limits):
        raise UsageError(f"{not_extended}: {why_denied(folder, cause)}")
    quickly()
    from seerd.planning.planned import extended

    spent_gpu_s = state.ledger.spent_gpu_s(max(now_s, state.now))
    problem, outline = extended(
        state.facts.problem,
        state.facts.cluster,
        limits,
        now_s=now_s,
        spent_gpu_s=spent_gpu_s,
        spent_usd=state.ledger.spent_usd(max(now_s, state.now)),
    )
    request = ExtendAsked(at=0.0, request="", problem=problem, outline=outline)
    if why := ask(folder, request):
        raise UsageError(f"{not_extended}: {why}")
    answer: Json = {
        "run": folder.run,
        "deadline_s": limits.deadline_s,
        "budget_gpu_min": limits.budget_gpu_s / 60,
        "cost_usd": limits.cost_usd,
        "replanned": outline is not None,
    }
    before, price = state.facts.problem.limits, state.ledger.usd_per_gpu_h
    shown = [
        ("deadline", format_duration(before.deadline_s), format_duration(limits.deadline_s)),
        ("budget", format_gpu_time(before.budget_gpu_s), format_gpu_time(limits.budget_gpu_s)),
    ]
    if limits.cost_usd is not None and before.cost_usd is not None:
        shown.append(("cost", format_money(before.cost_usd), format_money(limits.cost_usd)))
    changes = ", ".join(f"{name} {was} -> {now}" for name, was, now in shown if was != now)
    lines = [f"{folder.run} goes on: {changes}", "what is left is planned anew"]
    if outline is None:
        lines[1] = "too little is left for a plan of its own, or none is needed: its plan stands"
    if limits.budget_gpu_s > before.budget_gpu_s and limits.gpu_s(price) <= before.gpu_s(price):
        lines.append("note: the limit in money ends it as before; --cost extends that")
    tell(answer, lambda _: "\n".join(lines), json=json)
    if edited := edits.note(folder):
        say(edited)


def wanted(state: State, asked: NewLimits) -> Limits:
    """Return the limits asked for. Raises `UsageError` if there are none or they are unreadable."""
    if asked == NewLimits():
        limits = "--deadline +10m, --budget +60gpu-min or --cost '+$10'"
        raise UsageError(f"say what is to be extended: {limits}")
    now = state.facts.problem.limits
    cost_usd, budget_gpu_s, price = now.cost_usd, now.budget_gpu_s, state.ledger.usd_per_gpu_h
    if asked.cost is not None:
        if now.cost_usd is None:
            raise UsageError("--cost: this run has no limit in money, and none is made tighter")
        cost_usd = _moved(now.cost_usd, asked.cost, parse_money, "--cost")
        # A budget that only follows from the limit in money grows with it.
        paid_gpu_s = now.cost_usd / price * HOUR_S if price else math.inf
        if abs(paid_gpu_s - budget_gpu_s) <= 1e-6 * budget_gpu_s:
            budget_gpu_s = cost_usd / price * HOUR_S
    return replace(
        now,
        deadline_s=_moved(now.deadline_s, asked.deadline, parse_duration, "--deadline"),
        budget_gpu_s=_moved(budget_gpu_s, asked.budget, parse_gpu_time, "--budget"),
        cost_usd=cost_usd,
    )


def _moved(before: float, text: str | None, parse: Callable[[str], float], option: str) -> float:
    """Return the new value of a limit: as it is given, or with a `+` as much more than before."""
    if text is None:
        return before
    adds = text.strip().startswith("+")
    try:
        value = parse(text.strip().removeprefix("+"))
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}; with a + in front it is added") from error
    return before + value if adds else value


# until a job's source and data are present and its setup commands have been run
JOB_PATIENCE_S = 3600.0
GROUPS = (
    "{run} is one job, and takes no others: begin them together, with seerd run SPEC SPEC... or a "
    "group.toml"
)


def add(
    folder: RunFolder, spec: Path | None, texts: Sequence[str] | None, new: NewJob, *, json: bool
) -> None:
    """Add a job to a shared run, or a configuration. Raises `UsageError` if the run cannot take it,
    and `SpecError`.
    """
    if spec is None or texts:
        if spec is not None or not texts:
            raise UsageError("give either --config NAME=VALUE,... or the SPEC of a job, not both")
        if new != NewJob():
            raise UsageError("--name, --owner, --weight and limits are for a SPEC, not --config")
        check_running(folder, "no configuration can be added")
        state = reading.read(folder)
        rng = random.Random(f"added {len(state.trials)}")  # noqa: S311 - no secret
        config = completed(state.facts.problem.space, values(texts), rng)
        if why := ask(folder, AddAsked(at=0.0, request="", config=dict(config))):
            raise UsageError(f"{config_text(config)} was not added: {why}")
        added = {"run": folder.run, "config": plain(config)}
        tell(added, lambda _: f"{folder.run} tries next: {config_text(config)}", json=json)
        return
    if not folder.specs.is_dir():
        raise UsageError(GROUPS.format(run=folder.run))
    with contextlib.ExitStack() as alone:
        with working(f"waiting for another job that comes to {folder.run}"):
            alone.enter_context(folder.adding())
        job = _add_job(folder, spec, new)
    added_job = {"run": folder.run, "job": job}
    tell(added_job, lambda _: f"{job} shares {folder.run} from now on", json=json)


def _add_job(folder: RunFolder, spec: Path, new: NewJob) -> str:
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
        own = runs.copy_job(folder, job, CopyTerms(say, elsewhere=elsewhere))
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
        why = ask(folder, request, JOB_PATIENCE_S)
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
    job = job_of(job_values(spec, new), Path.cwd(), (), taken)
    require_report(job)
    for line in doubts(job):
        say(f"{job.id}: {line}")
    cluster, limits = state.facts.cluster, state.facts.problem.limits
    profile = assumed(rented=cluster.per_instance).in_slots(cluster.parts)
    planned = planned_job(job_in_slots(job, cluster.parts), limits, cluster, profile)
    never = _never_begins(planned, state)
    why = kind.why_not(job) or (None if never is None else never.reason)
    if why:
        raise UsageError(f"{job.id} was not added: {why}")
    like = setup.jobs[0]  # its trials are started on the same machines
    with_values = {name for each in setup.jobs for name in each.secrets}
    if lacking := [name for name in job.train.secrets if name not in with_values]:
        raise UsageError(
            f"{job.id} was not added: its train.secrets has {lacking[0]}, and the process of "
            f"{folder.run} has kept values only for the secrets that it began with"
        )
    starts = dataclasses.replace(
        wiring.started_as(job, kind),
        id=job.id,
        source=str(PurePosixPath(like.source).with_name(job.id)),
        store=like.store,
        allocations=like.allocations,
        threads=like.threads,
    )
    added = JobAdded(at=0.0, request="", job=planned, facts=job_facts(job))
    return JobRequest(added, starts), job


def job_values(spec: Path, new: NewJob) -> dict[str, Any]:
    """Read the options as the keys of a `[[job]]`. Raises `UsageError`."""
    read: dict[str, Any] = {"spec": str(spec.resolve())}
    for key, value in dataclasses.asdict(new).items():
        try:
            read |= {} if value is None else {key: JOB[key](value)}
        except (ValueError, OverflowError) as error:
            raise UsageError(f"--{key.replace('_', '-')} {value}: {error}") from error
    return read


def _remove(folder: RunFolder, job: str) -> None:
    """Remove the files of a job that was not taken, last the one that `_add_job` looks for."""
    shutil.rmtree(folder.source / job, ignore_errors=True)
    record = folder.added_job(job)
    for path in (record.with_suffix(".toml"), folder.made_from(job), record):
        path.unlink(missing_ok=True)


def _never_begins(job: PlannedJob, state: State) -> Impossible | None:
    """Return why a job added now could do nothing, or None."""
    run, now = in_slots(state.facts.problem), state.now
    job = replace(job, problem=in_slots(job.problem))
    own = job.problem.limits
    left_slot_s = run.limits.budget_gpu_s - state.ledger.spent_gpu_s(now) * run.parts
    most = [run.limits.max_gpus, own.max_gpus]
    if not state.facts.cluster.per_instance:  # no more are rented
        present = (
            instance for instance in state.fleet.instances.values() if instance.phase not in GONE
        )
        most.append(sum(instance.gpus for instance in present))
    left = Limits(
        min(run.limits.deadline_s, own.deadline_s) - now,
        min(left_slot_s, own.budget_gpu_s),
        min((gpus for gpus in most if gpus is not None), default=None),
    )
    # Its rounds may be as short as what is left of the run, but not as a budget of its own.
    params = shortened(job.problem.params, replace(left, budget_gpu_s=left_slot_s))
    short = replace(job, problem=replace(job.problem, params=params))
    return never_begins(short, left, run)


def stop_job(folder: RunFolder, job: str) -> None:
    """End one of the jobs; the others get what is left. Raises `UsageError` if it cannot be."""
    _check_job(folder, job, "no job of it can be stopped")
    if why := ask(folder, JobStopAsked(at=0.0, request="", job=job)):
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
    _check_job(folder, job, "no weight can be set")
    if why := ask(folder, JobWeighed(at=0.0, request="", job=job, weight=weight)):
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


def _check_job(folder: RunFolder, job: str, what: str) -> None:
    jobs = open_jobs(_running(folder, what))
    if job not in jobs:
        others = ", ".join(jobs) or "none"
        raise UsageError(f"{folder.run} has no job {job!r} that goes on; it has {others}")
