"""The warm process's parts, each in a fork of this one: what it answers, what its forks become, and
what it finds out about imports.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seerd.agent.launch import TORCHRUN
from seerd.agent.warm import identity, preload, script, server, torchrun
from seerd.agent.warm.script import Script, come_first
from tests.agent.forks import Say, forked, in_a_fork, status_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="warm starts are for Linux")
WORKER = "__channelexec__"
"""The module that runs tests in a worker of pytest-xdist: it imports whatever a test does."""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Make modules of these texts, which can be imported; return their folder."""
    folder = tmp_path / "installed"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])

    def make(texts: dict[str, str]) -> Path:
        for name, text in texts.items():
            path = folder / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        return folder

    return make


def loaded(names: list[str], odd: list[str], beside: Path) -> Any:
    """What comes of these imports in a fork."""

    def load(say: Say) -> None:
        imports = preload.Imports()
        imports.odd.update(odd)
        try:
            imports.load(names, str(beside))
        except preload.OddModuleError as error:
            say({"odd": [name for name in error.packages if name != WORKER], "why": str(error)})
        else:
            there = [name for name in names if name in sys.modules]
            made = imports.made
            say({"there": there, "made": made, "added": imports.added_to({"A": "1", "MADE": "x"})})
            say(sorted(imports.asked & {"MADE", "ASKED", "RANK"}))

    return in_a_fork(load)


def test_what_modules_ask_for_and_change_is_known(
    modules: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GONE", "1")
    modules(
        {
            "asks": "import os; os.environ.get('ASKED'); 'RANK' in dir()",
            "makes": "import os; os.environ['MADE'] = 'y'; del os.environ['GONE']",
        }
    )
    told, asked = loaded(["asks", "makes", "no_such_module"], [], tmp_path)
    assert told["there"] == ["asks", "makes"]
    assert told["made"] == {"MADE": "y", "GONE": None}
    assert told["added"] == {"A": "1", "MADE": "y"}
    assert asked == ["ASKED"]


def test_what_lies_beside_the_script_is_left_to_it(
    modules: Callable[..., Path], tmp_path: Path
) -> None:
    modules({"mine": "", "theirs": "", "packaged/inner": "", "packaged/__init__": ""})
    beside = tmp_path / "beside"
    (beside / "folder").mkdir(parents=True)
    (beside / "packaged").mkdir()
    (beside / "packaged" / "__init__.py").touch()
    (beside / "mine.py").touch()
    (beside / "theirs").mkdir()
    told, _ = loaded(["mine", "theirs", "packaged.inner"], [], beside)
    assert told["there"] == ["theirs"]


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "SEERD_DIR"])
def test_who_asks_for_what_is_different_in_each_rank_is_odd_with_who_imports_it(
    modules: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    modules(
        {
            "fine": "",
            "outer": "import inner.part",
            "inner/__init__": "",
            "inner/part": f"""
        import os
        try:
            os.environ[{name!r}]
        except Exception:
            pass
    """,
        }
    )
    (told,) = loaded(["fine", "outer"], [], tmp_path)
    assert told == {
        "odd": ["inner", "outer"],
        "why": f"it asks for {name} when it is imported, which is another one in each rank",
    }


@pytest.mark.parametrize(("value", "is_odd"), [("", False), ("0", True)])
def test_the_gpus_are_the_same_for_all_trials_only_where_there_are_none(
    modules: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    *,
    is_odd: bool,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    modules({"looks": "import os; os.environ.get('CUDA_VISIBLE_DEVICES')"})
    assert ("odd" in loaded(["looks"], [], tmp_path)[0]) is is_odd


def test_packages_that_are_known_may_ask(
    modules: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    modules({"torch/__init__": "import os; os.environ.get('RANK')"})
    told, _ = loaded(["torch"], [], tmp_path)
    assert told["there"] == ["torch"]
    assert [preload.package(name) for name in ("a.b", "a", "torch.cuda", "seerd.training")] == [
        *("a", "a", "torch.cuda", "seerd.training"),
    ]


def test_what_is_known_to_be_odd_is_not_imported_nor_what_imports_it(
    modules: Callable[..., Path], tmp_path: Path
) -> None:
    modules(
        {
            "odd/__init__": "",
            "odd/part": "",
            "outer": "import odd.part",
            "looks": """
        import importlib.util
        assert importlib.util.find_spec("odd") is not None
    """,
        }
    )
    told, _ = loaded(["looks"], ["odd"], tmp_path)
    assert told["there"] == ["looks"]
    told, _ = loaded(["odd.part"], ["odd"], tmp_path)
    assert told["there"] == []
    (told,) = loaded(["looks", "outer"], ["odd"], tmp_path)
    assert told["odd"] == ["odd", "outer"]
    assert told["why"] == "it cannot be imported beforehand"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "it leaves threads behind when it is imported",
        ),
        (
            "import subprocess; left = subprocess.Popen(['sleep', '5'])",
            "it leaves a process behind when it is imported",
        ),
    ],
)
def test_what_leaves_something_behind_is_odd(
    modules: Callable[..., Path], tmp_path: Path, text: str, why: str
) -> None:
    modules({"fine": "", "leaves/part": text, "leaves/__init__": ""})
    (told,) = loaded(["fine", "leaves.part"], [], tmp_path)
    assert told == {"odd": ["leaves"], "why": why}


