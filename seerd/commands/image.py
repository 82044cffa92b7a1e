"""`seerd image build`: checks what is asked for, builds it, and tells what came of it.

The one rule: what can be refused without asking the cloud is refused before anything is rented.
"""

from __future__ import annotations

import re
import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict

import typer

from seerd.backends.ec2.keys import Ec2Keys
from seerd.commands import image_build
from seerd.commands.common import tell
from seerd.commands.giving_back import teller
from seerd.commands.image_build import Built, ImagePlan
from seerd.commands.options import ImageOptions, SpecOptions
from seerd.errors import UsageError
from seerd.planner.clouds import INSTANCE_TYPES
from seerd.planning.machine import this_machine
from seerd.runs.clusters import with_command
from seerd.shell.home import Home
from seerd.spec.spec import Spec
from seerd.telling.working import working
from seerd.units import format_duration, format_gpu_time, format_money

_NAME = re.compile(r"[A-Za-z0-9 ()\[\]./'@_-]{3,128}")
"""Names of images that EC2 takes
(docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateImage.html).
"""


def build(asked: SpecOptions, wanted: ImageOptions, home: Home, *, json: bool) -> None:
    """Build an image, and tell what to write into the spec.

    Raises `typer.Exit`, with 1 if something is left that costs; `UsageError` for what cannot be
    built; and what `image_build.build` raises.
    """
    with working("looking for the image to begin with"):
        planned = plan(asked.job(), wanted, home)
    built = image_build.build(planned, teller(sys.stderr if json else sys.stdout))
    tell(asdict(built), lambda _: "\n".join(lines(built)), json=json)
    raise typer.Exit(1 if built.left else 0)


def plan(spec: Spec, asked: ImageOptions, home: Home) -> ImagePlan:
    """Plan what will be built. Raises `UsageError`, and `CloudError` as `Ec2.quote` does."""
    renting = with_command(spec, "image build")
    cluster: Ec2Keys = renting.keys
    base = asked.base or cluster.image
    if not base:
        raise UsageError(
            "which image is this one made from? Give --base, for example a plain Ubuntu:\n"
            "  --base ssm:/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/"
            "ebs-gp3/ami-id"
        )
    if asked.data and not spec.train.data:
        raise UsageError("--data: the spec has no train.data to put into the image")
    now = time.strftime("%Y%m%d-%H%M%S")
    name = asked.name or f"seerd-{spec.name}-{now}"
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--name {name!r}: EC2 takes 3 to 128 letters, digits and ()[] ./-'@_ "
            "as the name of an image"
        )
    quote = renting.quote(this_machine(), home.path)
    kind = asked.instance_type or cluster.types[0]
    run = f"image-{spec.name}-{now}-{secrets.token_hex(2)}"
    known = INSTANCE_TYPES.get(kind)
    return ImagePlan(
        spec=spec,
        cluster=cluster,
        run=run,
        name=name,
        base=base,
        instance_type=kind,
        owner=quote.owner,
        data=asked.data,
        usd_per_h=None if known is None else known.usd_per_h,
        spec_gpus=quote.facts.gpus_per_instance,
        spec_usd_per_h=quote.usd_per_h,
        log=home.path / "images" / f"{run}.log",
    )


def lines(built: Built) -> Iterator[str]:
    """Yield lines for people: what to write into the spec, what the image saves, and what it
    costs.
    """
    yield (
        f"{built.image} ({built.name}) is available in {built.region}. "
        "Write into [cluster] of the spec:"
    )
    yield f'  image = "{built.image}"'
    spared = f"{format_gpu_time(built.spared_gpu_s)}, {format_money(built.spared_usd)}"
    took = format_duration(round(built.install_s))
    yield f"Each instance that boots it is spared {took} of installing: {spared}."
    snapshots = ", ".join(built.snapshots) or "its snapshot"
    yield f"It costs the storage of {snapshots} until you delete it:"
    yield (
        f"  aws ec2 deregister-image --image-id {built.image} --delete-associated-snapshots "
        f"--region {built.region}"
    )
