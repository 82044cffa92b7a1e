"""What the agent decides of its warm process, by itself: beside a process that speaks its part of
the conversation (`agent/warm/server.py`) and imports nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from seerd.agent import host, warm_starts
from seerd.agent.launch import LaunchPlan, WarmPlan
from seerd.agent.warm_starts import ColdError, ForkedProcess, WarmStarts, can_fork
from tests.agent.waiting import until, until_reaped

pytestmark = [
    pytest.mark.skipif(not can_fork(), reason="warm starts are for Linux"),
    pytest.mark.usefixtures("adopts"),
]

MARK = f"warmth-{os.getpid()}//warm-"
PEER = """
import json, os, socket, sys, time

control = socket.socket(fileno=int(sys.argv[1]))
rules = json.loads(os.environ["RULES"])

def note(**what):
    with open(rules["log"], "a") as log:
        log.write(json.dumps({"pid": os.getpid(), "mark": mark, **what}) + "\\n")

def say(answer):
    control.sendall(answer if isinstance(answer, bytes) else json.dumps(answer).encode() + b"\\n")

mark = os.environ["SEERD_ATTEMPT"].rstrip("\\n")
note(padding=os.environ["SEERD_ATTEMPT"].count("\\n"), cwd=os.getcwd(), agent=int(sys.argv[2]),
     padded=len(sys.argv[3]), leads=os.getsid(0) == os.getpid())
while True:
    line = b""
    while not line.endswith(b"\\n"):
        part = control.recv(1 << 16)
        if not part:
            sys.exit()
        line += part
    request = json.loads(line)
    note(**request)
    if "preload" in request:
        acts = next((rules[name] for name in request["preload"] if name in rules), {})
        while acts.get("waits") and os.path.exists(acts["waits"]):
            time.sleep(0.01)
        if acts.get("dies"):
            sys.exit(3)
        if "says" in acts:
            say(acts["says"].encode() * acts.get("times", 1))
            continue
        say({"asked": rules["asked"], "made": rules["made"], "odd": acts.get("odd", [])})
    elif rules["refuses"]:
        say({"failed": rules["refuses"]})
    else:
        def run():
            os.execve(request["argv"][0], request["argv"], request["env"])
        reading, writing = os.pipe()
        middle = os.fork()
        if not middle:
            child = os.fork()
            if not child:
                control.close()
                os.setsid()
                run()
            os.write(writing, str(child).encode())
            os._exit(0)
        os.waitpid(middle, 0)
        pid = int(os.read(reading, 20))
        if rules["dies_at_fork"]:
            note(child=pid)
            os._exit(4)
        say({"pid": pid})
