"""Ending instances: all whose end is wanted at one moment are ended by one call.

The one rule: if one instance of a call cannot be ended, EC2 ends none of them, or only those of
other zones (docs.aws.amazon.com/AWSEC2/latest/APIReference/API_TerminateInstances.html). So after a
refusal that may concern only one of them, each is asked for alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass

from seerd.aws import instances
from seerd.aws.cloud import Cloud
from seerd.aws.errors import AGAIN, AwsError, ErrorKind
from seerd.aws.instances import ENDING, EndedInstance

GATHER_S = 0.05
"""How long a call waits for others whose end is wanted at the same moment, seconds."""

OF_ALL = AGAIN | {ErrorKind.CREDENTIALS}
"""Refusals that concern the call, whichever instances it names."""

Wishes = Mapping[str, asyncio.Future[EndedInstance]]


@dataclass(frozen=True, slots=True)
class Setback:
    """That an instance could not be ended."""

    failures: int  # how often in a row
    pause: asyncio.Task[None]  # a task that ends when it may be tried again


class Endings:
    """The terminations of a run."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._wishes: dict[str, asyncio.Future[EndedInstance]] = {}
        self._setbacks: dict[str, Setback] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def end(self, instance: str) -> EndedInstance:
        """Ask once for its end, in one call with all others whose end is wanted now. Raises
        `AwsError`.
        """
        if not self._wishes:
            self._begin(self._send())
        if instance not in self._wishes:
            self._wishes[instance] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._wishes[instance])

    async def rest(self, instance: str) -> None:
        """Wait until an end that could not be had may be asked for again. Those that failed in one
        call wait together, and so are asked for together.
        """
        if instance in self._setbacks:
            await asyncio.shield(self._setbacks[instance].pause)

    async def close(self) -> None:
        """Ask for nothing more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self) -> None:
        """Make one call for all that is wanted when its turn has come."""
        await asyncio.sleep(GATHER_S)
        await self._cloud.lanes["terminate_instances"].turn()
        wishes, self._wishes = self._wishes, {}
        await self._ask(wishes)

    async def _alone(self, wishes: Wishes) -> None:
        await self._cloud.lanes["terminate_instances"].turn()
        await self._ask(wishes)

    async def _ask(self, wishes: Wishes) -> None:
        try:
            answers = await instances.end(self._cloud, list(wishes))
        except AwsError as error:
            if len(wishes) > 1 and error.kind not in OF_ALL:
                for instance, wish in wishes.items():
                    self._begin(self._alone({instance: wish}))
                return
            self._put_off(wishes)
            _fail(wishes.values(), error)
        except Exception as bug:
            _fail(wishes.values(), bug)
            raise
        else:
            self._take(wishes, answers)

    def _take(self, wishes: Wishes, answers: Mapping[str, EndedInstance]) -> None:
        """Hand on what EC2 has answered to each."""
        self._put_off(one for one in wishes if one not in answers or answers[one].now not in ENDING)
        for instance, wish in wishes.items():
            if instance not in answers:
                _fail([wish], _unanswered(instance))
                continue
            if answers[instance].now in ENDING:
                self._setbacks.pop(instance, None)
            wish.set_result(answers[instance])

    def _put_off(self, instances: Iterable[str]) -> None:
        """Have the next try for these wait, for all of them equally long."""
        names = list(instances)
        if not names:
            return
        failures = 1 + max(self._failures(name) for name in names)
        pause = self._begin(self._cloud.lanes["terminate_instances"].retries.pause(failures))
        for name in names:
            self._setbacks[name] = Setback(failures, pause)

    def _failures(self, instance: str) -> int:
        return self._setbacks[instance].failures if instance in self._setbacks else 0

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _fail(wishes: Iterable[asyncio.Future[EndedInstance]], error: Exception) -> None:
    for wish in wishes:
        wish.set_exception(error)
        wish.exception()  # counts as retrieved, even if nobody waits for it any more


def _unanswered(instance: str) -> AwsError:
    return AwsError(
        f"TerminateInstances: AWS did not answer for {instance}", ErrorKind.UNCLEAR, "NotAnswered"
    )
