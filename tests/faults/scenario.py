"""What one seed means: the run that is asked for, how the script and the instances behave, what
goes wrong, when the daemon is killed.

The one rule: a scenario is a value. It says everything, so that it can be shrunk: the same run with
one fault fewer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from seerd.core.events import JobFacts, RunFacts
from seerd.errors import LimitsError, UsageError
from seerd.planner.clouds import RENTED_TERMINATE_S
from seerd.planner.model import ClusterFacts, Limits, PlannedJob, PolicyParams, Problem
from seerd.planner.profile import CloudProfile, JobProfile, Latency, Profile
from seerd.planner.space import Parameter, Space
from seerd.planning.planned import plan_for
from tests.faults import strains
from tests.faults.policy import BROKEN, DIES, GREEDY, LATE, RAISES, SILENT, TALKS_NONSENSE
from tests.faults.training import Script
from tests.faults.versions import NAMES, Version, some_versions
from tests.faults.weather import Span, Weather
from tests.parts import in_parts, job_in_parts

SLOW_STORE = 0.15
"""So many runs have checkpoints that take up to two minutes to store."""

EXTENDED = 0.25
"""In so many runs the person extends the limits."""
WRONG_CLOCK = 0.1
"""So many coordinators have clocks that are set wrong for a while, and then right again."""

SPREAD = 0.15
"""So many runs have trials that reach over several instances."""

PROFILE = Profile(
    JobProfile(Latency(6.0, 8.0), start=Latency(4.0, 9.0), save=Latency(2.0, 5.0)),
    CloudProfile(Latency(5.0, 15.0), Latency(25.0, 60.0), Latency(1.0, 3.0)),
)
"""What was measured of the script and of the cloud."""

KEPT_S = 150.0
"""For so long instances wait for the next run, where they do."""
SHARED = 0.25
"""In so many runs trials may share GPUs."""

GROUPS = 0.2
"""So many runs are shared by several jobs, but for those of `ONE_JOB`."""
ONE_JOB = frozenset(
    (
        *(3, 4, 7, 8, 16, 20, 23, 28, 37, 38, 39, 51, 62, 65, 102, 106, 133, 136, 173, 198, 623),
        *(720, 965, 1110, 2367, 3898, 3924, 4027, 5421, 5610, 6330, 30008, 43733, 58103, 80241),
        100878,
    )
)
"""Seeds that tests keep, of runs that are one job."""
TARGETS: dict[str, tuple[float | None, ...]] = {
    "max": (None, None, 0.5, 0.8),
    "min": (None, None, 0.2, 0.05),
}
ADDED = 0.4
"""To so many of the runs that jobs share, one more comes."""
JOB_STOPPED, JOB_WEIGHED, JOB_ADDED = "job stopped", "job weighed", "job added"
"""What a person may want of jobs, by the names under which it is counted."""

DEFAULT, DEFAULT_EVERY = "seer+", 10
"""The default policy on machines that are there runs for every tenth seed: none of those that
`test_fault_world` keeps.
"""
POLICIES = (
    "seer",
    "seer",
    "seer",
    "sha",
    "hyperband",
    "asha",
    "hypersched",
    "random",
    "grid",
    "e-hyperband",
    "e-grid",
)

RATES: dict[str, tuple[float, float]] = {
    # The API.
    "throttled": (0.01, 0.3),
    "slow answer": (0.01, 0.2),
    "never sent": (0.01, 0.2),
    "lost answer": (0.01, 0.1),
    "failed after all": (0.01, 0.15),
    "launch fails": (0.05, 0.3),
    "termination fails": (0.05, 0.5),
    "stale answer": (0.1, 0.9),
    "hidden at first": (0.1, 1.0),
    "small pages": (0.1, 1.0),
    "capacity refused": (0.05, 0.5),
    "quota refused": (0.02, 0.2),
    # Instances.
    "dies at birth": (0.02, 0.2),
    "never boots": (0.02, 0.2),
    "wrong clock": (0.02, 0.2),
    "login fails": (0.05, 0.5),
    "unhealthy": (0.02, 0.3),
    "never prepared": (0.01, 0.1),
    "refuses an order": (0.01, 0.1),
    # Connections.
    "breaks before an order": (0.001, 0.02),
    "breaks after an order": (0.001, 0.02),
    "breaks after a fact": (0.001, 0.03),
    "tells twice": (0.01, 0.5),
    "tells from before a restart": (0.1, 1.0),
    # Trials.
    "crashes": (0.001, 0.02),
    "port in use": (0.01, 0.5),
    "hangs": (0.001, 0.01),
    "straggles": (0.01, 0.2),
    "reports NaN": (0.01, 0.3),
    "never reports": (0.01, 0.5),
    "disk full": (0.05, 0.5),
    "waits for its peer for ever": (0.5, 1.0),
    # The store.
    "grants fails": (0.01, 0.2),
    "store fails": (0.01, 0.2),
    "upload fails": (0.05, 0.4),
    "torn upload": (0.05, 0.4),
}
"""What may go wrong at every occasion, and how often: drawn between these two."""

SPANS: dict[str, tuple[float, float]] = {
    "throttling storm": (5.0, 60.0),
    "endpoint unreachable": (5.0, 60.0),
    "credentials expired": (5.0, 60.0),
    "no capacity": (20.0, 400.0),
    "store down": (5.0, 60.0),
    "grants down": (5.0, 60.0),
    "partition": (1.0, 25.0),
    "lasting partition": (60.0, 400.0),
    "agent hangs": (2.0, 20.0),
    "agent hangs long": (40.0, 200.0),
    "agent dies": (0.0, 0.0),
    "sudden loss": (0.0, 0.0),
    "vanishes": (0.0, 0.0),
    "spot notice": (10.0, 120.0),
    "rebalance hint": (0.0, 0.0),
    "reboots": (0.0, 0.0),
    "coordinator disk full": (2.0, 30.0),
    "Ctrl-C": (0.0, 0.0),
}
"""What may go wrong for a while, or at a moment: how long."""


POLICY: dict[str, tuple[float, float]] = {
    LATE: (0.05, 0.5),
    SILENT: (0.01, 0.15),
    RAISES: (0.01, 0.2),
    DIES: (0.01, 0.2),
    TALKS_NONSENSE: (0.05, 0.4),
    GREEDY: (0.01, 0.2),
}
"""What may go wrong at every question to the policy, as `RATES`."""

BROKEN_S = 1.0, 40.0
"""For so long a policy may be of no use at all."""

CLOUD: dict[str, tuple[float, float]] = {
    "slow to shut down": (0.1, 1.0),
    "address late": (0.1, 1.0),
    "unknown refusal": (0.02, 0.3),
    "GPU breaks": (0.1, 1.0),  # where a trial crashes
    "maintenance due": (0.05, 0.5),
}
"""What EC2 does and a smaller cloud would not, as `RATES`."""

EVERYTHING = frozenset(
    {
        *(*RATES, *SPANS, *POLICY, *CLOUD, *NAMES),
        *strains.NAMES,
        *(BROKEN, "daemon killed", JOB_STOPPED, JOB_WEIGHED, JOB_ADDED),
    }
)
"""All that can go wrong, by the names under which it is counted."""


@dataclass(frozen=True, slots=True)
class Kill:
    """The daemon is killed: before its `step`-th step, or at its `write`-th journal write (`after`
    it, or before); it comes back after `down_s`, None: never, of itself.
    """

    step: int | None = None
    write: int | None = None
    after: bool = False
    down_s: float | None = 1.0


@dataclass(frozen=True, slots=True)
class More:
    """The person extends the limits.

    at_s    when, in seconds since the run began
    s       how much later the deadline is, seconds
    budget  the share of the budget that is added
    """

    at_s: float
    s: float
    budget: float


@dataclass(frozen=True, slots=True)
class JobAsk:
    """The person wants something of one of the jobs that share the run.

    at_s    when, in seconds since the run began
    job     the job's id
    weight  the weight that it is to have; None: it is to end
    """

    at_s: float
    job: str
    weight: float | None


@dataclass(frozen=True, slots=True)
class NewJob:
    """The person adds a job to those that share the run.

    at_s   when, in seconds since the run began
    job    what the planner is told of it
    facts  what the core is
    short  whether its own deadline comes soon
    """

    at_s: float
    job: PlannedJob
    facts: JobFacts
    short: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run and its world.

    promised_gpu_s  what it may be billed; None: what its limits say
    promised_to_jobs  what jobs may take of the budgets of their own, as a share
    more            an extension of the limits; None: there is none
    asks            what is wanted of its jobs
    new             a job that comes to share it; None: none does
    versions        of its daemon's processes, one after the other; later ones are of the last
    """

    seed: int
    facts: RunFacts
    script: Script
    weather: Weather
    kills: tuple[Kill, ...]
    boot_s: float = 180.0
    promised_gpu_s: float | None = None
    promised_to_jobs: float = 1.0
    versions: tuple[Version, ...] = ()
    more: More | None = None
    asks: tuple[JobAsk, ...] = ()
    new: NewJob | None = None

    @property
    def parts(self) -> list[str]:
        """What could be left out of it."""
        versions = [
            f"version {place}" for place, one in enumerate(self.versions) if one != Version()
        ]
        return [
            *self.weather.names,
            *(f"kill {place}" for place in range(len(self.kills))),
            *versions,
            *(["extension"] if self.more is not None else []),
            *(f"ask {place}" for place in range(len(self.asks))),
            *(["new job"] if self.new is not None else []),
        ]

    def version(self, incarnation: int) -> Version:
        """Of its daemon's first process, second, and so on."""
        return (
            self.versions[min(incarnation, len(self.versions)) - 1] if self.versions else Version()
        )

    def without(self, part: str) -> Scenario:
        """The same without one of its parts."""
        if part.startswith("kill "):
            gone = int(part.removeprefix("kill "))
            return replace(
                self, kills=tuple(kill for place, kill in enumerate(self.kills) if place != gone)
            )
        if part.startswith("version "):
            here = int(part.removeprefix("version "))
            return replace(
                self, versions=(*self.versions[:here], Version(), *self.versions[here + 1 :])
            )
        if part.startswith("ask "):
            gone = int(part.removeprefix("ask "))
            return replace(
                self, asks=tuple(one for place, one in enumerate(self.asks) if place != gone)
            )
        if part == "extension":
            return replace(self, more=None)
        if part == "new job":
            return replace(self, new=None)
        return replace(self, weather=self.weather.without(part))


