"""What orders become, in this process: with real commands, a real journal, and no connection."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seerd.agent import clock, gpu_sharing, host
from seerd.agent.family import Crowding, ProcessTable
from seerd.agent.gpu_leases import LeaseFolder
from seerd.agent.journal import AgentJournal
from seerd.agent.nvml import GpuMemory
from seerd.agent.orders import Here, Orders
from seerd.agent.protocol import (
    Ask,
    Download,
    Downloads,
    Exited,
    Expected,
    Grant,
    Job,
    Node,
    Noticed,
    Prepare,
    Prepared,
    Refused,
    Reported,
    Slot,
    Start,
    Started,
    Stop,
)
from seerd.agent.timings import Timings
from tests.agent.forks import forked, status_of
from tests.agent.waiting import no_files, until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    pytest.mark.usefixtures("adopts"),
]

RUN = f"ordered-{os.getpid()}"
WAITS = "while ! test -e $SEERD_DIR/stop; do sleep 0.02; done"
REPORT = '{"kind": "report", "epoch": 1, "metrics": {"accuracy": 0.5}}'


class Stage:
    """A place for orders. `facts` is what came of them."""

    def __init__(self, folder: Path, **here: Any) -> None:
        self.folder = folder / "agent"
        self.source = folder / "source"
        for path in (self.folder, self.source, folder / "lib"):
            path.mkdir(exist_ok=True)
        (self.folder / "agent.lock").touch()
        self.here = replace(Here(RUN, 4, False, self.folder, folder / "lib"), **here)
        self.facts: list[Any] = []
        self.asked: list[Ask] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.failures: list[BaseException] = []
        self.job = Job(
            source=str(self.source),
            script="sh",
            args=["-c", "true"],
            launcher="command",
            python="",
            env={},
            setup=[],
            store=str(folder / "store"),
            metric="accuracy",
            mode="max",
            allocations=[1, 2],
            threads=1,
            checkpoint_every_s=10.0,
        )

    def _tell(self, facts: list[Any]) -> None:
        self.facts += [
            replace(fact, seq=self.journal.last + at) for at, fact in enumerate(facts, 1)
        ]
        self.journal.note(facts)

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)

    def _ask(self, question: Ask) -> bool:
        self.asked.append(question)
        return True

    def plays(self, script: Callable[[], Awaitable[None]]) -> None:
        """Have this happen while all is looked at as an agent does; nothing is left then."""

        async def looked_at() -> None:
            self.journal = AgentJournal(self.folder / "journal.jsonl")
            self.orders = Orders(self.here, self.journal, self._tell, self._beside, self._ask)
            ends = asyncio.ensure_future(script())
            try:
                while not ends.done():
                    assert self.failures == []
                    self.orders.look()
                    await asyncio.wait({ends}, timeout=0.02)
                await ends
            finally:
                self.orders.close()
                # `kill_all` would end what other tests have started in this process, too.
                await asyncio.to_thread(host.kill, lambda: host.each_of_run(RUN), set[int]())
                await until(lambda: not self.orders.attempts)
                self.orders.leave()
                for task in self.tasks:
                    task.cancel()
                self.journal.close()

        asyncio.run(asyncio.wait_for(looked_at(), 60))
        assert self.failures == []
        assert host.marked_with(f"{RUN}/") == set()

    def order(self, order: Prepare | Start | Stop) -> None:
        if self.journal.take(order):
            self.orders.carry_out(order)

    async def prepare(self, order: str = "p", expected: Expected | None = None, **job: Any) -> Any:
        """Prepare for the job; the outcome."""
        jobs = job.pop("jobs", [])
        self.order(Prepare(order, replace(self.job, **job), expected, jobs))
        return await self.outcome(order)

    async def outcome(self, order: str) -> Any:
        def found() -> list[Any]:
            kinds = (Prepared, Refused, Started)
            return [fact for fact in self.facts if isinstance(fact, kinds) and fact.id == order]

        await until(found)
        return found()[-1]

    def start(self, script: str, trial: str = "t1", *gpus: int, **order: Any) -> str:
        """Order an attempt of a trial that does this; the order's id."""
        number = order.pop("attempt", 1)
        name = f"s-{trial}-{number}"
        config = {"script": script, **order.pop("config", {})}
        checkpoints = order.pop("checkpoints", [])
        node = order.pop("node", None)
        self.order(Start(name, trial, number, list(gpus or (0,)), config, 17, checkpoints, node))
        return name

    async def end(self, trial: str = "t1", attempt: int = 1) -> Exited:
        def found() -> list[Exited]:
            return [
                fact
                for fact in self.facts
                if isinstance(fact, Exited) and (fact.trial, fact.attempt) == (trial, attempt)
            ]

        await until(found)
        await until(lambda: f"{trial}/{attempt}" not in self.orders.attempts)
        return found()[0]

    def attempt(self, trial: str = "t1", attempt: int = 1) -> Path:
        return self.folder / "trials" / trial / str(attempt)

    def of(self, kind: type) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]


