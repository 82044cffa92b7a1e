"""Paths in a spec, or in the environment of `seerd run`, that lead to the live project.

The one rule: trials run in a copy. A path into the source means the copy; one into the rest of the
project is a doubt.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

import seerd
from seerd.agent.arguments import interpreter_words
from seerd.spec.ignored import is_copied
from seerd.spec.spec import Spec

# a path in the module that setuptools writes for an editable installation
MAPPED = re.compile(r"'(/[^'\n]+)'")

QUOTED = re.compile(r"""["'](/[^"'\n]+)["']""")  # an absolute path in a script's text
MOST_NAMED = 3
MOST_FILES = 100  # modules beside the script that are read


def python_path(spec: Spec, around: Mapping[str, str]) -> str | None:
    """Return PYTHONPATH for trials, relative where it lies in the source; None: as it is. `around`:
    the environment of `seerd run`, which trials on this machine inherit.
    """
    folders = _searched(spec, around)
    script = spec.train.source / spec.train.script
    folder = script.parent
    while (folder / "__init__.py").is_file() and folder != spec.train.source:
        package, folder = folder.name, folder.parent
        # above the script's own package, if the script imports that package
        if not (folder / "__init__.py").is_file() and package in _imported(script, folder):
            folders.append(folder)
    paths = {folder: _in_copy(folder, spec.train.source) for folder in folders}
    if "PYTHONPATH" not in spec.train.env and not any(paths.values()):
        return None
    return ":".join(inside or str(folder) for folder, inside in paths.items())


def arguments(spec: Spec) -> list[str]:
    """Return the script's arguments, with paths relative to the source, not to the spec."""
    train, inside = spec.train, []
    for argument in train.args:
        before, is_option, path = argument.rpartition("=")
        if "/" in path and not (train.source / path).exists() and (spec.folder / path).exists():
            path = _in_copy(spec.folder / path, train.source) or path
        inside.append(f"{before}{is_option}{path}")
    return inside


def doubts(spec: Spec, around: Mapping[str, str]) -> Iterator[str]:
    """Yield what trials would use of the live project, one sentence each."""
    source, train = spec.train.source, spec.train
    texts = [("script", train.script), *(("args", argument) for argument in train.args)]
    texts += [("env", value) for name, value in train.env.items() if name != "PYTHONPATH"]
    for key, text in texts:
        path = text.rpartition("=")[2]
        inside = _in_copy(Path(path), source) if path.startswith("/") else None
        if inside and (source / inside).exists() and is_copied(source, source / inside):
            yield (
                f"train.{key} has {path}, which is in the live project: an edit there changes the "
                f"trials that start later; {inside} is the same in the copy that they run in"
            )
    for file, written in islice(_written_out(source / train.script, source), MOST_NAMED):
        if is_copied(source, written.resolve()):
            yield (
                f"{file} has {written}, which is in the live project: trials share what they write "
                "there, and an edit changes those that start later; a path relative to the folder "
                "of the script means the copy"
            )
    project = next((p for p in (source, *source.parents) if (p / ".git").exists()), source)
    for folder in dict.fromkeys(_searched(spec, around)):
        if not folder.is_relative_to(source) and folder.is_relative_to(project):
            for name in _imported(source / spec.train.script, folder):
                yield (
                    f"trials import {name} from {folder}, which is not in train.source, so an edit "
                    "there changes the trials that start later"
                )


def _written_out(script: Path, source: Path) -> Iterator[tuple[str, Path]]:
    for file in dict.fromkeys([script, *sorted(script.parent.glob("*.py"))[:MOST_FILES]]):
        with suppress(OSError, ValueError):  # such as a loop of links
            paths = map(Path, QUOTED.findall(file.read_text(errors="replace")))
            yield from ((file.name, path) for path in paths if _in_copy(path, source))


def _in_copy(path: Path, source: Path) -> str | None:
    path = path.resolve()
    return path.relative_to(source).as_posix() if path.is_relative_to(source) else None


def _searched(spec: Spec, around: Mapping[str, str]) -> list[Path]:
    """Return the folders in which trials look for modules: those of PYTHONPATH (relative to the
    spec, if it sets it) and of editable installations.
    """
    base, entries = spec.folder, spec.train.env.get("PYTHONPATH")
    here = spec.cluster.here and not spec.train.container
    if entries is None and here:
        base, entries = Path.cwd(), around.get("PYTHONPATH")
    folders = [(base / entry).resolve() for entry in (entries or "").split(":") if entry]
    if here and spec.train.launcher != "command":
        beside = (spec.train.source / spec.train.script).parent
        words = interpreter_words(spec.train.python or sys.executable, str(spec.folder))
        python = shutil.which(words[0]) if len(words) == 1 else None
        folders += [folder for folder in _editable(python) if folder != beside]
    return folders


def _editable(python: str | None) -> Iterator[Path]:
    """Yield the folders that a Python has installed with `pip install -e`: a `.pth` file has the
    folder, or imports a module that has it.
    """
    if python is None:
        return
    own = Path(seerd.__file__).parents[1]
    for packages in Path(python).parent.parent.glob("lib/python3*/site-packages"):
        for file in (*packages.glob("*.pth"), *packages.glob("__editable__*.py")):
            text = file.read_text(errors="replace")
            if file.suffix == ".pth":
                folders = [Path(line) for line in text.splitlines() if line.startswith("/")]
            else:
                folders = [Path(path).parent for path in MAPPED.findall(text)]
            yield from (path.resolve() for path in folders if path.is_dir() and path != own)


def _imported(script: Path, folder: Path) -> list[str]:
    try:
        text = script.read_text(errors="replace")
    except OSError:
        return []
    names = dict.fromkeys(re.findall(r"^\s*(?:from|import)\s+([A-Za-z_]\w*)", text, re.MULTILINE))
    return [
        name
        for name in names
        if (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()
    ]
