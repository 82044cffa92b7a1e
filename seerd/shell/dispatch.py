"""Carries out the core's commands with the adapters (provider, store, agents, policy's process).

The one rule: whatever an adapter returns or raises becomes one of the command's outcome events,
never an error, and a repeated command is carried out once.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, assert_never

from seerd.backends.base import LaunchProgress, Leftovers, Loss, Span
from seerd.core import commands, events
from seerd.core.codec import is_kept
from seerd.core.commands import AnyCommand
from seerd.core.events import AnyEvent, Checkpoint
from seerd.core.limits import off_in_s
from seerd.core.state import Incumbent
from seerd.errors import LaunchError, PolicyError, ProviderError, StoreError
from seerd.planner.trial_ids import job_of
from seerd.shell.agents import Readiness
from seerd.shell.core import Core
from seerd.shell.losses import Losses
from seerd.shell.model_card import write_card
from seerd.shell.requests import RequestReader
from seerd.shell.run_environment import RunEnvironment
from seerd.shell.sessions import Sessions, proof_of
from seerd.stores.base import Store
from seerd.units import SLOW_S

T = TypeVar("T")
FETCH_S, FETCH_AGAIN_S = 300.0, 5.0
HOP_S = 5.0
LEAST_LEAVING_S, MOST_LEAVING_S = 5.0, 60.0
"""Seconds that leaving an instance to another run may take, even if no limit is near."""


@dataclass(frozen=True, slots=True)
class Reattached:
    """What is found after a restart; agents that have not answered yet count as alive."""

    alive: tuple[str, ...]  # instances that still exist
    ended: dict[str, float]  # when the others ended, in seconds into the run, if known
    saved: tuple[Checkpoint, ...]  # checkpoints in the store that the journal may not know yet
    others: tuple[Loss, ...]  # rented instances that the journal does not know; all have ended


class Dispatch:
    """Carries out the commands of one run."""

    def __init__(self, environment: RunEnvironment, core: Core, tasks: asyncio.TaskGroup) -> None:
        self._environment = environment
        self._timings = environment.timings
        self._core = core
        self._clock = core.clock
        self._tasks = tasks
        self._timer: asyncio.Handle | None = None
        self._losses = Losses(environment, core, tasks)
        self.sessions = Sessions(environment, core, self._losses, tasks)
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._kept: dict[str, Sequence[str]] = {}
        self.requests = RequestReader(environment, core, self.sessions, tasks)

    async def open(self) -> None:
        """Open policy, provider and store, and begin the background tasks. Raises `ProviderError`
        or `StoreError` if instances or checkpoints cannot be had at all.
        """
        self._environment.policy.start()
        await self._environment.provider.open(lambda: self._core.lease()[0])
        await self._environment.store.open()
        self._tasks.create_task(self._keep_finding_losses())
        if self._environment.progress is not None:
            self._tasks.create_task(self._keep_reporting(self._environment.progress))
        self._tasks.create_task(self.sessions.keep_granting())
        if self._environment.uploads is not None:
            self._tasks.create_task(self._keep_telling(self._environment.uploads))
        if self._environment.inbox is not None:
            self._tasks.create_task(self.requests.keep_reading(self._environment.inbox))
        if self._environment.collector is not None:
            looking = self._environment.collector.keep_looking(self.sessions.instances)
            self._tasks.create_task(looking)

    async def reattach(
        self,
        instances: Sequence[str],
        launches: Sequence[str],
        off_in_s: Callable[[], float] = lambda: math.inf,
    ) -> Reattached:
        """Reconnect to the agents of `instances` and of `launches` under way after a restart, and
        emit all facts that they had kept. `off_in_s` returns the seconds until everything must be
        given back.
        """
        with self.requests.readying():
            present, others = await self._environment.provider.adopt(instances, launches)
            answers = {name: self._tasks.create_task(self._reattach(name)) for name in present}
            if answers:
                least_s, most_s = self._timings.overdue_s, self._timings.reattach_s
                patience_s = min(most_s, max(least_s, off_in_s()))
                await asyncio.wait(answers.values(), timeout=patience_s)
            alive = [name for name, task in answers.items() if not task.done() or task.result()]
            gone = [name for name in instances if name not in alive]
            ended = await asyncio.gather(*map(self._losses.ended, gone))
            # An agent that has not answered yet may have stored new checkpoints and deleted all
            # that the journal knows.
            silent = [name for name in alive if not answers[name].done()]
            saved: list[Checkpoint] = []
            for name in (*gone, *silent):
                saved += await self._losses.saved_on(name)
            ends = {name: at for name, at in zip(gone, ended, strict=True) if at is not None}
            return Reattached(tuple(alive), ends, tuple(saved), tuple(others))

    async def call_off(self, launches: Sequence[str]) -> None:
        """End all instances of these launches, whose trials are unknown."""
        ends = map(self._environment.provider.terminate, launches)
        for end in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(end, BaseException) and not isinstance(end, ProviderError):
                raise end

    def carry_out(self, batch: list[AnyCommand]) -> None:
        """Start carrying out all of these commands; returns at once."""
        if any(isinstance(command, commands.StartTrial | commands.StopTrial) for command in batch):
            self.sessions.renew()
        for command in batch:
            self._carry_out(command)

    def collect(self, instance: str) -> None:
        """Collect the logs of this instance, one of whose trials has ended."""
        if self._environment.collector is not None:
            self._environment.collector.look(instance)

    def keep(self, trial: str, checkpoints: Sequence[str]) -> None:
        """Note that only these checkpoints of the trial are needed, to tidy the store soon."""
        if not self._kept:
            self._tasks.create_task(self._keep_soon())
        self._kept[trial] = checkpoints

    async def leftovers(self) -> Leftovers:
        """Ask the provider what still exists of the run; a failure counts as one thing."""
        try:
            return await self._environment.provider.leftovers()
        except ProviderError as error:
            return Leftovers([f"whether anything is left could not be found out: {error}"])

    async def close(self) -> None:
        """Close all connections, ending nothing, after all tasks have ended."""
        if self._timer is not None:
            self._timer.cancel()
        if self._environment.collector is not None:
            await self._environment.collector.close()
        await self._environment.policy.close()
        await self._environment.provider.close()
        await self._environment.store.close()

    def _carry_out(self, command: AnyCommand) -> None:
        match command:
            case commands.SetTimer():
                self._await(command)
            case commands.AskPolicy():
                if command.id == self._core.state.plan.question:  # else it is out of date
                    self._spawn(command.id, self._ask_policy(command))
            case commands.Launch():
                self._spawn(command.id, self._launch(command))
            case commands.Terminate():
                self._spawn(command.id, self._terminate(command))
            case commands.Publish():
                self._spawn(command.id, self._publish(command))
            case commands.StartTrial() | commands.StopTrial() | commands.GrowTrial():
                self.sessions.order(command)
            case commands.Finish():
                pass  # the daemon ends by itself when the core's state is finished
            case _:
                assert_never(command)

    def _await(self, timer: commands.SetTimer) -> None:
        """Wait until the timer is due, in hops of at most `HOP_S` seconds: the loop's own clock may
        stand still while the machine sleeps.
        """
        loop, wait_s = asyncio.get_running_loop(), timer.due - self._clock.now()
        if self._timer is not None:
            self._timer.cancel()
        if wait_s <= 0:
            fire = partial(self._emit, events.TimerFired, command=timer.id)
            self._timer = loop.call_soon(fire)
        else:
            self._timer = loop.call_later(min(wait_s, HOP_S), self._await, timer)

    async def _ask_policy(self, command: commands.AskPolicy) -> None:
        try:
            answer = await self._environment.policy.answer()
        except PolicyError as error:
            self._emit(events.PolicyFailed, question=command.id, why=str(error))
            return
        answered = events.PolicyAnswered(
            at=self._clock.now(), question=command.id, plan=answer.plan, memory=answer.memory
        )
        if is_kept(answered):
            self._core.emit(answered)
        else:
            why = "the policy's answer has values that are not JSON, such as NaN"
            self._emit(events.PolicyFailed, question=command.id, why=why)

    async def _launch(self, command: commands.Launch) -> None:
        try:
            most = command.gpus // self._core.state.facts.parts
            asked = command.id, command.orphan_timeout_s, most
            launched = await self._environment.provider.launch(*asked)
        except LaunchError as error:
            self._refuse(command, error)
            return
        except ProviderError as error:
            self._refuse(command, LaunchError(str(error), retry=True))
            return
        slow = f"{launched.instance} is being made ready: data and checks"
        setup = any(job.setup for job in self._environment.jobs or [self._environment.job])
        after_s = None if setup else SLOW_S  # its agent reports setup commands
        with self.requests.readying():
            preparing = self.sessions.prepare(launched, command.id)
            readiness = await self._remarking(preparing, slow, after_s)
        if self._environment.proves:
            self.keep(proof_of(launched.instance), ())
        if readiness.why:  # it is given back
            until, (why, retry) = None, self._judged(launched.instance, readiness)
            try:
                until = (await self._end(launched.instance, command.id)).until
            except ProviderError as error:
                why = f"{why}; {error}"
            cause, since = readiness.cause.partition("-")[0], launched.since
            refusal = LaunchError(why, retry=retry, since=since, until=until, cause=cause)
            self._refuse(command, refusal)
            return
        if self._environment.note_ready is not None:
            self._environment.note_ready(launched.instance)
        since = self._clock.past(launched.since)
        if launched.paid_until is not None:
            since = max(since, self._clock.of_wall(launched.paid_until))
        self._emit(
            events.InstanceReady,
            command=command.id,
            instance=launched.instance,
            gpus=launched.gpus * self._core.state.facts.parts,
            running_since=since,
            boot=self.sessions.boot(launched.instance),
        )

    def _judged(self, instance: str, readiness: Readiness) -> tuple[str, bool]:
        """Return why an instance cannot be used, and what to do; and whether another one might."""
        without_store = self._environment.without_store
        if without_store is None or not readiness.cause.startswith("store"):
            return readiness.why, readiness.retry
        try:
            advice, others = without_store(instance, silent=readiness.cause == "store")
        except ProviderError:  # it has ended by itself
            return readiness.why, readiness.retry
        return f"{readiness.why}{advice}", others

    def _refuse(self, command: commands.Launch, error: LaunchError) -> None:
        self._emit(
            events.LaunchRefused,
            command=command.id,
            why=str(error),
            retry=error.retry,
            running_since=self._clock.past(error.since),
            ended=self._clock.past(error.until),
            unknown=error.unknown,
            cause=error.cause or None,
        )

    async def _terminate(self, command: commands.Terminate) -> None:
        launching = self._under_way.get(command.instance)
        if launching is not None and not launching.done():
            launching.cancel()
            await asyncio.wait({launching})
        again = f"the end of {command.instance} is not confirmed yet; it is requested repeatedly"
        fetched = await self._fetch_left(command)
        kept = asyncio.gather(*(self._keep_left(command.instance, saved) for saved in fetched))
        if command.keep_until_s is not None and await self._let_go(command, command.keep_until_s):
            await kept
            self._emit(events.InstanceKept, command=command.id, instance=command.instance)
            return
        try:
            span = await self._remarking(self._end(command.instance, command.id), again)
        except ProviderError as error:
            await kept
            await self._losses.report(Loss(command.instance, str(error), Span()))
            return
        await kept
        self._emit(
            events.InstanceTerminated,
            command=command.id,
            instance=command.instance,
            running_since=self._clock.past(span.since),
            ended=self._clock.past(span.until),
        )

    async def _let_go(self, command: commands.Terminate, until_s: float) -> bool:
        """Leave the instance for another run; return whether that worked. If not, it is to be ended
        as any other.
        """
        name, until = command.instance, self._clock.origin + until_s
        if self._environment.collector is not None:
            await self._environment.collector.last(name, self._core.lease()[0])
        await self.sessions.drop(name, "it is let go of")
        try:
            within_s = min(MOST_LEAVING_S, max(LEAST_LEAVING_S, self._core.spare()))
            await self._environment.provider.let_go(name, until, within_s)
        except ProviderError as error:
            self._emit(events.Remarked, text=f"{name} cannot be kept, and is given back: {error}")
            return False
        return True

    async def _fetch_left(self, command: commands.Terminate) -> list[Checkpoint]:
        """Fetch the best models that the instance could not store, within the run's limits."""
        left_behind, state = self._environment.left_behind, self._core.state
        if left_behind is None or not command.left:
            return []
        # What is cancelled may end late, and then the instance still has to be given back.
        within_s = min(self._core.spare(), off_in_s(state, self._clock.now())) / 2
        try:
            async with asyncio.timeout(within_s):
                return await left_behind.fetch(command, state)
        except (ProviderError, OSError) as error:
            why = str(error) or f"it took longer than {within_s:.0f}s"
            text = f"no model could be fetched from {command.instance}: {why}"
            self._emit(events.Remarked, text=text)
            return []

    async def _keep_left(self, instance: str, saved: Checkpoint) -> None:
        assert self._environment.left_behind is not None
        within_s = self._core.spare()
        checkpoint, stored = await self._environment.left_behind.keep(saved, within_s)
        about = {"instance": instance, "checkpoint": checkpoint, "stored": stored}
        self._emit(events.CheckpointFetched, **about)

    async def _end(self, name: str, token: str) -> Span:
        """Collect the instance's logs and give it back. Raises `ProviderError`. A rented one's
        agent goes on: if the cloud refuses, it still switches the instance off when the lease ends.
        """
        if self._environment.collector is not None:
            # Collecting may take time only while agents hold a lease: until then nothing has to be
            # given back.
            await self._environment.collector.last(name, self._core.lease()[0])
        if self._environment.rented:
            await self.sessions.drop(name, "it is given back")
            return await self._environment.provider.terminate(name)
        spare_s = self._core.spare()
        shut_down = self.sessions.shut_down(name, token, spare_s)
        ended = self._environment.provider.terminate(name, spare_s)
        _, span = await asyncio.gather(shut_down, ended)
        self._losses.read_noted(name)
        return span

    async def _publish(self, command: commands.Publish) -> None:
        environment = self._environment
        to = environment.result / job_of(command.trial) / "checkpoint.pt"
        again = "the best model is in the store, which does not give it; it is requested repeatedly"
        try:
            left_behind, store = environment.left_behind, environment.store
            if left_behind is not None:
                store = left_behind.store_of(command.trial, command.checkpoint)
            place = store.place(command.trial, command.checkpoint)
            copying = f"copying the best model: {place}"
            fetching = self._remarking(self._fetch(store, command, to), copying, SLOW_S)
            await self._remarking(fetching, again)
            trial = self._core.state.trials[command.trial]
            kept = next(c for c in trial.checkpoints if c.name == command.checkpoint)
            model = Incumbent(command.trial, kept, command.metric)
            metric, card = environment.metric_of(command.trial), to.with_name("config.json")
            await write_card(card, store, environment.run, trial, model, metric)
        except (StoreError, OSError) as error:
            damaged = isinstance(error, StoreError) and error.damaged
            self._emit(events.PublishFailed, command=command.id, why=str(error), damaged=damaged)
            return
        self._emit(events.ModelPublished, command=command.id, path=str(to))

    async def _fetch(self, store: Store, command: commands.Publish, to: Path) -> None:
        """Fetch the best model, for `FETCH_S` seconds unless it is damaged: nothing is paid for
        meanwhile, and any other model would be worse. Raises `StoreError`.
        """
        end, model = self._clock.now() + FETCH_S, (command.trial, command.checkpoint)
        while True:
            try:
                return await store.fetch(*model, command.sha256, to)
            except StoreError as error:
                if error.damaged or self._clock.now() > end:
                    raise
            await asyncio.sleep(FETCH_AGAIN_S)

    async def _remarking(
        self, work: Coroutine[Any, Any, T], text: str, after_s: float | None = None
    ) -> T:
        """Await `work`; after `after_s` (None: `remark_s`) seconds, remark `text` once."""
        remark = partial(self._emit, events.Remarked, text=text)
        after_s = self._timings.remark_s if after_s is None else after_s
        timer = asyncio.get_running_loop().call_later(after_s, remark)
        try:
            return await work
        finally:
            timer.cancel()

    async def _keep_soon(self) -> None:
        """Tidy the store once for all trials noted within `keep_s` seconds, to save requests."""
        await asyncio.sleep(self._timings.keep_s)
        kept, self._kept = self._kept, {}
        for trial, checkpoints in kept.items():
            # An old checkpoint that the store refuses to delete costs next to nothing, and is tried
            # again with the trial's next one.
            with contextlib.suppress(StoreError):
                await self._environment.store.keep(trial, checkpoints)

    async def _reattach(self, instance: str) -> bool:
        self._losses.read_noted(instance)
        try:
            await self.sessions.take_up(instance)
        except ProviderError as error:
            self._losses.give_up(instance, str(error))
            return False
        return True

    async def _keep_telling(self, uploads: Callable[[], str]) -> None:
        """Remark within `SLOW_S` seconds, and then every `remark_s`, how far uploads are."""
        again_s = 0.0
        while True:
            await asyncio.sleep(min(SLOW_S, self._timings.remark_s))
            if self._clock.now() >= again_s and (text := uploads()):
                again_s = self._clock.now() + self._timings.remark_s
                self._emit(events.Remarked, text=text)

    async def _keep_finding_losses(self) -> None:
        while True:
            loss = await self._environment.provider.loss()
            await self.sessions.drop(loss.instance, loss.why)
            await self._losses.report(loss)

    async def _keep_reporting(self, progress: Callable[[], Awaitable[LaunchProgress]]) -> None:
        while True:
            news = await progress()
            if news.what == "priced" and news.usd_per_h is not None:
                since = self._clock.past(news.since)
                self._emit(
                    events.InstancePriced,
                    instance=news.instance,
                    usd_per_h=news.usd_per_h,
                    since=since,
                )
                continue
            self._emit(
                events.InstanceAwaited,
                command=news.launch,
                instance=news.instance,
                what=news.what,
                where=news.where,
                why=news.why,
                usd_per_h=news.usd_per_h,
                gpus=None if news.gpus is None else news.gpus * self._core.state.facts.parts,
            )

    def _emit(self, kind: type[AnyEvent], **fields: Any) -> None:
        self._core.emit(kind(at=self._clock.now(), **fields))

    def _spawn(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task of its own, unless the task of the same `key` is still under way."""
        if key in self._under_way and not self._under_way[key].done():
            work.close()
            return
        self._under_way[key] = self._tasks.create_task(work)
