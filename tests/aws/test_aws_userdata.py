"""User data: the power-off first, no secret but the host key, the same for every try."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bench.testbed.rig.guest import until
from seerd.agent.__main__ import NAME
from seerd.aws.keys import Keys
from seerd.aws.userdata import (
    FIRMWARE_S,
    LIMIT,
    LOOK_S,
    ORPHAN_TIMEOUT_S,
    Boot,
    boothook,
    user_data,
)

RUNS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,60}", fullmatch=True)
KEY = (
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmU=\n-----END "
    "OPENSSH PRIVATE KEY-----\n"
)
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE7GGwK72UmfngnyvJlamJ836tz4J6fSF seerd"


def boot(run: str = "a", hard_end: float = 2e9, public: str = PUBLIC) -> Boot:
    return Boot(run, hard_end, KEY, PUBLIC, public)


def parts(text: str) -> dict[str, str]:
    """The parts as cloud-init gets them, by their kind, in their order."""
    message = email.message_from_string(text)
    assert message.get_content_type() == "multipart/mixed"
    return {
        part.get_content_type(): part.get_payload(decode=True).decode()
        for part in message.walk()
        if not part.is_multipart()
    }


@given(run=RUNS, hard_end=st.floats(0, 1e11))
def test_it_is_small_and_the_same_every_time_and_plain_text(run: str, hard_end: float) -> None:
    text = user_data(boot(run, hard_end))
    assert text == user_data(boot(run, hard_end))
    assert len(text.encode()) <= LIMIT // 2
    assert "\r" not in text
    assert f"run {run}:" in text, "it can be read in the console"
    assert "{first}" not in text


def test_the_power_off_is_a_boothook_and_comes_before_all_else() -> None:
    """cloud-init runs boothooks at every boot in its network stage, in the order of the message,
    and a plain script after all units of the boot.
    """
    text = user_data(boot())
    assert "mime-version:" in text[:4096].lower(), "as cloud-init recognises it"
    assert list(parts(text)) == ["text/cloud-boothook", "text/cloud-config"]
    lines = parts(text)["text/cloud-boothook"].splitlines()
    assert lines[:2] == ["#cloud-boothook", "#!/bin/sh"]
    code = [line for line in lines if line and not line.startswith("#")]
    assert code[0].startswith("PATH=")
    first = next(
        line for line in code[1:] if not line.startswith((" ", "begin()", "}", "left", "["))
    )
    assert first.startswith("begin --unit=seerd-hard-end "), "and nothing that could fail"


def test_sh_accepts_it(tmp_path: Path) -> None:
    file = tmp_path / "boot"
    file.write_text(boothook(boot()))
    subprocess.run(["sh", "-n", str(file)], check=True)


def test_nothing_waits_for_the_rest_of_the_boot() -> None:
    """Units wait for sysinit.target, that for cloud-init, and that for its boothooks."""
    text = boothook(boot())
    assert "systemd-run --no-block --property=DefaultDependencies=no " in text
    assert text.count("systemd-run ") == 1 + text.count("and systemd-run for")
    assert "--timer-property=DefaultDependencies=no" in text


def programs(folder: Path, **bodies: str) -> None:
    """Programs of a machine that write down what they are told."""
    folder.mkdir(exist_ok=True)
    for name, body in bodies.items():
        file = folder / name.replace("_", "-")
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)


def booted(folder: Path, of: Boot) -> None:
    """Run the boothook with the programs of this folder, below it."""
    text = boothook(of).replace("PATH=", f"PATH={folder}:")
    for place in ("/var/lib/cloud", "/run"):
        text = text.replace(f"{place}/", f"{folder}{place}/")
        (folder / place[1:]).mkdir(parents=True, exist_ok=True)
    subprocess.run(["sh", "-c", text], check=True)


@pytest.mark.parametrize(("left_s", "expected"), [(3600, 3600), (61, 61), (5, 60), (-1000, 60)])
@pytest.mark.parametrize("systemd", [True, False])
def test_the_power_off_is_at_the_hard_end_and_never_in_the_past(
    tmp_path: Path, left_s: int, expected: int, systemd: bool
) -> None:
    programs(
        tmp_path,
        shutdown=f'echo "$@" >> {tmp_path}/told',
        systemd_run=f'echo "$@" >> {tmp_path}/units' if systemd else "exit 1",
        setsid=f'echo "$@" >> {tmp_path}/background',
        date="echo 1800000000",
    )
    file = tmp_path / ("units" if systemd else "background")

    def told() -> list[str]:
        return file.read_text().splitlines() if file.exists() else []

    for _ in ("the first boot", "the next one"):
        file.unlink(missing_ok=True)
        booted(tmp_path, boot(hard_end=1800000000 + left_s + 0.9))
        until(lambda: len(told()) == 2)
        lines = sorted(told(), key=lambda line: "deserted" in line)
        timer, watch = lines[0], lines[-1]
        if systemd:
            assert f"--on-active={expected} " in timer
            assert timer.endswith(f"{tmp_path}/shutdown -P now")
        else:
            assert timer == f"/bin/sh -c sleep {expected}; shutdown -P now"
        assert watch.endswith(f"/bin/sh {tmp_path}/run/seerd-deserted")
    assert not (tmp_path / "told").exists()


def deserted(
    tmp_path: Path, agents: str, orphan_timeout_s: float | None = None, up_s: int = 0
) -> int:
    """How often the script that looks for agents has slept before it powered off; `agents`: what
    each look finds, `y` or `n`.
    """
    (tmp_path / "slept").touch()
    programs(
        tmp_path,
        sleep=f"echo {{}} >> {tmp_path}/slept",
        grep=(
            f'looked=$(wc -l < {tmp_path}/slept); [ "$(echo {agents} | sed -E '
            f'"s/^.{{$((looked - 1))}}(.).*/\\1/")" = y ]'
        ),
        touch=f'echo "$@" > {tmp_path}/touched',
        mkdir="exit 0",
        cut=f"echo {up_s}",
        shutdown=f'echo "$@" > {tmp_path}/told',
    )
    _, _, text = boothook(replace(boot(), orphan_timeout_s=orphan_timeout_s)).partition(
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
    looks = re.search(r"if (grep .*?); then", boothook(boot()), re.DOTALL)
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
        ("n", 1080.0, 106),
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
        programs(folder, shutdown=f'echo "$@" >> {folder}/told', systemd_run="exit 0")
        booted(folder, boot(hard_end=time.time() + 600))
        if worked:
            (folder / "var/lib/cloud/scripts").mkdir()
            (folder / "var/lib/cloud/scripts/seerd-worked").touch()
        booted(folder, boot(hard_end=time.time() + 600))
        told.append(
            (folder / "told").read_text().splitlines() if (folder / "told").exists() else []
        )
    assert told == [[], ["-P now"]]


def test_the_libraries_of_torch_are_read_at_boot(tmp_path: Path) -> None:
    """By a program that is begun in the background, after all that ends the instance."""
    site = tmp_path / "venv/lib/python3.12/site-packages"
    libraries = [site / "torch/lib/libtorch.so", site / "nvidia/cudnn/lib/libcudnn.so.9"]
    for library in libraries:
        library.parent.mkdir(parents=True)
        library.write_bytes(b"x" * ((4 << 20) + 1))
    python = f"{tmp_path}/venv/bin/python"
    text = boothook(replace(boot(), python=python))
    assert text.index("--unit=seerd-deserted") < text.index("--unit=seerd-read")
    _, _, program = text.partition("<< 'SEERD_READ'\n")
    said = subprocess.run(
        [sys.executable, "-"],
        input=program.partition("SEERD_READ\n")[0],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert said.split() == ["2", "4"], "files, and parts of them"
    for other in ("python3", "/opt/'; reboot; '/bin/python", "/opt/a\nb/bin/python"):
        assert "seerd-read" not in boothook(replace(boot(), python=other))
    assert "seerd-read" not in boothook(replace(boot(), python=python, root=True))


def test_a_folder_on_a_disk_is_made_when_that_is_mounted(tmp_path: Path) -> None:
    """In the background, after all that ends the instance."""
    text = boothook(replace(boot(), scratch="/opt/nvme"))
    assert text.index("--unit=seerd-deserted") < text.index("begin --unit=seerd-scratch")
    assert "seerd-scratch" not in boothook(boot())
    programs(
        tmp_path,
        mountpoint=f"[ $(wc -l < {tmp_path}/slept) -ge 2 ]",  # mounted at the third look
        install=f'echo "$@" >> {tmp_path}/made; [ $(wc -l < {tmp_path}/slept) -ge 3 ]',
        sleep=f"echo >> {tmp_path}/slept",
    )
    (tmp_path / "slept").touch()
    _, _, program = text.partition("<< 'SEERD_SCRATCH'\n")
    program = f"PATH={tmp_path}:$PATH\n" + program.partition("SEERD_SCRATCH\n")[0]
    subprocess.run(["sh", "-c", program], check=True, timeout=30)
    assert (tmp_path / "made").read_text().splitlines() == [
        "-d -m 700 -o seerd /opt/nvme/seerd"
    ] * 2
    with pytest.raises(ValueError, match="single lines"):
        user_data(replace(boot(), scratch="/opt/it's"))


def test_a_machine_that_is_being_imaged_has_no_agent_and_may_take_its_time() -> None:
    assert "seerd-deserted" not in user_data(Boot("a", 2e9, KEY, PUBLIC, PUBLIC, root=True))
    assert "begin --unit=seerd-deserted " in user_data(boot())


def test_the_user_and_the_host_key_are_there_before_sshd_is() -> None:
    """A cloud-config is worked off in cloud-init's network stage."""
    text = parts(user_data(boot()))["text/cloud-config"]
    assert text.startswith("#cloud-config\n")
    config = yaml.safe_load(text)
    usual, ours = config["users"]
    assert usual == "default", "whom a key pair of the person's own is for"
    assert ours["name"] == "seerd"
    assert ours["ssh_authorized_keys"] == [PUBLIC]
    assert config["ssh_deletekeys"]
    assert config["ssh_keys"] == {"ed25519_private": KEY, "ed25519_public": PUBLIC}
    (sudo,) = config["write_files"]
    assert (sudo["path"], sudo["permissions"]) == ("/etc/sudoers.d/seerd", "0440")
    assert "shutdown -h now" in sudo["content"]
    assert "ALL\n" not in sudo["content"]


