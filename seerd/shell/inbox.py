"""The user's requests to a run while it goes on: files that appear whole, each answered by a file
beside it. Only the daemon answers, after its decision is committed. A request that is read twice,
since an answer was lost, has the same id and is decided once.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from seerd.agent.protocol import Job
from seerd.core.events import AddAsked, ExtendAsked, JobAdded, JobStopAsked, JobWeighed, StopAsked
from seerd.core.verdicts import DenyCause

ID = re.compile(r"[0-9a-f]{16}")
LARGEST = 64 << 20  # the most bytes of a request: a problem holds what earlier runs have learned


class JobRequest(msgspec.Struct, frozen=True, tag_field="kind", tag="job"):
    """A job is to share the run. `starts`: how agents start its trials."""

    added: JobAdded
    starts: Job


Request = ExtendAsked | AddAsked | JobRequest | JobStopAsked | JobWeighed | StopAsked
"""The event that a request becomes; the daemon sets `at` and `request`."""


class Reply(msgspec.Struct, frozen=True):
    """The answer to a request."""

    denied: DenyCause | None  # why it cannot be; None: it is so from now on
    detail: str = ""  # text for people, if there is more to say; else empty


@dataclass(frozen=True, slots=True)
class Inbox:
    """The requests of one run."""

    path: Path

    def put(self, request: Request) -> str:
        """Write a request; return its id. Raises `OSError`."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        name = secrets.token_hex(8)
        part = self.path / f".{name}"
        part.write_bytes(msgspec.json.encode(request))
        part.replace(self._request(name))
        return name

    def reply(self, name: str) -> Reply | None:
        """Return the answer to a request; None: there is none yet."""
        try:
            return msgspec.json.decode(self._reply(name).read_bytes(), type=Reply)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def withdraw(self, name: str) -> None:
        """Remove a request and its answer."""
        for path in (self._request(name), self._reply(name)):
            path.unlink(missing_ok=True)

    def waiting(self) -> Iterator[tuple[str, Request]]:
        """Yield the readable requests without an answer."""
        try:
            names = sorted(os.listdir(self.path))  # noqa: PTH208 - looked at all the time
        except FileNotFoundError:
            return
        for name in (n.removesuffix(".json") for n in names if n.endswith(".json")):
            if not ID.fullmatch(name) or f"{name}.reply" in names:
                continue
            try:
                with self._request(name).open("rb") as file:
                    request: Request = msgspec.json.decode(file.read(LARGEST), type=Request)
            except (OSError, msgspec.MsgspecError, TypeError, ValueError, RecursionError):
                continue
            yield name, request

    def has(self, name: str) -> bool:
        """Return whether a request is still there and not withdrawn."""
        return self._request(name).exists()

    def answer(self, name: str, reply: Reply) -> None:
        """Write the answer to a request. Raises `OSError`."""
        part = self.path / f".{name}.reply"
        part.write_bytes(msgspec.json.encode(reply))
        part.replace(self._reply(name))

    def _request(self, name: str) -> Path:
        return self.path / f"{name}.json"

    def _reply(self, name: str) -> Path:
        return self.path / f"{name}.reply"
