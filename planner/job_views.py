"""One job's part of a run: what its own policy sees, and what it answers, in the run's names.

The one rule: a job's policy knows nothing of other jobs. It names trials as if the run were its
own; here these names are told apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from seerd.planner.memory import Json, Memory
from seerd.planner.model import Plan, PlannedJob, Report, TrialStatus, TrialView, View
from seerd.planner.space import Config
from seerd.planner.trial_ids import in_job, job_of, own_id

BETWEEN = ":"
"""What separates a job's id from a key of its policy's memory."""


@dataclass(frozen=True, slots=True)
class JobTrial:
    """A trial as its job's policy sees it."""

    id: str  # the id that this policy has given it
    trial: TrialView  # the trial in the run

    @property
    def status(self) -> TrialStatus:
        """Whether it may run on."""
        return self.trial.status

    @property
    def config(self) -> Config:
        """Its configuration."""
        return self.trial.config

    @property
    def reports(self) -> int:
        """How many times it has reported."""
        return self.trial.reports

    @property
    def metric(self) -> float | None:
        """The metric of its last report."""
        return self.trial.metric

    @property
    def history(self) -> Sequence[Report]:
        """Its reports, oldest first."""
        return self.trial.history


def by_job(view: View, jobs: Sequence[PlannedJob]) -> dict[str, View]:
    """Split what is seen of the run by job; each job sees its own trials alone."""
    trials: dict[str, dict[str, TrialView]] = {job.id: {} for job in jobs}
    for name, trial in view.trials.items():
        own = own_id(name)
        trials[job_of(name)][own] = JobTrial(own, trial)
    return {job.id: View(view.now_s, job.mode, trials[job.id]) for job in jobs}


def in_the_run(job: str, plan: Plan) -> Plan:
    """Name the trials of a job's plan as they are called in the run."""
    return replace(
        plan,
        allocations=tuple(a._replace(trial=in_job(job, a.trial)) for a in plan.allocations),
        new=tuple(replace(one, id=in_job(job, one.id)) for one in plan.new),
        eliminated=tuple(in_job(job, one) for one in plan.eliminated),
        compared=tuple(replace(one, trial=in_job(job, one.trial)) for one in plan.compared),
        note=f"{job}: {plan.note}" if plan.note else "",
    )


def memory_of(job: str, memory: Memory) -> Memory:
    """Return what a job's policy remembers, out of what all of them do."""
    head = f"{job}{BETWEEN}"
    return Memory({k[len(head) :]: v for k, v in memory.values.items() if k.startswith(head)})


def changes_of(job: str, after: Memory) -> Mapping[str, Json]:
    """Return how the run's memory changes where a job's policy remembers something else."""
    return {f"{job}{BETWEEN}{key}": value for key, value in after.changes.items()}
