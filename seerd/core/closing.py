"""How long the end of a run takes: known before it begins, so that plans can set it aside."""

from __future__ import annotations

from seerd.core.rules import RULES, Rules
from seerd.planner.model import ClusterFacts


def grace_within(
    deadline_s: float, slowest_s: float, cluster: ClusterFacts, rules: Rules = RULES
) -> float:
    """How long trials may take to save and exit, given the slowest unit of work or save: never more
    than a tenth of the deadline.
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
    """What will be set aside at the end of a run whose slowest unit of work or save
    takes so long.
    """
    grace_s = grace_within(deadline_s, slowest_s, cluster, rules)
    return grace_s + rules.kill_s + cluster.terminate_s + rules.publish_s
