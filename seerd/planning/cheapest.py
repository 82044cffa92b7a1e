"""`--minimize cost` where several types may be rented: which is asked for first."""

from __future__ import annotations

from dataclasses import replace

from seerd.backends.base import Quote
from seerd.errors import LimitsError
from seerd.planning.plans import Minimize, plan_of
from seerd.planning.profiles import load_profile
from seerd.shell.home import Home
from seerd.spec.experiment import Experiment
from seerd.units import format_money


def cheapest_first(
    experiment: Experiment, home: Home, quote: Quote, minimize: Minimize | None
) -> Quote:
    """Return the quote with the types that keep the deadline, the cheapest plan first; as it is if
    cost is not minimised. A type counts as as fast as it was measured, or as the others if not all
    were.

    Raises as `plans.plan_of`; `LimitsError` if no type keeps the limits.
    """
    if minimize != "cost" or len(quote.types) < 2 or experiment.is_shared:
        return quote
    job, costs, refusals = experiment.jobs[0], dict[int, float](), list[LimitsError]()
    measured = all(load_profile(home.path, job, (kind.name,)) for kind in quote.types)
    for number, kind in enumerate(quote.types):
        alone = quote.of_types([kind])
        if measured:
            alone = replace(alone, machine_types=(kind.name,))
        try:
            planned = plan_of(experiment, home, alone, minimize=minimize)
        except LimitsError as error:
            refusals.append(error)
        else:
            costs[number] = planned.forecast.usd.p50
    if not costs:
        raise refusals[0]
    order = sorted(costs, key=lambda number: costs[number])
    costing = [f"{quote.types[n].name} about {format_money(costs[n])}" for n in order]
    note = f"the type with which the run is cheapest is asked for first: {', '.join(costing)}"
    chosen = quote
    for most in range(len(order), 0, -1):
        # Plans count each GPU as the dearest, so a dear type behind a cheap one may be too dear.
        chosen = quote.of_types([quote.types[number] for number in order[:most]])
        names = tuple(kind.name for kind in chosen.types)
        chosen = replace(chosen, machine_types=names, notes=(*quote.notes, note))
        try:
            plan_of(experiment, home, chosen, minimize=minimize)
            break
        except LimitsError:
            continue
    return chosen
