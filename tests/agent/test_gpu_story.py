"""Whatever runs do on one machine: no GPU is two attempts', none is lost, and nobody waits for a GPU
that is free and within its share.
"""

from __future__ import annotations

import asyncio
import os

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
    @rule(gpus=st.integers(1, GPUS), weight=st.sampled_from([0.5, 1.0, 3.0]))
    def come(self, gpus: int, weight: float) -> None:
        self.machine.comes(gpus, weight)

    @precondition(lambda self: self.machine.runs)
    @rule(data=st.data())
    def want(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.machine.runs))
        busy = {gpu for gpus in run.asked.values() for gpu in gpus}
        free = [gpu for gpu in range(run.here.most) if gpu not in busy]
        if free:
            self.asked += 1
            some = free[: data.draw(st.integers(1, len(free)))]
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
        held = [name for run in self.machine.runs for name in run.holds]
        assert sorted(f"gpu-{name}" for name in held) == leased()

    @invariant()
    def nobody_waits_for_what_is_free_and_its_own(self) -> None:
        self.look(0.6)
        for run in self.machine.runs:
            pool = {str(gpu) for gpu in range(run.here.most)}
            there = pool - {name for other in self.machine.runs for name in other.holds}
            room = min(len(there), run.gpus.share - len(run.holds))
            assert all(len(run.asked[trial]) > room for trial in run.waiting)

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


TestSharing = Sharing.TestCase
TestSharing.settings = settings(
    max_examples=15,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
