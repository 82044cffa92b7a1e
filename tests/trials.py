"""Trials of real torch processes: forks of this process, with the folders that an agent makes."""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from seerd.agent.warm.script import Script
from tests.agent.forks import forked

ROOT = Path(__file__).parent.parent
REGRESSION = ROOT / "tests" / "programs" / "regression.py"


class Processes:
    """The ranks of an attempt: forks of this process, since an import of torch takes seconds. As
    under torchrun they meet at a store, and if one fails, the others are killed.
    """

    started: ClassVar[list[Processes]] = []

    def __init__(
        self,
        script: Path,
        gpus: int,
        environment: dict[str, str],
        log: Path,
        of_rank: Sequence[Mapping[str, str]] = (),
    ) -> None:
        import_torch()
        self._log = log
        log.touch()
        self._store = Store() if gpus > 1 else None
        shared = self._store.environment(gpus) if self._store is not None else {}
        self._left: set[int] = set()
        for rank in map(str, range(gpus)):
            own = {"RANK": rank, "LOCAL_RANK": rank} if shared else {}
            env = {**environment, **shared, **own, **(of_rank[int(rank)] if of_rank else {})}
            self._left.add(forked(lambda env=env: become(script, env, log)))
        self.failed = False
        self.started.append(self)

    def poll(self) -> bool:
        """Whether all have ended."""
        for pid in list(self._left):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._left.remove(pid)
                self.failed |= status != 0
        if self.failed:
            self.kill()
        if not self._left and self._store is not None:
            self._store.close()
            self._store = None
        return not self._left

    def kill(self) -> None:
        for pid in self._left:
            os.kill(pid, signal.SIGKILL)

    @classmethod
    def end_all(cls) -> None:
        """Leave nothing behind of a test that has failed."""
        while cls.started:
            process = cls.started.pop()
            process.kill()
            process.printed()

    def printed(self) -> str:
        """What they have printed until all have ended."""
        while not self.poll():
            time.sleep(0.01)
        return self._log.read_text()


@cache
def import_torch() -> None:
    """Import torch before the forks, without its compiler, which its first optimizer would import.
    Only here, since every worker reads this file.
    """
    runpy.run_path(str(ROOT / "tests" / "no_compiler" / "sitecustomize.py"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch

        torch.optim.SGD([torch.zeros(1)])


def become(script: Path, environment: dict[str, str], log: Path) -> None:
    """Make this fork the process of the script."""
    import torch

    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(output, number)
    os.environ.clear()
    os.environ.update(environment)
    warnings.resetwarnings()
    torch.set_num_threads(1)
    gc.freeze()  # what is pytest's is not looked at when the script ends
    Script([sys.executable, str(script)]).run()


class Store:
    """Where ranks meet, served by a fork as by torchrun's process."""

    def __init__(self) -> None:
        import torch.distributed

        (told, tells), (needed, self._keeps) = os.pipe(), os.pipe()

        def serve() -> None:
            os.close(self._keeps)
            served = torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
            os.write(tells, b"%d\n" % served.port)
            os.read(needed, 1)

        self._pid = forked(serve)
        for theirs in (tells, needed):
            os.close(theirs)
        with os.fdopen(told) as reading:
            self._port = reading.readline().strip()

    def environment(self, ranks: int) -> dict[str, str]:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self._port}
        return {**place, "WORLD_SIZE": str(ranks), "TORCHELASTIC_USE_AGENT_STORE": "True"}

    def close(self) -> None:
        os.close(self._keeps)
        os.waitpid(self._pid, 0)


class Bench:
    """A trial's folders, as an agent would make them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.attempts = 0

    def run(
        self,
        gpus: int,
        *,
        steps: int = 24,
        unit: int = 2,
        code: int = 0,
        every_s: float = 0.0,
        **env: str,
    ) -> list[dict]:
        """One attempt; the lines that it wrote for the agent."""
        process, out = self.start(gpus, steps=steps, unit=unit, every_s=every_s, **env)
        text = process.printed()
        assert process.failed == (code != 0), text
        return self.lines(out)

    def start(
        self,
        gpus: int,
        *,
        steps: int,
        unit: int,
        every_s: float = 0.0,
        script: Path = REGRESSION,
        of_rank: Sequence[Mapping[str, str]] = (),
        **more: Any,
    ) -> tuple[Processes, Path]:
        environment = self.prepared(gpus, steps=steps, unit=unit, every_s=every_s, **more)
        attempt = Path(environment["SEERD_DIR"])
        process = Processes(script, gpus, environment, attempt / "log", of_rank)
        return process, attempt / "out.jsonl"

    def prepared(
        self,
        gpus: int = 1,
        *,
        steps: int = 0,
        unit: int = 0,
        every_s: float = 0.0,
        max_reports: int | None = None,
        smooth: int = 1,
        constraints: Sequence[str] = (),
        **env: str,
    ) -> dict[str, str]:
        """Make the folder of an attempt; return the environment of its processes."""
        self.attempts += 1
        attempt = self.folder / str(self.attempts)
        attempt.mkdir(parents=True)
        self.checkpoints.mkdir(exist_ok=True)
        about = {
            "version": 1,
            "run": "r",
            "trial": "t0001",
            "attempt": self.attempts,
            "config": {"lr": 0.05},
            "gpus": gpus,
        }
        about |= {
            "allocations": [1, 2, 4],
            "metric": "accuracy",
            "mode": "max",
            "seed": 7,
            "checkpoint_every_s": every_s,
            "max_reports": max_reports,
            "smooth": smooth,
            "constraints": list(constraints),
        }
        (attempt / "trial.json").write_text(
            json.dumps({**about, "checkpoints": str(self.checkpoints)})
        )
        environment = {
            **os.environ,
            "SEERD_DIR": str(attempt),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }
        environment |= {
            "TEST_OUT": str(self.folder / "steps.jsonl"),
            "TEST_STEPS": str(steps),
            "TEST_UNIT": str(unit),
            **env,
        }
        return environment

    def lines(self, out: Path) -> list[dict]:
        return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []

    def steps(self) -> list[dict]:
        """Every global step, in the order in which they were trained; of steps trained twice the
        last.
        """
        rows = [json.loads(line) for line in (self.folder / "steps.jsonl").read_text().splitlines()]
        return list({row["step"]: row for row in rows}.values())
