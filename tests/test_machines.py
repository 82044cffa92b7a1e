"""`seerd machines`: who has which GPUs."""

from __future__ import annotations

import getpass
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from seerd import cli
from seerd.agent.gpu_leases import LeaseFolder, Registration, RunHere, Use, free

USER = getpass.getuser()
POOL = [f"gpu-{number}" for number in range(3)]


@pytest.fixture
def folder(leases: Path) -> Iterator[LeaseFolder]:
    made = LeaseFolder(str(leases))
    yield made
    made.close()


def told(*args: str) -> str:
    done = CliRunner().invoke(cli.app, ["machines", *args], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def comes(
    folder: LeaseFolder, name: str, uses: dict[str, Use], weight: float = 1.0
) -> Registration:
    own = folder.register(name)
    since = time.time() - 90
    own.write(RunHere(name, weight, 3, 2, 1, POOL, since, uses))
    return own


def test_a_machine_where_nobody_is(leases: Path) -> None:
    assert told() == "this machine: no run is here\n"
    assert not leases.exists(), "looking leaves nothing behind"


def test_who_has_what_and_what_is_free(folder: LeaseFolder) -> None:
    use = Use("t0004/2", time.time() - 41)
    own = comes(folder, "digits", {"gpu-0": use, "gpu-2": use}, 2.5)
    held = [folder.lease(name) for name in ("gpu-0", "gpu-1")]
    lines = [re.sub(r"\d+s *$", "s", line).split() for line in told().splitlines()]
    assert lines == [
        ["this", "machine:", "2", "of", "3", "GPUs", "or", "slots", "are", "in", "use"],
        ["GPU", "run", "user", "trial", "for"],
        ["gpu-0", "digits", USER, "t0004/2", "s"],
        ["gpu-1", "somebody", "-", "-", "-"],
        ["gpu-2", "free", "-", "-", "-"],
        ["run", "user", "weight", "has", "could", "use", "here", "for"],
        ["digits", USER, "2.5", "1", "2", "1ms"],
    ]
    own.close()
    for lease in held:
        assert lease is not None
        free([lease])
    assert told() == "this machine: no run is here\n"


def test_parts_of_a_gpu_are_shown_in_its_place_and_counted_as_parts(folder: LeaseFolder) -> None:
    uses = {name: Use("t1/1", 5.0) for name in ("gpu-0", "gpu-2.1of4", "gpu-2.2of4")}
    own = folder.register("digits")
    own.write(RunHere("digits", 1.0, 12, 8, 1, POOL, time.time(), uses, parts=4))
    held = [
        folder.lease_part(*part) for part in (("gpu-0", 0, 1), ("gpu-2", 1, 4), ("gpu-2", 2, 4))
    ]
    one = json.loads(told("--json"))["machines"][0]
    keys = ("gpu", "part", "parts", "held", "trial")
    assert [tuple(gpu[key] for key in keys) for gpu in one["gpus"]] == [
        ("gpu-0", 0, 1, True, "t1"),
        ("gpu-1", 0, 1, False, None),
        ("gpu-2", 1, 4, True, "t1"),
        ("gpu-2", 2, 4, True, "t1"),
    ]
    counts = [[run[key] for key in ("gpus", "most", "wants", "parts")] for run in one["runs"]]
    assert json.dumps(counts) == "[[1.5, 3, 2, 4]]"
    shown = told()
    assert shown.startswith("this machine: 2 of 3 GPUs or slots are in use\n")
    assert shown.count("1/4 of gpu-2  digits") == 2
    for leases in held:
        assert leases is not None
        free(leases)
    own.close()


def test_what_a_dead_agent_said_counts_only_for_what_its_trials_still_hold(
    folder: LeaseFolder,
) -> None:
    own = comes(folder, "dead", {"gpu-0": Use("t1/1", 5.0), "gpu-1": Use("t2/1", 5.0)})
    lease = folder.lease("gpu-0")
    free([own._descriptor])  # as the kernel does when the agent dies
    one = json.loads(told("--json"))["machines"][0]
    assert [(gpu["gpu"], gpu["run"], gpu["attempt"]) for gpu in one["gpus"]] == [
        ("gpu-0", "dead", 1)
    ]
    assert [(run["run"], run["lives"], run["gpus"]) for run in one["runs"]] == [("dead", False, 1)]
    assert "its agent has died; its trials are leaving" in told()
    assert lease is not None
    free([lease])
    assert told() == "this machine: no run is here\n"


def test_a_folder_that_cannot_be_used_is_told(leases: Path) -> None:
    leases.mkdir(mode=0o700)
    one = json.loads(told("--json"))["machines"][0]
    assert "mode 0700" in one["why"]
    assert told().startswith(f"this machine: {leases} has mode 0700")


def test_rented_instances_are_nobody_elses(tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    (tmp_path / "train.py").touch()
    spec.write_text(
        'name = "a"\nmetric = { name = "m", mode = "max" }\n[train]\nscript = "train.py"\n'
        '[space]\nlr = { low = 0.1, high = 1.0 }\n[cluster]\nprovider = "ec2"\n'
        'store = "s3://bucket/prefix"\n'
    )
    done = CliRunner().invoke(cli.app, ["machines", str(spec)])
    assert "rented for one run alone" in str(done.exception)
