"""Starts attempts by forks of a process that has imported what they import (`warm/`). It only ever
saves time: if anything is odd, the attempt starts in the usual way, which is reported once. Starts
wait only for imports that are known to work, and later ones for those in the script's text.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from itertools import chain
from pathlib import Path
from typing import Any, Awaitable, Callable, Dict, List, Optional, Set, TypeVar, Union

from seerd.agent import host
from seerd.agent.launch import LaunchPlan, WarmPlan
from seerd.agent.needs import ImportMemory, imported_by, imports_of, statements
from seerd.agent.threads import in_thread_or_here, thread_needed
from seerd.agent.warm import identity, preload

PATIENCE_S = 300.0
"""Seconds that imports may take: a cold disk takes minutes."""
FORK_S = 20.0
MOST_DEATHS, MOST_ODD = 3, 5
"""Ends of the process until all starts are cold; failed imports until nothing more is tried."""
MOST_BYTES = 1 << 22
"""The longest line that the process may write."""
AT_IMPORT = ("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "BLIS_", "NUMEXPR_")
"""Prefixes of variables that libraries in C read when they are loaded."""
STARTED = frozenset({"__main__", "__mp_main__"})


class RefusedError(Exception):
    """The warm process does not start this, and is ready for others."""


class ColdError(Exception):
    """The warm process has failed, or does not answer."""


class SlowError(ColdError):
    """The warm process has not answered in time."""


class OddImportError(Exception):
    """The warm process has ended: `packages` cannot be imported beforehand, `good` were."""

    def __init__(self, packages: List[str], why: str, good: List[str]) -> None:
        others = ", nor is what imports it" if len(packages) > 1 else ""
        super().__init__(f"{packages[0]} is not imported beforehand{others}: {why}")
        self.packages = packages
        self.good = good


class ForkedProcess:
    """A process that another one has forked for this one, which has become its parent."""

    def __init__(self, pid: int) -> None:
        """Watch it. Raises `OSError` if the system cannot tell of its end."""
        self.pid = pid
        self.returncode: Optional[int] = None  # exit status, negative: a signal; None: it runs
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._descriptor = os.pidfd_open(pid)
        self._loop.add_reader(self._descriptor, self._reap)

    async def wait(self) -> int:
        """Wait for its end, and return its exit status."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def _reap(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        try:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # waited for elsewhere: asyncio has this status then
            self.returncode = 255
        self._ended.set()


