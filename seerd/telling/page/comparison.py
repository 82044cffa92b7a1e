"""The page that compares several runs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from seerd.telling.configs import config_text
from seerd.telling.harmless import printable
from seerd.telling.page.frame import beyond
from seerd.telling.page.run_charts import compared
from seerd.telling.page.run_page import NARROW, WIDE, Picture, ReadRun, figure, page
from seerd.telling.page.tables import best_so_far
from seerd.telling.run_json import best
from seerd.units import format_duration


def comparison(runs: Sequence[ReadRun]) -> str:
    """Return the page of these runs, which have the same metric."""
    named = [(told.state.facts.run, told.state) for told in runs]
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
    heads = ["run", "policy", "deadline", "budget", "billed", "trials", "best", "configuration"]
    head = "".join(f'<th class="text">{name}</th>' for name in heads)
    table = (
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, runs))}</tbody></table>"
    )
    metric = printable(runs[0].state.facts.metric)
    return page(
        "Comparison",
        [
            f"<h1>{len(runs)} runs by {escape(metric)}</h1>",
            *map(figure, pictures),
            f'<div class="scroll">{table}</div>',
        ],
    )


def _row(told: ReadRun) -> str:
    state, chosen = told.state, best(told.state)
    limits = state.facts.problem.limits
    cells = [
        state.facts.run,
        state.facts.problem.params.name,
        format_duration(limits.deadline_s),
        f"{limits.budget_gpu_s / 60:.1f} GPU-min",
        f"{state.ledger.spent_gpu_s(state.now) / 60:.1f} GPU-min",
        str(len(state.trials)),
        "" if chosen is None else f"{chosen['metric']:.6g}",
        "" if chosen is None else config_text(chosen["config"]),
    ]
    return f"<tr>{''.join(f'<td class=text>{escape(printable(cell))}</td>' for cell in cells)}</tr>"
