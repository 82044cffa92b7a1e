"""One moment of a run, to be read on a terminal.

The one rule: made of the values that `--json` prints.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from seerd.core.state import State
from seerd.story.layout import grid, shortened, wrapped
from seerd.story.words import at, count, names
from seerd.units import format_money

Json = dict[str, Any]

NEXT = {
    "deadline": "everything must be asked to stop, to keep the deadline",
    "budget": "everything must be asked to stop, to keep the budget",
    "plan": "the stage is over, the policy is asked",
    "again": "the policy is asked again, since its last answer was of no use",
    "launch": "instances are asked for again",
    "closed": "what has not saved by then is given back as it is",
}


def moment_page(told: Json, state: State) -> RenderableType:
    """The value of `replay --at --json`, to be read."""
    head = f"{told['run']} at {at(told['at_s'])} (after event {told['event']}): {told['phase']}"
    if told["stage"] is not None:
        stage = f"stage {told['stage']} of {told['stages']}"
        head += f", {stage} (planned until {at(told['stage_end_s'])})"
    parts: list[RenderableType] = [wrapped(head), Text(), *_money(told, state), Text()]
    wanted = " and ".join(f"{g['trials']} x {count(g['gpus_per_trial'], 'GPU')}" for g in told["wanted"])
    needed, live = told["instances_needed"], f"{told['instances_live']} there or on the way"
    plan = "the plan was not recorded; instances: "
    if needed is not None:
        plan = f"wanted: {wanted or 'nobody'}; {count(needed, 'instance')} needed, "
    parts.append(wrapped(plan + live))
    parts += [_where(told), Text()]
    if told["waiting"]:
        waiting = names([f"{one['trial']} ({one['gpus']})" for one in told["waiting"]])
        parts.append(wrapped(f"waiting for GPUs: {waiting}"))
    under_way = [("", one["text"]) for one in told["under_way"] if one["kind"] != "set-timer"]
    parts += [Text("under way", style="bold"), grid(shortened(under_way)), Text()] if under_way else []
    if told["decided"]:
        when = at(told["decided"][0]["at_s"])
        parts.append(Text(f"decided last, at {when} (event {told['decided'][0]['event']})", style="bold"))
        parts += [grid(shortened([("", one["text"]) for one in told["decided"]])), Text()]
    return Group(*parts)


def _money(told: Json, state: State) -> Iterator[RenderableType]:
    price = f" ({format_money(told['spent_usd'])})" if state.ledger.usd_per_gpu_h else ""
    yield wrapped(
        f"spent {told['spent_gpu_min']:.2f} GPU-min{price}, {told['committed_gpu_min']:.2f} if everything were given back now, "
        f"left {told['left_gpu_min']:.2f} of {told['budget_gpu_min']:.2f}; {count(told['gpus_billed'], 'GPU')} billed"
    )
    if told["best"] is not None:
        best = told["best"]
        yield wrapped(
            f"best so far: {best['trial']}, {told['metric']['name']} {best['metric']:.6g} after {count(best['epoch'], 'report')}"
        )
    if told["next"]:
        rows = [
            (at(due["at_s"]), NEXT[due["what"]] + (" (comes first)" if i == 0 else ""))
            for i, due in enumerate(told["next"])
        ]
        yield Text("next", style="bold")
        yield grid(rows)


def _where(told: Json) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("  instance", "state", "GPUs", "what runs there"):
        table.add_column(column, no_wrap=column != "what runs there")
    for instance in told["instances"]:
        here = [
            f"{one['trial']} ({one['phase']}, {count(one['reports'], 'report')}) on {len(on['gpus'])}"
            for one in told["running"]
            for on in one["on"]
            if on["instance"] == instance["instance"]
        ]
        by = "" if instance["by_s"] is None else f" by {at(instance['by_s'])}"
        busy = f"{instance['busy']} of {instance['gpus']}"
        table.add_row(f"  {instance['instance']}", instance["phase"] + by, busy, ", ".join(here) or "nothing")
    return table if told["instances"] else Text("  no instance")
