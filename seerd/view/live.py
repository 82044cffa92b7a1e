"""The live view: what a run is doing, on one screen.

The one rule: a pure function of the state, the time and the size of the screen. It never has more
rows than fit, and can be read without colours.
"""

from __future__ import annotations

import contextlib
import io
import math
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from seerd.core.incumbent import incumbent, metric_name
from seerd.core.lifecycle import InstancePhase, RunPhase, TrialPhase
from seerd.core.limits import release_s
from seerd.core.state import THERE, Instance, State, Trial
from seerd.planner.model import Stage
from seerd.planner.ranking import rank
from seerd.units import format_duration
from seerd.view.configs import config_text, value_text
from seerd.view.harmless import Harmless, printable
from seerd.view.plain import ENDINGS, gpus_text

EVERY_S = 1.0
MOST_POINTS = 200
LABEL = 10
BARS = "▁▂▃▄▅▆▇█"
PHASES = {
    TrialPhase.WAITING: ("waiting", "dim"),
    TrialPhase.STARTING: ("starting", "yellow"),
    TrialPhase.RUNNING: ("running", "green"),
    TrialPhase.STOPPING: ("saving", "yellow"),
    TrialPhase.FINISHED: ("finished", "cyan"),
    TrialPhase.ELIMINATED: ("out", "dim"),
    TrialPhase.FAILED: ("failed", "red"),
}


class LiveView:
    """Draws on the whole terminal while its context lasts, at most once a second.

    If the terminal is closed, it goes on without drawing.
    """

    def __init__(self) -> None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(
                errors="replace"
            )  # bars and curves are more than some encodings have
        self._console = Console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._drawn_at = -EVERY_S

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._live.__exit__(kind, error, trace)

    def update(self, state: State, now_s: float, recent: Sequence[str]) -> None:
        """Draw the state, unless something was drawn less than a second ago."""
        if time.monotonic() - self._drawn_at < EVERY_S:
            return
        self._drawn_at = time.monotonic()
        size = self._console.size
        with contextlib.suppress(OSError):
            self._live.update(
                Harmless(view(state, now_s, recent, (size.width, size.height))), refresh=True
            )


