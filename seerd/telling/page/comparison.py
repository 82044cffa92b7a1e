"""The page that compares several runs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from seerd.core.state import State
from seerd.telling.configs import config_text
from seerd.telling.harmless import printable
from seerd.telling.page.frame import beyond
from seerd.telling.page.run_charts import compared
from seerd.telling.page.run_page import (
    NARROW,
    WIDE,
    Picture,
    ReadRun,
    figure,
    html_row,
    html_table,
    page,
)
from seerd.telling.page.tables import best_so_far
from seerd.telling.run_json import best
from seerd.units import format_duration


def comparison(runs: Sequence[ReadRun]) -> str:
    """Return the page of these runs, which have the same metric."""
    named = [(run.state.facts.run, run.state) for run in runs]
    values = [metric for _, state in named for _, _, metric in best_so_far(state)]
    pictures = [
        Picture(
            name,
            f"{caption}{beyond(values)}",
            *(compared(named, width, by_gpu=by_gpu) for width in (WIDE, NARROW)),
        )
        for name, caption, by_gpu in (
            ("time", "The best report so far, by time.", False),
            ("gpu-time", "The same, by the GPU time that was billed.", True),
        )
    ]
    heads = ("run", "policy", "deadline", "budget", "billed", "trials", "best", "configuration")
    title = f"<h1>{len(runs)} runs by {escape(printable(runs[0].state.facts.metric))}</h1>"
    table = html_table(heads, (html_row(_cells(run.state)) for run in runs))
    return page("Comparison", [title, *map(figure, pictures), table])


def _cells(state: State) -> list[str]:
    chosen, limits = best(state), state.facts.problem.limits
    return [
        state.facts.run,
        state.facts.problem.params.name,
        format_duration(limits.deadline_s),
        f"{limits.budget_gpu_s / 60:.1f} GPU-min",
        f"{state.ledger.spent_gpu_s(state.now) / 60:.1f} GPU-min",
        str(len(state.trials)),
        "" if chosen is None else f"{chosen['metric']:.6g}",
        "" if chosen is None else config_text(chosen["config"]),
    ]
