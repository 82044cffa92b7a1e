"""What a policy is, sees and answers: seconds since the run began, GPU-seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from operator import ge, gt, le, lt
from typing import Literal, NamedTuple, Protocol

from seerd.planner.gpu_parts import gpus_of, gpus_text
from seerd.planner.memory import Memory
from seerd.planner.profile import LINEAR, Scaling
from seerd.planner.space import Config, Space

Mode = Literal["max", "min"]
SIGNS = {"<": lt, "<=": le, ">": gt, ">=": ge}
BillingKind = Literal["held", "rented"]
# how several jobs share a run, see `seerd.planner.jobs`
Sharing = Literal["fair", "greedy", "round-robin", "hybrid", "worst-first"]

# finished: its script ended by itself, and its model counts; eliminated and failed: out for good
TrialStatus = Literal["live", "finished", "eliminated", "failed"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user allowed."""

    deadline_s: float  # seconds from the command's start until the best model is in the store
    budget_gpu_s: float
    max_gpus: int | None = None  # most slots at one moment, see `gpu_parts`; None: any number
    cost_usd: float | None = None  # USD; None: any amount

    def gpu_s(self, usd_per_gpu_h: float) -> float:
        """Return the smaller of GPU time and money, in GPU-seconds at this price."""
        if self.cost_usd is None or usd_per_gpu_h == 0:
            return self.budget_gpu_s
        return min(self.budget_gpu_s, self.cost_usd / usd_per_gpu_h * 3600)


@dataclass(frozen=True, slots=True)
class MetricConstraint:
    """What must hold of a metric for a model to be the best."""

    metric: str  # name of the metric
    sign: Literal["<", "<=", ">", ">="]  # how it must compare with `limit`
    limit: float  # the number that it is compared with

    def __str__(self) -> str:
        return f"{self.metric} {self.sign} {self.limit:.12g}"

    def holds(self, metrics: Mapping[str, float | None]) -> bool:
        """Return whether it holds; not for a metric that is missing or not finite."""
        value = metrics.get(self.metric)
        return value is not None and SIGNS[self.sign](value, self.limit)


class Report(NamedTuple):
    """One report of a trial."""

    at_s: float  # when it was made, seconds since the run began
    reports: int  # how many reports the trial had made, this one included
    metric: float | None  # None if it was NaN or infinite


@dataclass(frozen=True, slots=True)
class EarlierTrial:
    """A trial of an earlier run."""

    config: Config
    history: tuple[Report, ...]  # some of its reports, oldest first, in its own run's time


