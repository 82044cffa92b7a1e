"""The warm process: takes requests of its agent, and forks.

The one rule: it has one thread, and does nothing but import, wait and fork. It ends when its agent
has closed the other end of the socket.

One JSON object per line travels. From the agent:

    {"preload": [NAMES], "beside": FOLDER}     import these, unless what lies in the folder has one
                                               of these names
    {"argv": [...], "env": {...}, "cwd": FOLDER, "log": FILE, "beside": FOLDER}      start this

To the agent: after imports `{"asked": [VARIABLES], "made": [VARIABLES]}`, those of the environment
that modules asked for, and changed; or `{"odd": NAME, "why": TEXT}` if a module cannot be imported
beforehand, and the process ends. After a start `{"pid": N}` or `{"failed": TEXT}`.
"""

from __future__ import annotations

import gc
import json
import os
import socket
from typing import Any, Dict, List, Optional, Union

from seerd.agent.warm import identity, preload, torchrun
from seerd.agent.warm.script import Script

Work = Union[Script, torchrun.Launcher]


def serve(control: socket.socket) -> Optional[Work]:
    """Serve requests until there are no more. Returns what a fork is to do; None in the process
    itself.
    """
    identity.remember()
    imports, requests = preload.Imports(), control.makefile("rb")
    for line in requests:
        request = json.loads(line)
        if "preload" in request:
            if not _warmed(control, imports, request):
                break
            continue
        request["env"] = imports.added_to(request["env"])
        work = _started(control, request)
        if work is not None:
            requests.close()
            control.close()
            return work.begun()
    return None


def _warmed(control: socket.socket, imports: preload.Imports, request: Dict[str, Any]) -> bool:
    """Import; return whether forks may be made of this process."""
    try:
        imports.load(request["preload"], request["beside"])
    except preload.OddModuleError as error:
        _say(control, {"odd": error.module, "why": str(error)})
        return False
    gc.collect()
    gc.freeze()  # or the next collection of each fork would copy every page
    _say(control, {"asked": sorted(imports.asked), "made": sorted(imports.made)})
    return True


def _started(control: socket.socket, request: Dict[str, Any]) -> Optional[Work]:
    """Fork, and return what the fork is to do; None in the process itself.

    The fork's parent ends at once, so that the agent becomes its parent: it is their subreaper.
    """
    why = _why_not(request["argv"], request["beside"])
    if why:
        _say(control, {"failed": why})
        return None
    told, tells = os.pipe()
    try:
        middle = os.fork()
    except OSError as error:
        os.close(told)
        os.close(tells)
        _say(control, {"failed": f"no fork: {error.strerror}"})
        return None
    if middle == 0:
        return _in_the_middle(told, tells, request)
    os.close(tells)
    with os.fdopen(told, "rb") as pipe:
        pid = pipe.read()
    os.waitpid(middle, 0)
    _say(control, {"pid": int(pid)} if pid else {"failed": "a fork has failed"})
    return None


def _why_not(argv: List[str], beside: str) -> str:
    """Say why this cannot be started by forks; empty if it can."""
    if torchrun.is_for(argv) and not torchrun.can_fork_ranks():
        return "its torchrun starts ranks in another way than is known here"
    return preload.why_not(beside)


def _in_the_middle(told: int, tells: int, request: Dict[str, Any]) -> Work:
    """Fork again, and end; the second fork tells its id and returns what it is to do."""
    os.close(told)
    try:
        if os.fork():
            os._exit(0)
        identity.take(request)
        os.write(tells, str(os.getpid()).encode())
        os.close(tells)
    except BaseException as error:  # noqa: BLE001
        # What the process itself would do next is not for a fork.
        os.write(2, f"{error!r}\n".encode())
        os._exit(1)
    argv = request["argv"]
    return torchrun.Launcher(argv) if torchrun.is_for(argv) else Script(argv)


def _say(control: socket.socket, answer: Dict[str, Any]) -> None:
    control.sendall(json.dumps(answer).encode() + b"\n")
