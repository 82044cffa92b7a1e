"""The live view on a real terminal: keys are heard, and the terminal is left as it was found, however
the view ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from seerd.shell.journal import Entry, Journal
from tests.conftest import small_facts
from tests.test_live import world

ROOT = Path(__file__).parent.parent
OPENED, CLOSED = "\x1b[?1049h", "\x1b[?1049l"
CODE = "from seerd import cli\ncli.main()"
OWN_TERMINAL = """import fcntl, signal, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup
"""
WATCH = [sys.executable, "-c", CODE, "watch", "small"]
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a run that is over."""
    made, home = world(small_facts(), 70.0), tmp_path_factory.mktemp("home")
    (home / "small").mkdir()
    with Journal.create(home / "small" / "journal.db", 0.0) as journal:
        journal.append([Entry(seq, *one) for seq, one in enumerate(made.journal, 1)])
    return home


class Seen:
    """A command on a terminal of its own, and what it has written there."""

    def __init__(self, home: Path, *words: str, code: str = CODE) -> None:
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(
            self.theirs,
            termios.TIOCSWINSZ,
            b"".join(n.to_bytes(2, sys.byteorder) for n in (30, 100, 0, 0)),
        )
        self.before = termios.tcgetattr(self.theirs)
        self.text = ""
        environment = {
            **os.environ,
            "SEERD_HOME": str(home),
            "TERM": "xterm",
            "PYTHONPATH": str(ROOT),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL + code, "watch", "small", *words],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env=environment,
            start_new_session=True,
        )

    def until(self, text: str) -> str:
        """Read until it has written this; return all since the last time, without colours. What it
        has written after this is kept.
        """
        until = time.monotonic() + PATIENCE_S
        while text not in self.text:
            left = until - time.monotonic()
            assert left > 0, f"{text!r} did not come, but {self.text!r}"
            if select.select([self.ours], [], [], left)[0]:
                self.text += os.read(self.ours, 1 << 16).decode(errors="replace")
                self.text = re.sub(r"\x1b\[[0-9;]*[mK]", "", self.text)
        end = self.text.index(text) + len(text)
        found, self.text = self.text[:end], self.text[end:]
        return found

    def press(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def is_as_it_was(self) -> bool:
        return termios.tcgetattr(self.theirs) == self.before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for number in (self.ours, self.theirs):
            os.close(number)


@contextlib.contextmanager
def seen(home: Path, *words: str, code: str = CODE) -> Iterator[Seen]:
    made = Seen(home, *words, code=code)
    with contextlib.closing(made):
        yield made


def test_keys_are_heard_and_the_terminal_is_left_as_it_was(home: Path) -> None:
    with seen(home) as view:
        view.until("trials 1-6 of 6")
        modes = termios.tcgetattr(view.theirs)[3]
        assert modes & termios.ISIG, "Ctrl-C is a signal"
        assert not modes & (termios.ICANON | termios.ECHO)
        view.press("s")
        view.until("by saved")
        view.press("\x1b[B\r")
        view.until("accuracy by report")
        view.press("\x1b")
        view.until("by saved")
        view.press("/t0003\r")
        view.until("1-1 of 1")
        view.press("\x1b[D")
        view.until("as it was at")
        view.press("q")
        view.until(CLOSED)
        assert view.process.wait(PATIENCE_S) == 0
        assert view.is_as_it_was()


@pytest.mark.parametrize(
    ("ending", "status"),
    [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP), (signal.SIGINT, 130)],
)
def test_the_terminal_is_left_as_it_was_whatever_ends_the_view(
    home: Path, ending: signal.Signals, status: int
) -> None:
    with seen(home) as view:
        view.until("trials 1-6 of 6")
        assert not view.is_as_it_was()
        view.process.send_signal(ending)
        view.until(CLOSED)
        assert view.process.wait(PATIENCE_S) == status
        assert view.is_as_it_was()


def test_a_stopped_view_gives_the_terminal_back_and_takes_it_again(home: Path) -> None:
    with seen(home) as view:
        view.until("trials 1-6 of 6")
        # Its session has no shell, so the kernel would not stop it for Ctrl-Z: it is only asked.
        view.process.send_signal(signal.SIGTSTP)
        view.until(CLOSED)
        view.process.send_signal(signal.SIGCONT)
        view.until(OPENED)
        view.until("trials 1-6 of 6")
        view.press("q")
        view.until(CLOSED)
        assert view.process.wait(PATIENCE_S) == 0
        assert view.is_as_it_was()


def test_a_moment_is_shown_that_is_asked_for(home: Path) -> None:
    with seen(home, "--at", "25s") as view:
        view.until("as it was at 25s")
        view.until("trials 1-6 of 6")
        view.press("\x1b[C")
        view.until("as it was at 26s")
        view.press("0")
        view.until("over: the plan is carried out")


WORKING = """
from seerd.telling.working import working
with working("looking for what is left", 0.0):
    input()
print("found")
"""


def test_long_work_says_what_it_does_on_a_terminal_until_it_is_done(home: Path) -> None:
    with seen(home, code=WORKING) as command:
        command.until("looking for what is left")
        command.press("\n")
        after = command.until("found")
        assert "\x1b[?25h" in after, "the cursor is back"
        assert command.process.wait(PATIENCE_S) == 0
    told = subprocess.run(
        [sys.executable, "-c", WORKING],
        input="\n",
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert told.stdout == "found\n"
    assert told.stderr in ("", "seerd: looking for what is left ...\n"), "it may be over before"


def test_long_work_is_one_line_without_a_terminal() -> None:
    command = subprocess.Popen(
        [sys.executable, "-c", WORKING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert command.stderr is not None
    assert command.stderr.readline() == "seerd: looking for what is left ...\n"
    assert command.communicate("\n") == ("found\n", "")


def test_without_a_terminal_there_are_lines_and_no_key_is_waited_for(home: Path) -> None:
    told = subprocess.run(
        [*WATCH, "--at", "25s"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "SEERD_HOME": str(home), "PYTHONPATH": str(ROOT)},
    )
    times = [
        float(line.split("s")[0])
        for line in told.stdout.splitlines()
        if line[:7].strip()[:1].isdigit()
    ]
    assert times
    assert max(times) <= 25.0
    assert "\x1b" not in told.stdout


def test_lines_that_nobody_reads_any_more_end_the_command_in_silence(home: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    command = subprocess.run(
        WATCH,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "SEERD_HOME": str(home), "PYTHONPATH": str(ROOT)},
    )
    os.close(theirs)
    assert (command.returncode, command.stderr) == (1, ""), "as every other command"


def test_keys_that_nobody_can_press_are_not_waited_for(home: Path) -> None:
    """Standard output is a terminal, and standard input is not."""
    ours, theirs = pty.openpty()
    command = subprocess.run(
        WATCH,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, "SEERD_HOME": str(home), "TERM": "xterm", "PYTHONPATH": str(ROOT)},
    )
    assert command.returncode == 0
    os.close(theirs)
    os.close(ours)
