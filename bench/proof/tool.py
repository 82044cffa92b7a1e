"""A tool of `bench/proof/peers.py`, in a process with the tools' own Python."""

from __future__ import annotations

import json
import math
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from bench.proof.loop import Decision, Suggestion
from seerd.planner.space import Space
from seerd.sim.curves import Curves

SCRIPT = Path(__file__).parent / "peers.py"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""One thread each: more would take the cores of the other runs, and make runs differ."""


class PeerError(Exception):
    """A tool has raised an error, or cannot be started."""


class Process:
    """A Python process that answers lines."""

    def __init__(self, python: Path) -> None:
        self._child = subprocess.Popen(
            [python, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | dict.fromkeys(THREADS, "1"),
        )

    def ask(self, **question: Any) -> Any:
        """Return the answer, and the CPU seconds that it took. Raises `PeerError`."""
        assert self._child.stdin
        assert self._child.stdout
        try:
            self._child.stdin.write(json.dumps(question) + "\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            process_of.cache_clear()  # the next run has a new process
            raise PeerError(f"{SCRIPT.name} has ended")
        answer = json.loads(line)
        if isinstance(answer, str):
            raise PeerError(answer)
        return answer


process_of = cache(Process)
"""The process of a Python, started once."""


class Peer:
    """A tool in its process, for one run."""

    def __init__(self, python: Path, name: str, curves: Curves, workers: int, seed: int) -> None:
        self._process = process_of(python)
        self.cpu_s: list[float] = []
        self._ask(
            tool=name,
            seed=seed,
            mode=curves.mode,
            reports=curves.epochs,
            workers=workers,
            **table_of(curves.space()),
        )
        self.cpu_s.clear()  # imports are no decision

    def suggest(self, now_s: float) -> Suggestion | None:  # noqa: ARG002
        """Return what the tool suggests."""
        answer = self._ask()
        return None if answer is None else Suggestion(*answer)

    def report(
        self,
        now_s: float,  # noqa: ARG002
        trial: int,
        reports: int,
        metric: float | None,
        unit_s: float,  # noqa: ARG002
    ) -> Decision:
        """Tell the tool, and return what it decides."""
        decision: Decision = self._ask(trial=trial, reports=reports, metric=metric)
        return decision

    def _ask(self, **question: Any) -> Any:
        answer, cpu_s = self._process.ask(**question)
        self.cpu_s.append(cpu_s)
        return answer


def table_of(space: Space) -> dict[str, Any]:
    """Return the recorded configurations as `peers.Table` reads them."""
    names, choices, columns = [], [], []
    for parameter in space.parameters:
        names.append(parameter.name)
        choices.append(len(parameter.choices))
        place = parameter.place if parameter.choices else parameter.share
        columns.append(
            [
                float(place(row[parameter.name])) if parameter.name in row else math.nan
                for row in space.table
            ]
        )
    return {"names": names, "choices": choices, "places": list(zip(*columns, strict=True))}