def test_what_a_package_has_by_a_name_is_no_module_and_no_error(
    modules: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    modules(
        {"lazy": "def __getattr__(name):\n    return 1 if name == 'part' else bad\n", "bad": "1/0"}
    )
    told, _ = loaded(["lazy", "lazy.part", "bad"], [], tmp_path)
    assert told["there"] == ["lazy"]
    assert "bad: ZeroDivisionError" in capfd.readouterr().err


def test_a_script_beside_which_another_module_lies_cannot_be_forked(tmp_path: Path) -> None:
    assert preload.why_not(str(tmp_path)) == ""
    (tmp_path / "sys.py").touch()
    assert preload.why_not(str(tmp_path)) == "", "what is built in comes first"
    (tmp_path / "__main__.py").touch()
    (tmp_path / "unheard_of.py").touch()
    assert preload.why_not(str(tmp_path)) == ""
    (tmp_path / "json").mkdir()
    assert preload.why_not(str(tmp_path)) == ""
    (tmp_path / "json" / "__init__.py").touch()
    why = "json beside the script is imported from elsewhere by others"
    assert preload.why_not(str(tmp_path)) == why
    assert preload.why_not(str(tmp_path / "nowhere")) == ""


class Wire:
    """A warm process in a fork, and the conversation with it."""

    def __init__(self) -> None:
        here, there = socket.socketpair()

        def serves() -> None:
            here.close()
            os.environ["SEERD_ATTEMPT"] = "r//warm-1"
            identity.remember = lambda: None  # this process has no padding
            identity.show = lambda *_: None
            work = server.serve(there)
            if work is not None:
                work.run()
            sys.exit(5)

        self.pid = forked(serves)
        there.close()
        self.socket = here

    def ask(self, **request: Any) -> dict[str, Any]:
        self.socket.sendall(json.dumps(request).encode() + b"\n")
        line = b""
        while not line.endswith(b"\n"):
            part = self.socket.recv(1 << 16)
            if not part:
                return {}
            line += part
        told: dict[str, Any] = json.loads(line)
        return told

    def end(self) -> int:
        self.socket.close()
        return status_of(self.pid)


def fork_of(wire: Wire, folder: Path, script: str, **env: str) -> dict[str, Any]:
    (folder / "run").mkdir(exist_ok=True)
    (folder / "run" / "train.py").write_text(textwrap.dedent(script))
    return wire.ask(
        argv=[sys.executable, "-u", "train.py", "a", "b"],
        env={"SEERD_ATTEMPT": "r/t1/1", **env},
        cwd=str(folder / "run"),
        log=str(folder / "log"),
        beside=str(folder / "run"),
    )


def ended(pid: int) -> bool:
    """Wait for the end of a process that is not ours."""
    watched = os.pidfd_open(pid)
    try:
        return bool(select.select([watched], [], [], 20)[0])
    finally:
        os.close(watched)


def test_a_fork_runs_the_script_as_an_interpreter_would(
    modules: Callable[..., Path], tmp_path: Path
) -> None:
    modules({"makes": "import os; os.environ['MADE'] = 'y'"})
    wire = Wire()
    told = wire.ask(preload=["makes"], beside=str(tmp_path))
    assert (told["made"], told["odd"]) == (["MADE"], [])
    script = """
        import json, os, sys
        print(json.dumps([sys.argv, os.getcwd(), dict(os.environ), __file__, __name__,
            os.getpid() == os.getsid(0), sys.path[0], sys.stdin.read(), "makes" in sys.modules]))
        sys.stderr.write("end")
        sys.exit(300)
    """
    pid = fork_of(wire, tmp_path, script, A="1")["pid"]
    assert ended(pid)
    text = (tmp_path / "log").read_text()
    folder = str(tmp_path / "run")
    env = {"SEERD_ATTEMPT": "r/t1/1", "A": "1", "MADE": "y"}
    assert json.loads(text.splitlines()[0]) == [
        ["train.py", "a", "b"],
        *(folder, env, f"{folder}/train.py", "__main__", True, folder, "", True),
    ]
    assert text.endswith("end")
    assert wire.end() == 5


def test_what_cannot_be_forked_is_said_and_the_process_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, torchrun.HANDLER, raising=False)  # another test's import
    wire = Wire()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "json.py").touch()
    why = "json beside the script is imported from elsewhere by others"
    assert fork_of(wire, tmp_path, "") == {"failed": why}
    (tmp_path / "run" / "json.py").unlink()
    argv = [sys.executable, "-m", torchrun.MODULE]
    request = {"env": {}, "cwd": "/", "log": str(tmp_path / "log"), "beside": str(tmp_path / "run")}
    why = "its torchrun starts ranks in another way than is known here"
    assert wire.ask(argv=argv, **request) == {"failed": why}
    nowhere = {**request, "cwd": "/nowhere"}
    assert wire.ask(argv=[sys.executable, "-u", "x.py"], **nowhere) == {
        "failed": "a fork has failed"
    }
    assert "FileNotFoundError" in (tmp_path / "log").read_text()
    assert "pid" in fork_of(wire, tmp_path, "")
    assert wire.end() == 5


