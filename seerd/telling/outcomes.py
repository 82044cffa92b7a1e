"""What became of each trial, and of the jobs that share a run: words, models, parts of the bill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from seerd.core.events import JobFacts
from seerd.core.failures import has_failed
from seerd.core.last_words import obstacle_of
from seerd.core.ledger import LOST
from seerd.core.lifecycle import TrialPhase
from seerd.core.metrics import chosen, violations_of
from seerd.core.state import Incumbent, State, Trial
from seerd.planner.gpu_parts import gpus_text
from seerd.planner.model import Compared, PlannedJob, Report
from seerd.planner.ranking import rank
from seerd.planner.trial_ids import job_of
from seerd.telling.complaints import IN_THE_WAY
from seerd.telling.explanation.sentences import REASONS, ending
from seerd.telling.harmless import config_text
from seerd.units import ordinal

AT_REPORT = " at report "
WHYS = {
    "end": "to the end",
    "job": "to its job's end",
    "complete": "fully trained",
    "script": "its script ended",
    "policy": "by the policy",
    "gpus": "no free GPUs",
}
"""Why a trial was kept or stopped -> the same in words."""


class TrialOutcome(NamedTuple):
    """What became of a trial, in the words of docs/json.md; its phase while the run goes on."""

    word: str
    # one of `WHYS`; or "compared", "eliminated" or "blocked": the trial says more; empty: the word
    # says all
    why: str = ""


def outcomes(state: State) -> dict[str, TrialOutcome]:
    """Return what became of every trial, or its phase while the run goes on, by the trial's id."""
    models = [chosen(state, job) for job in state.jobs] if state.finished else []
    best = {model.trial for model in models if model is not None}
    return {
        trial.id: TrialOutcome("best") if trial.id in best else _outcome(state, trial)
        for trial in state.trials.values()
    }


def _outcome(state: State, trial: Trial) -> TrialOutcome:
    # A report that violates a constraint may be finite, though its metric does not count.
    counts = any(report.metric is not None for report in trial.history)
    any_finite = counts or state.facts.goal_of(trial.id).constraints
    match fate(state, trial):
        case "failed" | "crashed":
            return TrialOutcome("failed")
        case "finished" | "eliminated" | "survived" if trial.history and not any_finite:
            return TrialOutcome("not-finite")
        case "finished":
            return TrialOutcome("kept", "script")
        case "no-report" if trial.fault == "blocked":
            return TrialOutcome("no-report", "blocked")
        case "eliminated" if not trial.history:
            return TrialOutcome("no-report")
        case "eliminated":
            return TrialOutcome("stopped", "eliminated" if trial.judged is None else "compared")
        case "survived":
            return _survived(state, trial)
        case word:
            return TrialOutcome(word)


def _survived(state: State, trial: Trial) -> TrialOutcome:
    if trial.stopped in ("closing", "hard"):
        return TrialOutcome("kept", "end")
    if trial.judged is not None:
        if trial.judged.final:
            return TrialOutcome("kept", "complete")
        return TrialOutcome("stopped", "compared")
    if state.jobs[job_of(trial.id)].over is not None:
        return TrialOutcome("kept", "job")
    return TrialOutcome("stopped", "policy" if trial.stopped in ("paused", "reached") else "gpus")


def fate(state: State, trial: Trial) -> str:
    """Return a trial's phase or, if it still waited when the run ended, how it ended: not-started,
    crashed, no-report, not-finite or survived.
    """
    if trial.phase is not TrialPhase.WAITING or not state.finished:
        return str(trial.phase)
    if not trial.attempt:
        return "not-started"
    job = state.jobs[job_of(trial.id)]
    alike = "alike" in (state.end.why, job.over)
    failed = has_failed(trial) and (not trial.history or alike)
    if trial.fault in ("crashed", "small") or failed:
        return "crashed"
    if not trial.history:
        return "not-started" if without_gpu(state) else "no-report"
    return "survived" if job.finite else "not-finite"


def without_gpu(state: State) -> bool:
    """Return whether no trial has ever begun, since others held the GPUs."""
    return state.signs.tried_s is None and "waits" in state.signs.complaints


def outcome_text(state: State, trial: Trial, outcome: TrialOutcome) -> str:
    """Write what became of a trial as a cell of a table, with the constraints that are not met."""
    broken = " and ".join(violations_of(state, trial))
    became = in_words(outcome.word, why_text(trial, outcome).partition(AT_REPORT)[0])
    return f"{became}, not {broken}" if broken else became


