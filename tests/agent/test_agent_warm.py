"""Starts by forks of a warm process: the same script once started so and once in the usual way sees
the same; and what happens to the process happens to no attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from bench.testbed.agents import PATIENCE_S, RUN, Client, Rig
from seerd.agent.launch import TORCHRUN, WarmPlan
from seerd.agent.protocol import Noticed, Started, Stop
from seerd.agent.warm_starts import WarmStarts
from tests.agent.agent_forks import ForkedAgent
from tests.agent.conftest import BARE_TORCH
from tests.agent.waiting import until_reaped

PICTURE = """
import gc, json, locale, os, resource, signal, sys, threading, warnings
main = sys.modules["__main__"]
handlers = {name: str(signal.getsignal(getattr(signal, name))).partition(" at ")[0]
            for name in ("SIGINT", "SIGTERM", "SIGPIPE", "SIGCHLD", "SIGHUP", "SIGUSR1")}
picture = {
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "executable": sys.executable,
    "path": sys.path,
    "flags": str(sys.flags),
    "warnoptions": sys.warnoptions,
    "filters": len(warnings.filters),
    "main": sorted(vars(main)),
    "file": __file__,
    "name": __name__,
    "spec": str(__spec__),
    "package": str(__package__),
    "loader": type(__loader__).__name__,
    "doc": __doc__,
    "cwd": os.getcwd(),
    "environ": dict(os.environ),
    "shown": dict((one.split("=", 1) for one in
                         filter(None, open("/proc/self/environ").read().split("\\0")))),
    "cmdline": open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"),
    "comm": open("/proc/self/comm").read(),
    "handlers": handlers,
    "mask": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "limits": [resource.getrlimit(kind) for kind in range(resource.RLIM_NLIMITS)]
    if hasattr(resource, "RLIM_NLIMITS") else resource.getrlimit(resource.RLIMIT_NOFILE),
    "umask": os.umask(0o22) and os.umask(0o22),
    "nice": os.nice(0),
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "open": sorted(os.readlink(f"/proc/self/fd/{fd}").replace(os.environ["SEERD_DIR"], "")
                   for fd in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{fd}")),
    "threads": len(os.listdir("/proc/self/task")),
    "python_threads": threading.active_count(),
    "stdio": [(one.encoding, one.errors, one.line_buffering, one.write_through, one.isatty())
              for one in (sys.stdin, sys.stdout, sys.stderr)],
    "hook": sys.excepthook is sys.__excepthook__,
    "gc": [gc.isenabled(), gc.get_threshold()],
    "locale": locale.getlocale(),
    "recursion": sys.getrecursionlimit(),
    "first": sys.stdin.read(),
}
with open(os.path.join(os.environ["SEERD_DIR"], f"picture-{os.environ.get('RANK')}"), "w") as file:
    json.dump(picture, file, default=str)
"""
IMPORTS = {"python": "", "torchrun": "".join(f"import {name}\n" for name in TORCHRUN)}
VARIES = ("MASTER_PORT", "TORCHELASTIC_ERROR_FILE")
"""Variables that torchrun gives other values each time."""


def pictures(rig: Rig, client: Client, trial: str, gpus: tuple[int, ...]) -> dict[str, Any]:
    """What each rank of the attempt has seen."""
    client.start(trial, gpus=gpus)
    end = client.exit_of(trial)
    assert (end.cause, end.code) == ("finished", 0), "\n".join(end.tail)
    folder = rig.attempt(trial)
    return {path.name: _normal(path.read_text()) for path in folder.glob("picture-*")}


def _normal(text: str) -> Any:
    picture = json.loads(re.sub(r"_[a-z0-9_]{8}/attempt_0", "/attempt_0", text))
    for name in VARIES:
        if name in picture["environ"]:
            assert picture["environ"].pop(name) == picture["shown"].pop(name)
    return picture


def warm_process(rig: Rig) -> psutil.Process:
    """The warm process that serves this agent, a fork of those that wait for its end."""
    wait(lambda: bool(warm_processes(rig)))
    return max(warm_processes(rig), key=lambda process: process.create_time())


def warm_processes(rig: Rig) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get("SEERD_ATTEMPT", "")
            if mark.startswith(f"{RUN}//warm-") and process.cwd() == str(rig.folder):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


@pytest.mark.parametrize(("launcher", "gpus"), [("python", (0,)), ("torchrun", (0, 1))])
def test_a_script_sees_the_same_however_it_was_started(
    rig: Rig, launcher: str, gpus: tuple[int, ...]
) -> None:
    args = ["--option", "a b", "-x"]
    seen = {}
    for preload in ([], None):
        script, env = IMPORTS[launcher] + PICTURE, {"PYTHONPATH": f"lib:{BARE_TORCH}:/elsewhere:."}
        job = rig.job(script, launcher=launcher, args=args, preload=preload, env=env)
        client = rig.ready(job)
        seen[str(preload)] = pictures(rig, client, "t1", gpus)
        assert bool(warm_processes(rig)) == (preload is None)
        rig.end()
        rig.folder.rename(rig.folder.with_name(f"before-{len(seen)}"))
    assert seen["None"].keys() == seen["[]"].keys()
    for rank, warm in seen["None"].items():
        cold = seen["[]"][rank]
        assert {k: v for k, v in warm.items() if v != cold[k]} == {}, {
            k: v for k, v in cold.items() if v != warm[k]
        }


SHOWS_ITS_END = {
    "an exception": "def f():\n    1 / 0\nf()\n",
    "a mistake in its syntax": "x = (1,\ny = 2\n",
    "a number": "import sys\nsys.exit(7)\n",
    "a text": "import sys\nsys.exit('that was it')\n",
    "nothing": "print('done')\n",
    "Ctrl-C": "raise KeyboardInterrupt\n",
    "a signal": "import os\nos.kill(os.getpid(), 9)\n",
    "an end without cleaning up": "import os\nos._exit(3)\n",
    "an end that is cleaned up": "import atexit\natexit.register(print, 'cleaned')\n1 / 0\n",
    "a thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(.2), print('thread'))).start()\n",
    "an exit status": "import sys\nsys.exit(256 + 7)\n",
    "what runs at the end": "import atexit\natexit.register(print, 'last')\n"
    "class A:\n    def __repr__(self):\n        return 'A'\n    def __call__(self):\n        1 / 0\n"
    "atexit.register(A())\n",
    "a file that is not closed": "import os\n"
    "file = open(os.environ['SEERD_DIR'] + '/logs/launcher.log', 'a')\nfile.write('open')\n",
    "a file of C that is not closed": "import ctypes, os\nc = ctypes.CDLL(None)\n"
    "c.fopen.restype = ctypes.c_void_p\n"
    "log = os.environ['SEERD_DIR'].encode() + b'/logs/launcher.log'\n"
    "c.fputs(b'of C', ctypes.c_void_p(c.fopen(log, b'a')))\n",
    "an object that is left": "class A:\n    def __del__(self):\n        print('gone')\n"
    "a = A()\na.itself = a\n",
    "a thread that is left": "import threading, time\ndef f():\n    while True:\n"
    "        time.sleep(0.001)\nthreading.Thread(target=f, daemon=True).start()\n",
    "a hook": "import sys\nsys.excepthook = lambda kind, error, tb: print(kind, tb.tb_lineno)\n1 / 0\n",
    "a process": "import multiprocessing as m\ndef f(x):\n    return x + 1\n"
    "if __name__ == '__main__':\n    with m.get_context('spawn').Pool(1) as p:\n"
    "        print(p.map(f, [1, 2]))\n",
    "a class that is pickled": "import pickle\nclass A: pass\n"
    "print(type(pickle.loads(pickle.dumps(A()))) is A, A.__module__)\n",
    "its own text": "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))\n",
}


@pytest.fixture(scope="module")
def both_ways(
    bundle: Path, fork: Callable[..., ForkedAgent] | None
) -> Iterator[list[tuple[Rig, Client]]]:
    """An agent that starts everything in the usual way, and one that forks."""
    with ExitStack() as stack:
        made = []
        for preload in ([], None):
            top = Path(stack.enter_context(TemporaryDirectory(prefix="agent-")))
            rig = Rig(bundle, top / "i", top / "source", top / "store", fork=fork)
            rig.source.mkdir()
            stack.callback(rig.end)
            made.append((rig, rig.ready(rig.job(preload=preload))))
        assert warm_process(made[1][0])
        assert not warm_processes(made[0][0])
        yield made


@pytest.mark.parametrize("kind", SHOWS_ITS_END)
def test_a_script_ends_the_same_however_it_was_started(
    both_ways: list[tuple[Rig, Client]], kind: str
) -> None:
    trial, ends = f"t{list(SHOWS_ITS_END).index(kind)}", []
    for rig, client in both_ways:
        (rig.source / "train.py").write_text(SHOWS_ITS_END[kind])
        client.start(trial)
        end = client.exit_of(trial)
        log = (rig.attempt(trial) / "logs" / "launcher.log").read_text()
        ends.append((end.cause, end.code, log.replace(str(rig.folder.parent), "")))
    assert warm_process(both_ways[1][0])
    assert ends[0] == ends[1]


DRAWS = """
import json, os, random
import numpy
import torch
drawn = [random.random(), float(numpy.random.rand()), int.from_bytes(os.urandom(8), "big")]
with open(os.path.join(os.environ["SEERD_DIR"], "drawn"), "w") as file:
    json.dump([*drawn, float(torch.rand(1))], file)
"""


def test_forks_draw_numbers_of_their_own(rig: Rig) -> None:
    client = rig.ready(rig.job(DRAWS, preload=["numpy.random", "torch"]))
    drawn = []
    for trial in ("t1", "t2"):
        client.start(trial)
        assert client.exit_of(trial).cause == "finished"
        drawn.append(json.loads((rig.attempt(trial) / "drawn").read_text()))
    first, second = drawn
    assert all(one != other for one, other in zip(first[:3], second[:3], strict=True))
    assert first[3] == second[3]  # torch has the same seed in every process


SLEEPS = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


def up(rig: Rig, trial: str = "t1") -> None:
    log = rig.attempt(trial) / "logs" / "launcher.log"
    wait(lambda: log.exists() and "up" in log.read_text())


def wait(true: Callable[[], bool], for_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + for_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_death_of_the_warm_process_costs_no_attempt(rig: Rig) -> None:
    client = rig.ready(rig.job(SLEEPS))
    client.start("t1", gpus=(0,))
    up(rig)
    first = warm_process(rig)
    first.send_signal(signal.SIGKILL)
    client.start("t2", gpus=(1,))
    up(rig, "t2")  # in the usual way, if the death was not known yet
    client.start("t3", gpus=(2,))
    up(rig, "t3")
    assert warm_process(rig).pid != first.pid
    assert [len(rig.processes_of(trial)) for trial in ("t1", "t2", "t3")] == [1, 1, 1]
    for trial in ("t1", "t2", "t3"):
        client.say(Stop(f"stop {trial}", trial, 1, checkpoint=False, grace_s=0.0))
        assert client.exit_of(trial).code == -signal.SIGKILL


def test_one_that_dies_between_order_and_fork_costs_no_attempt(rig: Rig) -> None:
    client = rig.ready(rig.job(SLEEPS))
    client.start("t1", gpus=(0,))
    up(rig)
    os.kill(warm_process(rig).pid, signal.SIGSTOP)
    client.start("t2", gpus=(1,))
    wait((rig.attempt("t2") / "trial.json").exists)
    warm_process(rig).send_signal(signal.SIGKILL)
    up(rig, "t2")
    assert len(rig.processes_of("t2")) == 1


@pytest.mark.parametrize("grace_s", [0.0, 600.0])
def test_a_stop_need_not_wait_until_all_is_imported(rig: Rig, grace_s: float) -> None:
    library = rig.source.parent / "library"
    library.mkdir()
    (library / "slow.py").write_text("import time\ntime.sleep(600)\n")
    job = rig.job(SLEEPS, preload=["slow"], env={"PYTHONPATH": str(library)})
    client = rig.ready(job)
    client.start()
    wait((rig.attempt() / "trial.json").exists)
    client.say(Stop("stop", "t1", 1, checkpoint=grace_s > 0, grace_s=grace_s))
    assert client.exit_of().cause == "asked"
    assert not any(isinstance(fact, Started) for fact in client.facts)


def test_it_ends_with_its_agent_in_the_middle_of_an_import(rig: Rig) -> None:
    library = rig.source.parent / "library"
    library.mkdir()
    (library / "slow.py").write_text("import time\nprint('slow', flush=True)\ntime.sleep(600)\n")
    rig.ready(rig.job(SLEEPS, preload=["slow"], env={"PYTHONPATH": str(library)}))
    log = rig.folder / "warm.log"
    wait(lambda: log.exists() and "slow" in log.read_text())
    process = warm_process(rig)
    rig.processes[-1].send_signal(signal.SIGKILL)
    wait(lambda: not process.is_running())


def test_one_that_is_killed_after_it_was_closed_is_not_begun_anew(tmp_path: Path) -> None:
    program = tmp_path / "waits.py"
    program.write_text("import time\ntime.sleep(600)\n")
    plan = WarmPlan(sys.executable, str(program), dict(os.environ), "/", "train.py", ["a"], False)
    notes: list[str] = []

    async def closed() -> set[int]:
        warm = WarmStarts("", tmp_path, notes.append)
        ready = asyncio.gather(warm.ready(plan), warm.ready(plan))
        killed: set[int] = set()
        while not ready.done():
            for process in psutil.Process().children():
                with contextlib.suppress(psutil.Error):  # others' children may have ended
                    if str(program) in process.cmdline():
                        warm.close()
                        process.kill()
                        killed.add(process.pid)
            await asyncio.sleep(0.01)
        await until_reaped()
        return killed

    assert len(asyncio.run(asyncio.wait_for(closed(), 60.0))) == 1
    assert notes == []


def test_it_ends_with_its_agent(rig: Rig) -> None:
    client = rig.ready(rig.job(SLEEPS))
    client.start()
    up(rig)
    process = warm_process(rig)
    rig.processes[-1].send_signal(signal.SIGKILL)
    wait(lambda: not process.is_running())


def test_it_waits_without_work_and_shares_its_memory(rig: Rig) -> None:
    script = "import torch\n" + SLEEPS
    client = rig.ready(rig.job(script))
    client.start("t1", gpus=(0,))
    client.start("t2", gpus=(1,))
    up(rig)
    up(rig, "t2")
    process = warm_process(rig)
    before = sum(process.cpu_times()[:2])
    time.sleep(1.0)
    assert sum(process.cpu_times()[:2]) - before < 0.05
    shares = [rig.processes_of(trial)[0].memory_full_info() for trial in ("t1", "t2")]
    assert all(one.uss < 0.2 * one.rss for one in shares)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        (
            "threads",
            (
                "import threading, time\n"
                "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
            ),
            "threads",
        ),
        (  # threads of torch hang in a fork; those of OpenBLAS, which came with numpy, do not
            "pools",
            (
                "import numpy, torch\ntorch.set_num_threads(4)\n"
                "TOTAL = torch.ones(1000, 1000).exp().sum()\n"
            ),
            "threads",
        ),
        ("ranked", "import os\nRANK = os.environ.get('RANK')\n", "asks for RANK"),
        (
            "worker",
            "import subprocess\nP = subprocess.Popen(['sleep', '60'])\n",
            "a process behind",
        ),
    ],
)
def test_an_odd_module_is_left_to_the_trials_and_named(
    rig: Rig, name: str, text: str, why: str
) -> None:
    library = rig.source.parent / "library"
    library.mkdir()
    (library / f"{name}.py").write_text(text)
    (library / "fine.py").write_text("")
    script = f"import fine\nimport {name}\nprint('up', flush=True)\n"
    client = rig.ready(rig.job(script, env={"PYTHONPATH": f"{library}:{BARE_TORCH}"}))
    client.start()
    assert client.exit_of().cause == "finished"
    noticed = client.until(Noticed)
    assert noticed.what == "cold"
    assert noticed.why.startswith(f"{name} is not imported beforehand")
    assert why in noticed.why
    wait(lambda: warm_processes(rig))


ODD_PACKAGE = {
    "pack/__init__.py": "",
    "pack/threads.py": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
    "pack/ranked.py": "import os\nRANK = os.environ.get('RANK')\n",
    "importer.py": "import pack.threads\n",
    "lister.py": "import importlib.util\nHAS = importlib.util.find_spec('pack')\n",
    "fine.py": "import os\nPID = os.getpid()\n",
}


def test_a_package_is_left_out_whole_and_this_is_said_once(rig: Rig) -> None:
    library = rig.source.parent / "library"
    (library / "pack").mkdir(parents=True)
    for name, text in ODD_PACKAGE.items():
        (library / name).write_text(text)
    script = (
        "import os\nimport pack.threads, pack.ranked, importer, lister, fine\n"
        "print(fine.PID == os.getpid(), lister.HAS is not None, flush=True)\n"
    )
    job = rig.job(script, env={"PYTHONPATH": str(library)})
    client = rig.ready(job)
    client.start()
    assert client.exit_of().cause == "finished"
    assert (rig.attempt() / "logs" / "launcher.log").read_text() == "False True\n"
    notes = [fact.why for fact in client.facts if isinstance(fact, Noticed)]
    assert notes == [
        "pack is not imported beforehand: it leaves threads behind when it is imported",
    ]


def test_what_a_package_that_asks_for_its_rank_is_imported_by_is_left_out_with_it(rig: Rig) -> None:
    library = rig.source.parent / "library"
    library.mkdir()
    (library / "ranked.py").write_text(
        "import os\ntry:\n    RANK = os.environ['RANK']\nexcept Exception:\n    RANK = None\n"
    )
    (library / "middle.py").write_text("import ranked\n")
    (library / "outer.py").write_text("import middle\n")
    script = "import outer, middle, os\nprint(middle.ranked.RANK, flush=True)\n"
    client = rig.ready(rig.job(script, env={"PYTHONPATH": str(library), "RANK": "3"}))
    client.start()
    assert client.exit_of().cause == "finished"
    assert "ranked is not imported beforehand, nor is what imports it" in client.until(Noticed).why
    assert len([fact for fact in client.facts if isinstance(fact, Noticed)]) == 1


GATED = """
import os, sys, time
while "warm" in "".join(sys.orig_argv) and not os.path.exists({gate!r}):
    time.sleep(0.01)
PID = os.getpid()
"""


def test_a_start_waits_for_what_the_text_imports(rig: Rig) -> None:
    library, gate = rig.source.parent / "library", rig.source.parent / "gate"
    library.mkdir()
    (library / "slow.py").write_text(GATED.format(gate=str(gate)))
    script = "import os, slow\nprint(slow.PID == os.getpid(), flush=True)\n"
    client = rig.ready(rig.job(script, env={"PYTHONPATH": str(library)}))
    client.start("t1")
    wait((rig.attempt("t1") / "trial.json").exists)
    gate.touch()
    assert client.exit_of("t1").cause == "finished"
    assert (rig.attempt("t1") / "logs" / "launcher.log").read_text() == "False\n"


def test_a_module_of_the_job_is_its_own(rig: Rig) -> None:
    """A library of the same name has been imported before it came."""
    library = rig.source.parent / "library"
    library.mkdir()
    (library / "helper.py").write_text("WHOSE = 'the library'\n")
    (library / "uses.py").write_text("import helper\n")
    script = "import uses, helper\nprint('helper of', helper.WHOSE)\n"
    client = rig.ready(rig.job(script, env={"PYTHONPATH": str(library)}))
    client.start("t0")
    assert client.exit_of("t0").cause == "finished"
    (rig.source / "helper.py").write_text("WHOSE = 'the job'\n")
    client.start()
    assert client.exit_of().cause == "finished"
    log = (rig.attempt() / "logs" / "launcher.log").read_text()
    assert log == "helper of the job\n"
    assert "helper beside the script" in client.until(Noticed).why


def test_variables_that_a_script_sets_before_it_imports_count(rig: Rig) -> None:
    library = rig.source.parent / "library"
    library.mkdir()
    (library / "reads.py").write_text(
        "import os\nVALUE = os.environ.get('READS_THIS', 'nothing')\n"
    )
    env = {"PYTHONPATH": str(library)}
    script = (
        "import os, sys\nsys.modules['torch'] = None\n"
        "os.environ['READS_THIS'] = 'what was set'\nimport reads, seerd\n"
        "trial = seerd.trial()\nprint('up', reads.VALUE, flush=True)\n"
        "while trial.running():\n    trial.report(accuracy=1.0)\n    break\n"
    )
    client = rig.ready(rig.job(script, env=env))
    for trial in ("t1", "t2"):
        client.start(trial)
        assert client.exit_of(trial).cause == "finished"
        log = rig.attempt(trial) / "logs" / "launcher.log"
        assert log.read_text().startswith("up what was set\n")
    assert "READS_THIS" in client.until(Noticed).why


def test_what_the_first_attempt_has_imported_is_imported_for_the_next(rig: Rig) -> None:
    library = rig.source.parent / "library"
    library.mkdir()
    (library / "late.py").write_text("import os\nPID = os.getpid()\n")
    (rig.source / "part.py").write_text("PID = __import__('late').PID\n")
    script = (
        "import os, sys\nsys.modules['torch'] = None\nimport seerd, part\ntrial = seerd.trial()\n"
        "while trial.running():\n    print(part.PID == os.getpid(), flush=True)\n"
        "    trial.report(accuracy=1.0)\n    break\n"
    )
    client = rig.ready(rig.job(script, env={"PYTHONPATH": str(library)}))
    said = []
    for trial in ("t1", "t2"):
        client.start(trial)
        assert client.exit_of(trial).cause == "finished"
        said.append((rig.attempt(trial) / "logs" / "launcher.log").read_text().split()[0])
    assert said == ["True", "False"]


def test_only_what_is_asked_for_is_imported(rig: Rig) -> None:
    script = "import sys, os\nprint(sys.modules['this'].__name__, flush=True)\n"
    client = rig.ready(rig.job(script, preload=["this"]))
    client.start()
    assert client.exit_of().cause == "finished"
    wait(lambda: warm_processes(rig))


def test_torchrun_of_another_kind_starts_in_the_usual_way(rig: Rig) -> None:
    library = rig.source.parent / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text(
        f"import runpy, sys\nrunpy.run_path('{BARE_TORCH}/sitecustomize.py')\n"
        "if any('warm' in word for word in sys.orig_argv):\n"
        "    import torch.distributed.elastic.multiprocessing.subprocess_handler."
        "subprocess_handler as handler\n"
        "    handler.Popen = object\n"
    )
    job = rig.job("print('up')\n", launcher="torchrun", env={"PYTHONPATH": str(library)})
    client = rig.ready(job)
    client.start()
    assert client.exit_of().cause == "finished"
    assert "torchrun starts ranks in another way" in client.until(Noticed).why


DIES_BEFORE_IT_TELLS = """
import os, socket, sys
if any("warm" in word for word in sys.orig_argv):
    real = socket.socket.sendall
    def sendall(wire, data, *more):
        if bytes(data).startswith(b'{"pid"'):
            os.kill(os.getpid(), 9)
        return real(wire, data, *more)
    socket.socket.sendall = sendall
"""


def test_one_that_was_forked_and_not_told_is_ended(rig: Rig) -> None:
    library = rig.source.parent / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text(DIES_BEFORE_IT_TELLS)
    client = rig.ready(rig.job(SLEEPS, env={"PYTHONPATH": str(library)}))
    for trial in ("t1", "t2", "t3"):
        client.start(trial, gpus=(int(trial[1:]),))
        started = client.until(Started, lambda fact, trial=trial: fact.trial == trial)
        up(rig, trial)
        assert [process.pid for process in rig.processes_of(trial)] == [started.pid]
    assert "has failed" in client.until(Noticed).why
