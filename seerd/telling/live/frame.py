"""The whole screen: a pure function of the board, the look, the trial's life and the size."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap

from rich.console import Console, Group
from rich.text import Text

from seerd.core.lifecycle import InstancePhase
from seerd.core.state import Incumbent, Instance
from seerd.planner.gpu_parts import gpus_number, gpus_of
from seerd.telling.explanation.sentences import gpus_text
from seerd.telling.harmless import config_text, harmless, printable
from seerd.telling.live.board import Board, TrialRow
from seerd.telling.live.look import LiveLook
from seerd.telling.live.table import number, sparkline, table
from seerd.telling.plan_json import Json
from seerd.units import count, format_duration

ROOMY = 20  # with so many rows there are lines between the parts
LABEL = 11
HELD = "\xa0"  # a blank at which no line is broken
MOST_JOBS, FEW_JOBS = 6, 2  # jobs with a line of their own, if there is much or little room
PHASES = {
    InstancePhase.REQUESTED: "booting",
    InstancePhase.READY: "ready",
    InstancePhase.LEAVING: "leaving: the cloud takes it",
    InstancePhase.RELEASING: "being given back",
}


@dataclass(frozen=True, slots=True)
class TrialLife:
    """What is known of a trial beside its reports."""

    history: Json | None = None  # what `replay --trial --json` prints; None: it was not read
    # the last lines of its log, empty if there are none here; None: not read
    log: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Screenful:
    """A screen."""

    lines: list[Text]  # its lines, none wider than the screen
    height: int  # how many trials, or lines of a page, it has room for
    down: int = 0  # how many lines of a page are above: no more than there are


def frame(
    board: Board,
    look: LiveLook,
    size: tuple[int, int],
    life: Callable[[str], TrialLife] = lambda trial: TrialLife(),
    note: str = "",
) -> Screenful:
    """Draw the screen of `size` (columns, rows).

    life  returns what is known of a trial beside its reports
    note  replaces the line of keys; may be empty
    """
    width, height = size
    room, down = max(1, height - 1), 0
    if look.page == "run":
        lines, shown = _run(board, look, width, room)
    else:
        row = board.row(look.cursor)
        if look.page == "help":
            keys = [*KEYS, ("?", "these keys"), ("q", STOPS if look.owner else LEAVES)]
            keys += [TIMES] if look.journeys else []
            page = [Text("keys", style="bold"), *(_line(*key) for key in keys), Text()]
            page += [Text("what is shown", style="bold"), *(_line(*column) for column in COLUMNS)]
        elif row is None:
            page = [Text(f"{look.cursor}  not there yet at this moment", style="bold")]
        else:
            page = trial_lines(board, look, row, width, life(row.id))
        down = max(0, min(look.down, len(page) - room))
        lines, shown = page[down : down + room], room
    lines = [*lines[:room], *[Text()] * (room - len(lines)), _foot(look, width, note)]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Screenful(lines, shown, down)


def _run(board: Board, look: LiveLook, width: int, room: int) -> tuple[list[Text], int]:
    """Give trials the rows that the rest leaves, and the latest events what trials leave."""
    roomy = room + 1 >= ROOMY
    gap = [Text()] if roomy else []
    title = Text(f"{printable(board.run)}  ", style="bold")
    if look.at_s is None:
        title.append(board.doing, style="green" if board.running else "yellow")
    else:
        title.append(f"as it was at {format_duration(round(board.now_s, 1))}", "bold yellow")
        title.append(f" ({board.doing})", "dim")
    top = [title, *_gauges(board, width)]
    if roomy:  # the trials of the present stage and of later ones, as trials x GPUs
        now, *later = [
            " + ".join(
                f"{group.trials}x{gpus_number(gpus_of(group.gpus_per_trial, board.parts))}"
                for group in stage.groups
            )
            for stage in board.stages[board.stage :]
        ]
        how = f"now {now}" if board.running else f"at last {now}"
        then = "".join(f", then {sizes}" for sizes in later) if board.running else ""
        text = Text(" " * LABEL).append(how, style="bold" if board.running else "dim")
        top.append(text.append(f"{then}  (trials x GPUs)", "dim"))
    top += _models(board, MOST_JOBS if roomy else FEW_JOBS)
    machines = instances(board, width, max(1, room // 8))
    free = room - len(top) - len(machines) - 2 * len(gap)
    few = 1 if free < 8 else 3 if free < 16 else 6
    trials = table(board, look, width, max(3, free - few))
    events = [Text(line, style="dim") for line in board.events[-max(1, free - len(trials)) :]]
    return [*top, *gap, *trials, *gap, *machines, *events], max(1, free - few - 2)


# ------------------------------------------------------------ the run


def _gauges(board: Board, width: int) -> list[Text]:
    """Draw the limits and the stages, all on one scale; of a limit solid what is used, shaded what
    is committed beyond that.
    """
    stage = f"{board.stage + 1} of {len(board.stages)}"
    if board.running:
        left_s = max(0, round(board.stages[board.stage].end_s - board.now_s))
        stage += f", {format_duration(left_s)} left"
    texts = [gauge.text + gauge.more * (width >= 100) for gauge in board.gauges]
    room = max(8, width - LABEL - 2 - max(map(len, (stage, *texts))))
    lines = []
    for gauge, words in zip(board.gauges, texts, strict=True):
        used = min(room, round(room * min(1.0, gauge.used)))
        more = min(room - used, max(0, round(room * min(1.0, gauge.committed)) - used))
        bar = Text(f"{gauge.name:<{LABEL}}").append("█" * used, style="cyan")
        bar.append("▒" * more, style="yellow").append("·" * (room - used - more), style="dim")
        lines.append(bar.append(f"  {words}"))
    # The stages: heavy lines for the past, light ones for what is to come.
    past = round(room * board.now_s / board.deadline_s)
    line = Text(f"{'stages':<{LABEL}}")
    begin = 0
    for place, stage_of in enumerate(board.stages):
        end = min(room, round(room * stage_of.end_s / board.deadline_s))
        dashes = ("━" if column < past else "─" for column in range(begin + 1, end))
        marked = f"{place + 1}{''.join(dashes)}"
        style = "bold" if place == board.stage else "dim"
        line.append((marked[: max(0, end - begin - 1)] + "│") if end > begin else "", style=style)
        begin = max(begin, end)
    return [*lines, line.append(" " * (room - begin)).append(f"  {stage}")]


def _models(board: Board, most: int) -> list[Text]:
    """Write the best model, or how each of the first jobs stands, with its best model."""
    if not board.jobs:
        return [_model(Text(f"{'best saved':<{LABEL}}"), board, board.best, "")]
    lines = []
    for job in board.jobs[:most]:
        owner = f", for {printable(job.facts.owner)}" if job.facts.owner else ""
        text = Text(f"{job.facts.id[: LABEL - 1]:<{LABEL}}", style="bold")
        text.append(f"{job.stands}{owner}; ", "not bold")
        lines.append(_model(text, board, job.best, job.facts.id))
    left = len(board.jobs) - len(lines)
    return lines + [Text(f"{'':<{LABEL}}and {left} more: seerd show {board.run}")] * (left > 0)


def _model(text: Text, board: Board, best: Incumbent | None, job: str) -> Text:
    row = None if best is None else board.row(best.trial)
    if best is None and (configuration := board.configurations.get(job)):
        return text.append(f"no model; best configuration: {configuration}", style="bold cyan")
    if best is None or row is None:
        return text.append("no model yet", style="dim")
    text.append(f"{best.trial} {printable(row.metric)} {best.metric:.5g}", style="bold cyan")
    return text.append(f" after report {best.checkpoint.reports}  {config_text(row.config)}")


# ------------------------------------------------------------ instances


def _by_holder(holders: Mapping[int, str], parts: int) -> Iterator[tuple[str, list[int]]]:
    """Yield slots that follow each other and have one holder; those of a GPU that is shared are not
    mixed with others.
    """
    of_gpu: dict[int, set[str]] = {}
    for slot, name in holders.items():
        of_gpu.setdefault(slot // parts, set()).add(name)

    def key(slot: int) -> tuple[str, int]:
        return holders[slot], slot // parts if len(of_gpu[slot // parts]) > 1 else -1

    for (name, _), slots in groupby(sorted(holders), key=key):
        yield name, list(slots)


def _gpus(slots: Sequence[int], parts: int) -> str:
    first, last = slots[0] // parts, slots[-1] // parts
    part = f" ({gpus_number(gpus_of(len(slots), parts))})" if len(slots) < parts else ""
    return f"{gpus_text(range(first, last + 1))}{part}"


def _used(machine: Instance, slots: Sequence[int], parts: int) -> str:
    """Write how much these GPUs have computed of late, if a trial has them and it is known."""
    computed = machine.computed[slots[0] // parts : slots[-1] // parts + 1]
    shares = [share for share in computed if share is not None]
    return f" {sum(shares) / len(shares):.0%}" if slots[0] in machine.busy and shares else ""


def instances(board: Board, width: int, rows: int) -> list[Text]:
    """Draw a line that counts the instances, and one for each, in at most `rows` lines."""
    if not board.machines:
        return [Text("instances: none " + ("yet" if board.running else "left"), style="dim")]
    up = [one for one in board.machines if one.phase is not InstancePhase.REQUESTED]
    phases = Counter(one.phase for one in board.machines)
    words = {phase: word.partition(":")[0] for phase, word in PHASES.items() if phases[phase]}
    counts = ", ".join(f"{phases[phase]} {word}" for phase, word in words.items())
    head = Text(f"instances: {counts}", style="bold")
    gpus, lent = sum(one.gpus for one in up), sum(len(one.busy) for one in board.machines)
    if gpus:
        lent_gpus, idle_gpus = (gpus_number(gpus_of(n, board.parts)) for n in (lent, gpus - lent))
        head.append(f"; GPUs: {lent_gpus} lent to trials, {idle_gpus} idle", style="dim")
        head.append(f"; {board.idle}" if board.idle else "", style="yellow")
    lines: list[str] = []
    for machine in up:  # which trial has which GPUs, and the recent utilisation of these
        phase = "" if machine.phase is InstancePhase.READY else f" ({PHASES[machine.phase]})"
        idle = {gpu: f"idle (for {trial})" for gpu, trial in machine.claims.items()}
        holders = {**dict.fromkeys(range(machine.gpus), "idle"), **idle, **machine.busy}
        parts = [
            f"{_gpus(its, board.parts)} {name}{_used(machine, its, board.parts)}".replace(" ", HELD)
            for name, its in _by_holder(holders, board.parts)
        ]
        text = f"{machine.id}{phase}:".replace(" ", HELD) + HELD + ", ".join(parts)
        wrapped = wrap(
            text, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
        lines += [line.replace(HELD, " ") for line in wrapped]
    room = max(0, rows - 1)
    if len(lines) > room:
        lines = lines[: max(0, room - 1)]
        left = len(up) - len({line.partition("  ")[0] for line in lines})
        lines += [f"and {left} more"] * (room > 0 and left > 0)
    return [head, *map(Text, lines)]


# ------------------------------------------------------------ one trial


def trial_lines(
    board: Board, look: LiveLook, row: TrialRow, width: int, life: TrialLife
) -> list[Text]:
    """Draw a trial: its curve, its history as `seerd replay --trial` has it, its log's end."""

    def wrapped(text: str) -> list[Text]:
        return list(Text(text).wrap(console, width))

    console = Console(width=width, file=io.StringIO(), color_system=None, legacy_windows=False)
    key = look.metric_of(board)
    name = row.metric if key == board.metrics[0] else key
    run, values = printable(board.run), row.values.get(key, ())
    finite = [value for value in values if value is not None]
    head = Text(f"{row.id}  {row.word}", style="bold")
    head.append(f"  {row.why}" if row.why else "")
    where = f"{count(row.reports, 'report')}, last {printable(name)} {number(row.last(key))}"
    where += f", best saved {number(row.saved)}" + (f", on GPU {row.on}" if row.gpus else "")
    curve = Text(f"{printable(name)} by report", style="bold")
    span = f"  {number(min(finite))} to {number(max(finite))}" if finite else "  nothing finite"
    curve.append(span if values else "  no report yet", style="dim not bold")
    lines = [head, *wrapped(where), *wrapped(config_text(row.config)), Text(), curve]
    lines += [Text(sparkline(values, width), style="cyan"), Text()]
    if life.history is None:
        lines += wrapped(f"its history, and why: seerd replay {run} --trial {row.id}")
        lines.append(Text())
    else:
        # no run needs it before a page is opened
        from seerd.telling.explanation.pages import trial_history

        drawn = console.render_lines(Group(*trial_history(life.history)), pad=False)
        parts = ["".join(segment.text for segment in line).rstrip() for line in drawn]
        lines += [*wrapped(f"why: {life.history['why']}"), Text(), *map(Text, parts)]
    if life.log is None:
        return lines
    if not life.log:
        text = f"nothing printed yet that is here: seerd logs {run} {row.id}"
        return [*lines, Text(text, style="dim")]
    log = (Text(f"  {harmless(line)}") for line in life.log)
    return [*lines, Text("the end of its log", style="bold"), *log]


