"""`seerd.run` and what it returns, with real runs: real agents, a real journal, and a trainer that is
a small script without torch.
"""

from __future__ import annotations

import asyncio
import doctest
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

import seerd as api
from seerd.errors import BusyError, NoModelError
from seerd.spec.reader import toml_of
from tests.test_cli import Seerd, seerd  # noqa: F401 - a fixture


def spec_of(name: str, reports: int, **env: str) -> dict[str, Any]:
    """A spec with two trials that end by themselves after so many reports."""
    env = {"SEERD_TEST_EPOCH_S": "0.1", "SEERD_TEST_EPOCHS": str(reports), **env}
    return {
        "name": name,
        "metric": {"name": "accuracy", "mode": "max"},
        "train": {"script": "./trainer.py", "launcher": "command", "env": env},
        "space": {"lr": {"low": 0.0, "high": 1.0}},
        "policy": {"name": "random", "trials": 2},
        "limits": {"deadline": "2m", "budget": "4gpu-min"},
        "cluster": {"gpus": 2},
    }


SHORT, LONGER, ENDLESS = spec_of("short", 3), spec_of("longer", 15), spec_of("endless", 10**6)
SCRIPT = """
import json, sys, seerd
seerd.run(json.loads(sys.argv[1]))
"""


@pytest.fixture
def project(seerd: Seerd, monkeypatch: pytest.MonkeyPatch) -> Seerd:  # noqa: F811
    """A working directory with the trainer, and a home of its own."""
    monkeypatch.chdir(seerd.spec.parent)
    monkeypatch.setenv("SEERD_HOME", str(seerd.home))
    return seerd


def begun(project: Seerd, spec: dict[str, Any], script: str = SCRIPT) -> subprocess.Popen[str]:
    """A process that runs this spec from Python, once trials have reported and saved."""
    command = [sys.executable, "-c", script, json.dumps(spec)]
    process = project.begin(command, project.spec.parent)
    project.wait_for(reports=2)
    return process


def test_two_runs_one_after_the_other(project: Seerd, capfd: pytest.CaptureFixture[str]) -> None:
    first = api.run(SHORT)
    second = api.run({**SHORT, "name": "other"}, seed=4, show=False)
    assert [first.state, second.state] == ["done", "done"]
    assert api.load().id == second.id != first.id
    assert (first.best.path / "checkpoint.pt").is_file()
    card = json.loads((first.best.path / "config.json").read_text())
    assert card["config"] == first.best.config
    copied = first.best.to(project.folder / "model")
    assert sorted(path.name for path in copied.iterdir()) == ["checkpoint.pt", "config.json"]
    out, err = capfd.readouterr()
    assert out == ""
    assert "report 3: accuracy" in err, "one line per event"
    assert second.id not in err


def test_the_examples_of_the_api_run(project: Seerd) -> None:
    Path("spec.toml").write_text(toml_of(SHORT), encoding="utf-8")
    names = {"seerd": api, "asyncio": asyncio}
    for name in ("run", "run_async", "load", "Run", "trial", "Trial", "Batch"):
        flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
        runner = doctest.DocTestRunner(optionflags=flags)
        thing = getattr(api, name)
        (example,) = doctest.DocTestFinder(recurse=False).find(thing, name, globs=names)
        assert example.examples, name
        assert runner.run(example).failed == 0, name
    best = doctest.DocTestFinder(recurse=False).find(
        api.Best, "Best", globs={"run": api.load("last")}
    )
    assert doctest.DocTestRunner().run(best[0]).failed == 0


def test_a_run_in_a_loop_that_runs(project: Seerd) -> None:
    """As in a notebook: `run` waits, `run_async` lets the loop go on, and both leave its handlers
    alone.
    """

    async def both() -> tuple[api.Run, api.Run, int]:
        waited = api.run(SHORT, show=False)
        task = asyncio.create_task(api.run_async(SHORT, show=False))
        turns = 0
        while not task.done():
            await asyncio.sleep(0.01)
            turns += 1
        return waited, await task, turns

    handler = signal.getsignal(signal.SIGTERM)
    waited, other, turns = asyncio.run(both())
    assert [waited.state, other.state] == ["done", "done"]
    assert turns > 20
    assert signal.getsignal(signal.SIGTERM) is handler


