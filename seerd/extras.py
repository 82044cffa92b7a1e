"""How to get a package that is not installed because it is one of an extra of seerd's.

The one rule: the line works as it is told, also where seerd is not from an index.
"""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

IN_A_CLONE = "pip install '.[{}]' in a clone of seerd"


def installing(extra: str) -> str:
    """Return the command that installs this extra beside seerd, as seerd itself was installed."""
    try:
        told = distribution("seerd").read_text("direct_url.json")
    except PackageNotFoundError:  # it is imported from a folder that was never installed
        return IN_A_CLONE.format(extra)
    origin = json.loads(told or "{}")
    if "dir_info" not in origin:
        return f"pip install 'seerd[{extra}]'"
    folder = Path(unquote(urlsplit(origin["url"]).path))
    if not (folder / "pyproject.toml").is_file():
        return IN_A_CLONE.format(extra)
    editable = "-e " if origin["dir_info"].get("editable") else ""
    return f"pip install {editable}{shlex.quote(f'{folder}[{extra}]')}"
