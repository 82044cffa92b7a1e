"""`seerd.run` and `seerd.run_async`: the run of `seerd run`, in a thread of this process."""

from __future__ import annotations

import inspect
import os
import time
import tomllib
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from seerd.api.handle import Run
from seerd.api.worker import Worker, end, wait, wait_async, watcher
from seerd.commands import beginning
from seerd.commands.common import home_of, say
from seerd.commands.exporting import exporting
from seerd.commands.options import KEYS, Minimize
from seerd.planning.cheapest import cheapest_first
from seerd.planning.plans import facts_of
from seerd.runs import runs
from seerd.spec.experiment import load, require_limits
from seerd.spec.reader import Override, toml_of

# a spec's file, or a dict as its TOML would be
P = ParamSpec("P")
T = TypeVar("T")
SpecLike = str | os.PathLike[str] | Mapping[str, Any]
# text with a unit as on the command line, a number of seconds, or a timedelta
Time = str | float | timedelta
Money = str | float  # text with a unit as on the command line, or a number of USD
# how numbers are written with the unit that they stand for
UNITS = {"deadline": "{:.6f}s", "budget": "{:.6f}gpu-s", "cost": "{:.6f}usd"}


def run(
    spec: SpecLike,
    *,
    deadline: Time | None = None,
    budget: Time | None = None,
    cost: Money | None = None,
    max_gpus: int | None = None,
    policy: str | None = None,
    provider: str | None = None,
    seed: int | None = None,
    like: list[str] | None = None,
    minimize: Minimize | None = None,
    ideal: bool = False,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the name of the option
    home: str | os.PathLike[str] | None = None,
    show: bool = True,
) -> Run:
    """Tune within the deadline and the budget, as `seerd run` does, and return the finished run.

    It also works in a notebook, whose event loop runs already. Ctrl-C, or the stop button, ends the
    run in order: trials save, everything is given back, then `KeyboardInterrupt` is raised; the run
    goes on with `seerd.load("last").resume()`. The second time ends it at once.

    Args:
        spec: the file of a spec, or a dict as its TOML would be; `train.script` of a dict is
            relative to the working directory.
        deadline: until the best model is in hand: "30m", seconds, or a timedelta.
        budget: GPU time: "480gpu-min", GPU-seconds, or a timedelta.
        cost: money: "$40", or USD.
        max_gpus: most GPUs at one moment.
        policy: the search policy.
        provider: where to run: "local", "hosts" or "ec2".
        seed: the seed of the search.
        like: earlier runs to learn from: names, or "last".
        minimize: "cost" or "time": give the stages of the policy sha the GPUs that keep it least.
        ideal: plan to the letter of the paper, whatever is billed.
        set: any key of the spec: {"policy.eta": 2}.
        home: the folder of all runs; None: SEERD_HOME, or the XDG state folder.
        show: show the run while it goes on: in a notebook as a view that renews itself, elsewhere
            as one line per event on stderr.

    Returns:
        The run, over.

    Raises:
        seerd.errors.SpecError: the spec has mistakes; all of them are in the message.
        seerd.errors.LimitsError: the limits cannot be met; nothing was started.
        seerd.errors.CloudError: the cloud refuses; nothing was started.
        seerd.errors.UsageError: what else keeps a run from starting.
        KeyboardInterrupt: the run was interrupted, and has ended in order.

    Example:
        >>> run = seerd.run("spec.toml", deadline="1m", budget="4gpu-min", show=False)
        >>> run.state
        'done'
    """
    work = _work_of(**locals())
    return Run(wait(work, show=show))


SIGNATURE = inspect.signature(run)


def _declared_as(_: Callable[P, Any]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    def declared(function: Callable[..., T]) -> Callable[P, T]:
        function.__signature__ = SIGNATURE  # type: ignore[attr-defined]
        return function

    return declared


@_declared_as(run)
async def run_async(spec: SpecLike, *, show: bool = True, **arguments: Any) -> Run:
    """Do what `run` does, with the same arguments, while the caller's event loop goes on.

    Raises:
        TypeError: when it is awaited: an argument is not one of `run`'s.
        asyncio.CancelledError: the task was cancelled, or Ctrl-C was pressed; the run has ended in
            order.

    Example:
        >>> run = asyncio.run(seerd.run_async("spec.toml", deadline="1m", show=False))
        >>> run.best.trial in list(run.trials()["trial"])
        True
    """
    bound = SIGNATURE.bind(spec, show=show, **arguments)
    bound.apply_defaults()
    return Run(await wait_async(_work_of(**bound.arguments), show=show))


def _work_of(spec: SpecLike, **arguments: Any) -> Worker:
    home, show, more = (arguments.pop(name) for name in ("home", "show", "set"))
    minimize, ideal = arguments.pop("minimize"), arguments.pop("ideal")
    origin, where = time.time(), home_of(home)

    def work(worker: Worker) -> None:
        tell: beginning.Say = say if show else lambda _: None
        changes = overrides_of(arguments, more or {})
        asked = load(spec if isinstance(spec, Mapping) else [Path(spec)], changes)
        require_limits(asked, minimize)
        placed, quote = beginning.placed(asked, where, tell)
        quote = cheapest_first(placed, where, quote, minimize)
        facts = facts_of(placed, where, quote, ideal=ideal, minimize=minimize)
        worker.check()
        folder, state = beginning.create(placed, facts, where, quote, origin, tell)
        worker.made(folder)
        with exporting(folder):
            ended = runs.begin(folder, state, watcher(folder, show=show))
        end(folder, ended)

    return Worker(work)


def overrides_of(arguments: Mapping[str, Any], more: Mapping[str, Any]) -> list[Override]:
    """List what arguments change in the spec, as the options of the same names do; None: nothing.
    `more`: any keys of the spec, by their path.
    """
    keys = {**KEYS, "like": "policy.like"}
    changes = [
        Override(keys[name], _plain(name, value), name)
        for name, value in arguments.items()
        if value is not None
    ]
    return changes + [Override(key, _plain(key, value), key) for key, value in more.items()]


def _plain(name: str, value: Any) -> Any:
    """Return a value as TOML has it, with its unit; text is read as `--set` reads it."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if name in UNITS and isinstance(value, int | float):
        return UNITS[name].format(value)
    return value if isinstance(value, str) else tomllib.loads(toml_of({name: value}))[name]