"""


class Stage:
    """A place for warm starts of this script. `notes` is what was said of them, `asked` what their
    processes were asked.
    """

    def __init__(self, folder: Path, script: str = "") -> None:
        self.folder = folder
        self.notes: list[str] = []
        self.told = folder / "modules.json"
        self._log = folder / "asked"
        self._log.touch()
        self.rules: dict[str, Any] = {"log": str(self._log), "asked": [], "made": []}
        self.rules |= {"refuses": "", "dies_at_fork": False}
        (folder / "source").mkdir()
        (folder / "source" / "train.py").write_text(script)
        (folder / "peer.py").write_text(PEER)
        python = folder / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} -IS "$@"\n')
        python.chmod(0o700)
        self.warm = WarmStarts(MARK, folder, self.notes.append)

    def plan(self, *modules: str, learns: bool = False) -> WarmPlan:
        env = {"RULES": json.dumps(self.rules), "PATH": os.environ["PATH"]}
        source = str(self.folder / "source")
        python, peer = str(self.folder / "python"), str(self.folder / "peer.py")
        return WarmPlan(python, peer, env, source, "train.py", list(modules), learns)

    def attempt(self, script: str = "exit 7") -> LaunchPlan:
        env = {"PATH": os.environ["PATH"], host.MARKER: f"{MARK}attempt"}
        command = ["/bin/sh", "-c", script]
        return LaunchPlan(command, env, "/", self.folder / "launcher.log", {})

    async def start(self, script: str = "exit 7") -> ForkedProcess | None:
        return await self.warm.start(self.attempt(script), asyncio.Event())

    async def ended(self, pid: int) -> bool:
        """Wait for the end of a process; false if that does not come."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(until(lambda: not host.is_there(pid)), 10)
        return not host.is_there(pid)

    @property
    def asked(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    @property
    def imported(self) -> list[tuple[str, list[str]]]:
        """The names that each process, by its mark, was asked to import."""
        rows = [row for row in self.asked if "preload" in row]
        return [(row["mark"].rpartition("-")[2], row["preload"]) for row in rows if row["preload"]]

    def plays(self, script: Callable[[], Awaitable[None]]) -> None:
        """Have this happen, and then be over."""

        async def closing() -> None:
            try:
                await script()
            finally:
                self.warm.close()
                await asyncio.to_thread(host.kill, lambda: host.each_marked_with(MARK), set[int]())
                await until_reaped()

        asyncio.run(asyncio.wait_for(closing(), 60))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_an_attempt_is_forked_from_a_process_that_has_imported_what_the_plan_names(
    stage: Stage,
) -> None:
    async def script() -> None:
        await stage.warm.ready(stage.plan("a", "b.c"))
        process = await stage.start("echo $0 >forked; exit 7")
        assert process is not None
        assert process.returncode is None
        assert await process.wait() == 7
        assert process.returncode == 7

    stage.plays(script)
    begun, preload, fork, *_ = stage.asked
    where = {"mark": f"{MARK}1", "cwd": str(stage.folder), "agent": os.getpid(), "leads": True}
    assert begun == {"pid": begun["pid"], **where, "padding": 65536, "padded": 4096}
    source = str(stage.folder / "source")
    assert (preload["preload"], preload["beside"]) == (["a", "b.c"], source)
    plan = stage.attempt("echo $0 >forked; exit 7")
    assert (fork["argv"], fork["env"], fork["cwd"]) == (plan.argv, plan.env, plan.cwd)
    assert (fork["log"], fork["beside"]) == (str(plan.log), source)
    assert (stage.folder / "warm.log").exists()
    assert stage.notes == []
    assert not host.is_there(begun["pid"])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_signal_that_ends_a_fork_is_its_exit_status(stage: Stage, number: int) -> None:
    async def script() -> None:
        await stage.warm.ready(stage.plan())
        process = await stage.start(f"kill -{int(number)} $$")
        assert process is not None
        assert await process.wait() == -number

    stage.plays(script)


def test_a_fork_that_somebody_else_has_waited_for_counts_as_failed(stage: Stage) -> None:
    child = os.posix_spawn("/bin/sh", ["sh", "-c", "read line"], {})

    async def script() -> None:
        process = ForkedProcess(child)
        waited()
        assert await process.wait() == 255

    def waited() -> None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    stage.plays(script)


def test_without_a_plan_every_start_is_cold(stage: Stage) -> None:
    async def script() -> None:
        await stage.warm.ready(None)
        assert await stage.start() is None
        assert not stage.warm.learns

    stage.plays(script)
    assert (stage.asked, stage.notes) == ([], [])


def test_a_process_stays_while_the_plan_does_and_ends_with_it(stage: Stage) -> None:
    async def script() -> None:
        for _ in range(2):
            await stage.warm.ready(stage.plan("a"))
        assert stage.imported == [("1", ["a"])]
        before = stage.asked[0]["pid"]
        await stage.warm.ready(stage.plan("b"))
        assert stage.imported == [("1", ["a"]), ("2", ["b"])]
        assert await stage.ended(before)
        await stage.warm.ready(None)
        assert await stage.ended(stage.asked[-1]["pid"])

    stage.plays(script)
    assert stage.notes == []


def test_what_the_scripts_text_imports_is_imported_after_what_the_plan_names(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, "import one\nfrom two import part\nimport a\n")

    async def script() -> None:
        await stage.warm.ready(stage.plan("a", learns=True))
        assert stage.warm.learns
        assert await stage.start() is not None

    stage.plays(script)
    assert stage.imported == [("1", ["a"]), ("1", ["one", "two", "two.part", "a"])]
    assert stage.notes == []


def learned(stage: Stage, *modules: str, changed: tuple[str, ...] = ()) -> Path:
    stage.told.write_text(json.dumps({"modules": modules, "changed": changed}))
    return stage.told


def test_what_the_first_attempt_has_imported_is_imported_too(stage: Stage) -> None:
    async def script() -> None:
        await stage.warm.ready(stage.plan("a", learns=True))
        await stage.warm.learn(learned(stage, "__main__", "deep", "__mp_main__"))
        assert not stage.warm.learns
        await stage.warm.learn(learned(stage, "ignored"))

    stage.plays(script)
    assert stage.imported == [("1", ["a"]), ("1", ["deep"])]
    assert stage.notes == []


def test_nothing_is_learned_for_a_plan_that_names_all_itself(stage: Stage) -> None:
    async def script() -> None:
        await stage.warm.ready(stage.plan("a"))
        assert not stage.warm.learns
        await stage.warm.learn(learned(stage, "deep"))

    stage.plays(script)
    assert stage.imported == [("1", ["a"])]


OFF = "trials start without anything imported beforehand: "


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"modules": 3, "changed": []}', '{"modules": []}']
)
def test_what_cannot_be_learned_turns_warm_starts_off(stage: Stage, text: str) -> None:
    async def script() -> None:
        await stage.warm.ready(stage.plan("a", learns=True))
        stage.told.write_text(text)
        await stage.warm.learn(stage.told)
        assert await stage.start() is None
        assert await stage.ended(stage.asked[0]["pid"])
        await stage.warm.learn(stage.told)

    stage.plays(script)
    (note,) = stage.notes
    assert note.startswith(f"{OFF}what trials import is not known (")
    assert len(note) <= len(OFF) + 33 + 80


