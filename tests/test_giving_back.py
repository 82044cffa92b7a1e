"""Work that has rented something, when the terminal or the pipe that it tells of it is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, pathlib, sys
from seerd.commands.common import orderly
from seerd.commands.giving_back import teller, until_signal
from seerd.errors import InterruptedRentalError

say = teller(sys.stdout)

async def work():
    try:
        while True:
            say("at work")
            await asyncio.sleep(0.05)
    finally:
        await asyncio.sleep(0.2)
        say("gave it back")
        pathlib.Path(sys.argv[1]).write_text("given back")

with orderly():
    until_signal(work, {tell}, "it")
"""
PLAIN = "lambda text: print(text, flush=True)"


@pytest.mark.parametrize("tell", ["say", PLAIN])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_gives_back_though_nobody_listens(
    tmp_path: Path, number: signal.Signals, tell: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("{tell}", tell), str(tmp_path / "end")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert "at work" in process.stdout.readline()
    process.stdout.close()
    process.send_signal(number)
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (130, "seerd: interrupted; nothing was started\n")
    assert (tmp_path / "end").read_text() == "given back"
