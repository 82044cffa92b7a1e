"""What a script imports, by its text, which is read and never run."""

from __future__ import annotations

import ast
from pathlib import Path

OF_TORCH = {"torch", "torchvision", "torchaudio", "lightning", "pytorch_lightning", "accelerate"}
"""Packages that need torch."""


def needs_torch(launcher: str, script: Path) -> bool:
    """Return whether trials need torch: torchrun does, a Python script by its imports."""
    if launcher != "python":
        return launcher == "torchrun"
    return any(name.partition(".")[0] in OF_TORCH for name in imports_of(script))


def imports_of(script: Path) -> list[str]:
    """List what a script and the files beside it import in any case, by their text."""
    names: dict[str, None] = {}
    files = [script]
    for file in files:
        for name in (name for node in statements(file) for name in imported_by(node)):
            own = script.with_name(f"{name.partition('.')[0]}.py")
            if not own.is_file():
                names[name] = None
            elif own not in files:
                files.append(own)
    return list(names)


def imported_by(node: ast.AST) -> list[str]:
    """Return the modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def statements(script: Path) -> list[ast.stmt]:
    """Return the statements at a script's top; none if it cannot be read."""
    try:
        return ast.parse(script.read_bytes()).body
    except (OSError, ValueError, SyntaxError, RecursionError):
        return []  # its run will report the error
