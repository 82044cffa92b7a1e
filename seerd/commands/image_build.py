"""Builds an image: rents one instance, installs on it what training needs, makes an image of it,
and leaves nothing of the instance.

The one rule: however a build ends, the instance is given back before the command tells so. If this
process ends first, the instance powers itself off as its user data has scheduled, and `seerd sweep`
finds it by its tags.
"""

from __future__ import annotations

import asyncio
import shlex
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from seerd import ami
from seerd.agent.arguments import fixed_environment
from seerd.agent.needs import needs_torch
from seerd.aws import imaging, types
from seerd.aws.cloud import Cloud
from seerd.aws.instances import NAME, OWNER, RUN
from seerd.backends.backend import FREE_BYTES
from seerd.backends.base import Leftovers, Span
from seerd.backends.bundle import build_agent
from seerd.backends.ec2.keys import Ec2Keys
from seerd.backends.ec2.offer import settings_of
from seerd.backends.ec2.provider import Ec2Provider, Ec2Settings
from seerd.backends.ssh.workbench import Sending, Workbench
from seerd.clock import wall
from seerd.commands.giving_back import to_its_end, until_signal
from seerd.errors import (
    CloudError,
    ImageError,
    InterruptedBuildError,
    LaunchError,
    SeerdError,
    UsageError,
)
from seerd.shell.source_copy import CopyTerms, copy_source
from seerd.spec.spec import Spec
from seerd.stores.s3.store import S3Store
from seerd.telling.summary import nothing_left
from seerd.units import format_duration, format_money

