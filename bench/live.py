"""What the live view takes of a core, and its longest frame: 400 trials, 1,000 reports a second,
on screens of 80x24 and 200x50. Prints JSON.

A simulated run of that size is played to the middle. Then its events are handed over in real time
to what `seerd run` shows with, in batches as a daemon commits them, and written to a journal that
`seerd watch` follows. Counted is what the view itself takes: of `run` without the core and the
journal, of `watch` with reading. A frame is a board and its drawing; how long it took, and its CPU.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pty
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.testbed import checked_world as simulated
from bench.testbed.checked_world import Behaviour
from seerd.core.events import RunFacts
from seerd.core.state import State, new_state
from seerd.core.step import follow
from seerd.planner.model import ClusterFacts, Limits, PolicyParams, Problem
from seerd.planner.space import Config, Parameter, Space
from seerd.shell.home import RunFolder
from seerd.shell.journal import Entry, Journal
from seerd.telling.live.board import Board
from seerd.telling.live.frame import TrialLife
from seerd.telling.live.look import LiveLook
from seerd.telling.live.viewer import JournalView, RunView, Viewer

TRIALS, REPORTS_PER_S = 400, 1_000
SECONDS = 20.0
TURN_S = 0.05
"""Reports come in batches: many are kept and sent together by their agents."""
SIZES = ((80, 24), (200, 50))


def main() -> None:
    """Measures the view of a run of this process, and of a journal, on two screens."""
    entries, facts, begin = played()
    gc.collect()
    gc.freeze()  # no run has its journal in memory
    told: dict[str, Any] = {"trials": TRIALS, "reports_per_s": REPORTS_PER_S, "seconds": SECONDS}
    for size in SIZES:
        told[f"run {size[0]}x{size[1]}"] = measured(shown, entries, facts, begin, size)
    told["watch 200x50"] = measured(followed, entries, facts, begin, SIZES[1])
    print(json.dumps(told))


def played() -> tuple[list[Entry], RunFacts, int]:
    """Return a run, and the number of the event at which all trials train and have reported."""
    reports = REPORTS_PER_S * (SECONDS * 2 + 5) / TRIALS
    space = Space(tuple(Parameter(f"p{i}", low=1e-4, high=1.0, log=True) for i in range(6)))
    params = PolicyParams(name="random", trials=TRIALS, seed=1)
    report_s = TRIALS / REPORTS_PER_S
    deadline_s = reports * report_s + 60
    problem = Problem(Limits(deadline_s, deadline_s * TRIALS * 2, TRIALS), space, params)
    facts = RunFacts(
        run="large",
        name="large",
        metric="accuracy",
        mode="max",
        problem=problem,
        cluster=ClusterFacts("held", 8, max_instances=TRIALS // 8),
    )
    simulated.violations = lambda state: []  # type: ignore[attr-defined]
    world = simulated.World(
        facts, Behaviour(metric=curve, unit_s=lambda config, epoch, gpus: report_s)
    )
    world.begin()
    while world.events < REPORTS_PER_S * SECONDS * 2.2 and not world.state.finished:
        world.turn()
    entries = [Entry(seq, *one) for seq, one in enumerate(world.journal, 1)]
    return entries, world.facts, int(len(entries) - REPORTS_PER_S * SECONDS)


def curve(config: Config, epoch: int) -> float:
    """The larger the first parameters, the better."""
    return (3 * float(config["p0"]) + float(config["p1"])) / 4 * (1 - 0.99**epoch)


def measured(
    show: Any, entries: list[Entry], facts: RunFacts, begin: int, size: tuple[int, int]
) -> dict[str, float]:
    """Shows the run's events in real time on a terminal of this size."""
    with terminal(size), tempfile.TemporaryDirectory() as home:
        cpu_s, frames = show(RunFolder(Path(home) / "large"), entries, facts, begin)
    return {
        "share_of_a_core": round(cpu_s / SECONDS, 4),
        "longest_frame_ms": round(max(frames.took_s) * 1000, 1),
        "longest_frame_cpu_ms": round(max(frames.cpu_s) * 1000, 1),
        "frames": len(frames.took_s),
    }