@pytest.mark.parametrize("containers", [False, True])
def test_the_user_may_use_docker_where_trials_are_in_containers(containers: bool) -> None:
    text = parts(user_data(replace(boot(), containers=containers)))["text/cloud-config"]
    groups = yaml.safe_load(text)["users"][1].get("groups", [])
    assert groups == (["docker"] if containers else [])


@pytest.mark.parametrize("bad", ["it's", "two\nlines", "bell\a", "Läufe"])
def test_nothing_breaks_out_of_its_place(bad: str) -> None:
    with pytest.raises(ValueError, match="single lines"):
        user_data(boot(run=bad))
    with pytest.raises(ValueError, match="single lines"):
        user_data(boot(public=bad))


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
    text = user_data(Boot("a", 2e9, host.private, host.public, client.public))
    config = yaml.safe_load(parts(text)["text/cloud-config"])
    assert config["ssh_keys"]["ed25519_private"].strip() == host.private.strip()
    assert client.private.splitlines()[2] not in text
    assert text.count("PRIVATE KEY") == 2


def test_openssh_reads_the_keys(tmp_path: Path) -> None:
    pair = Keys(tmp_path / "keys").host("7.0")
    found = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(pair.path)], check=True, capture_output=True, text=True
    ).stdout
    assert found.split()[:2] == pair.public.split()[:2]


def test_each_run_has_keys_of_its_own(tmp_path: Path) -> None:
    one, other = Keys(tmp_path / "one" / "keys"), Keys(tmp_path / "other" / "keys")
    assert one.client().public != other.client().public
    assert one.host("7.0").public != other.host("7.0").public
    assert one.client().path.parent.stat().st_mode & 0o777 == 0o700