def scenario(seed: int, parts: int | None = None) -> Scenario:
    """What this seed means. `parts`: of a GPU; None: as it is drawn, in some runs several."""
    rng = random.Random(f"scenario {seed}")
    while (facts := some_run(rng, seed)) is None:
        pass
    facts = some_group(random.Random(f"group {seed}"), seed) or facts
    if parts is None:
        parts = some_parts(random.Random(f"parts {seed}"))
    script = some_script(rng)
    if random.Random(f"upload {seed}").random() < SLOW_STORE:
        script = replace(script, upload_s=random.Random(f"upload of {seed}").uniform(4.0, 20.0))
    script = replace(script, saves_behind=strains.saves_behind(seed))
    deadline_s = facts.problem.limits.deadline_s
    weather, kills = some_weather(rng, deadline_s), some_kills(rng)
    clock = random.Random(f"clock {seed}")
    if clock.random() < WRONG_CLOCK:
        spans = {"clock set wrong": (some_span(clock, deadline_s, 5.0, 400.0),)}
        weather = replace(weather, spans={**weather.spans, **spans})
    policy = random.Random(f"policy {seed}")
    weather = with_policy(weather, policy, deadline_s)
    weather = with_cloud(weather, random.Random(f"cloud {seed}"))
    weather = strains.strained(weather, seed, deadline_s)
    versions = some_versions(random.Random(f"versions {seed}"))
    more = some_extension(random.Random(f"extension {seed}"), deadline_s)
    asks = some_asks(random.Random(f"asks {seed}"), facts)
    new = with_short_limits(some_new_job(random.Random(f"new job {seed}"), facts), facts, seed)
    if parts > 1:
        facts = in_parts(facts, parts)
        new = new and replace(new, job=job_in_parts(new.job, parts))
    return Scenario(
        seed, facts, script, weather, kills, versions=versions, more=more, asks=asks, new=new
    )