SCRIPTED = {"args": ["-c", "{script}"], "names": ["script"]}
"""Trials that do what their configuration says."""


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_an_attempt_goes_from_its_order_to_its_end(stage: Stage) -> None:
    async def script() -> None:
        before = clock.now()
        prepared = await stage.prepare(**SCRIPTED)
        assert prepared == Prepared(1, prepared.at, "p")
        assert before <= prepared.at <= clock.now()
        stage.start(f"echo '{REPORT}' >>$SEERD_DIR/out.jsonl; pwd >where; exit 3", "t1", 2, 0)
        assert stage.orders.attempts == ["t1/1"]
        end = await stage.end()
        assert (end.cause, end.code, stage.orders.attempts) == ("crashed", 3, [])

    stage.plays(script)
    assert [type(fact) for fact in stage.facts] == [Prepared, Started, Reported, Exited]
    work = stage.attempt() / "work"
    assert (work / "where").read_text() == f"{work}\n"
    about = json.loads((stage.attempt() / "trial.json").read_text())
    assert (about["gpus"], about["trial"], about["attempt"]) == (2, "t1", 1)
    assert about["run"] == RUN
    assert about["learns"] is False


@pytest.mark.parametrize("weight", [None, 1.0], ids=["alone", "shared"])
def test_while_no_file_can_be_opened_all_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weight: float | None
) -> None:
    monkeypatch.setenv("SEERD_GPU_LEASES", str(tmp_path / "leases"))
    stage = Stage(tmp_path, weight=weight)

    async def script() -> None:
        await stage.orders.come()
        await stage.prepare(**SCRIPTED)
        stage.start(
            f"until test -e go; do sleep 0.02; done; echo '{REPORT}' >>$SEERD_DIR/out.jsonl"
        )
        await stage.outcome("s-t1-1")
        with no_files():
            ends_at = time.monotonic() + 2 * gpu_sharing.LOOK_S
            await until(lambda: time.monotonic() > ends_at)
        (stage.attempt() / "work" / "go").touch()
        assert (await stage.end()).cause == "finished"

    stage.plays(script)
    assert len(stage.of(Reported)) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"trial": "../t1"}, "the name of the trial or of a checkpoint is not allowed"),
        ({"checkpoints": ["a", "/b"]}, "the name of the trial or of a checkpoint is not allowed"),
        ({"attempt": -1}, "the name of the trial or of a checkpoint is not allowed"),
        ({"gpus": []}, "GPUs [] are not among the 4 here"),
        ({"gpus": [4]}, "GPUs [4] are not among the 4 here"),
        ({"gpus": [-1]}, "GPUs [-1] are not among the 4 here"),
        ({"gpus": [3, 0]}, "GPUs [0] are held by t1/1"),
        ({"trial": "t1", "gpus": [3]}, "this attempt has been started by another order"),
        (
            {"gpus": [3], "node": Node(0, 2, "10.0.0.9", "10.0.0.8:1", 4)},
            'launcher = "command" starts one process on one instance; only "torchrun" can span 2',
        ),
    ],
)
def test_a_start_that_cannot_be_is_refused_at_once(
    stage: Stage, change: dict[str, Any], why: str
) -> None:
    async def script() -> None:
        await stage.prepare(**SCRIPTED)
        stage.start(WAITS, "t1", 0, 1)
        await stage.outcome("s-t1-1")
        order = Start("x", "t2", 1, [2], {"script": "true"}, 1, [], None)
        before = clock.now()
        stage.order(replace(order, **change))
        refused = stage.facts[-1]
        assert refused == Refused(refused.seq, refused.at, "x", why, False)
        assert before <= refused.at <= clock.now()
        assert stage.orders.attempts == ["t1/1"]

    stage.plays(script)


