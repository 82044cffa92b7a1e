"""What a backend is: everything that depends on where GPUs come from. Only a backend's own folder
knows which one it is; a new one is a folder and its line in `seerd/registry.py`. Methods import SSH
and AWS, which are slow to load, only when they need them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from seerd.backends.base import LaunchProgress, Machine, Printer, Provider, Quote, Sweeper
from seerd.errors import UsageError
from seerd.spec.keys import BackendKeys

if TYPE_CHECKING:
    from seerd.agent.protocol import Expected
    from seerd.backends.examining import Case, Finding
    from seerd.spec.spec import Spec

PYTHON = "python3"  # the interpreter on machines other than this one, if the spec names none
GRACE_S = 10.0  # seconds that trials have to save when they are asked to end
MARGIN_S = 600.0
"""Seconds from the deadline until what is left of a run switches itself off: longer than the five
minutes before a scheduled power-off in which Linux refuses logins (shutdown(8)).
"""
FREE_BYTES = 2 << 30
"""The least bytes that a healthy instance has free: room for a few checkpoints and logs."""

SOURCE = "source"  # the folder in the agent's folder that the user's source is pushed to

K = TypeVar("K", bound=BackendKeys)


class RunFiles(Protocol):
    """The files of a run that a backend uses: `shell.home.RunFolder`."""

    @property
    def run(self) -> str:
        """The run's id."""

    @property
    def path(self) -> Path:
        """The run's folder."""

    @property
    def agent(self) -> Path:
        """The agent's zip."""

    @property
    def source(self) -> Path:
        """The copy of the user's source."""

    @property
    def instances(self) -> Path:
        """The folder with a subfolder for each instance."""


class JobSources(Protocol):
    """Sends instances the sources of a run's jobs."""

    async def send(self, instance: str) -> None:
        """Send an instance what it lacks. Raises `ProviderError`."""

    def with_one_more(self, job: str) -> Callable[[str], Awaitable[None]]:
        """Return a function that sends one more job's source, too."""

    def of_jobs(self, jobs: Callable[[], list[str]]) -> None:
        """Set the function that names the jobs that share the run."""

    def uploads(self) -> str:
        """Return what is being sent to instances, for people; empty: nothing."""


class WithoutStore(Protocol):
    """Gives up the place of an instance that cannot use the store, see `Site`."""

    def __call__(self, instance: str, *, silent: bool, leave: bool = True) -> tuple[str, bool]:
        """Launch no more where the instance is, if `leave`; return what to do, and whether there
        are other places then. `silent`: the store did not answer.
        """


Reader = Callable[[str, str, Path, int], Awaitable[None]]
"""Copies files of an instance, named by a path or a pattern in the agent's folder, one after the
other into one file here, at most so many bytes, unchecked. Raises `ProviderError`.
"""


