"""`bench/gpu.py`: its checks find what has not happened, and all parts are gone through on a fake
device.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.on_gpu import checks
from bench.on_gpu.parts import LONGEST_S, PARTS, Kept

ROOT = Path(__file__).parent.parent
TURNS = 3
"""In each hour another third of the parts is gone through."""
OUTCOME = {"status": "complete", "best": {"trial": "t0001"}, "trials": 3}
TIMES = {"took_s": 19.0, "elapsed_s": 18.0, "deadline_s": 20.0}
BEST = {"trial": "t0002", "accuracy": 0.9, "mark": 17.0}
SEEN: dict[str, dict[str, Any]] = {
    "start": {
        "bare": {"import_s": 3.3, "context_s": 0.2, "all_s": 7.2},
        "warm": [{"import_s": 0.01, "context_s": 0.15}] * 3,
    },
    "command": {"reports": 1, "devices": ["GPU-1", "GPU-2"], "seen": ["GPU-2"]},
    "nccl": {
        "wanted": {"backend": "nccl", "device": "cuda"},
        "backend": "nccl",
        "device": "cuda",
        "ranks": 1,
        "sum": 64.0,
        "reports": 3,
    },
    "profile": {
        "points": [{"gpus": 1, "measured": True, "report_s": 0.3}],
        "start_s": {"p50": 8.2},
        "save_s": {"p50": 0.03},
        "checkpoint_bytes": 4_800_000,
    },
    "best": {"reports": 40, "best_report": BEST, "handed_back": BEST},
    "saves": {"rounds": 2, "names": ["1", "2", "3"], "pause_s": 0.05, "published_s": 0.8},
    "memory": {"saving_takes": 1.02, "reading_takes": 0.0, "read_s": 2.0},
    "share": {
        "trials": 9,
        "reports": 150,
        "best": {"trial": "t0004"},
        "used_s": 97.0,
        "budget_s": 100.0,
        "share": 0.97,
    },
    "move": {
        "state_mib": 1024,
        "least_bytes": 1 << 30,
        "left": [{"trial": "t0001", "attempt": 1, "reports": 3}],
        "back": [{"trial": "t0001", "attempt": 2, "reports": 3}],
    },
    "killed": {
        "wanted_mib": 4096,
        "held_mib": 4700,
        "freed_s": 0.1,
        "went_on_from": [8],
        "exits": [{"signal": 9, "code": 1}, {"signal": None, "code": 0}],
    },
    "parts": {
        "whole": {"at_once": 1, "reports": 60, "crashed": []},
        "parts": {"at_once": 4, "reports": 120, "crashed": []},
        "mps": {"at_once": 4, "reports": 140, "crashed": [], "notices": ["its GPUs are slow"]},
        "ratios": {"whole": 1.0, "parts": 2.0, "mps": 2.3},
        "ratio": 2.3,
    },
    "appetite": {
        "greedy": "t0001",
        "at_once": 4,
        "crashed": ["t0001"],
        "slots_later": 2,
        "neighbours_s": 9.0,
    },
    "hang": {
        "hung": [[4711, 1.7e9]],
        "exits": [{"cause": "asked"}],
        "reports_since": 12,
        "freed_s": 0.2,
    },
}
"""Facts of each part, as they are where all has happened."""
GONE_WRONG = [
    ("start", {"warm": []}),
    ("start", {"warm": [{"import_s": 3.0, "context_s": 0.2}] * 3}),
    ("command", {"seen": []}),
    ("command", {"seen": ["GPU-3"]}),
    ("command", {"reports": 0}),
    ("nccl", {"backend": "gloo"}),
    ("nccl", {"device": "cpu"}),
    ("nccl", {"sum": 0.0}),
    ("nccl", {"reports": 0}),
    ("profile", {"points": [{"gpus": 1, "measured": False, "report_s": 0.3}]}),
    ("profile", {"checkpoint_bytes": None}),
    ("profile", {"start_s": None}),
    ("best", {"reports": 1}),
    ("best", {"handed_back": {**BEST, "accuracy": 0.89}}),
    ("best", {"handed_back": {**BEST, "mark": 18.0}}),
    ("saves", {"names": ["1", "1", "1"]}),
    ("saves", {"names": ["1"]}),
    ("saves", {"pause_s": 0.8}),
    ("memory", {"saving_takes": 0.0}),
    ("memory", {"read_s": 0.0}),
    ("share", {"trials": 1}),
    ("share", {"reports": 0}),
    ("share", {"best": None}),
    ("share", {"used_s": 0.0}),
    ("share", {"used_s": 101.0}),
    ("move", {"back": []}),
    ("move", {"back": [{"trial": "t0001", "attempt": 2, "reports": 0}]}),
    ("move", {"back": [{"trial": "t0001", "attempt": 2, "reports": 2}]}),
    ("move", {"least_bytes": 4096}),
    ("killed", {"held_mib": 0}),
    ("killed", {"exits": [{"signal": None, "code": 0}]}),
    ("killed", {"went_on_from": []}),
    ("killed", {"went_on_from": [0]}),
    ("parts", {"parts": {"at_once": 1, "reports": 120, "crashed": []}}),
    ("parts", {"parts": {"at_once": 4, "reports": 0, "crashed": []}}),
    ("parts", {"parts": {"at_once": 4, "reports": 120, "crashed": ["t0002"]}}),
    (
        "parts",
        {"mps": {**SEEN["parts"]["mps"], "notices": ["trials on one GPU take turns: no MPS"]}},
    ),
    ("parts", {"mps": {**SEEN["parts"]["mps"], "at_once": 1}}),
    ("parts", {"whole": {"at_once": 2, "reports": 60, "crashed": []}}),
    ("appetite", {"crashed": []}),
    ("appetite", {"crashed": ["t0001", "t0003"]}),
    ("appetite", {"at_once": 1}),
    ("appetite", {"neighbours_s": -1.0}),
    ("hang", {"hung": []}),
    ("hang", {"exits": []}),
    ("hang", {"reports_since": 0}),
    ("hang", {"freed_s": None}),
    ("hang", {"took_s": 21.0}),
]


def facts(part: str) -> dict[str, Any]:
    return {**OUTCOME, **TIMES, **SEEN[part]}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_in_which_all_has_happened_does_not_fail(part: str) -> None:
    assert list(getattr(checks, part)(facts(part))) == []
    assert checks.missed(part, facts(part)) == []


@pytest.mark.parametrize(("part", "change"), GONE_WRONG)
def test_a_part_fails_if_what_it_is_named_for_has_not_happened(
    part: str, change: dict[str, Any]
) -> None:
    (failed,) = getattr(checks, part)({**facts(part), **change})
    assert failed


def test_each_part_can_fail_and_all_together_take_eight_minutes_at_most() -> None:
    assert {part for part, _ in GONE_WRONG} == set(PARTS)
    assert sum(part.most_s for part in PARTS.values()) <= LONGEST_S


@pytest.mark.parametrize(
    ("part", "figure", "value"),
    [
        ("saves", "pause_s", 0.4),
        ("memory", "reading_takes", 0.3),
        ("share", "share", 0.9),
        ("parts", "ratio", 1.5),
        ("appetite", "slots_later", 1),
    ],
)
def test_a_figure_that_is_not_what_it_must_be_is_named(
    part: str, figure: str, value: float
) -> None:
    (why,) = checks.missed(part, {**facts(part), figure: value})
    assert why.startswith(figure)


def test_what_was_done_is_kept_for_the_same_device_and_code(tmp_path: Path) -> None:
    path, about = tmp_path / "build" / "gpu.json", {"devices": ["GPU 0"], "code": "1"}
    kept = Kept(path, about)
    kept.keep("nccl", {"failed": [], "sum": 64.0})
    kept.keep("hang", {"failed": ["no rank hung"]})
    again = Kept(path, about)
    assert {part for part in PARTS if again.is_done(part)} == {"nccl"}
    assert again.body == json.loads(path.read_text())
    assert not Kept(path, {**about, "code": "2"}).parts


def names(script: str) -> set[str]:
    """The functions, classes, methods and constants of a script."""
    tree = ast.parse((ROOT / "bench" / "on_gpu" / "scripts" / script).read_text())
    inner = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name != "Block"]
    nodes = [("", tree), *((f"{node.name}.", node) for node in inner)]
    return {
        prefix + node.name
        for prefix, holder in nodes
        for node in holder.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name != "Block"
    }


def test_the_fake_device_has_what_the_real_one_has() -> None:
    assert names("cuda.py") <= names("pretend.py") | {"State.mark"}


@pytest.mark.timeout(480)
def test_the_parts_are_gone_through_on_a_fake_device(tmp_path: Path) -> None:
    turn, kept = int(time.time() // 3600) % TURNS, tmp_path / "gpu.json"
    parts = list(PARTS)[turn::TURNS]
    done = subprocess.run(
        [sys.executable, "bench/gpu.py", "--pretend", "--kept", str(kept), *parts],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "bare_torch")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(kept.read_text()) == json.loads(done.stdout)
    assert set(json.loads(done.stdout)["parts"]) == set(parts)