def test_attempt_number_zero_and_all_gpus_are_allowed(stage: Stage) -> None:
    async def script() -> None:
        await stage.prepare(**SCRIPTED)
        stage.start("true", "t1", 0, 1, 2, 3, attempt=0)
        assert (await stage.end("t1", 0)).cause == "finished"

    stage.plays(script)


def test_nothing_starts_before_the_instance_is_prepared(stage: Stage) -> None:
    async def script() -> None:
        stage.start("true")
        assert (await stage.outcome("s-t1-1")).why == "this instance is not prepared"
        await stage.prepare(jobs=[replace(stage.job, id="a")])
        stage.start("true", "b.t1")
        assert (await stage.outcome("s-b.t1-1")).why == "this instance is not prepared"

    stage.plays(script)


def test_a_program_that_is_not_there_is_refused_and_its_gpus_are_free_again(stage: Stage) -> None:
    async def script() -> None:
        await stage.prepare(**{**SCRIPTED, "script": "/nowhere/program"})
        for attempt in (1, 2):
            stage.start("true", attempt=attempt)
            refused = await stage.outcome(f"s-t1-{attempt}")
            assert refused.why == "No such file or directory: /nowhere/program"
            await until(lambda: not stage.orders.attempts)

    stage.plays(script)
    assert stage.of(Exited) == []


def test_a_stop_gives_the_time_that_it_says_and_one_for_another_is_harmless(stage: Stage) -> None:
    async def script() -> None:
        await stage.prepare(**SCRIPTED)
        for gpu, trial in enumerate(("asked", "killed", "late", "other")):
            stage.start(WAITS, trial, gpu)
            await stage.outcome(f"s-{trial}-1")
        stage.order(Stop("1", "asked", 1, True, 60.0))
        stage.order(Stop("2", "killed", 1, False, 60.0))
        stage.order(Stop("3", "late", 1, True, 60.0, clock.now() - 61))
        stage.order(Stop("4", "other", 2, False, 0.0))
        stage.order(Stop("5", "nobody", 1, False, 0.0))
        assert [(await stage.end(trial)).code for trial in ("asked", "killed", "late")] == [
            0,
            -9,
            -9,
        ]
        assert stage.orders.attempts == ["other/1"]

    stage.plays(script)
    assert {fact.cause for fact in stage.of(Exited)[:3]} == {"asked"}


def test_a_stop_right_behind_its_start_ends_it_before_it_begins(stage: Stage) -> None:
    async def script() -> None:
        await stage.prepare(**SCRIPTED)
        stage.start("sleep 60")
        stage.order(Stop("x", "t1", 1, False, 0.0))
        end = await stage.end()
        assert (end.cause, end.code) == ("asked", None if not end.started else -9)

    stage.plays(script)


def test_all_end_by_the_given_moment(stage: Stage) -> None:
    async def script() -> None:
        await stage.prepare(**SCRIPTED)
        stage.start(WAITS, "t1", 0)
        stage.start("sleep 60", "t2", 1)
        for trial in ("t1", "t2"):
            await stage.outcome(f"s-{trial}-1")
        began = time.monotonic()
        await stage.orders.end_all("lease", clock.now() + 0.5)
        assert stage.orders.attempts == []
        assert 0.4 <= time.monotonic() - began < 30

    stage.plays(script)
    assert {fact.trial: (fact.cause, fact.code) for fact in stage.of(Exited)} == {
        "t1": ("lease", 0),
        "t2": ("lease", -9),
    }