@dataclass(frozen=True, slots=True)
class PolicyParams:
    """The `[policy]` table of the spec."""

    name: str = "seer"  # which policy
    eta: float = 4  # of the trials that are compared 1 in eta goes on
    nu: int = 2  # SEER: from one bracket to the next a trial gets nu times the GPUs
    p_min: int = 1  # fewest slots per trial, see `gpu_parts`
    p_max: int | None = None  # most slots per trial; None: any number
    t_min_s: float = 60.0  # shortest first round of clock-based policies, seconds
    seed: int = 0  # configurations are drawn from it
    trials: int | None = None  # how many configurations; None: as the paper or the limits say
    min_reports: int | None = None  # r of progress-based policies: reports until the first decision
    max_reports: int | None = None  # R of progress-based policies: reports of a whole training
    # the user's own guesses, configurations or parts of some, that are tried first
    start: tuple[Config, ...] = ()
    earlier: tuple[EarlierTrial, ...] = ()  # what earlier runs of the same space tell
    # GPUs of each stage, from `seerd.planner.rubberband`; None: the same number always
    stage_gpus: tuple[int, ...] | None = None
    stage_s: tuple[float, ...] | None = None  # how many seconds each of those stages should take

    def doubled(self, most: int) -> tuple[int, ...]:
        """List `p_min`, twice as many GPUs, and so on, up to `p_max` and `most`."""
        most = most if self.p_max is None else min(most, self.p_max)
        return tuple(takewhile(lambda p: p <= most, (self.p_min << i for i in range(32))))


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What machines can be had, and how they are billed."""

    # "held": GPU time counts while a trial holds the GPU (local, hosts); "rented": whole instances
    # count from running until terminated
    billing: BillingKind
    gpus_per_instance: int  # slots, see `gpu_parts`
    max_instances: int | None = None  # None: as many as the limits allow
    minimum_s: float = 60.0  # least time that is billed for an instance (EC2 on-demand pricing)
    usd_per_gpu_h: float = 0.0  # USD for one GPU for an hour; 0: no price
    terminate_s: float = 0.5  # most seconds from giving an instance back until it costs nothing
    instant: bool = False  # giving back takes no time: the papers' setting, in simulation only
    boot_s: float = 0.0  # seconds from the request until a rented instance should take orders
    # seconds within which a rented instance must get its first agent; the rules' time holds if that
    # is longer
    orphan_s: float = 0.0
    hints_move: bool = True  # trials leave an instance that the cloud will probably take back
    parts: int = 1  # how many trials may share a GPU: it has so many slots
    # seconds for which only the first instance is asked for, until it is ready; 0: all at once
    scout_s: float = 0.0
    # USD that one GPU may come to cost for an hour, where prices change; 0: `usd_per_gpu_h`
    most_usd_per_gpu_h: float = 0.0
    price_lag_s: float = 0.0  # seconds after which a change of a price is known at the latest
    # seconds for which a run without any instance goes on asking; None: while a first round fits
    wait_s: float | None = None
    # slots of instances of other types that may come instead, if these differ
    other_sizes: tuple[int, ...] = ()
    # seconds for which instances that a run has at its end are kept for the next one, and paid by
    # this one; 0: they are given back
    keep_s: float = 0.0

    @property
    def sizes(self) -> tuple[int, ...]:
        """The slots that an instance may have, most first."""
        return tuple(sorted({self.gpus_per_instance, *self.other_sizes}, reverse=True))

    def fitting(self, slots: int) -> int:
        """Return the most slots, at most so many, that a trial can have whichever types come: on
        one instance, or on whole ones.
        """
        if not self.other_sizes:
            return slots
        can = (n for n in range(slots, 1, -1) if all(n <= s or n % s == 0 for s in self.sizes))
        return next(can, slots)

    @property
    def per_instance(self) -> bool:
        """Whether whole instances are billed, and not GPUs while trials hold them."""
        return self.billing == "rented"

    def gpus(self, slots: int) -> float:
        """Return how many GPUs so many slots are: exact, and an integer where they are whole."""
        return gpus_of(slots, self.parts)

    def most_gpus(self, limit: int | None) -> int | None:
        """Return the most GPUs at one moment, within a limit; None: any number."""
        if self.max_instances is None:
            return limit
        all_gpus = self.max_instances * self.gpus_per_instance
        return all_gpus if limit is None else min(limit, all_gpus)


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything that a policy is made from."""

    limits: Limits  # what the user allowed
    space: Space
    params: PolicyParams  # the `[policy]` table of the spec
    scaling: Scaling = LINEAR  # throughput by number of GPUs
    gpus_per_instance: int = 8
    # what is planned with where the cloud's costs have been set aside, its deadline counted from
    # `start_s`; None: `limits`
    within: Limits | None = None
    # GPUs are paid in whole instances, whether they are used or not. What the plan has left at the
    # end of its last stage is used too, until the deadline or the budget
    whole: bool = False
    start_s: float = 0.0  # when the first stage begins: until then instances boot
    adjusted: tuple[str, ...] = ()  # what was set aside, and why, one sentence each
    # how often the limits were extended; what was left then is planned with, from `start_s` on
    extended: int = 0
    # configurations that the user has added, each with the number (from 0) of its draw
    added: tuple[tuple[int, Config], ...] = ()
    jobs: tuple[PlannedJob, ...] = ()  # those that share the run, in order; empty: it is one job
    sharing: Sharing = "fair"  # how they share it
    begins_anew: bool = False  # a trial that is stopped begins anew
    saves: bool = True  # whether anything of a trial is saved
    parts: int = 1  # how many slots a GPU has, see `gpu_parts`

    def gpus(self, slots: int) -> float:
        """Return how many GPUs so many slots are, see `gpus_of`."""
        return gpus_of(slots, self.parts)

    def gpus_text(self, slots: int) -> str:
        """Write how many GPUs so many slots are: 1/4 GPU, 2 GPUs."""
        return gpus_text(self.gpus(slots))

    def gpu_min(self, slot_s: float) -> float:
        """Return the GPU-minutes of so many seconds of slots, as policies count."""
        return slot_s / self.parts / 60

    @property
    def planned(self) -> Limits:
        """The limits that a policy plans with."""
        return self.limits if self.within is None else self.within


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """One of the jobs that share a run."""

    id: str  # its name in the run; ids of its trials begin with it, see `seerd.planner.trial_ids`
    # what its own policy plans; its limits are its own where they are narrower than the run's
    problem: Problem
    mode: Mode  # whether more or less of its metric is better
    metric: str = ""  # the metric's name: results of jobs that share it are compared as they are
    weight: float = 1.0  # its share beside the others', above 0
    over: bool = False  # it gets nothing any more: it was stopped, or has all that it was to have


class Tried(Protocol):
    """A trial of any run."""

    @property
    def config(self) -> Config:
        """Its configuration."""

    @property
    def history(self) -> Sequence[Report]:
        """Its reports, oldest first; their numbers need not be without gaps."""


class TrialView(Tried, Protocol):
    """A trial as a policy sees it."""

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
        """The metric of its last report; None if not finite, or if there is no report yet."""

    @property
    def failing(self) -> bool:
        """Whether its attempts end by its own fault, and it has not reported since the last one."""


@dataclass(frozen=True, slots=True)
class NewTrial:
    """A configuration to be tried; also the `TrialView` of a trial that has not reported yet."""

    id: str  # the id that the policy gives it
    config: Config
    status: TrialStatus = "live"
    reports: int = 0
    metric: float | None = None
    history: Sequence[Report] = ()
    failing: bool = False


