"""What a simulated world is like: how trials learn, and how long everything takes. Values only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from seerd.planner.profile import NONE, Latency
from seerd.planner.space import Config
from seerd.planner.trial_ids import job_of

# (config, n) -> the metric of its n-th report, from 1; None if it is not finite
Metric = Callable[[Config, int], float | None]
# (config, n, gpus) -> seconds of training between a configuration's reports n - 1 and n
UnitTime = Callable[[Config, int, int], float]


def exactly(seconds: float) -> Latency:
    """Return a time that does not vary."""
    return Latency(seconds, seconds)


BOOT, START, STOP, RELEASE = exactly(0.2), exactly(2.0), exactly(0.5), exactly(0.1)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How one simulated world behaves."""

    metric: Metric  # gives the metric of each report
    # gives the seconds of training until each report
    unit_s: UnitTime = lambda config, report, gpus: 1.0
    # a checkpoint follows a report if the last one is at least so many seconds old; None: it
    # follows the first and every fifth report
    saves_every_s: float | None = None
    # a trial's script ends by itself after this many reports; None: never
    most_reports: int | None = None
    pending: Latency = NONE  # from the request until an instance runs
    boot: Latency = BOOT  # from there until its agent takes orders
    start: Latency = START  # from the order until an attempt trains
    stop: Latency = STOP  # from being asked to stop until an attempt has saved and exited
    release: Latency = RELEASE  # from the request to terminate until an instance is not billed
    release_most_s: float = math.inf  # most seconds of `release`
    # what becomes of the work since the last report when an attempt is asked to stop: it is lost,
    # finished first, or kept
    partial: Literal["lost", "finished", "kept"] = "lost"
    # standard deviation: each attempt takes 1 + |z| times as long (ASHA, MLSys '20, appendix A.1)
    straggling: float = 0.0
    drop_rate: float = 0.0  # share of attempts that crash, for each second of training
    # (config, n) -> the last lines of an attempt that crashes instead of its n-th report, or none
    fails: Callable[[Config, int], tuple[str, ...]] = lambda config, report: ()
    lifetime_s: float | None = None  # mean seconds until an instance is interrupted; None: never
    notice_s: float | None = None  # seconds between the notice and an interruption; None: no notice
    sudden: float = 0.0  # share of interruptions without a notice
    # job -> how its trials behave, for a run that jobs share
    jobs: Mapping[str, Behaviour] = field(default_factory=dict)

    def of(self, trial: str) -> Behaviour:
        """Return how a trial behaves."""
        return self.jobs[job_of(trial)] if self.jobs else self
