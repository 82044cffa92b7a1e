"""One job's part of a run: what its own policy sees, remembers, answers and plans with, as if the
run were its own; and what is remembered of how jobs share a run (`ShareTable`). The same terms make
the same problem object, so that caches find it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import Struct, convert, to_builtins

from seerd.planner.dividing import Freeze
from seerd.planner.memory import Count, Json, Memory, Values
from seerd.planner.model import (
    Impossible,
    Limits,
    Plan,
    PlannedJob,
    PolicyParams,
    Problem,
    TrialView,
    View,
    renamed,
)
from seerd.planner.policies import named
from seerd.planner.trial_ids import in_job, job_of, own_id

ALIKE = 0.1  # terms stay as they are if what they allow differs by less than this part
VERSION = 1


class JobTerms(Struct, frozen=True, array_like=True):
    """What one job plans with."""

    gpus: Count  # the most GPUs at one moment
    start_s: float  # since when, seconds since the run began
    deadline_s: float  # for how long from then on, seconds
    budget_gpu_s: float  # GPU-seconds from then on
    renewals: Count = 0  # how often its terms have changed

    def alike(self, other: JobTerms) -> bool:
        """Return whether planning anew with the other terms would change next to nothing."""
        if self.gpus != other.gpus or not self.gpus:
            return self.gpus == other.gpus
        passed_s = other.start_s - self.start_s
        left_s = max(0.0, self.deadline_s - passed_s)
        left_gpu_s = self.budget_gpu_s * left_s / self.deadline_s if left_s else 0.0
        pairs = (left_s, other.deadline_s), (left_gpu_s, other.budget_gpu_s)
        return all(abs(a - b) <= ALIKE * max(a, b) for a, b in pairs)


@dataclass(slots=True)
class ShareTable:
    """How jobs share a run."""

    gpus: Count = 0  # how many GPUs were divided
    extended: Count = 0  # how often the run's limits had been extended when `spent_gpu_s` was noted
    # GPU-seconds that all jobs had taken when the present limits were planned with
    spent_gpu_s: float = 0.0
    divided_s: float = 0.0  # when shares were divided last, seconds since the run began
    # job -> GPU-seconds that it had taken when jobs or weights were others
    base: dict[str, float] = field(default_factory=dict)
    terms: dict[str, JobTerms] = field(default_factory=dict)  # what each job plans with
    # job -> how many GPUs it can use, where that is less than its share
    caps: dict[str, Count] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)  # jobs whose policies want nothing more
    # what the shares follow from, apart from what jobs can use
    signature: list[str] = field(default_factory=list)
    freeze: Freeze = field(default_factory=Freeze)  # what tells whether greedy is frozen
    last: str | None = None  # the job that was given a GPU last
    # job -> why its policy could do nothing with what it was to have; it is not kept
    refused: dict[str, Impossible] = field(default_factory=dict)

    def left(self, problem: Problem, view: View) -> Limits | None:
        """Return what is left of what is planned with, since the last extension, or None."""
        if self.extended != problem.extended:
            self.extended, self.spent_gpu_s = problem.extended, sum(view.spent.values())
        planned = problem.planned
        passed_s = max(0.0, view.now_s - problem.start_s)
        deadline_s = planned.deadline_s - passed_s
        budget_gpu_s = planned.budget_gpu_s - (sum(view.spent.values()) - self.spent_gpu_s)
        if deadline_s <= 0 or budget_gpu_s <= 0:
            return None
        return Limits(deadline_s, budget_gpu_s, planned.max_gpus)

    def values(self) -> dict[str, Json]:
        """Return it as a policy's memory has it."""
        best = self.freeze.best if self.freeze.best > float("-inf") else None
        return {
            "version": VERSION,
            **{key: to_builtins(getattr(self, name)) for name, key in KEYS.items()},
            "among": sorted(self.freeze.candidates),
            "best": best,
            "unchanged": self.freeze.unchanged,
            "last": self.last,
        }


# the keys of the memory, by the table's fields
KEYS = {
    "gpus": "gpus",
    "extended": "extended",
    "spent_gpu_s": "spent",
    "divided_s": "divided",
    **{name: name for name in ("base", "terms", "caps", "done", "signature")},
}


def read_table(values: Values) -> ShareTable:
    """Read what `ShareTable.values` has returned. Raises `ValueError` for anything else."""
    fields = {name: values.get(key) for name, key in KEYS.items()}
    kept = convert({**fields, "last": values.get("last")}, ShareTable)
    best = convert(values.get("best"), float | None)
    among = frozenset(convert(values.get("among"), list[str]))
    unchanged = convert(values.get("unchanged"), Count)
    kept.freeze = Freeze(among, float("-inf") if best is None else best, unchanged)
    return kept


