"""The boot script: the power-off first, no secret but the host key, the same for every try."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.testbed.rig.guest import until
from seerd.agent.__main__ import NAME
from seerd.shell.aws.keys import Keys
from seerd.shell.aws.userdata import FIRMWARE_S, LIMIT, LOOK_S, ORPHAN_TIMEOUT_S, Boot, script

RUNS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,60}", fullmatch=True)
KEY = (
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmU=\n-----END "
    "OPENSSH PRIVATE KEY-----\n"
)
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE7GGwK72UmfngnyvJlamJ836tz4J6fSF seerd"


def boot(run: str = "a", hard_end: float = 2e9, public: str = PUBLIC) -> Boot:
    return Boot(run, hard_end, KEY, PUBLIC, public)


@given(run=RUNS, hard_end=st.floats(0, 1e11))
def test_it_is_small_and_the_same_every_time_and_a_shell_can_read_it(
    run: str, hard_end: float
) -> None:
    text = script(boot(run, hard_end))
    assert text == script(boot(run, hard_end))
    assert len(text.encode()) <= LIMIT
    assert "\r" not in text
    assert "{" not in text.replace("${", "")


def test_sh_accepts_it(tmp_path: Path) -> None:
    file = tmp_path / "boot"
    file.write_text(script(boot()))
    subprocess.run(["sh", "-n", str(file)], check=True)


def test_the_power_off_comes_before_anything_else() -> None:
    lines = [line for line in script(boot()).splitlines() if line and not line.startswith("#")]
    assert lines[0].startswith("PATH=")
    assert [line.split()[0] for line in lines[1:3]] == ["mkdir", "cat"], (
        "the file that schedules it, and nothing that could fail"
    )
    commands = "\n".join(lines)
    for later in ("rm -f", "useradd", "authorized_keys", "sudoers", "systemctl restart"):
        assert commands.index("shutdown -P") < commands.index(later)


@pytest.mark.parametrize(
    ("left_s", "expected"), [(3600, "+60"), (3659, "+60"), (61, "+1"), (5, "+1"), (-1000, "+1")]
)
def test_the_power_off_is_at_the_hard_end_and_never_in_the_past(
    tmp_path: Path, left_s: int, expected: str
) -> None:
    """The first part of the script is really run, with a `shutdown` that writes down what it is
    told and no systemd.
    """
    programs = {
        "shutdown": f'echo "$@" > {tmp_path}/told',
        "systemd-run": "exit 1",
        "setsid": f'echo "$@" > {tmp_path}/watched',
        "date": "echo 1800000000",
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    first, _, _ = script(boot(hard_end=1800000000 + left_s + 0.9)).partition("# 2.")
    first = first.replace("PATH=", f"PATH={tmp_path}:").replace(
        "/var/lib/cloud", f"{tmp_path}/cloud"
    )
    subprocess.run(["sh", "-c", first], check=True)
    assert (tmp_path / "told").read_text().split() == ["-P", expected]
    (tmp_path / "told").unlink()
    subprocess.run([tmp_path / "cloud" / "scripts" / "per-boot" / "seerd-hard-end"], check=True)
    assert (tmp_path / "told").read_text().split() == ["-P", expected], "and again at every boot"
    until((tmp_path / "watched").exists)
    assert (tmp_path / "watched").read_text().split() == [
        "/bin/sh",
        f"{tmp_path}/cloud/scripts/seerd-deserted",
    ]


def deserted(
    tmp_path: Path, agents: str, orphan_timeout_s: float | None = None, up_s: int = 0
) -> int:
    """How often the script that looks for agents has slept before it powered off; `agents`: what
    each look finds, `y` or `n`.
    """
    programs = {
        "sleep": f"echo {{}} >> {tmp_path}/slept",
        "grep": (
            f'looked=$(wc -l < {tmp_path}/slept); [ "$(echo {agents} | sed -E '
            f'"s/^.{{$((looked - 1))}}(.).*/\\1/")" = y ]'
        ),
        "touch": f'echo "$@" > {tmp_path}/touched',
        "cut": f"echo {up_s}",
        "shutdown": f'echo "$@" > {tmp_path}/told',
    }
    (tmp_path / "slept").touch()
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    _, _, text = script(replace(boot(), orphan_timeout_s=orphan_timeout_s)).partition(
        "<< 'SEERD_DESERTED'\n"
    )
    text = text.partition("SEERD_DESERTED\n")[0].replace("PATH=", f"PATH={tmp_path}:")
    subprocess.run(["sh", "-c", text], check=True, timeout=30)
    assert (tmp_path / "told").read_text().split() == ["-P", "now"]
    return len((tmp_path / "slept").read_text().splitlines())


@pytest.mark.parametrize(("agents", "looks"), [("n", 60), ("nnnyyyn", 66), ("n" * 59 + "y", 120)])
def test_an_instance_without_an_agent_does_not_wait_for_its_hard_end(
    tmp_path: Path, agents: str, looks: int
) -> None:
    assert deserted(tmp_path, agents) == looks
    assert looks * LOOK_S >= ORPHAN_TIMEOUT_S
    assert (tmp_path / "touched").exists() == ("y" in agents)


def test_an_agent_is_found_by_the_name_that_it_gives_itself(tmp_path: Path) -> None:
    looks = re.search(r"if (grep .*?); then", script(boot()), re.DOTALL)
    assert looks
    shows = f"from seerd.agent import host; host.show_as({NAME!r}); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", shows], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        command = looks.group(1).replace("[0-9]*", str(process.pid))
        assert subprocess.run(["sh", "-c", command], check=False).returncode == 0
        others = command.replace(str(process.pid), str(os.getpid()))
        assert subprocess.run(["sh", "-c", others], check=False).returncode == 1
        process.stdin.close()


@pytest.mark.parametrize(
    ("agents", "orphan_timeout_s", "looks"),
    [
        ("n", 79.0, 6),
        ("n", 75.0, 6),
        ("n", 74.9, 5),
        ("n", 0.0, 1),
        ("n", 1e9, 60),
        ("nny", 75.0, 63),
    ],
)
def test_until_its_first_agent_it_costs_no_more_than_its_launch_could_pay(
    tmp_path: Path, agents: str, orphan_timeout_s: float, looks: int
) -> None:
    assert deserted(tmp_path, agents, orphan_timeout_s) == looks
    assert (
        looks * LOOK_S + FIRMWARE_S <= max(orphan_timeout_s, LOOK_S + FIRMWARE_S) or "y" in agents
    )


@pytest.mark.parametrize(("up_s", "looks"), [(5, 5), (40, 2), (100, 0)])
def test_a_slow_boot_counts(tmp_path: Path, up_s: int, looks: int) -> None:
    assert deserted(tmp_path, "n", 75.0, up_s) == looks


def test_a_reboot_ends_an_instance_that_has_worked_and_no_other(tmp_path: Path) -> None:
    told = []
    for number, worked in enumerate((False, True)):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, body in {
            "shutdown": f'echo "$@" >> {folder}/told',
            "systemd-run": "exit 0",
        }.items():
            (folder / name).write_text(f"#!/bin/sh\n{body}\n")
            (folder / name).chmod(0o755)
        first, _, _ = script(boot(hard_end=time.time() + 600)).partition("# 2.")
        first = first.replace("PATH=", f"PATH={folder}:").replace(
            "/var/lib/cloud", f"{folder}/cloud"
        )
        subprocess.run(["sh", "-c", first], check=True)
        if worked:
            (folder / "cloud" / "scripts" / "seerd-worked").touch()
        subprocess.run([folder / "cloud" / "scripts" / "per-boot" / "seerd-hard-end"], check=True)
        told.append(
            (folder / "told").read_text().splitlines() if (folder / "told").exists() else []
        )
    assert told == [[], ["-P now"]]


def test_a_machine_that_is_being_imaged_has_no_agent_and_may_take_its_time() -> None:
    assert "seerd-deserted" not in script(Boot("a", 2e9, KEY, PUBLIC, PUBLIC, root=True))
    assert (
        "seerd-deserted ||"
        in script(boot()).partition("<< 'SEERD_HARD_END'")[2].partition("\nSEERD_HARD_END\n")[0]
    )


@pytest.mark.parametrize("bad", ["it's", "two\nlines", "bell\a"])
def test_nothing_breaks_out_of_its_place(bad: str) -> None:
    with pytest.raises(ValueError, match="single lines"):
        script(boot(run=bad))
    with pytest.raises(ValueError, match="single lines"):
        script(boot(public=bad))


def test_keys_are_made_once_and_only_the_public_one_of_the_client_travels(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    assert keys.asked("7.0") is None
    host, client = keys.host("7.0"), keys.client()
    assert (host, client) == (Keys(tmp_path / "keys").host("7.0"), Keys(tmp_path / "keys").client())
    assert host.public != client.public != keys.host("7.1").public
    asked = keys.asked("7.0")
    assert asked is not None
    assert abs(asked - time.time()) < 60
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "keys").iterdir()} == {0o600}
    text = script(Boot("a", 2e9, host.private, host.public, client.public))
    assert host.private.strip() in text
    assert client.private.splitlines()[2] not in text
    assert text.count("PRIVATE KEY") == 2


def test_openssh_reads_the_keys(tmp_path: Path) -> None:
    pair = Keys(tmp_path / "keys").host("7.0")
    found = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(pair.path)], check=True, capture_output=True, text=True
    ).stdout
    assert found.split()[:2] == pair.public.split()[:2]