class WarmStarts:
    """The warm process of this instance. `mark`: prefix of its SEERD_ATTEMPT; `folder`: the agent's
    own; what keeps starts from being warm goes through `note`, once each.
    """

    def __init__(self, mark: str, folder: Path, note: Callable[[str], None]) -> None:
        self._mark = mark
        self._folder = folder
        self._note = note
        self._noted: Set[str] = set()
        self._turn = asyncio.Lock()
        self._plan: Optional[WarmPlan] = None
        self._process: Optional[_Process] = None
        self._learned: List[str] = []
        self._changed: Set[str] = set()
        self._memory = ImportMemory("")
        self._growing: Optional[asyncio.Task[None]] = None
        self._text_is_done = asyncio.Event()  # its text's imports are done, or left to the trials
        self._text_is_done.set()
        self._has_started = False
        self._count = self._deaths = self._failures = 0
        self._is_off = False

    @property
    def learns(self) -> bool:
        """Whether it is still to be learned what trials import."""
        return self._plan is not None and self._plan.learns and not self._learned

    async def ready(self, plan: Optional[WarmPlan]) -> None:
        """Wait until it is settled whether the next start is warm; None: no start will be."""
        async with self._turn:
            if plan != self._plan:
                self.close()
                self._plan, self._learned, self._changed = plan, [], set()
                self._deaths = self._failures = 0
                self._is_off = self._has_started = False
                self._text_is_done.clear()
            await self._is_ready()
            self._grow()

    async def start(self, plan: LaunchPlan, stopped: asyncio.Event) -> Optional[ForkedProcess]:
        """Start an attempt in its turn; None: it is stopped, or has to start in the usual way."""
        is_first, self._has_started = not self._has_started, True

        async def turn() -> None:
            if not is_first:
                await self._text_is_done.wait()
            await self._turn.acquire()

        if not await _came_before(turn(), stopped):
            return None
        try:
            if not self._may_be_warm() or not await self._is_ready():
                return None
            return await self._forked(plan)
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
            self._look_for_conflicts()
            self._grow()

    def close(self) -> None:
        """End the process and all that is under way."""
        self._plan = None
        if self._growing is not None:
            self._growing.cancel()
            self._growing = None
        self._drop()

    def _may_be_warm(self) -> bool:
        """Return whether a start may be warm; not while a script may set variables for imports."""
        plan = self._plan
        is_known = bool(self._learned) and (self._growing is None or self._growing.done())
        return plan is None or not plan.learns or is_known or not _sets_variables(plan.path)

    def _wanted(self, plan: WarmPlan) -> List[str]:
        guessed = imports_of(plan.path) if self.learns and self._may_be_warm() else []
        names = dict.fromkeys([*plan.modules, *guessed, *self._learned])
        return [name for name in names if preload.package(name) not in self._memory.odd]

    def _safe(self, plan: WarmPlan) -> List[str]:
        return [
            name
            for name in self._wanted(plan)
            if name in plan.modules or preload.package(name) in self._memory.good
        ]

    async def _is_ready(self) -> bool:
        """Start the process if need be, with what it should import; return whether it has that."""
        while self._plan is not None and not self._is_off:
            try:
                if self._process is None or not self._process.lives():
                    self._drop()
                    mark, log = self._next_mark(), self._folder / "warm.log"
                    self._process = await _Process.begin(self._plan, mark, log)
                    self._memory = ImportMemory(self._process.environment)
                    await self._process.preload(self._safe(self._plan), self._memory.odd)
            except OddImportError as error:
                self._drop()
                self._leave_out(error)
                if self._failures > MOST_ODD:
                    self._turn_off("too much of what they import cannot be imported beforehand")
            except SlowError as error:
                self._turn_off(str(error))
            except (ColdError, OSError) as error:
                self._drop()
                self._count_death(error)
            else:
                return True
        return False

    def _grow(self) -> None:
        if self._growing is None or self._growing.done():
            self._growing = asyncio.ensure_future(self._grown())

    async def _grown(self) -> None:
        try:
            while await self._has_grown():
                pass
        finally:
            self._text_is_done.set()

    async def _has_grown(self) -> bool:
        """Import more in a fork, which replaces the process; return whether to go on."""
        async with self._turn:
            if not await self._is_ready() or self._plan is None or self._process is None:
                return False
            plan, names = self._plan, self._safe(self._plan)
            if self._process.has(names):
                names = self._wanted(plan)
            if self._process.has(names):
                return False
            if self._failures > MOST_ODD:
                self._tell("no more is imported beforehand: too much of it cannot be")
                return False
            fork = await self._tried(self._process.forked(self._next_mark()))
        if fork is None:
            return False
        try:
            await fork.preload(names, self._memory.odd)
            async with self._turn:
                if plan == self._plan and not self._is_off:
                    fork, self._process = self._process, fork
                    self._memory.note(good=map(preload.package, names))
                    self._look_for_conflicts()
        except OddImportError as error:
            self._leave_out(error)
        except ColdError as error:
            self._tell(f"no more is imported beforehand: {error}")
            return False
        finally:
            if fork is not None:
                fork.end()
        return True

    def _leave_out(self, error: OddImportError) -> None:
        if error.packages[0] not in self._memory.odd:
            self._failures += 1
            self._tell(str(error))
        self._memory.note(map(preload.package, error.good), error.packages)

    def _look_for_conflicts(self) -> None:
        why = "" if self._process is None else self._process.conflicts(self._changed)
        if why:
            self._turn_off(why)

    def _next_mark(self) -> str:
        self._count += 1
        return f"{self._mark}{self._count}"

    async def _forked(self, plan: LaunchPlan) -> Optional[ForkedProcess]:
        assert self._process is not None
        process = self._process
        fork = await self._tried(process.fork(plan))
        if fork is None and self._process is None:
            # Whether there is a fork is unknown; and it has the attempt's mark only once it begins.
            mark, attempt = process.mark, plan.env[host.MARKER]
            marked = host.each_marked_with
            await in_thread_or_here(
                host.kill, lambda: chain(marked(mark), marked(attempt)), {process.pid}
            )
        return fork

    async def _tried(self, fork: "Awaitable[_Fork]") -> "Optional[_Fork]":
        """Return a fork of the process; None: none, and the process is dropped unless refused."""
        try:
            return await fork
        except RefusedError as error:
            self._tell(str(error))
        except ColdError as error:
            self._drop()
            self._count_death(error)
        except OSError as error:
            self._turn_off(f"the end of a fork cannot be watched ({error.strerror})")
        return None

    def _count_death(self, error: Exception) -> None:
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


_Fork = TypeVar("_Fork", ForkedProcess, "_Process")


