"""The run's instances together: watching all of them with one call at a time, finding those of a
launch, and ending them. An instance of this run that EC2 has and nobody here knows is ended, never
used.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from seerd.aws import instances
from seerd.aws.cloud import Cloud
from seerd.aws.errors import AGAIN, NOT_PERMITTED, AwsError, ErrorKind
from seerd.aws.instances import COMMAND, ENDING, RUN, EndedInstance, SeenInstance, tagged
from seerd.backends.base import Loss, Span
from seerd.backends.ec2.register import FORGET_S, Register, RegisterEntry
from seerd.backends.ec2.request import MEND_S, Candidate, client_token
from seerd.clock import wall
from seerd.errors import ProviderError

BUSY_S = 0.5
CALM_S = 5.0
"""From an answer to the next call, seconds: `BUSY_S` while a start or an end is awaited, otherwise
`CALM_S`. An order calls at once, and so does a broken connection.

An instance is charged from the last call before its start until its end. EC2 dates most ends to
the second (StateTransitionReason); where it does not, the instance is charged until the first
answer with its end. Every call takes one of the twenty a second that EC2 lets an account make
(docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html), and is an event of CloudTrail's,
of which copies cost money (aws.amazon.com/cloudtrail/pricing).
"""
FAILED_S = 1.0  # the pause after a call that failed, seconds
PATIENCE_S = 5.0  # how long one answer is waited for while EC2 is busy, seconds
# how long EC2 is searched for the instance of an unclear launch, seconds: the watch ends what shows
# up later
HUNT_S = 15.0
HUNT_POLL_S = 1.0
MENDED = NOT_PERMITTED | {ErrorKind.CREDENTIALS, ErrorKind.REFUSED, ErrorKind.UNKNOWN}
# how long after the hard end EC2's confirmation of an end is still waited for, seconds
PAST_END_S = 120.0

OF_ALL = AGAIN | {ErrorKind.CREDENTIALS}
"""Refusals that concern the call, whichever instances it names."""
GATHER_S = 0.05  # how long a call waits for other ends that are wanted at the same moment, seconds

Result = TypeVar("Result")


class Ec2Fleet:
    """All instances of one run, which switch themselves off at `hard_end` (wall clock, seconds
    since 1970). `busy`: whether a launch of this token does not know its instance yet; `places`:
    where launches have asked. A refusal that a person may put right is borne for `mend_s` seconds.
    Methods raise `AwsError`.
    """

    def __init__(
        self,
        run: str,
        hard_end: float,
        cloud: Cloud,
        busy: Callable[[str], bool],
        mend_s: float = MEND_S,
    ) -> None:
        self.register = Register()
        self.places: Sequence[Candidate] = ()
        self.hard_end = hard_end
        self.blind: AwsError | None = None
        self.let_go: set[str] = set()  # instances that are not the run's any more
        self._losses: asyncio.Queue[Loss] = asyncio.Queue()
        self._run = run
        self._cloud = cloud
        self._wanted: set[str] = set()  # what the next call is to end
        self._gathering: asyncio.Task[dict[str, EndedInstance]] | None = None
        self._busy = busy
        self._mend_s = mend_s
        self._news = asyncio.Condition()
        self._nudge = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def watch(self) -> None:
        """Start watching; if the watch runs already, make it ask again at once."""
        self._nudge.set()
        if self._watch is None:
            self._watch = self._begin(self._keep_watching())

    async def loss(self) -> Loss:
        """Wait for the next loss. If a bug has ended the watch, raises its exception."""
        return await self._unless_blind(self._losses.get())

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until `true()` holds, tried after each answer. A bug of the watch is raised here."""

        async def wait() -> None:
            async with self._news:
                await self._news.wait_for(true)

        await self._unless_blind(wait())

    async def _unless_blind(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await `work`, which only the watch can complete, or raise the watch's exception."""
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
        """Ask EC2 for all instances of the run."""
        all_seen = await instances.find(self._cloud, tagged(RUN, self._run), patience_s=patience_s)
        return [seen for seen in all_seen if seen.instance not in self.let_go]  # tags lag behind

    async def find_launched(self, token: str) -> list[RegisterEntry]:
        """Ask EC2 for the instances of this launch, register them and return them, with ended ones,
        which after a while have no tags any more, but their ClientToken.
        """
        tags = tagged(RUN, self._run) + tagged(COMMAND, token)
        requests = [client_token(self._run, token, place) for place in self.places]
        launched = await instances.find(self._cloud, tags) or await instances.find_among(
            self._cloud, "client-token", requests
        )
        for seen in launched:
            self.register.take_up(seen, wall(), token)
        return self.register.of(token)

    async def find_known(self, known: Sequence[str]) -> list[SeenInstance]:
        """Ask EC2 for these instances, tagged or not, but not for those of another run."""
        all_seen = await instances.find_among(self._cloud, "instance-id", known)
        own = (seen for seen in all_seen if seen.tags.get(RUN, self._run) == self._run)
        return [seen for seen in own if seen.instance not in self.let_go]

    async def hunt(self, token: str, end: float) -> list[RegisterEntry]:
        """Repeat `find_launched` until there is an instance, or until `end` (wall clock, seconds
        since 1970), also while EC2 is busy, and for `mend_s` seconds after a refusal that a person
        may put right: an unknown instance would run on.
        """
        mend_until = asyncio.get_running_loop().time() + self._mend_s
        while True:
            try:
                if (launched := await self.find_launched(token)) or wall() >= end:
                    return launched
            except AwsError as error:
                mended = error.kind in MENDED and asyncio.get_running_loop().time() < mend_until
                if error.kind not in AGAIN and not mended:
                    raise
            await asyncio.sleep(HUNT_POLL_S)

    async def end(self, instance: str) -> Span:
        """End an instance, however long that takes; return when it ran. Raises `ProviderError` if
        that is refused.
        """
        entry = self.register[instance]
        entry.given_back = True
        self._nudge.set()
        begun, failures = asyncio.get_running_loop().time(), 0
        while not entry.ended:
            try:
                answer = await self._ask_end(instance, failures)
            except AwsError as error:
                await self._judge(entry, error, asyncio.get_running_loop().time() - begun)
            else:
                if answer.before in ENDING and await self._has_ended(entry):
                    break  # already before this call: EC2 says when
                if answer.now in ENDING:
                    self.register.end(instance, wall(), before=answer.before)
            failures += 1
        await self._notify()
        return entry.span

    async def end_all(self, entries: Iterable[RegisterEntry]) -> Span:
        """End these instances; return when the first began and the last ended. Raises
        `ProviderError`, after all have been tried.
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
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask_end(self, instance: str, failures: int) -> EndedInstance:
        """Ask for its end: first in one call with all others whose end is wanted now, and if that
        does not help, in a call of its own.
        """
        lane = self._cloud.lanes["terminate_instances"]
        if failures:
            await lane.again(failures)
        else:
            self._wanted.add(instance)
            if self._gathering is None:
                self._gathering = self._begin(self._end_wanted())
            answers = await asyncio.shield(self._gathering)
            if instance in answers:
                return answers[instance]
            await lane.turn()
        answers = await instances.end(self._cloud, [instance])
        if instance not in answers:
            why = f"TerminateInstances: AWS did not answer for {instance}"
            raise AwsError(why, ErrorKind.UNCLEAR, "NotAnswered")
        return answers[instance]

    async def _end_wanted(self) -> dict[str, EndedInstance]:
        """Make one call for all ends that are wanted when its turn has come, and make it again
        while EC2 is busy or broken. The result lacks those that need calls of their own: if one
        cannot be ended, EC2 ends none, or only those of other zones
        (docs.aws.amazon.com/AWSEC2/latest/APIReference/API_TerminateInstances.html).
        """
        lane, failures = self._cloud.lanes["terminate_instances"], 0
        await asyncio.sleep(GATHER_S)
        await lane.turn()
        wanted, self._wanted, self._gathering = sorted(self._wanted), set(), None
        while True:
            try:
                return await instances.end(self._cloud, wanted)
            except AwsError as error:
                if len(wanted) > 1 and error.kind not in OF_ALL:
                    return {}
                if error.kind not in AGAIN or wall() > self.hard_end:
                    raise
            failures += 1
            await lane.again(failures)
            wanted = [instance for instance in wanted if not self.register[instance].ended]
            if not wanted:
                return {}

    def _begin(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _judge(self, entry: RegisterEntry, error: AwsError, for_s: float) -> None:
        """Return if asking again may help, after `for_s` seconds; else raise `ProviderError`."""
        if error.kind in AGAIN and wall() < self.hard_end + PAST_END_S:
            return
        if error.kind in MENDED and for_s < self._mend_s and not await self._has_ended(entry):
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
        """Ask EC2 for the instance; return whether it has ended although that was refused."""
        with contextlib.suppress(AwsError):
            for seen in await self.find_known([entry.instance]):
                self.register.take_up(seen, wall())
        return entry.ended

    async def _keep_watching(self) -> None:
        while True:
            self._nudge.clear()
            asked_at = wall()
            try:
                answer = await self.find(patience_s=PATIENCE_S)
            except AwsError as error:
                self.blind = error
            else:
                self.blind = None
                losses, strays = self.register.observe(answer, asked_at, wall(), self._busy)
                for loss in losses:
                    self._losses.put_nowait(loss)
                for stray in strays:
                    self._begin(self._end_stray(stray))
            await self._notify()
            least_s = FAILED_S if self.blind else BUSY_S
            await asyncio.sleep(least_s)
            if not self.register.restless():
                # Not `wait_for`: before Python 3.12 it loses a cancellation that comes together
                # with what it waits for.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CALM_S - least_s):
                        await self._nudge.wait()

    async def _end_stray(self, instance: str) -> None:
        with contextlib.suppress(ProviderError):  # it stays among the leftovers, which name it
            await self.end(instance)

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()


def joined(spans: Iterable[Span]) -> Span:
    """Return one span, from when the first of these ran until the last had ended."""
    ran = [span for span in spans if span.since is not None]
    if not ran:
        return Span()
    open_ended = any(span.until is None for span in ran)
    return Span(
        min(s.since or 0.0 for s in ran), None if open_ended else max(s.until or 0.0 for s in ran)
    )
