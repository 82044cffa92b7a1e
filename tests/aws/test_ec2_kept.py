"""Tokens of instances that wait for the next run."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from seerd.aws.userdata import Boot, boothook, cloud_config
from seerd.backends.ec2.kept import KeptInstance, KeptInstances, alike, place_of
from seerd.backends.ec2.request import Candidate, Ec2Settings
from seerd.clock import wall

NO_REMOTE: Any = None
PLACE = ("g4dn.xlarge", "subnet-1", False)


def of_run(home: Path, run: str) -> KeptInstances:
    keys = home / run / "keys"
    keys.mkdir(parents=True, exist_ok=True)
    return KeptInstances(home / "kept", keys, NO_REMOTE)


def wait_here(home: Path, instance: str, like: str = "x", off_in_s: float = 300.0) -> None:
    kept = KeptInstance(instance, like, PLACE, wall() + off_in_s, "ssh-ed25519 host")
    of_run(home, "first")._write(kept, b"key")


def test_of_many_who_want_a_machine_at_once_one_gets_it(tmp_path: Path) -> None:
    for number in range(20):
        wait_here(tmp_path, f"i-{number:x}")
        runs = [of_run(tmp_path, f"run-{number}-{other}") for other in range(6)]
        together = threading.Barrier(len(runs))

        def claim(run: KeptInstances, together: threading.Barrier = together) -> bool:
            together.wait()
            return run.claim("1.0", "x", {PLACE})

        with ThreadPoolExecutor(len(runs)) as pool:
            assert sorted(pool.map(claim, runs)) == [False] * 5 + [True]
        (winner,) = [run.taken("1.0") for run in runs if run.taken("1.0")]
        assert winner is not None
        assert winner.instance == f"i-{number:x}"


def test_only_what_fits_and_lasts_is_taken_and_its_key_is_private(tmp_path: Path) -> None:
    run = of_run(tmp_path, "second")
    wait_here(tmp_path, "i-1", like="other")
    wait_here(tmp_path, "i-2", off_in_s=10.0)
    wait_here(tmp_path, "i-3", off_in_s=-1.0)
    assert not run.claim("1.0", "x", {PLACE})
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"i-1", "i-2"}
    wait_here(tmp_path, "i-4")
    assert not run.claim("1.0", "x", {("g5.xlarge", "subnet-1", False), (*PLACE[:2], True)})
    assert run.claim("1.0", "x", {PLACE})
    access = run.access("1.0")
    assert access is not None
    assert access[0] == ("ssh-ed25519 host",)
    assert access[1].read_bytes() == b"key"
    assert access[1].stat().st_mode & 0o777 == 0o600
    assert access[1].parent.stat().st_mode & 0o777 == 0o700
    assert run.access("2.0") is None
    run.drop("1.0")
    assert run.taken("1.0") is None


SETTINGS = Ec2Settings(
    run="r", name="n", owner="o", instance_types=("g4dn.xlarge",), gpus=1, image="ami-1",
    hard_end=0.0, boot_s=1.0, keys=Path("keys"),
)  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        {"owner": "p"}, {"security_groups": ("sg-1",)}, {"volume_gb": 9}, {"keep_s": 300.0},
        {"tags": {"a": "b"}}, {"capacity": "cr-1"}, {"max_usd_per_h": 1.0}, {"region": "eu-west-1"},
    ],
)  # fmt: skip
def test_another_kind_of_instance_does_not_fit(other: dict[str, Any]) -> None:
    assert alike(replace(SETTINGS, **other), "ami-1") != alike(SETTINGS, "ami-1")


def test_the_same_kind_fits_whatever_the_run_and_its_end() -> None:
    same = replace(SETTINGS, run="s", name="m", hard_end=9.0, keys=Path("other"))
    assert alike(same, "ami-1") == alike(SETTINGS, "ami-1")
    assert alike(same, "ami-2") != alike(SETTINGS, "ami-1")
    spot = replace(SETTINGS, market="spot", falls_back=True)
    assert place_of(spot, Candidate("t", "s", "z")) == ("t", "s", True)
    assert place_of(spot, Candidate("t", "s", "z", fallback=True)) == ("t", "s", False)


def test_only_where_instances_are_kept_may_the_user_move_their_end() -> None:
    boot = Boot("r", 0.0, "private", "public", "public")
    for keep_s, there in ((0.0, False), (900.0, True)):
        mine = replace(boot, keep_s=keep_s)
        assert ("seerd-end-in" in boothook(mine)) is there
        assert ("/bin/sh /run/seerd-end-in [0-9]*" in cloud_config(mine)) is there
    assert "alone=0\n" in boothook(boot)
    assert "most=600 " in boothook(boot)
    assert "most=920 " in boothook(replace(boot, keep_s=900.0))


def test_the_end_is_moved_by_whole_seconds_and_not_for_ever(tmp_path: Path) -> None:
    """What is asked for wrongly is refused before any timer is set."""
    hook = boothook(Boot("r", 0.0, "private", "public", "public", keep_s=600.0))
    script = hook.partition("<< 'SEERD_END_IN'\n")[2].partition("SEERD_END_IN\n")[0]
    harmless = script.replace("systemd-run", "exit 9 #")  # whatever comes after that
    assert script.count("systemd-run") == 1
    (tmp_path / "script").write_text(harmless)
    for given, status in (("600", 9), ("2678400", 9), ("2678401", 2), ("12345678", 2)):
        assert _ended(tmp_path / "script", given) == status, given
    for given in ("", "-1", "1.5", "600 now", "$(id)"):
        assert _ended(tmp_path / "script", given) == 2, given


def _ended(script: Path, argument: str) -> int:
    return subprocess.run(["/bin/sh", str(script), argument], check=False).returncode


def test_a_machine_that_would_end_too_late_is_not_left(tmp_path: Path) -> None:
    class Late:
        async def let_go(self, _: object, until: float) -> float:
            return until - wall() + 11.0

    keys = tmp_path / "keys"
    keys.mkdir()
    run = KeptInstances(tmp_path / "kept", keys, cast("Any", Late()))
    machine: Any = None
    with pytest.raises(Exception, match="too late"):
        asyncio.run(run.leave(machine, wall() + 120.0, 5.0))
