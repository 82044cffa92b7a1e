"""`seerd doctor`: checks from all sides whether a run of this spec could begin. Nothing is started,
and no check prevents another. What is checked where trials would run is the backend's
(`Backend.examine`). `seerd machines`: who has which GPUs there.
"""

from __future__ import annotations

import asyncio
import math
import os
import platform
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from json import dumps
from pathlib import Path
from typing import Any

import typer

from seerd import telling
from seerd.backends.backend import GpuUse
from seerd.backends.base import Machine, Quote
from seerd.backends.by_name import by_name
from seerd.backends.examining import Case, Finding, Level, Notes, Peak
from seerd.commands.common import tell
from seerd.commands.options import SpecOptions
from seerd.errors import CloudError, LimitsError, SeerdError, UsageError
from seerd.planner.gpu_parts import gpus_number
from seerd.planner.stages import instances_for
from seerd.planning import plans
from seerd.planning.machine import this_machine
from seerd.runs import clusters
from seerd.shell.home import Home
from seerd.spec.clusters import CLUSTERS
from seerd.spec.doubts import memory_doubts
from seerd.spec.experiment import load, of_one, require_limits
from seerd.spec.reader import Override
from seerd.spec.spec import Spec
from seerd.telling.plan_json import Json
from seerd.telling.working import working
from seerd.version import VERSION

# with less free space for journals and models there is a warning, or a problem
LITTLE_BYTES, TOO_LITTLE_BYTES = 2 << 30, 200 << 20


def doctor(asked: SpecOptions, home: Home, *, policy_only: bool, json: bool) -> None:
    """Examine a spec and print the findings, or print the IAM policy that it needs. Raises
    `typer.Exit` with the exit code, and `SeerdError` if the policy cannot be made.
    """
    if policy_only:
        spec = asked.job()
        print(dumps(asyncio.run(clusters.rented(spec).policy(spec)), indent=2))
        return
    with working("looking at the spec, and at where it would run"):
        findings = examine(asked.path, asked.overrides(), home)
    shown = findings_json(findings)
    tell(shown, lambda _: telling.tables.doctor_view(shown, str(asked.path)), json=json)
    raise typer.Exit(exit_code(findings))


def examine(path: Path, options: Sequence[Override], home: Home) -> list[Finding]:
    """Make all checks of this spec, or of every job of a group. Failures are findings."""
    notes = Notes(cloud=False)
    notes.ok("seerd", f"seerd {VERSION}, Python {platform.python_version()}")
    folder = next(path for path in (home.path, *home.path.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    found = f"{home.path}: {free / 2**30:.1f} GiB free"
    if not os.access(folder, os.W_OK):
        notes.problem("home", f"{folder} cannot be written", "name another with --home")
    elif free < LITTLE_BYTES:
        todo = "journals and best models are kept there: make room, or --home"
        notes.note("home", "problem" if free < TOO_LITTLE_BYTES else "warning", found, todo)
    else:
        notes.ok("home", found)
    try:
        experiment = load([path], options)
    except SeerdError as error:
        notes.problem("spec", str(error), "correct it; docs/spec.md has every key")
        return notes.lines
    findings = notes.lines
    for job in experiment.jobs:
        spec = replace(job, id="", limits=experiment.limits)  # as if it had the run for itself
        machine = this_machine()
        case = Case(spec, home.path, machine, partial(_peak, spec, home, machine))
        for one in (_runnable(spec, home), *asyncio.run(clusters.of(spec).examine(case))):
            findings.append(replace(one, check=f"{job.id}: {one.check}") if job.id else one)
    return findings


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 0 without a problem, 5 if all problems are of the cloud, else 2."""
    problems = [finding for finding in findings if finding.level == "problem"]
    if not problems:
        return 0
    of_cloud = all(finding.cloud for finding in problems)
    return CloudError.exit_code if of_cloud else UsageError.exit_code


def findings_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what `seerd doctor --json` prints."""
    levels = [finding.level for finding in findings]
    return {
        "problems": levels.count("problem"),
        "warnings": levels.count("warning"),
        "missing": sorted({action for finding in findings for action in finding.missing}),
        "checks": [
            {name: getattr(f, name) for name in ("check", "level", "found")}
            | {"todo": f.todo or None, "missing": list(f.missing)}
            for f in findings
        ],
    }


def _runnable(spec: Spec, home: Home) -> Finding:
    doubts: list[str] = []
    finding = partial(Finding, "spec", cloud=False)
    try:
        clusters.of(spec).check(spec)
        clusters.check_source(spec, home, doubts.append)
    except SeerdError as error:
        return finding("problem", str(error))
    if doubts := [*doubts, *memory_doubts(spec)]:
        return finding("warning", "; ".join(doubts))
    return finding("ok", f"{spec.name}: {spec.train.script}, on {spec.cluster.provider}")


def _peak(
    spec: Spec, home: Home, machine: Machine, quote: Quote | None
) -> tuple[Peak | None, Finding]:
    """Plan for the spec. Return the plan's peak, None without a plan, and the finding about it."""
    finding = partial(Finding, "plan", cloud=False)
    try:
        require_limits(of_one(spec))
    except UsageError as error:
        return None, finding("warning", f"no plan was looked at: {error}")
    backend = clusters.of(spec)
    try:
        quote = quote or backend.unasked_quote(machine)
        quote = replace(quote, machine_types=backend.machine_types(machine))
        made = plans.plan_of(of_one(spec), home, quote)
    except LimitsError as error:
        return None, finding("problem", str(error), "seerd plan shows what limits would do")
    except SeerdError as error:
        return None, finding("problem", f"there is no plan: {error}")
    size, stages = made.cluster.gpus_per_instance, made.outline.stages
    instances = max(instances_for(stage.groups, size) for stage in stages)
    largest = made.cluster.gpus(max(made.outline.allocations))
    peak = Peak(instances, math.ceil(largest))
    found = (
        f"at its peak {instances} instances of {made.cluster.gpus(size)} GPUs; the largest trial "
        f"takes {gpus_number(largest)}"
    )
    level: Level = "warning" if made.warnings else "ok"
    return peak, finding(level, "; ".join([found, *made.warnings]))


def machines(options: SpecOptions | None, *, json: bool) -> None:
    """Print who has which GPUs. A machine that cannot be asked is shown with the reason. Raises
    `UsageError` for a spec whose instances are rented, `SpecError` for one that cannot be read.
    """
    local = by_name("local")
    backend = local(CLUSTERS["local"]()) if options is None else clusters.of(options.load())
    rows = [_use_row(use) for use in asyncio.run(backend.gpu_use())]
    tell({"machines": rows}, telling.tables.machines_table, json=json)


def _use_row(use: GpuUse) -> Json:
    report, why = use.report or {"gpus": [], "runs": []}, use.why
    try:
        for row in [*report["gpus"], *report["runs"]]:
            now, since = float(report["now"]), row.pop("since")
            row["for_s"] = None if since is None else round(max(0.0, now - float(since)), 3)
    except (KeyError, TypeError, ValueError) as error:
        report, why = {"gpus": [], "runs": []}, str(error)
    return {"machine": use.machine, "gpus": report["gpus"], "runs": report["runs"], "why": why}
