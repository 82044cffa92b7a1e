"""`seerd image build`: rents an instance, installs on it what training needs, and makes an image of
it. However a build ends, the instance is given back before the command says so. If this process is
killed, the instance powers itself off as its user data has scheduled, and `seerd sweep` finds it.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
import sys
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import typer

from seerd import ami
from seerd.agent.arguments import fixed_environment
from seerd.agent.needs import needs_torch
from seerd.aws import images, types
from seerd.aws.cloud import Cloud
from seerd.aws.instances import NAME, OWNER, RUN
from seerd.backends.backend import FREE_BYTES
from seerd.backends.base import Leftovers, Quote, Span
from seerd.backends.bundle import build_agent
from seerd.backends.ec2.keys import Ec2Keys
from seerd.backends.ec2.offer import settings_of
from seerd.backends.ec2.provider import Ec2Provider
from seerd.backends.ssh.workbench import Workbench
from seerd.clock import wall
from seerd.commands.common import tell
from seerd.commands.giving_back import teller, to_its_end, until_signal
from seerd.commands.options import ImageOptions, SpecOptions
from seerd.errors import (
    CloudError,
    ImageError,
    InterruptedRentalError,
    LaunchError,
    SeerdError,
    UsageError,
)
from seerd.planner.clouds import INSTANCE_TYPES
from seerd.planning.machine import this_machine
from seerd.runs.clusters import with_command
from seerd.shell.home import Home
from seerd.shell.source_copy import CopyTerms, copy_source
from seerd.spec.spec import Spec
from seerd.stores.s3.store import S3Store
from seerd.telling.plan_json import Json
from seerd.telling.summary import leftover_lines
from seerd.telling.working import working
from seerd.units import format_duration, format_gpu_time, format_money

HARD_END_S = 7200.0  # seconds until the instance powers itself off, whatever happens
IMAGE_MARGIN_S = 600.0  # seconds of these to give up an image that does not become available
# the user's source; `ami/clean.sh` empties the folder above
WORK = "/var/tmp/seerd-image"  # noqa: S108
DATA = "/opt/seerd/data"  # where `--data` puts the data
LAST_LINES = 15  # lines of output that an error shows
LAUNCH = "image"  # the name of a build's only launch
SWEEP = "seerd sweep removes it; by itself it ends two hours after it was asked for"
# docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateImage.html
_NAME = re.compile(r"[A-Za-z0-9 ()\[\]./'@_-]{3,128}")
_FETCH = """\
import json, pathlib, sys
here, to = sys.argv[1:]
sys.path.insert(0, here + "/agent.pyz")
from seerd.agent.downloads import JobData
from seerd.agent.protocol import Download, Downloads
data = JobData()
data.take(Downloads(True, [Download(**item) for item in json.load(open(here + "/items.json"))]))
data.fetch(pathlib.Path(to))
"""


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """An image to be built."""

    spec: Spec
    cluster: Ec2Keys  # the spec's cluster
    run: str  # the tag of the image and of the instance that it is built on
    name: str
    base: str  # the image to begin with
    instance_type: str  # the type of the instance that it is built on
    data: bool  # whether the spec's data goes into it
    quote: Quote  # what the spec's own instances cost, and who pays
    log: Path  # the file for all output of the scripts


def build(asked: SpecOptions, wanted: ImageOptions, home: Home, *, json: bool) -> None:
    """Build an image, and print what to write into the spec.

    Raises `typer.Exit`, with 1 if something is left that costs; `UsageError` for what cannot be
    built; and `CloudError` or `ImageError` for what fails, after the instance was given back.
    """
    with working("looking for the image to begin with"):
        planned = plan(asked.job(), wanted, home)
    say = teller(sys.stderr if json else sys.stdout)
    planned.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="seerd-image-") as folder:
        built = until_signal(lambda: _built(planned, Path(folder), say), say, "the instance")
    tell(built, lambda _: "\n".join(_lines(built)), json=json)
    raise typer.Exit(1 if built["left"] else 0)


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
    if spec.train.container:
        raise UsageError(
            "image build prepares machines for trials without train.container: put the container's "
            "image into a machine image with the engine's own pull"
        )
    now = time.strftime("%Y%m%d-%H%M%S")
    name = asked.name or f"seerd-{spec.name}-{now}"
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name {name!r}: EC2 takes 3 to 128 letters, digits and ()[] ./-'@_")
    run = f"image-{spec.name}-{now}-{secrets.token_hex(2)}"
    return ImagePlan(
        spec=spec,
        cluster=cluster,
        run=run,
        name=name,
        base=base,
        instance_type=asked.instance_type or cluster.types[0],
        data=asked.data,
        quote=renting.quote(this_machine()),
        log=home.path / "images" / f"{run}.log",
    )


def _lines(built: Json) -> Iterator[str]:
    """Yield what to write into the spec, what the image saves, and what it costs."""
    image, region = built["image"], built["region"]
    yield f"{image} ({built['name']}) is available in {region}. Write into [cluster] of the spec:"
    yield f'  image = "{image}"'
    spared = f"{format_gpu_time(built['spared_gpu_s'])}, {format_money(built['spared_usd'])}"
    took = format_duration(round(built["install_s"]))
    yield f"Each instance that boots it is spared {took} of installing: {spared}."
    snapshots = ", ".join(built["snapshots"]) or "its snapshot"
    yield f"It costs the storage of {snapshots} until you delete it:"
    delete = f"aws ec2 deregister-image --image-id {image} --delete-associated-snapshots"
    yield f"  {delete} --region {region}"


async def _built(planned: ImagePlan, folder: Path, say: Callable[[str], None]) -> Json:
    async with Cloud(planned.cluster.region) as cloud:
        kind = (await types.describe(cloud, [planned.instance_type]))[0]
        if not kind.gpus:
            raise UsageError(f"{kind.name} has no GPU: give another --instance-type")
        for other in await images.named(cloud, planned.name):
            raise UsageError(f"{other.image} is of the name {planned.name!r}: give another --name")
        settings = settings_of(
            planned.cluster,
            run=planned.run,
            name=planned.spec.name,
            owner=planned.quote.owner,
            gpus=kind.gpus,
            keys=folder / "keys",
            hard_end=wall() + HARD_END_S,
            instance_types=(planned.instance_type,),
            market="on-demand",
            image=planned.base,
            key=None,
            root=True,
        )
        bench = Workbench()
        provider = Ec2Provider(settings, bench)
        try:
            await provider.open()
            with planned.log.open("w") as log:
                work = _Build(planned, folder, say, cloud, provider, bench, kind.gpus, log.write)
                return await work.build()
        finally:
            await provider.close()


@dataclass(slots=True)
class _Build:
    planned: ImagePlan
    folder: Path  # a temporary folder on this machine
    say: Callable[[str], None]  # prints a line for each step
    cloud: Cloud  # the account in its region
    provider: Ec2Provider  # launches and terminates the instance
    bench: Workbench  # runs programs on it
    gpus: int  # GPUs of the instance
    log: Callable[[str], object]  # takes all output of the scripts
    # when the image must be available, seconds since 1970
    end: float = field(default_factory=lambda: wall() + HARD_END_S - IMAGE_MARGIN_S)
    instance: str = ""  # the id of the instance; empty before it is launched
    span: Span = field(default_factory=Span)  # when an instance ran whose launch was interrupted
    boot_s: float = 0.0  # seconds until the login
    install_s: float = 0.0  # seconds of installing

    async def build(self) -> Json:
        try:
            await self._launch()
            began = time.monotonic()
            await self._send_source()
            await self._script("provision.sh")
            await self._setup()
            if self.planned.data:
                await self._data()
            self.install_s = time.monotonic() - began
            await self._script("check.sh")
            await self._script("clean.sh")
            await self.bench.forget(self.instance)
            image = await self._image()
            made = await images.wait(self.cloud, image, max(60.0, self.end - wall()), self.say)
        except BaseException as error:
            raise await to_its_end(self._undone(error)) from error
        return await to_its_end(self._done(made))

    async def _launch(self) -> None:
        planned = self.planned
        kind = planned.instance_type
        self.say(f"{planned.run}: asking for one {kind} with the image {planned.base}")
        asked_at = time.monotonic()
        launching = asyncio.create_task(self.provider.launch(LAUNCH))
        try:
            launched = await asyncio.shield(launching)
        except asyncio.CancelledError:
            self.span = await self.provider.terminate(LAUNCH)
            await asyncio.gather(launching, return_exceptions=True)
            raise
        self.instance, self.boot_s = launched.instance, time.monotonic() - asked_at
        ready = f"{self.instance} can be worked on, {self.boot_s:.1f}s after it was asked for"
        self.say(f"{ready}; it ends by itself in {format_duration(HARD_END_S)}")

    async def _send_source(self) -> None:
        source, archive = self.folder / "build" / "source", self.folder / "source.tar"
        source.parent.mkdir()
        spec = self.planned.spec
        terms = CopyTerms(self.say, elsewhere=True, follow=spec.train.follow)
        await asyncio.to_thread(copy_source, spec.train.source, source, spec.exported(), terms)
        await asyncio.to_thread(_pack, source, archive)
        self.say(f"source: sending {archive.stat().st_size / 1e6:,.0f} MB")
        await self.bench.send(self.instance, archive, WORK)

    async def _setup(self) -> None:
        spec = self.planned.spec
        env = fixed_environment(spec.train.env, spec.space.names)
        exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in env.items())
        for command in spec.train.setup:
            self.say(f"setup: {command}")
            program = f"{exports}cd {WORK}\nexec /bin/sh -c {shlex.quote(command)}"
            await self._run(f"setup command {command!r}", program)

    async def _data(self) -> None:
        """Download the data on the instance by URLs, as it has no credentials."""
        data, region = self.planned.spec.train.data, self.planned.cluster.region
        store = S3Store(data[0].source, self.planned.run, wall() + HARD_END_S, region)
        try:
            items = [item for one in data for item in await store.downloads(one.source, one.to)]
        finally:
            await store.close()
        size_gb = sum(item.size for item in items) / 1e9
        self.say(f"data: {len(items)} files, {size_gb:.2f} GB, to {DATA}")
        archive, pieces = self.folder / "data.tar", self.folder / "pieces"
        pieces.mkdir()
        build_agent(pieces / "agent.pyz")
        (pieces / "items.json").write_bytes(msgspec.json.encode(items))
        (pieces / "fetch.py").write_text(_FETCH)
        _pack(pieces, archive)
        await self.bench.send(self.instance, archive, f"{WORK}-data")
        fetch = f"mkdir -p {DATA}; exec python3 {WORK}-data/fetch.py {WORK}-data {DATA}"
        await self._run("fetching the data", fetch)

    async def _script(self, name: str) -> None:
        train = self.planned.spec.train
        python = train.python or "python3"
        is_there = len(shlex.split(python)) == 1  # what a command starts is made by the setup
        torch = needs_torch(train.launcher, train.source / train.script)
        kinds = (*self.planned.cluster.types, self.planned.instance_type)
        values = {
            "PYTHON": python if is_there else "python3",
            "TORCH": int(is_there and torch),
            "SOURCE": WORK,
            "GPUS": self.gpus,
            "FREE_GB": FREE_BYTES >> 30,
            "NVSWITCH": int(any(kind.startswith(types.NVSWITCH) for kind in kinds)),
            "BLACKWELL": int(any(kind.startswith(types.BLACKWELL) for kind in kinds)),
        }
        exports = (f"export SEERD_{key}={shlex.quote(str(v))}\n" for key, v in values.items())
        await self._run(name, "".join(exports) + (Path(ami.__file__).parent / name).read_text())

    async def _run(self, what: str, program: str) -> None:
        """Run a program on the instance as root; lines that begin with `==>` are progress. Raises
        `ImageError` with the last lines if it fails.
        """
        last: deque[str] = deque(maxlen=LAST_LINES)
        self.log(f"--- {what}\n")

        def received(line: str) -> None:
            self.log(line + "\n")
            if line.startswith("==> "):
                self.say(line.removeprefix("==> "))
            if line.strip():
                last.append(line)

        status = await self.bench.run(self.instance, program, received)
        if status:
            ended = f"{what} ended with exit status {status} on {self.instance}:"
            printed = [f"  {line[:500]}" for line in last]
            log = f"All of its output: {self.planned.log}"
            raise ImageError("\n".join([ended, *printed, log]))

    async def _image(self) -> str:
        planned = self.planned
        self.say(f"imaging: {self.instance} is shut down for minutes, by the size of its disk")
        tags = {"Name": planned.name, RUN: planned.run, NAME: planned.spec.name}
        tags = {**planned.cluster.tags, **tags, OWNER: planned.quote.owner[:256]}
        description = f"seerd image build: {planned.spec.name}, from {planned.base}"[:255]
        making = images.create(self.cloud, self.instance, planned.name, description, tags)
        # If this is cancelled, the call may still make an image, which must be removed then.
        call = asyncio.create_task(making)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            await asyncio.wait({call})
            raise

    async def _undone(self, error: BaseException) -> SeerdError:
        """Remove everything of the build, and return the error with its cause and what is left."""
        interrupted = isinstance(error, asyncio.CancelledError)
        notes = [f"no image was made: {'it was interrupted' if interrupted else error}"]
        try:
            if self.instance:
                span = await self.provider.terminate(LAUNCH)
            elif isinstance(error, LaunchError):  # which has given it back itself
                span = Span(error.since, error.until)
            else:
                span = self.span
            notes += [self._ran(span)] if span.since is not None else []
            removed = await images.remove(self.cloud, self.planned.run)
            if removed:
                notes.append(f"removed what there was of the image: {', '.join(removed)}")
            left = await self.provider.leftovers()
        except SeerdError as trouble:
            left = Leftovers([f"(it could not be asked: {trouble})"])
        text = "\n".join([*notes, *leftover_lines(left)])
        if interrupted:
            return InterruptedRentalError(text)
        of_cloud = isinstance(error, LaunchError) and error.since is None
        if of_cloud or isinstance(error, CloudError):
            return CloudError(text)
        return error if isinstance(error, UsageError) else ImageError(text)

    def _ran(self, span: Span) -> str:
        seconds, usd = _cost(self.planned, span)
        price = "" if usd is None else f", about {format_money(usd)}"
        ran = f"ran for {format_duration(round(seconds))}{price}"
        return f"{self.instance or 'the instance'} {ran}, and was terminated"

    async def _done(self, made: images.MadeImage) -> Json:
        """Give the instance back, and return what `image build --json` prints."""
        planned = self.planned
        try:
            span = await self.provider.terminate(LAUNCH)
            left = await self.provider.leftovers()
        except SeerdError as error:
            made_it = f"the image {made.image} was made, but its instance may not have ended"
            raise ImageError(f"{made_it}: {error}\n{SWEEP}") from error
        self.say(self._ran(span))
        self.say("\n".join(leftover_lines(left)))
        seconds, usd = _cost(planned, span)
        return {
            "image": made.image,
            "name": made.name,
            "snapshots": made.snapshots,
            "region": self.cloud.region,
            "base": planned.base,
            "instance_type": planned.instance_type,
            "boot_s": round(self.boot_s, 1),  # from asking for the instance to a login
            "install_s": round(self.install_s, 1),  # what an instance with this image saves
            "ran_s": round(seconds, 1),  # billed
            "usd": usd,  # None: the price is not known
            # for each of the spec's instances
            "spared_gpu_s": round(self.install_s * planned.quote.facts.gpus_per_instance, 1),
            "spared_usd": self.install_s / 3600.0 * planned.quote.usd_per_h,
            "left": left.costing,
        }


def _cost(planned: ImagePlan, span: Span) -> tuple[float, float | None]:
    """Return the seconds that are billed, and USD for them (None: the price is not known)."""
    seconds = 0.0 if span.since is None else (span.until or wall()) - span.since
    priced = INSTANCE_TYPES.get(planned.instance_type)
    return seconds, None if priced is None else seconds / 3600.0 * priced.usd_per_h


def _pack(folder: Path, archive: Path) -> None:
    with tarfile.open(archive, "w") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name)
