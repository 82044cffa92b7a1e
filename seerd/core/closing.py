"""How long the end of a run takes. It is known before the run begins, so that plans can set that
time aside.
"""

from __future__ import annotations

from seerd.core.rules import RULES, Rules
from seerd.planner.model import ClusterFacts


def grace_within(
    deadline_s: float, slowest_s: float, cluster: ClusterFacts, rules: Rules = RULES
) -> float:
    """Return how long trials may take to save and exit, in seconds.

    deadline_s  the run's deadline; the grace period is at most a tenth of it, but at least
                `rules.grace_min_s`
    slowest_s   seconds of the slowest unit of work or save
    """
    if cluster.instant:
        return 0.0
    least_s = rules.grace_min_s
    wanted = max(least_s, 2 * slowest_s + 2)
    if wanted <= least_s:
        return wanted
    return min(wanted, max(least_s, min(rules.grace_max_s, deadline_s / 10)))


def closing_s(
    deadline_s: float, slowest_s: float, cluster: ClusterFacts, rules: Rules = RULES
) -> float:
    """Return the seconds to set aside at the end of a run whose slowest unit of work or save takes
    `slowest_s`.
    """
    grace_s = grace_within(deadline_s, slowest_s, cluster, rules)
    return grace_s + rules.kill_s + cluster.terminate_s + rules.publish_s
