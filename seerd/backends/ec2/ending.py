"""Ending instances: all whose end is wanted at one moment are ended by one call. If one of them
cannot be ended, EC2 ends none, or only those of other zones
(docs.aws.amazon.com/AWSEC2/latest/APIReference/API_TerminateInstances.html). So after a refusal
that may concern only one of them each has a call of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass

from seerd.aws import instances
from seerd.aws.cloud import Cloud
from seerd.aws.errors import AGAIN, AwsError, ErrorKind
from seerd.aws.instances import ENDING, EndedInstance

GATHER_S = 0.05  # how long a call waits for other ends that are wanted at the same moment, seconds
OF_ALL = AGAIN | {ErrorKind.CREDENTIALS}
"""Refusals that concern the call, whichever instances it names."""

Pending = Mapping[str, asyncio.Future[EndedInstance]]


@dataclass(frozen=True, slots=True)
class Setback:
    """That an instance could not be ended."""

    failures: int  # how often in a row
    pause: asyncio.Task[None]  # a task that ends when it may be tried again


class Endings:
    """The terminations of a run."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._pending: dict[str, asyncio.Future[EndedInstance]] = {}
        self._setbacks: dict[str, Setback] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def end(self, instance: str) -> EndedInstance:
        """Ask once for its end, in one call with all others whose end is wanted now."""
        if not self._pending:
            self._begin(self._send())
        if instance not in self._pending:
            self._pending[instance] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._pending[instance])

    async def rest(self, instance: str) -> None:
        """Wait until a failed end may be asked for again, with the others of its call."""
        if instance in self._setbacks:
            await asyncio.shield(self._setbacks[instance].pause)

    async def close(self) -> None:
        """Make no more calls."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self) -> None:
        """Make one call for all ends that are wanted when its turn has come."""
        await asyncio.sleep(GATHER_S)
        await self._cloud.lanes["terminate_instances"].turn()
        pending, self._pending = self._pending, {}
        await self._ask(pending)

    async def _alone(self, pending: Pending) -> None:
        await self._cloud.lanes["terminate_instances"].turn()
        await self._ask(pending)

    async def _ask(self, pending: Pending) -> None:
        try:
            answers = await instances.end(self._cloud, list(pending))
        except AwsError as error:
            if len(pending) > 1 and error.kind not in OF_ALL:
                for instance, future in pending.items():
                    self._begin(self._alone({instance: future}))
                return
            self._put_off(pending)
            _fail(pending.values(), error)
        except Exception as bug:
            _fail(pending.values(), bug)
            raise
        else:
            self._hand_on(pending, answers)

    def _hand_on(self, pending: Pending, answers: Mapping[str, EndedInstance]) -> None:
        ending = {name for name, answer in answers.items() if answer.now in ENDING}
        self._put_off(name for name in pending if name not in ending)
        for name, future in pending.items():
            if name in ending:
                self._setbacks.pop(name, None)
            if name in answers:
                future.set_result(answers[name])
            else:
                why = f"TerminateInstances: AWS did not answer for {name}"
                _fail([future], AwsError(why, ErrorKind.UNCLEAR, "NotAnswered"))

    def _put_off(self, instances: Iterable[str]) -> None:
        """Make the next try for these wait, for all of them equally long."""
        names = list(instances)
        if not names:
            return
        setbacks = [self._setbacks[name] for name in names if name in self._setbacks]
        failures = 1 + max((setback.failures for setback in setbacks), default=0)
        pause = self._begin(self._cloud.lanes["terminate_instances"].retries.pause(failures))
        for name in names:
            self._setbacks[name] = Setback(failures, pause)

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _fail(futures: Iterable[asyncio.Future[EndedInstance]], error: Exception) -> None:
    for future in futures:
        future.set_exception(error)
        future.exception()  # counts as retrieved, even if nobody waits for it any more
