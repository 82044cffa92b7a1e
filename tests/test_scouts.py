"""Whether a run begins with one instance: by the places in which instances of its home were ever
ready.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from seerd.backends.base import Quote
from seerd.backends.ec2.offer import place_of
from seerd.errors import ProviderError
from seerd.planner.model import ClusterFacts
from seerd.planning.planned import Planned
from seerd.planning.plans import plan_of
from seerd.runs import wiring
from seerd.shell import places
from seerd.shell.home import Home, RunFolder
from seerd.spec.experiment import load
from tests.test_elastic import P3_8XLARGE, SPEC

HERE = tuple(place_of("arn:aws:iam::123456789012:user/me", "us-east-1", s) for s in ("s-a", "s-b"))
LIMITS = '[limits]\ndeadline = "60m"\nbudget = "600gpu-min"\n[cluster]\nprovider = "ec2"\n'


def planned(folder: Path, where: tuple[str, ...], cluster: ClusterFacts = P3_8XLARGE) -> Planned:
    shutil.copy(Path(__file__).parent / "programs" / "trainer.py", folder)
    (folder / "spec.toml").write_text(SPEC + LIMITS)
    quote = Quote(cluster, machine_types=("p3.8xlarge",), places=where)
    return plan_of(load([folder / "spec.toml"], []), Home(folder / "home"), quote)


def test_where_no_instance_was_ever_ready_one_is_tried_for_its_median_boot(tmp_path: Path) -> None:
    cluster = planned(tmp_path, HERE).cluster
    assert cluster.scout_s == cluster.boot_s > 0.0
    places.note(tmp_path / "home", place_of("arn:aws:iam::1:user/me", "us-east-1", "s-a"))
    assert planned(tmp_path, HERE).cluster.scout_s > 0.0, "another account's"
    places.note(tmp_path / "home", HERE[1])
    assert planned(tmp_path, HERE).cluster.scout_s == 0.0, "one of them is enough"


def test_without_places_all_instances_are_launched(tmp_path: Path) -> None:
    assert planned(tmp_path, ()).cluster.scout_s == 0.0
    held = replace(P3_8XLARGE, billing="held", max_instances=2)
    assert planned(tmp_path, (), held).cluster.scout_s == 0.0


def test_a_ready_instance_is_noted_for_later_runs_unless_its_place_is_gone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run-1")

    def ended(instance: str) -> str:
        raise ProviderError(f"{instance} has ended")

    wiring._note_ready(folder, ended, "i-1")
    assert not (tmp_path / "places").exists()
    wiring._note_ready(folder, lambda instance: HERE[0], "i-1")
    assert places.is_noted(tmp_path, HERE[0])


@pytest.mark.parametrize("owner", ["", "me", "arn:aws:sts::1/2:assumed-role/x"])
def test_whoever_the_owner_is_a_place_is_the_name_of_a_file(tmp_path: Path, owner: str) -> None:
    place = place_of(owner, "us-east-1", "")
    places.note(tmp_path, place)
    assert places.is_noted(tmp_path, place)
    assert not places.is_noted(tmp_path, place_of(owner, "us-east-1", "s-a"))
    (made,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert made.parent == tmp_path / "places"
