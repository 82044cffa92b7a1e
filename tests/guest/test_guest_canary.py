"""`seerd canary` where systemd, sshd, sudo and cloud-init are those of a distribution."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.testbed.rig import Rig

FLIGHT_S = 300.0
SPEC = """
name = "digits"
metric = {{ name = "accuracy", mode = "max" }}
[train]
script = "train.py"
[space]
lr = {{ low = 0.1, high = 0.9 }}
[cluster]
provider = "ec2"
region = "us-east-1"
instance_type = "g4dn.xlarge"
image = "{image}"
security_groups = ["{group}"]
store = "s3://{bucket}/models"
"""


def test_a_canary_finds_nothing_wrong(rig: Rig, distribution: Path, tmp_path: Path) -> None:
    image = rig.add_distribution(distribution)
    spec = SPEC.format(image=image, group=rig.security_group, bucket=rig.bucket)
    (tmp_path / "spec.toml").write_text(spec)
    (tmp_path / "train.py").write_text("pass\n")
    words = ["canary", str(tmp_path / "spec.toml"), "--home", str(tmp_path / "home"), "--json"]
    nothing = {"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    done = subprocess.run(
        [sys.executable, "-m", "seerd.cli", *words],
        env=os.environ | rig.env | nothing,
        capture_output=True,
        text=True,
        timeout=FLIGHT_S,
        check=False,
    )
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    wrong = [one for one in told["checks"] if one["result"] not in {"passed", "untried"}]
    assert (wrong, done.returncode) == ([], 0)
    assert rig.instances() == []
