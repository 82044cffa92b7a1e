"""The warm process: takes requests of its agent, and forks.

The one rule: it has one thread, and does nothing but import, wait and fork. It ends when its agent
closes the socket. One JSON object per line travels. From the agent:

    {"preload": [NAMES], "beside": FOLDER}      import these, except what is in the folder
    {"argv": [...], "env": {...}, "cwd": FOLDER, "log": FILE, "beside": FOLDER}      start this

To the agent: after imports `{"asked": [VARIABLES], "made": [VARIABLES], "odd": [TEXTS]}`, variables
that modules asked for, and changed, and what is left to trials, and why. After a start
`{"pid": N}` or `{"failed": TEXT}`.
"""

from __future__ import annotations

import gc
import json
import os
import socket
from typing import Any, Optional, Union

from seerd.agent.warm import identity, preload, torchrun
from seerd.agent.warm.script import Script

MOST_ODD = 5  # packages that are left to trials until nothing more is imported
Work = Union[Script, torchrun.Launcher]


def serve(control: socket.socket) -> Optional[Work]:
    """Serve requests until there are none; return a fork's work; None: this process has none."""
    identity.remember()
    imports = preload.Imports()
    requests = control.makefile("rb")
    while line := requests.readline():
        request = json.loads(line)
        if "preload" in request:
            _import_in_a_fork(control, imports, request["preload"], request["beside"])
            continue
        request["env"] = imports.added_to(request["env"])
        if _is_fork(control, request):
            requests.close()
            control.close()
            argv = request["argv"]
            return torchrun.Launcher(argv).begun() if torchrun.is_for(argv) else Script(argv)
    return None


def _import_in_a_fork(
    control: socket.socket, imports: preload.Imports, names: list[str], beside: str
) -> None:
    """Import in a fork, which goes on in the place of this process, and dies with it. If an import
    is odd, the fork ends, and the next one leaves that out. Returns in the fork alone.
    """
    odd: list[str] = []
    while True:
        reads, writes = os.pipe()
        parent = os.getpid()
        fork = os.fork()
        if fork == 0:
            identity.die_with(parent)
            os.close(reads)
            failure: Any = None
            try:
                imports.load(names, beside)
            except preload.OddModuleError as error:
                failure = [error.packages, str(error)]
            os.write(writes, json.dumps(failure).encode() + b"\n")
            os.close(writes)
            if failure is not None:
                os._exit(0)
            gc.collect()
            gc.freeze()  # or the next collection of each fork would copy every page
            made = sorted(imports.made)
            _say(control, {"asked": sorted(imports.asked), "made": made, "odd": odd})
            return
        os.close(writes)
        with os.fdopen(reads, "rb") as pipe:
            outcome = pipe.readline()  # not all: what an import has left behind has it open too
        _, status = os.waitpid(fork, 0)
        failure = json.loads(outcome) if outcome else [[], ""]
        if failure is None:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        packages, why = failure
        if packages and packages[0] not in imports.odd:
            others = ", nor is what imports it" if len(packages) > 1 else ""
            odd.append(f"{packages[0]} is not imported beforehand{others}: {why}")
        imports.odd.update(packages)
        if not packages or len(odd) > MOST_ODD:
            why = "too much of it cannot be" if packages else "that has failed, see warm.log"
            odd.append(f"no more is imported beforehand: {why}")
            names = []


def _is_fork(control: socket.socket, request: dict[str, Any]) -> bool:
    """Fork, if that is possible; return whether this is the fork. The fork's parent ends at once,
    so that the agent becomes its parent: it is their subreaper.
    """
    why = preload.why_not(request["beside"])
    if torchrun.is_for(request["argv"]) and not torchrun.can_fork_ranks():
        why = "its torchrun starts ranks in another way than is known here"
    if why:
        _say(control, {"failed": why})
        return False
    reads, writes = os.pipe()
    try:
        middle = os.fork()
    except OSError as error:
        os.close(reads)
        os.close(writes)
        _say(control, {"failed": f"no fork: {error.strerror}"})
        return False
    if middle == 0:
        _fork_in_the_middle(reads, writes, request)
        return True
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        pid = pipe.read()
    os.waitpid(middle, 0)
    _say(control, {"pid": int(pid)} if pid else {"failed": "a fork has failed"})
    return False


def _fork_in_the_middle(reads: int, writes: int, request: dict[str, Any]) -> None:
    os.close(reads)
    try:
        if os.fork():
            os._exit(0)
        identity.take(request)
        os.write(writes, str(os.getpid()).encode())
        os.close(writes)
    except BaseException as error:  # noqa: BLE001
        # What the process itself would do next is not for a fork.
        os.write(2, f"{error!r}\n".encode())
        os._exit(1)


def _say(control: socket.socket, answer: dict[str, Any]) -> None:
    control.sendall(json.dumps(answer).encode() + b"\n")
