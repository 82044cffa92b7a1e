"""`seerd plan`: what would be run, what it would take, and what will be billed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seerd.commands.common import SpecOptions, say, tell
from seerd.planning import plans
from seerd.planning.planned import first_configs
from seerd.runs import clusters, earlier
from seerd.shell.home import Home
from seerd.spec.group import JobGroup
from seerd.telling.plan_json import Json, plan_json
from seerd.telling.working import working

if TYPE_CHECKING:
    from rich.console import RenderableType


def plan(asked: SpecOptions, home: Home, *, json: bool) -> None:
    """Print the plan for a spec.

    Raises `UsageError` for what cannot be planned, `LimitsError` if the limits fit nothing.
    """
    if asked.is_group:
        _plan_group(asked.group(), home, json=json)
        return
    spec, ideal = earlier.informed(asked.complete(), home), asked.ideal
    clusters.check_source(spec, home, say)
    place = clusters.place_of(spec, home, unbounded=ideal)
    with working("planning, also for every other policy"):
        planned = plans.of_spec(spec, place, ideal=ideal, minimize=asked.minimize)
        others = {} if asked.minimize else plans.others_of(spec, place, ideal=ideal)
        configs = first_configs(planned.problem, spec.metric.mode)
    tell(plan_json(planned, others, configs), _page, json=json)


def _plan_group(group: JobGroup, home: Home, *, json: bool) -> None:
    for job in group.jobs:
        clusters.check_source(job.spec, home, say)
    place = clusters.place_of(group.lead, home)
    with working("planning"):
        planned = plans.of_group(group, place)
    tell(plan_json(planned, {}, []), _page, json=json)


def _page(told: Json) -> RenderableType:
    from seerd.telling.plan_table import plan_view

    return plan_view(told)
