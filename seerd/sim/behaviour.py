"""What a simulated world is like: how trials learn, and how long everything takes.

The one rule: values and functions that are given; the world decides when to ask them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from seerd.planner.profile import NONE, Latency
from seerd.planner.space import Config

Metric = Callable[[Config, int], float | None]
"""The metric of a configuration's n-th report, n from 1: (config, n). None if it is not finite."""
UnitTime = Callable[[Config, int, int], float]
"""Seconds of training from the report before the n-th to the n-th on so many GPUs: (config, n,
gpus).
"""


def exactly(seconds: float) -> Latency:
    """A time that does not vary."""
    return Latency(seconds, seconds)


BOOT, START, STOP, RELEASE = exactly(0.2), exactly(2.0), exactly(0.5), exactly(0.1)


def _never(trial: str, attempt: int, report: int) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One world.

    crashes         whether an attempt crashes instead of making this report
    saves_every_s   a checkpoint follows a report if the last one is so old; None: it follows the
                    first and every fifth report
    most_reports    a trial's script ends by itself after so many reports
    pending, boot   from the request until an instance runs, and from there until its agent takes
                    orders
    start, stop     from the order until an attempt trains, and from being asked to stop until it
                    has saved and exited
    release         from the request to terminate until an instance costs no more, `release_most_s`
                    at most
    partial         what becomes of the work since the last report when an attempt is asked to stop:
                    it is lost, finished first, or kept
    deaf            attempts do not listen when they are asked to stop
    straggling      standard deviation: each attempt takes 1 + |z| times as long (ASHA, MLSys '20,
                    appendix A.1)
    drop_rate       share of attempts that crash, for each second of training
    lifetime_s      mean time until an instance is interrupted (spot); None: never
    notice_s        so long before it is interrupted it is told; None: never told. `sudden`: share
                    that is not
    capacity        how many instances the cloud has for the run at a moment, in seconds since it
                    began; None: as many as it wants
    """

    metric: Metric
    unit_s: UnitTime = lambda config, report, gpus: 1.0
    crashes: Callable[[str, int, int], bool] = _never
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
