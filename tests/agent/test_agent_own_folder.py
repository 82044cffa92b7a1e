"""Each attempt runs in a folder of its own, however it is started: what it writes stays there."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.testbed.agents import Rig
from seerd.agent.workplace import SMALL
from tests.agent.conftest import BARE_TORCH

SCRIPT = """
import inspect, json, multiprocessing, os, sqlite3, sys
from pathlib import Path

import beside
import tools.deep
import on_path

def where(_):
    return os.getcwd(), str(Path(__file__).resolve()), multiprocessing.process.ORIGINAL_DIR

if __name__ == "__main__" and os.environ.get("RANK", "0") == "0":
    with sqlite3.connect("kept.db") as db:
        db.execute("insert into seen values (1)")
        rows = db.execute("select count(*) from seen").fetchone()[0]
    with open("history.csv", "a") as file:
        print("one more", file=file)
    Path(__file__).resolve().with_name("best.pt").write_text("mine")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spawned = pool.map(where, [0])[0]
    Path("seen.json").write_text(json.dumps({
        "rows": rows,
        "lines": len(Path("history.csv").read_text().splitlines()),
        "data": os.stat("data/large.bin").st_size,
        "others": sorted(os.listdir("data")),
        "source": inspect.getsource(where) != "",
        "paths": [os.getcwd(), os.path.abspath(sys.argv[0]), sys.path[0], *spawned,
                  str(Path(__file__).resolve()), inspect.getfile(where), beside.HERE,
                  os.environ["PWD"],
                  tools.deep.HERE, on_path.HERE],
    }))
    Path("data", "cache.bin").write_text("mine")
"""
HERE = "from pathlib import Path\nHERE = str(Path(__file__).resolve())\n"


@pytest.mark.parametrize("preload", [[], None])
@pytest.mark.parametrize("launcher", ["python", "torchrun", "command"])
def test_nothing_of_an_attempt_leads_out_of_its_folder(
    rig: Rig, launcher: str, preload: list[str] | None
) -> None:
    for name in ("beside.py", "tools/deep.py", "lib/on_path.py", "tools/__init__.py"):
        (rig.source / name).parent.mkdir(exist_ok=True)
        (rig.source / name).write_text(HERE)
    with sqlite3.connect(rig.source / "kept.db") as db:
        db.execute("create table seen (number)")
    db.close()
    (rig.source / "history.csv").write_text("a line\n")
    (rig.source / "data").mkdir()
    (rig.source / "data" / "large.bin").write_bytes(bytes(SMALL + 1))
    job = rig.job(
        SCRIPT, launcher=launcher, preload=preload, env={"PYTHONPATH": f"lib:{BARE_TORCH}"}
    )
    if launcher == "command":
        (rig.source / "go.sh").write_text(
            f'#!/bin/sh\nexec {job.python} "$(dirname "$0")/train.py"\n'
        )
        (rig.source / "go.sh").chmod(0o700)
        job = replace(job, script="go.sh")
    before = _contents(rig.source)
    client = rig.ready(job)
    attempts = [("t1", 1), ("t2", 1), ("t1", 2)]
    for gpu, (trial, attempt) in enumerate(attempts):
        client.start(trial, attempt, (gpu,))
    for trial, attempt in attempts:
        end = client.exit_of(trial, attempt)
        assert (end.cause, end.code) == ("finished", 0), "\n".join(end.tail)
        work = rig.attempt(trial, attempt) / "work"
        seen: dict[str, Any] = json.loads((work / "seen.json").read_text())
        assert [path for path in seen.pop("paths") if Path(path) not in {work, *_below(work)}] == []
        assert seen == {
            "rows": 1,
            "lines": 2,
            "data": SMALL + 1,
            "others": ["large.bin"],
            "source": True,
        }
        assert (work / "best.pt").read_text() == "mine"
    assert _contents(rig.source) == before


LEAVES = """
import os
from pathlib import Path

here = Path(__file__).resolve().parent
os.chdir(here.parent)
for name in ("data/train/labels.cache", "results/experiment_run/model.json", "foo.txt",
             "runs/exp/best.pt", ".cache/meta.db", "../beside_the_project"):
    path = here.parent / name
    assert not path.exists(), f"{path} is another attempt's"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
assert len(os.listdir("data/train/labels")) == 600
"""


@pytest.mark.parametrize("launcher", ["python", "torchrun"])
def test_no_attempt_finds_what_another_has_left(rig: Rig, launcher: str) -> None:
    """Labels cached beside the data (ultralytics#21126), the first free name of an experiment
    (ludwig#792), a file by a relative path (ray#6228), `ROOT / "runs"` of a script in a subfolder.
    """
    for number in range(600):
        label = rig.source / "data" / "train" / "labels" / f"{number}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        label.touch()
    (rig.source / "tools").mkdir()
    (rig.source / "results").mkdir()
    (rig.source / "tools" / "train.py").write_text(LEAVES)
    client = rig.ready(replace(rig.job("", launcher=launcher), script="tools/train.py"))
    for trial, attempt in (("t1", 1), ("t2", 1), ("t1", 2)):
        client.start(trial, attempt)
        end = client.exit_of(trial, attempt)
        assert end.code == 0, "\n".join(end.tail)
        assert (rig.attempt(trial, attempt) / "work/data/train/labels.cache").read_text() == "mine"


def _below(work: Path) -> list[Path]:
    names = ("train.py", "beside.py", "tools/deep.py", "lib/on_path.py")
    return [work / name for name in names]


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
