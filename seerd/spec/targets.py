"""Where a run is exported to: the file, folder or server of a target of `[export]`. Two ways to
write one place are one place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from seerd.errors import UsageError
from seerd.extras import installing

SQLITE = "sqlite"
# files that SQLite keeps beside an open database (sqlite.org/tempfiles.html)
SQLITE_ADDS = ("-wal", "-shm", "-journal")
PORTS = {"http": 80, "https": 443, "mysql": 3306, "postgresql": 5432}
PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s]+(?=@)|([?&]password=)[^&\s]+")


def place_of(where: str, folder: Path) -> Path | str:
    """Return a target's absolute path (from `folder`), or its address without user and options."""
    scheme, colon, rest = where.partition(":")
    scheme = scheme.lower().partition("+")[0]  # sqlite+pysqlite: the driver is no part of the place
    if scheme == SQLITE and rest.startswith("///"):
        return (folder / rest.removeprefix("///").partition("?")[0]).resolve()
    if scheme == "file":
        return (folder / unquote(urlsplit(where).path)).resolve()
    if not colon or not rest.startswith("//"):
        return (folder / where).resolve()
    try:
        split = urlsplit(where)
        port = split.port or PORTS.get(scheme)
    except ValueError:
        return where  # the first request there will say what is wrong with it
    host = "127.0.0.1" if split.hostname == "localhost" else split.hostname
    return f"{scheme}://{host}:{port or ''}{split.path.rstrip('/')}"


def paths_of(export: Mapping[str, str], folder: Path) -> frozenset[Path]:
    """Return the files and folders that the targets of `[export]` write, existing or not."""
    paths: set[Path] = set()
    for where in export.values():
        path = place_of(where, folder)
        if isinstance(path, Path):
            beside = SQLITE_ADDS if where.lower().startswith(SQLITE) else ()
            paths.update(path.with_name(path.name + adds) for adds in ("", *beside))
    return frozenset(paths)


def anywhere(where: str, folder: Path) -> str:
    """Return a target as it is written for any working directory."""
    place = place_of(where, folder)
    if isinstance(place, str):
        return where
    scheme, is_address, rest = where.partition("://")
    if not is_address or scheme.lower() == "file":
        return str(place)
    _, asks, options = rest.partition("?")
    return f"{scheme}:///{place}{asks}{options}"


def without_password(text: str) -> str:
    """Return the text with dots for the passwords of its addresses."""
    return PASSWORD.sub(r"\1\2...", text)


def check_installed(kind: str) -> None:
    """Raise `UsageError` if the package of a tracker is not installed."""
    extra = "wandb" if kind == "wandb" else "export"
    if find_spec(kind) is None:
        raise UsageError(f"exporting to {kind} needs a package: {installing(extra)}")