def some_parts(rng: random.Random) -> int:
    """How many trials may share a GPU: several in some runs."""
    return rng.choice([2, 4, 8]) if rng.random() < SHARED else 1


def some_asks(rng: random.Random, facts: RunFacts) -> tuple[JobAsk, ...]:
    """Up to three, at any moments, where jobs share the run."""
    deadline_s = facts.problem.limits.deadline_s
    return tuple(
        JobAsk(
            rng.uniform(0.0, deadline_s),
            rng.choice(facts.jobs).id,
            rng.choice([None, 0.25, 1.0, 3.0]),
        )
        for _ in range(rng.choice([0, 0, 1, 3]) if facts.jobs else 0)
    )


def some_new_job(rng: random.Random, facts: RunFacts) -> NewJob | None:
    """In some runs that jobs share, at any moment."""
    if not facts.jobs or rng.random() >= ADDED:
        return None
    job = _job_of(rng, facts.problem.jobs[0].problem, "e")
    at_s = rng.uniform(0.0, facts.problem.limits.deadline_s)
    return NewJob(at_s, job, _facts_of(rng, job))


def with_short_limits(new: NewJob | None, facts: RunFacts, seed: int) -> NewJob | None:
    """The same with a deadline soon after it comes, in some of them."""
    if new is None:
        return None
    problem = new.job.problem
    limits = strains.short_limits(seed, problem.limits, new.at_s, facts.problem.limits)
    if limits is None:
        return new
    return replace(new, job=replace(new.job, problem=replace(problem, limits=limits)), short=True)


