"""This machine as an instance: what is left of it when it has been given back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from seerd.agent import host
from seerd.backends.base import Span
from seerd.backends.bundle import build_agent
from seerd.backends.local.provider import LocalProvider
from seerd.errors import ProviderError

INSTANCE = "local-1"


@pytest.fixture
def provider(tmp_path: Path) -> LocalProvider:
    bundle = tmp_path / "agent.pyz"
    build_agent(bundle)
    return LocalProvider(
        tmp_path / "instances", "run", bundle, 1, cuda=False, lease_s=60.0, grace_s=1.0
    )


def test_an_agent_that_is_being_started_while_its_instance_is_given_back_does_not_stay(
    provider: LocalProvider,
) -> None:
    provider = replace(provider, end_s=3.0)

    async def given_back() -> None:
        await provider.launch("1.0")
        provider.spawned[INSTANCE][0].kill()
        provider.spawned[INSTANCE][0].wait()
        again = asyncio.create_task(provider.connect(INSTANCE))
        await asyncio.sleep(0)
        assert len(provider.spawned[INSTANCE]) == 2
        assert (await provider.leftovers()).costing == [f"{INSTANCE}: its agent still runs"]
        await provider.terminate(INSTANCE)
        with contextlib.suppress(OSError, ProviderError):
            (await again)[1].close()
        assert (await provider.leftovers()).costing == []
        assert all(process.poll() is not None for process in provider.spawned[INSTANCE])

    asyncio.run(given_back())


def test_an_instance_that_was_given_back_gets_no_new_agent(provider: LocalProvider) -> None:
    async def asked_again() -> None:
        await provider.launch("1.0")
        provider.spawned[INSTANCE][0].terminate()
        await provider.terminate(INSTANCE)
        with pytest.raises(OSError):
            await provider.connect(INSTANCE)
        assert len(provider.spawned[INSTANCE]) == 1

    asyncio.run(asked_again())


def a_trial() -> subprocess.Popen[bytes]:
    """A process of a trial of the run, in a session of its own."""
    trial = subprocess.Popen(
        [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"],
        env={**os.environ, host.MARKER: "run/t1/1"},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert trial.stdout is not None
    trial.stdout.readline()
    return trial


def one_that_starts_a_stranger() -> subprocess.Popen[str]:
    script = (
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'], env={}, start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


def test_what_a_stopped_agent_had_started_is_ended_whatever_its_environment(
    provider: LocalProvider,
) -> None:
    """Nothing but its parent tells whose it is: it has left its session and its environment."""

    async def given_back() -> None:
        await provider.launch("1.0")
        agent = one_that_starts_a_stranger()
        assert agent.stdout is not None
        child = int(agent.stdout.readline())
        provider.spawned[INSTANCE].append(agent)  # type: ignore[arg-type]
        agent.send_signal(signal.SIGSTOP)
        await provider.terminate(INSTANCE, 2.0)
        assert not host.is_there(child)
        agent.communicate()

    asyncio.run(given_back())


def test_an_agent_that_is_stopped_is_ended_with_its_trials_in_the_time_that_is_left(
    provider: LocalProvider,
) -> None:
    async def given_back() -> None:
        await provider.launch("1.0")
        provider.spawned[INSTANCE][0].send_signal(signal.SIGSTOP)
        trial = a_trial()
        began = time.monotonic()
        await provider.terminate(INSTANCE, 2.0)
        assert time.monotonic() - began < 2.0
        assert not host.is_there(trial.pid)
        trial.communicate()
        assert (await provider.leftovers()).costing == []

    asyncio.run(given_back())


def test_an_agent_of_another_version_is_ended_and_its_instance_stays(
    provider: LocalProvider,
) -> None:
    """It is asked to end, and killed if it does not."""
    hasty = replace(provider, end_s=0.5)

    async def ended() -> None:
        launched = await provider.launch("1.0")
        assert (launched.instance, launched.gpus) == (INSTANCE, 1)
        assert abs(launched.since - time.time()) < 60.0
        (first,) = provider.spawned[INSTANCE]
        assert (await provider.leftovers()).costing == [f"{INSTANCE}: its agent still runs"]
        await provider.end_agent(INSTANCE, 5.0)
        assert first.poll() is not None
        assert first.returncode != -signal.SIGKILL
        assert (await provider.leftovers()).costing == []
        _, writer = await provider.connect(INSTANCE)
        writer.close()
        stopped = provider.spawned[INSTANCE][-1]
        stopped.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        await hasty.end_agent(INSTANCE, 0.2)
        assert time.monotonic() - began >= 0.7
        assert stopped.wait() == -signal.SIGKILL
        assert (await provider.leftovers()).costing == []
        assert await provider.adopt([INSTANCE, "local-9"], []) == ([INSTANCE], [])
        await provider.terminate(INSTANCE)
        for process in provider.spawned[INSTANCE]:
            process.wait(10.0)

    asyncio.run(ended())


def test_what_is_not_there_is_told_and_where_everything_is(
    provider: LocalProvider, tmp_path: Path
) -> None:
    async def looked_at() -> None:
        await provider.open()
        assert (await provider.leftovers()).costing == []
        assert await provider.adopt([INSTANCE], []) == ([], [])
        with pytest.raises(ProviderError, match="local-1 has been removed"):
            await provider.connect(INSTANCE)
        assert await provider.terminate("1.0") == Span()
        assert provider.spawned == {}
        assert provider.given_back == {INSTANCE}
        assert provider.address(INSTANCE) == "127.0.0.1"
        where = tmp_path / "instances" / INSTANCE / "journal.jsonl"
        assert provider.journal(INSTANCE) == where

    asyncio.run(looked_at())


def test_an_agent_that_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    bundle = tmp_path / "agent.py"
    bundle.write_text("import sys\nfor n in range(30): print(f'line {n}')\nsys.exit(3)")
    broken = LocalProvider(
        *(tmp_path / "instances", "run", bundle, 1),
        cuda=False,
        lease_s=60.0,
        grace_s=1.0,
        start_s=1.0,
    )

    async def launched() -> str:
        with pytest.raises(ProviderError) as error:
            await broken.launch("1.0")
        return str(error.value)

    told = asyncio.run(launched())
    assert [process.wait(10.0) for process in broken.spawned[INSTANCE]] == [3]
    assert "line 29" in told
    assert "line 10" in told
    assert "line 9\n" not in told
