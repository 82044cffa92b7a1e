"""`seerd doctor`: checks from all sides whether a run of this spec could begin, and tells what to
do where it could not.

The one rule: nothing is started, and no check prevents another: what cannot be found out is told in
a line of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from seerd.commands.common import SpecOptions, tell
from seerd.commands.doctor import here
from seerd.commands.doctor.case import Case, runnable
from seerd.commands.doctor.finding import Finding, exit_code, findings_json, missing
from seerd.errors import SeerdError
from seerd.planning.machine import this_machine
from seerd.shell.home import Home
from seerd.spec.reader import Override
from seerd.spec.spec import Spec, load_spec
from seerd.telling.working import working

if TYPE_CHECKING:
    from rich.console import RenderableType

    from seerd.aws.policy import Needs

__all__ = [
    "Finding",
    "doctor",
    "examine",
    "exit_code",
    "findings_json",
    "missing",
    "needs_of",
    "policy_of",
]

EXAMINED_BY = {"local": "here", "hosts": "machines", "ec2": "ec2"}
"""Which module here examines the clusters of a provider, with its `of_cluster`."""


def doctor(asked: SpecOptions, home: Home, *, policy_only: bool, json: bool) -> None:
    """Examine a spec and print what was found, or print the IAM policy that it needs.

    Raises `typer.Exit` with the exit code, and `SeerdError` if the policy cannot be made.
    """
    if policy_only:
        print(dumps(policy_of(asked.load()), indent=2))
        return
    with working("looking at the spec, and at where it would run"):
        findings = examine(asked.path, asked.overrides(), home)
    tell(findings_json(findings), lambda told: _page(told, asked.path), json=json)
    raise typer.Exit(exit_code(findings))


def examine(path: Path, options: Sequence[Override], home: Home) -> list[Finding]:
    """Make all checks of this spec with these options, or of every job of a group. Failures are
    findings and not raised.
    """
    findings = [here.versions(), here.disk(home)]
    try:
        specs = _specs(path, options)
    except SeerdError as error:
        return [
            *findings,
            Finding(
                "spec", "problem", str(error), "correct it; docs/spec.md has every key", cloud=False
            ),
        ]
    for job, spec in specs.items():
        found = [runnable(spec, home), *asyncio.run(_of_cluster(Case(spec, home, this_machine())))]
        findings += [replace(one, check=f"{job}: {one.check}") if job else one for one in found]
    return findings


def _specs(path: Path, options: Sequence[Override]) -> dict[str, Spec]:
    """Read the spec, under an empty name, or those of a group's jobs, as their run has them."""
    from seerd.spec.group import is_group, load_group

    if not is_group([path]):
        return {"": load_spec(path, options)}
    group = load_group([path], options)
    return {job.id: replace(job.spec, limits=group.lead.limits) for job in group.jobs}


def policy_of(spec: Spec) -> dict[str, Any]:
    """Make the IAM policy with the least rights that the coordinator needs for this spec.

    The account is in it if AWS tells it. Raises `AwsError`.
    """
    from seerd.aws.policy import policy

    return policy(asyncio.run(needs_of(spec)))


async def needs_of(spec: Spec) -> Needs:
    """Collect what the policy for this spec has to permit; AWS is asked for the account."""
    from seerd.commands.doctor import ec2

    return await ec2.needs_of(spec)


def _page(told: dict[str, Any], spec: Path) -> RenderableType:
    from seerd.telling.findings import doctor_view

    return doctor_view(told, str(spec))


async def _of_cluster(case: Case) -> list[Finding]:
    module = import_module(f"{__name__}.{EXAMINED_BY[case.spec.cluster.provider]}")
    findings: list[Finding] = await module.of_cluster(case, case.spec.cluster)
    return findings
