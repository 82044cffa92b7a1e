"""Who powers the machine off, and who does not: real agents, with every command that could do it
replaced on their PATH.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from seerd.agent.__main__ import power_off_commands
from seerd.agent.protocol import Renew, Reported, Shutdown

COMMANDS = ("shutdown", "poweroff", "systemctl", "sudo")
WAITS = """
import json, os, time
with open(os.path.join(os.environ["SEERD_DIR"], "out.jsonl"), "a") as out:
    out.write(json.dumps({"kind": "report", "epoch": 1, "metrics": {"accuracy": 0.5}}) + "\\n")
while not os.path.exists(os.path.join(os.environ["SEERD_DIR"], "stop")):
    time.sleep(0.01)
time.sleep(float(os.environ.get("LATE", "0")))
"""


class Machine:
    """A rig whose agents can only power off what is not real; `said`: what they have tried."""

    def __init__(self, rig: Any, tools: Path) -> None:
        self.rig = rig
        self._said = tools / "said"
        for name in COMMANDS:
            (tools / name).write_text(
                f'#!/bin/sh\necho "{name} $*" >> {self._said}\ntest ! -e {tools}/broken-{name}\n'
            )
            (tools / name).chmod(0o700)
        self._tools = tools
        rig.options = ("--slots", "--power-off")
        rig.env = {"PATH": f"{tools}:{os.environ['PATH']}"}

    def break_(self, *names: str) -> None:
        """These commands fail from now on."""
        for name in names:
            (self._tools / f"broken-{name}").touch()

    @property
    def said(self) -> list[str]:
        """Command lines, without the sudo that people who are not root need."""
        lines = self._said.read_text().splitlines() if self._said.exists() else []
        return [line.removeprefix("sudo -n ").strip() for line in lines]


@pytest.fixture
def machine(rig, tmp_path):
    return Machine(rig, tmp_path)


def test_a_lease_that_ends_ends_the_machine_after_trials_have_left(machine):
    client = machine.rig.ready(machine.rig.job(WAITS))
    client.start()
    client.until(Reported)
    client.say(Renew(0.1, 60))
    assert client.rest()[-1].cause == "lease"
    assert machine.rig.processes[0].wait(20) == 0
    assert machine.said == ["shutdown -h now"]
    assert machine.rig.processes_of() == []


def test_what_fails_is_tried_in_other_ways(machine):
    if os.geteuid() == 0:
        machine.break_("shutdown", "poweroff")
    assert machine.rig.spawn(lease_s=0.2).wait(30) == 0
    expected = (
        ["shutdown -h now", "poweroff", "systemctl poweroff"]
        if os.geteuid() == 0
        else ["shutdown -h now"]
    )
    assert machine.said == expected


def test_who_is_not_root_asks_sudo_without_a_password():
    as_root = power_off_commands(root=True)
    assert power_off_commands(root=False) == [["sudo", "-n", *command] for command in as_root]


@pytest.mark.parametrize("how", ["shutdown", "sigterm"])
def test_an_orderly_end_leaves_the_machine_to_the_daemon(machine, how):
    client = machine.rig.ready(machine.rig.job(WAITS))
    if how == "shutdown":
        client.say(Shutdown("s"))
    else:
        machine.rig.processes[0].send_signal(signal.SIGTERM)
    assert machine.rig.processes[0].wait(20) == 0
    assert machine.said == []


def test_a_daemon_that_comes_back_while_the_agent_lets_go_ends_the_machine_itself(machine):
    client = machine.rig.ready(machine.rig.job(WAITS, env={"LATE": "600"}))
    client.start()
    client.until(Reported)
    client.say(Renew(0.1, 500))
    while not (machine.rig.attempt() / "stop").exists():
        assert machine.rig.processes[0].poll() is None
    client.say(Shutdown("s"))
    assert machine.rig.processes[0].wait(20) == 0
    assert machine.said == []


def test_without_the_option_the_machine_stays(machine):
    machine.rig.options = ("--slots",)
    assert machine.rig.spawn(lease_s=0.2).wait(20) == 0
    assert machine.said == []


def test_an_agent_that_fails_takes_its_trials_and_the_machine_with_it(machine):
    client = machine.rig.ready(machine.rig.job(WAITS))
    client.start()
    client.until(Reported)
    full = (machine.rig.folder / "journal.jsonl").stat().st_size
    psutil.Process(machine.rig.processes[0].pid).rlimit(psutil.RLIMIT_FSIZE, (full, full))
    client.stop(grace_s=60)
    assert machine.rig.processes[0].wait(20) != 0
    assert machine.rig.processes_of() == []
    assert machine.said[-1:] == ["shutdown -h now"]


def test_an_agent_that_cannot_begin_ends_the_machine_and_what_the_one_before_left_running(machine):
    client = machine.rig.ready(machine.rig.job(WAITS))
    client.start()
    client.until(Reported)
    machine.rig.lose_agent()
    journal = machine.rig.folder / "journal.jsonl"
    journal.unlink()
    journal.mkdir()
    assert machine.rig.spawn().wait(20) == 1
    assert machine.rig.processes_of() == []
    assert machine.said == ["shutdown -h now"]


def test_a_second_agent_does_not_end_the_machine_of_the_first(machine):
    machine.rig.launch()
    assert machine.rig.spawn().wait(20) == 1
    assert machine.said == []
