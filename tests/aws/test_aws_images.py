"""How old an image is, and what doctor says of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from seerd.aws import images
from seerd.aws.types import Ec2Type
from seerd.backends.base import Machine
from seerd.backends.ec2.doctor import renting
from seerd.backends.ec2.doctor.renting import AwsNotes
from seerd.backends.ec2.keys import Ec2Keys
from seerd.backends.examining import Case, Finding
from seerd.spec.spec import load_spec
from tests.aws.scripted import cloud_of, played
from tests.faults.timeline import EPOCH

ROOT = Path(__file__).parents[2]
KINDS = [Ec2Type("g6.xlarge", 1, "L4", 4)]
DAY_S = 86400.0


def told(made_at: float | None, deprecated_at: float | None) -> dict[str, Any]:
    """DescribeImages' answer."""
    row: dict[str, Any] = {"ImageId": "ami-1", "Name": "gpus", "RootDeviceName": "/dev/sda1"}
    for name, at in (("CreationDate", made_at), ("DeprecationTime", deprecated_at)):
        if at is not None:
            text = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
            row[name] = text
    return {"Images": [row | {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {}}]}]}


@pytest.mark.parametrize(
    ("age_days", "ends_in_days", "level", "says"),
    [
        (40, 600, "ok", "40 days old"),
        (40, None, "ok", "40 days old"),
        (400, None, "warning", "400 days old: its driver and torch are as old"),
        (40, -3, "warning", "deprecated since "),
        (None, None, "ok", "root disk"),
    ],
)
def test_an_image_that_is_old_or_deprecated_is_told(
    age_days: float | None, ends_in_days: float | None, level: str, says: str
) -> None:
    now = EPOCH
    made_at = None if age_days is None else now - age_days * DAY_S
    ends_at = None if ends_in_days is None else now + ends_in_days * DAY_S
    cloud, _ = cloud_of(describe_images=told(made_at, ends_at))
    spec = load_spec(ROOT / "examples" / "aws" / "spec.toml", [])
    nothing = Finding("plan", "ok", "none")
    case = Case(spec, Path(), Machine(0, 1), lambda quote: (None, nothing))
    notes = AwsNotes(aws=cloud, case=case, keys=Ec2Keys(image="ami-1"))  # type: ignore[arg-type]
    image, _ = played(renting._image(notes, KINDS))
    assert image is not None
    (found,) = notes.lines
    assert found.level == level
    assert says in found.found
    assert ("name a newer one" in found.todo) is (level == "warning")


def test_a_time_that_is_none_is_not_known() -> None:
    assert images._moment("soon") is None
    assert images._moment("") is None
    assert images._moment("2026-01-31T12:00:00.000Z") == 1769860800.0
