"""A run in a few lines, for when the live view is gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from seerd.backends.base import Leftovers
from seerd.core.lifecycle import RunPhase
from seerd.core.metrics import (
    best_report,
    best_saved,
    better_report,
    chosen,
    last_value,
    metric_name,
    metrics_of,
    names_of,
)
from seerd.core.provisioning import refused
from seerd.core.results import result_of
from seerd.core.state import State, Trial
from seerd.planner.gpu_parts import gpus_number
from seerd.planner.trial_ids import job_of
from seerd.telling.complaints import awaited_notes, idle_gpus, lacking_curves
from seerd.telling.diagnosis import (
    complaints,
    diagnose,
    failure_groups,
    hint_of,
    unreached,
    unsaved,
)
from seerd.telling.explanation.sentences import ending, used
from seerd.telling.front import front_of, modes_of, size_text
from seerd.telling.harmless import config_text, harmless, printable
from seerd.telling.outcomes import (
    ShownJob,
    jobs_of,
    jobs_table,
    one_metric,
    outcome_text,
    outcomes,
    ranked_by_job,
    report_text,
    without_gpu,
)
from seerd.telling.tables import plain_table, table_of
from seerd.units import count

MOST_ROWS = 20
MOST_NOTES = 5
MOST_OTHERS = 3  # how many metrics have a column beside the run's own
STATE_WIDTHS = (22, 30)  # of the column of outcomes, most of which are not wrapped
CONFIG_WIDTH = 12  # at least, in a terminal of 80 columns
MOST_FAILURES = 3
MOST_FRONT = 4  # how many trials of a front are listed
MOST_LINES = 12


def summary(state: State, *, alive: bool = False, most: int | None = MOST_ROWS) -> RenderableType:
    """Draw what `seerd show` prints, and `seerd run` at its end.

    alive  whether a process runs the run now
    most   how many trials are listed, the best first; None: all
    """
    jobs, limits = jobs_of(state), ", ".join(used(state).values())
    parts: list[RenderableType] = [
        Text(f"{state.facts.run}: {ending(state) or 'not over'}; {limits}"),
        Text(),
    ]
    if jobs:
        heads, *rows = jobs_table(state, jobs)
        parts += [table_of(heads, rows), Text()]
    parts.append(_trials(state, most))
    problem, begun = state.facts.problem, sum(trial.attempt > 0 for trial in state.trials.values())
    if not problem.jobs and problem.params.name in ("grid", "e-grid"):
        size = sum(1 for _ in problem.space.grid())
        tried = f"tried {begun} of the {count(size, 'configuration')} of the grid"
        parts += [Text(tried)] if begun < size else []
    groups = failure_groups(state)
    failures = [line for group in groups[:MOST_FAILURES] for line in failure_lines(state, group)]
    if len(groups) > MOST_FAILURES:
        failures.append(f"and {sum(map(len, groups[MOST_FAILURES:]))} more failed")
    parts += [Text(), *map(Text, failures)] if failures else []
    slow = (trial.note for trial in state.trials.values() if trial.note)
    first = [*awaited_notes(state), *complaints(state)]
    if notes := [*first, *lacking_curves(state), *idle_gpus(state), *slow][:MOST_NOTES]:
        parts += [Text(), *(Text(f"note: {note}") for note in notes)]
    parts.append(Text())
    parts += map(Text, _models(state, jobs))
    parts += (Text(line) for job in state.jobs for line in _front(state, job))
    return Group(*parts, Text(_next(state, alive=alive)))


def leftover_lines(leftovers: Leftovers | None) -> list[str]:
    """Write what is left of the run that costs; no lines if nothing was rented."""
    if leftovers is None:
        return []
    if not leftovers.costing:
        return [nothing_left(leftovers.ending)]
    return [
        f"{len(leftovers.costing)} left that may cost money:",
        *(f"  {line}" for line in leftovers.costing),
        "end them with: seerd sweep",
    ]


def nothing_left(ending: Sequence[str]) -> str:
    """Write that nothing is left that costs; `ending` is still shutting down."""
    still = f" ({len(ending)} still shutting down, not billed any more)" if ending else ""
    return f"0 instances, 0 volumes left{still}"


def _trials(state: State, most: int | None) -> Table:
    """Draw each job's trials: the result, then by their last reports, then those never started."""
    became, single = outcomes(state), one_metric(state)
    by_job = [
        sorted(its, key=lambda trial: (became[trial.id].word != "best", not trial.attempt))
        for its in ranked_by_job(state)
    ]
    own = {goal.metric for goal in state.facts.goals.values()}
    others = [name for name in names_of(state) if name not in own][:MOST_OTHERS]
    heads = [f">{single}"] if single is not None else ["metric", ">value"]
    heads = [*heads, *(f">{name}" for name in others), ">best saved"]
    table = plain_table("trial", *heads, ">reports", ">GPUs")
    table.add_column("state", min_width=STATE_WIDTHS[0], max_width=STATE_WIDTHS[1])
    table.add_column("config", overflow="fold", min_width=CONFIG_WIDTH)
    room = None if most is None else max(1, most // max(1, len(by_job)))
    for trial in (trial for its in by_job for trial in its[:room]):
        name = state.facts.goal_of(trial.id).metric
        table.add_row(
            trial.id,
            *([] if single is not None else [name]),
            *(_value(last_value(state, trial, one)) for one in (name, *others)),
            _value(best_saved(state, trial)),
            str(trial.reports),
            gpus_number(state.facts.gpus(trial.had)) if trial.had else "-",
            outcome_text(state, trial, became[trial.id]),
            config_text(trial.config),
        )
    left = sum(len(its[room:]) for its in by_job) if room is not None else 0
    if left:
        empty = ("" for _ in heads)
        table.add_row("", *empty, "", "", "", f"and {left} more  (seerd show --all)")
    return table


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def failure_lines(state: State, alike: Sequence[Trial]) -> list[str]:
    """Write why trials failed that failed alike: the last lines of the first, and what to do."""
    trial = alike[0]
    more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
    lines = [f"{trial.id}{more} failed: {trial.why}"]
    lines += [f"    {harmless(line)}" for line in trial.tail[-MOST_LINES:]]
    lines.append(f"    all of it: seerd logs {state.facts.run} {trial.id}")
    what_to_do = hint_of(state, trial)
    return lines + ([f"    hint: {printable(what_to_do)}"] if what_to_do else [])


def _models(state: State, jobs: Sequence[ShownJob]) -> Iterator[str]:
    """Write the model of the run, or of each job; if there is none at all, why."""
    models = {job.facts.id: job.best for job in jobs} or {"": chosen(state)}
    any_model = any(models.values())
    for job, best in models.items():
        whose = f" of {job}" if job else ""
        if best is not None:
            trial, goal = state.trials[best.trial], state.facts.goal_of(best.trial)
            target = "" if goal.target is None else f" (target {goal.target:.6g})"
            metrics = metrics_of(state, trial, best.checkpoint.reports).items()
            others = [f"{name} {_value(value)}" for name, value in metrics if name != goal.metric]
            metric = f"{metric_name(state, best)} {best.metric:.6g}{target}"
            model = ", ".join([best.trial, metric, *others, config_text(trial.config)])
            yield f"best{whose}: {model}"
            if (published := state.result.of_jobs.get(job_of(best.trial))) is not None:
                yield f"      {published.path}"
                if (better := better_report(state, best)) is not None:
                    reported = f"{better[0]} had reported {better[1]:.6g}"
                    yield f"      ({reported}, of which there is no checkpoint: its script saved"
                    yield "      nothing at that report, or was killed before it was written)"
            continue
        if any_model:
            yield f"best{whose}: no model"
        if (found := best_report(state, job)) is not None:
            yield f"best configuration{whose}: {report_text(state, *found)}"
    if not any_model:
        yield printable(unsaved(state) if _configured(state) else diagnose(state).text)


def _front(state: State, job: str) -> Iterator[str]:
    """Write a job's front, the best by the deciding metric first; nothing without objectives."""
    front, modes = front_of(state, job), modes_of(state, job)
    if modes:
        yield printable(f"front{f' of {job}' * bool(job)}: {size_text(state, job, front)}")
    for point in front[:MOST_FRONT]:
        pairs = zip(modes, point.values, strict=True)
        metrics = ", ".join(f"{name} {value:.6g}" for name, value in pairs)
        made = f"{metrics} at report {point.report.reports}, {config_text(point.trial.config)}"
        yield printable(f"       {point.trial.id}, {made}")
    if (left := len(front) - MOST_FRONT) > 0:
        yield f"       and {left} more: seerd show --json"


def _configured(state: State) -> int:
    return sum(result_of(state, job) == "configuration" for job in state.jobs)


def _next(state: State, *, alive: bool) -> str:
    run, over = state.facts.run, state.phase is RunPhase.OVER
    if not over and alive:
        return f"it goes on: seerd watch {run}; end it with: seerd stop {run}"
    time_left = state.now < state.facts.problem.limits.deadline_s
    if not over or (state.end.status == "interrupted" and time_left):
        return f"go on with: seerd resume {run}"
    if refused(state) is not None or unreached(state):
        return "what could be wrong: seerd doctor SPEC"
    if without_gpu(state):
        return "see who has the GPUs: seerd machines"
    if state.result.published is None and (configured := _configured(state)):
        whose = " --job JOB" * (configured > 1)
        return f"take the configuration with: seerd best {run}{whose} --to DIR"
    if state.result.published is None:
        return f"look at: seerd logs {run}"
    if len(state.result.of_jobs) > 1:
        return f"take a job's model with: seerd best {run} --job JOB --to DIR"
    return f"take the model with: seerd best {run} --to DIR"
