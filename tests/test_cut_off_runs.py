"""Real runs over SSH whose machines cannot store checkpoints any more: the user is told, the run
ends in order, and the best model is fetched from its machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boto3

from tests.s3front import Fault, Front, moto_port, refuse, s3
from tests.shell.sshd import Sshd, agents, until
from tests.test_hosts_runs import seerd, server, spec_of_one

__all__ = ["moto_port", "s3", "server"]

WORDS = "explicit deny in a VPC endpoint policy"
ONE_TRIAL = ("policy.name='random'", "policy.trials=1")


def begin(folder: Path, server: Sshd, *more: str) -> Any:
    path = spec_of_one(folder, server)
    path.write_text(path.read_text().replace('store = "shared"', 'store = "s3://bucket/runs"'))
    keys = [word for key in (*ONE_TRIAL, *more) for word in ("--set", key)]
    limits = ("--deadline", "5m", "--budget", "10gpu-min")
    return seerd(folder, "run", path, *limits, *keys, "--plain")


def shut(s3: Front, *, here: bool) -> None:
    """Refuse every checkpoint from now on; `here`: also what this machine puts."""

    def is_put(request: Any) -> bool:
        return (
            request.presigned
            and request.method == "PUT"
            and (here or "-999999" not in request.path)
        )

    s3.faults.append(Fault(is_put, refuse(403, "AccessDenied", WORDS), 1 << 30))


def result(folder: Path) -> tuple[dict[str, Any], int]:
    """What is told of the run that is over, and after how many reports its model was saved."""
    shown = json.loads(seerd(folder, "show", "last", "--json").communicate()[0])
    model = json.loads(Path(shown["best"]["checkpoint"]).read_text())
    return shown, model["epoch"]


def stored() -> list[str]:
    listed = boto3.client("s3").list_objects_v2(Bucket="bucket").get("Contents", [])
    return [row["Key"].rpartition("/")[2] for row in listed]


def test_a_run_that_is_cut_off_from_its_store_ends_with_its_best_model_in_it(
    tmp_path: Path, server: Sshd, s3: Front
) -> None:
    run = begin(tmp_path, server)
    until(lambda: len(s3.agents("PUT", ".json")) > 1, 60)
    shut(s3, here=False)
    out, err = run.communicate()
    assert run.returncode == 0, out + err
    assert "no checkpoint can be stored (t0001 on " in out + err
    assert "no checkpoint could be stored for 6" in out + err
    assert WORDS in out + err
    assert "could not be stored, and was fetched from " in out + err
    shown, reports = result(tmp_path)
    assert shown["status"] == "failed"
    assert shown["best"]["metric"] == max(row["metric"] for row in shown["all_trials"])
    assert reports > 60, "all that was trained while nothing was stored"
    assert "0001-999999.json" in stored()
    assert agents(server.home) == []
    assert json.loads(seerd(tmp_path, "replay", "last", "--json").communicate()[0])["same"]


def test_a_model_that_nobody_can_store_is_handed_back_from_this_machine(
    tmp_path: Path, server: Sshd, s3: Front
) -> None:
    shut(s3, here=True)
    run = begin(tmp_path, server, "train.env.SEERD_TEST_EPOCHS='12'")
    out, err = run.communicate()
    assert run.returncode == 0, out + err
    shown, reports = result(tmp_path)
    assert (shown["status"], reports) == ("done", 12)
    assert not any(name.endswith(".json") for name in stored())
    assert len(list((tmp_path / "runs").glob("*/fetched/t0001/0001-999999.pt"))) == 1
