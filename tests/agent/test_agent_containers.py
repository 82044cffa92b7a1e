"""Trials in containers: what they see, how they end, and what is left of them. By a stand-in for
Apptainer, which contains nothing, for machines without an engine; `test_agent_podman` has Podman.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psutil
import pytest

from bench.testbed.agents import PATIENCE_S, RUN, Client, Rig
from seerd.agent.protocol import Noticed, Prepare, Prepared, Refused, Start, Started

STAND_IN = f"""#!{sys.executable} -I
import os, signal, sys
if sys.argv[1] != "exec":
    sys.exit()
words = sys.argv[2:]
while words[0] != "--pwd" and not words[0].endswith(".sif"):
    words.pop(0)
folder = words[1] if words[0] == "--pwd" else "."
if words[0] == "--pwd":
    while not words[0].endswith(".sif"):
        words.pop(0)
words.pop(0)
inside = {{name[13:]: value for name, value in os.environ.items() if name[:13] == "APPTAINERENV_"}}
pid = os.fork()
if pid == 0:
    os.setsid()
    os.chdir(folder)
    search = inside.get("PATH", os.environ["PATH"])
    os.environ["PATH"] = search
    try:
        os.execvpe(words[0], words, inside or {{"PATH": search}})
    except OSError as error:
        print("FATAL:", words[0], error.strerror, file=sys.stderr)
        os._exit(255)
_, status = os.waitpid(pid, 0)
sys.exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
"""
SEES = """
import json, os, sys
with open(os.path.join(os.environ["SEERD_DIR"], "seen"), "w") as file:
    json.dump({"argv": sys.argv, "environ": dict(os.environ), "root": sorted(os.listdir("/")),
               "shown": open("/proc/self/environ").read(), "pid": os.getpid(), "uid": os.getuid(), "cwd": os.getcwd()}, file)
print("printed", os.environ.get("TOKEN"), flush=True)
sys.exit(3)
"""
HIDDEN = "import time; time.sleep(600)"
SLEEPS = f"""
import os, sys, time
HIDDEN = {HIDDEN!r}
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", HIDDEN], {{}})
    os._exit(0)
