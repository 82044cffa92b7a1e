"""What a script imports, by its text, which is read and never run; and what is known of packages
from earlier runs in the same environment.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
from pathlib import Path
from typing import Dict, Iterable, List, Set

OF_TORCH = {"torch", "torchvision", "torchaudio", "lightning", "pytorch_lightning", "accelerate"}
"""Packages that need torch."""


class ImportMemory:
    """Which packages can be imported before trials are forked, kept in a file per environment
    (`warm/preload.py` names it). A file that cannot be read counts as empty.
    """

    def __init__(self, environment: str) -> None:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        self._path = Path(cache, "seerd", "imports", f"{environment}.json")
        self.good: Set[str] = set()  # packages that can be imported beforehand
        self.odd: Set[str] = set()  # packages that cannot
        self._read()

    def note(self, good: Iterable[str] = (), odd: Iterable[str] = ()) -> None:
        """Add packages, and what other runs have added meanwhile."""
        self._read()
        self.odd.update(odd)
        self.good.update(good)
        self.good -= self.odd
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps({"good": sorted(self.good), "odd": sorted(self.odd)}))
            os.replace(part, self._path)

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            kept = json.loads(self._path.read_text())
            good, odd = set(map(str, kept["good"])), set(map(str, kept["odd"]))
            self.good |= good
            self.odd |= odd


def needs_torch(launcher: str, script: Path) -> bool:
    """Return whether trials need torch: torchrun does, a Python script by its imports."""
    if launcher != "python":
        return launcher == "torchrun"
    return any(name.partition(".")[0] in OF_TORCH for name in imports_of(script))


def imports_of(script: Path) -> List[str]:
    """List what a script and the files beside it import in any case, by their text."""
    names: Dict[str, None] = {}
    files = [script]
    for file in files:
        for name in (name for node in statements(file) for name in imported_by(node)):
            own = script.with_name(f"{name.partition('.')[0]}.py")
            if not own.is_file():
                names[name] = None
            elif own not in files:
                files.append(own)
    return list(names)


def imported_by(node: ast.AST) -> List[str]:
    """Return the modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def statements(script: Path) -> List[ast.stmt]:
    """Return the statements at a script's top; none if it cannot be read."""
    try:
        return ast.parse(script.read_bytes()).body
    except (OSError, ValueError, SyntaxError, RecursionError):
        return []  # its run will report the error
