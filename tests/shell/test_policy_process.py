"""The policy beside the daemon, with real processes: the same answers, and nothing that it does
hurts the daemon.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from bench.testbed.policy_world import problem
from seerd.core.asking import Answer, Asking
from seerd.core.plans import Order, PlanChange
from seerd.core.state import Trial, TrialPhase
from seerd.errors import PolicyError
from seerd.planner.memory import Memory
from seerd.planner.model import Report, View
from seerd.shell import policy
from seerd.shell.policy import PolicyProcess
from seerd.shell.policy_main import SPARE_S, Anew, Answered, Opening, Question, frame
from tests.shell import policies

MOODY = "tests.shell.policies:moody"
PROBLEM = problem()


class Run:
    """What the core has of a run: trials, the policy's memory, the plan; and the process that is
    asked.
    """

    def __init__(self) -> None:
        self.process = PolicyProcess(PROBLEM, 60.0, plan=MOODY)
        self.trials: dict[str, Trial] = {}
        self.memory = Memory()
        self.order = Order()
        self.questions = 0

    def view(self, now_s: float = 0.0) -> View:
        return View(now_s, "max", self.trials)

    def note(self, now_s: float = 0.0) -> None:
        self.questions += 1
        self.process.note(str(self.questions), self.view(now_s), self.memory.values, self.order)

    async def ask(self, now_s: float = 0.0) -> Answer:
        self.note(now_s)
        return await self.process.answer()

    def adopt(self, answer: Answer) -> None:
        self.order.apply(answer.plan)
        self.memory = self.memory.after(answer.memory)
        for new in answer.plan.new:
            self.trials[new.trial] = Trial(new.trial, new.config, 0)

    def here(self, now_s: float = 0.0) -> Answer:
        """The same question, asked in this process."""
        order = Order(self.order)
        return Asking(PROBLEM, self.memory.values, order, plan=policies.moody).ask(self.view(now_s))


def play(run: Run, scenario: Coroutine[Any, Any, None]) -> None:
    """Whatever came of it, no process is left."""

    async def closed() -> None:
        try:
            await scenario
        finally:
            await run.process.close()

    asyncio.run(closed())
    assert run.process.pid is None
    assert not [
        child
        for child in psutil.Process().children()
        if not is_gone(child.pid)
        if "policy_main" in " ".join(child.cmdline() or "?")
    ]


def is_gone(pid: int) -> bool:
    """Ended; a zombie of somebody else's is."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def change(run: Run, rng: random.Random) -> None:
    """What happens to trials between two questions."""
    for trial in rng.sample(list(run.trials.values()), min(3, len(run.trials))):
        for _ in range(rng.randrange(4)):
            metric = rng.choice([None, rng.random()])
            trial.history.append(Report(rng.random(), trial.reports + rng.randint(1, 2), metric))
        if trial.history and rng.random() < 0.3:
            del trial.history[rng.randrange(len(trial.history)) :]
        if trial.history and rng.random() < 0.3:
            place = rng.randrange(len(trial.history))
            trial.history.insert(place, Report(rng.random(), trial.history[place].reports, 0.5))
        if trial.history and rng.random() < 0.2:
            trial.history.append(Report(rng.random(), trial.reports + 1, 0.25))
        if rng.random() < 0.05:
            trial.phase = TrialPhase.FAILED


@pytest.mark.parametrize("seed", range(4))
def test_it_answers_as_if_it_were_asked_here(seed: int) -> None:
    """Whatever has happened between questions, and whether answers are adopted or not."""
    run, rng = Run(), random.Random(seed)

    async def scenario() -> None:
        for number in range(60):
            change(run, rng)
            expected = run.here(100.0 + number)
            run.note(100.0 + number)
            answer = await run.process.answer()
            assert answer == expected
            if rng.random() < 0.1:
                run.process.forget()
            else:
                run.adopt(answer)
        assert run.memory.values["asked"] > 40

    play(run, scenario())


