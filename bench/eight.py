"""What the benchmarks of rented instances share: the rig, and a run with one trial on each of eight
4-GPU instances. Prints nothing by itself.

The one rule: what is measured is read from the run's journal, the rig's account and the times of
files on the instances, never from seerd.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.testbed.ec2_world import MEASURED_IN_LIFE, Coordinator, Job
from bench.testbed.rig import Rig
from seerd.core.events import AnyEvent, TrialTraining
from seerd.shell.journal import Journal

INSTANCES = int(os.environ.get("INSTANCES", "8"))
GPUS = 4
STARTED_S = 120.0


@contextlib.contextmanager
def running() -> Iterator[Coordinator]:
    """A run in which every instance trains; whoever leaves ends it."""
    most = INSTANCES * GPUS
    job = Job(
        deadline="10m",
        budget=f"{most * 12}gpu-min",
        policy=f'eta = 4\np_min = {GPUS}\np_max = {GPUS}\nt_min = "120s"',
        limits=f"max_gpus = {most}",
        env='SEERD_TEST_EPOCH_S = "1"',
    )
    with (
        Rig.start() as rig,
        tempfile.TemporaryDirectory() as folder,
        Coordinator(rig, Path(folder)) as coordinator,
    ):
        coordinator.write(job, MEASURED_IN_LIFE)
        coordinator.start("run", str(coordinator.spec), "--plain")
        coordinator.says(" trains", times=INSTANCES, within_s=STARTED_S)
        # One trial may have made room for another by then.
        coordinator.until(
            lambda: len(trainings(events(coordinator)[0])) == INSTANCES, "all train", STARTED_S
        )
        yield coordinator


def events(coordinator: Coordinator) -> tuple[list[AnyEvent], float]:
    """The events so far, and when the run began, in seconds since 1970."""
    with Journal.open(coordinator.run_folder / "journal.db", read_only=True) as journal:
        return [entry.event for entry in journal.entries()], journal.origin


def trainings(found: list[AnyEvent]) -> dict[str, TrialTraining]:
    """By instance: when its trial's training loop began for the first time."""
    first: dict[str, TrialTraining] = {}
    for event in found:
        if isinstance(event, TrialTraining):
            first.setdefault(event.instance, event)
    return first