def test_those_that_nobody_holds_are_killed_and_named(stage: Stage) -> None:
    async def script() -> None:
        await stage.prepare(**SCRIPTED)
        for gpu, trial in enumerate(("t1", "t2", "t3")):
            stage.start(WAITS, trial, gpu)
            await stage.outcome(f"s-{trial}-1")
        assert await stage.orders.end_others(["t2/1", "t9/1"]) == ["t1/1", "t3/1"]
        assert await stage.orders.end_others(["t2/1"]) == ["t1/1", "t3/1"], "it may not have come"
        stage.journal.acknowledge(stage.journal.last)
        assert await stage.orders.end_others(["t2/1"]) == []
        await until(lambda: stage.orders.attempts == ["t2/1"])

    stage.plays(script)
    assert {(fact.cause, fact.code) for fact in stage.of(Exited)[:2]} == {("asked", -9)}


def test_those_that_nobody_holds_are_not_waited_for_long(tmp_path: Path) -> None:
    stage = Stage(tmp_path, timings=Timings(others_s=0.0))

    async def script() -> None:
        await stage.prepare(**SCRIPTED)
        stage.start(WAITS)
        await stage.outcome("s-t1-1")
        assert await stage.orders.end_others([]) == ["t1/1"]
        assert stage.orders.attempts == ["t1/1"]
        await stage.end()

    stage.plays(script)


def test_each_is_asked_to_save_and_told_when_training_ends_also_later_ones(stage: Stage) -> None:
    async def script() -> None:
        await stage.prepare(**SCRIPTED)
        stage.start(WAITS, "t1", 0)
        await stage.outcome("s-t1-1")
        stage.orders.save_all()
        assert (stage.attempt("t1") / "save").exists()
        moment = clock.now() + 99
        stage.orders.expect_end(moment)
        stage.start(WAITS, "t2", 1)
        await stage.outcome("s-t2-1")
        for trial in ("t1", "t2"):
            told = json.loads((stage.attempt(trial) / "horizon.json").read_text())
            assert told["ends_since_boot"] == pytest.approx(clock.to_boot(moment), abs=1e-3)
        assert not (stage.attempt("t2") / "save").exists()

    stage.plays(script)


def test_setup_commands_run_once_in_order_and_again_when_they_change(stage: Stage) -> None:
    async def script() -> None:
        first = {"setup": ["echo a >>ran", "echo $A >>ran"], "env": {"A": "b"}}
        for number in range(2):
            assert isinstance(await stage.prepare(f"p{number}", **first), Prepared)
        assert (stage.source / "ran").read_text() == "a\nb\n"
        assert isinstance(await stage.prepare("q", setup=["echo c >>ran; exit 5"]), Refused)
        assert isinstance(await stage.prepare("r", setup=["echo c >>ran; exit 5"]), Refused)
        assert (stage.source / "ran").read_text() == "a\nb\nc\nc\n"

    stage.plays(script)
    assert (stage.folder / "setup.log").exists()
    assert len(list(stage.folder.glob("setup-????????????????.done"))) == 1
    assert len({Path(fact.why.splitlines()[0]) for fact in stage.of(Refused)}) == 1


def test_each_of_several_jobs_is_set_up_in_its_own_source(stage: Stage) -> None:
    def job(name: str, *setup: str) -> Job:
        (stage.source / name).mkdir(exist_ok=True)
        return replace(
            stage.job, id=name, source=str(stage.source / name), setup=list(setup), **SCRIPTED
        )

    async def script() -> None:
        jobs = [job("a", "echo >>ran"), job("b", "echo >>ran")]
        for number in range(2):
            assert isinstance(await stage.prepare(f"p{number}", jobs=jobs), Prepared)
        assert [len((stage.source / name / "ran").read_text()) for name in ("a", "b")] == [1, 1]
        assert list((stage.source / "a").glob(".setup-*.done"))
        refused = await stage.prepare("q", jobs=[*jobs, job("c", "echo oh; exit 5")])
        assert refused.why == "c: setup command 'echo oh; exit 5' ended with exit status 5:\noh"
        stage.start("pwd >where", "b.t1")
        assert (await stage.end("b.t1")).cause == "finished"

    stage.plays(script)