def test_a_question_is_what_was_so_when_it_was_noted() -> None:
    run = Run()

    async def scenario() -> None:
        for _ in range(3):
            run.adopt(await run.ask())
        trial = run.trials["t0001"]
        trial.history = [Report(1.0, 1, 0.5), Report(2.0, 2, 0.6)]
        expected = run.here(50.0)
        run.note(50.0)
        trial.history.append(Report(3.0, 3, 0.7))
        trial.history[0] = Report(9.0, 1, 0.9)
        trial.phase = TrialPhase.FAILED
        run.trials["t0009"] = Trial("t0009", {}, 0)
        run.memory = run.memory.after({"asked": 1000})
        run.order = Order()
        assert await run.process.answer() == expected

    play(run, scenario())


def test_history_that_was_taken_back_and_made_anew_arrives_as_it_is() -> None:
    run = Run()

    async def scenario() -> None:
        run.adopt(await run.ask())
        trial = run.trials["t0000"]
        trial.history = [Report(float(n), n, n / 10) for n in range(1, 6)]
        run.adopt(await run.ask(50.0))
        del trial.history[2:]
        trial.history += [Report(20.0 + n, n, n / 20) for n in range(3, 6)]
        assert len(trial.history) == 5
        expected = run.here(60.0)
        run.note(60.0)
        assert await run.process.answer() == expected

    play(run, scenario())


@pytest.mark.parametrize("mood", [policies.SLEEPS, policies.STUBBORN])
def test_one_that_does_not_answer_in_time_is_killed(mood: int) -> None:
    run = Run()
    run.process = PolicyProcess(PROBLEM, 20.0, plan=MOODY)

    async def scenario() -> None:
        run.adopt(await run.ask())
        first = run.process.pid
        opening = run.process._opening
        run.process._opening = msgspec.structs.replace(opening, limit_s=0.5)
        with pytest.raises(PolicyError, match=r"^the policy gave no answer in 0.5 s$"):
            await asyncio.wait_for(run.ask(mood), 30)
        assert run.process.pid is None, "at once, not only when it is asked again"
        run.process._opening = opening
        expected = run.here()
        assert await run.ask() == expected
        assert run.process.pid != first
        await asyncio.wait_for(run.process.close(), 10)
        assert first is not None
        assert not psutil.pid_exists(first)

    play(run, scenario())


@pytest.mark.parametrize(
    ("mood", "told"),
    [
        (policies.KILLS_ITSELF, r"^the policy's process was killed by signal 9$"),
        (policies.EXITS, r"^the policy's process has ended with code 3$"),
        (policies.BABBLES, r"^the policy's answer cannot be read: "),
    ],
)
def test_one_that_ends_or_babbles_is_begun_anew(mood: int, told: str) -> None:
    run = Run()

    async def scenario() -> None:
        run.adopt(await run.ask())
        first = run.process.pid
        with pytest.raises(PolicyError, match=told):
            await run.ask(mood)
        expected = run.here()
        assert await run.ask() == expected
        assert run.process.pid not in {None, first}

    play(run, scenario())


def test_one_that_raises_says_what_and_where_and_lives_on() -> None:
    run = Run()

    async def scenario() -> None:
        run.adopt(await run.ask())
        first = run.process.pid
        run.trials["t0000"].history.append(Report(1.0, 1, 0.5))
        told = (
            r"^the policy has failed: ArithmeticError: it does not add up "
            r"\(shell/policies.py, line \d+\)$"
        )
        with pytest.raises(PolicyError, match=told):
            await run.ask(policies.RAISES)
        expected = run.here()
        run.note(0.0)
        assert await run.process.answer() == expected
        assert run.process.pid == first

    play(run, scenario())


def test_what_it_prints_and_reads_is_no_part_of_what_is_said() -> None:
    run = Run()

    async def scenario() -> None:
        expected = run.here(0.0)
        assert await run.ask() == expected
        answer = await run.ask(policies.PRINTS)
        assert answer.plan.note.endswith("(5.0, 'max', [])")

    play(run, scenario())


