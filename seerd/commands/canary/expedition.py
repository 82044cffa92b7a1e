"""The way of a canary: three small instances, one with a GPU if that is wanted, all checks, and the
way back.

The one rule: however it goes, every instance is ended before anything else is told. If this process
ends first, each powers itself off minutes later, and `seerd sweep` finds it by its tags.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shlex
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from seerd.commands import doctor
from seerd.commands.canary import endings, inside, refusals, storage, terminals
from seerd.commands.canary.endings import Post
from seerd.commands.canary.launching import Watched, WatchedCloud, WatchedDoor
from seerd.commands.canary.outcome import (
    GPU_WORK_S,
    LONGEST_GPU_S,
    LONGEST_S,
    WORK_S,
    Book,
    CanaryRental,
    CheckOutcome,
    LaunchMoments,
    timeline,
)
from seerd.commands.common import SpecOptions
from seerd.commands.giving_back import to_its_end
from seerd.errors import InterruptedCanaryError, SeerdError
from seerd.runs.clusters import PYTHON, settings_of
from seerd.runs.wiring import GRACE_S
from seerd.shell.aws.cloud import Cloud
from seerd.shell.aws.errors import AwsError
from seerd.shell.aws.policy import policy
from seerd.shell.bundle import build_agent
from seerd.shell.clock import wall
from seerd.shell.home import Home
from seerd.shell.providers.base import Leftovers
from seerd.shell.providers.ec2 import Ec2Provider, Ec2Settings
from seerd.shell.ssh.remote import AgentOptions, Bundle, Remote
from seerd.spec.clusters import Ec2Cluster
from seerd.spec.spec import Spec
from seerd.view.summary import nothing_left

PROVED, LEASE, REBOOT, GPU = "proved", "lease", "reboot", "gpu"
"""The launches: what is looked at and terminated, what is left alone, what is rebooted, and what
has a GPU.
"""
SMALL = (PROVED, LEASE, REBOOT)
BOOT_S = 300.0
"""The most seconds from running until an agent has to answer."""
TORCH = "import torch; print(torch.cuda.is_available())"


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """A canary that may fly.

    spec      the spec that it is for
    cluster   the spec's cluster
    asked     how the spec was named, and what is changed in it
    home      the folder of all runs
    run       the tag of its instances
    owner     who pays
    arn       whose the credentials are
    small     the small instances
    gpu       the one with a GPU; None: there is none
    most_usd  the most USD that all may cost
    """

    spec: Spec
    cluster: Ec2Cluster
    asked: SpecOptions
    home: Home
    run: str
    owner: str
    arn: str
    small: CanaryRental
    gpu: CanaryRental | None
    most_usd: float


@dataclass(slots=True)
class Flown:
    """What a canary came back with.

    outcomes  of all checks, in their order
    launches  the moments of each instance, with its type
    release   seconds until EC2 had taken an end
    torch_s   seconds of the first import of torch; None: it was not tried
    usd       about how many USD the instances cost
    """

    outcomes: list[CheckOutcome]
    launches: list[tuple[str, LaunchMoments]] = field(default_factory=list)
    release: list[float] = field(default_factory=list)
    torch_s: float | None = None
    usd: float = 0.0


async def fly(plan: CanaryPlan, book: Book, folder: Path) -> Flown:
    """Make all checks. Failures are outcomes.

    Raises `CloudError` if nothing can be rented at all, and `InterruptedCanaryError` when it was
    cancelled; both only after everything was given back.
    """
    begun = wall()
    small = _Flock(plan, plan.small, SMALL, begun + LONGEST_S, folder / "small")
    flocks = [small]
    if plan.gpu is not None:
        flocks.append(_Flock(plan, plan.gpu, (GPU,), begun + LONGEST_GPU_S, folder / "gpu"))
    why, interrupted = "the canary was over before", False
    flown = Flown([])
    try:
        for one in flocks:
            await one.provider.open()
        async with asyncio.timeout(WORK_S):
            work = _all(
                _tried(book, _doctor(plan), "doctor"),
                _tried(book, _printed_policy(plan), "printed policy"),
                _small(plan, small, book, folder),
                *(_with_gpu(plan, one, book, flown) for one in flocks[1:]),
            )
            if (refused := await _unless_locked_out(work, flocks, book)) is not None:
                why = f"the canary ended early: {refused}"
    except asyncio.CancelledError:
        interrupted = True
    except TimeoutError:
        why = "the time of the canary was over before"
    finally:
        left = await to_its_end(_given_back(flocks, book))
        await to_its_end(_all(*(one.provider.close() for one in flocks)))
    if interrupted:
        raise InterruptedCanaryError(f"interrupted; {left}")
    flown.outcomes = book.complete(gpu=plan.gpu is not None, why=why)
    flown.release = [one.seconds for one in flown.outcomes if _is_release(one) and one.seconds]
    for one in flocks:
        flown.launches += [(one.rental.type, w.moments) for w in one.cloud.launches.values()]
        flown.usd += one.usd()
    return flown


def _is_release(outcome: CheckOutcome) -> bool:
    return outcome.check == "termination" and outcome.result == "passed"


async def _all(*works: Awaitable[None]) -> None:
    """Do all of it side by side; the first exception ends the rest."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _unless_locked_out(
    work: Awaitable[None], flocks: Sequence[_Flock], book: Book
) -> AwsError | None:
    """Do the work; but if AWS takes the credentials no more, end it and return why: nothing can
    come of it, and instances may be left.
    """
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=1.0))[0]:
            for error in filter(None, (one.cloud.locked_out() for one in flocks)):
                _tell_refusal(book, error)
                return error
        task.result()
        return None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _tell_refusal(book: Book, error: AwsError) -> None:
    """Tell at once that instances may be left. This is no check, and not of the report."""
    book.tell(CheckOutcome("giving back", "unknown", f"EC2 refuses: {error}"))