@pytest.mark.parametrize(
    ("name", "asked", "made", "is_late"),
    [
        ("OMP_NUM_THREADS", [], [], True),
        ("OPENBLAS_X", [], [], True),
        ("OMP_NUM_THREADS", [], ["OMP_NUM_THREADS"], False),
        ("HF_HOME", ["HF_HOME"], [], True),
        ("HF_HOME", ["HOME"], [], False),
        ("HF_HOME", ["HF_HOME"], ["HF_HOME"], False),
    ],
)
def test_a_variable_that_is_set_too_late_turns_them_off(
    stage: Stage, name: str, asked: list[str], made: list[str], *, is_late: bool
) -> None:
    stage.rules |= {"asked": asked, "made": made}

    async def script() -> None:
        await stage.warm.ready(stage.plan(learns=True))
        await stage.warm.learn(learned(stage, "deep", changed=("ZZZ", name)))
        assert (await stage.start() is None) == is_late

    stage.plays(script)
    why = f"{OFF}the script sets {name}, which is read by what it imports"
    assert stage.notes == ([why] if is_late else [])


def test_a_script_that_sets_variables_first_starts_cold_until_it_is_known_what_it_imports(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, "import os\nos.environ['A'] = '1'\nimport one\n")

    async def script() -> None:
        await stage.warm.ready(stage.plan(learns=True))
        assert await stage.start() is None
        assert stage.imported == []
        await stage.warm.learn(learned(stage, "one", changed=("A",)))
        assert await stage.start() is not None

    stage.plays(script)
    assert stage.imported == [("1", ["one"])]


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        ("import os\nos.environ['A'] = '1'\nimport b\n", True),
        ("import os\nos.putenv('A', '1')\nimport b\n", True),
        ("import os\nimport b\nos.environ['A'] = '1'\n", False),
        ("import os\nos.environ['A'] = '1'\n", False),
        ("os.environ['A'] = '1'\n", False),
        ("", False),
    ],
)
def test_only_variables_that_are_set_before_an_import_matter(
    tmp_path: Path, text: str, *, sets: bool
) -> None:
    (tmp_path / "train.py").write_text(text)
    assert warm_starts._sets_variables(tmp_path / "train.py") is sets


def test_what_is_left_to_trials_is_noted_once(stage: Stage) -> None:
    stage.rules |= {"bad": {"odd": ["bad is odd"]}, "deep": {"odd": ["bad is odd", "deep too"]}}

    async def script() -> None:
        await stage.warm.ready(stage.plan("bad", "good", learns=True))
        assert await stage.start() is not None
        await stage.warm.learn(learned(stage, "deep"))
        assert await stage.start() is not None

    stage.plays(script)
    assert stage.notes == ["bad is odd", "deep too"]


@pytest.mark.parametrize(
    "acts",
    [{"dies": True}, {"says": "[1]\n"}, {"says": "no JSON\n"}],
    ids=["dies", "a list", "no JSON"],
)
def test_a_process_that_fails_three_times_is_not_begun_again(
    stage: Stage, acts: dict[str, Any]
) -> None:
    stage.rules["a"] = acts

    async def script() -> None:
        await stage.warm.ready(stage.plan("a"))
        assert await stage.start() is None
        assert await stage.start() is None

    stage.plays(script)
    assert [mark for mark, _ in stage.imported] == ["1", "2", "3"]
    log = stage.folder / "warm.log"
    failed = f"the process that imports beforehand has failed, see {log}"
    assert stage.notes == [OFF + ("it answered [1]" if "[1]" in str(acts) else failed)]


