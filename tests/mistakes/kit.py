"""Makes a mistake for real, and what is answered comparable."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from seerd.agent.gpu_leases import ELSEWHERE
from tests.commands import Command, run_command
from tests.mistakes.catalogue import TORCHLESS, Mistake

TABLE = re.compile(r"\A.*?\n\ntrial .*?\n\n", re.DOTALL)
"""What `run` prints before what is answered: its lines, the head and the table of trials."""
VARIES = (
    (r"mine-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}", "RUN"),
    (r"\bt0[0-9]{3}\b", "t0001"),
    (r"and [0-9]+ more", "and 3 more"),
    (r"all [0-9]+ trials", "all 4 trials"),
    (r"[0-9]+ of [0-9]+ trials train", "4 of 4 trials train"),
    (r"none of the [0-9]+ reports of [0-9]+ trials", "none of the 8 reports of 4 trials"),
    (r"\b(in|In|for|the first) [0-9]+ s\b", r"\1 12 s"),
    (r"^ *[0-9.]+s  ", "   21.3s  "),
    (r"\b[0-9]+ s and\b", "20 s and"),
    (r"lr=[0-9.]+", "lr=0.01234"),
    (r"rank 0 on local-[0-9]+", "rank 0 on local-2"),
    (r"local-[0-9]+", "local-2"),
    (r"/trials/t0001/[0-9]+/work", "/trials/t0001/1/work"),
    (r"(had|have|has) [0-9.]+ reports", r"\1 12 reports"),
    (r'(/lib/seerd/\S+", line) [0-9]+', r"\1 99"),
)


def make(mistake: Mistake, folder: Path) -> Path:
    """Write the script and the spec; return the spec."""
    project = folder / "project"
    project.mkdir(parents=True)
    (project / mistake.program).write_text(mistake.script)
    for name, content in mistake.files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(content)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    spec = project / "spec.toml"
    spec.write_text(mistake.spec.replace(TORCHLESS, str(python)))
    return spec


def environment(folder: Path) -> dict[str, str]:
    own = {"SEERD_HOME": str(folder / "home"), ELSEWHERE: str(folder / "gpus")}
    return {**os.environ, **own, "COLUMNS": "100"}


def begun(folder: Path, *args: str, merged: bool = False) -> Command:
    return Command(args, folder / "project", environment(folder), merged=merged)


def seerd(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return run_command(args, folder / "project", environment(folder))


def run(mistake: Mistake, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it to its end, or to the line that is to be shown."""
    if not mistake.live:
        return seerd(folder, "run", "spec.toml")
    with begun(folder, "run", "spec.toml", merged=True) as process:
        told, asked = "", False
        for line in process.stdout:
            told += line
            if not asked and mistake.live in told and ": ready with" in told:
                asked = True
                process.send_signal(signal.SIGINT)
    return subprocess.CompletedProcess(process.args, process.wait() or 0, told, "")


def answer(mistake: Mistake, told: subprocess.CompletedProcess[str], folder: Path) -> str:
    """What is answered: what follows the table of trials, or the errors if there is no table."""
    if mistake.live:
        lines = [line for line in (told.stderr + told.stdout).splitlines() if mistake.live in line]
        return settled("\n".join(lines[:1]), folder)
    if "\n\ntrial " not in told.stdout:
        return settled(told.stderr.strip(), folder)
    head = re.search(r"^mine-\S+: .*?;", told.stdout, re.MULTILINE)
    ending = head[0].rstrip(";") if head else ""
    return settled(f"{ending}\n...\n{TABLE.sub('', told.stdout).strip()}", folder)


def settled(text: str, folder: Path) -> str:
    """Put the same in place of what differs from run to run and from machine to machine."""
    for path, name in (
        (f"{folder}/project", "~/project"),
        (f"{folder}/home", "~/.local/state/seerd"),
        (f"{folder}/python", "python3"),
    ):
        text = text.replace(path, name)
    for pattern, same in VARIES:
        text = re.sub(pattern, same, text, flags=re.MULTILINE)
    return text
