"""What a user asks of a run that goes on: to try a configuration (`seerd add`), or for later and
larger limits (`seerd extend`), whose plan is made here as `seerd run` makes a run's first plan. The
answer is waited for; a request without one is withdrawn.
"""

from __future__ import annotations

import random
import re
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from seerd.commands.common import quickly, say, tell
from seerd.commands.options import NewJob, NewLimits
from seerd.core.extending import why_not_raised
from seerd.core.lifecycle import RunPhase
from seerd.core.state import State
from seerd.core.verdicts import DenyCause
from seerd.errors import UsageError
from seerd.planner.model import Limits
from seerd.planner.parameter import Config, Value, plain
from seerd.planner.space import NoConfigurationError, Space, why_not
from seerd.runs import edits, reading
from seerd.shell.home import RunFolder
from seerd.shell.inbox import AddRequest, ExtendRequest, Inbox, Request
from seerd.spec import values as spec_values
from seerd.telling.explanation.sentences import REASONS
from seerd.telling.harmless import config_text
from seerd.telling.plan_json import Json
from seerd.telling.working import working
from seerd.units import (
    format_duration,
    format_gpu_time,
    format_money,
    parse_duration,
    parse_gpu_time,
    parse_money,
)

PATIENCE_S = 30.0
POLL_S = 0.1
# what the user can do where a run denies a request
ADVICE: dict[DenyCause, str] = {
    "ending": "; if it was interrupted: seerd resume {run}",
    "lower": "; to end it sooner: seerd stop {run}",
    "no-more": ": it has begun all that it may, or begins them all at once; seer+, asha, bohb, "
    "hypersched and hyperband go on to begin new ones",
}
HOUR_S = 3600.0
NEXT = re.compile(r",(?=[^\[\],='\"]+=)")  # the comma before the next name: not one inside a list


def check_running(folder: RunFolder, what: str) -> None:
    """Raise `UsageError` if no process runs the run. `what`: what cannot be done, for people."""
    if folder.owner() is not None:
        return
    state = reading.read(folder)
    if state.phase is RunPhase.OVER and state.end.status != "interrupted":
        raise UsageError(
            f"{folder.run} is over, so {what}; a new run learns from it: seerd run SPEC --like "
            f"{folder.run}"
        )
    raise UsageError(
        f"{folder.run} is not running, so {what}; go on first with: seerd resume {folder.run}"
    )


def why_denied(folder: RunFolder, cause: DenyCause) -> str:
    """Return why the run denies a request, and what the user can do."""
    return REASONS["denied"][cause] + ADVICE.get(cause, "").format(run=folder.run)


def ask(folder: RunFolder, request: Request, patience_s: float = PATIENCE_S) -> str:
    """Return why the run denies it, empty if it does not. Raises `UsageError` without an answer."""
    inbox = Inbox(folder.requests)
    try:
        name = inbox.put(request)
    except OSError as error:
        raise UsageError(f"{folder.run} cannot be asked: {error.strerror}") from error
    end = time.monotonic() + patience_s
    show = f"seerd show {folder.run}"
    try:
        with working(f"waiting for an answer of {folder.run}"):
            while True:
                alive = folder.owner() is not None
                reply = inbox.reply(name)
                if reply is not None:
                    detail = f": {reply.detail}" if reply.detail else ""
                    return why_denied(folder, reply.denied) + detail if reply.denied else ""
                if not alive:
                    raise UsageError(
                        f"the process of {folder.run} has ended before it answered; unless {show} "
                        f"tells it, ask again after seerd resume {folder.run}"
                    )
                if time.monotonic() > end:
                    raise UsageError(
                        f"{folder.run} has not answered in {patience_s:g} s, and is asked no more. "
                        f"What holds: {show}"
                    )
                time.sleep(POLL_S)
    finally:
        inbox.withdraw(name)


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


