"""Whether GPUs are free again after an attempt: they are given to the next one when `nvidia-smi`
shows nothing of the last one on them. What living processes of others hold does not count.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, List, Optional, Sequence

from seerd.agent import host
from seerd.agent.health import BROKEN, CARDS, SHOWN, CheckedMachine, UnhealthyError, ask_smi

APPS = (
    "nvidia-smi",
    "--query-compute-apps=pid,gpu_uuid,used_memory",
    "--format=csv,noheader,nounits",
)
FREE_S = 10.0
"""Seconds after which memory that is still held counts as lost; the driver needs one or two."""
POLL_S = 0.25
SLACK_MIB = 512
"""MiB that a GPU without processes may use beyond what it did before the first attempt."""


@dataclass(frozen=True)
class Card:
    """A GPU, as `nvidia-smi` lists it."""

    index: str
    uuid: str
    used_mib: Optional[int]  # memory in use; None: unknown


@dataclass(frozen=True)
class App:
    """A process that computes on a GPU."""

    pid: int
    uuid: str  # the GPU's
    used: str  # its memory there, in MiB


class Gpus:
    """The CUDA devices of this machine. `names` returns CUDA's names of our GPUs."""

    def __init__(
        self, machine: CheckedMachine, names: Callable[[Iterable[int]], List[str]]
    ) -> None:
        self._machine = machine
        self._names = names
        self._before: Dict[str, int] = {}

    def note(self, listing: str) -> None:
        """Remember how much memory each GPU has in use while nothing of ours runs. `listing`: lines
        of `CARDS`, empty unless the machine is ours alone: on a desk, screens take what they want.
        """
        for card in parsed_cards(listing):
            if card.used_mib is not None:
                self._before.setdefault(card.uuid, card.used_mib)

    async def why_held(self, gpus: Iterable[int]) -> str:
        """Wait until the memory of these GPUs is free, for at most `FREE_S` seconds; return what
        still holds it, or why that is unknown; empty if it is free, or without `nvidia-smi`.
        """
        if not self._machine.cuda:
            return ""
        names, give_up_at = self._names(gpus), time.monotonic() + FREE_S
        while True:
            try:
                listed = parsed_cards(await self._ask(CARDS))
                cards = [card for card in listed if _is_among(card, names)]
                why = held(cards, parsed_apps(await self._ask(APPS)), self._before, host.is_there)
            except UnhealthyError as error:
                why = str(error)
            except OSError:
                return ""  # no nvidia-smi: GPUs of another maker
            if not why or time.monotonic() >= give_up_at:
                return why
            await asyncio.sleep(POLL_S)

    async def _ask(self, argv: Sequence[str]) -> str:
        status, output, message = await ask_smi(argv, self._machine)
        if status or BROKEN.search(output):
            raise UnhealthyError(f"nvidia-smi ended with exit status {status}: {message}")
        return output


def held(
    cards: Sequence[Card], apps: Sequence[App], before: Dict[str, int], lives: Callable[[int], bool]
) -> str:
    """Describe memory that no living process holds; empty: none. `before`: MiB by uuid."""
    for card in cards:
        here = [app for app in apps if app.uuid == card.uuid]
        dead = [app for app in here if not lives(app.pid)]
        if dead:
            return (
                f"process {dead[0].pid}, which has ended, still holds "
                f"{dead[0].used:.{SHOWN}} MiB of GPU {card.index}"
            )
        was = before.get(card.uuid)
        used = card.used_mib
        if not here and was is not None and used is not None and used > was + SLACK_MIB:
            return f"{used} MiB of GPU {card.index} are in use by no process; {was} MiB were before"
    return ""


def parsed_cards(listing: str) -> List[Card]:
    """Parse lines of `CARDS`, and leave out any others."""
    return [
        Card(row[0], row[1], int(row[2]) if row[2].isdecimal() else None)
        for row in _rows(listing)
        if len(row) >= 3
    ]


def parsed_apps(listing: str) -> List[App]:
    """Parse lines of `APPS`, and leave out any others."""
    rows = _rows(listing)
    return [App(int(row[0]), *row[1:]) for row in rows if len(row) == 3 and row[0].isdecimal()]


def _rows(listing: str) -> List[List[str]]:
    return [[part.strip() for part in line.split(",")] for line in listing.splitlines()]


def _is_among(card: Card, names: Sequence[str]) -> bool:
    return any(
        name == card.index or (name.startswith("GPU-") and card.uuid.startswith(name))
        for name in names
    )