# ------------------------------------------------------------ keys


def _foot(look: LiveLook, width: int, note: str) -> Text:
    if look.asking:
        question = "stop the run? Trials save, and the best model is kept.  y yes  any other key no"
        return Text(question, style="bold reverse")
    if look.typing:
        return Text(f"/{look.filter}_  Enter to keep it, Esc for all trials", style="bold")
    if note:
        return Text(note, style="bold yellow")
    first = [("p", "PAUSED, GO ON")] if look.paused else []
    first += [("Esc", "all trials")] if look.filter and look.page == "run" else []
    leave = [("?", "keys"), ("q", "stop" if look.owner else "leave")]
    times = [("←→", "time")] if look.journeys else []
    times += [("end", "present")] if look.at_s is not None else []
    last = [("m", "metric"), *([] if look.paused else [("p", "pause")])]
    page, moves = [("Esc", "back"), ("↑↓", "scroll")], [("↑↓", "scroll"), ("Enter", "open")]
    keys = {
        "help": [*page, *leave[1:]],
        "trial": [*first, *page, *times, *leave, *last],
        "run": [*first, *moves, ("s", "sort"), ("/", "filter"), *times, *leave, *last],
    }
    text = Text(style="reverse")
    for key, what in keys[look.page]:  # the most useful first
        if len(text) + len(key) + len(what) + 4 > width:
            break
        text.append(f" {key}", style="bold").append(f" {what} ")
    return text.append(" " * max(0, width - len(text)))


