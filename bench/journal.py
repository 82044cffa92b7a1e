"""What a journal weighs and how fast it is read: an ASHA run of 10,000 trials, and `seerd show` of
one of 100.

The floors are the events alone (bytes: what any journal must hold), and decoding without following
(time). Prints JSON.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.testbed import checked_world as simulated
from bench.testbed.checked_world import Behaviour
from seerd.core.codec import decode_decisions, decode_event, encode_decisions, encode_event
from seerd.core.events import RunFacts
from seerd.core.state import new_state
from seerd.core.step import follow
from seerd.planner.model import ClusterFacts, Limits, PolicyParams, Problem
from seerd.planner.space import Config, Parameter, Space
from seerd.shell.journal import Entry, Journal

GPUS = 64
REPORT_S = 10.0


def main() -> None:
    """Measures both sizes, the larger one in memory, the smaller one as a run's folder."""
    print(json.dumps({"asha": read(run(10_000)), "show": show(run(100))}))


def run(trials: int) -> simulated.World:
    """A run on 64 GPUs whose limits are never reached, and whose invariants nobody checks."""
    space = Space(tuple(Parameter(f"p{i}", low=1e-4, high=1.0, log=True) for i in range(5)))
    params = PolicyParams(name="asha", trials=trials, max_reports=256, t_min_s=1.0)
    deadline_s = REPORT_S * 40 * max(100, trials)
    problem = Problem(Limits(deadline_s, deadline_s * GPUS, GPUS), space, params)
    facts = RunFacts(
        run="asha",
        name="asha",
        metric="accuracy",
        mode="max",
        problem=problem,
        cluster=ClusterFacts("held", 8, max_instances=GPUS // 8),
    )
    simulated.violations = lambda state: []  # type: ignore[attr-defined]
    world = simulated.World(
        facts, Behaviour(metric=curve, unit_s=lambda config, epoch, gpus: REPORT_S)
    )
    world.run()
    return world


def curve(config: Config, epoch: int) -> float:
    """The larger the parameters, the better."""
    return sum(map(float, config.values())) / len(config) * (1 - 0.9**epoch)


def read(world: simulated.World) -> dict[str, Any]:
    """Bytes, and CPU seconds for reading them from memory."""
    rows = [(encode_event(event), encode_decisions(decided)) for event, decided in world.journal]
    events, decided = sum(len(row[0]) for row in rows), sum(len(row[1]) for row in rows)
    began = time.process_time()
    for event, decision in rows:
        decode_event(event)
        decode_decisions(decision)
    decoded_s = time.process_time() - began
    began = time.process_time()
    state = new_state(world.facts)
    for event, decision in rows:
        follow(state, decode_event(event), decode_decisions(decision))
    read_s = time.process_time() - began
    return {
        "trials": len(state.trials),
        "events": len(rows),
        "bytes_per_event": round((events + decided) / len(rows), 1),
        "times_the_events_alone": round((events + decided) / events, 3),
        "read_s": round(read_s, 3),
        "read_s_per_80000_events": round(read_s / len(rows) * 80_000, 3),
        "times_decoding": round(read_s / decoded_s, 2),
    }


def show(world: simulated.World) -> dict[str, Any]:
    """CPU seconds of `seerd show`, beside those of a command that reads nothing."""
    with tempfile.TemporaryDirectory() as home:
        folder = kept(world, Path(home))
        return {
            "trials": len(world.state.trials),
            "events": len(world.journal),
            "show_cpu_s": cpu_s("show", folder.name, "--json", "--home", home),
            "floor_cpu_s": cpu_s("list", "--json", "--home", str(folder)),
        }


def kept(world: simulated.World, home: Path) -> Path:
    """The run's folder, as a daemon leaves it."""
    folder = home / "asha-20260101-000000-0000"
    folder.mkdir()
    (folder / "spec.toml").write_text("")
    with Journal.create(folder / "journal.db", time.time()) as journal:
        journal.append([Entry(seq, *entry) for seq, entry in enumerate(world.journal, 1)])
    return folder


def cpu_s(*command: str, rounds: int = 5) -> float:
    """The least of so many."""
    found = []
    for _ in range(rounds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "seerd.cli", *command],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return round(min(found), 3)


if __name__ == "__main__":
    main()
