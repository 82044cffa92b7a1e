"""The figures that decisions go by, and how long the end of a run takes by them, which plans set
aside. Recorded decisions are applied without them, so every version reads every run as it was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from seerd.core.seen import Seen
from seerd.planner.model import ClusterFacts

STEP_S = 0.1  # what is learned is rounded up to so many seconds, to change seldom


@dataclass(frozen=True, slots=True)
class Rules:
    """Times are in seconds, shares from 0 to 1."""

    kept_checkpoints: int = 2  # newest checkpoints per trial in the store: one may be damaged
    keep_best: bool = True  # whether a trial's best checkpoint stays too, to be handed back
    # crashes in a row without progress that may be chance; with one more a trial has failed
    max_crashes: int = 1
    # crashes within the deadline divided by `burst_share`; with one more a trial has failed
    max_burst: int = 20
    burst_share: float = 20  # 20: a twentieth of the deadline
    alike_trials: int = 3  # a job ends if so many trials, and all that were tried, fail alike
    many_trials: int = 6  # the same for different failures, or where configurations may be why
    certain_trials: int = 2  # the same for an error that no configuration can avoid
    # a job that has never reported ends if something was in the way so many times in a row, for the
    # patience of refused launches, but no longer than `blocked_s`
    blocked_times: int = 3
    blocked_s: float = 600.0
    # attempts in a row that an obstacle in the way of one trial alone may end; one more is a crash
    max_blocks: int = 4
    max_losses: int = 10  # ends by a machine's fault: a trial must not crash its machine for ever
    grace_min_s: float = 4.0  # how long a trial may take to save and exit, at least
    grace_max_s: float = 30.0  # how long a trial may take to save and exit, at most
    kill_s: float = 1.5  # from the end of the grace period until no process is left, at any load
    publish_s: float = 1.0  # from the last checkpoint until the best model is in its place
    short_s: float = 24.0  # a shorter deadline scales `grace_min_s`, `kill_s` and `publish_s` down
    # these times are assumed until so many ends, or saves, were seen; then less is set aside if
    # they took less, by so many standard deviations above their mean
    few_times: int = 3
    deviations: float = 3.0
    kill_least_s: float = 0.5  # least time from a kill until nothing is left
    # an attempt with less time before the end is not started; at most the deadline divided by
    # `shortest_share`, and the time of the quickest first report, and at least `start_s`
    shortest_s: float = 5.0
    shortest_share: float = 12  # 12: a twelfth of the deadline
    start_s: float = 0.5
    lease_s: float = 60.0  # how long agents go on without hearing from the daemon, at most
    orphan_timeout_s: float = 600.0  # how long an instance may run before it has an agent
    last_s: float = 120.0  # how long agents alone may take to store the last checkpoints, at most
    notice_margin_s: float = 5.0  # how long before an instance is taken its trials must be gone
    # an instance that was launched for earlier limits is replaced so long before it ends itself:
    # it refuses logins by then
    retire_s: float = 300.0
    timer_slack_s: float = 0.01  # a new timer must be earlier than the old one by more than this
    # a run without an instance gives up after so many refusals in a row and, where instances are
    # not rented (see `ClusterFacts.wait_s`), the deadline divided by `patience_share`
    max_refusals: int = 3
    patience_share: float = 10
    # first wait after a refused launch or an obstacle; it doubles each time, up to `retry_most_s`
    # and the deadline divided by `retry_share`
    retry_s: float = 15.0
    retry_most_s: float = 120.0
    retry_share: float = 20
    # a run ends if checkpoints cannot be stored, and none has been, for the deadline divided by
    # `outage_share` and at least `outage_least_s`; the user is warned of it after `remind_s`, and
    # then after twice the time each, up to `remind_most_s`
    outage_share: float = 10
    outage_least_s: float = 60.0
    remind_s: float = 60.0
    remind_most_s: float = 300.0
    # between plans, trials are moved together only if this share of the instances would do: each
    # move costs a save and a start
    worth_packing: float = 0.75
    slow_share: float = 0.25  # a rank is slow if every other waits for so much more of its time
    max_failures: int = 3  # after so many answers in a row that cannot be used the run ends
    ask_again_s: float = 1.0  # how long after such an answer the policy is asked again


RULES = Rules()  # the rules of this version


def shortened(seconds: float, deadline_s: float, rules: Rules = RULES) -> float:
    """Return how many of these seconds a run with this deadline sets aside: less if it is short. A
    slow machine is no danger to a short run, which does not begin in time there.
    """
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


def learned_grace_s(seen: Seen, rules: Rules = RULES) -> float:
    """Return how many seconds trials of this run need to save and exit: a unit of work of late, and
    then as long as others took, or saves side by side take. Infinite if few others did.
    """
    if seen.ends.count < rules.few_times:
        return math.inf
    ends_s = max(seen.ends.above_s(rules.deviations), 2 * seen.saves.above_s(rules.deviations))
    return math.ceil((seen.unit_s + ends_s) / STEP_S) * STEP_S


def learned_kill_s(assumed_s: float, seen: Seen, rules: Rules = RULES) -> float:
    """Return how many of the seconds assumed for a kill this run needs: as long as kills took, but
    at least `rules.kill_least_s` and the time until the core hears of an end.
    """
    if min(seen.ends.count, seen.news.count) < rules.few_times:
        return assumed_s
    least_s = rules.kill_least_s + seen.news.above_s(rules.deviations)
    return min(assumed_s, max(least_s, seen.kills.above_s(rules.deviations)))


def learned_publish_s(assumed_s: float, seen: Seen, beside_s: float, rules: Rules = RULES) -> float:
    """Return how many of the seconds assumed for publishing a model this run needs, by its saves,
    beyond those that machines take to be given back at the same time (`beside_s`).
    """
    if seen.saves.count < rules.few_times:
        return assumed_s
    return min(assumed_s, max(0.0, 2 * seen.saves.above_s(rules.deviations) - beside_s))


def closing_s(
    deadline_s: float, slowest_s: float, cluster: ClusterFacts, rules: Rules = RULES
) -> float:
    """Return the seconds to set aside at the end of a run, by its slowest unit of work or save."""
    grace_s = grace_within(deadline_s, slowest_s, cluster, rules)
    rest_s = shortened(rules.kill_s + rules.publish_s, deadline_s, rules)
    return grace_s + rest_s + cluster.terminate_s
