"""A person's coordinator beside a rig: a project, a home, and the real `seerd` in processes of its
own. Shared by tests and benchmarks.

The one rule: everything goes through the command line, the files that seerd leaves, and the rig;
nothing of seerd is called but to write down a profile, as `seerd profile` would have kept it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from bench.testbed.rig import Rig, RigInstance
from bench.testbed.rig.guest import client
from seerd.backends.base import Machine
from seerd.planning import profiles
from seerd.planning.measured import Measured
from seerd.runs.clusters import of
from seerd.spec.spec import load_spec

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
PATIENCE_S = 60.0
FOUR_GPUS, ONE_GPU = "g4dn.12xlarge", "g4dn.xlarge"
MEASURED = Measured(
    report_s={1: [0.22, 0.23, 0.25], 2: [0.22, 0.23, 0.25], 4: [0.22, 0.23, 0.25]},
    start_s=[0.2, 0.3, 0.5],
    restore_s=[0.2, 0.3, 0.5],
    stop_s=[0.3, 0.4, 0.5],
    save_s=[0.1, 0.2, 0.3],
    checkpoint_bytes=16,
    pending_s=[0.5, 1.0, 1.5],
    boot_s=[3.0, 4.0, 5.0],
    release_s=[0.5, 1.0, 1.5],
)
"""Of trainer.py on the rig: without it, plans would set aside the minute and a half that an
instance of EC2 takes to boot.
"""
MEASURED_IN_LIFE = replace(
    MEASURED, pending_s=[8.0, 14.0, 21.0], boot_s=[25.0, 28.0, 33.0], release_s=[1.0, 2.0, 4.0]
)
"""The same on a rig that is as slow as EC2."""

SPEC = """
name = "job"
metric = {{ name = "accuracy", mode = "max" }}
[train]
script = "{script}"
launcher = "{launcher}"
python = "gpu-python"
env = {{ {env} }}
[space]
lr = {{ low = 0.001, high = 0.9 }}
[policy]
{policy}
[limits]
deadline = "{deadline}"
budget = "{budget}"
{limits}
[cluster]
provider = "ec2"
region = "us-east-1"
instance_type = "{kind}"
image = "{image}"
subnets = {subnets}
security_groups = ["{group}"]
store = "s3://{bucket}/runs"
market = "{market}"
scout = {scout}
"""


@dataclass(frozen=True, slots=True)
class Job:
    """What differs between the specs of tests; all of it is text of spec.toml."""

    deadline: str
    budget: str
    script: str = "trainer.py"
    launcher: str = "command"
    policy: str = 'name = "seer"\neta = 2\np_max = 4\nt_min = "5s"'
    limits: str = ""
    env: str = ""
    kind: str = FOUR_GPUS
    market: str = "on-demand"
    scout: str = "false"  # all instances at once, though every home is new


class Coordinator:
    """Runs `seerd` against a rig, in a folder of its own. As a context manager it kills what is
    left of its processes.
    """

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig = rig
        self.home = folder / "home"
        self.project = folder / "project"
        self.log = folder / "plain.log"
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []
        shutil.copytree(PROGRAMS, self.project)
        for program in self.project.glob("*.py"):
            program.chmod(0o755)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    @property
    def spec(self) -> Path:
        return self.project / "spec.toml"

    @property
    def run_folder(self) -> Path:
        """Of the only run."""
        (folder,) = self.home.glob("job-*")
        return folder

    def write(self, job: Job, measured: Measured = MEASURED) -> None:
        """The spec, and what was measured of its script."""
        self.spec.write_text(
            SPEC.format(
                script=job.script,
                launcher=job.launcher,
                env=job.env,
                policy=job.policy,
                deadline=job.deadline,
                budget=job.budget,
                limits=job.limits,
                kind=job.kind,
                market=job.market,
                scout=job.scout,
                image=self.rig.image,
                subnets=json.dumps(list(self.rig.subnets.values())),
                group=self.rig.security_group,
                bucket=self.rig.bucket,
            )
        )
        loaded = load_spec(self.spec, [])
        (kind,) = of(loaded).machine_types(Machine(0, 2))
        kept = profiles.kept_of(
            profiles.target_of(loaded, kind), measured, "profile-1", "2026-11-20T12:00:00Z"
        )
        profiles.keep(self.home, kept)

    def start(self, *args: str, another_version: bool = False) -> subprocess.Popen[str]:
        """A command whose plain lines, and complaints, are appended to `log`."""
        path = (
            f"{ROOT / 'tests' / 'another_version'}{os.pathsep}{ROOT}"
            if another_version
            else str(ROOT)
        )
        with self.log.open("a") as log:
            return self.popen(args, path, stdout=log, stderr=subprocess.STDOUT)

    def json(self, *args: str) -> Any:
        """What a reading command tells."""
        process = self.popen((*args, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, errors = process.communicate()
        assert process.returncode == 0, f"{args}: exit status {process.returncode}\n{out}\n{errors}"
        return json.loads(out)

    def text(self, *args: str) -> str:
        """What a reading command prints."""
        process = self.popen(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return process.communicate()[0]

    def lines(self) -> str:
        """What has been printed so far."""
        return self.log.read_text() if self.log.exists() else ""

    def says(self, *texts: str, times: int = 1, within_s: float = PATIENCE_S) -> None:
        """Wait until each of these has been printed so often."""
        self.until(
            lambda: all(self.lines().count(text) >= times for text in texts),
            f"printed {texts}",
            within_s,
        )

    def ends(self, process: subprocess.Popen[str], code: int, within_s: float = PATIENCE_S) -> None:
        """Wait until it ends, and in this way."""
        self.until(lambda: process.poll() is not None, "ended", within_s)
        assert process.returncode == code, (
            f"exit status {process.returncode}\n{self.lines()[-6000:]}"
        )

    def trained(self, reports: int, within_s: float = PATIENCE_S) -> None:
        """Wait until the trials of the only run have made so many reports in all."""
        self.until(
            lambda: self.lines().count(" report ") - self.lines().count("goes on") >= reports,
            "trained",
            within_s,
        )

    def interrupt(self, process: subprocess.Popen[str]) -> None:
        """Ctrl-C."""
        process.send_signal(signal.SIGINT)

    def until(self, true: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
        """Wait for something that somebody else does."""
        end = time.monotonic() + within_s
        while not true():
            assert time.monotonic() < end, (
                f"not {what} within {within_s:.0f} s\n{self.lines()[-6000:]}"
            )
            time.sleep(0.05)

    def stored(self) -> list[str]:
        """Names of all objects in the bucket."""
        bucket = (
            client(self.rig, "s3").get_paginator("list_objects_v2").paginate(Bucket=self.rig.bucket)
        )
        return [found["Key"] for page in bucket for found in page.get("Contents", [])]

    def running(self) -> list[subprocess.Popen[str]]:
        """Commands that have not ended."""
        return [process for process in self.processes if process.poll() is None]

    def live(self) -> list[RigInstance]:
        """Instances that are running, in the order in which they were launched."""
        return [one for one in self.rig.instances() if one.pid is not None]

    def environment(self, path: str = str(ROOT)) -> dict[str, str]:
        """Of each command."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        own |= {
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            **self.rig.env,
        }
        return own | {"SEERD_HOME": str(self.home), "COLUMNS": "160", "PYTHONPATH": path}

    def popen(
        self, args: tuple[str, ...], path: str = str(ROOT), **streams: Any
    ) -> subprocess.Popen[str]:
        """Start a command."""
        command = [sys.executable, "-c", "from seerd import cli; cli.main()", *args]
        process = subprocess.Popen(
            command, env=self.environment(path), text=True, cwd=self.folder, **streams
        )
        self.processes.append(process)
        return process
