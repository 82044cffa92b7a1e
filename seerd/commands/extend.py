"""`seerd extend`: later and larger limits for a run that goes on. The plan for what is left is made
here, as a run's first plan is made by `seerd run`; the run only says whether it holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from seerd.commands.asking import ask, check_running, why_denied
from seerd.commands.common import quickly, say, tell
from seerd.commands.options import NewLimits
from seerd.core.extending import why_not_raised
from seerd.core.state import State
from seerd.errors import UsageError
from seerd.planner.model import Limits
from seerd.runs import edits, reading
from seerd.shell.home import RunFolder
from seerd.shell.inbox import ExtendRequest
from seerd.telling.plan_json import Json
from seerd.units import (
    format_duration,
    format_gpu_time,
    format_money,
    parse_duration,
    parse_gpu_time,
    parse_money,
)

HOUR_S = 3600.0


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
    """Return the limits that are asked for. Raises `UsageError` if there are none, or they cannot
    be read.
    """
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
