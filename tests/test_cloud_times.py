"""What `seerd canary` has measured, and what plans make of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from seerd.backends.ec2.keys import Ec2Keys
from seerd.backends.local.keys import LocalKeys
from seerd.errors import UsageError
from seerd.planner.clouds import EC2, assumed
from seerd.planner.profile import Latency
from seerd.planning.cloud_times import (
    KeptTimes,
    applied,
    chosen,
    cloud_of,
    keep,
    load,
    stands_for,
)
from seerd.planning.profiles import profile_for
from seerd.spec.spec import Spec, load_spec

ROOT = Path(__file__).parent.parent
SMALL = KeptTimes(
    version=1,
    region="eu-west-1",
    instance_type="t3.small",
    measured_at="2026-11-20T10:00:00Z",
    pending_s=(8.0, 10.0, 9.0),
    boot_s=(30.0, 32.0, 31.0),
    release_s=(0.5,),
)
LARGE = msgspec.structs.replace(
    SMALL, instance_type="g4dn.xlarge", pending_s=(20.0,), boot_s=(40.0,), release_s=()
)


def spec(**changes: object) -> Spec:
    cluster = Ec2Keys(region="eu-west-1", instance_type=("g4dn.12xlarge",))
    return replace(
        load_spec(ROOT / "examples" / "aws" / "spec.toml", []),
        cluster=replace(cluster, **changes),  # type: ignore[arg-type]
    )


def test_times_of_the_same_family_take_the_place_of_what_was_assumed(tmp_path: Path) -> None:
    assert applied(assumed(rented=True), tmp_path, spec()).note == ""
    keep(tmp_path, SMALL)
    keep(tmp_path, LARGE)
    found = profile_for(tmp_path, spec(), ("g4dn.12xlarge",))
    assert found.cloud.boot == Latency(40.0, 72.0), "as much longer as was assumed"
    assert found.cloud.pending.p50_s == 20.0
    assert found.cloud.release == EC2.release, "it was not measured"
    assert not found.is_measured, "of the script nothing is known"
    assert "boots for 40s, as seerd canary measured on g4dn.xlarge in eu-west-1" in found.note


def test_a_machine_without_a_gpu_makes_a_plan_more_careful_and_never_less(tmp_path: Path) -> None:
    keep(tmp_path, SMALL)
    found = profile_for(tmp_path, spec(), ("g4dn.12xlarge",))
    assert found.cloud == EC2, "each of the three was shorter than assumed"
    assert "no shorter than assumed" in found.note
    slow = msgspec.structs.replace(SMALL, pending_s=(90.0,), boot_s=(200.0,), release_s=(8.0,))
    longer = cloud_of(slow, EC2, own=False)
    assert (longer.pending.p50_s, longer.boot.p50_s, longer.release.p50_s) == (90.0, 200.0, 8.0)


@pytest.mark.parametrize(
    ("measured", "types", "own"),
    [
        ("g4dn.xlarge", ("g4dn.xlarge",), True),
        ("g4dn.xlarge", ("g4dn.12xlarge", "g4dn.xlarge"), True),
        ("g4dn.xlarge", ("g4dn.xlarge", "g5.xlarge"), False),
        ("g4dn.xlarge", ("g4dn.metal",), False),
        ("g4dn.metal", ("g4dn.metal",), True),
        ("g4dn.metal", ("g4dn.xlarge",), False),
        ("c7i.large", ("c7i.metal-24xl",), False),
        ("g4dn.xlarge", (), False),
    ],
)
def test_a_type_stands_for_its_own_family_and_metal_for_itself(
    measured: str, types: tuple[str, ...], own: bool
) -> None:
    assert stands_for(measured, types) is own


def test_a_spec_with_another_family_is_planned_with_no_less_than_assumed(tmp_path: Path) -> None:
    keep(tmp_path, LARGE)
    mixed = spec(instance_type=("g4dn.xlarge", "g5.xlarge"))
    found = applied(assumed(rented=True), tmp_path, mixed)
    assert found.cloud.boot == EC2.boot
    assert found.cloud.pending.p50_s == 20.0
    assert "measured on g4dn.xlarge" in found.note


def test_other_regions_are_other_clouds_and_the_region_is_the_one_that_a_run_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, LARGE)
    elsewhere = spec(region="us-east-1")
    assert profile_for(tmp_path, elsewhere, ("g4dn.12xlarge",)).cloud == EC2
    base, open_ = assumed(rented=True), spec(region=None)
    config = tmp_path / "config"
    for name in ("AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    assert applied(base, tmp_path, open_) == base, "none is named"
    config.write_text("[default]\nregion = eu-west-1\n")
    assert applied(base, tmp_path, open_).note != ""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert applied(base, tmp_path, open_) == base
    here = replace(spec(), cluster=LocalKeys())
    assert applied(base, tmp_path, here) == base


def test_the_nearest_type_is_chosen_and_of_several_the_newest() -> None:
    newer = msgspec.structs.replace(SMALL, instance_type="t3.large")
    assert chosen([newer, SMALL, LARGE], "eu-west-1", ("g4dn.xlarge",)) == LARGE
    assert chosen([newer, SMALL, LARGE], "eu-west-1", ("p5.48xlarge",)) == newer
    assert chosen([newer, SMALL], "eu-west-1", ("t3.small",)) == SMALL
    assert chosen([SMALL], None, ("t3.small",)) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[" * 100_000, msgspec.json.encode(msgspec.structs.replace(SMALL, version=9))]
    + [msgspec.json.encode(msgspec.structs.replace(SMALL, boot_s=(x,))) for x in (-1.0, 1e9)],
)
def test_a_file_that_cannot_be_true_counts_as_none(tmp_path: Path, content: bytes) -> None:
    assert load(tmp_path) == []
    path = keep(tmp_path, SMALL)
    assert load(tmp_path) == [SMALL]
    path.write_bytes(content)
    assert load(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "clouds").write_text("a file")
    with pytest.raises(UsageError, match="cannot be kept"):
        keep(tmp_path, SMALL)


@pytest.mark.parametrize("slept_s", [-1.0, 3601.0, float("nan")])
def test_times_that_cannot_be_true_do_not_replace_good_ones(tmp_path: Path, slept_s: float) -> None:
    keep(tmp_path, SMALL)
    with pytest.raises(UsageError, match="cannot be true"):
        keep(tmp_path, msgspec.structs.replace(SMALL, boot_s=(slept_s,)))
    assert load(tmp_path) == [SMALL]
