"""The warm process: takes requests of its agent, and forks.

The one rule: it has one thread, and does nothing but import, wait and fork. It ends when its agent
closes the socket. One JSON object per line travels. From the agent:

    {"preload": [NAMES], "odd": [PACKAGES], "beside": FOLDER}
                                import these, except what is in the folder; PACKAGES are unfit
    {"argv": [...], "env": {...}, "cwd": FOLDER, "log": FILE, "beside": FOLDER}      start this
    the same with "agent": PID and a socket    fork a process that serves this socket likewise

To the agent: after imports `{"asked": [VARIABLES], "made": [VARIABLES], "environment": NAME}`,
variables that modules asked for, and changed; or `{"odd": [PACKAGES], "why": TEXT, "good":
[NAMES]}` if these packages cannot be imported beforehand, and the process ends. After a start
`{"pid": N}` or `{"failed": TEXT}`.
"""

from __future__ import annotations

import gc
import json
import os
import socket
from typing import Any, Dict, List, Optional, Tuple, Union

from seerd.agent.warm import identity, preload, torchrun
from seerd.agent.warm.script import Script

Work = Union[Script, torchrun.Launcher]


def serve(control: socket.socket) -> Optional[Work]:
    """Serve requests until there are none; return a fork's work; None: this process has none."""
    identity.remember()
    imports = preload.Imports()
    while True:
        request, descriptors = _received(control)
        if "preload" in request:
            if not _warmed(control, imports, request):
                return None
        elif "argv" in request:
            request["env"] = imports.added_to(request["env"])
            if _is_fork(control, request):
                control.close()
                if "agent" not in request:
                    argv = request["argv"]
                    return (torchrun.Launcher if torchrun.is_for(argv) else Script)(argv).begun()
                control = socket.socket(fileno=descriptors.pop())
                identity.die_with(request["agent"])
        else:
            return None
        for descriptor in descriptors:
            os.close(descriptor)


def _received(control: socket.socket) -> Tuple[Dict[str, Any], List[int]]:
    """Wait for a request; return it and its descriptors, empty if there are no more requests."""
    line = b""
    descriptors: List[int] = []
    while not line.endswith(b"\n"):
        part, more, _, _ = socket.recv_fds(control, 1 << 16, 1)
        if not part:
            return {}, descriptors
        line += part
        descriptors += more
    return json.loads(line), descriptors


def _warmed(control: socket.socket, imports: preload.Imports, request: Dict[str, Any]) -> bool:
    try:
        imports.load(request["preload"], request["odd"], request["beside"])
    except preload.OddModuleError as error:
        _say(control, {"odd": error.packages, "why": str(error), "good": error.good})
        return False
    gc.collect()
    gc.freeze()  # or the next collection of each fork would copy every page
    learned = {"asked": sorted(imports.asked), "made": sorted(imports.made)}
    _say(control, {**learned, "environment": preload.environment()})
    return True


def _is_fork(control: socket.socket, request: Dict[str, Any]) -> bool:
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


def _fork_in_the_middle(reads: int, writes: int, request: Dict[str, Any]) -> None:
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


def _say(control: socket.socket, answer: Dict[str, Any]) -> None:
    control.sendall(json.dumps(answer).encode() + b"\n")
