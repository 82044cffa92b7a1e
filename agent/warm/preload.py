"""Imports what trials import. A fork finds nothing that it would not find after an import of its
own: what does not survive a fork, or asks for what differs between ranks, is named and left to
trials.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
import warnings
from typing import Any, Iterable, Optional, Sequence

EACH_ITS_OWN = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "SEERD_DIR", "CUDA_VISIBLE_DEVICES"),
}
"""Environment variables that differ between the processes of a trial, or between trials."""

KNOWN = ("torch", "seerd")
"""Packages that act upon such variables only later."""

ODD = ("lightning", "lightning_fabric", "pytorch_lightning", "torchmetrics")
"""Packages that ask for their rank when they are imported, so that to try it is a waste of time."""


class OddModuleError(BaseException):
    """A module cannot be imported beforehand; `packages`: its own and those that import it."""

    def __init__(self, packages: Iterable[str], why: str) -> None:
        super().__init__(why)
        self.packages = list(dict.fromkeys(packages))


class Imports:
    """What was imported beforehand."""

    def __init__(self) -> None:
        self.asked: set[str] = set()  # variables that modules asked for when they were imported
        self.made: dict[str, Optional[str]] = {}  # variables that they set, or removed (None)
        self.odd = set(ODD)  # packages that cannot be imported beforehand

    def load(self, names: Sequence[str], beside: str) -> None:
        """Import these modules in this order, except those that are `odd`, or that trials would
        find in the folder `beside`. A module that fails is left to the trials.

        Raises `OddModuleError`; then this process is of no use any more.
        """
        own, environment = _names_in(beside), dict(os.environ)
        with _Spy(self.odd) as spy:
            before = _traces()
            for name in names:
                is_own = name.partition(".")[0] in own
                if is_own or name in sys.modules or package(name) in self.odd:
                    continue
                _import(name)
                now = _traces()
                why = _why_odd(before, now)
                error = spy.error or (OddModuleError([package(name)], why) if why else None)
                if error is not None:
                    if package(name) not in error.packages:
                        error.packages.append(package(name))
                    raise error
                before = now
        self.asked |= spy.asked
        changed = {name for name, _ in environment.items() ^ os.environ.items()}
        self.made.update({name: os.environ.get(name) for name in changed})

    def added_to(self, environment: dict[str, str]) -> dict[str, str]:
        """Change an environment as imports would."""
        changed = {**environment, **self.made}
        return {name: value for name, value in changed.items() if value is not None}


def package(name: str) -> str:
    """Return what is left to trials with this module: its package, or only itself if `KNOWN`."""
    top = name.partition(".")[0]
    return name if top in KNOWN else top


def why_not(beside: str) -> str:
    """Return why a script in this folder cannot be run in a fork; empty if it can. The folder comes
    first on its path, so a module there may have the name of one that was imported elsewhere.
    """
    mine = _names_in(beside)
    theirs = {name for name in sys.modules if "." not in name} - {"__main__"}
    taken = sorted(mine & theirs - set(sys.builtin_module_names))
    return f"{taken[0]} beside the script is imported from elsewhere by others" if taken else ""


def _import(name: str) -> None:
    """Import a module, or an attribute: some packages import a part of theirs only then."""
    parent, _, last = name.rpartition(".")
    try:
        if not hasattr(sys.modules.get(parent), last):
            importlib.import_module(name)
    except OddModuleError:
        pass  # the spy has it
    except BaseException as error:  # noqa: BLE001
        # The trial that imports it sees the error, if there is one there too.
        print(f"{name}: {error!r}", file=sys.stderr)


def _names_in(folder: str) -> set[str]:
    ends = importlib.machinery.all_suffixes()
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return set()
    folders = {
        entry.name
        for entry in entries
        if entry.is_dir()
        and any(os.path.exists(os.path.join(entry.path, f"__init__{end}")) for end in ends)
    }  # folders that are no packages count last, behind all that was installed
    files = {
        entry.name[: -len(end)] for entry in entries for end in ends if entry.name.endswith(end)
    }
    return folders | files


def _traces() -> tuple[int, bool]:
    """Return what imports may leave behind: threads, and whether a GPU's driver was called."""
    return _count_threads(), any(map(_is_gpu, os.listdir("/proc/self/fd")))


def _count_threads() -> int:
    """Count the threads after a fork: OpenBLAS ends its own before, and restarts them."""
    if len(os.listdir("/proc/self/task")) > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python, about threads and forks
            pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return len(os.listdir("/proc/self/task"))


def _is_gpu(descriptor: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("/dev/nvidia")
    except OSError:
        return False


def _why_odd(before: tuple[int, bool], now: tuple[int, bool]) -> str:
    (threads_before, gpu_before), (threads, gpu) = before, now
    if gpu and not gpu_before:
        return "it calls the GPU's driver when it is imported"
    if threads > threads_before:
        return "it leaves threads behind when it is imported"
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return ""
    return "it leaves a process behind when it is imported"


class _Spy:
    """Notes which variables are asked for in `os.environ`, and ends the import of a module that
    asks for one that differs between ranks, or imports one of the packages `odd`.
    """

    def __init__(self, odd: Iterable[str]) -> None:
        self.asked: set[str] = set()  # names of these variables
        self.error: Optional[OddModuleError] = None  # why an import was ended
        self._odd = frozenset(odd)

    def __enter__(self) -> "_Spy":  # noqa: PYI034
        kind: Any = type(os.environ)
        self._real = real = kind.__getitem__
        own = set(EACH_ITS_OWN)
        if os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # all trials have CPUs alone
            own.remove("CUDA_VISIBLE_DEVICES")

        def noted(environ: Any, name: Any) -> Any:
            self.asked.add(name)
            if name in own and _caller() not in KNOWN:
                why = f"it asks for {name} when it is imported, which is another one in each rank"
                self._end(_being_imported(), why)
            return real(environ, name)

        kind.__getitem__ = noted
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_error: object) -> None:
        kind: Any = type(os.environ)
        kind.__getitem__ = self._real
        sys.meta_path.remove(self)

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        """Find no module, as one of `sys.meta_path`; but end an import of what is odd."""
        imports = sys._getframe(2).f_code.co_name == "_find_and_load_unlocked"  # noqa: SLF001
        if imports and package(name) in self._odd:
            self._end([name, *_being_imported()], "it cannot be imported beforehand")

    def _end(self, modules: list[str], why: str) -> None:
        self.error = OddModuleError(map(package, modules), why)
        raise self.error


def _being_imported() -> list[str]:
    frame: Any = sys._getframe(1)  # noqa: SLF001
    names = []
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            names.append(str(frame.f_globals.get("__name__")))
        frame = frame.f_back
    return [name for name in names if name != "__main__"]


def _caller() -> str:
    frame: Any = sys._getframe(2)  # noqa: SLF001
    while frame is not None and frame.f_globals.get("__name__") in {"os", "collections.abc"}:
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__")).partition(".")[0]