class _Process:
    """One warm process, and the conversation with it (`warm/server.py`)."""

    def __init__(
        self,
        process: Union[asyncio.subprocess.Process, ForkedProcess],
        wire: socket.socket,
        log: Path,
        plan: WarmPlan,
        mark: str,
    ) -> None:
        self.mark = mark
        self.environment = ""  # name of the environment that it imports from
        self._process = process
        self._plan = plan
        self._beside = plan.path.parent  # the script's folder, from which trials import first
        self._wire = wire
        self._log = log
        self._imported: Set[str] = set()
        self._variables: Dict[str, List[str]] = {"asked": [], "made": []}

    @classmethod
    async def begin(cls, plan: WarmPlan, mark: str, log: Path) -> "_Process":
        here, theirs = socket.socketpair()
        here.setblocking(False)
        with contextlib.ExitStack() as unless_begun:
            unless_begun.enter_context(here)
            with open(log, "ab") as out, theirs, thread_needed():
                process = await asyncio.create_subprocess_exec(
                    *(plan.python, "-u", plan.program),
                    *(str(theirs.fileno()), str(os.getpid()), " " * identity.ARGUMENTS),
                    env={**plan.env, host.MARKER: identity.padded(mark)},
                    cwd=log.parent,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    pass_fds=[theirs.fileno()],
                )
            begun = cls(process, here, log, plan, mark)
            unless_begun.callback(begun.end)
            await begun.preload([], set())
            unless_begun.pop_all()
        return begun

    async def forked(self, mark: str) -> "_Process":
        """Fork it. Raises `RefusedError`, `ColdError`, or `OSError` if it cannot be watched."""
        here, theirs = socket.socketpair()
        here.setblocking(False)
        argv = [self._plan.python, "-u", self._plan.program]
        request: Dict[str, Any] = {"agent": os.getpid(), "argv": argv, "log": str(self._log)}
        request.update(env={**self._plan.env, host.MARKER: mark}, cwd=str(self._log.parent))
        try:
            with theirs:
                process = await self._fork(request, [theirs.fileno()])
        except BaseException:
            here.close()
            raise
        fork = _Process(process, here, self._log, self._plan, mark)
        fork.environment, fork._imported = self.environment, set(self._imported)
        fork._variables = self._variables
        return fork

    @property
    def pid(self) -> int:
        return self._process.pid

    def lives(self) -> bool:
        return self._process.returncode is None

    def has(self, names: List[str]) -> bool:
        return self._imported.issuperset(names)

    async def preload(self, names: List[str], odd: Set[str]) -> None:
        """Import these, without `odd` packages. Raises `OddImportError`, `ColdError`."""
        request = {"preload": names, "odd": sorted(odd), "beside": str(self._beside)}
        answer = await self._asked(request, PATIENCE_S, [])
        if "odd" in answer:
            packages, good = (list(map(str, answer[name])) for name in ("odd", "good"))
            raise OddImportError(packages, str(answer["why"]), good)
        self._imported.update(names)
        self._variables = {name: list(map(str, answer[name])) for name in self._variables}
        self.environment = str(answer["environment"])

    async def fork(self, plan: LaunchPlan) -> ForkedProcess:
        """Start an attempt; return its first process. Raises as `forked` does."""
        request = {"argv": plan.argv, "env": plan.env, "cwd": plan.cwd, "log": str(plan.log)}
        return await self._fork(request, [])

    async def _fork(self, request: Dict[str, Any], descriptors: List[int]) -> ForkedProcess:
        request["beside"] = str(self._beside)
        answer = await self._asked(request, FORK_S, descriptors)
        if "pid" not in answer:
            raise RefusedError(f"trials start in the usual way: {answer.get('failed')}")
        return ForkedProcess(int(answer["pid"]))

    def conflicts(self, changed: Set[str]) -> str:
        """Return why the script changes variables too late for imports; empty if it does not."""
        asked, made = set(self._variables["asked"]), set(self._variables["made"])
        late = sorted(
            name for name in changed - made if name in asked or name.startswith(AT_IMPORT)
        )
        return f"the script sets {late[0]}, which is read by what it imports" if late else ""

    def end(self) -> None:
        self._wire.close()
        if self.lives():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def _asked(
        self, request: Dict[str, Any], for_s: float, descriptors: List[int]
    ) -> Dict[str, Any]:
        """Send a request, and return the answer. Raises `ColdError` if there is none in time."""
        loop = asyncio.get_running_loop()
        try:
            data = json.dumps(request).encode() + b"\n"
            sent = socket.send_fds(self._wire, [data[:1]], descriptors) if descriptors else 0
            await loop.sock_sendall(self._wire, data[sent:])
            line = await asyncio.wait_for(self._line(loop), for_s)
            answer = json.loads(line)
        except asyncio.TimeoutError:
            raise SlowError(f"importing took longer than {for_s:.0f} s") from None
        except (OSError, ValueError) as error:
            why = f"the process that imports beforehand has failed, see {self._log}"
            raise ColdError(why) from error
        if not isinstance(answer, dict):
            raise ColdError(f"it answered {answer!r:.80}")
        return answer

    async def _line(self, loop: asyncio.AbstractEventLoop) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            part = await loop.sock_recv(self._wire, 1 << 16)
            if not part or len(line) > MOST_BYTES:
                raise ConnectionError
            line += part
        return line


async def _came_before(work: Awaitable[object], stopped: asyncio.Event) -> bool:
    task, other = asyncio.ensure_future(work), asyncio.ensure_future(stopped.wait())
    await asyncio.wait({task, other}, return_when=asyncio.FIRST_COMPLETED)
    other.cancel()
    return task.done() or not task.cancel()


def can_fork() -> bool:
    """Return whether this system has what warm starts need."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


def _sets_variables(script: Path) -> bool:
    """Return whether a script touches its environment before the last of its imports."""
    nodes = statements(script)
    last = max((at for at, node in enumerate(nodes) if imported_by(node)), default=0)
    return any("environ" in ast.dump(node) or "putenv" in ast.dump(node) for node in nodes[:last])
