"""A run in a few lines, for when the live view is gone: the best model, what was tried, what it
took, what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from seerd.core.incumbent import better_report, incumbent, metric_name
from seerd.core.lifecycle import RunPhase, TrialPhase
from seerd.core.provisioning import refused
from seerd.core.state import State, Trial
from seerd.planner.ranking import rank
from seerd.shell.providers.base import Leftovers
from seerd.units import format_duration, format_gpu_time, format_money
from seerd.view.configs import config_text
from seerd.view.harmless import printable
from seerd.view.plain import ENDINGS
from seerd.view.tables import plain_table

MOST_ROWS = 20
MOST_NOTES = 5


def summary(state: State) -> RenderableType:
    """Draw what `seerd show` prints, and `seerd run` at its end."""
    parts: list[RenderableType] = [
        _head(state),
        Text(),
        _trials(state),
        *_failures(state),
        *_notes(state),
        Text(),
        *_best(state),
        _next(state),
    ]
    return Group(*parts)


def leftover_lines(leftovers: Leftovers | None) -> list[str]:
    """Write that nothing of the run is left that costs, or what is left; no lines if nothing was
    rented.
    """
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
    """Write that nothing is left that costs, with a word on what is still ending."""
    still = f" ({len(ending)} still shutting down, not billed any more)" if ending else ""
    return f"0 instances, 0 volumes left{still}"


def _head(state: State) -> Text:
    limits, book = state.facts.problem.limits, state.ledger
    spent_gpu_s = book.spent_gpu_s(state.now)
    price = f", {format_money(book.usd(spent_gpu_s))}" if book.usd_per_gpu_h else ""
    price += f" of {format_money(limits.cost_usd)}" if price and limits.cost_usd is not None else ""
    how = ENDINGS[state.end.status] if state.end.status else "not over"
    took = f"{format_duration(round(state.now, 1))} of {format_duration(limits.deadline_s)}"
    spent = f"{format_gpu_time(spent_gpu_s)} of {format_gpu_time(limits.budget_gpu_s)}"
    return Text(f"{state.facts.run}: {how}; {took}, {spent}{price}")


def _trials(state: State) -> Table:
    table = plain_table("trial", f">{state.facts.metric}", ">reports", ">GPUs", "state")
    table.add_column("config")
    ordered = rank(state.trials.values(), state.facts.mode)
    for view in ordered[:MOST_ROWS]:
        trial = state.trials[view.id]
        metric = "-" if trial.metric is None else f"{trial.metric:.6g}"
        table.add_row(
            trial.id,
            metric,
            str(trial.reports),
            str(trial.had or "-"),
            _state(state, trial),
            config_text(trial.config),
        )
    if len(ordered) > MOST_ROWS:
        table.add_row("", "", "", "", f"and {len(ordered) - MOST_ROWS} more", "")
    return table


def _state(state: State, trial: Trial) -> str:
    if trial.phase is TrialPhase.WAITING and state.phase is RunPhase.OVER:
        return "survived" if trial.attempt else "not started"
    return str(trial.phase)


def _failures(state: State) -> list[Text]:
    failed = [t for t in state.trials.values() if t.phase is TrialPhase.FAILED]
    lines = [line for trial in failed[:3] for line in failure_lines(state, trial)]
    if len(failed) > 3:
        lines.append(f"and {len(failed) - 3} more failed")
    return [Text(), *map(Text, lines)] if lines else []


def _notes(state: State) -> list[Text]:
    notes = [trial.note for trial in state.trials.values() if trial.note]
    return [Text(), *(Text(f"note: {note}") for note in notes[:MOST_NOTES])] if notes else []


def failure_lines(state: State, trial: Trial) -> list[str]:
    """Write why a trial failed, and the last lines of its output."""
    last = [f"    {printable(line)}" for line in trial.tail[-8:]]
    return [
        f"{trial.id} failed: {trial.why}",
        *last,
        f"    all of it: seerd logs {state.facts.run} {trial.id}",
    ]


def _best(state: State) -> list[Text]:
    chosen = state.result.published.incumbent if state.result.published else incumbent(state)
    if chosen is None:
        return [Text(_no_model(state))]
    config = config_text(state.trials[chosen.trial].config)
    metric, target = f"{metric_name(state, chosen)} {chosen.metric:.6g}", state.facts.target
    wanted = "" if target is None else f" (target {target:.6g})"
    lines = [Text(f"best: {chosen.trial}, {metric}{wanted}, {config}")]
    if state.result.published is not None:
        lines.append(Text(f"      {state.result.published.path}"))
        if (better := better_report(state, chosen.metric)) is not None:
            lines.append(
                Text(
                    f"      ({better[0]} had reported {better[1]:.6g}, "
                    "which is in no checkpoint that was kept)"
                )
            )
    return lines


def _no_model(state: State) -> str:
    if (why := refused(state)) is not None:
        return f"nothing was trained, since no instance could be had: {why}"
    reports = [report for trial in state.trials.values() for report in trial.history]
    if (
        state.phase is RunPhase.OVER
        and reports
        and all(report.metric is None for report in reports)
    ):
        return (
            f"there is no model: no report had a finite {state.facts.metric}; "
            "what trials report is in docs/training-side.md"
        )
    if (
        state.phase is RunPhase.OVER
        and reports
        and not any(trial.checkpoints for trial in state.trials.values())
    ):
        return (
            "there is no model: trials reported, and none saved a checkpoint; trial.track(...) "
            "does that, and scripts without it do as docs/training-side.md says"
        )
    if state.phase is not RunPhase.OVER or any(
        t.history or t.phase is TrialPhase.FAILED for t in state.trials.values()
    ):
        return "there is no model"
    return (
        "there is no model: no trial came to its first report in time; give the run a longer "
        "--deadline and a larger --budget, or report more often (seerd profile SPEC measures how "
        "long a report takes)"
    )


def _next(state: State) -> Text:
    run = state.facts.run
    time_left = state.now < state.facts.problem.limits.deadline_s
    if state.phase is not RunPhase.OVER or (state.end.status == "interrupted" and time_left):
        return Text(f"go on with: seerd resume {run}")
    if refused(state) is not None:
        return Text("what could be wrong: seerd doctor SPEC")
    if state.result.published is None:
        return Text(f"look at: seerd logs {run}")
    return Text(f"take the model with: seerd best {run} --to DIR")
