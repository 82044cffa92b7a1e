"""Exports a run as it goes on, to what `[export]` of its spec names: a process for each. Whatever
becomes of an export, the run goes on as without it, and ends at most a few seconds later.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from seerd.runs import wiring
from seerd.shell.home import RunFolder
from seerd.spec.targets import anywhere, without_password
from seerd.telling.harmless import printable

MOST_PRINTED = 400  # characters of an error message
WHEN = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")  # what a line of the log begins with


@dataclass(frozen=True, slots=True)
class _Exporter:
    kind: str  # name of the tracker
    where: str  # its folder or address, for any working directory
    process: subprocess.Popen[bytes]
    stdin: IO[bytes]  # the process's standard input, which ends when the run does
    log: Path  # what it prints
    end_s: float  # seconds for it after the end of the run

    def end(self, limit_s: float) -> str:
        """Let it export the rest; return what went wrong, empty if nothing."""
        try:
            if self.process.wait(limit_s) == 0:
                return ""
        except subprocess.TimeoutExpired:
            return f"has not answered within {self.end_s:g} s"
        finally:
            self.kill()
        if not self.log.is_file():  # with the folder of a run that could not begin
            return ""
        lines = self.log.read_text(errors="replace").strip().splitlines() or ["has failed"]
        why = printable(WHEN.sub("", lines[-1], count=1))
        return why if len(why) <= MOST_PRINTED else f"{why[:MOST_PRINTED]}..."

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def exporting(folder: RunFolder, end_s: float = 5.0) -> Iterator[None]:
    """Export the run during the block, if its spec says so, and then the rest of it, for `end_s`
    seconds; what could not be exported is one line on stderr.
    """
    setup = wiring.load(folder)
    wanted = {} if folder.target.is_file() else setup.export
    where = Path(setup.spec_folder)
    place = where if where.is_dir() else folder.path
    exporters: list[_Exporter] = []
    try:
        exporters += [_begin(folder, place, kind, to, end_s) for kind, to in wanted.items()]
        yield
    except BaseException:
        for exporter in exporters:
            exporter.kill()
        raise
    for exporter in exporters:
        with contextlib.suppress(BrokenPipeError):
            exporter.stdin.close()  # the run is over
    end = time.monotonic() + end_s
    for exporter in exporters:
        if why := exporter.end(max(0.0, end - time.monotonic())):
            to = without_password(exporter.where)
            address = shlex.quote(to) if to == exporter.where else "ADDRESS"  # the user adds it
            again = f"seerd export {folder.run} --{exporter.kind} {address}"
            print(f"export to {exporter.kind}: {why}; add the rest with: {again}", file=sys.stderr)


def _begin(folder: RunFolder, place: Path, kind: str, where: str, end_s: float) -> _Exporter:
    log = folder.path / f"export-{kind}.log"
    path = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "seerd.export.following", str(folder.path.resolve())],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=place,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
    assert process.stdin is not None
    target = {"kind": kind, "where": where, "end_s": end_s}
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(f"{json.dumps(target)}\n".encode())
        process.stdin.flush()
    return _Exporter(kind, anywhere(where, place), process, process.stdin, log, end_s)
