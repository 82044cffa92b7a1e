"""What `seerd image build` is asked for, what it builds, and how that is told.

The one rule: what can be refused without asking the cloud is refused here, before anything is rented.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from seerd.errors import UsageError
from seerd.planner.clouds import INSTANCE_TYPES
from seerd.planning.machine import this_machine
from seerd.runs.clusters import Ec2
from seerd.shell.home import Home
from seerd.spec.spec import Ec2Cluster, Spec
from seerd.units import format_duration, format_gpu_time, format_money

_NAME = re.compile(r"[A-Za-z0-9 ()\[\]./'@_-]{3,128}")
"""What EC2 takes (docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateImage.html)."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says; None: as the spec has it."""

    base: str | None
    instance_type: str | None
    name: str | None
    data: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """An image to be built. `gpus`: of the instance that it is built on; `usd_per_h`: of that instance, None if nobody knows; the spec's own
    instances have `spec_gpus` for `spec_usd_per_h`; `log`: where everything goes that the scripts say.
    """

    spec: Spec
    cluster: Ec2Cluster
    run: str
    name: str
    base: str
    instance_type: str
    owner: str
    data: bool
    usd_per_h: float | None
    spec_gpus: int
    spec_usd_per_h: float
    log: Path


@dataclass(frozen=True, slots=True)
class Built:
    """An image. `boot_s`: from asking for the instance to a login on it; `install_s`: what an instance with this image is spared; `ran_s`: what
    was billed of the instance; `left`: what of it still costs, one line each.
    """

    image: str
    name: str
    snapshots: tuple[str, ...]
    region: str
    base: str
    instance_type: str
    boot_s: float
    install_s: float
    ran_s: float
    usd: float | None
    spared_gpu_s: float
    spared_usd: float
    left: list[str]

    def json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def plan(spec: Spec, asked: Asked, home: Home) -> Plan:
    """What will be built. Raises `UsageError`."""
    cluster = spec.cluster
    if not isinstance(cluster, Ec2Cluster):
        raise UsageError(
            f'images are for rented instances, and the spec says provider = "{cluster.provider}"; to rent: provider = "ec2" in [cluster]'
        )
    base = asked.base or cluster.image
    if not base:
        raise UsageError(
            "which image is this one made from? Give --base, for example a plain Ubuntu:\n"
            "  --base ssm:/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
        )
    if asked.data and not spec.train.data:
        raise UsageError("--data: the spec has no train.data to put into the image")
    now = time.strftime("%Y%m%d-%H%M%S")
    name = asked.name or f"seerd-{spec.name}-{now}"
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name {name!r}: EC2 takes 3 to 128 letters, digits and ()[] ./-'@_ as the name of an image")
    offer = Ec2(cluster).quote(this_machine(), home)
    kind = asked.instance_type or cluster.types[0]
    run = f"image-{spec.name}-{now}-{secrets.token_hex(2)}"
    known = INSTANCE_TYPES.get(kind)
    return Plan(
        spec=spec,
        cluster=cluster,
        run=run,
        name=name,
        base=base,
        instance_type=kind,
        owner=offer.owner,
        data=asked.data,
        usd_per_h=None if known is None else known.usd_per_h,
        spec_gpus=offer.facts.gpus_per_instance,
        spec_usd_per_h=offer.usd_per_h,
        log=home.path / "images" / f"{run}.log",
    )


def lines(built: Built) -> Iterator[str]:
    """What to do with it, for people."""
    yield f"{built.image} ({built.name}) is available in {built.region}. Write into [cluster] of the spec:"
    yield f'  image = "{built.image}"'
    yield (
        f"Each instance that boots it is spared {format_duration(round(built.install_s))} of installing: "
        f"{format_gpu_time(built.spared_gpu_s)}, {format_money(built.spared_usd)}."
    )
    yield (
        f"It costs the storage of {', '.join(built.snapshots) or 'its snapshot'} until you delete it:\n"
        f"  aws ec2 deregister-image --image-id {built.image} --delete-associated-snapshots --region {built.region}"
    )


@contextmanager
def telling(to: Any) -> Iterator[Tell]:
    """Lines with the seconds since now, to this stream."""
    began = time.monotonic()
    yield lambda text: print(f"{time.monotonic() - began:7.1f}s  {text}", file=to, flush=True)
