"""`seerd init`: a spec for a script that is there, or a small spec and script to begin with.

The one rule: nothing that is there is ever overwritten.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from seerd.commands.init.environment import python_lines
from seerd.commands.init.reading import read
from seerd.commands.init.writing import Written, written
from seerd.errors import UsageError
from seerd.shell.home import default_home
from seerd.shell.source_copy import CopyTerms, links_out

SPEC = "spec.toml"


def init(what: Path) -> None:
    """Write a spec for the script `what`, or a spec and a script into the folder `what`. Raises
    `UsageError` if that is not possible.
    """
    if what.suffix == ".py" or what.is_file():
        _for_script(what)
    else:
        _to_begin_with(what)


def _for_script(script: Path) -> None:
    spec = script.with_name(SPEC)
    try:
        found = read(script)
    except (OSError, RecursionError, ValueError) as error:
        raise UsageError(f"{script} cannot be read: {getattr(error, 'strerror', error)}") from error
    except SyntaxError as error:
        raise UsageError(f"{script} is no Python: line {error.lineno}, {error.msg}") from error
    source = script.absolute().parent.joinpath(*[".."] * found.up)
    follow = links_out(source, default_home(), CopyTerms(), refuse=False)
    made = written(script.name, found, python_lines(script.absolute().parent), follow)
    _write(spec, made.text)
    print(f"{spec}: written for {script.name}; look at what is marked as a guess")
    _print_next(spec, made)


def _to_begin_with(folder: Path) -> None:
    here = Path(__file__).parent
    taken = [name for name in (SPEC, "train.py") if (folder / name).exists()]
    if taken:
        hint = f"; for a script of yours: seerd init {folder / 'train.py'}"
        raise UsageError(
            f"{folder / taken[0]} is there already, and is not overwritten"
            + (hint if taken == ["train.py"] else "")
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(here / "start_train.py", folder / "train.py")
        shutil.copyfile(here / "start_spec.toml", folder / SPEC)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from error
    print(f"{folder / SPEC} and {folder / 'train.py'}: a small script, and what to tune of it")
    print(f"next: seerd run {folder / SPEC}")


def _write(spec: Path, text: str) -> None:
    try:
        with spec.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise UsageError(f"{spec} is there already, and is not overwritten") from None
    except OSError as error:
        raise UsageError(f"{spec} cannot be written: {error.strerror}") from error


def _print_next(spec: Path, made: Written) -> None:
    for one in made.missing:
        print(f"to do: {one}")
    print(f"next: seerd plan {spec}, then seerd run {spec}")
