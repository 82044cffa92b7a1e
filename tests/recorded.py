"""What a journal gives back of a state, to compare one that was kept with one that was read.

The one rule: all but what is derived (aims, agenda, targets, claims) and the rules.
"""

from __future__ import annotations

from dataclasses import fields, replace

from seerd.core.state import State

DERIVED = ("rules", "aims", "agenda")


def recorded(state: State) -> dict[str, object]:
    """For the moment: what is in it is the state's own."""
    found = {one.name: getattr(state, one.name) for one in fields(state) if one.name not in DERIVED}
    trials, fleet = state.trials.items(), state.fleet
    instances = fleet.instances.items()
    return found | {
        "trials": [(name, replace(trial, target=None)) for name, trial in trials],
        "fleet": replace(
            fleet, instances=[(name, replace(one, claims={})) for name, one in instances]
        ),  # type: ignore[arg-type]
        "plan": replace(state.plan, order=list(state.plan.order)),  # type: ignore[arg-type]
        "under_way": list(state.under_way.items()),
    }


def differing(one: State, other: State) -> list[str]:
    """What of the two is not the same, one line each."""
    left, right = recorded(one), recorded(other)
    return [f"{name}: {left[name]} and {right[name]}" for name in left if left[name] != right[name]]
