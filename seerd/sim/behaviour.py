"""What a simulated world is like: how trials learn, and how long everything takes.

The one rule: only values and functions; the world decides when to use them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from seerd.planner.profile import NONE, Latency
from seerd.planner.space import Config
from seerd.planner.trial_ids import job_of

Metric = Callable[[Config, int], float | None]
"""The metric of a configuration's n-th report, n from 1: (config, n). None if it is not finite."""
UnitTime = Callable[[Config, int, int], float]
"""Seconds of training between a configuration's reports n - 1 and n: (config, n, gpus)."""


def exactly(seconds: float) -> Latency:
    """Make a time that does not vary."""
    return Latency(seconds, seconds)


BOOT, START, STOP, RELEASE = exactly(0.2), exactly(2.0), exactly(0.5), exactly(0.1)


def _never(trial: str, attempt: int, report: int) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How one simulated world behaves.

    metric          gives the metric of each report
    unit_s          gives the seconds of training until each report
    crashes         whether an attempt crashes instead of making a report: (trial, attempt, report)
    blocked         whether something is in the way of an attempt that begins, by how many others
                    of its job hold GPUs
    saves_every_s   a checkpoint follows a report if the last one is at least so many seconds old;
                    None: it follows the first and every fifth report
    most_reports    a trial's script ends by itself after this many reports; None: never
    pending         from the request until an instance runs
    boot            from there until its agent takes orders
    start           from the order until an attempt trains
    stop            from being asked to stop until an attempt has saved and exited
    release         from the request to terminate until an instance is no longer billed
    release_most_s  most seconds of `release`
    partial         what becomes of the work since the last report when an attempt is asked to stop:
                    it is lost, finished first, or kept
    deaf            attempts ignore being asked to stop
    straggling      standard deviation: each attempt takes 1 + |z| times as long (ASHA, MLSys '20,
                    appendix A.1)
    drop_rate       share of attempts that crash, for each second of training
    lifetime_s      mean seconds until an instance is interrupted (spot); None: never
    notice_s        seconds between the notice and an interruption; None: no notice
    sudden          share of interruptions without a notice
    capacity        how many instances the cloud has for the run, by seconds since the run began;
                    None: as many as it wants
    jobs            job -> how its trials behave, for a run that jobs share
    """

    metric: Metric
    unit_s: UnitTime = lambda config, report, gpus: 1.0
    crashes: Callable[[str, int, int], bool] = _never
    blocked: Callable[[int], bool] = lambda beside: False
    saves_every_s: float | None = None
    most_reports: int | None = None
    pending: Latency = NONE
    boot: Latency = BOOT
    start: Latency = START
    stop: Latency = STOP
    release: Latency = RELEASE
    release_most_s: float = math.inf
    partial: Literal["lost", "finished", "kept"] = "lost"
    deaf: bool = False
    straggling: float = 0.0
    drop_rate: float = 0.0
    lifetime_s: float | None = None
    notice_s: float | None = None
    sudden: float = 0.0
    capacity: Callable[[float], int] | None = None
    jobs: Mapping[str, Behaviour] = field(default_factory=dict)

    def of(self, trial: str) -> Behaviour:
        """Return how a trial behaves."""
        return self.jobs[job_of(trial)] if self.jobs else self
