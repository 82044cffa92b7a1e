"""What this process has imported when its training begins, for the agent: later trials start with
it (`seerd/agent/warm`).
"""

import json
import os
import sys
from pathlib import Path
from typing import Any, List

INSTALLED = ("site-packages", "dist-packages")


def tell(folder: Path) -> None:
    """Write `modules.json` into this folder: the modules that are not the job's own, in the order
    of their import, and the environment variables changed since the process began (Linux).
    """
    part = folder / ".modules.json"
    body = {"modules": _modules(), "changed": _changed()}
    part.write_text(json.dumps(body))
    os.replace(part, folder / "modules.json")


def _modules() -> List[str]:
    own = [os.path.realpath(path) for path in {os.getcwd(), sys.path[0]}]
    return [name for name, module in list(sys.modules.items()) if _is_others(module, own)]


def _is_others(module: Any, own: List[str]) -> bool:
    spec = getattr(module, "__spec__", None)
    if spec is None or not spec.has_location:
        return False
    path = os.path.realpath(spec.origin)
    if any(part in INSTALLED for part in Path(path).parts):
        return True
    return not any(os.path.commonpath([path, folder]) == folder for folder in own)


def _changed() -> List[str]:
    try:
        shown = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return []
    began = dict(os.fsdecode(entry).split("=", 1) for entry in shown if b"=" in entry)
    return sorted({name for name, _ in began.items() ^ os.environ.items()})
