"""An attempt whose GPUs somebody else holds: the agent tells so, and that it never began."""

from __future__ import annotations

import os

from bench.testbed.agents import Rig
from seerd.agent.gpu_leases import LeaseFolder, folder_path
from seerd.agent.protocol import Complained, Started


def test_an_attempt_that_waits_for_its_gpus_is_told_and_ends_without_having_begun(
    rig: Rig,
) -> None:
    folder = LeaseFolder(folder_path())
    locks = [folder.lease(f"slot-{number}") for number in range(2)]
    assert None not in locks
    rig.options = ("--slots", "--share", "1")
    client = rig.ready(rig.job("pass"), gpus=2)
    client.start()
    waits = client.until(Complained)
    assert (waits.trial, waits.attempt, waits.what) == ("t1", 1, "waits")
    assert f"`fuser -v {folder_path()}/*` names" in waits.why
    client.stop()
    exited = client.exit_of()
    assert (exited.cause, exited.started) == ("asked", False)
    for lock in locks:
        os.close(lock or 0)
    client.start("t2")
    assert client.exit_of("t2").started
    assert [fact.trial for fact in client.facts if isinstance(fact, Started)] == ["t2"]
    folder.close()