def test_of_a_setup_command_that_fails_the_last_lines_are_told(stage: Stage) -> None:
    async def script() -> None:
        await stage.prepare("p", setup=["echo before"])
        refused = await stage.prepare("q", setup=["seq 30; exit 7"])
        lines = refused.why.splitlines()
        assert lines[0] == "setup command 'seq 30; exit 7' ended with exit status 7:"
        assert lines[1:] == [str(number) for number in range(11, 31)]
        assert refused.unhealthy is False
        refused = await stage.prepare("r", setup=["exit 7"])
        assert refused.why == "setup command 'exit 7' ended with exit status 7"
        refused = await stage.prepare("s", setup=["printf '%4990s|\\n'; exit 7"])
        assert len(refused.why.splitlines()[1]) == 3999

    stage.plays(script)


def test_a_slow_setup_command_is_told_with_its_number(tmp_path: Path) -> None:
    stage = Stage(tmp_path, timings=Timings(setup_s=0.2))

    async def script() -> None:
        began = clock.now()
        await stage.prepare(setup=["true", "sleep 0.5"])
        (told,) = stage.of(Noticed)
        why = "train.setup runs 'sleep 0.5' (command 2 of 2)"
        assert told == Noticed(told.seq, told.at, "cold", None, why)
        assert began <= told.at <= stage.facts[-1].at - 0.4, "since it began"

    stage.plays(script)


def test_a_source_that_is_replaced_during_setup_is_not_prepared(stage: Stage) -> None:
    async def script() -> None:
        away = f"mv {stage.source} {stage.source}.old; mkdir {stage.source}"
        refused = await stage.prepare(setup=[away])
        assert refused.why == "its source was replaced while its setup commands ran"
        assert not list(stage.folder.glob("setup-*.done"))

    stage.plays(script)


def test_a_later_preparation_ends_the_setup_of_the_one_before(stage: Stage) -> None:
    async def script() -> None:
        stage.order(Prepare("p", replace(stage.job, setup=["touch up; exec sleep 60"])))
        await until((stage.source / "up").exists)
        assert isinstance(await stage.prepare("q"), Prepared)
        assert "ended with exit status -9" in (await stage.outcome("p")).why

    stage.plays(script)
    assert [fact.id for fact in stage.facts] == ["p", "q"]