def test_a_long_answer_arrives_and_one_that_is_too_long_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run()

    async def scenario() -> None:
        answer = await run.ask(policies.FILLS)
        assert len(answer.memory["filler"]) == policies.FILLED
        monkeypatch.setattr(policy.wire, "MOST_BYTES", policies.FILLED)
        with pytest.raises(
            PolicyError, match=r"^the policy's answer has \d+ bytes, more than 1048576$"
        ):
            await run.ask(policies.FILLS)
        run.adopt(await run.ask())

    play(run, scenario())


def test_interrupts_are_the_daemons() -> None:
    run = Run()

    async def scenario() -> None:
        run.adopt(await run.ask())
        first = run.process.pid
        assert first is not None
        assert os.getpgid(first) == os.getsid(first) == first
        os.killpg(first, signal.SIGINT)
        run.adopt(await run.ask())
        assert run.process.pid == first

    play(run, scenario())


def test_one_that_has_died_unasked_is_not_asked() -> None:
    run = Run()

    async def scenario() -> None:
        run.adopt(await run.ask())
        child = run.process._child
        assert child is not None
        os.kill(child.pid, signal.SIGKILL)
        await child.gone()
        expected = run.here()
        assert await run.ask() == expected

    play(run, scenario())


def test_the_process_can_be_begun_early() -> None:
    run = Run()

    async def scenario() -> None:
        run.process.start()
        child = run.process._child
        assert child is not None
        await child._started.wait()
        first = run.process.pid
        run.process.start()
        expected = run.here()
        assert await run.ask() == expected
        assert run.process.pid == first

    play(run, scenario())


def test_one_that_cannot_be_started_is_an_error_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run()

    async def scenario() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", "/nowhere/python")
            run.process.start()
            with pytest.raises(
                PolicyError, match=r"^the policy's process could not be started: .*No such file"
            ):
                await run.ask()
        expected = run.here()
        assert await run.ask() == expected

    play(run, scenario())


def test_a_question_replaces_one_that_was_not_answered(tmp_path: Path) -> None:
    """Not sent, being thought about, or given up."""
    run = Run()

    async def scenario() -> None:
        run.note(policies.SLEEPS)
        run.adopt(await run.ask())
        await thinking(run, tmp_path)
        expected = run.here()
        assert await run.ask() == expected
        task = await thinking(run, tmp_path)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await run.ask() == expected

    play(run, scenario())


async def thinking(run: Run, folder: Path, mood: int = policies.TELLS) -> asyncio.Task[Answer]:
    """The answer to a question about which the policy is surely thinking, for ever."""
    pipe = folder / f"pipe{run.questions}"
    os.mkfifo(pipe)
    run.process.forget()
    run.process.note("?", run.view(mood), {**run.memory.values, "pipe": str(pipe)}, run.order)
    task = asyncio.create_task(run.process.answer())
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    run.told = await asyncio.to_thread(pipe.read_text)
    return task


def test_a_late_answer_of_a_process_that_was_given_up_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, gate = Run(), asyncio.Event()

    async def late(child: Any, question: str, data: bytes) -> Answered:
        await gate.wait()
        return Answered(question, Answer(PlanChange(), {}))

    async def scenario() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(run.process, "_reply", late)
            asked = asyncio.create_task(run.ask())
            await asyncio.sleep(0)
        run.note()
        gate.set()
        with pytest.raises(PolicyError, match="was given up"):
            await asked
        expected = run.here()
        assert await run.process.answer() == expected

    play(run, scenario())


def test_nothing_asked_is_not_answered() -> None:
    run = Run()

    async def scenario() -> None:
        with pytest.raises(PolicyError, match="asked nothing"):
            await run.process.answer()

    play(run, scenario())


def test_it_can_be_closed_at_any_time(tmp_path: Path) -> None:
    run = Run()

    async def scenario() -> None:
        await run.process.close()
        run.process.start()
        await run.process.close()
        run.process.start()
        await asyncio.sleep(0)
        await run.process.close()
        run.note()
        await run.process.close()
        asked = asyncio.create_task(run.ask())
        await asyncio.sleep(0)
        await run.process.close()
        with pytest.raises(PolicyError, match="was killed by signal 9"):
            await asked
        task = await thinking(run, tmp_path)
        await run.process.close()
        with pytest.raises(PolicyError, match="was killed by signal 9"):
            await task
        await run.process.close()

    play(run, scenario())


