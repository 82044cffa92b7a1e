"""The instances: what each is doing, and which trial each of its GPUs is lent to.

The one rule: it says in words what it shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.text import Text

from seerd.core.lifecycle import InstancePhase
from seerd.telling.live.board import Board, ShownInstance
from seerd.telling.words import gpus_text

WORDS = {
    InstancePhase.REQUESTED: "booting",
    InstancePhase.READY: "ready",
    InstancePhase.LEAVING: "leaving: the cloud takes it",
    InstancePhase.RELEASING: "being given back",
}
ORDER = list(WORDS)


def strip(board: Board, width: int, rows: int) -> list[Text]:
    """Draw a line that counts the instances, and one for each, in at most `rows` lines."""
    there = [one for one in board.machines if one.phase is not InstancePhase.REQUESTED]
    lines = [_counted(board)]
    told = [line for one in there for line in _told(one, width)]
    room = max(0, rows - 1)
    if len(told) > room:
        told = told[: max(0, room - 1)]
        left = len(there) - len({line.partition("  ")[0] for line in told})
        told += [f"and {left} more"] * (room > 0 and left > 0)
    return [*lines, *map(Text, told)]


def _counted(board: Board) -> Text:
    if not board.machines:
        return Text("instances: none " + ("yet" if board.running else "left"), style="dim")
    phases = Counter(one.phase for one in board.machines)
    counted = ", ".join(
        f"{phases[phase]} {WORDS[phase].partition(':')[0]}" for phase in ORDER if phases[phase]
    )
    text = Text(f"instances: {counted}", style="bold")
    gpus = sum(one.gpus for one in board.machines if one.phase is not InstancePhase.REQUESTED)
    lent = sum(len(one.lent) for one in board.machines)
    if gpus:
        text.append(f"; GPUs: {lent} lent to trials, {gpus - lent} idle", style="dim")
    return text


def _told(machine: ShownInstance, width: int) -> Iterator[str]:
    phase = "" if machine.phase is InstancePhase.READY else f" ({WORDS[machine.phase]})"
    line = f"{machine.id}{phase}: "
    first = True
    for part in _lent(machine):
        if not first and len(line) + len(part) + 2 > width:
            yield line
            line = "    "
            first = True
        line += ("" if first else ", ") + part
        first = False
    yield line


def _lent(machine: ShownInstance) -> Iterator[str]:
    who = [_holder(machine, gpu) for gpu in range(machine.gpus)]
    for holder, some in groupby(range(machine.gpus), key=who.__getitem__):
        gpus = list(some)
        busy = _busy(machine, gpus) if gpus[0] in machine.lent else ""
        yield f"{gpus_text(gpus)} {holder}{busy}"


def _busy(machine: ShownInstance, gpus: Sequence[int]) -> str:
    known = [share for share in machine.busy[gpus[0] : gpus[-1] + 1] if share is not None]
    return f" {sum(known) / len(known):.0%}" if known else ""


def _holder(machine: ShownInstance, gpu: int) -> str:
    if gpu in machine.lent:
        return machine.lent[gpu]
    return f"idle (for {machine.next[gpu]})" if gpu in machine.next else "idle"
