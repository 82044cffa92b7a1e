"""Many launches while the API throttles, fails, refuses and loses answers, callers change their
minds, and the process dies.

`make rig` has 200 of them.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from seerd.backends.ec2.provider import Ec2Provider, Ec2Settings
from seerd.errors import LaunchError
from tests.aws.front import Fault, Front, Params, front
from tests.aws.kit import Door, holds, settings

LAUNCHES = int(os.environ.get("SEERD_STORM_LAUNCHES", "20"))
LIVES = 4


@dataclass(slots=True)
class Weather:
    """What goes wrong with calls, from a seed."""

    dice: random.Random
    front: Front

    def __call__(self, action: str, params: Params) -> Fault | None:
        draw = self.dice.random()
        if draw < 0.10:
            return Fault("RequestLimitExceeded")
        if draw < 0.14:
            return Fault("InternalError")
        if draw < 0.18:
            return Fault("InternalError", done=True)
        if draw < 0.22:
            return Fault("", done=True)
        # EC2 does not lack capacity for what it has already given.
        given = params.get("ClientToken") in self.front.answers
        return (
            Fault("InsufficientInstanceCapacity")
            if draw < 0.40 and action == "RunInstances" and not given
            else None
        )


@dataclass(slots=True)
class Journal:
    """What survives a crash: which launches were asked for, and what came of them."""

    asked: set[str] = field(default_factory=set)
    known: dict[str, str] = field(default_factory=dict)
    over: dict[str, str] = field(default_factory=dict)
    called_off: set[str] = field(default_factory=set)

    @property
    def under_way(self) -> set[str]:
        return self.asked - set(self.known) - set(self.over) - self.called_off

    @property
    def wanted(self) -> dict[str, str]:
        return {
            token: instance
            for token, instance in self.known.items()
            if token not in self.called_off
        }


async def launch(provider: Ec2Provider, journal: Journal, token: str, dice: random.Random) -> None:
    """A launch as the shell does it, sometimes told twice, sometimes called off."""
    calling_off = (
        asyncio.create_task(call_off(provider, journal, token, dice.uniform(0, 2)))
        if dice.random() < 0.1
        else None
    )
    try:
        twice = dice.random() < 0.1
        answers = await asyncio.gather(*(provider.launch(token) for _ in range(1 + twice)))
        assert len({answer.instance for answer in answers}) == 1
        journal.known[token] = answers[0].instance
    except LaunchError as error:
        assert error.retry or "called off" in str(error), error
        assert (error.since is None) == (error.until is None)
        journal.over[token] = str(error)
    finally:
        if calling_off is not None:
            await calling_off


async def call_off(provider: Ec2Provider, journal: Journal, token: str, after_s: float) -> None:
    """As the shell gives back: what is written down first is carried out again after a crash."""
    await asyncio.sleep(after_s)
    journal.called_off.add(token)
    await provider.terminate(token)
    journal.known.pop(token, None)
    journal.over[token] = "called off"


async def one_life(
    made: Ec2Settings, front_: Front, journal: Journal, tokens: list[str], seed: int
) -> None:
    """From a start to the process's death, some launches still in the air."""
    dice = random.Random(seed)
    door = Door(trouble=lambda machine: "sshd says no" if dice.random() < 0.05 else "")
    provider = Ec2Provider(made, door)  # type: ignore[arg-type]
    await provider.open()
    await take_up(provider, journal)
    again = sorted(journal.under_way)
    journal.asked |= set(tokens)
    tasks = [
        asyncio.create_task(launch(provider, journal, token, dice)) for token in (*again, *tokens)
    ]
    await holds(lambda: sum(task.done() for task in tasks) > 0.8 * len(tasks), 120)
    if seed % 2:  # killed: nothing is put in order, and what was being said to the shell is lost
        await provider.close()
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert result is None or seed % 2 or isinstance(result, asyncio.CancelledError), result
    await provider.close()


async def take_up(provider: Ec2Provider, journal: Journal) -> None:
    """As the shell does after a start: look what is there, and end again what was to be ended."""
    kept, _ = await provider.adopt(list(journal.known.values()), sorted(journal.under_way))
    assert set(kept) >= set(journal.wanted.values())
    for token in sorted(journal.called_off):
        await provider.terminate(token)
        journal.known.pop(token, None)


@pytest.mark.timeout(600)  # 200 take about 100 s on two idle cores
@pytest.mark.parametrize("seed", [1])
def test_nothing_is_lost_and_nothing_is_left(moto: str, tmp_path: Path, seed: int) -> None:
    async def scenario() -> None:
        async with front(moto) as there:
            there.pending_s, there.hidden_s = 0.5, 0.3
            made = settings(there, tmp_path)
            journal = Journal()
            there.fault = Weather(random.Random(seed), there)
            tokens = [f"{n}.0" for n in range(LAUNCHES)]
            for life in range(LIVES):
                share = tokens[life * LAUNCHES // LIVES : (life + 1) * LAUNCHES // LIVES]
                await one_life(made, there, journal, share, seed * 100 + life)
            await last_life(made, there, journal)

    asyncio.run(scenario())


async def last_life(made: Ec2Settings, there: Front, journal: Journal) -> None:
    """What is under way is called off, what is known stays until it is given back; then there is
    nothing.
    """
    provider = Ec2Provider(made, Door())  # type: ignore[arg-type]
    await provider.open()
    await take_up(provider, journal)
    await asyncio.gather(*(provider.terminate(token) for token in journal.under_way))
    known = set(journal.known.values())
    assert len(known) > LAUNCHES / 2
    alive = await asyncio.to_thread(there.alive)
    assert known == alive
    assert len(known) == len(journal.known)
    spans = await asyncio.gather(*(provider.terminate(instance) for instance in known))
    assert all(
        span.since is not None and span.until is not None and span.since <= span.until
        for span in spans
    )
    assert (await provider.leftovers()).costing == []
    there.fault = lambda action, params: None
    assert await asyncio.to_thread(there.alive) == set()
    assert provider._fleet._losses.empty()
    await provider.close()