def test_a_close_that_is_cancelled_has_killed_it(tmp_path: Path) -> None:
    run = Run()

    async def scenario() -> None:
        await thinking(run, tmp_path)
        child = run.process._child
        closing = asyncio.create_task(run.process.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert child is not None
        await child.gone()

    play(run, scenario())


def test_what_it_has_started_ends_with_it(tmp_path: Path) -> None:
    run = Run()

    async def scenario() -> None:
        await thinking(run, tmp_path, policies.HAS_CHILD)
        grandchild = psutil.Process(int(run.told))
        await run.process.close()
        assert is_gone(grandchild.pid) or grandchild.wait(10) is None

    play(run, scenario())


DAEMON = """
import asyncio, sys
from seerd.planner.model import View
from seerd.core.plans import Order
from seerd.shell.policy import PolicyProcess
from bench.testbed.policy_world import problem

async def main():
    process = PolicyProcess(problem(), 60.0, plan="tests.shell.policies:moody")
    process.note("1", View(0.0, "max", {}), {}, Order())
    await process.answer()
    process.forget()
    process.note("2", View(float(sys.argv[1]), "max", {}), {"pipe": sys.argv[2]}, Order())
    await process.answer()
    with open(sys.argv[2], "w") as pipe:
        pipe.write(str(process.pid))
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.parametrize("mood", [0, policies.TELLS], ids=["idle", "thinking"])
def test_it_ends_when_the_daemon_is_killed(tmp_path: Path, mood: int) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(
        [sys.executable, "-c", DAEMON, str(mood), str(pipe)], cwd=Path.cwd()
    ) as daemon:
        child = psutil.Process(int(pipe.read_text()))
        daemon.kill()
    assert is_gone(child.pid) or child.wait(5) is None


def test_the_system_ends_one_that_nobody_ends() -> None:
    opening = Opening(PROBLEM, 0.1 - SPARE_S, MOODY)
    question = Question("1", policies.SLEEPS, "max", [], Anew({}, ()))
    command = [sys.executable, "-m", "seerd.shell.policy_main"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.write(frame(opening) + frame(question))
        child.stdin.flush()
        assert child.wait(30) == -signal.SIGALRM


@pytest.mark.parametrize("said", [b"", b"\0", b"\0\0\0\7half", frame(Opening(PROBLEM, 1.0, MOODY))])
def test_it_ends_with_its_input(said: bytes) -> None:
    command = [sys.executable, "-m", "seerd.shell.policy_main"]
    ended = subprocess.run(command, input=said, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_it_begins_with_little() -> None:
    """No event loop and no numbers: its start would take several times as long."""
    script = (
        "import sys, seerd.shell.policy_main; print([n for n in ('asyncio', 'numpy', "
        "'scipy') if n in sys.modules])"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "[]"


def test_another_problem_is_another_process_and_the_open_question_has_no_answer() -> None:
    """As when limits are extended while the policy thinks."""
    from dataclasses import replace

    from seerd.core.asking import outlined
    from tests.conftest import small_facts

    facts = outlined(small_facts())
    other = replace(facts.problem, params=replace(facts.problem.params, seed=99))

    async def work() -> tuple[Answer, Answer]:
        process = PolicyProcess(facts.problem, 60.0)
        try:
            process.note("1", View(0.0, "max", {}), {}, Order())
            before = await process.answer()
            process.note("2", View(1.0, "max", {}), {}, Order())
            waiting = asyncio.create_task(process.answer())
            await asyncio.sleep(0)
            process.change(other)
            process.note("3", View(1.0, "max", {}), {}, Order())
            after = await process.answer()
            with pytest.raises(PolicyError):
                await waiting
            return before, after
        finally:
            await process.close()

    before, after = asyncio.run(work())
    assert [one.config for one in before.plan.new] != [one.config for one in after.plan.new]
    assert after == Asking(other, {}, Order()).ask(View(1.0, "max", {}))
