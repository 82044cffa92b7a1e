"""What has changed of a run's specs, sources and data since the run began. The run goes on as it
was; edits are only reported.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import msgspec

from seerd.shell.home import RunFolder
from seerd.spec.spec import Spec

MOST_NAMED = 3
MOST_FILES = 2000  # files that are compared of each folder outside of the source
MOST_BYTES = 1 << 20  # a longer file that the spec names is compared by its time, not its checksum


class MadeFrom(msgspec.Struct, frozen=True):
    """What a job was made from."""

    source: str  # the folder that was copied
    files: list[str]  # what was copied, relative to it
    specs: dict[str, str]  # file of its spec, if it has one -> checksum
    data: dict[str, str]  # file that trials read where it is -> checksum, or size and time


def keep(folder: RunFolder, spec: Spec) -> None:
    """Keep what a job is made from, whose source has just been copied. Raises `OSError`."""
    copy = folder.source / spec.id
    paths = [Path(top, name) for top, below, names in os.walk(copy) for name in [*below, *names]]
    texts = [text.rpartition("=")[2] for text in spec.train.args]
    named = [Path(text) for text in texts if text.startswith("/")]
    read = [Path(os.path.realpath(path)) for path in [*named, *filter(Path.is_symlink, paths)]]
    outside = [
        path for path in read if spec.cluster.here and not path.is_relative_to(copy.resolve())
    ]
    made = MadeFrom(
        source=str(spec.train.source),
        files=[str(path.relative_to(copy)) for path in paths if not path.is_dir()],
        specs={} if spec.file is None else _signs(spec.file),
        data={file: sign for path in outside for file, sign in _signs(path).items()},
    )
    folder.made_from(spec.id).write_bytes(msgspec.json.encode(made))


def note(folder: RunFolder) -> str | None:
    """Return what the user should know of edits since the run began; None if none are known."""
    changed: list[str] = []
    specs: list[str] = []
    for job in ["", *sorted(path.stem for path in folder.specs.glob("*.made-from"))]:
        with suppress(OSError, msgspec.MsgspecError):
            made = msgspec.json.decode(folder.made_from(job).read_bytes(), type=MadeFrom)
            specs += made.specs
            changed += [Path(path).name for path in _others(made.specs)]
            changed += [
                name
                for name in made.files
                if str(Path(made.source, name)) not in made.specs
                and _differs(folder.source / job / name, Path(made.source, name))
            ]
            changed += _others(made.data)
    if not changed:
        return None
    names = sorted(changed, key=lambda name: not name.endswith(".py"))
    more = len(names) - MOST_NAMED
    named = [*names[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])]
    listed = " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
    verb = "has" if len(names) == 1 else "have"
    paths = " ".join(os.path.relpath(path) for path in specs)
    again = f"; for the edited ones: seerd run {paths} --like {folder.run}" if specs else ""
    return f"{listed} {verb} changed since the run began; it goes on as it was{again}"


def _others(signs: dict[str, str]) -> Iterator[str]:
    return (path for path, was in signs.items() if _sign(Path(path), ":" not in was) != was)


def _signs(path: Path) -> dict[str, str]:
    """Return what the content of a file, or of each file in a folder, is compared by."""
    if path.is_file():
        return {str(path): _sign(path, path.stat().st_size <= MOST_BYTES)}
    files = (Path(top, name) for top, _, names in os.walk(path) for name in names)
    return {str(file): _sign(file, by_content=False) for file in islice(files, MOST_FILES)}


def _sign(path: Path, by_content: bool) -> str:
    try:
        if by_content:
            return hashlib.sha256(path.read_bytes()).hexdigest()
        about = path.stat()
    except OSError:
        return ""
    return f"{about.st_size}:{about.st_mtime_ns}"


def _differs(copy: Path, path: Path) -> bool:
    """Return whether a file differs from its copy, or is gone."""
    try:
        if copy.is_symlink() or not path.exists():
            return not path.exists()
        return not filecmp.cmp(copy, path)
    except OSError:
        return False  # it cannot be read
