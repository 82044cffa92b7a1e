"""After the death of an agent: what the next one in its folder does before it takes orders.

The one rule: nothing that it left behind runs on, everything that its trials had written is told, and each of its attempts is over.
What the agent had been granted died with it: a checkpoint that was on its way to a store without a directory is lost.
"""

from __future__ import annotations

import time

from agent import host
from agent.grants import Granted
from agent.journal import Journal, Maker
from agent.orders import Here
from agent.protocol import Exited


def clean_up(here: Here, journal: Journal) -> None:
    """Make it so. Raises `RuntimeError` if a process cannot be killed."""
    left = host.kill(lambda: host.marked_with(f"{here.run}/"), set())
    if left:
        raise RuntimeError(f"processes {sorted(left)} of an agent before cannot be killed")
    at = time.time()
    for (trial, attempt), told in list(journal.open.items()):
        store = journal.job.store if journal.job is not None else str(here.folder / "store")
        outbox = here.outbox(store, Granted(trial, attempt, lambda _: False))
        outbox.forget_nothing(told)
        for makers in outbox.drain_all():
            journal.add(makers)
        while outbox.can_store():
            journal.add(outbox.store())
        journal.add([_lost(trial, attempt, at)])
        del journal.open[trial, attempt]


def _lost(trial: str, attempt: int, at: float) -> Maker:
    return lambda seq: Exited(seq, at, trial, attempt, "lost", None)
