"""A run as tables: trials, reports, charges. docs/export.md has the columns.

Times are in seconds since the run began, GPU time is in GPU-seconds.
"""

from __future__ import annotations

import csv as standard
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from seerd.core.metrics import best_saved, best_value, last_value, names_of, value_of
from seerd.core.state import State
from seerd.planner.trial_ids import job_of
from seerd.telling.explanation.as_json import fates, finite_values, is_handed_back
from seerd.telling.explanation.explanations import held_gpu_s
from seerd.telling.explanation.timeline import RunHistory
from seerd.telling.front import on_front
from seerd.telling.harmless import printable, scalar
from seerd.telling.outcomes import outcomes, parameter_names, why_text

Cell = str | float | int | bool | None


@dataclass(frozen=True, slots=True)
class Rows:
    """A table."""

    names: tuple[str, ...]  # names of the columns, all different
    rows: list[tuple[Cell, ...]]  # a value for each column; None: there is none

    def columns(self) -> dict[str, list[Cell]]:
        """Return the table by columns."""
        return {name: [row[place] for row in self.rows] for place, name in enumerate(self.names)}

    def of_run(self, run: str) -> Rows:
        """Return the same with the run's name as its first column."""
        return Rows(("run", *self.names), [(run, *row) for row in self.rows])


def trials(run: RunHistory) -> Rows:
    """Return a row for each trial, in the order in which they were made."""
    state, timeline, ended = run.state, run.timeline, outcomes(run.state)
    became, attempts = fates(timeline, state), timeline.attempts.by_trial()
    parameters, shared, front = parameter_names(state), bool(state.facts.jobs), on_front(state)
    own = list(dict.fromkeys(goal.metric for goal in state.facts.goals.values()))
    others = [name for name in names_of(state) if name not in own]
    names = [
        *("trial", *["job"] * shared, "outcome", "outcome_why", "state", "why", "handed_back"),
        *("reports", "attempts", "started_s", "ended_s", "gpu_s", "usd"),
        *["front"] * bool(front),
        *(f"config.{name}" for name in parameters),
        *(f"{which}.{name}" for name in own for which in ("last", "best", "saved")),
        *(f"{which}.{name}" for name in others for which in ("last", "lowest", "highest")),
    ]
    rows: list[tuple[Cell, ...]] = []
    for trial in state.trials.values():
        mine, outcome = attempts.get(trial.id, []), ended[trial.id]
        gpu_s, metric = held_gpu_s(mine, state.now), state.facts.goal_of(trial.id).metric
        row: list[Cell] = [
            trial.id,
            *[job_of(trial.id)] * shared,
            outcome.word,
            why_text(trial, outcome),
        ]
        row += [*became[trial.id], is_handed_back(state, trial), trial.reports, len(mine)]
        row += [mine[0].started.at_s, mine[-1].ended_s] if mine else [None, None]
        row += [gpu_s, _usd(state, gpu_s), *[front.get(trial.id)] * bool(front)]
        row += [scalar(trial.config.get(name)) for name in parameters]
        for name in own:
            best = (best_value(state, trial), best_saved(state, trial))
            row += [last_value(state, trial, name), *(best if name == metric else (None, None))]
        for name in others:
            values = finite_values(state, trial, name)
            row += [last_value(state, trial, name)]
            row += [min(values, default=None), max(values, default=None)]
        rows.append(tuple(row))
    return Rows(tuple(names), rows)


def reports(run: RunHistory) -> Rows:
    """Return a row for each report that counts, by trial; not those that a restart took back."""
    state, attempts = run.state, run.timeline.attempts.by_trial()
    metrics = names_of(state)
    fixed = ("trial", "report", "at_s", "gpu_s")
    names = (*fixed, *(f"metric.{name}" if name in fixed else name for name in metrics))
    rows: list[tuple[Cell, ...]] = [
        (
            *(trial.id, report.reports, report.at_s),
            held_gpu_s(attempts.get(trial.id, ()), report.at_s),
            *(value_of(state, trial, report, name) for name in metrics),
        )
        for trial in state.trials.values()
        for report in trial.history
    ]
    return Rows(names, rows)


def charges(run: RunHistory) -> Rows:
    """Return a row for each charge of the ledger; of one that goes on, what it has cost so far."""
    state = run.state
    names = ("what", "instance", "gpus", "since_s", "until_s", "gpu_s", "usd")
    rows: list[tuple[Cell, ...]] = []
    for one in state.ledger.charges():
        gpu_s = one.gpu_s(state.now)
        fixed = (one.what, one.instance, one.gpus, one.since_s, one.until_s)
        usd = state.ledger.charged_usd(one, state.now) if state.ledger.usd_per_gpu_h else None
        rows.append((*fixed, gpu_s, usd))
    return Rows(names, rows)


def _usd(state: State, gpu_s: float) -> float | None:
    book = state.ledger
    return book.part_usd(gpu_s, state.now) if book.usd_per_gpu_h else None


FORMULA = tuple("=+-@")
"""How a cell begins that a spreadsheet computes
(owasp.org/www-community/attacks/CSV_Injection).
"""


def csv(table: Rows, path: Path) -> None:
    """Write a table as CSV (RFC 4180), with formulas (see `FORMULA`) as text. Raises `OSError`."""
    part = path.with_name(f".{path.name}.part")
    with part.open("w", newline="", encoding="utf-8") as file:
        rows = (map(_text_of, row) for row in (table.names, *table.rows))
        standard.writer(file).writerows(rows)
    part.replace(path)


def run_of(path: Path) -> str:
    """Return the run that a table is of; empty if it does not say. Raises `OSError`."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        return next(standard.DictReader(file), {}).get("run") or ""


def _text_of(cell: Cell) -> Cell:
    if not isinstance(cell, str):
        return cell
    with suppress(ValueError):  # a number is no formula
        float(cell)
        return cell
    return "'" * cell.startswith(FORMULA) + printable(cell)
