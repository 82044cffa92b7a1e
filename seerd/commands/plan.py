"""`seerd plan`: what would be run, what it would take, and what will be billed."""

from __future__ import annotations

from dataclasses import replace

from seerd import telling
from seerd.commands.common import say, tell
from seerd.commands.options import SpecOptions
from seerd.planning import plans
from seerd.planning.cheapest import cheapest_first
from seerd.planning.planned import first_configs
from seerd.runs import clusters, earlier
from seerd.shell.home import Home
from seerd.telling.plan_json import plan_json
from seerd.telling.working import working


def plan(asked: SpecOptions, home: Home, *, json: bool) -> None:
    """Print the plan. Raises `UsageError`, and `LimitsError` if the limits fit nothing."""
    experiment, ideal = asked.complete(), asked.ideal
    jobs = tuple(earlier.informed(job, home) for job in experiment.jobs)
    experiment = replace(experiment, jobs=jobs)
    for job in jobs:
        clusters.check_source(job, home, say)
    quote = clusters.unasked_quote(experiment, unbounded=ideal)
    with working("planning, also for every other policy"):
        quote = cheapest_first(experiment, home, quote, asked.minimize)
        planned = plans.plan_of(experiment, home, quote, ideal=ideal, minimize=asked.minimize)
        others = {} if asked.minimize else plans.others_of(experiment, home, quote, ideal=ideal)
        single = not experiment.is_shared
        configs = first_configs(planned.problem, jobs[0].goal.mode) if single else []
    shown = plan_json(planned, others, configs, clusters.uncounted(experiment, planned))
    tell(shown, lambda _: telling.tables.plan_view(shown), json=json)
