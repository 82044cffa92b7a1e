"""Trials that share a GPU in any packing, with any appetite: no neighbour ever fails because of
another's memory, and one that fails is known to have had too small a part.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from bench.testbed.gpu import CONTEXT_MIB, MIB, SEGMENT, FakeGpu, OutOfMemoryError
from seerd.agent.launch import launch_plan
from seerd.agent.protocol import PARTS, Start
from seerd.agent.warm.gpu_share import SHARE, allowed_bytes
from seerd.core.last_words import memory_lacked
from tests.agent.test_agent_launch import JOB, PLACES

GIB = 1 << 30


PACKINGS = 1000


def test_no_trial_fails_because_of_anothers_memory() -> None:
    lacked = Counter[str]()
    for seed in range(PACKINGS):
        lacked += packing(Random(seed))
    assert lacked["neighbours"] > 10 * lacked["alone"] > 0
    assert lacked["share"] > PACKINGS


def packing(random: Random) -> Counter[str]:
    """Trials begin, allocate and leave on one GPU, in any order; returns how they failed, and how
    often a trial had neighbours.
    """
    gpu, parts = FakeGpu(random.randrange(16, 142) * GIB), random.choice(PARTS)
    holders, seen = dict[int, str](), Counter[str]()
    for number in range(30):
        size = random.choice([slots for slots in PARTS if slots <= parts])
        slots = range(first := random.randrange(0, parts, size), first + size)
        name = holders.get(first)
        if name is None and not holders.keys() & set(slots):
            name = f"t{number}"
            holders.update(dict.fromkeys(slots, name))
            _begin(gpu, name, list(slots), parts, random.randint(*CONTEXT_MIB) * MIB)
        if name is None:
            continue
        seen["neighbours"] += len(gpu.processes) > 1
        how = "left" if random.random() < 0.1 else _allocated(gpu, name, random)
        if how:
            gpu.end(name)
            holders = {slot: holder for slot, holder in holders.items() if holder != name}
            seen[how] += 1
    return seen


def _allocated(gpu: FakeGpu, name: str, random: Random) -> str:
    """Allocate what a trial wants next; return how it failed, if it did."""
    own, size = gpu.processes[name], random.randrange(random.choice([300 * MIB, gpu.total // 4]))
    allowed = own.allowed
    if allowed is None:
        assert list(gpu.processes) == [name], "a whole GPU has no neighbours"
        allowed = gpu.total - own.context
    if random.random() < 0.2:
        size = (allowed - own.allocated) // SEGMENT * SEGMENT  # all that is its own
    try:
        gpu.allocate(name, size)
    except OutOfMemoryError as error:
        assert own.allocated + size + SEGMENT > allowed, "it had enough of its own"
        how = memory_lacked([f"torch.OutOfMemoryError: {error}"])
        assert how == ("alone" if own.allowed is None else "share")
        return how
    return ""


def _begin(gpu: FakeGpu, name: str, slots: list[int], parts: int, context: int) -> None:
    """Begin as an agent does, and first use the GPU as a trial does."""
    order = Start("s", name, 1, slots, {}, 17, [], parts=parts)
    share = launch_plan(JOB, order, "run", PLACES, True, {}).env.get(SHARE)
    process = gpu.begin(name, context)
    process.allowed = None if share is None else allowed_bytes(share, gpu.total)


def test_speed_depends_on_who_shares() -> None:
    gpu = FakeGpu(16 * GIB)
    for name in "abcd":
        gpu.begin(name, 0).load = 0.52
        if name == "a":
            assert (gpu.speed("a"), gpu.busy()) == (1.0, 0.52)
    assert gpu.busy() == 1.0
    assert sum(gpu.speed(name) for name in "abcd") == 4 / (4 * 0.52)
    assert gpu.speed("e") == 0.0
