"""A real run whose journal was replaced by an older copy of it, while its agent went on: it says
so, uses no name twice, ends what the copy does not know and charges what has trained.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from seerd.agent.journal import facts_after
from seerd.agent.protocol import Exited, Start, Started
from seerd.agent.wire import decode
from tests.shell.sshd import until
from tests.test_cli import Seerd, seerd

__all__ = ["seerd"]

SPEC = """
name = "older"
metric = { name = "accuracy", mode = "max" }
[train]
script = "./trainer.py"
launcher = "command"
env = { SEERD_TEST_EPOCH_S = "0.1", SEERD_TEST_EPOCHS = "8" }
[space]
lr = { low = 0.0, high = 1.0 }
[policy]
name = "asha"
eta = 2
t_min = "1s"
p_max = 1
max_reports = 8
[limits]
deadline = "20s"
budget = "40gpu-s"
[cluster]
gpus = 2
"""


def test_a_run_goes_on_from_an_older_copy_of_its_journal_and_says_so(seerd: Seerd) -> None:
    seerd.spec.write_text(SPEC)
    run = seerd.start("run", str(seerd.spec), "--plain")
    until(lambda: seerd.reports() >= 4)
    journal = seerd.run_folder() / "journal.db"
    copy = seerd.folder / "copy.db"
    with closing(sqlite3.connect(journal)) as now, closing(sqlite3.connect(copy)) as kept:
        now.backup(kept)
        known = {trial["trial"] for trial in seerd.json("show", "last")["all_trials"]}
    until(lambda: trials(seerd) - known)
    lost = trials(seerd) - known
    run.kill()
    run.communicate()
    for suffix in ("-wal", "-shm"):
        journal.with_name(journal.name + suffix).unlink(missing_ok=True)
    journal.with_suffix(".tip").unlink()
    copy.rename(journal)

    printed = seerd("resume", "last", "--plain")
    state = seerd.json("show", "last")

    assert "the journal lacks events from" in printed
    assert "the journal lacks events from" in seerd("replay", "last")
    assert any("the journal lacks events from" in note for note in state["notes"])
    assert state["elapsed_s"] <= state["deadline_s"]
    assert trained_s(seerd) <= state["gpu_min"] * 60 <= 40
    aside = {path.name.split("-")[0][1:] for path in store(seerd).glob(".*-lost-*")}
    assert lost <= aside
    starts = orders(seerd)
    assert len({one.id for one in starts}) == len(starts)
    assert len({(one.trial, one.attempt) for one in starts}) == len(starts)
    assert not seerd.processes()


def store(seerd: Seerd) -> Path:
    return seerd.run_folder() / "store"


def trials(seerd: Seerd) -> set[str]:
    """Trials with a checkpoint in the store."""
    return {path.parent.name for path in store(seerd).glob("[!.]*/*.json")}


def agents(seerd: Seerd) -> list[Path]:
    return list(seerd.run_folder().glob("instances/*/journal.jsonl"))


def trained_s(seerd: Seerd) -> float:
    """GPU-seconds by the agents' own count."""
    total_s, began = 0.0, {}
    for fact in (fact for path in agents(seerd) for fact in facts_after(path, 0)):
        if isinstance(fact, Started):
            began[fact.trial, fact.attempt] = fact.at
        elif isinstance(fact, Exited):
            total_s += fact.at - began.pop((fact.trial, fact.attempt), fact.at)
    assert not began
    return total_s


def orders(seerd: Seerd) -> list[Start]:
    lines = (line for path in agents(seerd) for line in path.read_bytes().splitlines())
    messages = (decode(line.partition(b"\t")[0]) for line in lines)
    return [one for one in messages if isinstance(one, Start)]
