"""Whole runs in a simulated world with random faults, from one seed each: the invariants hold after every event, and the run ends well.

`make soak SEEDS=10000` runs more of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from planner.space import Config
from seerd.core.events import RunFacts
from seerd.sim.behaviour import Behaviour, exactly
from seerd.sim.world import World

SEEDS = int(os.environ.get("SEERD_SOAK_SEEDS", "200"))
MakeFacts = Callable[..., RunFacts]


def faulty_world(seed: int, make: MakeFacts) -> World:
    """A run with faults at random moments: crashing trials, lost machines, killed daemons, NaN, trials that end by themselves."""
    rng = random.Random(seed)
    rented = rng.random() < 0.3
    facts = make(
        billing="rented" if rented else "held",
        gpus=rng.choice([4, 8]) if rented else 8,
        seed=seed,
        budget_gpu_s=rng.choice([320.0, 300.0, 1000.0]) if not rented else rng.choice([600.0, 2000.0]),
    )
    unlucky = rng.random() * 0.02

    def metric(config: Config, epoch: int) -> float | None:
        return None if rng.random() < 0.05 else float(config["lr"]) * (1 - 0.5**epoch)

    behaviour = Behaviour(
        metric=metric,
        unit_s=lambda config, epoch, gpus: rng.uniform(0.3, 3.0) / gpus,
        crashes=lambda trial, attempt, epoch: rng.random() < unlucky,
        boot=exactly(rng.uniform(0.1, 8.0)),
        start=exactly(rng.uniform(0.5, 6.0)),
        stop=exactly(rng.choice([0.2, 1.0, 20.0])),
        most_epochs=rng.choice([None, None, 30]),
        deaf=rng.random() < 0.1,
    )
    kills = frozenset(rng.randrange(1, 400) for _ in range(rng.randrange(4)))
    world = World(facts, behaviour, kill_after=kills)
    world.down_s = rng.choice([0.1, 2.0, 25.0])
    for _ in range(rng.randrange(3)):
        world.at(rng.uniform(0, 60), lambda: lose_one(world, rng))
    if rng.random() < 0.2:
        world.at(rng.uniform(0, 60), world.interrupt)
    return world


def lose_one(world: World, rng: random.Random) -> None:
    alive = [machine.id for machine in world.fleet.machines.values() if machine.alive]
    if alive and world.up:
        world.lose(rng.choice(alive))


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_whatever_fails_the_invariants_hold_and_the_run_ends(facts: MakeFacts, first: int) -> None:
    for seed in range(first, min(first + 50, SEEDS)):
        world = faulty_world(seed, facts)
        try:
            state = world.run()
        except Exception as error:
            raise AssertionError(f"seed {seed} at {world.now:.3f}s: {error}") from error
        latest = 60.0 + world.kills * (world.down_s + 1.0)
        assert state.now <= latest, f"seed {seed} ends at {state.now}, not by {latest}"
        confirmed = [c for t in state.trials.values() for c in t.checkpoints if c.metric is not None]
        assert (state.published is not None) == bool(confirmed), f"seed {seed}"
