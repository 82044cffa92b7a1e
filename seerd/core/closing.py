"""How long the end of a run takes: known before it begins, so that plans can set it aside."""

from __future__ import annotations

from planner.model import ClusterFacts

GRACE_MIN_S = 4.0
GRACE_MAX_S = 30.0
KILL_S = 1.5
"""From the end of the grace period until no process of an attempt is left, however loaded the machine."""
PUBLISH_S = 1.0
"""From the last checkpoint until the best model is in its place."""


def grace_within(deadline_s: float, slowest_s: float, cluster: ClusterFacts) -> float:
    """How long trials may take to save and exit, given the slowest unit of work or save: never more than a tenth of the deadline."""
    if cluster.instant:
        return 0.0
    wanted = max(GRACE_MIN_S, 2 * slowest_s + 2)
    if wanted <= GRACE_MIN_S:
        return wanted
    return min(wanted, max(GRACE_MIN_S, min(GRACE_MAX_S, deadline_s / 10)))


def closing_s(deadline_s: float, slowest_s: float, cluster: ClusterFacts) -> float:
    """What will be set aside at the end of a run whose slowest unit of work or save takes so long."""
    return grace_within(deadline_s, slowest_s, cluster) + KILL_S + cluster.terminate_s + PUBLISH_S
