"""`seerd add`: a configuration of the user's for a run that goes on. It is taken as it was written,
or refused; what it leaves open is drawn.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from seerd.commands.asking import ask, check_running
from seerd.commands.common import tell
from seerd.commands.options import NewJob
from seerd.errors import UsageError
from seerd.planner.parameter import Config, Value, plain
from seerd.planner.space import NoConfigurationError, Space, why_not
from seerd.runs import reading
from seerd.shell.home import RunFolder
from seerd.shell.inbox import AddRequest
from seerd.spec import values as spec_values
from seerd.telling.configs import config_text

NEXT = re.compile(r",(?=[^\[\],='\"]+=)")  # the comma before the next name: not one inside a list


def add(
    folder: RunFolder, spec: Path | None, texts: Sequence[str] | None, job: NewJob, *, json: bool
) -> None:
    """Ask the run to try a configuration next, and print its answer. Raises `UsageError` if there
    is none or a job is given too, if the run refuses or does not answer, and `JournalError`.
    """
    if spec is not None or not texts:
        raise UsageError("give either --config NAME=VALUE,... or the SPEC of a job, and not both")
    if job != NewJob():
        raise UsageError(
            "--name, --owner, --weight, --target, --budget and --max-gpus are for the SPEC of a "
            "job, not for --config"
        )
    check_running(folder, "no configuration can be added")
    state = reading.read(folder)
    rng = random.Random(f"added {len(state.trials)}")  # noqa: S311 - no secret
    config = completed(state.facts.problem.space, values(texts), rng)
    if why := ask(folder, AddRequest(dict(config))):
        raise UsageError(f"{config_text(config)} was not added: {why}")
    added = {"run": folder.run, "config": plain(config)}
    tell(added, lambda _: f"{folder.run} tries next: {config_text(config)}", json=json)


def completed(space: Space, wanted: Config, rng: random.Random) -> Config:
    """Draw what a configuration leaves open. Raises `UsageError` if it is not in the space."""
    if why := why_not(space, wanted):
        raise UsageError(f"{config_text(wanted)} was not added: {why}")
    try:
        return space.fixed(wanted).sample(rng)
    except NoConfigurationError as error:
        raise UsageError(f"{config_text(wanted)} was not added: {error}") from error


def values(texts: Sequence[str]) -> dict[str, Value]:
    """Read `lr=0.1,optimizer=sgd`. Numbers, lists, true and false are what they are in a spec,
    anything else without a comma is text. Raises `UsageError`.
    """
    config: dict[str, Value] = {}
    for part in (part for text in texts for part in NEXT.split(text)):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not name or not equals or not value:
            raise UsageError(f"--config {part}: write NAME=VALUE, for example lr=0.1,momentum=0.9")
        if name in config:
            raise UsageError(f"--config gives {name} twice")
        try:
            config |= spec_values.config({name: tomllib.loads(f"it = {value}")["it"]})
        except ValueError:
            if "," in value:
                raise UsageError(
                    f"--config {value}: after a comma write NAME=VALUE, or quote a text that has "
                    "commas"
                ) from None
            config[name] = value
    return config
