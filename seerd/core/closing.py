"""How long the end of a run takes, known before the run begins, so that plans can set it aside."""

from __future__ import annotations

import math

from seerd.core.rules import RULES, Rules
from seerd.planner.model import ClusterFacts


def shortened(seconds: float, deadline_s: float, rules: Rules = RULES) -> float:
    """Return how many of these seconds a run with this deadline sets aside: less if short."""
    return seconds if deadline_s >= rules.short_s else seconds * deadline_s / rules.short_s


def shortest_s(deadline_s: float, first_s: float = math.inf, rules: Rules = RULES) -> float:
    """Return how many seconds before the end the last attempts are started."""
    learned_s = max(rules.start_s, first_s)
    return min(rules.shortest_s, deadline_s / rules.shortest_share, learned_s)


def grace_within(
    deadline_s: float, slowest_s: float, cluster: ClusterFacts, rules: Rules = RULES
) -> float:
    """Return how many seconds trials have to save and exit: twice `slowest_s` (the slowest unit of
    work or save) plus two, at most a tenth of the deadline and `rules.grace_max_s`, at least
    `rules.grace_min_s`, both less in a short run; 0 if giving back takes no time.
    """
    if cluster.instant:
        return 0.0
    least_s = shortened(rules.grace_min_s, deadline_s, rules)
    wanted = max(least_s, 2 * slowest_s + shortened(2, deadline_s, rules))
    return min(wanted, max(rules.grace_min_s, min(rules.grace_max_s, deadline_s / 10)))


def closing_s(
    deadline_s: float, slowest_s: float, cluster: ClusterFacts, rules: Rules = RULES
) -> float:
    """Return the seconds to set aside at the end of a run, by its slowest unit of work or save."""
    grace_s = grace_within(deadline_s, slowest_s, cluster, rules)
    rest_s = shortened(rules.kill_s + rules.publish_s, deadline_s, rules)
    return grace_s + rest_s + cluster.terminate_s
