"""`seerd plan`: what would be run, what it would take, and what will be billed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seerd.commands.common import SpecOptions, tell
from seerd.planning import plans
from seerd.planning.planned import first_configs
from seerd.runs import clusters, earlier
from seerd.shell.home import Home
from seerd.view.plan_json import Json, plan_json

if TYPE_CHECKING:
    from rich.console import RenderableType


def plan(asked: SpecOptions, home: Home, *, json: bool) -> None:
    """Print the plan for a spec.

    Raises `UsageError` for what cannot be planned, `LimitsError` if the limits fit nothing.
    """
    spec, ideal = earlier.informed(asked.complete(), home), asked.ideal
    place = clusters.place_of(spec, home, unbounded=ideal)
    planned = plans.of_spec(spec, place, ideal=ideal, minimize=asked.minimize)
    others = {} if asked.minimize else plans.others_of(spec, place, ideal=ideal)
    configs = first_configs(planned.problem, spec.metric.mode)
    tell(plan_json(planned, others, configs), _page, json=json)


def _page(told: Json) -> RenderableType:
    from seerd.view.plan_table import plan_view

    return plan_view(told)