KEYS = (
    ("↑ ↓  j k", "one trial, or one line, up or down"),
    ("PgUp PgDn", "a screen up or down"),
    ("g G", "to the first, to the last"),
    ("s r", "sort by the next column; the other way round"),
    ("/", "only trials that have these words in id, state, why or configuration"),
    (
        "Enter",
        "open the marked trial: its curve, the end of its log, and in seerd watch its history",
    ),
    ("Esc", "back; without a page: all trials again"),
    ("m", "the next metric"),
    ("p", "the view stands still, or goes on; the run always goes on"),
)
TIMES = ("← →  [ ]", "back and forth in time; End or 0: the present")
LEAVES = "leave the view; the run goes on"
STOPS = "stop the run, after a question; Ctrl-C does it at once"
COLUMNS = (
    ("last METRIC", "of the trial's last report"),
    ("best saved", "of its best checkpoint in the store; the model that is handed back is the"),
    ("", "best of these, so it may have a better figure than any last report"),
    ("job", "whose trial it is, where jobs share the run: it stands among those of its job, by"),
    ("", "the metric of that job"),
    ("br", "the bracket: trials are compared with those of their own"),
    ("why", "until when it goes on, what it waits for, or how it stood if that decided:"),
    ("", "3rd of 8 at report 4"),
    ("0-3 t7 96%", "GPUs that are lent to t7; of late they computed for so much of the time"),
    ("█ ▒ ·", "used, committed (what giving everything back now would take), left"),
)


def _line(what: str, means: str) -> Text:
    return Text(f"  {what:<12}").append(means, style="dim" if not what else "")