BETWEEN = ":"  # separates a job's id from a key of its policy's memory
WHOLE = 1 - 1e-9  # allows for rounding where a round takes all the time that there is
KEPT = 64  # how many problems of jobs are kept
TOO_SHORT = "its own limits are over before anything can train"

_problems: OrderedDict[tuple[int, JobTerms], tuple[PlannedJob, Problem]] = OrderedDict()


def by_job(view: View, jobs: Sequence[PlannedJob]) -> dict[str, View]:
    """Split the view by job; each job sees its own trials, under the ids of its policy."""
    trials: dict[str, dict[str, TrialView]] = {job.id: {} for job in jobs}
    for name, trial in view.trials.items():
        own = own_id(name)
        trials[job_of(name)][own] = renamed(trial, own)
    return {job.id: View(view.now_s, job.mode, trials[job.id]) for job in jobs}


def in_the_run(job: str, plan: Plan) -> Plan:
    """Name the trials of a job's plan as they are called in the run."""
    return replace(
        plan,
        allocations=tuple(a._replace(trial=in_job(job, a.trial)) for a in plan.allocations),
        new=tuple(replace(trial, id=in_job(job, trial.id)) for trial in plan.new),
        eliminated=tuple(in_job(job, name) for name in plan.eliminated),
        compared=tuple(c._replace(trial=in_job(job, c.trial)) for c in plan.compared),
        note=f"{job}: {plan.note}" if plan.note else "",
    )


def memory_of(job: str, memory: Memory) -> Memory:
    """Return a job's part of the run's memory."""
    head = f"{job}{BETWEEN}"
    return Memory({k[len(head) :]: v for k, v in memory.values.items() if k.startswith(head)})


def changes_of(job: str, after: Memory) -> Mapping[str, Json]:
    """Return how the run's memory changes with a job's."""
    return {f"{job}{BETWEEN}{key}": value for key, value in after.changes.items()}


def own_left(problem: Problem, job: PlannedJob, view: View, left: Limits) -> Limits:
    """Return what is left for a job, of the run's limits and of its own."""
    own, since_s = job.problem.limits, max(view.now_s, problem.start_s)
    set_aside_s = problem.limits.deadline_s - since_s - left.deadline_s
    return Limits(
        max(0.0, min(left.deadline_s, own.deadline_s - since_s - set_aside_s)),
        max(0.0, min(left.budget_gpu_s, own.budget_gpu_s - view.spent.get(job.id, 0.0))),
    )


def problem_of(job: PlannedJob, terms: JobTerms, problem: Problem) -> Problem | None:
    """Return what a job's policy plans with; None if it has no GPUs."""
    if not terms.gpus:
        return None
    key = id(job), terms
    if key not in _problems:
        within = Limits(terms.deadline_s, terms.budget_gpu_s, terms.gpus)
        own = replace(
            job.problem,
            params=shortened(job.problem.params, within),
            limits=replace(within, deadline_s=terms.start_s + terms.deadline_s),
            within=within,
            start_s=terms.start_s,
            extended=terms.renewals,
            whole=problem.whole,
            gpus_per_instance=problem.gpus_per_instance,
        )
        _problems[key] = job, own
        if len(_problems) > KEPT:
            _problems.popitem(last=False)
    return _problems[key][1]


def shortened(params: PolicyParams, left: Limits) -> PolicyParams:
    """Shorten the shortest round to what is left: a new job may get less than one."""
    most_s = max(0.0, min(left.deadline_s, left.budget_gpu_s / params.p_min)) * WHOLE
    return replace(params, t_min_s=min(params.t_min_s, most_s))


def never_begins(job: PlannedJob, left: Limits, run: Problem) -> Impossible | None:
    """Return why a job could do nothing even if all that is left of a run were its own, or None;
    `left`: of its own limits too, from the first stage.
    """
    if left.deadline_s <= 0 or left.budget_gpu_s <= 0:
        least_s = job.problem.params.t_min_s
        return Impossible(TOO_SHORT, run.start_s + least_s, least_s)
    own = replace(job.problem, limits=left, within=left, start_s=run.start_s, whole=run.whole)
    outline = named(own.params.name).outline(own)
    return outline if isinstance(outline, Impossible) else None
