"""Starts attempts by forks of a process that has imported what they import (`warm/`). It only ever
saves time: if anything is odd, the attempt starts in the usual way, which is reported once. Starts
wait for what is being imported for them.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import sys
from asyncio import FIRST_COMPLETED
from itertools import chain
from pathlib import Path
from typing import Any, Callable, Optional

from seerd.agent import host
from seerd.agent.container import Container, mark_of
from seerd.agent.launch import LaunchPlan, WarmPlan
from seerd.agent.needs import imported_by, imports_of, statements
from seerd.agent.threads import came_before, in_thread_or_here, spawned
from seerd.agent.warm import identity

FORK_S = 20.0
STATUS_POLL_S = 0.01
CONNECT_S = 120.0
"""Seconds that the process has to start in a container, whose image may be read for the first time.
"""
SOCKET = "warm.sock"
MOST_DEATHS = 3  # ends of the process until all starts are cold
MOST_BYTES = 1 << 22
"""The longest line that the process may write."""
AT_IMPORT = ("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "BLIS_", "NUMEXPR_")
"""Prefixes of variables that libraries in C read when they are loaded."""
STARTED = frozenset({"__main__", "__mp_main__"})


class ColdError(Exception):
    """The warm process has failed, or does not answer."""


class SlowError(ColdError):
    """The warm process has not answered in time."""


class ForkedProcess:
    """A process that another one has forked for this one, which has become its parent; or, in a
    container, the `supervisor` has, which writes its exit status into the folder `statuses`.
    """

    def __init__(self, pid: int, supervisor: int = 0, statuses: Path = Path()) -> None:
        """Watch it. Raises `OSError` if the system cannot tell of its end."""
        self.pid = pid
        self.supervisor = supervisor  # 0: none
        self.returncode: Optional[int] = None  # exit status, negative: a signal; None: it runs
        self._status = statuses / identity.ENDED.format(pid)
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        try:
            self._descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            if not supervisor:
                raise
            self._watching = asyncio.ensure_future(self._read_status())
        else:
            self._loop.add_reader(self._descriptor, self._reap)

    async def wait(self) -> int:
        """Wait for its end, and return its exit status."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def _reap(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        if self.supervisor:
            self._watching = asyncio.ensure_future(self._read_status())
            return
        try:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # waited for elsewhere: asyncio has this status then
            self.returncode = 255
        self._ended.set()

    async def _read_status(self) -> None:
        while not self._status.exists() and host.is_there(self.supervisor):
            await asyncio.sleep(STATUS_POLL_S)
        self.returncode = 255
        with contextlib.suppress(OSError, ValueError):
            self.returncode = os.waitstatus_to_exitcode(int(self._status.read_text()))
            self._status.unlink()
        self._ended.set()


