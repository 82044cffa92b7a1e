"""Remote tasks on a machine, each in a short-lived process over SSH: start the agent, end it and
all of its run, and report what is left and what trials have printed.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterator

from seerd.agent import host, plainfile
from seerd.agent.gpu_leases import LeaseFolderError, report
from seerd.agent.launch import LIBRARY, unpack_library
from seerd.agent.letting_go import ON_SCRATCH, LettingGoError, clean, end_in
from seerd.agent.protocol import VERSION, Hello, Shutdown
from seerd.agent.receive import Cache, FileEntry, PushError, Received, checked
from seerd.agent.wire import encode

START_S = 20.0
END_S = 10.0
POLL_S = 0.01
TAIL = 20
LONGEST_SOCKET = 100
"""Bytes of a socket's path, which can have 107 (unix(7))."""
MOST_OF_ONE = 1 << 18
MOST = 8 << 20
SETTLED_S = 1.0
"""A log written fewer seconds ago is read again the next time: file times are coarse."""
KEPT = {"agent.log", "agent.out", "setup.log"}
Say = Callable[[dict[str, Any]], None]


def carry_out(task: dict[str, Any], program: str, stream: BinaryIO, say: Say) -> None:
    """Do the task; the last answer is `done`, or the reason: `failed`, or `later` if it is worth
    another try. `program`: the zip.
    """
    home = Path.home()
    folder = home / ".seerd" / task["run"]
    try:
        does: dict[str, Callable[[], Any]] = {
            "begin": lambda: _begin(task, Path(program), folder, stream, say),
            "end": lambda: _end(task["run"], folder, task["patience_s"]),
            "end-agent": lambda: _end_foreign(task["run"], folder, task["grace_s"]),
            "gpus": report,
            "printed": lambda: printed(folder, task["after"]),
            "let-go": lambda: _let_go(task, folder),
            "end-in": lambda: {"at": end_in(task["left_s"])},
            "left": lambda: _left(task["run"], folder),
        }
        say({"done": does[task["do"]]()})
    except LaterError as error:
        say({"later": str(error)})
    except (OSError, PushError, EndError, LeaseFolderError, LettingGoError, ValueError) as error:
        say({"failed": str(error)})


class EndError(Exception):
    """An agent does not start, or does not end."""


class LaterError(Exception):
    """This machine is not ready yet."""


# ---------------------------------------------------------------- begin


def _begin(
    task: dict[str, Any], program: Path, folder: Path, stream: BinaryIO, say: Say
) -> dict[str, Any]:
    """Start an agent with its source; return socket, received bytes, and whether it is new."""
    os.umask(0o077)
    if scratch := task.get("scratch"):
        os.environ["HOME"] = str(_home_on(scratch, folder))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    os.chdir(folder)
    received = _receive(task["tree"], program.parent.parent, stream, say)
    started = _ensure_agent(task, program)
    socket_path = str(_short(folder) / "agent.sock")
    return {"socket": socket_path, "received": received, "started": started}


def _home_on(scratch: str, folder: Path) -> Path:
    """Make `folder` a link to a folder on the disk that is mounted at `scratch`, and return the
    home beside that, for what setup commands and trials keep in theirs. Raises `LaterError` until
    the disk is mounted and may be written to.
    """
    if not os.path.ismount(os.path.realpath(scratch)):
        raise LaterError(f"no disk is mounted at {scratch} (cluster.scratch)")
    home = Path(scratch, ON_SCRATCH)
    try:
        (home / ".seerd" / folder.name).mkdir(mode=0o700, parents=True, exist_ok=True)
    except PermissionError as error:
        raise LaterError(f"the disk at {scratch} cannot be written to: {error}") from None
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not folder.is_symlink():
        folder.symlink_to(home / ".seerd" / folder.name)
    return home


