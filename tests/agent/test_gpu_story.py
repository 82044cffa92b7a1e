"""Whatever runs do on one machine: no GPU and no part of one is two attempts', none is lost, and
nobody waits for what is free and within its share.
"""

from __future__ import annotations

import asyncio
import os
import re
from itertools import pairwise

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seerd.agent.gpu_leases import ELSEWHERE
from tests.agent.test_gpu_sharing import Machine, Run, leased

GPUS, MOST_RUNS = 4, 3


class Sharing(RuleBasedStateMachine):
    """Runs come, want GPUs, end attempts and leave, in any order."""

    machines = 0

    @initialize()
    def begin(self) -> None:
        Sharing.machines += 1
        self.before = os.environ[ELSEWHERE]
        os.environ[ELSEWHERE] = f"{self.before}-{Sharing.machines}"
        self.loop = asyncio.new_event_loop()
        self.machine = Machine()
        self.asked = 0

    @precondition(lambda self: len(self.machine.runs) < MOST_RUNS)
    @rule(
        gpus=st.integers(1, GPUS),
        weight=st.sampled_from([0.5, 1.0, 3.0]),
        parts=st.sampled_from([1, 1, 2, 4]),
    )
    def come(self, gpus: int, weight: float, parts: int) -> None:
        self.machine.comes(gpus, weight, parts=parts)

    @precondition(lambda self: self.machine.runs)
    @rule(data=st.data())
    def want(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.machine.runs))
        busy = {slot for slots in run.asked.values() for slot in slots}
        free = [slot for slot in range(run.here.most * run.parts) if slot not in busy]
        if free:
            self.asked += 1
            gpu = free[0] // run.parts
            some = [slot for slot in free if slot // run.parts == gpu]
            if len(some) == run.parts and data.draw(st.booleans()):  # a whole GPU, or more
                whole = [free[n : n + run.parts] for n in range(0, len(free), run.parts)]
                whole = [slots for slots in whole if slots == _all_of(slots[0], run.parts)]
                most = data.draw(st.integers(1, len(whole)))
                some = [slot for slots in whole[:most] for slot in slots]
            else:
                some = some[: data.draw(st.integers(1, len(some)))]
            self.loop.run_until_complete(run.wants(f"t{self.asked}", *some))

    @precondition(lambda self: any(run.asked for run in self.machine.runs))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from([run for run in self.machine.runs if run.asked]))
        self._end(run, data.draw(st.sampled_from(sorted(run.asked))))

    @precondition(lambda self: self.machine.runs)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self._leave(data.draw(st.sampled_from(self.machine.runs)))

    @rule(after_s=st.sampled_from([0.6, 20.0]))
    def look(self, after_s: float) -> None:
        self.machine.look(after_s)
        self.loop.run_until_complete(asyncio.sleep(0))

    @invariant()
    def no_gpu_is_held_twice_and_none_is_lost(self) -> None:
        held = [lease for run in self.machine.runs for lease in run.leases]
        assert sorted(held) == sorted(leased())
        spans = sorted(map(_span, held))
        assert all(one[1] <= other[0] for one, other in pairwise(spans)), "no part overlaps another"

    @invariant()
    def nobody_waits_for_what_is_free_and_its_own(self) -> None:
        self.look(0.6)
        held = [_span(lease) for run in self.machine.runs for lease in run.leases]
        for run in self.machine.runs:
            width = SIXTEENTHS // run.parts
            slots = range(0, run.here.most * SIXTEENTHS, width)
            free = [at // width for at in slots if not _meets((at, at + width), held)]
            gpus = [[slot for slot in free if slot // run.parts == n] for n in range(GPUS)]
            room = run.gpus.share - sum(len(run.asked[trial]) for trial in run.having)
            for trial in run.waiting:
                wanted = len(run.asked[trial])
                if wanted < run.parts:
                    has_room = any(len(some) >= wanted for some in gpus)
                else:
                    whole = sum(len(some) == run.parts for some in gpus)
                    has_room = whole * run.parts >= wanted
                assert wanted > room or not has_room

    def teardown(self) -> None:
        for run in list(self.machine.runs):
            self._leave(run)
        assert leased() == []
        self.loop.close()
        os.environ[ELSEWHERE] = self.before

    def _end(self, run: Run, trial: str) -> None:
        self.loop.run_until_complete(run.over(trial))

    def _leave(self, run: Run) -> None:
        for trial in sorted(run.asked):
            self._end(run, trial)
        self.machine.leaves(run)


SIXTEENTHS = 16


def _span(lease: str) -> tuple[int, int]:
    """From where to where a lease goes, in sixteenths of a GPU."""
    gpu, part, parts = map(int, re.findall("[0-9]+", f"{lease}.0of1")[:3])
    width = SIXTEENTHS // parts
    return gpu * SIXTEENTHS + part * width, gpu * SIXTEENTHS + (part + 1) * width


def _meets(one: tuple[int, int], others: list[tuple[int, int]]) -> bool:
    return any(one[0] < end and begin < one[1] for begin, end in others)


def _all_of(slot: int, parts: int) -> list[int]:
    """All slots of this slot's GPU."""
    first = slot // parts * parts
    return list(range(first, first + parts))


TestSharing = Sharing.TestCase
TestSharing.settings = settings(
    max_examples=15,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
