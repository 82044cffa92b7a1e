"""The first thing that runs on a machine, sent over SSH as text, for any Python 3: it fetches the
agent's zip if need be, verifies it, and goes on with its code.
"""

import hashlib
import json
import os
import sys
from typing import Any, BinaryIO, Dict

OLDEST = (3, 9)
MARK = b"seerd "  # how every line of ours begins: shells' start files print on the same stream


def bootstrap(stream: BinaryIO) -> None:
    """Read a remote task, get the zip if it is not here, and carry out the task with its code."""
    task = json.loads(stream.readline().decode())
    if sys.version_info < OLDEST:
        version = ".".join(map(str, sys.version_info[:3]))
        needs = "its Python, %s, is version %s; seerd's agent needs 3.9 or newer"
        say({"failed": needs % (sys.executable, version)})
        return
    path = os.path.join(os.path.expanduser("~"), ".cache", "seerd", "agents", task["zip"] + ".pyz")
    if checksum(path) != task["zip"]:
        say({"need": True})
        fetch(stream, task["size"], task["zip"], path)
    else:
        say({"need": False})
    os.utime(path)
    sys.path.insert(0, path)
    from seerd.agent import remote_tasks

    remote_tasks.carry_out(task, path, stream, say)


def say(answer: Dict[str, Any]) -> None:
    """Write an answer to standard output, as one line of JSON, for the machine that sent us."""
    sys.stdout.buffer.write(MARK + json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


def checksum(path: str) -> str:
    """Return the SHA-256 of a file, in hex; empty if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def fetch(stream: BinaryIO, size: int, expected: str, path: str) -> None:
    """Write `size` bytes of the stream to `path`, whole or not. Raises `ValueError`."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    part = "%s.%d.part" % (path, os.getpid())
    with open(part, "wb") as file:
        file.write(stream.read(size))
    if checksum(part) != expected:
        os.unlink(part)
        raise ValueError("the agent's zip did not arrive whole")
    os.replace(part, path)


if __name__ == "__main__":
    bootstrap(sys.stdin.buffer)
