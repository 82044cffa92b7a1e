"""What has changed of a run's spec and source since the run began.

The one rule: a run goes on as it was, so edits are only ever told.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from seerd.runs import wiring
from seerd.shell.home import RunFolder
from seerd.spec.spec import Spec

MOST_NAMED = 3


def origins(specs: Mapping[str, Spec]) -> dict[str, str]:
    """Return what a run is made from: by its place in the run's folder, the folder of each source;
    by the path of each spec's file, its checksum.

    specs  by job; that of a run that is one job by ""
    """
    made = {f"source/{job}": str(spec.train.source) for job, spec in specs.items()}
    files = [spec.file for spec in specs.values() if spec.file is not None]
    return made | {str(file): _sha256(file) for file in files}


def note(folder: RunFolder) -> str | None:
    """Return what to say of edits since the run began; None if there are none, or if that is not
    known. Raises `JournalError` if the run's setup cannot be read.
    """
    made_from = wiring.load(folder).made_from
    specs = [path for path in made_from if path.startswith("/")]
    changed = [Path(path).name for path in specs if _sha256(Path(path)) != made_from[path]]
    for place, source in made_from.items():
        if place not in specs:
            found = _changed_files(folder.path / place, Path(source), folder.agent.stat().st_mtime)
            changed += [name for name in found if str(Path(source, name)) not in specs]
    if not changed:
        return None
    names = sorted(changed, key=lambda name: not name.endswith(".py"))
    more = len(names) - MOST_NAMED
    named = [*names[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])]
    listed = " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
    verb = "has" if len(names) == 1 else "have"
    given = " ".join(os.path.relpath(path) for path in specs)
    again = f"; for the edited ones: seerd run {given} --like {folder.run}" if specs else ""
    return f"{listed} {verb} changed since the run began; it goes on as it was{again}"


def _changed_files(copy: Path, source: Path, made_s: float) -> Iterator[str]:
    """Yield the files of a run's source that are others now, or gone, where they were copied from.

    made_s  when copying was over: a later file has been made by setup commands
    """
    for top, folders, names in os.walk(copy):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for path in (Path(top, name) for name in names):
            name = path.relative_to(copy)
            if not path.is_symlink() and _differs(path, source / name, made_s):
                yield str(name)


def _differs(copy: Path, path: Path, made_s: float) -> bool:
    try:
        was = copy.stat()
        if not path.exists():
            return was.st_ctime <= made_s
        now = path.stat()
        if (was.st_size, was.st_mtime_ns) == (now.st_size, now.st_mtime_ns):
            return False
        return not filecmp.cmp(copy, path, shallow=False)
    except OSError:
        return False  # it cannot be read


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
