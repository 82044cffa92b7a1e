"""What whole runs with random faults came to, a line for each: all decisions, and all that is said
of the run at its end, stand in its digits.

`pytest tests/properties --rewrite` accepts what comes out now; review the difference before you
commit it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from bench.testbed.checked_world import World
from seerd.telling.complaints import notes_of
from seerd.telling.diagnosis import complaints, diagnose, failure_groups, hint_of
from seerd.telling.outcomes import outcomes
from tests.conftest import small_facts
from tests.digests import digest
from tests.properties.test_core_properties import faulty_world, shared_world

FILE = Path(__file__).with_name("decided.txt")
POLICIES = ("asha", "e-grid", "grid", "hyperband", "hypersched", "random", "seer", "sha")
"""Those that compute no model of the metric: its last digits are each machine's own."""
WORLDS = {
    "alone": partial(faulty_world, policies=POLICIES),
    "jobs": partial(faulty_world, policies=POLICIES, several=True),
    "shared": partial(shared_world, policies=POLICIES),
}
SEEDS = range(36)
AT_ONCE = 4


def line(kind: str, seed: int) -> str:
    world: World = WORLDS[kind](seed, small_facts)
    state = world.run()
    best = state.result.published
    model = f"{best.incumbent.trial} {best.incumbent.metric:.4g}" if best else "no model"
    said = [
        *(outcomes(state), complaints(state), diagnose(state), notes_of(state)),
        *((trial.id, trial.why, trial.note) for trial in state.trials.values()),
        *([hint_of(state, trial) for trial in group] for group in failure_groups(state)),
    ]
    decided = digest([decisions for _, decisions in world.journal])
    return (
        f"{kind} {seed} {world.facts.problem.params.name}: {len(world.journal)} events, "
        f"{state.end.status} at {state.now:.2f}s, {state.ledger.spent_gpu_s(state.now):.2f} GPU-s, "
        f"{model}; {decided} {digest(said)}"
    )


@pytest.mark.parametrize("first", SEEDS[::AT_ONCE])
@pytest.mark.parametrize("kind", WORLDS)
def test_runs_are_decided_as_they_were(kind: str, first: int, pytestconfig: pytest.Config) -> None:
    lines = dict(row.split(": ", 1) for row in FILE.read_text().splitlines())
    now = dict(line(kind, seed).split(": ", 1) for seed in range(first, first + AT_ONCE))
    if pytestconfig.getoption("rewrite"):
        order = sorted(
            {**lines, **now}.items(), key=lambda row: (row[0].split()[0], int(row[0].split()[1]))
        )
        FILE.write_text("".join(f"{name}: {rest}\n" for name, rest in order))
    assert now == {name: lines.get(name) for name in now}