def some_extension(rng: random.Random, deadline_s: float) -> More | None:
    """In some runs, at any moment."""
    if rng.random() >= EXTENDED:
        return None
    later_s = rng.choice([0.0, 60.0, 300.0, 900.0])
    return More(rng.uniform(0.0, deadline_s), later_s, rng.choice([0.0, 0.1, 0.5, 2.0]))


def some_run(rng: random.Random, seed: int) -> RunFacts | None:
    """A run on rented instances as `seerd run` would begin it; None if its limits fit nothing."""
    spread = random.Random(f"beside {seed}").random() < SPREAD
    size = min(rng.choice([1, 2, 4, 4]), 2 if spread else 4)
    deadline_s = rng.choice([420.0, 600.0, 900.0])
    gpus = size * max(rng.choice([1, 2, 3, 4]), 4 if spread else 1)
    limits = Limits(deadline_s, deadline_s * gpus * rng.uniform(0.3, 1.0), gpus)
    price = 3.06
    if rng.random() < 0.3:
        limits = replace(
            limits, cost_usd=limits.budget_gpu_s / 3600 * price * rng.uniform(0.6, 1.2)
        )
    drawn = rng.choice(POLICIES)
    params = PolicyParams(
        name=drawn if (seed + 1) % DEFAULT_EVERY else DEFAULT,
        eta=rng.choice([2, 3, 4]),
        nu=2,
        p_max=(rng.choice([1, 2, 4, None]), None)[spread],
        t_min_s=rng.choice([20.0, 40.0]),
        seed=seed,
        trials=rng.choice([None, 4, 6, 9]),
        min_reports=rng.choice([1, 2]),
        max_reports=rng.choice([9, 16, 27]),
    )
    space = Space((Parameter("lr", low=0.1, high=0.9),))
    cluster = ClusterFacts(
        "rented",
        size,
        usd_per_gpu_h=price,
        terminate_s=RENTED_TERMINATE_S,
        hints_move=seed % 2 == 1,
        keep_s=KEPT_S if strains.keeps(seed) else 0.0,
    )
    try:
        planned = plan_for(Problem(limits, space, params, gpus_per_instance=size), cluster, PROFILE)
    except (LimitsError, UsageError):
        return None
    return RunFacts(
        run=f"run-{seed}",
        name="simulated",
        metric="accuracy",
        mode=rng.choice(["max", "max", "min"]),  # type: ignore[arg-type]
        problem=planned.problem,
        cluster=planned.cluster,
        outline=planned.outline,
    )


def some_group(rng: random.Random, seed: int) -> RunFacts | None:
    """In some runs several jobs share it, with policies, weights, targets and limits of their own;
    None: the run is one job.
    """
    if seed in ONE_JOB or rng.random() >= GROUPS:
        return None
    while (facts := _group_of(rng, seed)) is None:
        pass
    return facts


def _group_of(rng: random.Random, seed: int) -> RunFacts | None:
    one = some_run(rng, seed)
    if one is None:
        return None
    limits, size = one.problem.limits, one.problem.gpus_per_instance
    drawn = [_job_of(rng, one.problem, name) for name in "abcd"[: rng.choice([2, 2, 3, 4])]]
    problem = Problem(
        limits,
        Space(),
        PolicyParams(name="jobs", t_min_s=20.0, seed=seed),
        gpus_per_instance=size,
        jobs=tuple(drawn),
        sharing=rng.choice(["fair", "fair", "greedy", "round-robin", "hybrid", "worst-first"]),
    )
    try:
        planned = plan_for(problem, one.cluster, PROFILE)
    except (LimitsError, UsageError):
        return None
    jobs = tuple(_facts_of(rng, job) for job in drawn)
    return msgspec.structs.replace(
        one,
        mode=jobs[0].mode,
        target=None,
        problem=planned.problem,
        cluster=planned.cluster,
        outline=planned.outline,
        jobs=jobs,
    )


def _facts_of(rng: random.Random, job: PlannedJob) -> JobFacts:
    target = rng.choice(TARGETS[job.mode])
    return JobFacts(id=job.id, metric="accuracy", mode=job.mode, target=target)


