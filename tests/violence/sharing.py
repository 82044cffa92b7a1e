"""Two runs on one machine, whose processes are killed at random, and an observer that looks whether
a GPU ever has two attempts.

The one rule: who is killed is one run's alone; the other must notice nothing but its share. A run
that is over, or whose daemon is gone, is followed by the next or resumed, until all kills are done.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from seerd.agent.gpu_leases import ELSEWHERE, LeaseFolder
from tests.violence import eyes
from tests.violence.eyes import Seen
from tests.violence.ground import DRIVER, PROGRAMS, ROOT

SPEC = """
name = "{name}"
metric = {{ name = "accuracy", mode = "max" }}
[train]
script = "./lingering.py"
launcher = "command"
env = {{ VIOLENCE_EPOCH_S = "0.7" }}
[space]
lr = {{ low = 0.0, high = 1.0 }}
[policy]
name = "seer"
eta = 2
p_max = 2
t_min = "6s"
seed = {seed}
[limits]
deadline = "25s"
budget = "1000gpu-s"
[cluster]
gpus = {gpus}
"""
GPUS = 4
LOOK_S = 0.03
TICK_S = 0.02
PATIENCE_S = 120.0
LONGEST_REST_S = 1.5
KINDS = {
    "the daemon": 3.0,
    "the agent": 2.0,
    "a launcher": 2.0,
    "the agent and its launchers": 2.0,
    "the keeper": 1.0,
    "everything": 1.0,
}
"""Who is killed, and how often in relation to the others."""


@dataclass(slots=True)
class SharingTally:
    """What was done and seen.

    used       GPU -> how many attempts were seen on it
    together   how often both runs were seen to train at the same time
    """

    kills: Counter[str] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)
    used: Counter[str] = field(default_factory=Counter)
    together: int = 0
    looks: int = 0
    violations: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """For the summary."""
        counts = {name: dict(getattr(self, name)) for name in ("kills", "commands", "used")}
        more = {name: getattr(self, name) for name in ("together", "looks", "violations")}
        return {**counts, **more}


class Observer:
    """As a context manager: looks at all attempts of these runs until its end."""

    def __init__(self, prefixes: Sequence[str], tally: SharingTally) -> None:
        self._prefixes = tuple(prefixes)
        self._tally = tally
        self._known: set[tuple[str, str, int]] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _keep_looking(self) -> None:
        while not self._over.wait(LOOK_S):
            seen = [one for one in eyes.attempts() if one.run.startswith(self._prefixes)]
            self._tally.looks += 1
            self._tally.together += len({one.run for one in seen}) > 1
            holders: dict[str, Seen] = {}
            for one in seen:
                self._count(one)
                for gpu in one.gpus:
                    other = holders.setdefault(gpu, one)
                    if other.key != one.key and eyes.is_still(other) and eyes.is_still(one):
                        self._tally.violations.append(f"GPU {gpu}: {other.key} and {one.key}")

    def _count(self, one: Seen) -> None:
        if one.key not in self._known:
            self._known.add(one.key)
            self._tally.used.update(one.gpus)


class Coordinator:
    """Runs of one job, one after the other, on the shared machine."""

    def __init__(self, folder: Path, name: str, seed: int, tally: SharingTally) -> None:
        self.name = name
        self.home = folder / name
        self._tally = tally
        self.home.mkdir()
        for program in ("traced.py", "lingering.py"):
            shutil.copy(PROGRAMS / program, self.home)
        spec = SPEC.format(name=name, seed=seed, gpus=GPUS)
        (self.home / "spec.toml").write_text(spec)
        self._env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("SEERD_")},
            "SEERD_HOME": str(self.home / "home"),
            ELSEWHERE: str(folder / "gpus"),
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        self._process = self._begin("run", str(self.home / "spec.toml"))
        self._rests_until: float | None = None

    def live(self, chance: random.Random, *, on: bool) -> None:
        """Begin the next command if this one has ended; with `on` also the next run."""
        if self._process.poll() is None:
            return
        if self._rests_until is None:
            self._rests_until = time.time() + chance.uniform(0.0, LONGEST_REST_S)
        if time.time() < self._rests_until:
            return
        self._rests_until = None
        if not self.over and any((self.home / "home").glob("*/journal.db")):
            self._process = self._begin("resume", "last")
        elif on:
            self._process = self._begin("run", str(self.home / "spec.toml"))

    @property
    def over(self) -> bool:
        """Whether its last run is over: its command has said so, or `resume` that it was before."""
        return self._process.poll() == 0 or (self._process.poll() == 2 and self._resumes)

    @property
    def pids(self) -> list[int]:
        """All its processes: commands, agents, keepers, trials."""
        return eyes.of_home(self.home)

    def victims(self, whom: str, chance: random.Random) -> list[int]:
        """Its processes that are to be killed."""
        mine = self.pids
        agents = [pid for pid in mine if eyes.name(pid) == "seerd-agent"]
        launchers = [pid for pid in mine if "lingering.py" in eyes.cmdline(pid)]
        chosen = {
            "the daemon": [self._process.pid] if self._process.poll() is None else [],
            "the agent": agents,
            "a launcher": launchers and [chance.choice(launchers)],
            "the agent and its launchers": [*agents, *launchers],
            "the keeper": [pid for pid in mine if "gpu_keeper" in eyes.cmdline(pid)],
            "everything": mine,
        }
        return chosen[whom]

    def clear(self) -> None:
        """Nothing may outlive the test."""
        _kill(self.pids)
        self._process.wait()

    def _begin(self, *args: str) -> subprocess.Popen[bytes]:
        self._tally.commands[args[0]] += 1
        self._resumes = args[0] == "resume"
        with (self.home / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", "from seerd import cli; cli.main()", *args, "--plain"],
                env=self._env,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def share(folder: Path, kills: int, seed: int) -> SharingTally:
    """Kill so often, and let both runs come to their ends. `folder` must be there, and be empty."""
    driver = folder / "bin" / "nvidia-smi"
    driver.parent.mkdir()
    driver.write_text(DRIVER.format(last=GPUS - 1))
    driver.chmod(0o755)
    chance, tally = random.Random(seed), SharingTally()
    names = [f"{name}{os.getpid()}" for name in ("left", "right")]
    both = [Coordinator(folder, name, seed, tally) for name in names]
    try:
        with Observer(names, tally):
            _until_both_train(both, chance, tally)
            for _ in range(kills):
                _hurt(both, chance, tally)
            _until_all_are_used(both, chance, tally)
            _let_end(both, chance, tally)
        _judge(folder, both, tally)
    finally:
        for one in both:
            one.clear()
    return tally


def _until_both_train(
    both: Sequence[Coordinator], chance: random.Random, tally: SharingTally
) -> None:
    end = time.time() + PATIENCE_S
    while not tally.together:
        _live(both, chance, time.time() + TICK_S, on=True)
        if time.time() > end:
            tally.violations.append("the runs did not train at the same time")
            return


def _hurt(both: Sequence[Coordinator], chance: random.Random, tally: SharingTally) -> None:
    pids: list[int] = []
    while not pids:
        _live(both, chance, time.time() + chance.uniform(0.3, 3.0), on=True)
        victim, whom = chance.choice(both), chance.choices([*KINDS], [*KINDS.values()])[0]
        pids = victim.victims(whom, chance)
    _kill(pids)
    tally.kills[whom] += 1


def _until_all_are_used(
    both: Sequence[Coordinator], chance: random.Random, tally: SharingTally
) -> None:
    """Let runs go on until each GPU was used: a busy machine may have had no time for that."""
    end = time.time() + PATIENCE_S
    while len(tally.used) < GPUS and time.time() < end:
        _live(both, chance, time.time() + TICK_S, on=True)


def _let_end(both: Sequence[Coordinator], chance: random.Random, tally: SharingTally) -> None:
    end = time.time() + PATIENCE_S
    while not all(one.over for one in both):
        _live(both, chance, time.time() + TICK_S, on=False)
        if time.time() > end:
            tally.violations.append(f"not over: {[one.name for one in both if not one.over]}")
            return


def _judge(folder: Path, both: Sequence[Coordinator], tally: SharingTally) -> None:
    """Look that no GPU is lost, and nothing is left."""
    end = time.time() + PATIENCE_S
    while any(one.pids for one in both) and time.time() < end:
        time.sleep(TICK_S)
    tally.violations += [f"left: {eyes.cmdline(pid)}" for one in both for pid in one.pids]
    leases = LeaseFolder(str(folder / "gpus"))
    tally.violations += [f"{name} is still leased" for name in leases.leased()]
    tally.violations += [f"{run.run} is still here" for run in leases.runs()]
    lost = {str(gpu) for gpu in range(GPUS)} - set(tally.used)
    tally.violations += [f"GPU {gpu} was never used" for gpu in sorted(lost)]
    leases.close()


def _live(both: Sequence[Coordinator], chance: random.Random, until: float, *, on: bool) -> None:
    while time.time() < until:
        for one in both:
            one.live(chance, on=on)
        time.sleep(TICK_S)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
