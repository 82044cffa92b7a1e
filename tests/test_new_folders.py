"""A new backend and a new store are a folder and a line of the registry: here two that are made up.

The one rule: nothing of seerd is changed for them but `seerd/registry.py`, whose lines a process of
its own adds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

KEYS = """
from dataclasses import dataclass
from typing import ClassVar
from seerd.spec import values as v
from seerd.spec.keys import BackendKeys, setting

@dataclass(frozen=True)
class IdleKeys(BackendKeys):
    provider: ClassVar = "idle"
    desks: int = setting(v.whole(1), default=1)

KEYS = IdleKeys
"""
BACKEND = """
import asyncio
import math
from seerd.backends.backend import Backend, Site
from seerd.backends.base import Leftovers, Quote, Span
from seerd.backends.examining import Finding
from seerd.errors import LaunchError
from seerd.planner.model import ClusterFacts

class Provider:
    async def open(self, lease_s=None): pass
    async def adopt(self, known, tokens): return [], []
    async def launch(self, token, orphan_timeout_s=None, most_gpus=None):
        raise LaunchError("nobody is at any desk", retry=False)
    async def connect(self, instance): raise AssertionError
    async def end_agent(self, instance, grace_s): raise AssertionError
    def journal(self, instance): return None
    def address(self, instance): return ""
    async def terminate(self, name, spare_s=math.inf): return Span()
    async def loss(self): return await asyncio.Future()
    async def leftovers(self): return Leftovers()
    async def close(self): pass

class IdleBackend(Backend):
    def check(self, spec): pass
    def machine_types(self, machine): return ("desk",)
    def unasked_quote(self, machine):
        facts = ClusterFacts(billing="held", gpus_per_instance=2, max_instances=self.keys.desks)
        return Quote(facts, notes=("nobody works here",))
    def kept(self, spec, files, quote, until): return {"desks": self.keys.desks}
    @staticmethod
    def kept_type(): return dict[str, int]
    @staticmethod
    def site(kept, files, until, lease_s):
        assert kept == {"desks": 3}
        return Site(Provider())
    async def examine(self, case):
        problem = Finding("desks", "problem", "nobody is at any desk", "hire somebody")
        return [case.peak(None)[1], problem]

BACKEND = IdleBackend
"""
STORE = """
from pathlib import Path
from seerd.stores.directory import DirectoryStore

def at(address):
    return DirectoryStore(Path(address.removeprefix("file://")))
"""
WITH_BOTH = """
from seerd import registry
registry.BACKENDS["idle"] = "idle"
registry.STORES["file"] = registry.StoreKind("file:///folder", "file_store")
from seerd import cli
cli.main()
"""
SPEC = """
name = "new"
metric = {{ name = "accuracy", mode = "max" }}
[train]
script = "train.py"
launcher = "python"
[space]
lr = {{ low = 0.1, high = 0.9 }}
[policy]
name = "random"
trials = 2
t_min = "2s"
max_reports = 2
[limits]
deadline = "60s"
budget = "5gpu-min"
[cluster]
{cluster}
"""
ROOT = Path(__file__).resolve().parents[1]


class Folder:
    """A folder with the made-up kinds and a script, and seerd as somebody who has added them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name, text in (
            ("idle/__init__.py", ""),
            ("idle/keys.py", KEYS),
            ("idle/backend.py", BACKEND),
            ("file_store.py", STORE),
        ):
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_text(text)
        shutil.copy(ROOT / "tests" / "programs" / "trainer.py", path / "train.py")

    def seerd(self, *words: str, cluster: str) -> tuple[int, dict[str, Any], str]:
        """Run a command with `--json` on a spec. Return its exit code, JSON and other words."""
        (self.path / "spec.toml").write_text(SPEC.format(cluster=cluster))
        done = subprocess.run(
            [sys.executable, "-c", WITH_BOTH, *words, "spec.toml", "--json"],
            cwd=self.path,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(self.path), str(ROOT)]),
                "SEERD_HOME": str(self.path / "home"),
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done.returncode, json.loads(done.stdout or "{}"), done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


IDLE = 'provider = "idle"\ndesks = 3'


def test_a_new_backend_is_read_and_planned(folder: Folder) -> None:
    code, told, said = folder.seerd("plan", cluster=IDLE)
    assert (code, said) == (0, "")
    assert max(stage["gpus"] for stage in told["stages"]) <= 6
    code, told, said = folder.seerd("plan", cluster='provider = "idle"\ngpus = 3')
    assert (code, told) == (2, {})
    assert "cluster.gpus" in said
    assert "is only for provider = 'local'" in said
    code, _, said = folder.seerd("plan", cluster="desks = 0")
    assert code == 2
    assert "is only for provider = 'idle'" in said


def test_what_doctor_finds_of_a_new_backend_is_told(folder: Folder) -> None:
    code, told, _ = folder.seerd("doctor", cluster=IDLE)
    assert code == 5
    assert told["problems"] == 1
    (found,) = [check for check in told["checks"] if check["check"] == "desks"]
    assert (found["found"], found["todo"]) == ("nobody is at any desk", "hire somebody")
    (plan,) = [check for check in told["checks"] if check["check"] == "plan"]
    assert plan["found"].startswith("at its peak ")


def test_a_run_on_a_new_backend_comes_to_its_end(folder: Folder) -> None:
    code, told, said = folder.seerd("run", cluster=IDLE)
    assert code != 0
    assert "nobody is at any desk" in said
    assert told["best"] is None


def test_what_is_not_for_a_new_backend_is_refused(folder: Folder) -> None:
    for words in (("canary",), ("image", "build")):
        code, _, said = folder.seerd(*words, cluster=IDLE)
        assert code == 2
        assert 'provider = "idle"; to rent: provider = "ec2"' in said


def test_a_new_store_is_planned_with_and_keeps_the_models_of_a_run(folder: Folder) -> None:
    store = folder.path / "kept"
    cluster = f'gpus = 2\nstore = "file://{store}"'
    assert folder.seerd("plan", cluster=cluster)[0] == 0
    code, told, _ = folder.seerd("run", cluster=cluster)
    assert code == 0
    assert Path(told["best"]["checkpoint"]).is_file()
    assert list(store.glob(f"{told['run']}/t*/*.pt"))
