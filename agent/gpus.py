"""Whether the memory of GPUs is free again after an attempt, as `nvidia-smi` tells: a process that
is gone may have left some in use.

The one rule: GPUs are given to the next attempt only when nothing of the last one is on them any
more, and that is looked up, not assumed. What living processes of others hold does not count.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, List, Optional, Sequence

from seerd.agent import host
from seerd.agent.health import (
    BROKEN,
    CARDS,
    SHOWN,
    SMI_S,
    CheckedMachine,
    Look,
    UnhealthyError,
    last_line,
)

APPS = (
    "nvidia-smi",
    "--query-compute-apps=pid,gpu_uuid,used_memory",
    "--format=csv,noheader,nounits",
)
FREE_S = 10.0
"""Seconds after which memory that is still held counts as lost. The driver takes a second or two to
free what a killed process held.
"""
POLL_S = 0.25
SLACK_MIB = 512
"""MiB that a GPU without processes may have in use beyond what it had before the first attempt: the
driver keeps some for itself.
"""


@dataclass(frozen=True)
class Card:
    """A GPU, as `nvidia-smi` lists it."""

    index: str  # its number
    uuid: str  # its unique name
    used_mib: Optional[int]  # memory in use, in MiB; None: not known


@dataclass(frozen=True)
class App:
    """A process that computes on a GPU."""

    pid: int
    uuid: str  # the GPU's
    used: str  # memory that it uses there, in MiB, as text


class Gpus:
    """The CUDA devices of this machine.

    `names` returns the names of our GPUs, by number, as CUDA_VISIBLE_DEVICES has them.
    """

    def __init__(
        self, machine: CheckedMachine, names: Callable[[Iterable[int]], List[str]]
    ) -> None:
        self._machine = machine
        self._names = names
        self._before: Dict[str, int] = {}

    def note(self, listing: str) -> None:
        """Remember how much memory each GPU has in use while nothing of ours runs.

        `listing` holds lines of `CARDS`, and is empty unless the machine is ours alone: on a desk,
        screens take what they want.
        """
        for card in parsed_cards(listing):
            if card.used_mib is not None:
                self._before.setdefault(card.uuid, card.used_mib)

    async def why_held(self, gpus: Iterable[int]) -> str:
        """Wait until the memory of these GPUs is free, for at most `FREE_S` seconds.

        Returns what still holds it, or why that is not known. Empty if it is free, or if
        `nvidia-smi` is not there because the GPUs are of another maker.
        """
        if not self._machine.cuda:
            return ""
        names, give_up_at = self._names(gpus), time.monotonic() + FREE_S
        while True:
            try:
                why = await self._look(names)
            except UnhealthyError as error:
                why = str(error)
            except OSError:
                return ""  # no nvidia-smi: GPUs of another maker
            if not why or time.monotonic() >= give_up_at:
                return why
            await asyncio.sleep(POLL_S)

    async def _look(self, names: Sequence[str]) -> str:
        cards = [card for card in parsed_cards(await self._ask(CARDS)) if _is_among(card, names)]
        return held(cards, parsed_apps(await self._ask(APPS)), self._before, host.is_there)

    async def _ask(self, argv: Sequence[str]) -> str:
        env = {**os.environ, host.MARKER: self._machine.marker}
        status, output, errors = await Look(argv, env, str(self._machine.folder), SMI_S).take(
            "nvidia-smi"
        )
        if status or BROKEN.search(output):
            message = last_line(output) or last_line(errors)
            raise UnhealthyError(f"nvidia-smi ended with exit status {status}: {message}")
        return output


def held(
    cards: Sequence[Card], apps: Sequence[App], before: Dict[str, int], lives: Callable[[int], bool]
) -> str:
    """Describe, for people, what memory of these GPUs is held by no living process; empty if none
    is.

    `before` is what was in use before the first attempt (MiB by uuid), `lives` tells whether a
    process lives.
    """
    for card in cards:
        here = [app for app in apps if app.uuid == card.uuid]
        dead = [app for app in here if not lives(app.pid)]
        if dead:
            return (
                f"process {dead[0].pid}, which has ended, still holds "
                f"{dead[0].used:.{SHOWN}} MiB of GPU {card.index}"
            )
        was = before.get(card.uuid)
        if (
            not here
            and was is not None
            and card.used_mib is not None
            and card.used_mib > was + SLACK_MIB
        ):
            return (
                f"{card.used_mib} MiB of GPU {card.index} are in use by no process; {was} "
                "MiB were before"
            )
    return ""


def parsed_cards(listing: str) -> List[Card]:
    """Parse lines of `CARDS`, and leave out any others."""
    rows = [[part.strip() for part in line.split(",")] for line in listing.splitlines()]
    return [
        Card(row[0], row[1], int(row[2]) if row[2].isdecimal() else None)
        for row in rows
        if len(row) >= 3
    ]


def parsed_apps(listing: str) -> List[App]:
    """Parse lines of `APPS`, and leave out any others."""
    rows = [[part.strip() for part in line.split(",")] for line in listing.splitlines()]
    return [
        App(int(row[0]), row[1], row[2]) for row in rows if len(row) == 3 and row[0].isdecimal()
    ]


def _is_among(card: Card, names: Sequence[str]) -> bool:
    return any(
        name == card.index or (name.startswith("GPU-") and card.uuid.startswith(name))
        for name in names
    )
