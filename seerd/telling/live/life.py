"""One trial's history and the end of its log, for its page.

The journal is read by a process of its own (this module), so that the run need not wait.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from seerd.errors import SeerdError
from seerd.shell.home import RunFolder
from seerd.telling import logs
from seerd.telling.live.trial_page import TrialLife
from seerd.telling.plan_json import Json

LOG_LINES = 12
AGAIN_S = 5.0  # how long after one reading the journal is read again for the page that is open


class Lives:
    """Reads the life of the trial whose page is open, in another process."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._histories: dict[str, Json] = {}
        self._failed: dict[str, str] = {}
        self._reading: tuple[str, subprocess.Popen[bytes], IO[bytes], IO[bytes]] | None = None
        self._read_at: dict[str, float] = {}

    @property
    def reading(self) -> bool:
        """Whether a process reads."""
        return self._reading is not None

    def of(self, trial: str) -> TrialLife:
        """Return what is known now; it is read again now and then, until that fails once."""
        self._look()
        due = time.monotonic() - self._read_at.get(trial, -AGAIN_S) >= AGAIN_S
        if self._reading is None and due and trial not in self._failed:
            self._read(trial)
        failed = self._failed.get(trial, "")
        return TrialLife(self._histories.get(trial), log_tail(self._folder, trial), failed)

    def close(self) -> None:
        """End the reading that is under way."""
        if self._reading is not None:
            _, process, out, err = self._reading
            process.kill()
            process.wait()
            out.close()
            err.close()
            self._reading = None

    def _read(self, trial: str) -> None:
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        command = reader(self._folder, trial)
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        except OSError as error:
            out.close()
            err.close()
            self._failed[trial] = str(error)
        else:
            self._reading = (trial, process, out, err)

    def _look(self) -> None:
        if self._reading is None or self._reading[1].poll() is None:
            return
        trial, process, out, err = self._reading
        self._reading, self._read_at[trial] = None, time.monotonic()
        with out, err:
            out.seek(0)
            err.seek(0)
            if process.returncode == 0:
                self._histories[trial] = json.loads(out.read())
            else:
                lines = err.read().decode(errors="replace").split("\n")
                why = next((line for line in reversed(lines) if line.strip()), "")
                self._failed[trial] = why or f"exit status {process.returncode}"


def reader(folder: RunFolder, trial: str) -> list[str]:
    """Return the command that prints the history of a trial."""
    # -P: a numbers.py where the run was started must not take the place of Python's own.
    return [sys.executable, "-P", "-m", "seerd.telling.live.life", str(folder.path), trial]


def log_tail(folder: RunFolder, trial: str) -> tuple[str, ...]:
    """Return the last lines of the log of a trial's newest attempt that was written to last."""
    with contextlib.suppress(SeerdError, OSError):
        paths = logs.newest_attempts(logs.log_files(folder, trial), folder)
        if paths:
            newest = max(paths, key=lambda path: path.stat().st_mtime)
            return tuple("".join(logs.tail(newest, LOG_LINES)).splitlines())
    return ()


def main(path: str, trial: str) -> None:
    """Print the history of a trial, as JSON."""
    from seerd.telling.explanation.as_json import trial_json
    from seerd.telling.explanation.timeline import read_history

    run = read_history(RunFolder(Path(path)))
    print(json.dumps(trial_json(run.state.trials[trial], run.timeline, run.state)))


if __name__ == "__main__":
    main(*sys.argv[1:])