def test_what_a_machine_lacks_makes_it_unhealthy(stage: Stage) -> None:
    async def script() -> None:
        refused = await stage.prepare(expected=Expected(4, 1 << 60, False))
        assert refused.unhealthy is True
        assert "are expected" in refused.why
        free = shutil.disk_usage(stage.folder).free
        assert isinstance(await stage.prepare("q", Expected(4, free // 2, False)), Prepared)

    stage.plays(script)


def test_an_interpreter_that_is_not_there_is_the_jobs_fault(stage: Stage) -> None:
    async def script() -> None:
        refused = await stage.prepare(launcher="python", script="train.py", python="bin/python")
        path = f"{stage.source}/bin/python"
        assert refused.why == f"there is no program {path}, which train.python names"
        assert refused.unhealthy is False

    stage.plays(script)


def test_a_relative_source_is_in_the_agents_folder_and_threads_are_shared_out(
    tmp_path: Path,
) -> None:
    here = Stage(tmp_path).here
    job = replace(Stage(tmp_path).job, source="src", threads=0)
    cores = os.cpu_count() or 1
    for gpus in (1, 2, 1000):
        resolved = replace(here, gpus=gpus).resolved(job, 1)
        assert resolved == replace(
            job, source=str(here.folder / "src"), threads=max(1, cores // gpus)
        )
    assert here.resolved(replace(job, threads=3), 4).threads == 3
    assert replace(here, gpus=1).resolved(job, 2).threads == max(1, cores // 2)
    assert here.machine.folder == here.folder
    assert (here.machine.cuda, here.machine.marker) == (False, f"{RUN}//health")
    places = here.places("t1", 2)
    own = here.folder / "trials" / "t1"
    assert (places.attempt, places.checkpoints) == (own / "2", own / "checkpoints")
    assert (places.library, places.lock) == (here.library, here.folder / "agent.lock")


def test_files_are_filled(stage: Stage) -> None:
    (stage.source / "model.yaml").write_text("lr: {lr}, gpus: {gpus}, {other}\n")

    async def script() -> None:
        await stage.prepare(**{**SCRIPTED, "names": ["script", "lr"], "fill": ["model.yaml"]})
        stage.start("cp model.yaml seen", "t1", 0, 1, config={"lr": 0.25})
        await stage.end()

    stage.plays(script)
    work = stage.attempt() / "work"
    assert (work / "seen").read_text() == "lr: 0.25, gpus: 2, {other}\n"


def test_presigned_urls_reach_the_attempt_that_they_are_for(stage: Stage) -> None:
    async def script() -> None:
        slot = Slot("1", "http://127.0.0.1:1/d", "http://127.0.0.1:1/m")
        stage.orders.hand(Grant("t1", 1, [slot], []))
        urls = stage.orders._urls.of("t1", 1)
        assert urls.place() == slot
        assert stage.orders._urls.of("t2", 1).place() is None
        assert stage.orders.asks == []

    stage.plays(script)


@pytest.mark.parametrize(
    ("visible", "names"), [("", ["0", "1", "2", "3"]), ("7, GPU-a,5,9", ["7", "GPU-a", "5", "9"])]
)
def test_gpus_are_called_as_the_agents_own_environment_calls_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, names: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    stage = Stage(tmp_path, cuda=True)

    async def script() -> None:
        assert stage.orders.devices == names
        shares = stage.orders.by_number([0.1, None, 0.3, 0.4])
        assert shares == [0.1, None, 0.3, 0.4]
        assert stage.orders.by_number([0.1]) == [0.1, None, None, None]

    stage.plays(script)


def test_the_memory_of_a_gpu_is_that_of_the_attempt_that_has_it_alone(stage: Stage) -> None:
    def order(trial: str, *slots: int) -> None:
        config = {"script": WAITS}
        stage.order(Start(f"s-{trial}", trial, 1, list(slots), config, 17, [], parts=2))

    def see(*used: int) -> None:
        stage.orders.see_memory([GpuMemory(some, 8000) for some in used])

    async def script() -> None:
        stage.order(Prepare("p", replace(stage.job, **SCRIPTED), parts=2))  # type: ignore[arg-type]
        await stage.outcome("p")
        see(100, 300)
        see(500, 900)  # for a moment, by another program
        order("alone", 2, 3)
        order("beside", 0)
        order("leaves", 1)
        for trial in ("alone", "beside", "leaves"):
            await stage.outcome(f"s-{trial}")
        see(7000, 1300)
        see(7000, 1200)
        stage.order(Stop("x", "leaves", 1, True, 60.0))
        assert (await stage.end("leaves")).memory == []
        see(1100, 400)
        for trial in ("alone", "beside"):
            stage.order(Stop(f"x-{trial}", trial, 1, True, 60.0))
        assert (await stage.end("alone")).memory == [1000, 8000]
        assert (await stage.end("beside")).memory == [1000, 8000], "of the time after its neighbour"

    stage.plays(script)


def test_gpus_that_are_shared_come_with_the_run_and_go_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEERD_GPU_LEASES", str(tmp_path / "leases"))
    stage = Stage(tmp_path, weight=2.0, gpus=2)

    async def script() -> None:
        await stage.orders.come()
        registered = [path for path in (tmp_path / "leases").iterdir() if "run-" in path.name]
        told = json.loads(registered[0].read_text())
        assert (told["run"], told["weight"], told["most"]) == (RUN, 2.0, 2)
        assert told["since"] == pytest.approx(time.time(), abs=30)
        await stage.prepare(**{**SCRIPTED, "allocations": [2, 4]})
        stage.start(WAITS, "t1", 0, 1)
        await stage.outcome("s-t1-1")
        told = json.loads(registered[0].read_text())
        assert told["least"] == 2
        assert [use[0] for use in told["uses"].values()] == ["t1/1", "t1/1"]
        stage.order(Stop("x", "t1", 1, False, 0.0))
        await stage.end()

    stage.plays(script)

    folder = LeaseFolder(str(tmp_path / "leases"))
    assert folder.runs() == [], "nothing of this machine is used any more"
    folder.close()

    async def again() -> None:
        await stage.orders.come()
        registered = [path for path in (tmp_path / "leases").iterdir() if "run-" in path.name]
        assert {json.loads(path.read_text())["least"] for path in registered} == {2}

    stage.plays(again)


def test_mig_devices_are_gpus_by_their_uuid_and_used_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEERD_GPU_LEASES", str(tmp_path / "leases"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    tools = tmp_path / "tools"
    tools.mkdir()
    lines = [
        "GPU 0: A100 (UUID: GPU-a1)",
        *(f"  MIG 3g.20gb Device {n}: (UUID: MIG-{n})" for n in (4, 5)),
    ]
    listing = "".join(f"echo '{line}'\n" for line in lines)
    cards = "echo 0, GPU-a1, 3, A100, 40960, 550.1"
    (tools / "nvidia-smi").write_text(
        f"#!/bin/sh\ncase $1 in -L) {listing};; *gpu=*) {cards};; esac\n"
    )
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    stage = Stage(tmp_path, weight=1.0, gpus=2, cuda=True)

    async def script() -> None:
        await stage.orders.come()
        assert stage.orders.devices == ["MIG-4", "MIG-5"]
        await stage.prepare("p", Expected(2, 0, torch=False), **SCRIPTED)
        stage.start(WAITS, "t1", 0, 1)
        refused = await stage.outcome("s-t1-1")
        assert refused.why.startswith("a trial can use one MIG device only")
        stage.start("echo $CUDA_VISIBLE_DEVICES >$SEERD_DIR/gpu", "t2", 1)
        assert (await stage.end("t2")).cause == "finished"
        assert (stage.attempt("t2") / "gpu").read_text() == "MIG-5\n"

    stage.plays(script)


def test_when_all_is_killed_nothing_is_left_however_it_hides(stage: Stage) -> None:
    async def script() -> None:
        await stage.prepare(**SCRIPTED)
        hides = "setsid env -i sleep 60 & echo $! >$SEERD_DIR/hidden; sleep 60"
        stage.start(hides)
        hidden = stage.attempt() / "hidden"
        await until(lambda: hidden.exists() and hidden.read_text())
        members = stage.orders._attempts["t1/1"].members()
        assert int(hidden.read_text()) in members
        other = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
        await asyncio.to_thread(stage.orders.kill_all)
        assert not any(map(host.is_there, [*members, other.pid]))

    # A fork has no children but its own.
    assert status_of(forked(lambda: stage.plays(script))) == 0


def test_the_attempt_that_fills_the_table_of_processes_is_ended_and_later_ones_too(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, timings=Timings(crowded_s=0.1))
    many = "for i in 1 2 3 4; do sleep 60 & done; touch $SEERD_DIR/up; wait"

    async def script() -> None:
        await stage.prepare(**SCRIPTED)
        stage.orders._crowding = Crowding([ProcessTable("pids", 8, lambda: 8)])
        for trial in ("t1", "t2"):
            stage.start(many, trial, 0)
            stage.start(WAITS, "few", 1, attempt=int(trial[1]))
            end = await stage.end(trial)
            assert (end.cause, end.code) == ("crashed", None)
            assert end.tail[0].startswith("it had ")
            assert "of the 8 that pids allows" in end.tail[0]
            stage.order(Stop(f"x{trial}", "few", int(trial[1]), True, 60.0))
            assert (await stage.end("few", int(trial[1]))).cause == "asked"

    stage.plays(script)


def test_data_that_cannot_be_fetched_is_refused_and_nothing_is_set_up(stage: Stage) -> None:
    async def script() -> None:
        item = Download("ftp://nowhere/x", "data/x", 3)
        stage.orders.hand(Downloads(True, [item]))
        refused = await stage.prepare(setup=["touch ran"])
        assert refused.why.startswith("data for data/x cannot be fetched: ")
        assert refused.unhealthy is False
        assert not (stage.source / "ran").exists()

    stage.plays(script)


def test_moments_of_ends_are_kept_as_they_are(stage: Stage) -> None:
    async def script() -> None:
        stage.orders.expect_end(None)
        assert stage.orders._ends_at is None
        stage.orders.expect_end(math.inf)
        assert stage.orders._ends_at == math.inf

    stage.plays(script)