def extend(folder: RunFolder, asked: NewLimits, *, json: bool) -> None:
    """Ask the run for these limits, and print its answer. Raises `UsageError`, `JournalError`."""
    check_running(folder, "its limits cannot be extended")
    state, origin = reading.read_with_origin(folder)
    now_s = time.time() - origin
    limits = wanted(state, asked)
    not_extended = f"{folder.run} was not extended"
    if cause := why_not_raised(state.facts.problem.limits, limits):
        raise UsageError(f"{not_extended}: {why_denied(folder, cause)}")
    with quickly():
        from seerd.planning.planned import extended

        spent_gpu_s = state.ledger.spent_gpu_s(max(now_s, state.now))
        problem, outline = extended(
            state.facts.problem,
            state.facts.cluster,
            limits,
            now_s=now_s,
            spent_gpu_s=spent_gpu_s,
            spent_usd=state.ledger.usd(spent_gpu_s),
        )
    if why := ask(folder, ExtendRequest(problem, outline)):
        raise UsageError(f"{not_extended}: {why}")
    answer: Json = {
        "run": folder.run,
        "deadline_s": limits.deadline_s,
        "budget_gpu_min": limits.budget_gpu_s / 60,
        "cost_usd": limits.cost_usd,
        "replanned": outline is not None,
    }
    tell(answer, lambda _: "\n".join(_lines(state, limits, answer)), json=json)
    if edited := edits.note(folder):
        say(edited)


def _lines(state: State, limits: Limits, extended: Json) -> Iterator[str]:
    before, price = state.facts.problem.limits, state.ledger.usd_per_gpu_h
    shown = [
        ("deadline", format_duration(before.deadline_s), format_duration(limits.deadline_s)),
        ("budget", format_gpu_time(before.budget_gpu_s), format_gpu_time(limits.budget_gpu_s)),
    ]
    if limits.cost_usd is not None and before.cost_usd is not None:
        shown.append(("cost", format_money(before.cost_usd), format_money(limits.cost_usd)))
    changes = ", ".join(f"{name} {was} -> {now}" for name, was, now in shown if was != now)
    yield f"{extended['run']} goes on: {changes}"
    if extended["replanned"]:
        yield "what is left is planned anew"
    else:
        yield "too little is left for a plan of its own, or the policy needs none: its plan stands"
    if limits.budget_gpu_s > before.budget_gpu_s and limits.gpu_s(price) <= before.gpu_s(price):
        yield "note: the limit in money ends it as before; --cost extends that"


def wanted(state: State, asked: NewLimits) -> Limits:
    """Return the limits asked for. Raises `UsageError` if there are none or they are unreadable."""
    if asked == NewLimits():
        raise UsageError(
            "say what is to be extended: --deadline 2h or +10m, --budget 600gpu-min or "
            "+60gpu-min, --cost '$40' or '+$10'"
        )
    now = state.facts.problem.limits
    cost_usd = now.cost_usd
    if asked.cost is not None:
        if cost_usd is None:
            raise UsageError("--cost: this run has no limit in money, and none is made tighter")
        cost_usd = _moved(cost_usd, asked.cost, parse_money, "--cost")
    return replace(
        now,
        deadline_s=_moved(now.deadline_s, asked.deadline, parse_duration, "--deadline"),
        budget_gpu_s=_moved(_paid_for(state, cost_usd), asked.budget, parse_gpu_time, "--budget"),
        cost_usd=cost_usd,
    )


def _paid_for(state: State, cost_usd: float | None) -> float:
    """Return the budget in GPU-seconds before `--budget`. One that only follows from the limit in
    money grows with it.
    """
    now, price = state.facts.problem.limits, state.ledger.usd_per_gpu_h
    if cost_usd is None or now.cost_usd is None or price == 0:
        return now.budget_gpu_s
    paid = now.cost_usd / price * HOUR_S
    if abs(paid - now.budget_gpu_s) > 1e-6 * paid:
        return now.budget_gpu_s
    return cost_usd / price * HOUR_S


def _moved(before: float, text: str | None, parse: Callable[[str], float], option: str) -> float:
    """Return the new value of a limit: as it is given, or with a `+` as much more than before."""
    if text is None:
        return before
    adds = text.strip().startswith("+")
    try:
        value = parse(text.strip().removeprefix("+"))
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}; with a + in front it is added") from error
    return before + value if adds else value
