"""Imports what trials import, and finds what cannot be imported beforehand.

The one rule: a fork must find nothing that it would not find after an import of its own. So after
each import the process is looked at, and whatever leaves something that does not survive a fork, or
asks for what is different in each rank, is named.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
from typing import Any, Dict, Iterable, List, Optional, Set

EACH_ITS_OWN = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "SEERD_DIR", "CUDA_VISIBLE_DEVICES"),
}
"""Environment variables that are different in each process of a trial, or in each trial."""

KNOWN = ("torch", "seerd")
"""Packages of which it is known that they act upon such variables only later."""
POOL = "openblas"
"""A library whose threads are ended before a fork, and begun again after it (pthread_atfork)."""


class OddModuleError(Exception):
    """A module cannot be imported beforehand; the text says why.

    module  its name
    """

    def __init__(self, module: str, why: str) -> None:
        super().__init__(why)
        self.module = module


class Imports:
    """What was imported beforehand.

    asked  environment variables that modules asked for when they were imported
    made   environment variables that they have set, or removed (None)
    """

    def __init__(self) -> None:
        self.asked: Set[str] = set()
        self.made: Dict[str, Optional[str]] = {}

    def load(self, names: Iterable[str], beside: str) -> None:
        """Import these modules in this order, except those that trials would find in the folder
        `beside` instead. What cannot be imported is left to the trials.

        Raises `OddModuleError`; then this process is of no use any more.
        """
        own, environment = _names_in(beside), dict(os.environ)
        with _Spy() as spy:
            before = _Traces()
            for name in names:
                if name in sys.modules or name.partition(".")[0] in own:
                    continue
                _import(name)
                now = _Traces()
                why = _why_odd(before, now) or spy.why()
                if why:
                    raise OddModuleError(name, why)
                before = now
        self.asked |= spy.asked
        changed = {name for name, _ in environment.items() ^ os.environ.items()}
        self.made.update({name: os.environ.get(name) for name in changed})

    def added_to(self, environment: Dict[str, str]) -> Dict[str, str]:
        """Change an environment as imports would."""
        changed = {**environment, **self.made}
        return {name: value for name, value in changed.items() if value is not None}


def why_not(beside: str) -> str:
    """Say why a script in this folder cannot be run in a fork; empty if it can.

    The folder comes first on its path. So a module there may have the name of one that was imported
    from elsewhere.
    """
    mine = _names_in(beside)
    theirs = {name for name in sys.modules if "." not in name} - {"__main__"}
    taken = sorted(mine & theirs - set(sys.builtin_module_names))
    return f"{taken[0]} beside the script is imported from elsewhere by others" if taken else ""


def _import(name: str) -> None:
    """Import a module, or what a module has by this name: some packages import a part of theirs
    only then.
    """
    parent, _, last = name.rpartition(".")
    try:
        if not hasattr(sys.modules.get(parent), last):
            importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001
        # The trial that imports it sees the error, if there is one there too.
        print(f"{name}: {error!r}", file=sys.stderr)


def _names_in(folder: str) -> Set[str]:
    """List the modules that can be imported from a folder."""
    ends = importlib.machinery.all_suffixes()
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return set()
    folders = {one.name for one in entries if one.is_dir() and _is_package(one.path, ends)}
    files = {one.name[: -len(end)] for one in entries for end in ends if one.name.endswith(end)}
    return folders | files


def _is_package(folder: str, ends: List[str]) -> bool:
    """Tell whether a folder is a package. Others count last, behind all that was installed."""
    return any(os.path.exists(os.path.join(folder, f"__init__{end}")) for end in ends)


class _Traces:
    """What imports may leave behind.

    threads  how many there are
    devices  whether a GPU's driver has been called
    pool     how many libraries with such threads as survive a fork are there
    """

    def __init__(self) -> None:
        self.threads = len(os.listdir("/proc/self/task"))
        self.devices = any(map(_is_gpu, os.listdir("/proc/self/fd")))
        self.pool = _pools() if self.threads > 1 else 0


def _pools() -> int:
    with open("/proc/self/maps") as file:
        return len({line.split()[-1] for line in file if POOL in line})


def _is_gpu(descriptor: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("/dev/nvidia")
    except OSError:
        return False


def _why_odd(before: _Traces, now: _Traces) -> str:
    if now.devices and not before.devices:
        return "it calls the GPU's driver when it is imported"
    if now.threads > before.threads and now.pool <= before.pool:
        return "it leaves threads behind when it is imported"
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return ""
    return "it leaves a process behind when it is imported"


class _Spy:
    """Notes which variables are asked for in `os.environ`.

    asked  their names
    """

    def __init__(self) -> None:
        self.asked: Set[str] = set()
        self._odd: Set[str] = set()

    def __enter__(self) -> "_Spy":  # noqa: PYI034
        kind: Any = type(os.environ)
        self._real = real = kind.__getitem__
        odd = set(EACH_ITS_OWN)
        if os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # all trials have CPUs alone
            odd.remove("CUDA_VISIBLE_DEVICES")

        def noted(environ: Any, name: Any) -> Any:
            self.asked.add(name)
            if name in odd and _caller() not in KNOWN:
                self._odd.add(name)
            return real(environ, name)

        kind.__getitem__ = noted
        return self

    def __exit__(self, *_error: object) -> None:
        kind: Any = type(os.environ)
        kind.__getitem__ = self._real

    def why(self) -> str:
        """Say what was asked for, since the last time, that is different in each rank."""
        asked, self._odd = sorted(self._odd), set()
        return (
            f"it asks for {asked[0]} when it is imported, which is another one in each rank"
            if asked
            else ""
        )


def _caller() -> str:
    """Return the package that asks for a variable."""
    frame: Any = sys._getframe(2)  # noqa: SLF001
    while frame is not None and frame.f_globals.get("__name__") in {"os", "_collections_abc"}:
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__")).partition(".")[0]
