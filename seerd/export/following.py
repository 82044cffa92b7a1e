"""The process that exports a run as it goes on, to one tracker, until its standard input ends.

Nothing depends on it. What it could not export, `seerd export` adds later.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from seerd.errors import SeerdError
from seerd.export.tracked import Tracker
from seerd.export.trackers import bring, opened
from seerd.shell.home import RunFolder
from seerd.spec.targets import place_of
from seerd.telling.explanation.timeline import RunHistory, read_history

SHARE = 0.05  # the most of a core's time that it takes


@contextmanager
def alone(folder: RunFolder, kind: str, where: str, *, wait: bool = False) -> Iterator[bool]:
    """Hold the right to export this run to `where` (a folder, relative to the working directory, or
    an address), as two writers at once would write twice; yield False if another process has it.
    """
    place = os.fsencode(place_of(where, Path.cwd()))
    name = hashlib.sha256(place).hexdigest()[:8]
    with (folder.path / f"export-{kind}-{name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


class Following:
    """A run, and a tracker at `where` (folder or address) that is brought up to date with it."""

    def __init__(self, folder: RunFolder, kind: str, where: str) -> None:
        self._folder = folder
        self._kind = kind
        self._where = where
        self._run: RunHistory | None = None
        self._tracker: Tracker | None = None

    def bring(self, *, last: bool = False) -> str:
        """Read on, and export what has come; return what went wrong, empty if nothing."""
        try:
            if self._run is None:
                self._run = read_history(self._folder)
            else:
                self._run.read_on(self._folder)
        except SeerdError as error:
            self._run = None
            return str(error)
        try:
            self._tracker = self._tracker or opened(self._kind, self._where)
            bring(self._tracker, self._kind, self._run, last=last)
        except SeerdError as error:
            self._tracker = None  # it is not known what has come there
            return str(error)
        return ""


def follow(
    following: Following, over: threading.Event, every_s: float = 2.0, again_s: float = 10.0
) -> str:
    """Export until the run is over, every `every_s` seconds, and after a failure `again_s` later;
    return what went wrong the last time, empty if nothing.
    """
    failed, pause_s = "", every_s
    while True:
        last = over.wait(pause_s)
        began = time.monotonic()
        why = following.bring(last=last)
        if why and why != failed:
            print(time.strftime("%Y-%m-%d %H:%M:%S"), why, flush=True)
        failed = why
        if last:
            return failed
        took_s = time.monotonic() - began
        pause_s = max(every_s, again_s if failed else 0.0, took_s / SHARE)


def main() -> None:
    """Export the run in the folder that the command line names, to what the first line of standard
    input names, so that no address is seen among processes.
    """
    folder = RunFolder(Path(sys.argv[1]))
    line = sys.stdin.readline()
    if not line:
        return  # the run's process was gone at once
    target = json.loads(line)
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()
        time.sleep(target["end_s"])
        os._exit(1)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    os.nice(10)
    with alone(folder, target["kind"], target["where"], wait=True):
        failed = follow(Following(folder, target["kind"], target["where"]), over)
    sys.stdout.flush()
    # Libraries have threads that would wait for servers.
    os._exit(1 if failed else 0)


if __name__ == "__main__":
    main()
