"""A failing scenario made small: the same violation with as little as possible going wrong.

The one rule: what is left out is left out for good if what remains still fails; nothing else is
changed, so the seed stays the name of it.
"""

from __future__ import annotations

from tests.faults.scenario import Scenario
from tests.faults.world import Report, play


def shrink(scenario: Scenario, most_plays: int = 120) -> tuple[Scenario, Report]:
    """The smallest that was found in so many plays, and its report, with what happened."""
    plays = 0
    shrunk = True
    while shrunk and plays < most_plays:
        shrunk = False
        for part in reversed(scenario.parts):
            smaller = scenario.without(part)
            plays += 1
            if play(smaller).wrong:
                scenario, shrunk = smaller, True
    return scenario, play(scenario, told=True)
