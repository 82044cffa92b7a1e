"""The upper part of the view: what the run does, what it has used of its limits, its stages, and
the best model.
"""

from __future__ import annotations

from rich.text import Text

from seerd.planner.model import Stage
from seerd.telling.harmless import printable
from seerd.telling.live.board import BestSaved, Board, Gauge, JobLine
from seerd.telling.live.look import LiveLook
from seerd.units import format_duration

LABEL = 11
MOST_JOBS, FEW_JOBS = 6, 2
"""How many jobs have a line of their own, where there is room and where there is little."""


def head(board: Board, look: LiveLook, width: int, *, roomy: bool) -> list[Text]:
    """Draw the upper part. `roomy`: also which trials run in the stages."""
    stages = [_groups(board)] if roomy else []
    best = _jobs(board, MOST_JOBS if roomy else FEW_JOBS) if board.jobs else [_best(board)]
    return [_title(board, look), *_gauges(board, width), *stages, *best]


def _jobs(board: Board, most: int) -> list[Text]:
    lines = [_job(job) for job in board.jobs[:most]]
    left = len(board.jobs) - len(lines)
    return lines + [Text(f"{'':<{LABEL}}and {left} more: seerd show {board.run}")] * (left > 0)


def _job(job: JobLine) -> Text:
    text = Text(f"{job.id[: LABEL - 1]:<{LABEL}}", style="bold")
    text.append(f"{job.stands}{f', for {printable(job.owner)}' if job.owner else ''}; ", "not bold")
    return _told(text, job.best)


def _title(board: Board, look: LiveLook) -> Text:
    text = Text(f"{printable(board.run)}  ", style="bold")
    if look.at_s is not None:
        when = format_duration(round(board.now_s, 1))
        text.append(f"as it was at {when}", style="bold yellow")
        return text.append(f" ({board.doing})", style="dim")
    text.append(board.doing, style="green" if board.running else "yellow")
    if board.rate:
        text.append(f"  {board.rate:.3g} reports/s", style="dim")
    return text


def _gauges(board: Board, width: int) -> list[Text]:
    present = _stage_told(board)
    told = [gauge.told + gauge.more * (width >= 100) for gauge in board.gauges]
    room = max(8, width - LABEL - 2 - max(map(len, (present, *told))))
    bars = [_bar(gauge, text, room) for gauge, text in zip(board.gauges, told, strict=True)]
    return [*bars, _timeline(board, room).append(f"  {present}")]


def _bar(gauge: Gauge, told: str, room: int) -> Text:
    """Draw a gauge: solid for what is used, shaded for what is committed beyond that."""
    used = min(room, round(room * min(1.0, gauge.used)))
    more = min(room - used, max(0, round(room * min(1.0, gauge.committed)) - used))
    text = Text(f"{gauge.name:<{LABEL}}")
    text.append("█" * used, style="cyan")
    text.append("▒" * more, style="yellow")
    text.append("·" * (room - used - more), style="dim")
    return text.append(f"  {told}")


def _stage_told(board: Board) -> str:
    at = f"{board.stage + 1} of {len(board.stages)}"
    if not board.running:
        return at
    left = format_duration(max(0, round(board.stages[board.stage].end_s - board.now_s)))
    return f"{at}, {left} left"


def _timeline(board: Board, room: int) -> Text:
    """Draw the stages: heavy lines for the past, light ones for what is to come."""
    past = round(room * board.now_s / board.deadline_s)
    line = Text(f"{'stages':<{LABEL}}")
    begin = 0
    for number, stage in enumerate(board.stages):
        end = min(room, round(room * stage.end_s / board.deadline_s))
        marked = f"{number + 1}" + "".join(
            "━" if cell < past else "─" for cell in range(begin + 1, end)
        )
        style = "bold" if number == board.stage else "dim"
        line.append((marked[: max(0, end - begin - 1)] + "│") if end > begin else "", style=style)
        begin = max(begin, end)
    return line.append(" " * (room - begin))


def _groups(board: Board) -> Text:
    """Write which trials run in the present stage and in later ones, as trials x GPUs."""

    def told(stage: Stage) -> str:
        return " + ".join(f"{group.trials}x{group.gpus_per_trial}" for group in stage.groups)

    now, *later = board.stages[board.stage :]
    text = Text(" " * LABEL)
    if not board.running:  # the title says how it ended
        return text.append(f"at last {told(now)}  (trials x GPUs)", style="dim")
    text.append(f"now {told(now)}", style="bold")
    return text.append(
        "".join(f", then {told(stage)}" for stage in later) + "  (trials x GPUs)", style="dim"
    )


def _best(board: Board) -> Text:
    return _told(Text(f"{'best saved':<{LABEL}}"), board.best)


def _told(text: Text, best: BestSaved | None) -> Text:
    if best is None:
        return text.append("no model yet", style="dim")
    text.append(f"{best.trial} {printable(best.name)} {best.metric:.5g}", style="bold cyan")
    return text.append(f" after report {best.reports}  {best.config}")