IN_MODULES = "import sys\nprint(*(name in sys.modules for name in {names!r}), flush=True)\n"


def imported(wire: Wire, folder: Path, *names: str) -> list[bool]:
    """Which of these modules a fork has."""
    (folder / "log").unlink(missing_ok=True)
    assert ended(fork_of(wire, folder, IN_MODULES.format(names=names))["pid"])
    return [word == "True" for word in (folder / "log").read_text().split()]


def test_what_is_odd_is_left_out_and_said(modules: Callable[..., Path], tmp_path: Path) -> None:
    modules({"first": "", "fine": "", "odd": "import os; os.environ.get('RANK')", "last": ""})
    wire = Wire()
    assert wire.ask(preload=["first"], beside=str(tmp_path))["odd"] == []
    told = wire.ask(preload=["fine", "odd", "last"], beside=str(tmp_path))
    (why,) = told["odd"]
    assert why.startswith("odd is not imported beforehand")
    assert "it asks for RANK when" in why
    assert imported(wire, tmp_path, "first", "fine", "odd", "last") == [True, True, False, True]
    assert wire.end() == 5


@pytest.mark.parametrize("count", [server.MOST_ODD, server.MOST_ODD + 1])
def test_when_too_much_is_odd_no_more_is_imported(
    modules: Callable[..., Path], tmp_path: Path, count: int
) -> None:
    names = [f"odd{number}" for number in range(count)]
    modules({"fine": "", "last": "", **dict.fromkeys(names, "import os; os.environ.get('RANK')")})
    wire = Wire()
    wire.ask(preload=["fine"], beside=str(tmp_path))
    told = wire.ask(preload=[*names, "last"], beside=str(tmp_path))
    is_enough = count > server.MOST_ODD
    too_much = "no more is imported beforehand: too much of it cannot be"
    assert (told["odd"][-1] == too_much) == is_enough
    assert imported(wire, tmp_path, "fine", "last") == [True, not is_enough]
    assert wire.end() == 5


