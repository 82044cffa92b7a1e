"""The live view: what a run is doing, on one screen.

The one rule: a pure function of the state, the time and the size of the screen; never more rows than fit, and readable without colours.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from planner.ranking import rank
from seerd.core.incumbent import incumbent
from seerd.core.ledger import Ledger
from seerd.core.lifecycle import InstancePhase, RunPhase, TrialPhase
from seerd.core.limits import release_s
from seerd.core.state import State, Trial
from seerd.plain import ENDINGS, config_text
from seerd.sparkline import sparkline
from seerd.units import format_duration

EVERY_S = 1.0
CURVE = 12
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
    """Owns the terminal for as long as its context lasts; draws at most once a second."""

    def __init__(self) -> None:
        self._console = Console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._drawn_at = -EVERY_S

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def update(self, state: State, now_s: float, recent: Sequence[str]) -> None:
        """Show this, unless something was shown less than a second ago."""
        if time.monotonic() - self._drawn_at < EVERY_S:
            return
        self._drawn_at = time.monotonic()
        size = self._console.size
        self._live.update(view(state, now_s, recent, (size.width, size.height)), refresh=True)


def view(state: State, now_s: float, recent: Sequence[str], size: tuple[int, int]) -> RenderableType:
    """The whole screen of `size` (columns, rows). Trials get the rows that the rest leaves."""
    width, height = size
    top = [_title(state, width), *_bars(state, now_s, width), *_stages(state, now_s, width)]
    machines = _machines(state, width, 3)
    foot = 4 if height >= 20 else 1
    rows = max(1, height - len(top) - len(machines) - foot - 4)
    trials = _trials(state, width, rows)
    last = [Text(line[:width], style="dim") for line in list(recent)[-foot:]]
    return Group(*top, Text(), *trials, Text(), *machines, *last)


def _title(state: State, width: int) -> Text:
    best = incumbent(state)
    doing = {
        RunPhase.RUNNING: "running",
        RunPhase.CLOSING: f"{ENDINGS[state.ending]}: saving" if state.ending else "saving",
        RunPhase.RELEASING: "keeping the best model",
        RunPhase.OVER: "over",
    }[state.phase]
    text = Text(f"{state.facts.run}  ", style="bold")
    text.append(doing, style="yellow" if state.phase is not RunPhase.RUNNING else "green")
    if best is not None:
        text.append(f"  best {best.metric:.5g} ({best.trial})", style="cyan")
    text.truncate(width)
    return text


def _bars(state: State, now_s: float, width: int) -> list[Text]:
    """Deadline, GPU time and, if it costs any, money."""
    limits, book = state.facts.problem.limits, state.ledger
    spent = book.spent_gpu_s(now_s)
    committed = _committed(book, now_s, release_s(state))
    clock = f"{format_duration(round(now_s))} of {format_duration(limits.deadline_s)}"
    gpu = f"{spent / 60:.1f} of {limits.budget_gpu_s / 60:g} GPU-min"
    bars = [
        _bar("deadline", now_s / limits.deadline_s, 0.0, clock, width),
        _bar("budget", spent / limits.budget_gpu_s, committed / limits.budget_gpu_s, gpu, width),
    ]
    if limits.cost_usd is not None and book.usd_per_gpu_h:
        share, more = book.usd(spent) / limits.cost_usd, book.usd(committed) / limits.cost_usd
        bars.append(_bar("cost", share, more, f"${book.usd(spent):.2f} of ${limits.cost_usd:g}", width))
    return bars


def _committed(book: Ledger, now_s: float, wait_s: float) -> float:
    return book.committed_gpu_s(now_s, wait_s) if book.open else book.spent_gpu_s(now_s)


def _bar(name: str, share: float, committed: float, told: str, width: int) -> Text:
    """Full for what is used, shaded for what is committed beyond it."""
    room = max(8, width - 12 - 26)
    used = min(room, round(room * min(1.0, share)))
    more = min(room - used, max(0, round(room * min(1.0, committed)) - used))
    text = Text(f"{name:<9} ")
    text.append("█" * used, style="cyan")
    text.append("▒" * more, style="yellow")
    text.append("·" * (room - used - more), style="dim")
    text.append(f"  {told}")
    text.truncate(width)
    return text


def _stages(state: State, now_s: float, width: int) -> list[Text]:
    """The stages as a timeline, and under it who runs in the present one."""
    stages = state.outline.stages
    room = max(8, width - 12 - 26)
    end_s = stages[-1].end_s
    line = Text("stages    ")
    cells = 0
    for number, stage in enumerate(stages):
        until = round(room * stage.end_s / end_s)
        label = f"{number + 1}"
        body = (label + "─" * room)[: max(1, until - cells - 1)] + "│"
        line.append(body, style="bold" if number == state.plan.stage else "dim")
        cells = until
    stage = stages[state.plan.stage]
    groups = " + ".join(f"{g.trials}x{g.gpus_per_trial}" for g in stage.groups)
    left = max(0.0, stage.end_s - now_s)
    line.append(f"  {state.plan.stage + 1}/{len(stages)}: {groups} GPU, {format_duration(round(left))}")
    line.truncate(width)
    return [line]


def _trials(state: State, width: int, rows: int) -> list[Text]:
    """Best first, running ones before those that are out."""
    ordered = [state.trials[v.id] for v in rank(state.trials.values(), state.facts.mode)]
    ordered.sort(key=lambda trial: trial.out or trial.phase is TrialPhase.FAILED)
    head = f"{'trial':<6} {'state':<9}{'GPU':<8} {'reports':>7} {state.facts.metric[:10]:>10}  {'':<{CURVE}}  config"
    lines = [Text(head[:width], style="bold")]
    shown = ordered if len(ordered) <= rows else ordered[: rows - 1]
    lines += [_trial(trial, width) for trial in shown]
    if len(shown) < len(ordered):
        rest = ordered[len(shown) :]
        lines.append(Text(f"and {len(rest)} more, {sum(t.out for t in rest)} of them out", style="dim"))
    return lines


def _trial(trial: Trial, width: int) -> Text:
    word, style = PHASES[trial.phase]
    if trial.phase is TrialPhase.RUNNING and not trial.training:
        word = "loading"
    gpus = ",".join(str(gpu) for slots in trial.held or () for gpu in slots.gpus) or "-"
    metric = "-" if trial.metric is None else f"{trial.metric:.5g}"
    curve = sparkline([report.metric for report in trial.history[-200:]], CURVE)
    text = Text(f"{trial.id:<6} ", style="dim" if trial.out else "")
    text.append(f"{word:<9}", style=style)
    text.append(f"{gpus[:8]:<8} {trial.reports:>7} {metric:>10}  ")
    text.append(f"{curve:<{CURVE}}", style="cyan")
    text.append(f"  {config_text(trial.config)}")
    text.truncate(width, overflow="ellipsis")
    return text


def _machines(state: State, width: int, rows: int) -> list[Text]:
    """Which trial each GPU of each instance works for; `.` is an idle one."""
    live = [i for i in state.instances.values() if i.phase in (InstancePhase.READY, InstancePhase.RELEASING)]
    if not live:
        return [Text("no instance yet" if state.phase is RunPhase.RUNNING else "no instance left", style="dim")]
    lines = []
    for instance in live[:rows]:
        cells = " ".join(instance.busy.get(gpu, ".").removeprefix("t0") for gpu in range(instance.gpus))
        text = Text(f"{instance.id}: {cells}")
        text.truncate(width, overflow="ellipsis")
        lines.append(text)
    if len(live) > rows:
        lines[-1] = Text(f"and {len(live) - rows + 1} more instances", style="dim")
    return lines