def _receive(tree: str, cache_folder: Path, stream: BinaryIO, say: Say) -> int:
    """Make the folder `source` what `tree` names, if it is not; return bytes received."""
    source = Received(Path("source"))
    if source.made().tree == tree:
        say({"missing": [], "manifest": False})
        return 0
    say({"manifest": True})
    entries = checked([FileEntry(*fields) for fields in json.loads(stream.readline().decode())])
    cache = Cache(cache_folder)
    missing = cache.missing(entries)
    say({"missing": missing})
    size = {entry.sha256: entry.size for entry in entries}
    for sha256 in missing:
        cache.take(stream, sha256, size[sha256])
    source.become(tree, entries, cache)
    cache.prune()
    return sum(size[sha256] for sha256 in missing)


def _ensure_agent(task: dict[str, Any], program: Path) -> bool:
    """Wait for an agent, started if need be; return whether it was. Raises `EndError`."""
    started = None if _locked() else _spawn(task, program)
    end = time.monotonic() + START_S
    while not _answers():
        over = started is not None and started.poll() is not None and not _locked()
        if over or time.monotonic() > end:
            what = "start" if started else "answer"
            raise EndError(f"the agent in {Path.cwd()} does not {what}; {_tail()}")
        time.sleep(POLL_S)
    return started is not None


def _place(program: Path) -> None:
    """Copy the agent's zip here, to outlive the cache; a living agent reads the old one."""
    here = Path("agent.pyz")
    if not here.is_file() or here.read_bytes() != program.read_bytes():
        shutil.copyfile(program, "agent.pyz.part")
        os.replace("agent.pyz.part", here)


