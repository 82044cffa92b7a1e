"""What the parts of the shell share about a run: what it acts on, and what they may ask of the
daemon.

The one rule: values and questions only; nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from seerd.agent.protocol import Download, Expected, Job
from seerd.core.asking import Answer
from seerd.core.commands import AnyCommand
from seerd.core.events import AnyEvent
from seerd.core.plans import Order
from seerd.planner.model import View
from seerd.shell.clock import RunClock
from seerd.shell.collecting import Collector
from seerd.shell.providers.base import Provider
from seerd.shell.stores.base import Store


class Asker(Protocol):
    """Asks the run's policy, beside the loop. One question at a time."""

    def start(self) -> None:
        """Get ready; returns at once."""

    def note(
        self,
        question: str,
        view: View,
        memory: Mapping[str, Any],
        order: Order,
        changed: Collection[str] | None = None,
    ) -> None:
        """Take down what to ask: everything as it is now. `changed`: trials that may not be as they
        were at the question before, None: all.
        """

    async def answer(self) -> Answer:
        """The answer to what was noted last. Raises `PolicyError` if there is none."""

    def forget(self) -> None:
        """The last answer is not the plan."""

    async def close(self) -> None:
        """Leave nothing behind."""


@dataclass(frozen=True, slots=True)
class RunEnvironment:
    """What a run acts on: where instances and checkpoints are, what is trained, where the result
    goes.

    policy     whoever answers questions of the policy
    rented     whether instances switch themselves off when nobody renews the lease of their agents
    expected   what a healthy instance has, None where nothing is looked at
    data       lists what instances fetch before they are set up, with fresh URLs
    collector  brings what trials print on other machines, None where it is in the run's folder
               anyway
    """

    provider: Provider
    store: Store
    policy: Asker
    job: Job
    run: str
    metric: str
    result: Path
    rented: bool = False
    expected: Expected | None = None
    data: Callable[[], Awaitable[list[Download]]] | None = None
    collector: Collector | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """An attempt that holds GPUs: `saved` checkpoints of it are confirmed; the trial's last one is
    called `newest`, empty if it has none.
    """

    trial: str
    attempt: int
    saved: int
    newest: str = ""


class Core(Protocol):
    """The daemon, as everything beneath it knows it: it takes events, and answers questions about
    the state.
    """

    clock: RunClock

    def emit(self, event: AnyEvent) -> None:
        """Take what has happened; it is handled soon."""

    def pending(self, instance: str) -> list[AnyCommand]:
        """Commands for an instance whose outcome is not known."""

    def running(self, instance: str) -> list[Running]:
        """Attempts that report and save on this instance."""

    def known(self, instance: str) -> tuple[int, str]:
        """The number of its agent's last fact, and which boot of its machine that was."""

    def lease(self) -> tuple[float, float, float]:
        """How long agents may go on without us, how long trials may take to save, and how long
        storing that may take after the lease has ended: seconds.
        """

    def spare(self) -> float:
        """How long the end may still wait for a machine so that the model is there by the deadline,
        seconds.
        """
