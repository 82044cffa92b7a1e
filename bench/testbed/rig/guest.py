"""What a coordinator brings to an instance, for the rig's own tests: a script with a host key and a
user, and a way in.

The one rule: the host key is known before the first connection.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import asyncssh
import boto3
from botocore.config import Config

from bench.testbed.rig import Rig

SCRIPT = """#!/bin/bash
shutdown -P +30
useradd -m -s /bin/bash ubuntu
echo 'ubuntu ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/90-ubuntu
chmod 440 /etc/sudoers.d/90-ubuntu
install -d -m 700 -o ubuntu -g ubuntu /home/ubuntu/.ssh
echo '{user}' >/home/ubuntu/.ssh/authorized_keys
chown ubuntu /home/ubuntu/.ssh/authorized_keys
umask 077
cat >/etc/ssh/ssh_host_ed25519_key <<'KEY'
{host}KEY
rm -f /etc/ssh/ssh_host_ed25519_key.pub
systemctl restart ssh
"""
PATIENCE_S = 20.0


def client(rig: Rig, service: str) -> Any:
    """A client that asks once."""
    return _client(
        service, rig.endpoint, rig.env["AWS_ACCESS_KEY_ID"], rig.env["AWS_SECRET_ACCESS_KEY"]
    )


@functools.cache
def _client(service: str, endpoint: str, key: str, secret: str) -> Any:
    """Made once: reading the model of EC2 takes as long as a launch."""
    return boto3.client(
        service,
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(
            retries={"total_max_attempts": 1, "mode": "standard"},
            signature_version="s3v4" if service == "s3" else None,
        ),
    )


@dataclass(frozen=True, slots=True)
class Keys:
    """The host's key and the user's, made for one test."""

    host: asyncssh.SSHKey = field(
        default_factory=lambda: asyncssh.generate_private_key("ssh-ed25519")
    )
    user: asyncssh.SSHKey = field(
        default_factory=lambda: asyncssh.generate_private_key("ssh-ed25519")
    )

    @property
    def script(self) -> str:
        """User data."""
        return SCRIPT.format(
            user=self.user.export_public_key().decode().strip(),
            host=self.host.export_private_key().decode(),
        )

    async def connect(self, address: str) -> asyncssh.SSHClientConnection:
        """Log in as ubuntu, once the instance has been told its host key."""
        known = asyncssh.import_known_hosts(f"{address} {self.host.export_public_key().decode()}")
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await asyncssh.connect(
                    address,
                    username="ubuntu",
                    client_keys=[self.user],
                    known_hosts=known,
                    config=None,
                    connect_timeout=5,
                )
            except (OSError, asyncssh.Error):
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(0.02)


def order(rig: Rig, **changes: Any) -> dict[str, Any]:
    """The parameters of RunInstances for one p3.8xlarge in the first zone."""
    asked = {
        "ImageId": rig.image,
        "InstanceType": "p3.8xlarge",
        "MinCount": 1,
        "MaxCount": 1,
        "SubnetId": rig.subnets["us-east-1a"],
        "SecurityGroupIds": [rig.security_group],
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required"},
    } | changes
    return {name: value for name, value in asked.items() if value is not None}


def launch(rig: Rig, **changes: Any) -> list[str]:
    """The ids of what was launched."""
    return [
        one["InstanceId"]
        for one in client(rig, "ec2").run_instances(**order(rig, **changes))["Instances"]
    ]


def until(true: Callable[[], Any], within_s: float = PATIENCE_S) -> Any:
    """Wait for a condition; its value."""
    end = time.monotonic() + within_s
    while not (value := true()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)
    return value
