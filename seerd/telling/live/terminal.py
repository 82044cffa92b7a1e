"""The terminal of the live view: a screen of its own, and keys as they are pressed.

It is left as it was found, whatever ends the process but SIGKILL. A process in the background never
touches it, and one that cannot write does not wait. (textual takes 0.25 to 0.5 s longer to import
than rich, and 17 MiB more in every run's daemon.)
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType
from typing import Any, Self

OPEN = b"\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J"  # alternate screen without cursor (xterm)
CLOSE = b"\x1b[?25h\x1b[?1049l"
MOST = 4096  # the most bytes that are read at once
PIECE = 512  # bytes written at once: a terminal that has room for some has room for these
PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
WAIT_S = 0.05
"""How long a terminal may keep a frame waiting; and what follows an escape later than that is not
of one key.
"""


class Terminal:
    """The terminal of standard output and standard input, while the context lasts."""

    def __init__(self) -> None:
        self._out = _number(sys.stdout)
        self.input: int | None = _number(sys.stdin)  # where keys come from; None: nowhere
        self._before: list[Any] | None = None
        self._open = False
        self.pending = ""  # the beginning of a key whose end was not read
        self._wanted: list[str] = []
        self._turns = 0  # how often it was opened and closed
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if self.input is not None and not os.isatty(self.input):
            self.input = None

        def continued(_number: int, _frame: FrameType | None) -> None:
            self._open = False  # others have changed the terminal meanwhile
            self.draw(self._wanted)

        wanted = {**dict.fromkeys(PASSED_ON, self._passed_on), signal.SIGCONT: continued}
        for number, handler in wanted.items():
            if signal.getsignal(number) is signal.SIG_DFL:
                self._handlers[number] = signal.signal(number, handler)
        self.attend()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def attend(self) -> bool:
        """Open the screen if this process is in the foreground; return whether it is open."""
        front = _in_front(self._out)
        if front and not self._open:
            if self.input is not None:
                with contextlib.suppress(OSError, termios.error):
                    modes = termios.tcgetattr(self.input)
                    if modes[3] & termios.ICANON:  # else it is as this process has left it
                        self._before = modes
                    tty.setcbreak(self.input, termios.TCSANOW)
            self._open = True
            self._turns += 1
            self._write(OPEN)
        elif not front:
            self._open = False  # another process has the terminal
        return self._open

    def size(self) -> tuple[int, int]:
        """Return columns and rows; 80 and 24 where that is not known."""
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(self._out)
            if size.columns and size.lines:
                return size.columns, size.lines
        return 80, 24

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines."""
        self._wanted = list(lines)
        if self.attend():
            drawn = (f"\x1b[{n};1H{line}\x1b[0m\x1b[K" for n, line in enumerate(lines, 1))
            self._write("".join(drawn).encode(sys.stdout.encoding or "utf-8", "replace"))

    def clear(self) -> None:
        """Leave nothing on the screen, since the size has changed."""
        if self._open:
            self._write(b"\x1b[H\x1b[2J")

    def pressed(self) -> list[str]:
        """Return the keys that were pressed since the last time; never wait for one."""
        if self.input is None or not self._open:
            return []
        text = self.pending
        with contextlib.suppress(OSError, ValueError):
            while _in_front(self.input) and select.select([self.input], [], [], 0)[0]:
                read = os.read(self.input, MOST)
                if not read:  # the terminal is gone
                    self.input = None
                    break
                text += read.decode(errors="replace")
        keys, pending = decode(text)
        if pending and pending == self.pending:  # nothing followed
            keys, pending = ["escape"] if pending == ESCAPE else [], ""
        self.pending = pending
        return keys

    def wait(self, timeout_s: float) -> None:
        """Wait for a key, at most so long."""
        seconds = WAIT_S if self.pending else timeout_s
        with contextlib.suppress(OSError, ValueError):
            select.select([] if self.input is None else [self.input], [], [], seconds)

    def close(self) -> None:
        """Restore the terminal. May be called from a signal handler."""
        if not self._open or not _in_front(self._out):
            return
        self._open = False
        self._turns += 1
        if self.input is not None and self._before is not None:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(self.input, termios.TCSANOW, self._before)
        self._write(CLOSE)  # last: who sees it may have the view open the screen again at once

    def _write(self, data: bytes) -> None:
        """Write what the terminal takes soon."""
        turns = self._turns
        with contextlib.suppress(OSError, ValueError):
            while data and turns == self._turns and select.select([], [self._out], [], WAIT_S)[1]:
                data = data[os.write(self._out, data[:PIECE]) :]

    def _passed_on(self, number: int, _frame: FrameType | None) -> None:
        """Restore the terminal, and end as this signal ends a process; or, for Ctrl-Z, stop."""
        self.close()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._passed_on)


def _number(stream: object) -> int:
    try:
        return int(stream.fileno())  # type: ignore[attr-defined]
    except (OSError, ValueError, AttributeError):
        return -1


def _in_front(terminal: int) -> bool:
    """Return whether this process may use the terminal: in the background it would be stopped
    (termios(3), SIGTTIN and SIGTTOU). One that is not of this session is used by nobody else.
    """
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return os.isatty(terminal) if terminal >= 0 else False


SEQUENCES = {
    "[A": "up", "OA": "up",
    "[B": "down", "OB": "down",
    "[C": "right", "OC": "right",
    "[D": "left", "OD": "left",
    "[5~": "page up",
    "[6~": "page down",
    "[H": "home", "OH": "home", "[1~": "home", "[7~": "home",
    "[F": "end", "OF": "end", "[4~": "end", "[8~": "end",
}  # fmt: skip
"""What follows an escape (xterm's control sequences in both modes; rxvt's and Linux's)."""
ESCAPE = "\x1b"
CONTROL = {
    "\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace", "\x15": "clear",
    ESCAPE: "escape",
}  # fmt: skip
KEY = re.compile(r"\x1b(?:O.|\[[ -?]*[@-~]?)?|.", re.DOTALL)
BEGINNING = re.compile(r"(?:\x1b(?:O|\[[ -?]*)?)?\Z")  # of a sequence whose end has not come yet


def decode(text: str) -> tuple[list[str], str]:
    """Return the keys in what was read, and what may be the beginning of another one."""
    keys, pending = [], BEGINNING.search(text)
    assert pending is not None, "it matches the empty end"
    for key in KEY.findall(text[: pending.start()]):
        name = SEQUENCES.get(key[1:], "") if len(key) > 1 else CONTROL.get(key, key)
        keys += [name] if name.isprintable() and name else []
    return keys, pending[0]
