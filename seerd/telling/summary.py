"""A run in a few lines, for when the live view is gone."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from seerd.backends.base import Leftovers
from seerd.core.incumbent import best_report, best_saved, better_report, chosen, metric_name
from seerd.core.lifecycle import RunPhase
from seerd.core.metrics import last_value, metrics_of, names_of
from seerd.core.provisioning import refused
from seerd.core.state import Incumbent, State, Trial
from seerd.planner.trial_ids import job_of
from seerd.telling.configs import config_text
from seerd.telling.diagnosis import complaints, diagnose, failure_groups, hint_of
from seerd.telling.harmless import harmless, printable
from seerd.telling.jobs import ShownJob, jobs_of, jobs_table, one_metric, ranked_by_job
from seerd.telling.outcomes import outcome_text, outcomes, without_gpu
from seerd.telling.tables import plain_table, whole
from seerd.telling.words import ending, used
from seerd.units import count

MOST_ROWS = 20
MOST_NOTES = 5
MOST_OTHERS = 3
"""How many metrics have a column beside the run's own."""
STATE_WIDTHS = (22, 30)
"""The narrowest and the widest that the column of outcomes becomes: most are not wrapped."""
CONFIG_WIDTH = 12
"""The narrowest that the column of configurations becomes, in a terminal of 80 columns."""
MOST_FAILURES = 3
MOST_LINES = 12


def summary(state: State, *, alive: bool = False, most: int | None = MOST_ROWS) -> RenderableType:
    """Draw what `seerd show` prints, and `seerd run` at its end.

    alive  whether a process runs the run now
    most   how many trials are listed, the best first; None: all
    """
    jobs = jobs_of(state)
    shared: list[RenderableType] = [_jobs(state, jobs), Text()] if jobs else []
    parts: list[RenderableType] = [
        _head(state),
        Text(),
        *shared,
        _trials(state, most),
        *_untried(state),
        *_failures(state),
        *_notes(state),
        Text(),
        *(_models(state, jobs) if jobs else _best(state)),
        _next(state, alive=alive),
    ]
    return Group(*parts)


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


def _head(state: State) -> Text:
    how = ending(state) or "not over"
    return Text(f"{state.facts.run}: {how}; {', '.join(used(state).values())}")


def _jobs(state: State, jobs: Sequence[ShownJob]) -> Table:
    heads, *rows = jobs_table(state, jobs)
    table = plain_table(*heads)
    for row in rows:
        table.add_row(*row)
    return whole(table)


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
            str(trial.had or "-"),
            outcome_text(state, trial, became[trial.id]),
            config_text(trial.config),
        )
    left = sum(len(its[room:]) for its in by_job) if room is not None else 0
    if left:
        empty = ("" for _ in heads)
        table.add_row("", *empty, "", "", "", f"and {left} more  (seerd show --all)")
    return table


def _untried(state: State) -> list[Text]:
    problem, begun = state.facts.problem, sum(trial.attempt > 0 for trial in state.trials.values())
    if problem.jobs or problem.params.name not in ("grid", "e-grid"):
        return []
    size = sum(1 for _ in problem.space.grid())
    of = count(size, "configuration")
    return [Text(f"tried {begun} of the {of} of the grid")] if begun < size else []


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _failures(state: State) -> list[Text]:
    """Write each way in which trials have failed once."""
    groups = failure_groups(state)
    lines = [line for group in groups[:MOST_FAILURES] for line in failure_lines(state, group)]
    if len(groups) > MOST_FAILURES:
        lines.append(f"and {sum(map(len, groups[MOST_FAILURES:]))} more failed")
    return [Text(), *map(Text, lines)] if lines else []


def _notes(state: State) -> list[Text]:
    slow = [trial.note for trial in state.trials.values() if trial.note]
    notes = [*complaints(state), *slow]
    return [Text(), *(Text(f"note: {note}") for note in notes[:MOST_NOTES])] if notes else []


def failure_lines(state: State, alike: Sequence[Trial]) -> list[str]:
    """Write why trials failed that failed alike: the last lines of the first, and what to do."""
    trial = alike[0]
    more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
    last = [f"    {harmless(line)}" for line in trial.tail[-MOST_LINES:]]
    what_to_do = hint_of(state, trial)
    return [
        f"{trial.id}{more} failed: {trial.why}",
        *last,
        f"    all of it: seerd logs {state.facts.run} {trial.id}",
        *([f"    hint: {printable(what_to_do)}"] if what_to_do else []),
    ]


def _best(state: State) -> list[Text]:
    best = chosen(state)
    if best is None:
        return [*_best_configuration(state, ""), Text(printable(diagnose(state).text))]
    return [Text(f"best: {_model(state, best)}"), *_place(state, best)]


def _best_configuration(state: State, job: str) -> list[Text]:
    found = best_report(state, job)
    if found is None:
        return []
    trial, report = found
    name, whose = state.facts.goals[job].metric, f" of {job}" if job else ""
    reported = f"{trial.id}, {name} {_value(report.metric)} at report {report.reports}"
    return [Text(f"best configuration{whose}: {reported}, {config_text(trial.config)}")]


def _models(state: State, jobs: Sequence[ShownJob]) -> list[Text]:
    lines: list[Text] = []
    if not any(job.best for job in jobs):
        for job in jobs:
            lines += _best_configuration(state, job.facts.id)
        return [*lines, Text(printable(diagnose(state).text))]
    for job in jobs:
        if job.best is None:
            lines.append(Text(f"best of {job.facts.id}: no model"))
            lines += _best_configuration(state, job.facts.id)
        else:
            lines.append(Text(f"best of {job.facts.id}: {_model(state, job.best)}"))
            lines += _place(state, job.best)
    return lines


def _model(state: State, best: Incumbent) -> str:
    trial, goal = state.trials[best.trial], state.facts.goal_of(best.trial)
    metric = f"{metric_name(state, best)} {best.metric:.6g}"
    wanted = "" if goal.target is None else f" (target {goal.target:.6g})"
    metrics = metrics_of(state, trial, best.checkpoint.reports).items()
    beside = "".join(f", {name} {_value(one)}" for name, one in metrics if name != goal.metric)
    return f"{best.trial}, {metric}{wanted}{beside}, {config_text(trial.config)}"


def _place(state: State, best: Incumbent) -> list[Text]:
    """Write where a model is, and what was better and not kept."""
    published = state.result.of_jobs.get(job_of(best.trial))
    if published is None:
        return []
    lines = [Text(f"      {published.path}")]
    if (better := better_report(state, best)) is not None:
        lines.append(
            Text(
                f"      ({better[0]} had reported {better[1]:.6g}, "
                "which is in no checkpoint that was kept)"
            )
        )
    return lines


def _next(state: State, *, alive: bool) -> Text:
    run = state.facts.run
    if state.phase is not RunPhase.OVER and alive:
        return Text(f"it goes on: seerd watch {run}; end it with: seerd stop {run}")
    time_left = state.now < state.facts.problem.limits.deadline_s
    if state.phase is not RunPhase.OVER or (state.end.status == "interrupted" and time_left):
        return Text(f"go on with: seerd resume {run}")
    if refused(state) is not None:
        return Text("what could be wrong: seerd doctor SPEC")
    if without_gpu(state):
        return Text("see who has the GPUs: seerd machines")
    if state.result.published is None:
        return Text(f"look at: seerd logs {run}")
    if len(state.result.of_jobs) > 1:
        return Text(f"take a job's model with: seerd best {run} --job JOB --to DIR")
    return Text(f"take the model with: seerd best {run} --to DIR")
