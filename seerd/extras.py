"""The command that installs an extra of seerd's, by the tool and from the place that seerd was
installed with.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

IN_A_CLONE = "{} '.[{}]' in a clone of seerd"


def installing(extra: str) -> str:
    """Return the command that adds this extra to seerd, as seerd itself was installed."""
    from importlib.metadata import PackageNotFoundError, distribution  # slow to import

    try:
        installed = distribution("seerd")
    except PackageNotFoundError:  # it is imported from a folder that was never installed
        return IN_A_CLONE.format(_installer(""), extra)
    install = _installer((installed.read_text("INSTALLER") or "").strip())
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    path = Path(unquote(urlsplit(origin.get("url", "")).path))
    if "dir_info" in origin:
        if not (path / "pyproject.toml").is_file():
            return IN_A_CLONE.format(install, extra)
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f"{install} {editable}{shlex.quote(f'{path}[{extra}]')}"
    wheel = f" @ {origin['url']}" if "archive_info" in origin and path.is_file() else ""
    return f"{install} {shlex.quote(f'seerd[{extra}]{wheel}')}"


def _installer(by: str) -> str:
    prefix = Path(sys.prefix)
    if (prefix / "uv-receipt.toml").is_file():
        return "uv tool install"
    if (prefix / "pipx_metadata.json").is_file():
        return "pipx install --force"
    if by == "uv":
        return f"uv pip install --python {shlex.quote(sys.executable)}"
    pip = shutil.which("pip")
    if pip is not None and Path(pip).parent == Path(sys.executable).parent:
        return "pip install"
    return f"{shlex.quote(sys.executable)} -m pip install"
