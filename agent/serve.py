"""The agent itself: takes orders on a Unix socket, carries them out, tells facts, and lets go when nobody renews its lease.

The one rule: what it is told and what it does survive the daemon, a lost connection and its own death: orders and facts are in its journal
before anything follows from them, and a new agent in the same folder cleans up after the old one before it takes orders.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import signal
import sys
import time
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Dict, List, Optional, Union

from agent import host
from agent.attempts import Attempt
from agent.journal import Journal
from agent.launch import Places, launch_plan
from agent.lease import Lease
from agent.outbox import Maker, Outbox
from agent.protocol import (
    MAX_LINE,
    VERSION,
    Ack,
    Exited,
    Hello,
    Job,
    Message,
    Prepare,
    Prepared,
    ProtocolError,
    Refused,
    Renew,
    Shutdown,
    Start,
    Started,
    Stop,
    Welcome,
    decode,
    encode,
)
from agent.transfer import fetch, is_safe

LEASE_CHECK_S = 0.2
log = logging.getLogger("agent")


class Agent:
    """Runs in its folder, which is the working directory, until it is shut down or its lease ends."""

    def __init__(self, run: str, gpus: int, cuda: bool, lease: Lease, library: Path) -> None:
        self._run = run
        self._gpus = gpus
        self._cuda = cuda
        self._lease = lease
        self._library = library
        self._folder = Path.cwd()
        self._journal = Journal(self._folder / "facts.jsonl")
        self._attempts: Dict[str, Attempt] = {}
        self._tasks: "set[asyncio.Task[None]]" = set()
        self._writer: Optional[asyncio.StreamWriter] = None
        self._ended = asyncio.Event()
        self._failure: Optional[BaseException] = None

    async def serve(self) -> None:
        """Until the end."""
        await asyncio.to_thread(self._clean_up)
        with contextlib.suppress(FileNotFoundError):
            os.unlink("agent.sock")
        server = await asyncio.start_unix_server(self._converse, "agent.sock", limit=MAX_LINE)
        os.chmod("agent.sock", 0o600)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._told_to_end)
        self._begin(self._watch_lease())
        await self._ended.wait()
        server.close()
        if self._writer is not None:
            self._writer.close()
        self._journal.close()
        if self._failure is not None:
            raise self._failure

    # ------------------------------------------------------------ the conversation

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection; the newest is the daemon's."""
        try:
            hello = decode(await reader.readline())
            if not isinstance(hello, Hello) or hello.version != VERSION or hello.run != self._run:
                raise ProtocolError(f"this is the agent of {self._run}, protocol {VERSION}")
            self._welcome(hello, writer)
            while line := await reader.readline():
                if self._writer is not writer:
                    break
                await self._obey(decode(line))
        except (ProtocolError, ValueError, OSError) as error:
            log.warning("connection ended: %s", error)
        finally:
            if self._writer is writer:
                self._writer = None
            writer.close()

    def _welcome(self, hello: Hello, writer: asyncio.StreamWriter) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = writer
        now = time.time()
        self._say(Welcome(VERSION, "1", self._gpus, self._journal.last, now, sorted(self._attempts)))
        for fact in self._journal.after(hello.seen):
            self._say(fact)

    async def _obey(self, message: Message) -> None:
        if isinstance(message, Renew):
            self._lease.renew(time.monotonic(), message.for_s, message.grace_s)
        elif isinstance(message, Shutdown):
            self._begin(self._shut_down())
        elif isinstance(message, (Prepare, Start, Stop)) and not self._journal.seen(message.id):
            log.info("order %s: %s", message.id, message.kind)
            if isinstance(message, Stop):
                self._stop(message)
            else:
                self._begin(self._carry_out(message))
        elif not isinstance(message, (Ack, Prepare, Start, Stop)):
            raise ProtocolError(f"{message.kind} is not for an agent")

    def _say(self, message: Message) -> None:
        if self._writer is not None:
            self._writer.write(encode(message))

    def _tell(self, makers: List[Maker]) -> None:
        for fact in self._journal.add(makers):
            self._say(fact)

    def _refuse(self, order: str, why: str) -> None:
        at = time.time()
        self._tell([lambda seq: Refused(seq, at, order, why)])

    def _begin(self, work: "asyncio._CoroutineLike[None]") -> None:
        """Do this beside everything else; if it fails unforeseen, the agent ends as a whole."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._look)

    def _look(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
            self._ended.set()

    # ------------------------------------------------------------ orders

    async def _carry_out(self, order: Union[Prepare, Start]) -> None:
        try:
            if isinstance(order, Prepare):
                await self._prepare(order)
            else:
                await self._start(order)
        except OSError as error:
            self._refuse(order.id, f"{error.strerror}: {error.filename}")

    async def _prepare(self, order: Prepare) -> None:
        (self._folder / "job.json").write_text(json.dumps(asdict(order.job)))
        problem = await self._set_up(order.job)
        if problem:
            self._refuse(order.id, problem)
            return
        at = time.time()
        self._tell([lambda seq: Prepared(seq, at, order.id)])

    async def _set_up(self, job: Job) -> str:
        """Run the setup commands, once for each content; what went wrong, or nothing."""
        done = self._folder / f"setup-{hashlib.sha256(json.dumps(job.setup).encode()).hexdigest()[:16]}.done"
        if not job.setup or done.exists():
            return ""
        with open("setup.log", "ab") as out:
            for command in job.setup:
                process = await asyncio.create_subprocess_shell(
                    command, cwd=job.source, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out
                )
                if await process.wait():
                    lines = Path("setup.log").read_text(errors="replace").splitlines()[-20:]
                    return "\n".join(
                        [f"setup command {command!r} ended with exit status {process.returncode}:", *lines]
                    )
        done.touch()
        return ""

    async def _start(self, order: Start) -> None:
        why = self._why_not(order)
        if why:
            self._refuse(order.id, why)
            return
        job = self._job()
        places = self._places(order.trial, order.attempt)
        await asyncio.to_thread(fetch, Path(job.store) / order.trial, places.checkpoints, order.checkpoints)
        plan = launch_plan(job, order, self._run, places, self._cuda, dict(os.environ))
        attempt = Attempt(order, plan, places, self._outbox(job, order.trial, order.attempt), self._tell)
        self._attempts[attempt.key] = attempt
        try:
            await attempt.begin()
        except OSError:
            del self._attempts[attempt.key]
            raise
        self._begin(self._follow(attempt))

    def _why_not(self, order: Start) -> str:
        if not is_safe(order.trial) or not all(map(is_safe, order.checkpoints)):
            return "a name is not allowed"
        if not order.gpus or not set(order.gpus) <= set(range(self._gpus)):
            return f"GPUs {order.gpus} are not among the {self._gpus} here"
        for attempt in self._attempts.values():
            if attempt.gpus & set(order.gpus):
                return f"GPUs {sorted(attempt.gpus & set(order.gpus))} are held by {attempt.key}"
        return "" if (self._folder / "job.json").exists() else "this instance is not prepared"

    async def _follow(self, attempt: Attempt) -> None:
        await attempt.follow()
        del self._attempts[attempt.key]

    def _stop(self, order: Stop) -> None:
        attempt = self._attempts.get(f"{order.trial}/{order.attempt}")
        if attempt is not None:
            attempt.stop("asked", order.grace_s if order.checkpoint else 0.0)

    # ------------------------------------------------------------ ends

    async def _watch_lease(self) -> None:
        while not self._lease.ended(time.monotonic()):
            await asyncio.sleep(LEASE_CHECK_S)
        log.warning("nobody has renewed the lease: letting go")
        await self._let_go("lease")

    async def _let_go(self, cause: str) -> None:
        """Every trial may save and exit; then the agent ends."""
        await self._end_all(cause, self._lease.grace_s)

    def _told_to_end(self) -> None:
        self._begin(self._let_go("asked"))

    async def _shut_down(self) -> None:
        await self._end_all("asked", 0.0)

    async def _end_all(self, cause: str, grace_s: float) -> None:
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.stop(cause, grace_s)
        for attempt in attempts:
            await attempt.done.wait()
        self._ended.set()

    # ------------------------------------------------------------ after the death of an agent before us

    def _clean_up(self) -> None:
        """End what it left running, tell what it had not told, and that those attempts are over."""
        left = host.kill(lambda: host.marked_with(f"{self._run}/"))
        if left:
            raise RuntimeError(f"processes {sorted(left)} of an agent before cannot be killed")
        facts = self._journal.facts
        ended = {(fact.trial, fact.attempt) for fact in facts if isinstance(fact, Exited)}
        open_ones = [f for f in facts if isinstance(f, Started) and (f.trial, f.attempt) not in ended]
        for started in open_ones:
            outbox = self._outbox(self._job(), started.trial, started.attempt)
            own = [f for f in facts if getattr(f, "trial", "") == started.trial]
            outbox.forget_nothing([f for f in own if getattr(f, "attempt", 0) == started.attempt])
            self._journal.add(outbox.drain())
            self._journal.add([_lost(started)])

    # ------------------------------------------------------------ places

    def _job(self) -> Job:
        job: Job = Job(**json.loads((self._folder / "job.json").read_text()))
        return job

    def _places(self, trial: str, attempt: int) -> Places:
        own = self._folder / "trials" / trial
        return Places(own / str(attempt), own / "checkpoints", self._library, self._folder / "agent.lock")

    def _outbox(self, job: Job, trial: str, attempt: int) -> Outbox:
        places = self._places(trial, attempt)
        return Outbox(places.attempt / "out.jsonl", trial, attempt, places.checkpoints, Path(job.store) / trial)


def _lost(started: Started) -> Maker:
    at = time.time()
    return lambda seq: Exited(seq, at, started.trial, started.attempt, "lost", None)


def main() -> int:
    """The entry point."""
    options = _options()
    os.makedirs(options.folder, mode=0o700, exist_ok=True)
    os.chdir(options.folder)
    lock = os.open("agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("another agent lives in this folder", file=sys.stderr)
        return 0
    Path("agent.pid").write_text(str(os.getpid()))
    logging.basicConfig(filename="agent.log", level=logging.INFO, format="%(asctime)s %(message)s")
    host.adopt_orphans()
    lease = Lease(time.monotonic() + options.lease_s, options.grace_s)
    library = Path(options.library) if options.library else _unpack_library()
    asyncio.run(_serve(options, lease, library))
    return 0


async def _serve(options: argparse.Namespace, lease: Lease, library: Path) -> None:
    await Agent(options.run, options.gpus, options.cuda, lease, library).serve()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="agent")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--gpus", type=int, required=True)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--cuda", action="store_true", help="GPUs are CUDA devices")
    kind.add_argument("--slots", action="store_true", help="GPUs are CPU slots")
    parser.add_argument("--lease-s", type=float, required=True)
    parser.add_argument("--grace-s", type=float, required=True)
    parser.add_argument("--library", help="where `seerd` can be imported from; default: out of this zip")
    return parser.parse_args()


def _unpack_library() -> Path:
    """The training side out of our own zip."""
    library = Path("lib").resolve()
    with zipfile.ZipFile(sys.argv[0]) as bundle:
        for name in bundle.namelist():
            if name.startswith("seerd/"):
                bundle.extract(name, library)
    return library