def test_an_import_that_ends_its_process_costs_only_what_would_be_imported_with_it(
    modules: Callable[..., Path], tmp_path: Path
) -> None:
    modules({"fine": "", "ends": "import os; os._exit(3)", "last": ""})
    wire = Wire()
    wire.ask(preload=["fine"], beside=str(tmp_path))
    told = wire.ask(preload=["ends", "last"], beside=str(tmp_path))
    assert told["odd"] == ["no more is imported beforehand: that has failed, see warm.log"]
    assert imported(wire, tmp_path, "fine", "last") == [True, False]
    assert wire.end() == 5


def test_a_script_that_cannot_be_read_ends_as_with_the_interpreter(tmp_path: Path) -> None:
    def run(say: Say) -> None:
        os.dup2(os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT), 2)
        try:
            Script([sys.executable, "-u", str(tmp_path / "no.py")]).run()
        except SystemExit as error:
            say(error.code)

    assert in_a_fork(run) == [2]
    (tmp_path / "empty").touch()
    path = tmp_path / "no.py"
    usual = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert (tmp_path / "log").read_text() == usual.stderr


ENDS = """
import atexit, threading, time, sys
kept = open(sys.argv[1], "w")
kept.write("file ")
def later():
    time.sleep(0.1)
    kept.write("thread ")
threading.Thread(target=later).start()
atexit.register(lambda: kept.write("atexit "))
class Last:
    def __init__(self):
        self.write = kept.write
    def __del__(self):
        self.write("object ")
last = Last()
{end}
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [("", 0), ("sys.exit(3)", 3), ("sys.exit(256 + 4)", 4), ("raise SystemExit(0)", 0)],
)
def test_a_script_ends_as_it_would_end_by_itself(tmp_path: Path, end: str, status: int) -> None:
    (tmp_path / "train.py").write_text(ENDS.format(end=end))
    argv = [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "said")]
    # No fork of this process: of what other tests have imported, something may start a thread in it.
    run = f"from seerd.agent.warm.script import Script; Script({argv!r}).run()"
    assert subprocess.run([sys.executable, "-c", run], check=False).returncode == status
    assert (tmp_path / "said").read_text() == "file thread atexit object "


def test_with_threads_left_what_they_use_stays(tmp_path: Path) -> None:
    """A daemon thread would miss its names; what was written is written all the same."""
    (tmp_path / "train.py").write_text(
        "import sys, threading\nkept = open(sys.argv[1], 'w')\nkept.write('x')\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    script = Script([sys.executable, str(tmp_path / "train.py"), str(tmp_path / "said")])
    assert status_of(forked(script.run)) == 0
    assert (tmp_path / "said").read_text() == "x"


def test_open_files_are_flushed_and_broken_ones_do_no_harm(tmp_path: Path) -> None:
    with (tmp_path / "text").open("w") as text, (tmp_path / "bytes").open("wb") as raw:
        text.write("a")
        raw.write(b"b")
        script.flush_open_files()
        assert ((tmp_path / "text").read_text(), (tmp_path / "bytes").read_bytes()) == ("a", b"b")


@pytest.mark.parametrize("is_safe", [False, True])
def test_a_scripts_folder_comes_first_unless_paths_are_safe(
    monkeypatch: pytest.MonkeyPatch, *, is_safe: bool
) -> None:
    class Flags:
        safe_path = is_safe

    monkeypatch.setattr(sys, "path", ["a"])
    monkeypatch.setattr(sys, "flags", Flags)
    come_first("b")
    assert sys.path == (["a"] if is_safe else ["b", "a"])


def test_a_fork_wears_the_path_and_the_variables_of_its_attempt() -> None:
    def wear(say: Say) -> None:
        import multiprocessing.process as processes

        identity.show = lambda argv, env: say([argv, env])
        os.environ.update(PYTHONPATH="/old:/both", STAYS="no")
        sys.path[:] = ["/old", "/lib", "/both"]
        key = bytes(processes.current_process().authkey)
        identity.wear(["python", "x"], {"PYTHONPATH": "/new::/both", "A": "1"})
        say([sys.path, dict(os.environ), sys.orig_argv])
        say(len(processes.current_process().authkey))
        say(bytes(processes.current_process().authkey) != key)
        say(vars(processes)["ORIGINAL_DIR"] == str(Path.cwd()))
        sys.path[:] = ["/new", "/kept"]
        identity.wear([], {"PYTHONPATH": "/new::/both"})
        say(sys.path)

    env = {"PYTHONPATH": "/new::/both", "A": "1"}
    assert in_a_fork(wear)[:6] == [
        *([["python", "x"], env], [["/new", "/both", "/lib"], env, ["python", "x"]]),
        *(32, True, True, [[], {"PYTHONPATH": "/new::/both"}]),
    ]
    assert in_a_fork(wear)[6] == ["/new", "/kept"]


SHOWS = """
import json, os, sys
sys.path.insert(0, sys.argv[3])
from seerd.agent.warm import identity
identity.remember()
identity.show(["new", "words"], {"A": "1", "LOCAL_RANK": "2", "SEERD_ATTEMPT": "r/t1/1"})
print(json.dumps([open(f"/proc/self/{name}").read().rstrip("\\0").split("\\0")
    for name in ("cmdline", "environ")]))