# ------------------------------------------------------------ what instances have in common


class _Flock:
    """Instances of one type, with all that is needed to launch, reach and end them."""

    def __init__(
        self,
        plan: CanaryPlan,
        rental: CanaryRental,
        tokens: tuple[str, ...],
        hard_end: float,
        folder: Path,
    ) -> None:
        self.rental, self.tokens, self.hard_end = rental, tokens, hard_end
        self.run = f"{plan.run}-{tokens[0]}"
        source, zip_ = folder / "source", folder / "agent.pyz"
        source.mkdir(parents=True)
        build_agent(zip_)
        self.zip = hashlib.sha256(zip_.read_bytes()).hexdigest()
        gpu = tokens == (GPU,)
        options = AgentOptions(
            run=self.run,
            gpus=1,
            cuda=gpu,
            lease_s=LONGEST_S,
            grace_s=GRACE_S,
            power_off=True,
            spot=False,
            python=PYTHON,
        )
        self.cloud = WatchedCloud(plan.cluster.region, plan.cluster.address)
        self.door = WatchedDoor(Remote(Bundle(zip_, source), options), self.cloud)
        settings = _settings(plan, self.run, rental, hard_end, folder / "keys", gpu=gpu)
        self.provider = Ec2Provider(settings, self.door, self.cloud)
        self.post = Post(self.run, self.cloud, self.door, self.provider)
        self.shelf: storage.Shelf | None = None  # in which something may lie

    async def launch(self, token: str) -> Watched:
        """Launch an instance. Raises `LaunchError`, after it was given back."""
        await self.provider.launch(token, LONGEST_S)
        return self.cloud.launch(token)

    def usd(self) -> float:
        """About how many USD its instances cost."""
        now = wall()
        seconds = sum(one.moments.billed_s(now) for one in self.cloud.launches.values())
        return seconds / 3600 * self.rental.usd_per_h


def _settings(
    plan: CanaryPlan, run: str, rental: CanaryRental, hard_end: float, keys: Path, *, gpu: bool
) -> Ec2Settings:
    settings = settings_of(
        plan.cluster,
        run=run,
        name=plan.spec.name,
        owner=plan.owner,
        gpus=1,
        keys=keys,
        hard_end=hard_end,
    )
    return replace(
        settings,
        instance_types=(rental.type,),
        market="on-demand",
        boot_s=min(BOOT_S, plan.cluster.boot_s),
        key=None,
        volume_gb=None,
        throughput=None,
        load_rate=None,
        python=_python(plan.spec) if gpu else "",
    )


def _python(spec: Spec) -> str:
    return spec.train.python or PYTHON


async def _given_back(flocks: Sequence[_Flock], book: Book) -> str:
    """End everything, and say whether anything is left."""
    ends = [one.provider.terminate(token) for one in flocks for token in one.tokens]
    left = [one.provider.leftovers() for one in flocks]
    complaint = asyncio.create_task(_complaint(flocks, book))
    # What could not be ended is asked for again by `leftovers`, and is named there.
    await asyncio.gather(*ends, return_exceptions=True)
    complaint.cancel()
    found = await asyncio.gather(*left, return_exceptions=True)
    stored = [line for one in flocks for line in await _emptied(one)]
    costing = [line for one, of in zip(found, flocks, strict=True) for line in _costing(one, of)]
    costing += stored
    if not costing:
        text = nothing_left(
            [line for one in found if isinstance(one, Leftovers) for line in one.ending]
        )
        book.add(CheckOutcome("nothing left", "passed", text))
        return text
    lines = "\n".join(costing)
    by = "instances power themselves off within minutes, and `seerd sweep` shows them"
    text = f"something is left that may cost; {by}:\n{lines}"
    book.add(CheckOutcome("nothing left", "failed", text))
    return text


async def _complaint(flocks: Sequence[_Flock], book: Book) -> None:
    """Tell once why nothing can be given back, as soon as EC2 says so."""
    while True:
        await asyncio.sleep(1.0)
        for error in filter(None, (one.cloud.refuses_ends() for one in flocks)):
            return _tell_refusal(book, error)


async def _emptied(flock: _Flock) -> list[str]:
    """Take out of the bucket what is left there, and return what cannot be."""
    if flock.shelf is None:
        return []
    try:
        await storage.clean(flock.shelf)
    except Exception as error:  # noqa: BLE001
        return [f"objects may be left in {flock.shelf.address}/{flock.run}: {_why(error)}"]
    return []


def _costing(found: Leftovers | BaseException, flock: _Flock) -> list[str]:
    """List what is left that costs; if EC2 does not tell, what is known to have run."""
    if isinstance(found, Leftovers):
        return found.costing
    if not isinstance(found, Exception):
        raise found
    end = time.strftime("%H:%M:%S", time.localtime(flock.hard_end))
    known = [
        f"instance {one} ({flock.rental.type}) may still run, and powers itself off by {end}"
        for one in flock.cloud.running()
    ]
    return [_why(found), *known]


# ------------------------------------------------------------ the checks


async def _doctor(plan: CanaryPlan) -> list[CheckOutcome]:
    began, changes = time.monotonic(), plan.asked.overrides()
    findings = await asyncio.to_thread(doctor.examine, plan.asked.path, changes, plan.home)
    problems = [f"{one.check}: {one.found}" for one in findings if one.level == "problem"]
    if problems:
        return [CheckOutcome("doctor", "failed", "; ".join(problems))]
    said = f"{len(findings)} checks, no problem"
    return [CheckOutcome("doctor", "passed", said, time.monotonic() - began)]


async def _printed_policy(plan: CanaryPlan) -> list[CheckOutcome]:
    document = policy(await doctor.needs_of(plan.spec))
    changes = [word for one in plan.asked.set_ or [] for word in ("--set", one)]
    home = ["--home", str(plan.home.path)]
    words = ["doctor", str(plan.asked.path), *changes, *home, "--json"]
    async with Cloud(plan.cluster.region) as cloud:
        return [await terminals.printed_policy(cloud, plan.arn, document, words)]


async def _small(plan: CanaryPlan, flock: _Flock, book: Book, folder: Path) -> None:
    await _all(
        _proved(plan, flock, book, folder),
        _ended(flock, book, LEASE, endings.lease),
        _ended(flock, book, REBOOT, endings.reboot),
    )


async def _ended(
    flock: _Flock,
    book: Book,
    token: str,
    ending: Callable[[Post, Watched], Awaitable[CheckOutcome]],
) -> None:
    with _failing(book, token):
        book.add(await ending(flock.post, await flock.launch(token)))


async def _proved(plan: CanaryPlan, flock: _Flock, book: Book, folder: Path) -> None:
    """Launch an instance, look at everything, and end it."""
    watched = flock.cloud.launch(PROVED)
    trouble = ""
    try:
        await flock.launch(PROVED)
    except Exception as error:  # noqa: BLE001
        trouble = _why(error)
    book.add(*timeline(watched.moments, trouble))
    if trouble:
        return
    home = folder / "elsewhere"
    home.mkdir()
    sweep = terminals.sweep(flock.cloud, watched.instance, str(home))
    await _tried(book, _token_again(flock, watched), "one token, one instance")
    await _tried(book, _inside(flock, watched), *inside.CHECKED)
    await _all(
        _tried(book, _stored(plan, flock, watched, folder), *storage.CHECKED),
        _tried(book, refusals.look(flock.cloud, watched.request), *refusals.ABOUT),
        _tried(book, _one(sweep), "sweep"),
    )
    ended = endings.termination(flock.post, PROVED, watched)
    await _tried(book, ended, "termination", "shutting-down")


async def _one(work: Awaitable[CheckOutcome]) -> list[CheckOutcome]:
    return [await work]


