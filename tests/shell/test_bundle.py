"""What is shipped: the user's source without what is not wanted, never the runs themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from seerd.shell.bundle import build_agent, copy_source


def test_the_source_is_copied_without_what_is_ignored(tmp_path: Path) -> None:
    source = tmp_path / "project"
    for name in (
        "train.py",
        "big/data.bin",
        ".git/config",
        "a/__pycache__/x.pyc",
        "a/keep.txt",
        "notes.log",
    ):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    os.mkfifo(source / "pipe")
    (source / ".seerdignore").write_text("big/\n*.log\n")
    to = source / "runs" / "run-1" / "source"
    to.parent.mkdir(parents=True)
    copy_source(source, to, set())
    copied = {path.relative_to(to).as_posix() for path in to.rglob("*") if path.is_file()}
    assert copied == {"train.py", "a/keep.txt", ".seerdignore"}


def test_the_agent_s_zip_is_the_same_every_time_and_runs(tmp_path: Path) -> None:
    first, second = tmp_path / "a.pyz", tmp_path / "b.pyz"
    build_agent(first)
    build_agent(second)
    assert first.read_bytes() == second.read_bytes()
    elsewhere = (
        "import seerd.agent.serve, seerd.shell.bundle, sys, pathlib; "
        "seerd.shell.bundle.build_agent(pathlib.Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", elsewhere, second], check=True)
    assert first.read_bytes() == second.read_bytes(), "whatever else is in memory"
    told = subprocess.run(
        [sys.executable, "-I", first, "--help"], capture_output=True, text=True, check=True
    )
    assert "--lease-s" in told.stdout