def view(
    state: State, now_s: float, recent: Sequence[str], size: tuple[int, int]
) -> RenderableType:
    """Draw the whole screen of `size` (columns, rows).

    Trials get the rows that the rest leaves, and the latest events those that trials leave.
    """
    width, height = size
    roomy = height >= 20
    gap = [Text()] if roomy else []
    top = [_title(state, now_s), *_gauges(state, now_s, width), _best(state)]
    if roomy:
        top.insert(-1, _groups(state))
    instances = _instances(state, width, max(1, height // 8))
    free = height - len(top) - len(instances) - 3 * len(gap)
    trials = _trials(state, width, max(2, free - (4 if roomy else 1)))
    events = [Text(line, style="dim") for told in recent for line in told.splitlines()]
    foot = events[-max(1, free - len(trials)) :]
    lines = [*top, *gap, *trials, *gap, *instances, *gap, *foot][:height]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Group(*lines)


def _title(state: State, now_s: float) -> Text:
    how = ENDINGS[state.end.status] if state.end.status else ""
    left = format_duration(max(0, round((state.end.close_by or now_s) - now_s)))
    doing = {
        RunPhase.RUNNING: "running",
        RunPhase.CLOSING: f"{how}: trials save and exit, at most {left} more",
        RunPhase.RELEASING: f"{how}: keeping the best model",
        RunPhase.OVER: f"over: {how}",
    }[state.phase]
    text = Text(f"{printable(state.facts.run)}  ", style="bold")
    return text.append(doing, style="green" if state.phase is RunPhase.RUNNING else "yellow")


@dataclass(frozen=True, slots=True)
class _Gauge:
    """One limit.

    name       which limit
    used       share of it that is used
    committed  share of it that is committed
    told       both in words
    """

    name: str
    used: float
    committed: float
    told: str


def _gauges(state: State, now_s: float, width: int) -> list[Text]:
    """Draw deadline, GPU time, money if it costs any, and the stages, all on one scale."""
    limits, book = state.facts.problem.limits, state.ledger
    spent = book.spent_gpu_s(now_s)
    committed = book.committed_gpu_s(now_s, release_s(state)) if book.open else spent
    gpu_min = f"{spent / 60:.1f} of {limits.budget_gpu_s / 60:g} GPU-min"
    if width >= 100:
        gpu_min += f", {committed / 60:.1f} committed"
    clock = f"{format_duration(round(now_s))} of {format_duration(limits.deadline_s)}"
    gauges = [
        _Gauge("deadline", now_s / limits.deadline_s, 0.0, clock),
        _Gauge("budget", spent / limits.budget_gpu_s, committed / limits.budget_gpu_s, gpu_min),
    ]
    if limits.cost_usd is not None and book.usd_per_gpu_h:
        used, bound = book.usd(spent) / limits.cost_usd, book.usd(committed) / limits.cost_usd
        gauges.append(
            _Gauge("cost", used, bound, f"${book.usd(spent):.2f} of ${limits.cost_usd:g}")
        )
    present = _stage_told(state, now_s)
    room = max(8, width - LABEL - 2 - max(len(present), *(len(gauge.told) for gauge in gauges)))
    return [
        *(_bar(gauge, room) for gauge in gauges),
        _timeline(state, now_s, room).append(f"  {present}"),
    ]


def _bar(gauge: _Gauge, room: int) -> Text:
    """Draw a gauge: solid for what is used, shaded for what is committed beyond that."""
    used = min(room, round(room * min(1.0, gauge.used)))
    more = min(room - used, max(0, round(room * min(1.0, gauge.committed)) - used))
    text = Text(f"{gauge.name:<{LABEL}}")
    text.append("█" * used, style="cyan")
    text.append("▒" * more, style="yellow")
    text.append("·" * (room - used - more), style="dim")
    return text.append(f"  {gauge.told}")


def _stage_told(state: State, now_s: float) -> str:
    stages, present = state.outline.stages, state.plan.stage
    if not stages:
        return "not known"
    left = format_duration(max(0, round(stages[present].end_s - now_s)))
    return f"{present + 1} of {len(stages)}, {left} left"


def _timeline(state: State, now_s: float, room: int) -> Text:
    """Draw the stages below the bars: heavy lines for the past, light ones for what is to come."""
    deadline_s = state.facts.problem.limits.deadline_s
    past = round(room * now_s / deadline_s)
    line = Text(f"{'stages':<{LABEL}}")
    begin = 0
    for number, stage in enumerate(state.outline.stages):
        end = min(room, round(room * stage.end_s / deadline_s))
        marked = f"{number + 1}" + "".join(
            "━" if cell < past else "─" for cell in range(begin + 1, end)
        )
        style = "bold" if number == state.plan.stage else "dim"
        line.append((marked[: max(0, end - begin - 1)] + "│") if end > begin else "", style=style)
        begin = max(begin, end)
    return line.append(" " * (room - begin))


def _groups(state: State) -> Text:
    """Write which trials run in the present stage and in later ones, as trials x GPUs."""

    def told(stage: Stage) -> str:
        return " + ".join(f"{group.trials}x{group.gpus_per_trial}" for group in stage.groups)

    if not state.outline.stages:
        return Text()
    now, *later = state.outline.stages[state.plan.stage :]
    text = Text(" " * LABEL)
    text.append(f"now {told(now)}", style="bold")
    return text.append(
        "".join(f", then {told(stage)}" for stage in later) + "  (trials x GPUs)", style="dim"
    )


def _best(state: State) -> Text:
    best = incumbent(state)
    text = Text(f"{'best':<{LABEL}}")
    if best is None:
        return text.append("no model yet", style="dim")
    text.append(
        f"{best.trial} {printable(metric_name(state, best))} {best.metric:.5g}", style="bold cyan"
    )
    text.append(
        f" after report {best.checkpoint.reports}  {config_text(state.trials[best.trial].config)}"
    )
    return text


def _trials(state: State, width: int, rows: int) -> list[Text]:
    """List trials, best first, eliminated and failed ones last, in at most `rows` lines with the
    head.
    """
    ordered = [state.trials[v.id] for v in rank(state.trials.values(), state.facts.mode)]
    ordered.sort(key=lambda trial: trial.out or trial.phase is TrialPhase.FAILED)
    shown = ordered if len(ordered) < rows else ordered[: rows - 2]
    names = list(dict.fromkeys(name for trial in shown for name in trial.config))
    curve = 0 if width < 70 else 8 if width < 100 else 16
    head = [
        "trial",
        "state",
        "GPU",
        "reports",
        printable(state.facts.metric)[:10],
        "",
        *map(printable, names),
    ]
    table = [head, *(_cells(trial, names, curve) for trial in shown)]
    wide = [max(len(row[column]) for row in table[1:] or table) for column in range(len(head))]
    wide = [max(had, min(len(name), 12)) for had, name in zip(wide, head, strict=True)]
    lines = [_row(row, wide) for row in table]
    lines[0].stylize("bold")
    for trial, line in zip(shown, lines[1:], strict=True):
        line.stylize(
            "dim" if trial.out else PHASES[trial.phase][1],
            0,
            None if trial.out else wide[0] + wide[1] + 2,
        )
    if len(shown) < len(ordered):
        lines.append(Text(_rest(ordered[len(shown) :]), style="dim"))
    return lines


def _cells(trial: Trial, names: Sequence[str], curve: int) -> list[str]:
    held = trial.held or ()
    gpus = (
        gpus_text(held[0].gpus)
        if len(held) == 1
        else f"{sum(len(slots.gpus) for slots in held)} GPUs"
    )
    metric = "-" if trial.metric is None else f"{trial.metric:.5g}"
    points = trial.history[:: 1 + len(trial.history) // MOST_POINTS] + trial.history[-1:]
    drawn = sparkline([point.metric for point in points], curve)
    values = [value_text(trial.config[name]) if name in trial.config else "-" for name in names]
    return [
        trial.id,
        _word(trial),
        gpus if held else "-",
        str(trial.reports),
        metric,
        drawn,
        *values,
    ]


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Draw values as bars in `width` characters, from the lowest to the highest.

    There is a gap where a value is not finite.
    """
    if width <= 0 or not values:
        return ""
    picked = [
        values[i * len(values) // min(width, len(values))] for i in range(min(width, len(values)))
    ]
    picked[-1] = values[-1]
    finite = [value for value in picked if value is not None and math.isfinite(value)]
    if not finite:
        return " " * len(picked)
    low, high = min(finite), max(finite)
    return "".join(_level(value, low, high) for value in picked)


def _level(value: float | None, low: float, high: float) -> str:
    if value is None or not math.isfinite(value):
        return " "
    span = high / 2 - low / 2  # halves, since the distance of two finite numbers need not be finite
    share = (value / 2 - low / 2) / span if span else 0.0
    return BARS[min(len(BARS) - 1, int(share * len(BARS)))]


def _word(trial: Trial) -> str:
    return (
        "loading"
        if trial.phase is TrialPhase.RUNNING and not trial.training
        else PHASES[trial.phase][0]
    )


def _row(row: Sequence[str], wide: Sequence[int]) -> Text:
    """Write a row of the table: reports and metric aligned to the right, the others to the left."""
    padded = [
        cell[:size].rjust(size) if column in (3, 4) else cell[:size].ljust(size)
        for column, (cell, size) in enumerate(zip(row, wide, strict=True))
    ]
    return Text("  ".join(cell for cell, size in zip(padded, wide, strict=True) if size).rstrip())


def _rest(trials: Sequence[Trial]) -> str:
    count = Counter(map(_word, trials))
    return f"and {len(trials)} more: " + ", ".join(
        f"{number} {word}" for word, number in count.items()
    )


def _instances(state: State, width: int, rows: int) -> list[Text]:
    """Write for each GPU of each instance which trial it works for; `.`: for none."""
    live = [i for i in state.fleet.instances.values() if i.phase in THERE]
    coming = sum(i.phase is InstancePhase.REQUESTED for i in state.fleet.instances.values())
    last = [f"{coming} more on the way"] if coming else []
    told = [_slots(instance) for instance in live]
    if not told:
        return [
            Text(
                "no instance yet"
                if coming or state.phase is RunPhase.RUNNING
                else "no instance left",
                style="dim",
            )
        ]
    size = max(map(len, told)) + 3
    beside = max(1, (width + 3) // size)
    lines = [
        part
        for first in range(0, len(told), beside)
        for part in textwrap.wrap(
            "".join(f"{one:<{size}}" for one in told[first : first + beside]),
            width,
            subsequent_indent="  ",
        )
    ]
    return [Text(line) for line in _most([*lines, *last], rows, live)]


def _most(lines: list[str], rows: int, live: Sequence[Instance]) -> list[str]:
    if len(lines) <= rows:
        return lines
    busy, gpus = sum(len(i.busy) for i in live), sum(i.gpus for i in live)
    return [*lines[: rows - 1], f"... {len(live)} instances in all, {busy} of {gpus} GPUs at work"]


def _slots(instance: Instance) -> str:
    names = [instance.busy.get(gpu, ".").lstrip("t0") or "0" for gpu in range(instance.gpus)]
    size = max(map(len, names))
    leaving = {InstancePhase.LEAVING: " (leaving)", InstancePhase.RELEASING: " (given back)"}.get(
        instance.phase, ""
    )
    return f"{instance.id}{leaving}: " + " ".join(f"{name:>{size}}" for name in names)
