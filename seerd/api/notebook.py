"""How a run shows itself in a notebook: its limits, best trials and pictures, in the notebook's own
colours and fonts, with no script and no network. The view of a run that goes on takes a small part
of the time.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal, get_args

from seerd.commands.report import RunReader
from seerd.core.lifecycle import RunPhase
from seerd.core.metrics import best_saved, chosen, last_value, metric_name, names_of
from seerd.core.results import best_configuration
from seerd.core.state import State
from seerd.errors import JournalError, UsageError
from seerd.planner.gpu_parts import gpus_number
from seerd.shell.home import RunFolder
from seerd.telling.diagnosis import diagnose, unsaved
from seerd.telling.explanation.sentences import ending
from seerd.telling.harmless import config_text, harmless, printable, value_text
from seerd.telling.live.board import gauges_of
from seerd.telling.outcomes import outcome_text, outcomes, report_text
from seerd.telling.page import charts, tables
from seerd.telling.page.drawing import Frame, on_paper, svg, write
from seerd.telling.page.run_page import TEXT, ReadRun, html_row, html_table
from seerd.telling.run_json import best
from seerd.units import count

Axis = Literal["time", "reports", "gpu_time"]
WIDTH = 860
FIELDS = {"time": "at_s", "reports": "report", "gpu_time": "gpu_s"}
POLL_S = 0.5
RENEW_S = 1.0
SHARE = 0.1  # the largest part of the time that is spent on drawing
MOST_ROWS, MOST_METRICS, MOST_PARAMETERS = 10, 3, 8
STYLE = """
.seerd{font-size:13px;line-height:1.45;max-width:900px}
.seerd .bars{display:grid;grid-template-columns:max-content 1fr max-content;gap:2px 10px;
align-items:center;margin:6px 0}
.seerd .bar{height:8px;border-radius:4px;background:rgba(128,128,128,.3);overflow:hidden}
.seerd .bar i{display:block;height:100%;background:#4c78a8}
.seerd .soft{opacity:.75}
.seerd .scroll{overflow-x:auto}
.seerd table{border-collapse:collapse;font-size:inherit;margin:6px 0;
font-variant-numeric:tabular-nums}
.seerd th,.seerd td{padding:2px 10px 2px 0;text-align:right;white-space:nowrap;
background:none!important}
.seerd th{border-bottom:1px solid rgba(128,128,128,.6)}
.seerd .text{text-align:left}
.seerd svg{max-width:100%;height:auto}
"""


@dataclass(frozen=True)
class Chart:
    """A picture.

    spec     it in Vega-Lite, with all of its data
    caption  what it shows
    """

    spec: dict[str, Any]
    caption: str

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it black on white, as `.svg`, `.png` or `.pdf`; return the file."""
        to = Path(path)
        write(self.spec, to)
        return to

    def __repr__(self) -> str:
        return f"a picture: {self.caption} Write it with .save('picture.svg')"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        look = "margin:0;font-size:12px"
        inline = f'<figure style="{look}">{svg(self.spec)}<figcaption>{escape(self.caption)}'
        return {
            "text/html": f"{inline}</figcaption></figure>",
            "image/svg+xml": svg(on_paper(self.spec)),
            "text/plain": self.caption,
        }


def curves(read: ReadRun, metric: str | None, by: Axis) -> Chart:
    """Draw learning curves. Raises `UsageError` for a metric that was not reported."""
    if by not in get_args(Axis):
        raise UsageError(f"by={by!r}: one of {', '.join(get_args(Axis))} is needed")
    reported = names_of(read.state)
    if metric is not None and metric not in reported:
        raise UsageError(f"metric={metric!r} was not reported; there are {', '.join(reported)}")
    frame, facts = frame_of(read), read.state.facts
    wanted = metric or facts.metric
    own = [ranked for ranked in frame.order if facts.goal_of(ranked.trial.id).metric == wanted]
    chosen = tables.shown(own or frame.order)
    points = tables.curves(chosen, read.timeline, None if own else metric)
    name = printable(wanted)
    drawn = charts.curves(frame, points, FIELDS[by], name)
    caption = f"{name} of {len(chosen)} of {count(len(frame.order), 'trial')}."
    return Chart(drawn, f"{caption} A cross is where a trial was given up.")


def frame_of(read: ReadRun) -> Frame:
    """Return what pictures of a run have in common."""
    return Frame(read.timeline, read.state, tables.ranked(read.state), WIDTH)


def shown(read: ReadRun, now_s: float | None = None) -> str:
    """Return the run as HTML. `now_s`: the time since it began; None: that of its last event."""
    state = read.state
    models = []
    for job in [job for job in state.jobs if chosen(state, job) is not None]:
        model, published = best(state, job), state.result.of_jobs.get(job)
        assert model is not None
        kind = f"best{' of ' * bool(job)}{job}" + ("" if published else " so far")
        goal = state.facts.goals[job]
        name = metric_name(state, published.incumbent) if published else goal.metric
        models.append(
            f"{kind}: <b>{_text(model['trial'])}</b>, {_text(name)} <b>{model['metric']:.6g}</b> "
            f"after {count(model['epoch'], 'report')}, {_text(config_text(model['config']))}"
        )
    for job in state.jobs:
        if (found := best_configuration(state, job)) is not None:
            whose = " of " * bool(job) + job
            models.append(_text(f"best configuration{whose}: {report_text(state, *found)}"))
    if models and state.finished and not any(chosen(state, job) for job in state.jobs):
        models.append(_text(unsaved(state)))
    if not models:
        over = state.phase is RunPhase.OVER
        models = [_text(diagnose(state).text) if over else "No model has been saved yet."]
    now_s = state.now if state.phase is RunPhase.OVER else max(now_s or 0.0, state.now)
    bars = "".join(
        f'<span>{gauge.name}</span><div class="bar">'
        f'<i style="width:{min(1.0, gauge.used):.1%}"></i></div><span>{escape(gauge.text)}</span>'
        for gauge in gauges_of(state, now_s)
    )
    parts = [
        f"<p><b>{_text(state.facts.run)}</b>: {_text(ending(state) or read.status)}</p>",
        f'<div class="bars">{bars}</div>',
        f"<p>{'<br>'.join(models)}</p>",
        _table(state),
    ]
    if any(trial.history for trial in state.trials.values()):
        try:
            parts.append(svg(curves(read, None, "time").spec))
        except UsageError as error:
            parts.append(f'<p class="soft">{_text(str(error))}</p>')
    return f'<div class="seerd"><style>{STYLE}</style>{"".join(parts)}</div>'


def _table(state: State) -> str:
    ordered = tables.ranked(state)
    if not ordered:
        return ""
    metrics = names_of(state)[:MOST_METRICS]
    parameters = [parameter.name for parameter in tables.varied(state)][:MOST_PARAMETERS]
    heads = ["trial", *metrics, "best saved", "reports", "GPUs", "state", *parameters]
    became, rows = outcomes(state), []
    for ranked in ordered[:MOST_ROWS]:
        trial, own = ranked.trial, state.facts.goal_of(ranked.trial.id).metric
        values = [
            ranked.metric if name == own else last_value(state, trial, name) for name in metrics
        ]
        gpus = trial.gpus or trial.had
        chosen_values = [trial.config.get(name) for name in parameters]
        cells = [
            trial.id,
            *("" if value is None else f"{value:.6g}" for value in values),
            "" if (saved := best_saved(state, trial)) is None else f"{saved:.6g}",
            str(trial.reports),
            gpus_number(state.facts.gpus(gpus)) if gpus else "-",
            outcome_text(state, trial, became[trial.id]),
            *("" if value is None else value_text(value) for value in chosen_values),
        ]
        rows.append(html_row(cells))
    more = len(ordered) - MOST_ROWS
    rest = f'<p class="soft">and {more} more: .trials() has all</p>' if more > 0 else ""
    return html_table(map(_text, heads), rows, TEXT) + rest


def _text(text: str) -> str:
    return escape(printable(text))


def in_a_notebook() -> bool:
    """Return whether this is a notebook's kernel, whose cells can show HTML."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


class NotebookView:
    """Shows one run at a time, in the output of the cell that made it."""

    def __init__(self) -> None:
        from IPython import display

        shows: Any = display
        self._html = shows.HTML
        self._display = shows.display(self._html("<p>planning ...</p>"), display_id=True)
        self._reading: RunReader | None = None
        self._next = 0.0

    def show(self, folder: RunFolder, *, last: bool = False) -> None:
        """Show the run as it is, if it is time to draw again or this is the `last` time."""
        begins = time.monotonic()
        if begins < self._next and not last:
            return
        if self._reading is None:
            self._reading = RunReader(folder)
        self._display.update(self._html(_html(self._reading)))
        took_s = time.monotonic() - begins
        self._next = begins + max(RENEW_S, took_s / SHARE)

    def watch(self, folder: RunFolder) -> None:
        """Show the run until it is over, or nobody runs it."""
        while folder.owner() is not None:
            self.show(folder)
            time.sleep(POLL_S)
        self.show(folder, last=True)


def _html(reading: RunReader) -> str:
    try:
        history = reading.history()
        goes_on = history.state.phase is not RunPhase.OVER
        return shown(reading.read(), time.time() - history.began if goes_on else None)
    except JournalError:  # before its first event, or after its folder was removed
        return "<p>planning ...</p>"
    except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on
        return f"<p>this run cannot be shown: {escape(harmless(str(error)))}</p>"
