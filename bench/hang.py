"""How long a rank that is gone or silent costs the others: real torchrun and gloo on this machine,
a real agent. Prints JSON.

GONE: a rank is killed in the middle of its work; seconds until no process of the attempt is left,
wherever the others are. SILENT: a rank sleeps, is stopped, or deadlocks. STRAGGLER: the share that
is told. MARK: what a rank pays to show what it does.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.testbed.agents import Client, Rig
from seerd.agent.protocol import Exited, Node, Reported, Stalled, Waited
from seerd.backends.bundle import build_agent
from seerd.training.marks import REDUCING, WORKING, Mark
from seerd.training.ranks import Ranks

ROUNDS = int(os.environ.get("ROUNDS", "3"))
ADDRESSES = ("127.0.0.4", "127.0.0.30")
SCRIPT = """
import ctypes, os, threading, time, torch, seerd
trial = seerd.trial()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trial.track(model=model, optimizer=optimizer)
parallel = torch.nn.parallel.DistributedDataParallel(model)
guilty = trial.rank == trial.world - 1
lock = threading.Lock()
lock.acquire()
while trial.running():
    for step in range(4):
        if guilty:
            exec(os.environ.get("EACH", ""))
        if trial.epoch == 8 and step == 2:
            exec(os.environ["DOES"] if guilty else os.environ.get("OTHERS", ""))
        optimizer.zero_grad()
        parallel(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    trial.report(accuracy=trial.epoch)
"""
KILLED, STOPPED, ASLEEP, LOCKED = (
    "os.kill(os.getpid(), 9)",
    "os.kill(os.getpid(), 19)",
    "time.sleep(3600)",
    "lock.acquire()",
)
BUSY_IN_C = "ctypes.CDLL(None).sleep(3600)"


@contextmanager
def rigs(count: int) -> Iterator[list[Rig]]:
    """Agents of their own, as on so many instances."""
    top = Path(tempfile.mkdtemp(prefix="agent-"))
    build_agent(top / "agent.pyz")
    inside = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc") if count > 1 else ()
    made = [
        Rig(top / "agent.pyz", top / f"{n}", top / "source", top / "store", inside=inside)
        for n in range(count)
    ]
    made[0].source.mkdir()
    try:
        yield made
    finally:
        for rig in made:
            rig.end()
        shutil.rmtree(top)


def started(made: list[Rig], ranks: int, **env: str) -> list[Client]:
    """An attempt with so many ranks on each of these."""
    job = made[0].job(SCRIPT, launcher="torchrun", env=env)
    clients = [rig.ready(job, gpus=ranks) for rig in made]
    port = 29_400 + os.getpid() % 500
    for number, client in enumerate(clients):
        node = Node(
            number, len(made), ADDRESSES[number], f"{ADDRESSES[0]}:{port}", ranks * len(made)
        )
        client.start(gpus=tuple(range(ranks)), node=node if len(made) > 1 else None)
    return clients


def ended(nodes: int, ranks: int, **env: str) -> tuple[float, Exited]:
    """Seconds from the last report to the end of the attempt everywhere, and how it ended where the
    guilty rank was.
    """
    with rigs(nodes) as made:
        clients = started(made, ranks, **env)
        last = clients[0].until(Reported, lambda fact: fact.epoch == 8)
        if nodes > 1:
            stop_when_one_has_ended(clients)
        ends = [client.exit_of() for client in clients]
        return max(end.at for end in ends) - last.at, ends[-1]


def stop_when_one_has_ended(clients: list[Client]) -> None:
    """What the daemon does: when the guilty node has ended, or both have told that nothing moves,
    the attempt is stopped everywhere.
    """
    clients[-1].until((Exited, Stalled))
    if isinstance(clients[-1].facts[-1], Stalled):
        clients[0].until(Stalled)
    for client in clients:
        client.stop()


def row(nodes: int, ranks: int, **env: str) -> dict[str, object]:
    """Several rounds."""
    times, names = [], set()
    for _ in range(ROUNDS):
        seconds, end = ended(nodes, ranks, **env)
        times.append(seconds)
        names.add((end.cause, end.rank, end.signal))
    return {
        "s": round(statistics.median(times), 2),
        "most_s": round(max(times), 2),
        "said": sorted(map(list, names), key=str),
    }


def straggler() -> dict[str, object]:
    """The last rank takes 50 ms more for each step."""
    with rigs(1) as made:
        (client,) = started(made, 2, EACH="time.sleep(0.05)", DOES="pass")
        told = client.until(Waited)
        return {"over_s": round(told.over_s, 1), "ranks": told.ranks, "shares": told.shares}


def mark_us() -> float:
    """Microseconds of a CPU to show a step: after the backward pass, and after the step."""
    with tempfile.TemporaryDirectory() as name:
        ranks, steps = Ranks(None), 100_000
        ranks.world = 2
        mark = Mark(ranks, Path(name))
        began = time.process_time()
        for _ in range(steps):
            mark.tick(REDUCING)
            mark.tick(WORKING)
        return (time.process_time() - began) / steps * 1e6


def main() -> None:
    """The table."""
    found = {
        "mark_us_per_step": round(mark_us(), 2),
        "gone": {
            "2 ranks": row(1, 2, DOES=KILLED),
            "4 ranks": row(1, 4, DOES=KILLED),
            "2 ranks, the other stuck": row(1, 2, DOES=KILLED, OTHERS=BUSY_IN_C),
            "2 nodes, the other stuck": row(2, 1, DOES=KILLED, OTHERS=BUSY_IN_C),
        },
        "silent": {
            "2 ranks, asleep": row(1, 2, DOES=ASLEEP),
            "4 ranks, in a deadlock": row(1, 4, DOES=LOCKED),
            "2 ranks, stopped": row(1, 2, DOES=STOPPED),
            "2 nodes, asleep": row(2, 1, DOES=ASLEEP),
        },
        "straggler": straggler(),
        "rounds": ROUNDS,
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