HARD_END_S = 7200.0
"""Seconds after which an instance that is being installed powers itself off, whatever happens."""
IMAGE_MARGIN_S = 600.0
"""Seconds of those that are left for giving up, in order, an image that does not become
available.
"""
LAST_LINES = 15
WORK = "/var/tmp/seerd-image"  # noqa: S108 -- on a machine with nobody else
"""The folder on the instance for the user's source; `ami/clean.sh` empties the folder above it."""
DATA = "/opt/seerd/data"
"""The folder on the instance that `--data` puts the data into."""
SWEEP = "seerd sweep removes it; by itself it ends two hours after it was asked for"
LAUNCH = "image"
"""The name of a build's only launch."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """An image to be built."""

    spec: Spec
    cluster: Ec2Keys  # the spec's cluster
    run: str  # the tag of the image and of the instance that it is built on
    name: str
    base: str  # the image to begin with
    instance_type: str  # the type of the instance that it is built on
    owner: str  # who pays
    data: bool  # whether the spec's data goes into it
    usd_per_h: float | None  # USD for an hour of that instance; None: not known
    spec_gpus: int  # GPUs of each instance that the spec asks for
    spec_usd_per_h: float  # USD for an hour of such an instance
    log: Path  # the file for all output of the scripts


@dataclass(frozen=True, slots=True)
class Built:
    """An image, as `image build --json` prints it."""

    image: str  # its id
    name: str
    snapshots: tuple[str, ...]  # where its disks are kept
    region: str
    base: str  # the image that it was begun with
    instance_type: str  # the type of the instance that it was built on
    boot_s: float  # seconds from asking for the instance to a login on it
    install_s: float  # seconds of installing, which an instance with this image saves
    ran_s: float  # seconds of the instance that were billed
    usd: float | None  # USD for those; None: not known
    spared_gpu_s: float  # GPU-seconds that each of the spec's instances saves
    spared_usd: float  # USD for those
    left: list[str]  # what of the instance still costs, one line each


def build(planned: ImagePlan, tell: Tell) -> Built:
    """Build the image; `tell` gets a line for each step.

    Raises `CloudError` if the cloud refuses, and `ImageError` if anything else fails; both only
    after the instance was given back.
    """
    planned.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="seerd-image-") as folder:
        return asyncio.run(_until_signal(lambda: _built(planned, Path(folder), tell), tell))


async def _until_signal(work: Callable[[], Awaitable[Built]], tell: Tell) -> Built:
    try:
        return await until_signal(work, tell, "the instance")
    except asyncio.CancelledError:
        raise InterruptedBuildError("interrupted; nothing was started") from None


async def _built(planned: ImagePlan, folder: Path, tell: Tell) -> Built:
    async with Cloud(planned.cluster.region) as cloud:
        gpus = await _looked_up(cloud, planned)
        bench = Workbench()
        provider = Ec2Provider(_settings(planned, gpus, folder / "keys"), bench)
        try:
            await provider.open()
            with planned.log.open("w") as log:
                return await _Build(
                    planned, folder, tell, cloud, provider, bench, gpus, log.write
                ).build()
        finally:
            await provider.close()


async def _looked_up(cloud: Cloud, planned: ImagePlan) -> int:
    """Look up the instance's GPUs before anything is started.

    Raises `UsageError` if it has none, or if the image's name is taken.
    """
    kind = (await types.describe(cloud, [planned.instance_type]))[0]
    if not kind.gpus:
        raise UsageError(
            f"{kind.name} has no GPU, so the driver could not be checked on it; "
            "give another --instance-type"
        )
    for made in await imaging.named(cloud, planned.name):
        raise UsageError(
            f"there is an image {made.image} of the name {planned.name!r} already; "
            "give another --name"
        )
    return kind.gpus


def _settings(planned: ImagePlan, gpus: int, keys: Path) -> Ec2Settings:
    return settings_of(
        planned.cluster,
        run=planned.run,
        name=planned.spec.name,
        owner=planned.owner,
        gpus=gpus,
        keys=keys,
        hard_end=wall() + HARD_END_S,
        instance_types=(planned.instance_type,),
        market="on-demand",
        image=planned.base,
        key=None,
        root=True,
    )


@dataclass(slots=True)
class _Build:
    """One build: what it works with, and what it has so far."""

    planned: ImagePlan  # the image to be built
    folder: Path  # a temporary folder on this machine
    tell: Tell  # takes a line for each step
    cloud: Cloud  # the account in its region
    provider: Ec2Provider  # launches and terminates the instance
    bench: Workbench  # runs programs on it
    gpus: int  # GPUs of the instance
    log: Callable[[str], object]  # takes all output of the scripts
    # when the image must be available, wall clock, seconds since 1970
    end: float = field(default_factory=lambda: wall() + HARD_END_S - IMAGE_MARGIN_S)
    instance: str = ""  # the id of the instance; empty before it is there
    span: Span = field(default_factory=Span)  # when an instance ran whose launch was interrupted
    boot_s: float = 0.0  # seconds until the login
    install_s: float = 0.0  # seconds of installing

    async def build(self) -> Built:
        try:
            made = await self._made()
        except BaseException as error:
            raise await to_its_end(self._undone(error)) from error
        return await to_its_end(self._done(made))

    async def _made(self) -> imaging.MadeImage:
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
        return await imaging.wait(self.cloud, image, max(60.0, self.end - wall()), self.tell)

    # ------------------------------------------------------------ the instance

    async def _launch(self) -> None:
        planned = self.planned
        self.tell(
            f"{planned.run}: asking for one {planned.instance_type} with the image {planned.base}"
        )
        asked_at = time.monotonic()
        launching = asyncio.create_task(self.provider.launch(LAUNCH))
        try:
            launched = await asyncio.shield(launching)
        except asyncio.CancelledError:
            self.span = await self.provider.terminate(LAUNCH)
            await asyncio.gather(launching, return_exceptions=True)
            raise
        self.instance, self.boot_s = launched.instance, time.monotonic() - asked_at
        self.tell(
            f"{self.instance} can be worked on, {self.boot_s:.1f}s after it was asked for; "
            f"it ends by itself in {format_duration(HARD_END_S)}"
        )

    async def _send_source(self) -> None:
        source, archive = self.folder / "build" / "source", self.folder / "source.tar"
        source.parent.mkdir()
        spec = self.planned.spec
        terms = CopyTerms(self.tell, elsewhere=True, follow=spec.train.follow)
        await asyncio.to_thread(copy_source, spec.train.source, source, spec.exported(), terms)
        await asyncio.to_thread(_pack, source, archive)
        sending = Sending("source", archive.stat().st_size, self.tell)
        await self.bench.send(self.instance, archive, WORK, sending.sent)

    async def _setup(self) -> None:
        spec = self.planned.spec
        train, names = spec.train, spec.space.names
        for command in train.setup:
            self.tell(f"setup: {command}")
            lines = [
                *(
                    f"export {key}={shlex.quote(value)}"
                    for key, value in fixed_environment(train.env, names).items()
                ),
                f"cd {WORK}",
            ]
            await self._run(
                f"setup command {command!r}",
                "\n".join([*lines, f"exec /bin/sh -c {shlex.quote(command)}"]),
            )

    async def _data(self) -> None:
        """Download the data on the instance, by URLs and with the agent's code, as it has no
        credentials.
        """
        data, region = self.planned.spec.train.data, self.planned.cluster.region
        store = S3Store(data[0].source, self.planned.run, wall() + HARD_END_S, region)
        try:
            items = [item for one in data for item in await store.downloads(one.source, one.to)]
        finally:
            await store.close()
        self.tell(
            f"data: {len(items)} files, {sum(item.size for item in items) / 1e9:.2f} GB, to {DATA}"
        )
        archive, pieces = self.folder / "data.tar", self.folder / "pieces"
        pieces.mkdir()
        build_agent(pieces / "agent.pyz")
        (pieces / "items.json").write_bytes(msgspec.json.encode(items))
        (pieces / "fetch.py").write_text(_FETCH)
        _pack(pieces, archive)
        await self.bench.send(self.instance, archive, f"{WORK}-data")
        await self._run(
            "fetching the data",
            f"mkdir -p {DATA}; exec python3 {WORK}-data/fetch.py {WORK}-data {DATA}",
        )

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
        head = "".join(
            f"export SEERD_{key}={shlex.quote(str(value))}\n" for key, value in values.items()
        )
        await self._run(name, head + (Path(ami.__file__).parent / name).read_text())

    async def _run(self, what: str, program: str) -> None:
        """Run a program on the instance as root; all of its output goes to the log.

        Lines that begin with `==>` are told as progress. Raises `ImageError` with the last lines if
        it fails.
        """
        last: deque[str] = deque(maxlen=LAST_LINES)
        self.log(f"--- {what}\n")

        def heard(line: str) -> None:
            self.log(line + "\n")
            if line.startswith("==> "):
                self.tell(line.removeprefix("==> "))
            if line.strip():
                last.append(line)

        status = await self.bench.run(self.instance, program, heard)
        if status:
            lines = "\n".join(f"  {line[:500]}" for line in last)
            raise ImageError(
                f"{what} ended with exit status {status} on {self.instance}:\n{lines}\n"
                f"All that was said: {self.planned.log}"
            )

    # ------------------------------------------------------------ the image

    async def _image(self) -> str:
        planned = self.planned
        self.tell(
            f"imaging: {self.instance} is shut down for it; "
            "this takes minutes, by the size of its disk"
        )
        tags = {
            "Name": planned.name,
            RUN: planned.run,
            NAME: planned.spec.name,
            OWNER: planned.owner[:256],
        }
        wanted = imaging.Wanted(
            self.instance,
            planned.name,
            f"seerd image build: {planned.spec.name}, from {planned.base}"[:255],
            {**planned.cluster.tags, **tags},
        )
        # The call may still make an image, and that has to be known before everything is removed.
        call = asyncio.create_task(imaging.create(self.cloud, wanted))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            await asyncio.wait({call})
            raise

    # ------------------------------------------------------------ the end

    async def _undone(self, error: BaseException) -> SeerdError:
        """Remove everything of the build, and return the error that tells why and what is left."""
        said: list[str] = []
        try:
            span = await self._given_back(error)
            said += [self._ran(span)] if span.since is not None else []
            removed = await imaging.remove(self.cloud, self.planned.run)
            said += (
                [f"removed what there was of the image: {', '.join(removed)}"] if removed else []
            )
            left = await self.provider.leftovers()
        except SeerdError as trouble:
            left = Leftovers([f"(it could not be asked: {trouble})"])
        said.append(_proof(left))
        text = "\n".join([f"no image was made: {_why(error)}", *said])
        if isinstance(error, asyncio.CancelledError):
            return InterruptedBuildError(text)
        if isinstance(error, CloudError) or (
            isinstance(error, LaunchError) and error.since is None
        ):
            return CloudError(text)
        return error if isinstance(error, UsageError) else ImageError(text)

    async def _given_back(self, error: BaseException) -> Span:
        """Give the instance back, and return when it ran; a launch that failed has given it back
        itself.
        """
        if self.instance:
            return await self.provider.terminate(LAUNCH)
        return Span(error.since, error.until) if isinstance(error, LaunchError) else self.span

    def _ran(self, span: Span) -> str:
        seconds, usd = _cost(self.planned, span)
        price = "" if usd is None else f", about {format_money(usd)}"
        return (
            f"{self.instance or 'the instance'} ran for {format_duration(round(seconds))}{price}, "
            "and was terminated"
        )

    async def _done(self, made: imaging.MadeImage) -> Built:
        """Give the instance back, and return the image: nothing else is left."""
        planned = self.planned
        try:
            span = await self.provider.terminate(LAUNCH)
            left = await self.provider.leftovers()
        except SeerdError as error:
            raise ImageError(
                f"the image {made.image} was made, but its instance may not have ended: "
                f"{error}\n{SWEEP}"
            ) from error
        self.tell(self._ran(span))
        self.tell(_proof(left))
        seconds, usd = _cost(planned, span)
        return Built(
            image=made.image,
            name=made.name,
            snapshots=made.snapshots,
            region=self.cloud.region,
            base=planned.base,
            instance_type=planned.instance_type,
            boot_s=round(self.boot_s, 1),
            install_s=round(self.install_s, 1),
            ran_s=round(seconds, 1),
            usd=usd,
            spared_gpu_s=round(self.install_s * planned.spec_gpus, 1),
            spared_usd=self.install_s / 3600.0 * planned.spec_usd_per_h,
            left=left.costing,
        )


def _why(error: BaseException) -> str:
    return "it was interrupted" if isinstance(error, asyncio.CancelledError) else str(error)


def _cost(planned: ImagePlan, span: Span) -> tuple[float, float | None]:
    """Compute the seconds that are billed, and USD for them (None: the price is not known)."""
    seconds = 0.0 if span.since is None else (span.until or wall()) - span.since
    return seconds, None if planned.usd_per_h is None else seconds / 3600.0 * planned.usd_per_h


def _proof(left: Leftovers) -> str:
    if not left.costing:
        return nothing_left(left.ending)
    return "\n".join(["STILL THERE, and billed:", *(f"  {line}" for line in left.costing), SWEEP])


def _pack(folder: Path, archive: Path) -> None:
    with tarfile.open(archive, "w") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name)


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
