"""An EC2 made of this machine: see README.md.

The one rule: the rig knows nothing of seerd. It is an endpoint, addresses that answer, and switches
for what can go wrong.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.testbed.rig.faults import DENIED_BY
from bench.testbed.rig.network import NoRigError, require_tools

__all__ = ["NoRigError", "Rig", "RigInstance"]

ROOT = Path(__file__).resolve().parents[3]
START_S = 60.0
SWITCH_S = 30.0


@dataclass(frozen=True, slots=True)
class RigInstance:
    """An instance as the rig accounts for it. Times are wall clock, seconds since 1970.

    EC2 bills it from `since`, when it was running, to `until`, when it began to shut down. `pid` is
    its first process, seen from outside: its file system is `/proc/PID/root`, and `nsenter --target
    PID --all` enters it.
    """

    id: str
    type: str
    zone: str
    address: str
    market: str
    token: str
    state: str
    launched: float
    since: float | None
    until: float | None
    reason: str
    gpus: int
    pid: int | None
    folder: str
    public: str = ""

    @property
    def ns(self) -> str:
        """Its network namespace, for `nsenter --net=`."""
        return f"/proc/{self.pid}/ns/net"

    def billed_s(self, now: float) -> float:
        """Seconds that EC2 has counted by then."""
        return 0.0 if self.since is None else max(0.0, (self.until or now) - self.since)


class Rig:
    """A rig in a process of its own, which ends with this one, however this one ends. Several may
    run on one machine.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._facts: dict[str, Any] = {}

    @classmethod
    def start(cls, *, fast: bool = False) -> Rig:
        """A rig that is ready: as slow as EC2, with its limits, or `fast`. Raises `NoRigError`
        where there can be none, and says why.
        """
        require_tools()
        rig = cls()
        shm = Path("/dev/shm")
        folder = tempfile.mkdtemp(prefix="seerd-rig-", dir=shm if shm.is_dir() else None)
        rig._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bench.testbed.rig.supervisor",
                folder,
                "fast" if fast else "honest",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            start_new_session=True,
        )
        assert rig._process.stdout is not None
        line = rig._process.stdout.readline()
        rig._facts = (
            json.loads(line)
            if line
            else {"unavailable": "its supervisor ended before it was ready"}
        )
        if "unavailable" in rig._facts:
            rig.stop()
            raise NoRigError(f"the rig could not start: {rig._facts['unavailable']}")
        return rig

    def stop(self) -> None:
        """Everything gone: instances, bridge, files. May be repeated."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()
        self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # What the coordinator is told.

    @property
    def endpoint(self) -> str:
        """The URL of every AWS service."""
        return str(self._facts["endpoint"])

    @property
    def env(self) -> dict[str, str]:
        """The environment of a program that is to take the rig for AWS."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self._facts["key"],
            "AWS_SECRET_ACCESS_KEY": self._facts["secret"],
            "AWS_DEFAULT_REGION": self._facts["region"],
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def image(self) -> str:
        """The id of the one image that boots."""
        return str(self._facts["image"])

    @property
    def image_parameter(self) -> str:
        """The name of the public SSM parameter that holds the image's id."""
        return str(self._facts["image_parameter"])

    @property
    def subnets(self) -> dict[str, str]:
        """The default subnet of each zone."""
        return dict(self._facts["subnets"])

    @property
    def security_group(self) -> str:
        return str(self._facts["security_group"])

    @property
    def bucket(self) -> str:
        return str(self._facts["bucket"])

    @property
    def outside(self) -> str:
        """The address that this machine has for instances which it reaches at their public ones."""
        return str(self._facts["outside"])

    # What a test looks at.

    def instances(self) -> list[RigInstance]:
        """Those that are pending or running."""
        return [RigInstance(**one) for one in self._switch("instances")]

    def account(self) -> dict[str, RigInstance]:
        """All there have been since the start or the last reset."""
        return {one["id"]: RigInstance(**one) for one in self._switch("account")}

    @property
    def calls(self) -> dict[str, int]:
        """API calls so far: "ec2:RunInstances" -> how many."""
        return dict(self._switch("calls"))

    def troubles(self) -> list[str]:
        """What went wrong in the rig itself. A test that fails strangely looks here."""
        return list(self._switch("troubles"))

    def console(self, instance: str) -> str:
        """What its first processes have printed, also once it has ended."""
        return str(self._switch("console", instance=instance))

    # What a test brings.

    def add_distribution(self, *layers: Path) -> str:
        """The id of an image that is these folders, the upper ones first: all of a system that
        boots by its own systemd. They are only read.
        """
        return str(self._switch("distribution", layers=":".join(map(str, layers))))

    def add_layer(self, layer: Path) -> str:
        """The id of an image that has this folder on the rig's own."""
        return str(self._switch("layer", layer=str(layer)))

    # What can go wrong on an instance, by its id.

    def spot_notice(self, instance: str, seconds: float = 120.0) -> None:
        """Announce the interruption in its metadata, and end it after so long."""
        self._switch("spot-notice", instance=instance, seconds=seconds)

    def rebalance(self, instance: str) -> None:
        """Recommend a rebalance in its metadata."""
        self._switch("rebalance", instance=instance)

    def maintain(self, instance: str, seconds: float | None) -> None:
        """Schedule its reboot in its metadata, in so many seconds; nothing happens then. None: what
        was scheduled is canceled.
        """
        self._switch("maintain", instance=instance, seconds=seconds)

    def lose(self, instance: str) -> None:
        """Gone at once, without a packet; EC2 says terminated, Server.SpotInstanceTermination."""
        self._switch("lose", instance=instance)

    def vanish(self, instance: str) -> None:
        """Gone at once, without a packet; EC2 says running, and bills."""
        self._switch("vanish", instance=instance)

    def partition(self, instance: str) -> None:
        """Its link is down; its processes and its metadata service go on."""
        self._switch("partition", instance=instance)

    def heal(self, instance: str) -> None:
        """The link is up again."""
        self._switch("heal", instance=instance)

    def slow(self, instance: str, delay_s: float = 0.0, loss: float = 0.0) -> None:
        """Its frames take so long each way, and this share of them is lost; without arguments the
        link is as before.
        """
        self._switch("slow", instance=instance, delay_s=delay_s, loss=loss)

    def press_reset(self, instance: str) -> None:
        """Every process is gone at once, and it boots from its disk as it is; only of an image of
        `add_distribution`.
        """
        self._switch("press-reset", instance=instance)

    def fill_disk(self, instance: str, free_bytes: int = 0) -> None:
        """So much room is left on its disk."""
        self._switch("fill-disk", instance=instance, free_bytes=free_bytes)

    def mount_disk(self, instance: str, folder: str, size_bytes: int = 8 << 30) -> None:
        """Its image mounts the instance store there now, in a folder of root's."""
        self._switch("mount-disk", instance=instance, folder=folder, size_bytes=size_bytes)

    def set_gpus(self, instance: str, count: int, health: str = "ok") -> None:
        """nvidia-smi shows so many from now on; with another health than "ok" it fails as with a
        broken driver.
        """
        self._switch("gpus", instance=instance, count=count, health=health)

    def hold_memory(self, instance: str, gpu: int, mib: int, pid: int | None = None) -> None:
        """nvidia-smi shows so much memory of this GPU in use from now on, by this process, or by
        none that it lists.
        """
        self._switch(
            "hold-memory",
            instance=instance,
            gpu=gpu,
            mib=mib,
            **({} if pid is None else {"pid": pid}),
        )

    # What can go wrong in the cloud.

    def set_boot(
        self,
        pending_s: float = 0.05,
        boot_s: float = 0.0,
        nologin_s: float = 0.0,
        hidden_s: float = 0.0,
        address_s: float = 0.0,
    ) -> None:
        """For launches from now on, by chance never longer: from launch to running, from running to
        sshd, from sshd until users other than root may log in, how long describes do not know a new
        id, and from running until the addresses are told.
        """
        self._switch(
            "timing",
            pending_s=pending_s,
            spread_s=0.0,
            boot_s=boot_s,
            nologin_s=nologin_s,
            hidden_s=hidden_s,
            address_s=address_s,
        )

    def end_session(self, key: str) -> None:
        """The session of STS with this access key is over."""
        self._switch("end-session", key=key)

    def forget_tokens(self) -> None:
        """The metadata of instances launched from now on answers without a token, whatever the
        launch says.
        """
        self._switch("without-tokens")

    def set_shutting_down(self, seconds: float) -> None:
        """From the last billed second to terminated."""
        self._switch("timing", shutting_down_s=seconds)

    def set_cold(self, seconds: float) -> None:
        """What the first import of torch takes on an instance launched from now on."""
        self._switch("timing", cold_s=seconds)

    def set_imaging(self, seconds: float) -> None:
        """How long images that are made from now on are pending."""
        self._switch("timing", image_s=seconds)

    def set_disk(self, size_bytes: int) -> None:
        """The disk of instances launched from now on."""
        self._switch("timing", disk_bytes=size_bytes)

    def set_capacity(
        self, instance_type: str, zone: str, instances: int | None, market: str = "on-demand"
    ) -> None:
        """So many may be live at once there; None: any number."""
        self._switch("capacity", type=instance_type, zone=zone, instances=instances, market=market)

    def buy(self, instance_type: str, zone: str, instances: int) -> str:
        """The id of a Capacity Reservation of so many, which has begun and has no end."""
        return str(self._switch("buy", type=instance_type, zone=zone, instances=instances))

    def set_quota(self, family: str, vcpus: int, market: str = "on-demand") -> None:
        """vCPUs of the families "P", "G" or "Standard" that may be live at once; Service Quotas
        says the same.
        """
        self._switch("quota", family=family, vcpus=vcpus, market=market)

    def set_buckets(self) -> None:
        """EC2 has its real limits on how often it may be asked from now on, until `reset`."""
        self._switch("buckets")

    @property
    def throttled(self) -> dict[str, int]:
        """How often each action was refused by these limits."""
        return dict(self._switch("throttled"))

    def fail(
        self,
        action: str,
        code: str,
        times: int | None = 1,
        rate: float = 1.0,
        message: str = "",
        status: int | None = None,
    ) -> None:
        """Calls of this action ("RunInstances", "s3:Put*", "ec2:*") get this error of AWS; `times`
        None: until `no_faults`.
        """
        self._switch(
            "fault",
            action=action,
            code=code,
            times=times,
            rate=rate,
            message=message,
            status=status,
        )

    def throttle(self, action: str = "ec2:*", rate: float = 1.0, times: int | None = None) -> None:
        """RequestLimitExceeded, SlowDown or ThrottlingException, as the service has it."""
        self.fail(action, "throttle", times, rate)

    def deny(self, action: str, by: str = "") -> None:
        """UnauthorizedOperation, AccessDenied or AccessDeniedException, until `no_faults`. `by`:
        what denies it though the caller's own policies permit it, "service control policy".
        """
        self.fail(action, "deny", None, message=DENIED_BY.format(by=by) if by else "")

    def lose_reply(self, action: str, times: int | None = 1, rate: float = 1.0) -> None:
        """The call takes effect, and the connection breaks before the answer."""
        self.fail(action, "lost reply", times, rate)

    def no_faults(self) -> None:
        """Every call works again."""
        self._switch("no-faults")

    def reset(self, *, fast: bool | None = None, bare: bool = False) -> None:
        """A new account: no instances, buckets or faults. The endpoint and the keys stay; image,
        subnets, group and bucket are others. `fast`: from now on; None: as it was. `bare`: as AWS
        makes one, without group, bucket, endpoint for S3, and quota for GPUs.
        """
        self._facts = self._switch("reset", fast=fast, bare=bare)

    def _switch(self, name: str, **given: object) -> Any:
        request = urllib.request.Request(
            f"{self.endpoint}/rig/{name}", json.dumps(given).encode(), method="POST"
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=SWITCH_S) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(error.read().decode()) from None
