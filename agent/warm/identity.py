"""Makes a fork of the warm process look like a process that was started, to itself, `ps` and the
agent: it writes over padding where the kernel shows arguments and environment
(proc_pid_environ(5)).
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any, Sequence

from seerd.agent.warm import gpu_share

MARKER = "SEERD_ATTEMPT"
ENDED = "ended-{}"
"""In a container the file, in the agent's folder, with the exit status of this process, as
waitpid(2) has it.
"""
PR_SET_PDEATHSIG = 1
ARGUMENTS, VARIABLES = 4096, 65536
"""Bytes of padding."""
ARG_START, ENV_START = 45, 47
"""Indices of these addresses in proc_pid_stat(5), from the state on; the ends follow."""


_padding: list[tuple[int, int]] = []
"""Addresses and sizes of the arguments' and the environment's memory, which may be written over."""


def die_with(agent: int) -> None:
    """Die with the agent, the parent of this process (prctl(2)); at once, if it is gone."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        sys.exit()


def remember() -> None:
    """Find the padding of this process."""
    import ctypes

    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    begin, end, env_begin, env_end = (
        int(fields[at]) for at in (ARG_START, ARG_START + 1, ENV_START, ENV_START + 1)
    )
    shown = ctypes.string_at(env_begin, env_end - env_begin)
    entry = f"{MARKER}=".encode()
    at = 0 if shown.startswith(entry) else shown.index(b"\0" + entry) + 1
    size = shown.index(b"\0", at) + 1 - at
    _padding[:] = [(begin, end - begin), (env_begin + at, size)]


def padded(mark: str) -> str:
    """Return the value that the marker has in the warm process's own environment."""
    return mark + "\n" * VARIABLES


def show(argv: Sequence[str], env: dict[str, str]) -> None:
    """Make the kernel show these, the marker and the rank first, as room may end."""
    import ctypes  # not for the agent, which takes `padded` alone from here

    first = [name for name in (MARKER, "LOCAL_RANK") if name in env]
    names = [*first, *(name for name in env if name not in first)]
    variables = [f"{name}={env[name]}" for name in names]
    for (address, size), items in zip(_padding, (argv, variables)):
        data = b""
        for item in map(os.fsencode, items):  # as many whole ones as there is room for
            if len(data) + len(item) < size:
                data += item + b"\0"
        ctypes.memmove(address, data.ljust(size, b"\0"), size)


def take(request: dict[str, Any]) -> None:
    """Become the process of this request: its session, output, folder, environment."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for descriptor, to in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, to)
    os.close(nothing)
    os.close(output)
    os.chdir(request["cwd"])
    importlib.invalidate_caches()
    wear(request["argv"], request["env"])


def wear(argv: Sequence[str], env: dict[str, str]) -> None:
    """Take these arguments, this environment with its share of a GPU, and new random numbers."""
    old, new = os.environ.get("PYTHONPATH", ""), env.get("PYTHONPATH", "")
    if new != old:
        entries = [entry for entry in new.split(":") if entry]
        sys.path[:] = [*entries, *(entry for entry in sys.path if entry not in old.split(":"))]
    os.environ.clear()
    os.environ.update(env)
    show(argv, env)
    if hasattr(sys, "orig_argv"):  # since Python 3.10
        sys.orig_argv[:] = argv
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)
        vars(processes)["ORIGINAL_DIR"] = os.getcwd()  # which children learn of
    gpu_share.hold()