many = {f"V{n}": "x" * 1000 for n in range(100)}
identity.show(["x" * 10000, "short"], {**many, "SEERD_ATTEMPT": "r/t1/2"})
shown = open("/proc/self/environ").read().rstrip("\\0").split("\\0")
print(json.dumps([open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"), shown[0], len(shown)]))
"""


@pytest.mark.parametrize("is_first", [True, False])
def test_what_the_kernel_shows_of_it_is_what_it_has_become(*, is_first: bool) -> None:
    before = {} if is_first else {"PATH": "/bin"}
    package = str(Path(sys.modules["seerd"].__file__ or "").parents[1])
    command = [sys.executable, "-IS", "-c", SHOWS, "9", " " * identity.ARGUMENTS, package]
    env = {**before, "SEERD_ATTEMPT": identity.padded("r//warm-1")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    first, second = map(json.loads, done.stdout.splitlines())
    shown = ["SEERD_ATTEMPT=r/t1/1", "LOCAL_RANK=2", "A=1"]
    assert first[0] == ["new", "words"]
    assert [entry for entry in first[1] if entry][-3:] == shown
    assert second[0] == ["short"]
    assert second[1] == ("SEERD_ATTEMPT=r/t1/2" if is_first else "PATH=/bin")
    assert 60 < second[2] < 70


def test_it_dies_with_its_agent_and_at_once_if_that_is_gone() -> None:
    reading, writing = os.pipe()

    def begins() -> None:
        agent = os.getpid()

        def lives() -> None:
            identity.die_with(agent)
            os.write(writing, str(os.getpid()).encode())
            signal.pause()

        forked(lives)
        signal.pause()

    agent = forked(begins)
    child = int(os.read(reading, 20))
    os.close(reading)
    os.close(writing)
    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)
    assert ended(child)


def test_one_whose_agent_is_not_its_parent_ends() -> None:
    def dies(say: Say) -> None:
        say("begins")
        identity.die_with(os.getpid() + 1)
        say("goes on")

    assert in_a_fork(dies) == ["begins"]


@pytest.mark.parametrize(
    ("argv", "is_torchrun"),
    [
        (["python", "-m", "torch.distributed.run", "x"], True),
        (["python", "-u", "train.py"], False),
        (["-m", "torch.distributed.run"], False),
        ([], False),
    ],
)
def test_torchrun_is_known_by_its_command(argv: list[str], *, is_torchrun: bool) -> None:
    assert torchrun.is_for(argv) is is_torchrun
    assert torchrun.MODULE in TORCHRUN
    assert torchrun.HANDLER in TORCHRUN


class Torch:
    """Modules in the place of those of torch that torchrun's fork uses."""

    def __init__(self, main: Callable[[], None]) -> None:
        self.handler = type(sys)("handler")
        self.handler.Popen = subprocess.Popen  # type: ignore[attr-defined]
        self.meeting = type(sys)("meeting")
        self.waits: list[object] = []
        self.meeting._delay = self.waits.append  # type: ignore[attr-defined]
        self.run = type(sys)("run")
        self.run.__file__ = "/torch/run.py"
        self.run.main = main  # type: ignore[attr-defined]
        sys.modules.update(
            {
                torchrun.HANDLER: self.handler,
                torchrun.MEETING: self.meeting,
                torchrun.MODULE: self.run,
            }
        )


def test_ranks_can_be_forked_where_torchrun_starts_them_as_is_known() -> None:
    def look(say: Say) -> None:
        sys.modules.pop(torchrun.HANDLER, None)
        say(torchrun.can_fork_ranks())
        made = Torch(lambda: None)
        say(torchrun.can_fork_ranks())
        made.handler.Popen = threading.Thread  # type: ignore[attr-defined]
        say(torchrun.can_fork_ranks())

    assert in_a_fork(look) == [False, True, False]


def test_torchrun_runs_in_a_fork_and_its_ranks_are_forks_that_waited(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys, signal\nprint(sys.argv, os.environ['LOCAL_RANK'], os.getsid(0) == os.getpid(),\n"
        "    signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, flush=True)\n"
        "sys.stderr.write('err'); sys.exit(3 + int(os.environ['LOCAL_RANK']))\n"
    )

    def torchruns(say: Say) -> None:
        os.chdir(tmp_path)
        os.environ["SEERD_ATTEMPT"] = "r/t1/1"
        identity.show = lambda *_: None
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

        def main() -> None:
            say([sys.argv, sys.path[0] == str(tmp_path)])
            popen = sys.modules[torchrun.HANDLER].Popen
            ranks = []
            for number in range(2):
                out, err = ((tmp_path / f"{name}{number}").open("w") for name in ("out", "err"))
                env = {"LOCAL_RANK": str(number), "BIG": "x" * 300_000}
                command = [sys.executable, "-u", str(tmp_path / "train.py"), "z"]
                ranks.append(popen(args=command, env=env, stdout=out, stderr=err))
            say([rank.wait(20) for rank in ranks])
            say([rank.poll() for rank in ranks])
            ranks[0].send_signal(signal.SIGTERM)
            made.meeting._delay((0, 0.3))  # type: ignore[attr-defined]
            made.meeting._delay(0.5)  # type: ignore[attr-defined]
            say(made.waits)

        made = Torch(main)
        torchrun.ForkedRank.waiting.clear()
        work = torchrun.Launcher(
            [sys.executable, "-m", torchrun.MODULE, "--nproc-per-node", "2", "train.py"]
        ).begun()
        work.run()

    path = [["/torch/run.py", "--nproc-per-node", "2", "train.py"], True]
    assert in_a_fork(torchruns) == [path, [3, 4], [3, 4], [0.5]]
    for number in range(2):
        said = f"['{tmp_path}/train.py', 'z'] {number} True True\n"
        assert (tmp_path / f"out{number}").read_text() == said
        assert (tmp_path / f"err{number}").read_text() == "err"


def test_ranks_that_torchrun_never_wants_end_with_it() -> None:
    def begins(say: Say) -> None:
        torchrun.ForkedRank.waiting.clear()
        launcher = torchrun.Launcher(["python", "-m", "run", torchrun.RANKS, "2"])
        assert launcher.begun() is launcher
        pids = [pid for pid, _ in torchrun.ForkedRank.waiting]
        say([os.getsid(pid) == pid for pid in pids])
        for _, wire in torchrun.ForkedRank.waiting:
            wire.close()
        say([os.waitpid(pid, 0)[1] for pid in pids])

    assert in_a_fork(begins) == [[True, True], [0, 0]]


def test_a_rank_is_waited_for_no_longer_than_said_and_can_be_ended(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\ntime.sleep(60)\n")

    def waits(say: Say) -> None:
        identity.show = lambda *_: None
        torchrun.ForkedRank.waiting.clear()
        work = torchrun.Launcher(["python", "-m", "run", torchrun.RANKS, "2"]).begun()
        if isinstance(work, Script):
            work.run()
        for number in (signal.SIGTERM, signal.SIGKILL):
            command = [sys.executable, "-u", str(tmp_path / "train.py")]
            rank = torchrun.ForkedRank(command, {})
            try:
                rank.wait(0.05)
            except subprocess.TimeoutExpired as error:
                say([error.cmd == command, error.timeout, rank.poll()])
            rank.send_signal(number)
            say(rank.wait())

    assert in_a_fork(waits) == [[True, 0.05, None], -15, [True, 0.05, None], -9]
