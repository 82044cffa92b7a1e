"""How long the end of a run takes. It is known before the run begins, so that plans can set that
time aside.
"""

from __future__ import annotations

from seerd.core.rules import RULES, Rules
from seerd.planner.model import ClusterFacts


def grace_within(
    deadline_s: float, slowest_s: float, cluster: ClusterFacts, rules: Rules = RULES
) -> float:
    """Return how long trials may take to save and exit, in seconds; 0 if giving back takes no time.

    deadline_s  the run's deadline, in seconds
    slowest_s   seconds of the slowest unit of work or save

    That is twice `slowest_s` plus two seconds, at most a tenth of the deadline and
    `rules.grace_max_s`. It is always at least `rules.grace_min_s`.
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
    """Return the seconds to set aside at the end of a run.

    slowest_s  seconds of its slowest unit of work or save
    """
    grace_s = grace_within(deadline_s, slowest_s, cluster, rules)
    return grace_s + rules.kill_s + cluster.terminate_s + rules.publish_s
