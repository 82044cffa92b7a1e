"""Pictures of a run, those of its report: SVG in the notebook's own text colours, so that every
viewer shows them, without a network, in light and dark.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal, get_args

from seerd.core.metrics import names_of
from seerd.errors import UsageError
from seerd.telling.harmless import printable
from seerd.telling.page import run_charts, space_charts, tables
from seerd.telling.page.drawing import on_paper, svg, write
from seerd.telling.page.frame import Frame
from seerd.telling.page.importance import FEWEST, importances
from seerd.telling.page.importance import caption as shares_caption
from seerd.telling.page.run_page import ReadRun
from seerd.units import count

Axis = Literal["time", "reports", "gpu_time"]
WIDTH = 860
FIELDS = {"time": "at_s", "reports": "report", "gpu_time": "gpu_s"}


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
    frame, facts = _frame(read), read.state.facts
    wanted = metric or facts.metric
    own = [one for one in frame.order if facts.goal_of(one.trial.id).metric == wanted]
    chosen = tables.shown(own or frame.order)
    points = tables.curves(chosen, read.timeline, None if own else metric)
    name = printable(wanted)
    drawn = run_charts.curves(frame, points, FIELDS[by], name)
    caption = f"{name} of {len(chosen)} of {count(len(frame.order), 'trial')}."
    return Chart(drawn, f"{caption} A cross is where a trial was given up.")


def gpus(read: ReadRun) -> Chart:
    """Draw GPUs over time."""
    caption = "Each bar is an attempt of a trial on its GPUs; pale until it trained."
    return Chart(run_charts.gpus(_frame(read), tables.bars(read.timeline, read.state)), caption)


def costs(read: ReadRun) -> Chart:
    """Draw what was billed."""
    caption = "What was billed, beside the budget and the deadline."
    return Chart(run_charts.money(_frame(read)), caption)


def importance(read: ReadRun) -> Chart:
    """Draw which hyperparameters matter. Raises `UsageError` if that cannot be said."""
    frame = _frame(read)
    shares = importances(frame.order, tables.varied(read.state))
    if not shares:
        raise UsageError(f"importance needs {FEWEST} trials with reports, which differ")
    return Chart(space_charts.importance(frame, shares), shares_caption(shares))


def configurations(read: ReadRun) -> Chart:
    """Draw configurations. Raises `UsageError` if all trials have the same."""
    varied = tables.varied(read.state)
    if not varied:
        raise UsageError("there are no configurations that differ yet")
    caption = "Configurations as lines, the best with colour and dash."
    return Chart(space_charts.parallel(_frame(read), varied), caption)


def _frame(read: ReadRun) -> Frame:
    return Frame(read.timeline, read.state, tables.ranked(read.state), WIDTH)