os.wait()
print("up", flush=True)
time.sleep(600)
"""
SECRET = 'it\'s "$HOME"\nand `more`'


def wait(true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def log_of(rig: Rig, trial: str = "t1") -> str:
    log = rig.attempt(trial) / "logs" / "launcher.log"
    return log.read_text() if log.exists() else ""


def marks() -> list[str]:
    """The SEERD_ATTEMPT of whatever runs of this run."""
    found = []
    for process in psutil.process_iter():
        try:
            found.append(process.environ().get("SEERD_ATTEMPT", ""))
        except (psutil.Error, OSError):
            continue
    return sorted(mark for mark in found if mark.startswith(f"{RUN}/"))


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def strangers(rig: Rig) -> list[psutil.Process]:
    """Orphans of trials that hide whose they are."""
    hidden = [p for p in psutil.process_iter() if words_of(p)[2:] == [HIDDEN]]
    return [process for process in hidden if str(rig.folder) in process.cwd()]


def living(processes: list[psutil.Process]) -> int:
    return sum(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


def the_same_job(rig: Rig, text: str, image: str, **other: Any) -> Any:
    return replace(rig.job(text, python="python3", container=image), **other)


def ready(rig: Rig, job: Any) -> Client:
    """A started agent that has been prepared for this job."""
    rig.launch()
    client = rig.connect()
    client.say(Prepare("p", job))
    answer = client.until(Prepared | Refused)
    assert isinstance(answer, Prepared), answer
    return client


both = pytest.mark.parametrize("preload", [None, []], ids=["warm", "cold"])


class Cases:
    """What holds with every engine. `image`: its image."""

    image: str

    @both
    def test_a_script_sees_what_its_spec_says_and_nothing_of_the_agents(
        self, inside: Rig, preload: list[str] | None
    ) -> None:
        own = {"args": ["a b"], "env": {"A": "1 2"}, "secrets": ["TOKEN"], "preload": preload}
        job = the_same_job(inside, SEES, self.image, setup=["echo of the setup > made"], **own)
        client = ready(inside, job)
        client.say(Start("s", "t1", 1, [1], {}, 17, [], secrets={"TOKEN": SECRET}))
        end = client.exit_of()
        assert (end.cause, end.code) == ("crashed", 3), "\n".join(end.tail)
        seen = json.loads((inside.attempt() / "seen").read_text())
        assert seen["argv"] == ["train.py", "a b"]
        assert (seen["cwd"], seen["uid"]) == (str(inside.attempt() / "work"), os.getuid())
        assert (inside.source / "made").read_text() == "of the setup\n"
        environment = seen["environ"]
        assert (environment["A"], environment["TOKEN"]) == ("1 2", SECRET)
        assert environment["SEERD_ATTEMPT"] == f"{RUN}/t1/1"
        assert "XDG_CACHE_HOME" not in environment
        assert "printed" in log_of(inside)
        assert "more`" not in log_of(inside)
        assert client.until(Started).pid == seen["pid"]
        assert [fact for fact in client.facts if isinstance(fact, Noticed)] == []
        assert preload == [] or "HOSTNAME=" not in seen["shown"]
        self.look_closer(seen)

    def look_closer(self, seen: dict[str, Any]) -> None:
        """Look at what only this engine has a script see."""

    @both
    def test_an_attempt_is_killed_with_all_that_it_has_started_and_no_other(
        self, inside: Rig, preload: list[str] | None
    ) -> None:
        client = ready(inside, the_same_job(inside, SLEEPS, self.image, preload=preload))
        client.start("t1", gpus=(0,))
        client.start("t2", gpus=(1,))
        wait(lambda: "up" in log_of(inside) and "up" in log_of(inside, "t2"))
        hidden = strangers(inside)
        assert len(hidden) == 2
        client.stop("t1")
        assert client.exit_of("t1").code == -signal.SIGKILL
        assert inside.processes_of("t1") == []
        assert len(inside.processes_of("t2")) == 1
        assert living(hidden) == 1
        client.stop("t2")
        assert client.exit_of("t2").code == -signal.SIGKILL
        assert living(hidden) == 0
        inside.processes[-1].send_signal(signal.SIGTERM)
        assert inside.processes[-1].wait() == 0
        assert marks() == []

    def test_a_program_is_found_on_the_path_and_in_the_source(self, inside: Rig) -> None:
        (inside.source / "says").write_text("#!/bin/sh\necho said $1 from $PWD\n")
        (inside.source / "says").chmod(0o755)
        own = {"launcher": "command", "script": "sh", "args": ["-c", "says it; exit 5"]}
        client = ready(inside, the_same_job(inside, "", self.image, **own))
        client.start()
        end = client.exit_of()
        assert (end.cause, end.code) == ("crashed", 5)
        assert f"said it from {inside.attempt() / 'work'}" in log_of(inside)

    @pytest.mark.parametrize(
        ("other", "says"),
        [
            ({"python": "pythonless"}, "pythonless starts no Python in the image"),
            ({"mounts": ["/nowhere"]}, "there is no /nowhere on this machine"),
            ({"setup": ["exit 9"]}, "ended with exit status 9"),
        ],
    )
    def test_what_cannot_be_is_refused(self, inside: Rig, other: dict[str, Any], says: str) -> None:
        inside.launch()
        client = inside.connect()
        client.say(Prepare("p", the_same_job(inside, "", self.image, **other)))
        refused = client.until(Refused)
        assert says in refused.why
        assert not refused.unhealthy

    @both
    def test_what_a_dead_agent_has_left_is_ended_by_the_next(
        self, inside: Rig, preload: list[str] | None
    ) -> None:
        job = the_same_job(inside, SLEEPS, self.image, preload=preload)
        client = ready(inside, job)
        client.start()
        client.until(Started)
        wait(lambda: "up" in log_of(inside))
        inside.lose_agent()
        inside.launch()
        client = inside.connect()
        assert client.exit_of().cause == "lost"
        assert inside.processes_of() == []
        client.say(Prepare("q", job))
        client.until(Prepared)
        client.start("t2")
        wait(lambda: "up" in log_of(inside, "t2"))

    def test_the_death_of_the_warm_process_costs_no_attempt(self, inside: Rig) -> None:
        client = ready(inside, the_same_job(inside, SLEEPS, self.image))
        client.start("t1", gpus=(0,))
        wait(lambda: "up" in log_of(inside))
        (warm,) = (
            process
            for process in psutil.process_iter()
            if words_of(process)[2:3] == [str(inside.folder / "lib/seerd/agent/warm/__main__.py")]
            and process.environ()["SEERD_ATTEMPT"].startswith(f"{RUN}//warm-")
            and not process.children()
        )
        warm.kill()
        client.start("t2", gpus=(1,))
        wait(lambda: "up" in log_of(inside, "t2"))
        for trial in ("t1", "t2"):
            assert len(inside.processes_of(trial)) == 1
            client.stop(trial)
            assert client.exit_of(trial).code == -signal.SIGKILL


class TestStandIn(Cases):
    """With a program that only calls what Apptainer would."""

    image = "env.sif"

    @pytest.fixture
    def inside(self, rig: Rig) -> Rig:
        """A place for an agent with this engine."""
        programs = rig.source.parent / "bin"
        programs.mkdir()
        (programs / "apptainer").write_text(STAND_IN)
        (programs / "apptainer").chmod(0o755)
        for name in ("sh", "env"):
            (programs / name).symlink_to(f"/usr/bin/{name}")
        (programs / "python3").symlink_to(sys.executable)
        (rig.source / self.image).touch()
        del rig.env["PYTHONPATH"]
        rig.env["PATH"] = str(programs)
        rig.fork = None
        return rig
