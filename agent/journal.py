"""What the agent must not forget: orders it has seen and facts it has told, in one append-only file of JSON lines.

The one rule: a line is on the disk before anybody is told of it. A line that a crash tore apart was never told, and is dropped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Callable, List, Set

from agent.protocol import FACTS, Fact, ProtocolError, decode, encode


class Journal:
    """The file `facts.jsonl` in the agent's folder. `facts`: all of them, the one with number n at place n - 1."""

    def __init__(self, path: Path) -> None:
        self.orders: Set[str] = set()
        self.facts: List[Fact] = []
        self.last = 0
        good = self._load(path.read_bytes()) if path.exists() else 0
        self._file = open(path, "ab", buffering=0)
        self._file.truncate(good)

    def _load(self, data: bytes) -> int:
        """Read what is there; how many bytes of it are good."""
        good = 0
        for line in data.splitlines(keepends=True):
            if not line.endswith(b"\n") or not self._load_line(line):
                break
            good += len(line)
        return good

    def _load_line(self, line: bytes) -> bool:
        try:
            body = json.loads(line)
            if isinstance(body, dict) and isinstance(body.get("order"), str):
                self.orders.add(body["order"])
                return True
            fact = decode(line)
        except (ValueError, ProtocolError):
            return False
        if not isinstance(fact, FACTS) or fact.seq != self.last + 1:
            return False
        self._remember(fact)
        return True

    def seen(self, order: str) -> bool:
        """Whether this order came before; from now on it did."""
        if order in self.orders:
            return True
        self.orders.add(order)
        self._write(json.dumps({"order": order}).encode() + b"\n")
        return False

    def add(self, facts: List[Callable[[int], Fact]]) -> List[Fact]:
        """Number these facts and keep them."""
        made = [make(self.last + offset) for offset, make in enumerate(facts, 1)]
        self._write(b"".join(encode(fact) for fact in made))
        for fact in made:
            self._remember(fact)
        return made

    def after(self, seen: int) -> List[Fact]:
        """Facts behind this number."""
        return self.facts[seen:]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _remember(self, fact: Fact) -> None:
        self.last = fact.seq
        self.facts.append(fact)

    def _write(self, data: bytes) -> None:
        if data:
            self._file.write(data)
            os.fsync(self._file.fileno())