def test_who_cancels_it_ends_the_run_in_order(project: Seerd) -> None:
    async def cancelled() -> None:
        async with asyncio.timeout(20) as limit:
            task = asyncio.create_task(api.run_async(ENDLESS, show=False))
            await asyncio.to_thread(project.wait_for, 2)
            limit.reschedule(0)
            await task

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    run = api.load()
    assert run.state == "interrupted"
    assert run.best.metric > 0, "trials have saved"
    assert not list((run.path / "requests").glob("*.json")), "and it can be resumed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_in_order_and_it_can_be_resumed(
    project: Seerd, number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    process = begun(project, LONGER)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert "KeyboardInterrupt: longer-" in err
    assert "it goes on with seerd.load('longer-" in err
    run = api.load()
    assert run.state == "interrupted"
    before = int(run.trials()["reports"].max())
    capfd.readouterr()
    script = project.spec.with_name("trainer.py")
    script.write_text(f"{script.read_text()}\n# edited")
    assert run.resume(show=False).state == "done"
    assert (
        "trainer.py has changed since the run began; it goes on as it was" in capfd.readouterr().err
    )
    assert run.trials()["reports"].max() == 15 > before, "what is read follows the run"


def test_it_is_stopped_from_another_process(project: Seerd) -> None:
    """Signals are for the program that has begun it, so it is asked in another way."""
    process = begun(project, ENDLESS)
    run = api.load()
    assert run.state == "running"
    with pytest.raises(BusyError):
        run.resume()
    assert run.best.path.joinpath("checkpoint.pt").is_file(), "the best so far"
    assert "asked" in project("stop", "last")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert run.state == "interrupted"


def test_a_killed_process_leaves_a_run_that_goes_on(project: Seerd) -> None:
    process = begun(project, LONGER)
    process.kill()
    process.communicate()
    run = api.load()
    assert run.state == "stopped"
    assert asyncio.run(run.resume_async(show=False)).state == "done"
    assert list(run.trials()["reports"]) == [15, 15]
    attempts = run.trials()["attempts"]
    assert list(attempts) == [1, 1], "nothing that went on was begun anew"


def test_a_run_without_a_model_says_why(project: Seerd) -> None:
    broken = spec_of("broken", 3, SEERD_TEST_CRASH="t0001")
    run = api.run(broken, set={"policy.trials": 1}, show=False)
    with pytest.raises(NoModelError, match=r"out of luck|failed"):
        _ = run.best
    assert run.result["best"] is None
    assert "failed" in run._repr_html_()


def test_a_trial_cannot_begin_a_run(project: Seerd) -> None:
    """What travels to trials has the training side alone."""
    run = api.run(SHORT, show=False)
    code = "import seerd; seerd.run"
    environment = {**os.environ, "PYTHONPATH": str(run.path / "agent.pyz")}
    command = [sys.executable, "-S", "-c", code]
    process = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd="/", check=False
    )
    assert "seerd.run is not for trials" in process.stderr


def test_the_stop_button_ends_the_run_in_order(
    project: Seerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends a signal to the kernel, whose loop runs already."""
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(project.folder / "jupyter"))
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(project.spec.parent), env={**os.environ})
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        for cell, error in (
            ("seerd.run(spec)", "KeyboardInterrupt"),
            ("await seerd.run_async(spec)", "CancelledError"),
        ):
            asked = client.execute(f"import seerd; spec = {ENDLESS!r}; {cell}")
            project.wait_for(reports=2)
            manager.interrupt_kernel()
            reply = client.get_shell_msg(timeout=60)
            while reply["parent_header"].get("msg_id") != asked:
                reply = client.get_shell_msg(timeout=60)
            content = reply["content"]
            assert content["ename"] == error, cell
            assert "was interrupted; it goes on with seerd.load('endless-" in content["evalue"]
            run = api.load()
            assert run.state == "interrupted", cell
            assert run.best.metric > 0, cell
            shutil.rmtree(project.home)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