def _job_of(rng: random.Random, run: Problem, name: str) -> PlannedJob:
    limits = run.limits
    own = Limits(
        limits.deadline_s * rng.choice([1.0, 1.0, rng.uniform(0.4, 0.9)]),
        limits.budget_gpu_s * rng.choice([1.0, 1.0, rng.uniform(0.1, 0.5)]),
        rng.choice([limits.max_gpus, limits.max_gpus, 1]),
    )
    params = replace(
        run.params,
        name=rng.choice((*POLICIES, DEFAULT)),
        p_max=rng.choice([1, 2, None]),
        trials=rng.choice([None, 4, 6]),
        max_reports=rng.choice([9, 16, 27]),
        seed=rng.randrange(1000),
    )
    problem = replace(
        run, limits=own, params=params, within=None, whole=False, start_s=0.0, adjusted=()
    )
    return PlannedJob(
        name,
        problem,
        rng.choice(["max", "max", "min"]),
        "accuracy",
        rng.choice([1.0, 1.0, 2.0, 0.5]),
    )


def some_script(rng: random.Random) -> Script:
    """A training script."""
    unit_s, wobble = rng.uniform(2.0, 12.0), rng.random()
    noise = random.Random(rng.random())
    jitter = [noise.uniform(0.9, 1.1) for _ in range(64)]

    def unit(trial: str, epoch: int, gpus: int) -> float:
        return unit_s / gpus * jitter[(epoch * 7 + len(trial)) % 64]

    def metric(config: dict[str, Any], epoch: int) -> float:
        return float(config["lr"]) * (1 - 0.7**epoch) + 0.02 * wobble * (jitter[epoch % 64] - 1)

    return Script(
        unit,
        metric,
        start_s=rng.uniform(0.5, 5.0),
        save_s=rng.uniform(0.1, 1.5),
        upload_s=rng.uniform(0.2, 2.0),
        checkpoint_every_s=10.0,
        most_reports=rng.choice([None, None, 20]),
    )


def some_weather(rng: random.Random, deadline_s: float) -> Weather:
    """Between none and a third of all faults, at rates of their own."""
    share = rng.choice([0.0, 0.1, 0.2, 0.35])
    rates = {
        name: least * (most / least) ** rng.random()
        for name, (least, most) in RATES.items()
        if rng.random() < share
    }
    spans = {
        name: tuple(some_span(rng, deadline_s, *lasts) for _ in range(rng.choice([1, 1, 2, 3])))
        for name, lasts in SPANS.items()
        if rng.random() < share
    }
    return Weather(rates, spans)


def with_policy(weather: Weather, rng: random.Random, deadline_s: float) -> Weather:
    """With a policy that is not always well, in half of the runs."""
    rates, spans, share = dict(weather.rates), dict(weather.spans), rng.choice([0.0, 0.0, 0.3, 0.6])
    for name, (least, most) in POLICY.items():
        if rng.random() < share:
            rates[name] = least * (most / least) ** rng.random()
    if rng.random() < share / 3:
        spans[BROKEN] = (some_span(rng, deadline_s, *BROKEN_S),)
    return Weather(rates, spans)


def with_cloud(weather: Weather, rng: random.Random) -> Weather:
    """With an EC2 that is as large as the real one, in half of the runs."""
    rates, share = dict(weather.rates), rng.choice([0.0, 0.0, 0.5, 1.0])
    for name, (least, most) in CLOUD.items():
        if rng.random() < share:
            rates[name] = least * (most / least) ** rng.random()
    return Weather(rates, weather.spans)


def some_span(rng: random.Random, deadline_s: float, least_s: float, most_s: float) -> Span:
    """A while within the run, or just after it."""
    since = rng.uniform(0.0, deadline_s * 1.05)
    return since, since + rng.uniform(least_s, most_s)


def some_kills(rng: random.Random) -> tuple[Kill, ...]:
    """None, one, a few, at steps or at writes."""
    return tuple(some_kill(rng) for _ in range(rng.choice([0, 1, 1, 2, 5])))


def some_kill(rng: random.Random) -> Kill:
    """One. Most daemons come back soon, some late, some never by themselves."""
    down_s = rng.choice([0.1, 1.0, 1.0, 5.0, 30.0, 100.0, None])
    if rng.random() < 0.5:
        return Kill(step=rng.randrange(1, 4000), down_s=down_s)
    return Kill(write=rng.randrange(1, 250), after=rng.random() < 0.5, down_s=down_s)
