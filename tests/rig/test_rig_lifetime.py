"""A rig takes everything with it, however it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from bench.testbed.rig import Rig, network
from bench.testbed.rig.guest import launch, until

ROOT = Path(__file__).resolve().parents[2]
HOLDER = """\
import time
from bench.testbed.rig import Rig
from bench.testbed.rig.guest import launch, until
rig = Rig.start(fast=True)
(name,) = launch(rig)
until(lambda: rig.account()[name].pid)
print(rig.account()[name].pid, rig._process.pid, rig._facts["bridge"], rig.account()[name].folder, flush=True)
time.sleep(60)
"""


def held() -> tuple[subprocess.Popen[str], int, int, str, Path]:
    """A process that holds a rig with one instance; the instance's and the supervisor's process
    ids, the bridge, the instance's folder.
    """
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert holder.stdout is not None
    instance, supervisor, bridge, folder = holder.stdout.readline().split()
    return holder, int(instance), int(supervisor), bridge, Path(folder)


def running(pid: int) -> bool:
    """Whether it is there, and more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_rig_ends_with_the_process_that_held_it() -> None:
    holder, instance, supervisor, bridge, folder = held()
    with holder:
        assert running(instance)
        assert Path(f"/sys/class/net/{bridge}").exists()
        holder.kill()
    until(lambda: not running(supervisor))
    assert not running(instance)
    assert not Path(f"/sys/class/net/{bridge}").exists()
    assert not folder.parent.parent.exists()


def test_instances_end_with_their_supervisor_and_the_next_rig_clears_up_after_it() -> None:
    holder, instance, supervisor, bridge, folder = held()
    with holder:
        os.kill(supervisor, signal.SIGKILL)
        until(lambda: not running(instance))
        with Rig.start(fast=True) as following:
            left = Path(f"/sys/class/net/{bridge}/ifalias")
            assert not left.exists() or not left.read_text().startswith(f"{supervisor}-")
            assert not folder.parent.parent.exists()
            assert_stopping_leaves_nothing(following)
        holder.kill()


def assert_stopping_leaves_nothing(rig: Rig) -> None:
    """No instance, no folder and no listener."""
    (name,) = launch(rig)
    found = until(lambda: rig.account()[name] if rig.account()[name].pid else None)
    host, port = re.fullmatch(r"http://(.+):(\d+)", rig.endpoint).groups()
    rig.stop()
    rig.stop()
    assert not running(found.pid)
    assert not Path(found.folder).exists()
    with pytest.raises(OSError), socket.create_connection((host, int(port)), timeout=0.5):
        pass


def test_by_hand() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.testbed.rig"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as rig:
        assert rig.stdout is not None
        lines = [rig.stdout.readline() for _ in range(14)]
        found = dict(
            line.removeprefix("export ").strip().split("=", 1)
            for line in lines
            if line.startswith("export ")
        )
        with urllib.request.urlopen(
            found["AWS_ENDPOINT_URL"] + "/rig/instances", timeout=10
        ) as reply:
            assert reply.read() == b"[]"
        rig.send_signal(signal.SIGINT)
        assert rig.wait(timeout=20) == 0


def test_where_there_can_be_no_rig_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(network.NoRigError, match="takes root"):
        Rig.start(fast=True)


def test_a_reset_in_the_moment_an_instance_ends_leaves_no_cable(rig: Rig) -> None:
    cables = Path(f"/sys/class/net/{rig._facts['bridge']}/brif")
    for _ in range(8):
        names = launch(rig, MinCount=4, MaxCount=4)
        until(lambda: all(rig.account()[name].pid for name in names))  # noqa: B023
        for name in names:
            os.kill(rig.account()[name].pid, signal.SIGKILL)
        rig.reset()
        assert list(cables.iterdir()) == []