def in_words(word: str, why: str) -> str:
    """Write the word of an outcome with its reason, as `kept to the end`."""
    link = "" if not why else " " if why.startswith(("to ", "by ")) else ": "
    return f"{word.replace('-', ' ')}{link}{why}"


def why_text(trial: Trial, outcome: TrialOutcome) -> str:
    """Write why a trial was kept or stopped or has not reported; empty if the word says all."""
    if outcome.why == "blocked":
        return IN_THE_WAY.get(obstacle_of(trial.tail) or "", "")
    if outcome.why == "compared" and trial.judged is not None:
        return standing_text(trial.judged) or f"set aside{AT_REPORT}{trial.judged.reports}"
    return trial.why if outcome.why == "eliminated" else WHYS.get(outcome.why, "")


def standing_text(judged: Compared) -> str:
    """Write how a trial stood when it was compared; empty if there was no other trial."""
    if not judged.place or judged.of < 2:
        return ""
    return f"{ordinal(judged.place)} of {judged.of}{AT_REPORT}{judged.reports}"


def report_text(state: State, trial: Trial, report: Report) -> str:
    """Write a report's trial, metric and number, and the configuration that has made it."""
    value = "-" if report.metric is None else f"{report.metric:.6g}"
    metric = f"{state.facts.goal_of(trial.id).metric} {value}"
    return f"{trial.id}, {metric} at report {report.reports}, {config_text(trial.config)}"


@dataclass(frozen=True, slots=True)
class Bill:
    """What a run was billed, divided among its jobs, in GPU-seconds."""

    of_jobs: dict[str, float]  # job -> what is billed for the GPUs that its trials had
    shared: float  # what is billed for GPUs that no trial had: boot, idle, shortest billed times


@dataclass(frozen=True, slots=True)
class ShownJob:
    """One of the jobs that share a run."""

    facts: JobFacts  # what is decided about it
    planned: PlannedJob  # what its policy plans with
    stands: str  # how it stands, in words
    best: Incumbent | None  # its model that is handed back, or would be now; None: it has none
    trials: int
    gpu_s: float  # GPU-seconds that are billed for it


def jobs_of(state: State, now_s: float | None = None) -> list[ShownJob]:
    """Return the jobs that share the run, in order; none if it is one job.

    now_s  until when GPU time counts; None: the run's last event
    """
    if not state.facts.jobs:
        return []
    bill = bill_of(state, state.now if now_s is None else now_s)
    jobs = []
    for facts, planned in zip(state.facts.jobs, state.facts.problem.jobs, strict=True):
        job, own = state.jobs[facts.id], state.trials_of(facts.id)
        if job.over is not None:
            stands = f"over{REASONS['job-over'][job.over].partition('[')[0]}"
        elif how := ending(state):
            stands = f"to the run's end: {how}"
        elif job.gpus:
            stands = f"has {gpus_text(job.gpus)}"
        elif own and all(trial.status != "live" for trial in own):
            stands = "all its trials have ended"
        else:
            stands = "waits for GPUs"
        best, gpu_s = chosen(state, facts.id), bill.of_jobs[facts.id]
        jobs.append(ShownJob(facts, planned, stands, best, len(own), gpu_s))
    return jobs


def jobs_table(state: State, jobs: Sequence[ShownJob]) -> list[list[str]]:
    """Return the cells of a table of jobs, its heads first; `>`: a column of numbers."""
    owned, bill = any(job.facts.owner for job in jobs), bill_of(state, state.now)
    paid, whole = bool(state.ledger.usd_per_gpu_h), sum(bill.of_jobs.values()) + bill.shared

    def billed(gpu_s: float) -> list[str]:
        usd = [f"{state.ledger.part_usd(gpu_s, state.now):.2f}"] if paid else []
        return [f"{gpu_s / 60:.2f}", *usd, f"{gpu_s / (whole or 1.0):.0%}"]

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


def parameter_names(state: State) -> list[str]:
    """Return the hyperparameters in the order of the spaces; recorded curves may have more."""
    problems = (state.facts.problem, *(job.problem for job in state.facts.problem.jobs))
    names = [one.name for problem in problems for one in problem.space.parameters]
    names += [name for trial in state.trials.values() for name in trial.config]
    return list(dict.fromkeys(names))


def ranked_by_job(state: State) -> list[list[Trial]]:
    """Return each job's trials, the best first, in the order of the jobs."""
    goals, trials = state.facts.goals, state.trials
    ranks = (rank(state.trials_of(name), goals[name].mode) for name in state.jobs)
    return [[trials[view.id] for view in ranked] for ranked in ranks]