def _spawn(task: dict[str, Any], program: Path) -> "subprocess.Popen[bytes]":
    """Start the agent, in a session that survives the connection."""
    _place(program)  # all files are there before: an agent without room for them could not say so
    unpack_library(program, Path(LIBRARY))
    options = [*_shape(task), *task["options"], "--folder", str(Path.cwd()), "--library", LIBRARY]
    with open("agent.out", "ab") as out:
        return subprocess.Popen(
            [sys.executable, "-I", str(Path("agent.pyz").resolve()), *options],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def _shape(task: dict[str, Any]) -> list[str]:
    """Return the options for GPUs: those of the task, else of the agent before, else the usual."""
    kept = Path("shape.json")
    if task["shape"] is not None:
        kept.write_text(json.dumps(task["shape"]))
    shape: list[str] = json.loads(kept.read_text()) if kept.is_file() else task["usual_shape"]
    return shape


def _locked() -> bool:
    return plainfile.is_locked(Path("agent.lock"))


def _answers() -> bool:
    if not _locked():
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex("agent.sock") == 0


def _short(folder: Path) -> Path:
    """Return a path to the folder that is short enough for a socket in it, if need be by a link."""
    if len(os.fsencode(folder)) <= LONGEST_SOCKET - len("/agent.sock"):
        return folder
    link = folder.parent / f".{folder.name[-8:]}"
    if not link.is_symlink():
        link.symlink_to(folder, target_is_directory=True)
    return link


def _tail() -> str:
    try:
        lines = Path("agent.out").read_text(errors="replace").splitlines()[-TAIL:]
    except FileNotFoundError:
        lines = []
    return "its last lines:\n" + "\n".join(lines) if lines else "it has written nothing"


# ---------------------------------------------------------------- end


def _end(run: str, folder: Path, patience_s: float) -> dict[str, Any]:
    """End the run's agent and its processes, and leave the logs. Raises `EndError`."""

    def shut_down() -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as agent:
            agent.connect("agent.sock")
            agent.sendall(encode(Hello(VERSION, run, 0)) + encode(Shutdown("end")))

    _end_agent(run, folder, shut_down, patience_s)
    left = host.kill(lambda: host.each_of_run(run), set())
    if left:
        raise EndError(f"the processes {sorted(left)} cannot be killed")
    if folder.is_dir():
        _keep_logs(folder)
    return {}


def _let_go(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Leave the machine for another run; return in how many seconds it powers itself off. Its end
    is set first: the daemon may be gone by then. Raises `EndError` and `LettingGoError`.
    """
    ends_at = end_in(min(task["left_s"], task["until"] - time.time()))
    _end(task["run"], folder, END_S)
    clean(task.get("scratch", ""))
    return {"left_s": ends_at - time.monotonic()}


def _end_foreign(run: str, folder: Path, grace_s: float) -> dict[str, Any]:
    """End an agent that does not speak with its daemon, softly. Raises `EndError`."""

    def terminate() -> None:
        for pid in _agent():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    _end_agent(run, folder, terminate, grace_s + END_S)
    return {}


def _end_agent(run: str, folder: Path, ask: Callable[[], None], patience_s: float) -> None:
    """Ask the agent to end, and kill it after `patience_s` seconds. Raises `EndError`."""
    if not folder.is_dir():
        return
    os.chdir(folder)
    if not _locked():
        return
    ask()
    if _comes_true(lambda: not _locked(), patience_s):
        return
    agents = _agent()
    members: set[int] = set().union(*(host.members(f"{run}/", pid) for pid in agents))
    host.kill(lambda: {pid for pid in agents | members if host.is_there(pid)}, set())
    if not _comes_true(lambda: not _locked()):
        what = "does not end; kill the process that `fuser agent.lock` names"
        raise EndError(f"the agent in {Path.cwd()} {what}")


def _agent() -> set[int]:
    """Return the id of the process that holds the lock; empty if there is none or it is unknown."""
    try:
        return {int(Path("agent.pid").read_text())} if _locked() else set()
    except (FileNotFoundError, ValueError):
        return set()


def _comes_true(condition: Callable[[], bool], for_s: float = END_S) -> bool:
    end = time.monotonic() + for_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True


def _keep_logs(folder: Path) -> None:
    for top, folders, files in os.walk(folder, topdown=False):
        here = Path(top)
        in_logs = "logs" in here.relative_to(folder).parts
        for name in files:
            if not in_logs and not (here == folder and name in KEPT):
                (here / name).unlink()
        for name in folders:
            with contextlib.suppress(OSError):
                (here / name).unlink() if (here / name).is_symlink() else (here / name).rmdir()


# ---------------------------------------------------------------- left


def _left(run: str, folder: Path) -> list[str]:
    lines = [
        f"process {pid} of {run}: {_command(pid)}" for pid in sorted(host.marked_with(f"{run}/"))
    ]
    if folder.is_dir():
        os.chdir(folder)
        if _locked():
            agents = [f"agent {pid} of {run} in {folder}" for pid in sorted(_agent())]
            lines += agents or [f"an agent in {folder}"]
    return lines


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return words.decode(errors="replace").strip()[:80]
    return "(ended)"


# ---------------------------------------------------------------- printed


def printed(folder: Path, after: float) -> dict[str, Any]:
    """Return the ends of the logs below `folder` that were written to later than `after`.

    logs   by path below `folder`, oldest first: the end of the log, zlib in base64
    more   whether there are others, for which no room was left
    until  what to give as `after` the next time

    All times are file times, in seconds since 1970.
    """
    changed = sorted((at, path) for path, at in _logs(folder) if at > after)
    logs: dict[str, str] = {}
    until, left = after, MOST
    for at, path in changed:
        if left < MOST_OF_ONE:
            return {"logs": logs, "until": until, "more": True}
        with contextlib.suppress(OSError):
            end = plainfile.read(path, -MOST_OF_ONE, MOST_OF_ONE)
            left -= len(end)
            logs[str(path.relative_to(folder))] = base64.b64encode(zlib.compress(end)).decode()
        until = max(after, min(at, time.time() - SETTLED_S))
    return {"logs": logs, "until": until, "more": False}


def _logs(folder: Path) -> Iterator[tuple[Path, float]]:
    for trial in _folders(folder / "trials"):
        for attempt in _folders(trial):
            logs = attempt / "logs"
            for top, _, names in () if logs.is_symlink() else os.walk(logs):
                for name in names:
                    path = Path(top, name)
                    with contextlib.suppress(OSError):
                        about = path.lstat()
                        if name.endswith(".log") and about.st_size and not path.is_symlink():
                            yield path, about.st_mtime


def _folders(top: Path) -> list[Path]:
    try:
        return [path for path in top.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []
