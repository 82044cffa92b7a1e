"""What the parts of the shell share about a run: only data and interfaces."""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from seerd.agent.protocol import Download, Expected, Job
from seerd.backends.backend import WithoutStore
from seerd.backends.base import LaunchProgress, Provider
from seerd.planner.trial_ids import job_of
from seerd.shell.collecting import Collector
from seerd.shell.inbox import Inbox
from seerd.shell.left_behind import LeftBehind
from seerd.shell.policy import PolicyProcess
from seerd.shell.timings import TIMINGS, DaemonTimings
from seerd.stores.base import Store


class Sources(Protocol):
    """Sends the sources of the jobs that share a run to its instances."""

    async def send(self, instance: str) -> None:
        """Send an instance what it lacks of the jobs' sources. Raises `ProviderError`."""

    def with_one_more(self, job: str) -> Callable[[str], Awaitable[None]]:
        """Return what does the same with the source of one more job, as it is now."""


@dataclass(frozen=True, slots=True)
class RunEnvironment:
    """What a run acts on."""

    provider: Provider  # where instances come from
    store: Store  # where checkpoints are kept
    policy: PolicyProcess  # asks the run's policy
    job: Job  # what is trained; where jobs share the run, only what they share
    run: str  # the run's id
    metric: str  # name of the metric that is reported, if the run is one job
    result: Path  # folder for the best model; where jobs share the run, with a folder for each
    jobs: list[Job] = field(default_factory=list)  # the jobs that share the run, if several do
    rented: bool = False  # whether instances switch themselves off when no lease is renewed
    expected: Expected | None = None  # what a healthy instance has; None where nothing is checked
    sources: Sources | None = None  # None: instances have the jobs' sources anyway
    # lists, with fresh URLs, the data that instances download, for all jobs or for one
    data: Callable[[str | None], Awaitable[list[Download]]] | None = None
    collector: Collector | None = None  # collects logs from other machines
    uploads: Callable[[], str] | None = None  # describes the progress of long uploads, if any
    inbox: Inbox | None = None  # the user's requests; None: there can be none
    # when the present instances end themselves, in wall clock seconds since 1970, or infinity
    until: Callable[[], float] = lambda: math.inf
    # extends the expiry of what is rented and signed from now on to a later deadline (wall clock)
    prolong: Callable[[float], None] = lambda deadline: None
    # waits for the next news of a launch; None: there are none
    progress: Callable[[], Awaitable[LaunchProgress]] | None = None
    left_behind: LeftBehind | None = None  # fetches models that instances could not store
    # gives up the place of an instance that cannot use the store, see `backends.backend.Site`
    without_store: WithoutStore | None = None
    # notes that an instance is ready where it is, for later runs; None: nobody wants to know
    note_ready: Callable[[str], None] | None = None
    # notes that the cloud takes an instance back, see `backends.backend.Site`
    note_taken: Callable[[str], None] | None = None
    timings: DaemonTimings = TIMINGS

    @property
    def proves(self) -> bool:
        """Whether a new instance proves that it can use the store, which it reaches by URLs."""
        return self.rented and not self.store.address

    def secrets_of(self, trial: str) -> dict[str, str]:
        """Return the secrets of a trial's job, with their values in this environment."""
        name = job_of(trial)
        job = next((job for job in self.jobs if job.id == name), self.job)
        return {name: os.environ[name] for name in job.secrets if name in os.environ}

    def metric_of(self, trial: str) -> str:
        """Return the name of the metric that a trial reports."""
        name = job_of(trial)
        return next((job.metric for job in self.jobs if job.id == name), self.metric)


@dataclass(frozen=True, slots=True)
class Running:
    """An attempt that holds GPUs."""

    trial: str
    attempt: int  # the attempt's number
    saved: int  # how many checkpoints of the attempt are confirmed
    newest: str = ""  # name of the trial's last checkpoint; empty if it has none