class WarmStarts:
    """The warm process of this instance. `mark`: prefix of its SEERD_ATTEMPT; `folder`: the agent's
    own; what keeps starts from being warm goes through `note`, once each. Imports may take
    `imports_s` seconds: a cold disk takes minutes.
    """

    def __init__(
        self, mark: str, folder: Path, note: Callable[[str], None], imports_s: float = 300.0
    ) -> None:
        self._mark = mark
        self._folder = folder
        self._note = note
        self._imports_s = imports_s
        self._noted: set[str] = set()
        self._turn = asyncio.Lock()
        self._plan: Optional[WarmPlan] = None
        self._process: Optional[_Process] = None
        self._learned: list[str] = []
        self._changed: set[str] = set()
        self._count = self._deaths = 0
        self._is_off = self._is_closed = False

    @property
    def learns(self) -> bool:
        """Whether it is still to be learned what trials import."""
        return self._plan is not None and self._plan.learns and not self._learned

    async def ready(self, plan: Optional[WarmPlan]) -> None:
        """Wait until it is settled whether the next start is warm; None: no start will be."""
        async with self._turn:
            if plan != self._plan and not self._is_closed:
                self._drop()
                self._plan, self._learned, self._changed = plan, [], set()
                self._deaths, self._is_off = 0, False
            await self._made_ready()

    async def start(self, plan: LaunchPlan, stopped: asyncio.Event) -> Optional[ForkedProcess]:
        """Start an attempt in its turn; None: it is stopped, or has to start in the usual way."""
        if not await came_before(self._turn.acquire(), stopped):
            return None
        try:
            process = await self._made_ready()
            return None if process is None else await self._forked(process, plan)
        finally:
            self._turn.release()

    async def learn(self, path: Path) -> None:
        """Learn from this file of the first attempt what trials import and change."""
        if not self.learns:
            return
        try:
            report = json.loads(path.read_text())
            modules, changed = list(map(str, report["modules"])), set(map(str, report["changed"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._turn_off(f"what trials import is not known ({error!r:.80})")
            return
        async with self._turn:
            self._learned = [name for name in modules if name not in STARTED]
            self._changed = changed
            await self._made_ready()

    def close(self) -> None:
        """End the process and all that is under way; all later starts are cold."""
        self._plan, self._is_closed = None, True
        self._drop()

    async def _made_ready(self) -> "Optional[_Process]":
        """Start the process if need be, and have it import what trials are known to import; return
        it, or None if the next start is not warm, as while a script may set variables for imports.
        """
        while (plan := self._plan) is not None and not self._is_off:
            is_early = self.learns and _sets_variables(plan.path)
            more = imports_of(plan.path) if self.learns and not is_early else self._learned
            try:
                process = self._process
                if process is None or not process.lives():
                    self._drop()
                    self._count += 1
                    mark, log = f"{self._mark}{self._count}", self._folder / "warm.log"
                    process = self._process = await _Process.begin(plan, mark, log)
                for names in (plan.modules, more):
                    for why in await process.preload(names, self._imports_s):
                        self._tell(why)
            except SlowError as error:
                self._turn_off(str(error))
            except (ColdError, OSError) as error:
                self._count_death(error)
            else:
                why = process.conflicts(self._changed)
                if why:
                    self._turn_off(why)
                return None if is_early or why else process
        return None

    async def _forked(self, process: "_Process", plan: LaunchPlan) -> Optional[ForkedProcess]:
        try:
            answer = await process.fork(plan)
            if "pid" in answer:
                return process.watch(int(answer["pid"]))
        except ColdError as error:
            self._count_death(error)
        except OSError as error:
            self._turn_off(f"the end of a fork cannot be watched ({error.strerror})")
        else:
            self._tell(f"trials start in the usual way: {answer.get('failed')}")
            return None
        # Whether there is a fork is unknown; and it has the attempt's mark only once it begins.
        mark, attempt = process.mark, plan.env[host.MARKER]
        marked = host.each_marked_with
        await in_thread_or_here(
            host.kill, lambda: chain(marked(mark), marked(attempt)), {process.pid}
        )
        return None

    def _count_death(self, error: Exception) -> None:
        self._drop()
        self._deaths += 1
        if self._deaths >= MOST_DEATHS:
            self._turn_off(str(error))

    def _turn_off(self, why: str) -> None:
        self._is_off = True
        self._drop()
        self._tell(f"trials start without anything imported beforehand: {why}")

    def _tell(self, why: str) -> None:
        if why not in self._noted and self._plan is not None:
            self._noted.add(why)
            self._note(why)

    def _drop(self) -> None:
        if self._process is not None:
            self._process.end()
        self._process = None


class _Process:
    """One warm process, and the conversation with it (`warm/server.py`)."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        wire: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        log: Path,
        plan: WarmPlan,
        mark: str,
        supervisor: int = 0,
    ) -> None:
        self.mark = mark
        self.pid = process.pid
        self._supervisor = supervisor  # its parent in a container; 0: it is in none
        self._process = process
        self._beside = str(plan.path.parent)  # the script's folder, which trials import from first
        self._reader, self._writer = wire
        self._log = log
        self._imported: set[str] = set()
        self._variables: dict[str, list[str]] = {"asked": [], "made": []}

    @classmethod
    async def begin(cls, plan: WarmPlan, mark: str, log: Path) -> "_Process":
        if plan.container is not None:
            return await cls._begin_inside(plan.container, plan, mark, log)
        here, theirs = socket.socketpair()
        wire = await asyncio.open_unix_connection(sock=here, limit=MOST_BYTES)
        argv = [plan.python, "-u", plan.program]
        argv += [str(theirs.fileno()), str(os.getpid()), " " * identity.ARGUMENTS]
        env = {**plan.env, host.MARKER: identity.padded(mark)}
        try:
            with theirs:
                process = await spawned(argv, env, str(log.parent), log, [theirs.fileno()])
        except BaseException:
            wire[1].close()
            raise
        return cls(process, wire, log, plan, mark)

    @classmethod
    async def _begin_inside(
        cls, container: Container, plan: WarmPlan, mark: str, log: Path
    ) -> "_Process":
        """Start it in a container, whose engine passes no socket on: it connects to one of ours."""
        folder, program = str(log.parent), str(Path(plan.program).with_name("keeper.py"))
        env = {**plan.env, host.MARKER: mark_of(container.run)}
        with socket.socket(socket.AF_UNIX) as listener:
            _bind(listener, log.parent)
            argv = [plan.python, "-u", program, SOCKET, mark]
            process = await spawned(*container.around(argv, env, folder), folder, log)
            accepted = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(listener))
            ended = asyncio.ensure_future(process.wait())
            await asyncio.wait({accepted, ended}, timeout=CONNECT_S, return_when=FIRST_COMPLETED)
            ended.cancel()
            if not accepted.done():
                accepted.cancel()
                raise ColdError(f"{container.engine} starts no process to fork from, see {log}")
        here = accepted.result()[0]
        wire = await asyncio.open_unix_connection(sock=here, limit=MOST_BYTES)
        peer = here.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # unix(7)
        return cls(process, wire, log, plan, mark, struct.unpack("3i", peer)[0])

    def lives(self) -> bool:
        return self._process.returncode is None and not self._reader.at_eof()

    async def preload(self, names: list[str], for_s: float) -> list[str]:
        """Import these; return what is left to trials, and why. Raises `ColdError`."""
        if self._imported.issuperset(names):
            return []
        answer = await self._asked({"preload": names}, for_s)
        self._imported.update(names)
        self._variables = {name: list(map(str, answer[name])) for name in self._variables}
        return list(map(str, answer["odd"]))

    async def fork(self, plan: LaunchPlan) -> dict[str, Any]:
        """Start an attempt; return the answer to that. Raises `ColdError`."""
        request = {"argv": plan.argv, "env": plan.env, "cwd": plan.cwd, "log": str(plan.log)}
        return await self._asked(request, FORK_S)

    def conflicts(self, changed: set[str]) -> str:
        """Return why the script changes variables too late for imports; empty if it does not."""
        asked, made = set(self._variables["asked"]), set(self._variables["made"])
        late = sorted(
            name for name in changed - made if name in asked or name.startswith(AT_IMPORT)
        )
        return f"the script sets {late[0]}, which is read by what it imports" if late else ""

    def watch(self, pid: int) -> ForkedProcess:
        """Watch a fork of it. Raises `OSError`."""
        return ForkedProcess(pid, self._supervisor, self._log.parent)

    def end(self) -> None:
        is_alive = self.lives()
        self._writer.close()
        if self._supervisor:  # which stays until the last fork has ended
            for pid in host.each_marked_with(self.mark):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        elif is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def _asked(self, request: dict[str, Any], for_s: float) -> dict[str, Any]:
        """Send a request, and return the answer. Raises `ColdError` if there is none in time."""
        try:
            self._writer.write(json.dumps({**request, "beside": self._beside}).encode() + b"\n")
            answer = json.loads(await asyncio.wait_for(self._reader.readline(), for_s))
        except asyncio.TimeoutError:
            raise SlowError(f"importing took longer than {for_s:.0f} s") from None
        except (OSError, ValueError) as error:
            why = f"the process that imports beforehand has failed, see {self._log}"
            raise ColdError(why) from error
        if not isinstance(answer, dict):
            raise ColdError(f"it answered {answer!r:.80}")
        return answer


def _bind(listener: socket.socket, folder: Path) -> None:
    """Have a socket listen in a folder, whose path may be longer than an address (unix(7))."""
    with contextlib.suppress(FileNotFoundError):
        (folder / SOCKET).unlink()
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        listener.bind(f"/proc/self/fd/{descriptor}/{SOCKET}")
    finally:
        os.close(descriptor)
    listener.setblocking(False)
    listener.listen(1)


def can_fork() -> bool:
    """Return whether this system has what warm starts need."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


def _sets_variables(script: Path) -> bool:
    """Return whether a script touches its environment before the last of its imports."""
    nodes = statements(script)
    last = max((at for at, node in enumerate(nodes) if imported_by(node)), default=0)
    return any("environ" in ast.dump(node) or "putenv" in ast.dump(node) for node in nodes[:last])
