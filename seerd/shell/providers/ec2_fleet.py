"""The run's instances as one: watching all of them with one question at a time, finding those of a
launch, and ending them.

The one rule: what EC2 has of this run and nobody here knows is ended, never used. An instance may
cost money only while someone accounts for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from seerd.errors import ProviderError
from seerd.shell.aws import instances
from seerd.shell.aws.cloud import Cloud
from seerd.shell.aws.errors import AGAIN, AwsError, ErrorKind
from seerd.shell.aws.instances import COMMAND, ENDING, RUN, SeenInstance, tagged
from seerd.shell.clock import wall
from seerd.shell.providers.base import Loss, Span
from seerd.shell.providers.ec2_register import FORGET_S, Register, RegisterEntry

BUSY_S = 0.25
CALM_S = 0.5
"""From one question to the next: while a start or an end is awaited, and otherwise. An instance is
charged from the last question before its start until the first answer after its end: three quarters
of a second too much at most, and the time of an answer. EC2 lets an account go on asking twenty
times a second (docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html).
"""
SLOW_S = 1.0
"""After a question that came to nothing, and the longest rest."""
RESTS = 2
"""A rest is at least so many times as long as the answer took: EC2 or this machine is busy enough,
with hundreds of instances in it.
"""
PATIENCE_S = 5.0
"""For one answer, while EC2 is busy."""

HUNT_S = 15.0
"""How long after a launch of unknown outcome EC2 is asked for what it brought. What shows up even
later, the watch ends.
"""

HUNT_POLL_S = 1.0


MENDED = frozenset({ErrorKind.CREDENTIALS, ErrorKind.DENIED, ErrorKind.REFUSED})
MEND_S = 240.0
"""How long a refusal that others may mend is borne: longer than an agent's lease, its trials' last
save and its last upload.
"""
PAST_END_S = 120.0
"""An end that EC2 has not confirmed so long after instances have switched themselves off is not
waited for any more.
"""

Result = TypeVar("Result")


class Ec2Fleet:
    """All instances of one run, which switch themselves off at `hard_end` (wall clock).

    `busy`: whether a launch of this token is under way and has not heard of its instance yet.
    """

    def __init__(
        self, run: str, hard_end: float, cloud: Cloud, busy: Callable[[str], bool]
    ) -> None:
        self.register = Register()
        self._losses: asyncio.Queue[Loss] = asyncio.Queue()
        self.blind: AwsError | None = None
        self._run = run
        self._hard_end = hard_end
        self._cloud = cloud
        self._busy = busy
        self._news = asyncio.Condition()
        self._nudge = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._endings: set[asyncio.Task[None]] = set()

    def watch(self) -> None:
        """Begin to watch, or look again at once."""
        self._nudge.set()
        if self._watch is None:
            self._watch = asyncio.create_task(self._keep_watching())

    async def loss(self) -> Loss:
        """The next loss. Raises what has ended the watch, if a bug has."""
        return await self._unless_blind(self._losses.get())

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for something that an answer of EC2 will tell. Raises what has ended the watch, if a
        bug has.
        """
        await self._unless_blind(self._heard(true))

    async def _heard(self, true: Callable[[], bool]) -> None:
        async with self._news:
            await self._news.wait_for(true)

    async def _unless_blind(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What is waited for comes from the watch alone: if that ends, nothing would come any
        more.
        """
        self.watch()
        assert self._watch is not None
        waiting = asyncio.create_task(work)
        try:
            await asyncio.wait({waiting, self._watch}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                self._watch.result()
            return await waiting
        finally:
            waiting.cancel()

    async def find(self, *, patience_s: float = 60.0) -> list[SeenInstance]:
        """All instances of the run, asked afresh."""
        return await instances.find(self._cloud, tagged(RUN, self._run), patience_s=patience_s)

    async def find_launched(self, token: str) -> list[RegisterEntry]:
        """What this launch has brought, asked afresh and taken up; ended ones too."""
        filters = tagged(RUN, self._run) + tagged(COMMAND, token)
        for seen in await instances.find(self._cloud, filters):
            self.register.take_up(seen, wall())
        return self.register.of(token)

    async def hunt(self, token: str, end: float) -> list[RegisterEntry]:
        """The same, asked until there is something, or nothing at this time (wall clock). Raises
        `AwsError`, but not while EC2 is only busy, nor soon where others may mend what it refuses:
        an instance that nobody knows would run on.
        """
        begun = asyncio.get_running_loop().time()
        while True:
            try:
                if (found := await self.find_launched(token)) or wall() >= end:
                    return found
            except AwsError as error:
                mended = error.kind in MENDED and asyncio.get_running_loop().time() - begun < MEND_S
                if error.kind not in AGAIN and not mended:
                    raise
            await asyncio.sleep(HUNT_POLL_S)

    async def end(self, instance: str) -> Span:
        """End it, however long EC2 takes to agree. Raises `ProviderError` if it is refused for
        good.
        """
        entry = self.register[instance]
        entry.given_back = True
        failures, begun = 0, asyncio.get_running_loop().time()
        while not entry.ended:
            try:
                answer = await instances.end(self._cloud, instance)
            except AwsError as error:
                await self._judge(entry, error, asyncio.get_running_loop().time() - begun)
            else:
                if answer.before in ENDING and await self._has_ended(entry):
                    break  # before we asked: EC2 knows since when
                if answer.now in ENDING:
                    self.register.end(instance, wall(), before=answer.before)
                    break
            failures += 1
            await self._cloud.retries.pause(failures)
        await self._tell()
        return entry.span

    async def end_all(self, entries: Iterable[RegisterEntry]) -> Span:
        """End these and say when the first began and the last ended. Raises `ProviderError`, after
        all have been tried.
        """
        results = await asyncio.gather(
            *(self.end(entry.instance) for entry in entries), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return joined(result for result in results if isinstance(result, Span))

    async def close(self) -> None:
        """Stop watching; ends nothing."""
        tasks = [*self._endings, *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _judge(self, entry: RegisterEntry, error: AwsError, for_s: float) -> None:
        """What a termination means that fails since so many seconds: nothing, if asking again may
        help. Credentials are renewed, and an instance whose agent nobody talks with switches itself
        off: that is waited for.
        """
        if error.kind in AGAIN and wall() < self._hard_end + PAST_END_S:
            return
        if error.kind in MENDED and for_s < MEND_S and not await self._has_ended(entry):
            return
        if entry.ended:
            return
        if error.kind is ErrorKind.GONE:
            if wall() - entry.noted_at > FORGET_S:
                self.register.end(entry.instance, entry.missing_at or wall())
            return
        if await self._has_ended(entry):
            return
        raise ProviderError(
            f"{entry.instance} could not be terminated and goes on costing: {error}\nEnd it "
            "yourself, in the EC2 console or with: "
            f"aws ec2 terminate-instances --region {self._cloud.region} --instance-ids "
            f"{entry.instance}"
        ) from error

    async def _has_ended(self, entry: RegisterEntry) -> bool:
        """Whether an end that was refused has come all the same."""
        with contextlib.suppress(AwsError):
            for seen in await instances.find(
                self._cloud, [{"Name": "instance-id", "Values": [entry.instance]}]
            ):
                self.register.take_up(seen, wall())
        return entry.ended

    async def _keep_watching(self) -> None:
        time = asyncio.get_running_loop().time
        while True:
            self._nudge.clear()
            asked_at, since = wall(), time()
            try:
                answer = await self.find(patience_s=PATIENCE_S)
            except AwsError as error:
                self.blind = error
            else:
                self.blind = None
                self._learn(answer, asked_at)
            took_s = time() - since
            await self._tell()
            await self._rest(
                SLOW_S if self.blind else rest_s(BUSY_S, took_s), rest_s(CALM_S, took_s)
            )

    async def _rest(self, least_s: float, calm_s: float) -> None:
        """Wait until it is time to ask again."""
        await asyncio.sleep(least_s)
        if not self.register.restless():
            # Not `wait_for`: until Python 3.12 it loses a cancellation that comes together with
            # what it waits for.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(calm_s - least_s):
                    await self._nudge.wait()

    def _learn(self, answer: list[SeenInstance], asked_at: float) -> None:
        news = self.register.observe(answer, asked_at, wall(), self._busy)
        for loss in news.losses:
            self._losses.put_nowait(loss)
        for stray in news.strays:
            task = asyncio.create_task(self._end_stray(stray))
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    async def _end_stray(self, instance: str) -> None:
        with contextlib.suppress(ProviderError):  # it stays among the leftovers, which name it
            await self.end(instance)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


def rest_s(every_s: float, took_s: float) -> float:
    """How long EC2 is not asked after an answer that took so long, if it is to be asked every so
    often.
    """
    return min(SLOW_S, max(every_s - took_s, RESTS * took_s))


def joined(spans: Iterable[Span]) -> Span:
    """From when the first of them ran until the last had ended."""
    ran = [span for span in spans if span.since is not None]
    if not ran:
        return Span()
    open_ended = any(span.until is None for span in ran)
    return Span(
        min(s.since or 0.0 for s in ran), None if open_ended else max(s.until or 0.0 for s in ran)
    )
