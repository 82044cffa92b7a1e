"""The jobs that share a run: how each stands, its best model, and its part of the bill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from seerd.core.events import JobFacts
from seerd.core.ledger import LOST
from seerd.core.metrics import chosen
from seerd.core.state import Incumbent, State, Trial
from seerd.core.verdicts import OverCause
from seerd.planner.model import PlannedJob
from seerd.planner.ranking import rank
from seerd.planner.trial_ids import job_of
from seerd.telling.explanation.sentences import REASONS
from seerd.telling.words import ending
from seerd.units import count


@dataclass(frozen=True, slots=True)
class Bill:
    """What a run was billed, divided among its jobs, in GPU-seconds."""

    of_jobs: dict[str, float]  # job -> what is billed for the GPUs that its trials had
    shared: float  # what is billed for GPUs that no trial had: boot, idle, shortest billed times

    @property
    def whole(self) -> float:
        """All of it."""
        return sum(self.of_jobs.values()) + self.shared

    def part(self, gpu_s: float) -> float:
        """Return which part of the whole so many GPU-seconds are, 0 to 1."""
        return gpu_s / self.whole if self.whole else 0.0


@dataclass(frozen=True, slots=True)
class ShownJob:
    """One of the jobs that share a run."""

    facts: JobFacts  # what is decided about it
    planned: PlannedJob  # what its policy plans with
    over: OverCause | None  # why it gets nothing any more, None while it does
    detail: str  # `over` in words, if there is more to say; else empty
    stands: str  # how it stands, in words
    best: Incumbent | None  # its model that is handed back, or would be now; None: it has none
    trials: int
    gpus: int  # how many GPUs its trials hold
    gpu_s: float  # GPU-seconds that are billed for it


def jobs_of(state: State, now_s: float | None = None) -> list[ShownJob]:
    """Return the jobs that share the run, in order; none if it is one job.

    now_s  until when GPU time counts; None: the run's last event
    """
    if not state.facts.jobs:
        return []
    bill = bill_of(state, state.now if now_s is None else now_s)
    trials = Counter(map(job_of, state.trials))
    return [
        ShownJob(
            facts=facts,
            planned=planned,
            over=state.jobs[facts.id].over,
            detail=state.jobs[facts.id].detail,
            stands=_stands(state, facts.id),
            best=chosen(state, facts.id),
            trials=trials[facts.id],
            gpus=state.jobs[facts.id].gpus,
            gpu_s=bill.of_jobs[facts.id],
        )
        for facts, planned in zip(state.facts.jobs, state.facts.problem.jobs, strict=True)
    ]


def _stands(state: State, name: str) -> str:
    job = state.jobs[name]
    if job.over is not None:
        return f"over{REASONS['job-over'][job.over].partition('[')[0]}"
    if how := ending(state):
        return f"to the run's end: {how}"
    if job.gpus:
        return f"has {count(job.gpus, 'GPU')}"
    own = [trial for trial in state.trials.values() if job_of(trial.id) == name]
    ended = bool(own) and all(trial.status != "live" for trial in own)
    return "all its trials have ended" if ended else "waits for GPUs"


def jobs_table(state: State, jobs: Sequence[ShownJob]) -> list[list[str]]:
    """Return the cells of a table of jobs, its heads first; `>`: a column of numbers."""
    owned, bill = any(job.facts.owner for job in jobs), bill_of(state, state.now)
    paid = bool(state.ledger.usd_per_gpu_h)

    def billed(gpu_s: float) -> list[str]:
        usd = [f"{state.ledger.usd(gpu_s):.2f}"] if paid else []
        return [f"{gpu_s / 60:.2f}", *usd, f"{bill.part(gpu_s):.0%}"]

    heads = ["job", *["owner"] * owned, ">weight", "policy", ">trials", ">GPU-min"]
    heads += [*[">USD"] * paid, ">part", "metric", ">best", "trial", "how it stands"]
    rows = [
        [
            *(job.facts.id, *[job.facts.owner or "-"] * owned),
            *(f"{job.planned.weight:g}", job.planned.problem.params.name, str(job.trials)),
            *(*billed(job.gpu_s), job.facts.metric),
            *((f"{job.best.metric:.6g}", job.best.trial) if job.best else ("-", "-")),
            job.stands,
        ]
        for job in jobs
    ]
    if bill.shared:
        shared = ["(shared)", *[""] * (3 + owned), *billed(bill.shared)]
        rows.append([*shared, *[""] * (len(heads) - len(shared))])
    return [heads, *rows]


def bill_of(state: State, now_s: float) -> Bill:
    """Divide what is billed up to `now_s` among the jobs.

    A job has its attempts' charges or, where instances are charged, what its trials held of them.
    """
    book, of_jobs = state.ledger, dict.fromkeys(state.jobs, 0.0)
    if not state.facts.cluster.per_instance:
        lost_gpu_s = 0.0
        for charge in book.charges():
            if charge.what.startswith(f"{LOST} "):
                lost_gpu_s += charge.gpu_s(now_s)
            else:
                of_jobs[job_of(charge.what.partition("/")[0])] += charge.gpu_s(now_s)
        return Bill(of_jobs, lost_gpu_s)
    of_jobs = {name: job.spent_gpu_s(now_s) for name, job in state.jobs.items()}
    billed, held = book.spent_gpu_s(now_s), sum(of_jobs.values())
    if held <= billed:
        return Bill(of_jobs, billed - held)
    # What an instance was billed may have been corrected to less than trials seemed to hold it.
    return Bill({name: gpu_s * billed / held for name, gpu_s in of_jobs.items()}, 0.0)


def one_metric(state: State) -> str | None:
    """Return the metric that all trials of the run are compared by; None: jobs have several."""
    names = {goal.metric for goal in state.facts.goals.values()}
    return state.facts.metric if len(names) == 1 else None


def ranked_by_job(state: State) -> list[list[Trial]]:
    """Return each job's trials, the best first, in the order of the jobs."""
    own: dict[str, list[Trial]] = {name: [] for name in state.jobs}
    for trial in state.trials.values():
        own[job_of(trial.id)].append(trial)
    goals = state.facts.goals
    return [
        [state.trials[view.id] for view in rank(its, goals[name].mode)] for name, its in own.items()
    ]