@dataclass(frozen=True, slots=True)
class Site:
    """Where the instances of a run come from."""

    provider: Provider  # starts and ends them
    printed: Printer | None = None  # fetches what trials print; None: that is in the run's folder
    sources: JobSources | None = None  # what is sent to them; None: nothing is
    expected: Expected | None = None  # what a healthy instance has; None: not checked
    region: str | None = None  # the region of AWS; None: the environment's
    # moves the end of instances that are rented from now on, seconds since 1970; None: not rented
    prolong: Callable[[float], None] | None = None
    # waits for the next news of a launch; None: launches are quick, or tell nothing
    progress: Callable[[], Awaitable[LaunchProgress]] | None = None
    without_store: WithoutStore | None = None
    read: Reader | None = None  # reads files of agents; None: they are on this machine
    place: Callable[[str], str] | None = None  # returns an instance's place, as in `Quote.places`
    # notes that the cloud takes an instance back, for later launches; None: nobody wants to know
    note_taken: Callable[[str], None] | None = None


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Which runs have which GPUs of a machine."""

    machine: str  # its name
    report: dict[str, Any] | None = None  # see `agent/gpu_leases.py`; None: it cannot be asked
    why: str = ""  # why it cannot be asked


@dataclass(frozen=True, slots=True)
class Uncounted:
    """What a run costs besides its instances, which no ledger has."""

    usd: float  # about how much, in USD
    text: str  # what it is, for people


@dataclass(frozen=True)
class Backend(ABC, Generic[K]):
    """Where a run's GPUs come from. A new run calls these methods in order, a resumed one only
    `site`.
    """

    python: ClassVar[str] = PYTHON  # the interpreter of its trials, if the spec names none
    # whether trials run on other machines, where links of the source lead nowhere
    elsewhere: ClassVar[bool] = True
    commands: ClassVar[frozenset[str]] = frozenset()  # the commands that only it has
    keys: K  # what the spec says in [cluster]

    @abstractmethod
    def check(self, spec: Spec) -> None:
        """Check that the spec can be run here. Raises `UsageError` if not."""

    @classmethod
    def why_not(cls, spec: Spec) -> str | None:
        """Return why a job, new or added to a run, cannot be run here; None: it can be."""
        return None

    @classmethod
    def python_in(cls, spec: Spec) -> str:
        """Return the folder that a relative `train.python` is relative to; empty: the source."""
        return ""

    @abstractmethod
    def machine_types(self, machine: Machine) -> tuple[str, ...]:
        """Name the machines that trials run on, as profiles do, the preferred one first."""

    @abstractmethod
    def unasked_quote(self, machine: Machine | None) -> Quote:
        """Return what is offered, without network; `machine` None: as many GPUs as wanted."""

    def for_simulation(self) -> Self:
        """Return this backend with what a simulation needs and the spec does not name."""
        return self

    def quote(self, machine: Machine) -> Quote:
        """Return what is offered, after asking the cloud."""
        return self.unasked_quote(machine)

    def uncounted(self, instances: int, instance_h: float) -> Uncounted | None:
        """Return what is not counted of so many instances, in so many hours together; None:
        everything is.
        """
        return None

    def doubts(self, deadline_s: float) -> list[str]:
        """Return what may end a run early that lasts until its deadline, for people, after asking
        the cloud. Raises `CloudError`.
        """
        return []

    def check_quota(self, instances: int, gpus: int) -> None:
        """Check that the cloud allows so many instances of `gpus` GPUs. Raises `CloudError`."""

    def source(self, files: RunFiles) -> str:
        """Return the folder of the user's source, as agents know it."""
        return SOURCE

    @abstractmethod
    def kept(self, spec: Spec, files: RunFiles, quote: Quote, until: float) -> Any:
        """Return what the run's folder keeps of the backend as `Setup.where`, of `kept_type`.
        `until`: when instances end at the latest, wall clock, seconds since 1970.
        """

    @staticmethod
    @abstractmethod
    def kept_type() -> Any:
        """Return the type of what is kept, for msgspec."""

    @staticmethod
    @abstractmethod
    def site(kept: Any, files: RunFiles, until: float, lease_s: float) -> Site:
        """Connect the daemon with a run's instances, with a lease of `lease_s` seconds."""

    async def examine(self, case: Case) -> list[Finding]:
        """Return the findings of `seerd doctor`: what a plan needs, and whether it is there."""
        return [case.peak(None)[1]]

    async def policy(self, spec: Spec) -> dict[str, Any]:
        """Return the policy with the least rights that the cloud must grant for this spec."""
        raise UsageError(f"{self.keys.provider} asks for no rights")

    async def gpu_use(self) -> list[GpuUse]:
        """Return which runs have which GPUs. Raises `UsageError` if runs share none."""
        raise UsageError(
            f"instances of {self.keys.provider} are rented for one run alone, so nobody shares them"
        )

    @classmethod
    def sweeper(cls, region: str | None) -> AbstractAsyncContextManager[Sweeper] | None:
        """Return what ends runs' leftovers in a region (None: the default), if there are any."""
        return None
