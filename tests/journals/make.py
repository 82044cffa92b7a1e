"""Makes the journals of the present format, once, when it is released: `python -m
tests.journals.make`.

The one rule: a folder that is there is never written to. What is expected of a journal is taken
from the run that made it, not from reading.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench.testbed.checked_world import World
from seerd.core.codec import FORMAT, encode_decisions, encode_event
from seerd.core.state import State
from seerd.core.step import commands_of
from seerd.planner.policies import POLICIES
from seerd.telling.complaints import notes_of
from tests.conftest import small_facts
from tests.properties.test_core_properties import faulty_world

FOLDER = Path(__file__).parent / f"format{FORMAT}"
EVENTS = range(40, 100)
MIDWAY = 24
ENDINGS = ("done", "deadline", "budget", "interrupted", "failed")


def main() -> int:
    """One of every policy with a killed daemon, one of every way to end, one that was left in the
    middle.
    """
    if FOLDER.exists():
        print(f"{FOLDER} is there already", file=sys.stderr)
        return 1
    FOLDER.mkdir()
    for policy in (*POLICIES, "profile", "jobs"):
        write(policy, first(policy, lambda world: world.kills > 0))
    for ending in ENDINGS:
        write(ending, first("seer" if ending != "failed" else "grid", ends(ending)))
    calm = first("asha", lambda world: world.kills == 0)
    write("midway", calm, midway=True)
    return 0


def ends(ending: str) -> Any:
    return lambda world: world.state.end.status == ending


def first(policy: str, wanted: Any) -> tuple[int, str]:
    """The first seed whose run is as wanted, of a length that one can read."""
    for seed in range(5000):
        world = faulty_world(seed, small_facts, [policy], several=policy == "jobs")
        world.run()
        few = world.state.end.status == "failed"
        if (len(world.journal) in EVENTS or few) and wanted(world):
            return seed, policy
    raise AssertionError(f"no run of {policy} is as wanted")


def write(name: str, chosen: tuple[int, str], *, midway: bool = False) -> None:
    seed, policy = chosen
    world = faulty_world(seed, small_facts, [policy], several=policy == "jobs")
    world.begin()
    while not world.state.finished and not (
        midway and len(world.journal) >= MIDWAY and world.state.fleet.holding > 0
    ):
        world.turn()
    rows = [
        {
            "event": json.loads(encode_event(event)),
            "decisions": json.loads(encode_decisions(decided)),
        }
        for event, decided in world.journal
    ]
    (FOLDER / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (FOLDER / f"{name}.expected.json").write_text(json.dumps(told(world), indent=1) + "\n")


def told(world: World) -> dict[str, Any]:
    state = world.state
    return {
        "format": FORMAT,
        "policy": world.facts.problem.params.name,
        "phase": str(state.phase),
        "ending": state.end.status,
        "now": state.now,
        "spent_gpu_s": state.ledger.spent_gpu_s(state.now),
        "charges": {
            "closed": [charge_row(c) for c in state.ledger.closed],
            "open": [charge_row(c) for c in state.ledger.open.values()],
        },
        "trials": [trial_row(trial) for trial in state.trials.values() if trial.attempt],
        "published": published(state),
        "notes": notes_of(state),
        "under_way": list(state.under_way),
        "commands": [
            [[c.id, c.__struct_config__.tag] for c in commands_of(decided)]
            for _, decided in world.journal
        ],
    }


def charge_row(charge: Any) -> list[Any]:
    return [
        charge.what,
        charge.instance,
        charge.gpus,
        charge.since_s,
        charge.until_s,
        charge.minimum_s,
    ]


def trial_row(trial: Any) -> dict[str, Any]:
    return {
        "id": trial.id,
        "config": dict(trial.config),
        "seed": trial.seed,
        "phase": str(trial.phase),
        "why": trial.why,
        "attempt": trial.attempt,
        "crashes": trial.crashes,
        "losses": trial.losses,
        "history": [[r.at_s, r.reports, r.metric] for r in trial.history],
        "checkpoints": [[c.name, c.reports, c.metric, c.sha256, c.size] for c in trial.checkpoints],
    }


def published(state: State) -> dict[str, Any] | None:
    best = state.result.published
    return best and {
        "trial": best.incumbent.trial,
        "checkpoint": best.incumbent.checkpoint.name,
        "metric": best.incumbent.metric,
        "path": best.path,
    }


if __name__ == "__main__":
    sys.exit(main())
