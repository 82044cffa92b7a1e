"""What wears a run down without breaking anything at once: floods of reports, a daemon that is slow
or starved, clocks that are set, agents that are frozen, full pid tables, notices that change, jobs
that are added shortly before a deadline of their own, journals that are damaged.

The one rule: each of these has a die of its own, apart from those of the other faults, so that a
seed's other faults stay as they are.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from seerd.backends.backend import MARGIN_S
from seerd.planner.model import Limits
from tests.faults.weather import Span, Weather

SLOW_COMMIT, STARVED = "slow commit", "daemon starved"
FLOODS = "floods"
FROZEN = "agent frozen"
MACHINE_CLOCK, CLOCK = "machine's clock steps", "coordinator's clock steps"
PIDS_FULL = "pid table full"
NOTICE_CHANGES = "another notice"
SHORT_JOB = "job added with short limits"
AGENTS_JOURNAL = "agent's journal damaged"
FLIPPED, TAIL_LOST, OLDER = "journal's bit flipped", "journal's tail lost", "older journal"
JOURNALS = (FLIPPED, TAIL_LOST, OLDER)
"""What happens to the coordinator's journal while it is down: each at most once in a run."""

RATES: dict[str, tuple[float, float]] = {
    SLOW_COMMIT: (0.003, 0.1),
    FLOODS: (0.05, 0.5),
}
DAMAGES = dict.fromkeys(JOURNALS, (0.5, 1.0))
SPANS: dict[str, tuple[float, float]] = {
    STARVED: (1.0, 15.0),
    FROZEN: (0.0, 0.0),
    MACHINE_CLOCK: (0.0, 0.0),
    CLOCK: (0.0, 0.0),
    PIDS_FULL: (3.0, 60.0),
    NOTICE_CHANGES: (10.0, 120.0),
    AGENTS_JOURNAL: (0.0, 0.0),
}
NAMES = frozenset({*RATES, *DAMAGES, *SPANS, SHORT_JOB})

COMMIT_S = 0.1, 4.0
"""How long a slow commit holds up the daemon."""
FLOOD = 120
"""So many reports of an attempt come at once when it floods; then it goes on as others do."""
FASTER = 60
"""How much faster than its units of work these reports come."""
STEPS_S = (-7200.0, -3600.0, -30.0, -2.0, 2.0, 30.0, 3600.0, 7200.0)
"""By how much a clock is set."""
AFFECTED = 0.3
"""So many runs have a strain at all."""
DAMAGED = 0.2
"""So many runs can have each kind of damage to the coordinator's journal, if it is killed."""
BEHIND = 0.7
"""So many runs have scripts that train on while a checkpoint is written."""
FALLING_BACK = 0.2
"""So many runs ask for on-demand instances where spot has none."""
BOUGHT = 0.1
"""So many runs take their instances from a Capacity Block, but for those that fall back."""
SHORT_JOBS = 0.5
"""So many of the jobs that are added have short limits."""

BEFORE = frozenset(
    (
        *(3, 4, 7, 8, 12, 16, 20, 23, 28, 37, 38, 39, 51, 62, 65, 102, 106, 133, 136, 173, 198),
        *(318, 370, 426, 623, 720, 965, 1110, 1830, 2367, 3898, 3924, 4027, 5421, 5610, 6330),
        *(30008, 43733, 58103, 80241, 100878),
    )
)
"""Seeds that tests keep, of runs without any strain."""
WHOLE = frozenset((31000006, 31000015, 31000018, 31000035, 73994708787, 73994708790))
"""Seeds that tests keep, of runs whose coordinator's journal is not damaged."""
AT_ONCE = (
    BEFORE
    | WHOLE
    | frozenset(
        (
            *(2, 2119, 2257, 30044, 31000056, 44100070, 57007964, 58011756),
            *(52000075, 52000148, 52000150, 52000229, 52000271, 52000592, 52000925, 52000950),
            *(53000229, 55000689, 57014032, 58018891, 59013592),
        )
    )
)
"""Seeds that tests keep, of runs whose scripts wait until a checkpoint is written."""
KEPT = AT_ONCE | WHOLE
"""Seeds that tests keep, of runs that rent what they use."""


def saves_behind(seed: int) -> bool:
    """Return whether scripts train on while a checkpoint is written."""
    return seed not in AT_ONCE and random.Random(f"saves behind {seed}").random() < BEHIND


def falls_back(seed: int) -> bool:
    """Return whether on-demand instances are asked for where spot has none."""
    return seed not in BEFORE and random.Random(f"falls back {seed}").random() < FALLING_BACK


@dataclass(frozen=True, slots=True)
class Block:
    """A Capacity Block: how many instances it has, when it begins (seconds since the run began),
    and when EC2 ends its instances.
    """

    instances: int
    begins_s: float
    ends_s: float


def bought(seed: int, deadline_s: float) -> Block | None:
    """Return the block that instances are taken from; None: there is none."""
    dice = random.Random(f"bought {seed}")
    if seed in KEPT or falls_back(seed) or dice.random() >= BOUGHT:
        return None
    begins_s = dice.choice([0.0, dice.uniform(0.0, deadline_s / 2)])
    ends_s = deadline_s + dice.choice([MARGIN_S, 3600.0])
    return Block(dice.choice([1, 2, 4, 16]), begins_s, ends_s)


def strained(weather: Weather, seed: int, deadline_s: float) -> Weather:
    """Return the weather with some strains."""
    rng = random.Random(f"strains {seed}")
    if seed in BEFORE:
        return weather
    rates, spans = dict(weather.rates), dict(weather.spans)
    for name, (least, most) in DAMAGES.items():
        dice = random.Random(f"{name} {seed}")
        if seed not in WHOLE and dice.random() < DAMAGED:
            rates[name] = dice.uniform(least, most)
    if rng.random() >= AFFECTED:
        return Weather(rates, spans)
    share = rng.choice([0.2, 0.4])
    for name, (least, most) in RATES.items():
        dice = random.Random(f"{name} {seed}")
        if dice.random() < share:
            rates[name] = least * (most / least) ** dice.random()
    for name, lasts in SPANS.items():
        dice = random.Random(f"{name} {seed}")
        if dice.random() < share:
            spans[name] = tuple(_span(dice, deadline_s, *lasts) for _ in range(dice.choice([1, 2])))
    return Weather(rates, spans)


def _span(dice: random.Random, deadline_s: float, least_s: float, most_s: float) -> Span:
    since = dice.uniform(0.0, deadline_s)
    return since, since + dice.uniform(least_s, most_s)


def short_limits(seed: int, limits: Limits, at_s: float, whole: Limits) -> Limits | None:
    """Return limits of its own for a job that is added at `at_s`, with a deadline soon after that;
    None: it keeps those that it has.
    """
    dice = random.Random(f"short limits {seed}")
    if seed in BEFORE or dice.random() >= SHORT_JOBS:
        return None
    deadline_s = min(at_s + dice.uniform(40.0, 240.0), whole.deadline_s)
    share = dice.choice([1.0, dice.uniform(0.05, 0.3)])
    gpus = dice.choice([limits.max_gpus, 1])
    return replace(
        limits,
        deadline_s=math.floor(deadline_s),
        budget_gpu_s=whole.budget_gpu_s * share,
        max_gpus=gpus,
    )
