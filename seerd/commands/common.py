"""What the commands share: reading a spec with what the command line overrides, finding a run, telling people and scripts.

The one rule: nothing is decided about a run; every import that costs more than typer happens inside the function that needs it.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import json as jsonlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from seerd.core.state import State
    from seerd.runs.runs import Ended
    from seerd.shell.home import Home, RunFolder
    from seerd.spec.reader import Override

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""What a disk says that is full or write-protected."""


def disk_text(error: OSError) -> str:
    """For whoever can give it room again."""
    where = f" {error.filename}" if error.filename else ""
    return (
        f"{(error.strerror or 'the disk refuses').lower()}:{where} cannot be written. When the disk can be written again, a run that had begun "
        "goes on with `seerd resume` (`seerd list` shows it); its trials save and end by themselves meanwhile"
    )


def tell_version(asked: bool) -> None:
    """Print the versions on one line and exit, if asked."""
    if not asked:
        return
    import platform

    from seerd.agent.protocol import VERSION as PROTOCOL
    from seerd.core.codec import FORMAT
    from seerd.version import VERSION

    python = platform.python_version()
    print(f"seerd {VERSION} (Python {python}, journal format {FORMAT}, agent protocol {PROTOCOL})")
    raise typer.Exit


def options(
    deadline: str | None,
    budget: str | None,
    cost: str | None,
    policy: str | None,
    provider: str | None,
    max_gpus: int | None,
    seed: int | None,
    set_: list[str] | None,
) -> list[Override]:
    """What the command line overrides in the spec."""
    from seerd.errors import UsageError
    from seerd.spec.reader import Override

    named = {
        "limits.deadline": (deadline, "--deadline"),
        "limits.budget": (budget, "--budget"),
        "limits.cost": (cost, "--cost"),
        "limits.max_gpus": (max_gpus, "--max-gpus"),
        "policy.name": (policy, "--policy"),
        "policy.seed": (seed, "--seed"),
        "cluster.provider": (provider, "--provider"),
    }
    given = [Override(key, str(value), option) for key, (value, option) in named.items() if value is not None]
    for text in set_ or []:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {text}: write KEY=VALUE, for example --set policy.eta=2")
        given.append(Override(key.strip(), value.strip()))
    return given


def spec(path: Path, options: list[Override], minimize: str | None = None) -> Any:
    """The spec with these overrides, its limits complete."""
    from seerd.spec.spec import load_spec, require_limits

    spec = load_spec(path, options)
    require_limits(spec, minimize)
    return spec


def home(path: Path | None) -> Home:
    """The folder of all runs."""
    from seerd.shell.home import Home, default_home

    return Home(path.expanduser().resolve() if path else default_home())


def status(folder: RunFolder, state: State) -> str:
    """How a run ended, or whether it still goes on."""
    from seerd.view.run_json import status_of

    return status_of(state, folder.owner() is not None)


@contextlib.contextmanager
def watcher(folder: RunFolder, *, plain: bool, json: bool) -> Iterator[Any]:
    """Who is told of a run: the live view on a terminal, else plain lines (on stderr if stdout is for JSON)."""
    if json or plain or not sys.stdout.isatty():
        from seerd.view.watch import lines_to

        yield lines_to(folder, sys.stderr if json else sys.stdout)
        return
    from seerd.view.watch import live_watcher

    with live_watcher(folder) as watcher:
        yield watcher


@contextlib.contextmanager
def progress(total: int) -> Iterator[Any]:
    """A bar on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)


def sweep_before(cluster: Any, owner: str, home: Home) -> None:
    """End what this owner's dead runs have left behind, before anything new is rented."""
    if not cluster.rented:
        return
    import asyncio

    from seerd.commands.sweep import at_start

    for line in asyncio.run(at_start(home, cluster.region, owner)):
        print(line, file=sys.stderr)


def end(folder: RunFolder, ended: Ended, *, json: bool) -> None:
    """Print the result and what is left of the run, and exit as it deserves."""
    from seerd.commands import profiling
    from seerd.view import run_json
    from seerd.view.summary import summary

    state = ended.state
    if profiling.is_profile(folder) and run_json.exit_code(state) != run_json.EXIT_INTERRUPTED:
        from seerd.view.profile_table import profile_view

        told = profiling.finish(folder, state)
        tell(told, None if json else profile_view(told))
        tell_leftovers(ended.leftovers)
        return
    told = {**run_json.result(state, status(folder, state)), "leftovers": ended.leftovers}
    tell(told, None if json else summary(state))
    tell_leftovers(ended.leftovers)
    raise typer.Exit(run_json.exit_code(state))


def tell_leftovers(leftovers: list[str] | None) -> None:
    """The last line of a run on rented instances proves that nothing of it is left; if something is, the command fails."""
    from seerd.view.summary import leftover_lines

    sys.stdout.flush()
    for line in leftover_lines(leftovers):
        print(harmless(line), file=sys.stderr)
    if leftovers:
        raise typer.Exit(1)


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """For a command that is over in a moment and starts nothing: numpy's threads and the collector would cost more than they do."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def tell(told: Any, text: Any) -> None:
    """JSON on stdout, or text for people."""
    if text is None:
        print(jsonlib.dumps(told))
        return
    from rich.console import Console

    from seerd.view.harmless import Harmless

    # No markup: names and values of other people's are no instructions.
    Console(soft_wrap=True, highlight=False, markup=False, emoji=False).print(Harmless(text))


def write_anything() -> None:
    """What stdout and stderr cannot encode is written as `?`: a character must not end a run."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def harmless(text: str) -> str:
    """Without what a terminal would obey; lines stay lines."""
    return "\n".join(
        line if line.isprintable() else "".join(c if c.isprintable() else " " for c in line)
        for line in text.split("\n")
    )