async def _tried(book: Book, work: Awaitable[list[CheckOutcome]], *checks: str) -> None:
    """Write down what comes of this work; if it fails, that these checks could not be made."""
    with _failing(book, *checks):
        book.add(*await work)


@contextlib.contextmanager
def _failing(book: Book, *checks: str) -> Iterator[None]:
    """Write down for these checks what goes wrong here. Mistakes of seerd are outcomes, too: what
    was paid for is reported.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001
        book.add(*(CheckOutcome(check, "failed", _why(error)) for check in checks))


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, SeerdError) else f"{type(error).__name__}: {error}"


async def _token_again(flock: _Flock, watched: Watched) -> list[CheckOutcome]:
    """Send the same request again. Raises `AwsError`."""
    check = "one token, one instance"
    again = await flock.cloud.ask("ec2", "run_instances", **watched.request)
    given = {row["InstanceId"] for row in again["Instances"]}
    if given != {watched.instance}:
        return [CheckOutcome(check, "failed", "EC2 has given another instance for the same token")]
    return [CheckOutcome(check, "passed", "asked twice, EC2 has given one")]


async def _inside(flock: _Flock, watched: Watched) -> list[CheckOutcome]:
    before = wall()
    told = await flock.door.run(watched.instance, f"{PYTHON} -I -", inside.PROGRAM)
    told_at = (before + wall()) / 2
    facts = msgspec.json.decode(told, type=inside.Facts)
    return inside.judged(facts, inside.ExpectedFacts(watched.moments, told_at, flock.hard_end))


async def _stored(
    plan: CanaryPlan, flock: _Flock, watched: Watched, folder: Path
) -> list[CheckOutcome]:
    async def run(program: str) -> str:
        command = f"{PYTHON} -I -"
        return await flock.door.run(watched.instance, command, program, for_s=120.0)

    flock.shelf = shelf = storage.Shelf(
        address=plan.cluster.store or "",
        run=flock.run,
        region=flock.cloud.region,
        until=flock.hard_end,
        zip=flock.zip,
        folder=folder,
    )
    outcomes = await storage.look(shelf, run)
    flock.shelf = None
    return outcomes


async def _with_gpu(plan: CanaryPlan, flock: _Flock, book: Book, flown: Flown) -> None:
    """Launch the instance with a GPU, import torch there twice, and end it, all in time."""
    try:
        async with asyncio.timeout(GPU_WORK_S):
            await _torch(plan, flock, book, flown)
    except TimeoutError:
        said = "the five minutes of this instance were over before"
        book.add(*(CheckOutcome(check, "unknown", said) for check in ("GPU", *_IMPORTS)))
    # Whether it is left is found out in the end, whatever is refused here, or cancels this: all is
    # given back then. How long it takes to be gone is told in the launches of the report.
    watched = flock.cloud.launch(GPU)
    if watched.instance:
        with contextlib.suppress(SeerdError):
            await endings.termination(flock.post, GPU, watched)


_IMPORTS = ("torch, cold", "torch, warm")


async def _torch(plan: CanaryPlan, flock: _Flock, book: Book, flown: Flown) -> None:
    with _failing(book, "GPU"):
        book.add(await _driver(flock, await flock.launch(GPU)))
    for check in _IMPORTS:
        if book.outcomes["GPU"].result == "passed":
            with _failing(book, check):
                book.add(await _imported(plan, flock, check, flown))


async def _driver(flock: _Flock, watched: Watched) -> CheckOutcome:
    listed = await flock.door.run(watched.instance, "nvidia-smi -L")
    moments = watched.moments
    seconds = (moments.agent or wall()) - (moments.asked or wall())
    if not listed.startswith("GPU 0"):
        return CheckOutcome("GPU", "failed", "nvidia-smi lists none", seconds)
    return CheckOutcome("GPU", "passed", listed.partition("(")[0].strip(), seconds)


async def _imported(plan: CanaryPlan, flock: _Flock, check: str, flown: Flown) -> CheckOutcome:
    command = f"{shlex.quote(_python(plan.spec))} -c {shlex.quote(TORCH)}"
    instance, began = flock.cloud.launch(GPU).instance, time.monotonic()
    has_gpu = await flock.door.run(instance, command, for_s=GPU_WORK_S)
    took_s = time.monotonic() - began
    flown.torch_s = flown.torch_s if flown.torch_s is not None else took_s
    if "True" in has_gpu:
        return CheckOutcome(check, "passed", "it has the GPU", took_s)
    return CheckOutcome(check, "failed", "it was imported, and has no GPU", took_s)
