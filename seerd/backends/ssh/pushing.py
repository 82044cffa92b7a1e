"""Remote tasks: short-lived Python processes on a machine, one at a time. The agent's zip and every
source file are sent only if the machine has none with this checksum.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import shlex
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from seerd import agent
from seerd.backends.ssh.connecting import BOOTING, SHOWN, UnreachableError
from seerd.errors import ProviderError

MARK = b"seerd "
CHUNK = 1 << 18
MOST_ANSWER = 32 << 20
ANSWER_S = 120.0
"""How long to wait for one answer, seconds: as long as copying a large source on a slow disk."""
NO_PROGRAM = (126, 127)


@dataclass(frozen=True, slots=True)
class Bundle:
    """What every machine of a run gets."""

    program: Path  # the agent's zip
    source: Path  # a folder with the user's source, regular files only
    # where jobs share the run, those whose folders of it are sent; empty: all of it is
    jobs: tuple[str, ...] = ()

    def files(self) -> list[Path]:
        """Return the files of the source that are sent. Raises `OSError`."""
        folders = [self.source / job for job in self.jobs] or [self.source]
        return sorted(path for top in folders for path in top.rglob("*") if path.is_file())


@dataclass(frozen=True, slots=True)
class PackedBundle:
    """A bundle as it is sent."""

    zip: bytes  # the agent's zip
    zip_sha256: str  # its checksum
    manifest: bytes  # the source's files as JSON: path, checksum, size in bytes, whether executable
    tree: str  # the checksum of the manifest
    files: dict[str, Path]  # the source's files by their checksums


def pack(bundle: Bundle) -> PackedBundle:
    """Read and checksum the whole bundle. Raises `OSError`."""
    entries = []
    files = {}
    for path in bundle.files():
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        name, about = path.relative_to(bundle.source).as_posix(), path.stat()
        entries.append((name, sha256, about.st_size, bool(about.st_mode & 0o100)))
        files[sha256] = path
    manifest = json.dumps(entries, separators=(",", ":")).encode() + b"\n"
    program = bundle.program.read_bytes()
    program_sha256, manifest_sha256 = (
        hashlib.sha256(content).hexdigest() for content in (program, manifest)
    )
    return PackedBundle(program, program_sha256, manifest, manifest_sha256, files)


async def run_remote_task(
    connection: asyncssh.SSHClientConnection,
    do: str,
    run: str,
    python: str,
    packed: PackedBundle,
    details: dict[str, Any],
    sending: Callable[[int], None] = lambda _: None,
) -> Any:
    """Run a task of `agent/remote_tasks.py` there, of this run with this interpreter, and return
    its result. `details`: its other arguments. `sending` gets the bytes of source files that are
    sent now, and 0 when they have been. Raises `ProviderError` if the task failed,
    `UnreachableError` if the machine cannot be used.
    """
    program = await asyncio.to_thread((Path(agent.__file__).parent / "bootstrap.py").read_bytes)
    # Without site (-S), Python starts faster and needs nothing that is installed there. The program
    # comes on standard input: everybody on the machine could read a command line, and shells differ
    # in their quoting.
    code = f"import sys;exec(sys.stdin.buffer.read({len(program)}))"
    command = f"{shlex.quote(python)} -I -S -c '{code}'"
    about = {"do": do, "run": run, "zip": packed.zip_sha256, "size": len(packed.zip)}
    about |= details
    try:
        async with connection.create_process(command, encoding=None) as process:
            # A machine that still boots may have ended the command by now; it has printed why.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(program + json.dumps(about).encode() + b"\n")
            return await _serve(process, packed, python, sending)
    except (OSError, asyncssh.Error) as error:
        raise UnreachableError(f"disconnected: {error or type(error).__name__}") from error


async def _serve(
    process: asyncssh.SSHClientProcess[bytes],
    packed: PackedBundle,
    python: str,
    sending: Callable[[int], None],
) -> Any:
    """Send the files that the task asks for until it is done; return its result."""
    lines = _Lines(process.stdout)
    while True:
        answer = await _answer(process, lines, python)
        if "done" in answer:
            return answer["done"]
        if "failed" in answer:
            raise ProviderError(answer["failed"])
        if "later" in answer:
            raise UnreachableError(str(answer["later"]), reached=True)
        if answer.get("need"):
            process.stdin.write(packed.zip)
        if answer.get("manifest"):
            process.stdin.write(packed.manifest)
        missing = answer.get("missing", [])
        if not all(isinstance(sha256, str) and sha256 in packed.files for sha256 in missing):
            raise ProviderError("it asks for a file that is none of the run's")
        sending(sum(packed.files[sha256].stat().st_size for sha256 in missing))
        for sha256 in missing:
            async for chunk in chunks(packed.files[sha256]):
                process.stdin.write(chunk)
                await process.stdin.drain()
        sending(0)


@dataclass(slots=True)
class _Lines:
    """Reads a machine's output line by line, and keeps no more of it than one answer may have."""

    _reader: asyncssh.SSHReader[bytes]
    _most: int = MOST_ANSWER
    _kept: bytes = b""

    async def next(self) -> bytes:
        """Return the next line, or the rest when the stream ended."""
        pieces = [self._kept]
        while b"\n" not in pieces[-1]:
            if sum(map(len, pieces)) > self._most:
                raise ProviderError("it prints more than any answer has")
            piece = await self._reader.read(CHUNK)
            if not piece:
                break
            pieces.append(piece)
        line, end, self._kept = b"".join(pieces).partition(b"\n")
        return line + end


async def _answer(
    process: asyncssh.SSHClientProcess[bytes], lines: _Lines, python: str
) -> dict[str, Any]:
    """Return the task's next answer, skipping other lines: a shell's start files may print some."""
    try:
        async with asyncio.timeout(ANSWER_S):
            while line := await lines.next():
                if line.startswith(MARK):
                    return _checked(line.removeprefix(MARK))
            ended = await process.wait()
    except TimeoutError:
        raise UnreachableError(f"it did not answer within {ANSWER_S:.0f}s") from None
    last = output_of(ended)
    if BOOTING.search(last):
        raise UnreachableError(f"it is still booting (pam_nologin): {last}")
    if ended.exit_status is None:
        raise UnreachableError(f"disconnected: {last or 'the connection was lost'}")
    if ended.exit_status in NO_PROGRAM:
        raise ProviderError(
            f"it has no {python!r} to run the agent with ({last}); install Python 3.9 or "
            "newer there, or say where it is: [train] python"
        )
    raise ProviderError(f"{python} ended there with exit status {ended.exit_status}: {last}")


def _checked(line: bytes) -> dict[str, Any]:
    """Parse an answer of `agent/remote_tasks.py`. The machine may send an invalid one."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or not isinstance(answer.get("missing", []), list):
        raise ProviderError(f"it sent what is no answer: {line[:SHOWN].decode(errors='replace')!r}")
    return {**answer, "failed": str(answer["failed"])} if "failed" in answer else answer


def output_of(ended: asyncssh.SSHCompletedProcess) -> str:
    """Return the end of what a program printed, in one line."""
    parts = [
        bytes(part).decode(errors="replace")
        for part in (ended.stderr, ended.stdout)
        if isinstance(part, bytes | bytearray)
    ]
    return " ".join(" ".join(parts).split())[-SHOWN:]


async def chunks(path: Path) -> AsyncIterator[bytes]:
    """Yield a file's content in parts."""
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, CHUNK):
            yield chunk