class Frames:
    """Measures each frame, its board included: how long it took, and its CPU seconds."""

    def __init__(self, viewer: Viewer) -> None:
        self.took_s: list[float] = []
        self.cpu_s: list[float] = []
        self._show = viewer.show
        viewer.show = self._timed  # type: ignore[method-assign]

    def _timed(self, take: Callable[[], Board], note: str = "") -> None:
        began, cpu = time.perf_counter(), time.thread_time()
        self._show(take, note)
        self.took_s.append(time.perf_counter() - began)
        self.cpu_s.append(time.thread_time() - cpu)


def shown(
    folder: RunFolder, entries: list[Entry], facts: RunFacts, begin: int
) -> tuple[float, Frames]:
    """Shows a run of this process: what is counted is the watcher alone."""
    state = state_at(facts, entries[:begin])
    with Viewer(LiveLook(owner=True), lambda trial: TrialLife()) as viewer:
        view = RunView(viewer)
        view.watch(state, state.now, entries[:begin])
        cpu_s, frames = 0.0, Frames(viewer)
        for batch in in_time(entries[begin:]):
            for entry in batch:
                follow(state, entry.event, entry.decided)
            began = time.thread_time()
            view.watch(state, state.now, batch)
            cpu_s += time.thread_time() - began
    return cpu_s, frames


def followed(
    folder: RunFolder, entries: list[Entry], facts: RunFacts, begin: int
) -> tuple[float, Frames]:
    """Follows a journal: reading it, and following the state, is counted too."""
    folder.path.mkdir()
    done = threading.Event()
    with Journal.create(folder.journal, time.time()) as journal:
        journal.append(entries[:begin])

    def write() -> None:
        with Journal.open(folder.journal) as journal:
            for batch in in_time(entries[begin:]):
                journal.append(batch)
        done.set()

    with folder.locked(), Journal.open(folder.journal, read_only=True) as read:
        view = JournalView(folder, read)
        with Viewer(LiveLook(journeys=True), lambda trial: TrialLife()) as viewer:
            while viewer.board is None or not view.arrived:
                view.turn(viewer)
            frames = Frames(viewer)
            writer = threading.Thread(target=write)
            writer.start()
            began = time.thread_time()
            while not done.is_set():
                view.turn(viewer)
            cpu_s = time.thread_time() - began
            writer.join()
    return cpu_s, frames


def state_at(facts: RunFacts, entries: list[Entry]) -> State:
    """Returns the state after these entries."""
    state = new_state(facts)
    for entry in entries:
        follow(state, entry.event, entry.decided)
    return state


def in_time(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Yields as many entries as come in a turn, when it is their time."""
    size = int(REPORTS_PER_S * TURN_S)
    began = time.monotonic()
    for number in range(int(SECONDS / TURN_S)):
        time.sleep(max(0.0, began + number * TURN_S - time.monotonic()))
        yield entries[number * size : (number + 1) * size]


@contextlib.contextmanager
def terminal(size: tuple[int, int]) -> Iterator[None]:
    """Puts a terminal of this size in the place of standard output; what is written is read."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (size[1], size[0]))
    reader = threading.Thread(target=drain, args=(ours,), daemon=True)
    reader.start()
    kept = os.dup(1)
    sys.stdout.flush()
    os.dup2(theirs, 1)
    os.environ["TERM"] = "xterm-256color"
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        for number in (kept, theirs):
            os.close(number)
        reader.join()
        os.close(ours)


def drain(number: int) -> None:
    """Reads until the other side is closed."""
    with contextlib.suppress(OSError):
        while os.read(number, 1 << 16):
            pass


if __name__ == "__main__":
    main()
