"""What a policy sees and what it answers: frozen values, units in their names.

The one rule: everything a policy may know comes in through `View`, everything it wants goes out
through `Plan`. Times are seconds since the run began. GPU time is in GPU-seconds. A trial is here
only what a policy needs to know of it; where its GPUs are is the core's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import ge, gt, le, lt
from typing import Literal, NamedTuple, Protocol

from seerd.planner.scaling import LINEAR, Scaling
from seerd.planner.space import Config, Space

Mode = Literal["max", "min"]
SIGNS = {"<": lt, "<=": le, ">": gt, ">=": ge}
BillingKind = Literal["held", "rented"]
Sharing = Literal["fair", "greedy", "round-robin", "hybrid", "worst-first"]
"""How several jobs share a run, see `seerd.planner.jobs`."""

TrialStatus = Literal["live", "finished", "eliminated", "failed"]
"""live: may run on; finished: its script ended by itself, and its model counts; eliminated and
failed: out for good.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the person allowed.

    deadline_s    seconds from the command's start until the best model is in the store
    budget_gpu_s  GPU-seconds
    max_gpus      most GPUs at one moment (quota, the person's limit, or the machine's GPUs); None:
                  any number
    cost_usd      USD; None: any amount
    """

    deadline_s: float
    budget_gpu_s: float
    max_gpus: int | None = None
    cost_usd: float | None = None

    def gpu_s(self, usd_per_gpu_h: float) -> float:
        """Return the smaller of the two budgets, GPU time and money, in GPU-seconds at this
        price.
        """
        if self.cost_usd is None or usd_per_gpu_h == 0:
            return self.budget_gpu_s
        return min(self.budget_gpu_s, self.cost_usd / usd_per_gpu_h * 3600)


@dataclass(frozen=True, slots=True)
class MetricConstraint:
    """What must hold of a metric for a model to be the best.

    metric  name of the metric
    sign    how it must compare with `limit`
    limit   the number that it is compared with
    """

    metric: str
    sign: Literal["<", "<=", ">", ">="]
    limit: float

    def __str__(self) -> str:
        """Write it as a spec has it."""
        return f"{self.metric} {self.sign} {self.limit:.12g}"

    def holds(self, metrics: Mapping[str, float | None]) -> bool:
        """Return whether it holds; it does not for a metric that is missing or not finite."""
        value = metrics.get(self.metric)
        return value is not None and SIGNS[self.sign](value, self.limit)


class Report(NamedTuple):
    """One report of a trial, as the run's state keeps it and as policies see it.

    at_s     when it was made, seconds since the run began
    reports  how many reports the trial had made, this one included
    metric   None if it was NaN or infinite
    """

    at_s: float
    reports: int
    metric: float | None


@dataclass(frozen=True, slots=True)
class EarlierTrial:
    """A trial of an earlier run.

    config   its configuration
    history  some of its reports, oldest first, at least one; times are those of its own run
    """

    config: Config
    history: tuple[Report, ...]


@dataclass(frozen=True, slots=True)
class PolicyParams:
    """The `[policy]` table of the spec.

    name          which policy
    eta           of the trials that are compared 1 in eta goes on
    nu            SEER: from one bracket to the next a trial gets nu times the GPUs
    p_min, p_max  GPUs per trial; `p_max` None: any number
    t_min_s       shortest first round of clock-based policies, seconds
    seed          configurations are drawn from it
    trials        how many configurations; None: as many as the policy's paper says, or as the
                  limits allow
    min_reports   r of progress-based policies: reports until the first decision
    max_reports   R of progress-based policies: reports of a whole training
    start         the person's own guesses, configurations or parts of some, that are tried first
    earlier       what earlier runs of the same space tell
    stage_gpus    GPUs of each stage, as `seerd.planner.rubberband` chose them; None: the same
                  number all the time
    stage_s       how many seconds each of those stages should take
    """

    name: str = "seer"
    eta: float = 4
    nu: int = 2
    p_min: int = 1
    p_max: int | None = None
    t_min_s: float = 60.0
    seed: int = 0
    trials: int | None = None
    min_reports: int | None = None
    max_reports: int | None = None
    start: tuple[Config, ...] = ()
    earlier: tuple[EarlierTrial, ...] = ()
    stage_gpus: tuple[int, ...] | None = None
    stage_s: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What machines can be had, and how they are billed.

    billing            "held": GPU time counts while a trial holds the GPU (local, hosts); "rented":
                       whole instances count from running until terminated
    gpus_per_instance  GPUs of one instance
    max_instances      None: as many as the limits allow
    minimum_s          the shortest time that is billed for a rented instance (AWS EC2 on-demand
                       pricing: 60 seconds)
    usd_per_gpu_h      USD for one GPU for an hour; 0: no price
    terminate_s        most seconds from asking to give an instance back until it costs nothing more
    instant            giving back takes no time at all: the papers' setting, in simulation only
    boot_s             seconds from the request until a rented instance can be expected to take
                       orders
    orphan_s           seconds for which a rented instance may run until its first agent, where
                       that is longer than the rules say; 0: it is not
    hints_move         whether trials leave an instance that the cloud will only probably take back
    """

    billing: BillingKind
    gpus_per_instance: int
    max_instances: int | None = None
    minimum_s: float = 60.0
    usd_per_gpu_h: float = 0.0
    terminate_s: float = 0.5
    instant: bool = False
    boot_s: float = 0.0
    orphan_s: float = 0.0
    hints_move: bool = True

    @property
    def per_instance(self) -> bool:
        """Whether whole instances are billed, and not GPUs while trials hold them."""
        return self.billing == "rented"


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything that a policy is made from.

    limits             what the person allowed
    space              the search space
    params             the `[policy]` table of the spec
    scaling            throughput by number of GPUs
    gpus_per_instance  GPUs of one instance
    within             what is planned with where the cloud's costs have been set aside, its
                       deadline counted from `start_s`; None: `limits`
    whole              GPUs are paid in whole instances, whether they are used or not. What the plan
                       has left at the end of its last stage (forecasts are careful, a cloud is
                       late, trials and rounds are whole numbers) is used too: the stage goes on
                       until the deadline or the budget
    start_s            when the first stage begins, seconds since the run began: until then
                       instances boot
    adjusted           what was set aside, and why, one sentence each
    added              configurations that the person has added while the run went on, each with the
                       number of its draw, from 0: that one is tried then, whoever draws
    jobs               the jobs that share the run, in the order in which they came; empty: the run
                       is one job
    sharing            how they share it
    begins_anew        a trial that is stopped begins anew
    saves              whether anything of a trial is saved
    extended           how often the limits were extended while the run went on. What is then
                       planned with is what was left at that time, and `start_s` is that time
    """

    limits: Limits
    space: Space
    params: PolicyParams
    scaling: Scaling = LINEAR
    gpus_per_instance: int = 8
    within: Limits | None = None
    whole: bool = False
    start_s: float = 0.0
    adjusted: tuple[str, ...] = ()
    extended: int = 0
    added: tuple[tuple[int, Config], ...] = ()
    jobs: tuple[PlannedJob, ...] = ()
    sharing: Sharing = "fair"
    begins_anew: bool = False
    saves: bool = True

    @property
    def planned(self) -> Limits:
        """The limits that a policy plans with."""
        return self.limits if self.within is None else self.within


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """One of the jobs that share a run.

    id       its name in the run; ids of its trials begin with it, see `seerd.planner.trial_ids`
    problem  what its own policy plans; its limits are its own where they are narrower than the
             run's
    mode     whether more or less of its metric is better
    metric   the metric's name: results of jobs that have the same one are compared as they are
    weight   its share beside the others', above 0
    over     it gets nothing any more: it was stopped, or has all that it was to have
    """

    id: str
    problem: Problem
    mode: Mode
    metric: str = ""
    weight: float = 1.0
    over: bool = False


class Tried(Protocol):
    """What a trial of any run tells."""

    @property
    def config(self) -> Config:
        """Its configuration."""

    @property
    def history(self) -> Sequence[Report]:
        """Its reports, oldest first; their numbers need not be without gaps."""


class TrialView(Tried, Protocol):
    """One trial as a policy sees it."""

    @property
    def id(self) -> str:
        """Its id; ids sort in the order in which trials were asked for."""

    @property
    def status(self) -> TrialStatus:
        """Whether it may run on."""

    @property
    def reports(self) -> int:
        """How many times it has reported so far, over all its attempts."""

    @property
    def metric(self) -> float | None:
        """The metric of its last report; None if that was NaN or infinite, or if there is no report
        yet.
        """


@dataclass(frozen=True, slots=True)
class NewTrial:
    """A configuration to be tried. It can be used as a `TrialView` of a trial that has not reported
    yet.

    id       the id that the policy gives it
    config   the configuration
    status   as of a trial that may run
    reports  0: there are none yet
    metric   None: there is none yet
    history  empty: there is none yet
    """

    id: str
    config: Config
    status: TrialStatus = "live"
    reports: int = 0
    metric: float | None = None
    history: tuple[Report, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """The run at one moment.

    now_s   seconds since the run began
    mode    whether more or less of the metric is better; where jobs share the run each has its own
    trials  every trial that the policy has asked for, by id
    spent   job -> GPU-seconds for which its trials have held GPUs; empty where the run is one job
    """

    now_s: float
    mode: Mode
    trials: Mapping[str, TrialView]
    spent: Mapping[str, float] = field(default_factory=dict)

    def with_new(self, new: Sequence[NewTrial]) -> View:
        """Add trials that are only now asked for.

        If the first plan comes late, the stage of such trials may be over already.
        """
        return (
            replace(self, trials={**self.trials, **{trial.id: trial for trial in new}})
            if new
            else self
        )


class Allocation(NamedTuple):
    """A trial that should be running now.

    trial    its id
    gpus     how many GPUs it should have
    bracket  which one it is in, from 0
    until    ask again when it has made this many reports; None: do not
    """

    trial: str
    gpus: int
    bracket: int = 0
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """How one trial stood when trials were compared.

    For people: the decisions that follow from it are in the plan.

    trial    its id
    metric   what it was judged by, after `reports` reports; None: not finite, or there was none
    reports  how many reports it was judged after
    place    1 is the best
    of       how many trials were compared
    best     how many of them may go on
    bracket  trials of different brackets are not compared
    final    its training is complete: there is no further rung
    """

    trial: str
    metric: float | None
    reports: int
    place: int
    of: int
    best: int
    bracket: int = 0
    final: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What is wanted from now until `ask_at_s`.

    allocations  which trials should run, most valuable first; any other trial should hold no GPU
    new          trials that are asked for
    eliminated   trials that are out for good from now on
    stage        index of the current stage, from 0
    ask_at_s     when to ask again at the latest, seconds since the run began; None: only if
                 something happens
    hold_gpus    instances for this many GPUs will be needed again soon: rented ones that are there
                 are not given back
    ask_on_end   ask again when a trial has finished or failed; if False, such a trial is only no
                 longer wanted
    done         nothing more is wanted: choose the best model and end
    compared     which trials were compared with which since the plan before: `allocations` and
                 `eliminated` follow from it
    note         what people should know of how the policy came to this; empty if nothing
    """

    allocations: tuple[Allocation, ...] = ()
    new: tuple[NewTrial, ...] = ()
    eliminated: tuple[str, ...] = ()
    stage: int = 0
    ask_at_s: float | None = None
    hold_gpus: int = 0
    ask_on_end: bool = True
    done: bool = False
    compared: tuple[Compared, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bracket:
    """Configurations that start with equally many GPUs.

    gpus_per_trial  GPUs of each in the first round
    trials          how many configurations
    budget_gpu_s    GPU-seconds of all rounds
    """

    gpus_per_trial: int
    trials: int
    budget_gpu_s: float


@dataclass(frozen=True, slots=True)
class Group:
    """Trials that run side by side.

    gpus_per_trial  GPUs of each
    trials          how many trials
    """

    gpus_per_trial: int
    trials: int


@dataclass(frozen=True, slots=True)
class Stage:
    """One round between two moments of the clock.

    start_s  seconds since the run began
    end_s    seconds since the run began
    groups   the trials that run in it
    """

    start_s: float
    end_s: float
    groups: tuple[Group, ...]

    @property
    def gpus(self) -> int:
        """GPUs held during the stage."""
        return sum(group.gpus_per_trial * group.trials for group in self.groups)

    @property
    def gpu_s(self) -> float:
        """GPU-seconds it takes."""
        return self.gpus * (self.end_s - self.start_s)


@dataclass(frozen=True, slots=True)
class Outline:
    """A run as planned before anything has started.

    brackets       trials that are compared with each other alone
    stages         stages in order
    first_round_s  length of the first round in seconds
    r_star         R* of SEER's Algorithm 2; None for policies that have none
    adjusted       what had to be changed to respect the limits, and why, one sentence each
    sizes          numbers of GPUs that a trial may get beside those of the stages
    """

    brackets: tuple[Bracket, ...]
    stages: tuple[Stage, ...]
    first_round_s: float
    r_star: float | None = None
    adjusted: tuple[str, ...] = field(default=())
    sizes: tuple[int, ...] = ()

    @property
    def allocations(self) -> list[int]:
        """Every number of GPUs that a trial may get, ascending."""
        return sorted(
            {
                *self.sizes,
                *(group.gpus_per_trial for stage in self.stages for group in stage.groups),
            }
        )

    @property
    def gpu_s(self) -> float:
        """GPU-seconds of all stages, if everything goes ideally."""
        return sum(stage.gpu_s for stage in self.stages)

    @property
    def peak_gpus(self) -> int:
        """Most GPUs at one moment."""
        return max((stage.gpus for stage in self.stages), default=0)

    @property
    def trials(self) -> int:
        """Configurations tried."""
        return sum(bracket.trials for bracket in self.brackets)


@dataclass(frozen=True, slots=True)
class Impossible:
    """The limits do not fit even one trial of one stage.

    reason            why, for people
    min_deadline_s    seconds that would fit, with the budget as it is or larger
    min_budget_gpu_s  GPU-seconds that would fit, with the deadline as it is or longer
    job               which of the jobs that share the run they do not fit; empty: all of it
    """

    reason: str
    min_deadline_s: float
    min_budget_gpu_s: float
    job: str = ""


class NeedsPackageError(Exception):
    """A policy needs a package that is not installed.

    needs  the policy and the package, in one sentence
    extra  the extra of seerd's that has the package
    """

    def __init__(self, needs: str, extra: str) -> None:
        super().__init__(needs)
        self.extra = extra