def renamed(trial: TrialView, name: str) -> NewTrial:
    """Return a trial as it is now under the id that its policy has given it."""
    return NewTrial(
        name, trial.config, trial.status, trial.reports, trial.metric, trial.history, trial.failing
    )


@dataclass(frozen=True, slots=True)
class View:
    """The run at one moment."""

    now_s: float  # seconds since the run began
    mode: Mode  # whether more or less of the metric is better; each job has its own
    trials: Mapping[str, TrialView]  # every trial that the policy has asked for, by id
    spent: Mapping[str, float] = field(default_factory=dict)  # job -> GPU-seconds; empty: one job

    def with_new(self, new: Sequence[NewTrial]) -> View:
        """Add trials that are only now asked for; the stage of a late first plan may be over."""
        added = {trial.id: trial for trial in new}
        return replace(self, trials={**self.trials, **added}) if new else self


class Allocation(NamedTuple):
    """A trial that should be running now."""

    trial: str
    gpus: int  # how many GPUs it should have
    bracket: int = 0  # which one it is in, from 0
    until: int | None = None  # ask again when it has made this many reports; None: do not


class Compared(NamedTuple):
    """How one trial stood when trials were compared: for people, as the plan has what follows."""

    trial: str
    metric: float | None  # after `reports` reports; None: not finite, or there was none
    reports: int  # how many reports it was judged after
    place: int  # 1 is the best
    of: int  # how many trials were compared
    best: int  # how many of them may go on
    bracket: int = 0  # trials of different brackets are not compared
    final: bool = False  # its training is complete: there is no further rung


@dataclass(frozen=True, slots=True)
class Plan:
    """What is wanted from now until `ask_at_s`."""

    # which trials should run, most valuable first; any other trial should hold no GPU
    allocations: tuple[Allocation, ...] = ()
    new: tuple[NewTrial, ...] = ()  # trials that are asked for
    eliminated: tuple[str, ...] = ()  # trials that are out for good from now on
    stage: int = 0  # index of the current stage, from 0
    ask_at_s: float | None = None  # when to ask again at the latest; None: if something happens
    hold_gpus: int = 0  # rented instances for so many GPUs are kept, as needed again soon
    ask_on_end: bool = True  # ask again when a trial has finished or failed
    done: bool = False  # nothing more is wanted: choose the best model and end
    compared: tuple[Compared, ...] = ()  # how trials were compared since the last plan
    note: str = ""  # what people should know of how the policy came to this; empty if nothing


@dataclass(frozen=True, slots=True)
class Bracket:
    """Configurations that start with equally many GPUs."""

    gpus_per_trial: int  # GPUs of each in the first round
    trials: int  # how many configurations
    budget_gpu_s: float  # GPU-seconds of all rounds


@dataclass(frozen=True, slots=True)
class Group:
    """Trials that run side by side."""

    gpus_per_trial: int
    trials: int


@dataclass(frozen=True, slots=True)
class Stage:
    """One round between two moments of the clock."""

    start_s: float  # seconds since the run began
    end_s: float  # seconds since the run began
    groups: tuple[Group, ...]  # the trials that run in it

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
    """A run as planned before anything has started."""

    brackets: tuple[Bracket, ...]  # trials that are compared with each other alone
    stages: tuple[Stage, ...]  # stages in order
    first_round_s: float  # length of the first round in seconds
    r_star: float | None = None  # R* of SEER's Algorithm 2; None for policies that have none
    adjusted: tuple[str, ...] = ()  # what the limits have changed, and why, one sentence each
    sizes: tuple[int, ...] = ()  # numbers of GPUs that a trial may get beside those of the stages

    @property
    def allocations(self) -> list[int]:
        """Every number of GPUs that a trial may get, ascending."""
        of_stages = {group.gpus_per_trial for stage in self.stages for group in stage.groups}
        return sorted({*self.sizes, *of_stages})

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
    """The limits do not fit even one trial of one stage."""

    reason: str  # why, for people
    min_deadline_s: float  # seconds that would fit, with the budget as it is or larger
    min_budget_gpu_s: float  # GPU-seconds that would fit, with the deadline as it is or longer
    job: str = ""  # which of the jobs that share the run they do not fit; empty: all of it


@dataclass(frozen=True, slots=True)
class Policy:
    """Two functions. What a policy remembers is a value that it gets back with the next question;
    nothing else of it lasts, so any process, and any later version, can ask that question.
    """

    outline: Callable[[Problem], Outline | Impossible]  # the whole run as it would go ideally
    # returns what is wanted now, and what to remember. Asking again with the new memory, before
    # anything has changed, gives the same allocations and nothing new. Raises `ValueError` if the
    # limits fit nothing
    plan: Callable[[Problem, Memory, View], tuple[Plan, Memory]]


class NeedsPackageError(Exception):
    """A policy needs a package; `extra`: the extra of seerd's that has it."""

    def __init__(self, needs: str, extra: str) -> None:
        super().__init__(needs)
        self.extra = extra
