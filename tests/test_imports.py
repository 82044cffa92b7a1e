"""What each command, and a run with each provider, imports of what is heavy: no more than it uses.

The one rule: the sets are exact. Whoever adds to one has looked at what that costs every time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = {
    "aioboto3",
    "aiohttp",
    "asyncio",
    "asyncssh",
    "botocore",
    "importlib.metadata",
    "mlflow",
    "multiprocessing",
    "numpy",
    "optuna",
    "pathspec",
    "pydantic",
    "rich",
    "scipy",
    "seerd.agent.protocol",
    "sqlite3",
    "tensorboard",
    "threadpoolctl",
    "wandb",
}
READING = {"sqlite3"}
DAEMON = {"asyncio", "seerd.agent.protocol", "sqlite3"}
SSH = {*DAEMON, "asyncssh"}
PLANNING = {"numpy", "sqlite3", "threadpoolctl"}
SIMULATING = {"multiprocessing", "numpy", "threadpoolctl"}
AWS = {"aioboto3", "aiohttp", "asyncio", "botocore", "importlib.metadata"}
if find_spec("httpx"):  # which aiobotocore imports where it is installed, and rich with it
    AWS.add("rich")
POLICIES = ("asha", "hypersched", "halving", "baselines", "seer", "seer_plus", "hyperband")
SPEC = """
name = "imports"
metric = {{ name = "accuracy", mode = "max" }}
[train]
script = "train.py"
launcher = "python"
[space]
lr = {{ low = 0.1, high = 0.9 }}
[policy]
name = "random"
trials = 1
max_reports = 1
[limits]
deadline = "20m"
budget = "60gpu-min"
[cluster]
{cluster}
"""
SCRIPT = """
import json, os
with open(os.environ["SEERD_DIR"] + "/out.jsonl", "a") as out:
    for line in ({"kind": "training", "epoch": 0}, {"kind": "report", "epoch": 1, "metrics": {"accuracy": 1.0}}):
        out.write(json.dumps(line) + "\\n")
"""
"""As any language can: it imports nothing of ours."""
CLUSTERS = {
    "local": "gpus = 1",
    "hosts": 'provider = "hosts"\nhosts = [{ address = "10.0.0.5", gpus = 8 }]\n'
    'store = "s3://bucket/runs"',
    "ec2": 'provider = "ec2"\nimage = "ami-1"\ninstance_type = "g4dn.12xlarge"\nprice = "$4"\n'
    'store = "s3://bucket/runs"',
}
AT_THE_END = """
import atexit, json, os, sys
def tell():
    with open(os.environ["TOLD"], "w") as told:
        json.dump(sorted(sys.modules), told)
atexit.register(tell)
"""
COMMAND = f"{AT_THE_END}\nfrom seerd import cli\ncli.main()"
DAEMON_OF = f"""{AT_THE_END}
from pathlib import Path
from seerd.commands.options import SpecOptions
from seerd.runs import clusters, runs
from seerd.shell.aside import aside
from seerd.shell.home import Home
asked, home = SpecOptions(Path("spec.toml")), Home(Path("home").resolve())
experiment = asked.complete()
quote = clusters.unasked_quote(experiment)
def planned():
    from seerd.planning.plans import facts_of
    return facts_of(experiment, home, quote, ideal=False, minimize=None)
facts = aside(planned)
made = runs.create(experiment, facts, home, quote, 1.8e9)
runs._environment(*made)
"""
"""Everything from a spec to a daemon that could begin, but what asks a cloud."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a spec for each kind of cluster, and one run, which is over."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "train.py").write_text(SCRIPT)
    for kind, keys in CLUSTERS.items():
        (folder / f"{kind}.toml").write_text(SPEC.format(cluster=keys))
    return folder


def imported(folder: Path, code: str, *words: str) -> set[str]:
    """All modules that a process with this code has imported by its end."""
    told = folder / "told.json"
    told.unlink(missing_ok=True)
    environment: dict[str, Any] = {
        **os.environ,
        "TOLD": str(told),
        "PYTHONPATH": str(ROOT),
        "SEERD_HOME": str(folder / "home"),
    }
    subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    return set(json.loads(told.read_text()))


def heavy(folder: Path, *words: str) -> set[str]:
    return imported(folder, COMMAND, *words) & HEAVY


@pytest.fixture(scope="module")
def run(project: Path) -> set[str]:
    """What a whole run on this machine imports."""
    return imported(project, COMMAND, "run", "local.toml", "--plain")


def test_a_run_here_imports_no_cloud_no_ssh_and_nothing_that_only_plans(run: set[str]) -> None:
    assert run & HEAVY == {*DAEMON, "rich"}, "rich draws the table at its end"
    assert not {f"seerd.planner.{name}" for name in POLICIES} & run
    assert not [name for name in run if name.startswith("seerd.aws")]


@pytest.mark.parametrize(
    ("words", "uses"),
    [
        (("--help",), set()),
        (("--version",), {"seerd.agent.protocol"}),
        (("run", "--help"), set()),
        (("run", "local.toml", "--no-such-option"), set()),
        (("run", "local.toml", "--set", "policy.eta=none"), set()),
        (("run", "no.toml"), set()),
        (("plan", "local.toml"), {*PLANNING, "rich"}),
        (("plan", "local.toml", "--json"), PLANNING),
        (("plan", "ec2.toml", "--json"), PLANNING),
        (("list",), {*READING, "rich"}),
        (("list", "--json"), READING),
        (("show",), {*READING, "rich"}),
        (("show", "--json"), READING),
        (("ledger", "--json"), READING),
        (("best", "--json"), READING),
        (("watch",), READING),
        (("logs", "last"), set()),
        (("stop", "last"), set()),
        (("export", "last", "--csv", "tables"), READING),
        (("replay",), {*READING, "rich"}),
        (("doctor", "local.toml", "--json"), {"numpy", "asyncio"}),
        (("simulate", "local.toml", "--seeds", "1"), {*SIMULATING, "rich"}),
    ],
)
def test_a_command_imports_no_more_than_it_uses(
    project: Path, run: set[str], words: tuple[str, ...], uses: set[str]
) -> None:
    assert heavy(project, *words) == uses


@pytest.mark.parametrize(
    ("code", "heavy", "typer"),
    [
        ("import seerd", set(), False),
        ("import seerd; seerd.trial", set(), False),
        ("import seerd; seerd.errors.SeerdError", set(), False),
        ("import seerd; seerd.load", {*DAEMON, "numpy", "rich"}, True),
    ],
)
def test_python_imports_no_more_than_it_uses(
    project: Path, code: str, heavy: set[str], typer: bool
) -> None:
    found = imported(project, f"{AT_THE_END}\n{code}")
    assert found & HEAVY == heavy
    assert ("typer" in found) == typer
    assert not found & {"pandas", "vl_convert", "sklearn", "IPython", "torch"}


@pytest.mark.parametrize(
    ("kind", "uses"),
    [("local", DAEMON), ("hosts", {*SSH, *AWS}), ("ec2", {*SSH, *AWS})],
)
def test_a_daemon_imports_what_its_provider_needs(project: Path, kind: str, uses: set[str]) -> None:
    code = DAEMON_OF.replace("spec.toml", f"{kind}.toml")
    assert imported(project, code) & HEAVY == uses
