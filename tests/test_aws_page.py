"""docs/aws.md, typed line by line on the rig: from an account as AWS makes it to a model that is
there; and the example that it runs, as it is.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from bench.testbed.rig import Rig
from bench.testbed.rig.guest import client
from tests.commands import Command, forked

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "aws.md"
SEERD = f'#!/bin/sh\nexec {sys.executable} -P -m seerd.cli "$@"\n'
CURL = """#!/bin/sh
[ "$*" = "-s https://checkip.amazonaws.com" ] && echo {address}
"""
"""The web service that tells callers their public address."""
REPORTS = "8"
TYPED = 'printf "\\n:typed:\\n"\n'


class Terminal:
    """A shell in a clone of the project, whose user has signed in as `admin` and nothing else."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.folder, self.home, programs = folder / "clone", folder / "home", folder / "bin"
        shutil.copytree(ROOT / "examples", self.folder / "examples")
        for name, text in {"seerd": SEERD, "curl": CURL.format(address=rig.outside)}.items():
            programs.mkdir(exist_ok=True)
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        keys = {name.lower(): value for name, value in rig.env.items() if "ACCESS_KEY" in name}
        lines = "".join(f"{name} = {value}\n" for name, value in keys.items())
        (self.home / ".aws").mkdir(parents=True)
        (self.home / ".aws" / "credentials").write_text(f"[admin]\n{lines}")
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self.environment = (
            own
            | forked()
            | {
                "AWS_ENDPOINT_URL": rig.endpoint,
                "AWS_EC2_METADATA_DISABLED": "true",
                "HOME": str(self.home),
                "PATH": path,
                "SEERD_HOME": str(folder / "runs"),
                "COLUMNS": "160",
            }
        )
        self._shell = subprocess.Popen(
            ["bash", "-euo", "pipefail"],
            cwd=self.folder,
            env=self.environment,
            text=True,
            bufsize=1,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.close()
        if self._shell.poll() is None:
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        self._shell.stdout.close()

    def type(self, text: str) -> str:
        """Type this, which must succeed; return what is printed."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{{\n{text}}} </dev/null\n{TYPED}")
        printed = ""
        for line in self._shell.stdout:
            if line == ":typed:\n":
                return printed
            printed += line
        pytest.fail(f"{text}\nended with {self._shell.wait()}:\n{printed}")


def steps() -> dict[str, list[str]]:
    """What is to be typed, by the title of the step."""
    parts = re.findall(r"(?ms)^## \d+\. (.*?)\n(.*?)(?=^## )", PAGE.read_text(encoding="utf-8"))
    return {title: re.findall(r"(?ms)^```sh\n(.*?)^```$", part) for title, part in parts}


def shorten(script: Path) -> None:
    """Have the example's script report a few times and end, without torch."""
    text = (ROOT / "tests" / "programs" / "trainer.py").read_text()
    assert '"1000000"' in text
    script.write_text(text.replace('"1000000"', f'"{REPORTS}"'))


@pytest.fixture
def account(rig: Rig) -> Rig:
    """As AWS makes one: no bucket, no group, no quota for GPUs."""
    rig.reset(fast=True, bare=True)
    rig.set_boot(pending_s=0.5, boot_s=0.3)
    return rig


@pytest.fixture
def terminal(account: Rig, tmp_path: Path) -> Iterator[Terminal]:
    with Terminal(account, tmp_path) as made:
        yield made


@pytest.mark.timeout(600)  # twenty commands of `aws`, and two flights
def test_the_page_leads_from_an_empty_account_to_a_model(account: Rig, terminal: Terminal) -> None:
    shorten(terminal.folder / "examples" / "digits" / "train.py")
    assert client(account, "s3").list_buckets()["Buckets"] == []
    printed: dict[str, str] = {}
    for title, blocks in steps().items():
        assert blocks, title
        if title == "The doctor":  # AWS has decided by then
            account.set_quota("G", 32)
        printed[title] = "".join(terminal.type(block) for block in blocks)
    assert "PENDING" in printed["Quota"]
    assert printed["Quota"].endswith("0.0\n\n"), "so far there is none"
    assert "problem " not in printed["The doctor"]
    assert "ok       permissions" in printed["The doctor"]
    assert ", 0 failed, 0 unknown, 4 not tried; about $" in printed["The canary"]
    assert "0 instances, 0 volumes left" in printed["The run"]
    assert (terminal.folder / "model" / "checkpoint.pt").stat().st_size
    assert (
        "nothing of arn:aws:iam::123456789012:user/seerd is left"
        in printed["See that nothing is left"]
    )
    assert account.instances() == []
    (bucket,) = client(account, "s3").list_buckets()["Buckets"]
    assert bucket["Name"] == "seerd-123456789012-us-east-1"
    keys = (terminal.home / ".aws" / "credentials").read_text()
    secret = re.findall(r"aws_secret_access_key = (\S+)", keys)[1]
    assert secret not in "".join(printed.values())


def test_the_example_runs_as_it_is(rig: Rig, tmp_path: Path) -> None:
    """Its trial trains with the torch of this machine until Ctrl-C."""
    rig.set_boot(pending_s=0.5, boot_s=0.3)
    own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    own |= rig.env | {"SEERD_HOME": str(tmp_path), "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    group, rule = rig.security_group, {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    mine = [{**rule, "IpRanges": [{"CidrIp": f"{rig.outside}/32"}]}]
    client(rig, "ec2").authorize_security_group_ingress(GroupId=group, IpPermissions=mine)
    filled_in = {
        "cluster.store": f"s3://{rig.bucket}/seerd",
        "cluster.security_groups": f"['{group}']",
    }
    sets = [word for key, value in filled_in.items() for word in ("--set", f"{key}={value}")]
    with Command(
        ["run", "examples/aws/spec.toml", "--max-gpus", "1", "--plain", *sets],
        ROOT,
        own,
        merged=True,
    ) as run:
        printed = ""
        for line in run.stdout:
            printed += line
            if " report 2:" in line:
                run.send_signal(signal.SIGINT)
        assert run.wait() == 130, printed
    assert re.search(r"the best model is that of t0001, accuracy 0\.\d+: .*checkpoint\.pt", printed)
    assert "0 instances, 0 volumes left" in printed
    (instance,) = rig.account().values()
    assert (instance.type, instance.market) == ("g4dn.xlarge", "on-demand")