def test_a_process_that_cannot_be_started_is_tried_three_times(stage: Stage) -> None:
    (stage.folder / "python").unlink()

    async def script() -> None:
        await stage.warm.ready(stage.plan("a"))
        assert await stage.start() is None

    stage.plays(script)
    assert stage.notes == [f"{OFF}[Errno 2] No such file or directory: '{stage.folder}/python'"]


def test_imports_that_take_too_long_are_given_up(stage: Stage) -> None:
    stage.warm = WarmStarts(MARK, stage.folder, stage.notes.append, imports_s=0.4)
    stage.rules["a"] = {"waits": str(stage.folder)}

    async def script() -> None:
        await stage.warm.ready(stage.plan("a"))
        assert await stage.start() is None
        await until(lambda: not list(host.each_marked_with(MARK)))

    stage.plays(script)
    assert stage.notes == [f"{OFF}importing took longer than 0 s"]


def test_a_start_that_is_refused_is_cold_and_told_once(stage: Stage) -> None:
    stage.rules["refuses"] = "os beside the script"

    async def script() -> None:
        await stage.warm.ready(stage.plan())
        for _ in range(2):
            assert await stage.start() is None
        assert host.is_there(stage.asked[0]["pid"])

    stage.plays(script)
    assert stage.notes == ["trials start in the usual way: os beside the script"]
    assert {row["mark"] for row in stage.asked} == {f"{MARK}1"}


def test_when_it_dies_at_a_fork_what_it_may_have_forked_is_ended(stage: Stage) -> None:
    stage.rules["dies_at_fork"] = True

    async def script() -> None:
        await stage.warm.ready(stage.plan())
        assert await stage.start("sleep 60") is None
        (child,) = [row["child"] for row in stage.asked if "child" in row]
        assert not host.is_there(child)
        assert stage.notes == []
        await stage.start("sleep 60")
        assert stage.notes == []
        await stage.start("sleep 60")

    stage.plays(script)
    failed = f"the process that imports beforehand has failed, see {stage.folder / 'warm.log'}"
    assert stage.notes == [OFF + failed]


def test_a_process_that_has_ended_meanwhile_is_begun_anew(stage: Stage) -> None:
    async def script() -> None:
        await stage.warm.ready(stage.plan("a"))
        process = stage.warm._process
        assert process is not None
        os.kill(stage.asked[0]["pid"], signal.SIGKILL)
        await until(lambda: not process.lives())
        assert await stage.start() is not None

    stage.plays(script)
    assert stage.imported == [("1", ["a"]), ("2", ["a"])]


def test_who_is_stopped_while_others_have_their_turn_does_not_wait(stage: Stage) -> None:
    holds = stage.folder / "holds"
    holds.touch()
    stage.rules["a"] = {"waits": str(holds)}

    async def script() -> None:
        ready = asyncio.ensure_future(stage.warm.ready(stage.plan("a")))
        await until(lambda: stage.imported)
        stopped = asyncio.Event()
        start = asyncio.ensure_future(stage.warm.start(stage.attempt(), stopped))
        await asyncio.sleep(0.05)
        assert not start.done()
        stopped.set()
        assert await start is None
        holds.unlink()
        await ready
        assert await stage.start() is not None

    stage.plays(script)


def test_what_is_under_way_ends_when_it_is_closed_and_nobody_is_told(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "import slow\n")
    stage.rules["slow"] = {"waits": str(tmp_path)}

    async def script() -> None:
        ready = asyncio.ensure_future(stage.warm.ready(stage.plan(learns=True)))
        await until(lambda: stage.imported)
        stage.warm.close()
        await ready
        assert await stage.start() is None
        assert all([await stage.ended(row["pid"]) for row in stage.asked])

    stage.plays(script)
    assert stage.notes == []


def test_a_long_line_is_no_answer(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_starts, "MOST_BYTES", 100_000)
    stage.rules["a"] = {"says": "x", "times": 400_000}

    async def script() -> None:
        await stage.warm.ready(stage.plan())
        process = stage.warm._process
        assert process is not None
        with pytest.raises(ColdError, match="has failed"):
            await process.preload(["a"], 60.0)

    stage.plays(script)
