"""The zip that is sent to instances: the agent and the training side. The same content gives the
same bytes, so that a checksum tells whether an instance has them.
"""

from __future__ import annotations

import marshal
import re
import zipfile
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType
from typing import Any

import seerd
from seerd import agent
from seerd.agent.protocol import VERSION

WITHOUT_REFERENCES = 2  # the version of marshal whose bytes do not depend on what else is in memory
EPOCH = (1980, 1, 1, 0, 0, 0)


def agent_for(path: Path) -> Path:
    """Return a run's agent of this protocol version: the zip made when the run began, or a new one
    next to it, since living agents read from the first.
    """
    if _version_of(path) == VERSION:
        return path
    newer = path.with_name(f"{path.stem}-v{VERSION}{path.suffix}")
    if _version_of(newer) != VERSION:
        build_agent(newer)
    return newer


def _version_of(path: Path) -> int | None:
    """Return the protocol version of this agent; None if it is missing or unreadable."""
    try:
        with zipfile.ZipFile(path) as bundle:
            source = bundle.read("seerd/agent/protocol.py").decode()
    except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile):
        return None
    match = re.search(r"^VERSION = ([0-9]+)$", source, re.MULTILINE)
    return int(match[1]) if match else None


def build_agent(to: Path) -> None:
    """Write the agent's zip to `to`."""
    top, folder = Path(seerd.__file__).parent, Path(agent.__file__).parent
    alone = [top / name for name in ("__init__.py", "lightning.py", "transformers.py")]
    with zipfile.ZipFile(to, "w") as bundle:
        modules = {f"seerd/agent/{path.relative_to(folder)}": path for path in folder.rglob("*.py")}
        for name, path in sorted({**modules, "__main__.py": folder / "__main__.py"}.items()):
            _add(bundle, name, path.read_bytes())
            _add(bundle, f"{name}c", _compiled(path, name))
        for path in (*alone, *sorted((top / "training").rglob("*.py"))):
            _add(bundle, path.relative_to(top.parent).as_posix(), path.read_bytes())


def _compiled(path: Path, name: str) -> bytes:
    """Return a .pyc, as Python keeps it: to compile all takes a run, and each agent, 0.15 s."""
    code = SourceFileLoader(name, str(path)).get_code(name)
    head = MAGIC_NUMBER + b"\1\0\0\0" + bytes(8)  # never compared with its source (PEP 552)
    return head + marshal.dumps(_named(code, name), WITHOUT_REFERENCES)


def _named(code: Any, name: str) -> Any:
    parts = (_named(part, name) if isinstance(part, CodeType) else part for part in code.co_consts)
    return code.replace(co_filename=name, co_consts=tuple(parts))


def _add(bundle: zipfile.ZipFile, name: str, content: bytes) -> None:
    bundle.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)
