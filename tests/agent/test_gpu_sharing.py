"""What runs have of a machine that they share: each its part, no GPU twice, none idle."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator

import pytest

from seerd.agent import gpu_sharing, host
from seerd.agent.gpu_devices import Device, cpu_slots, cuda_devices
from seerd.agent.gpu_leases import LeaseFolder, RunHere, folder_path
from seerd.agent.gpu_sharing import SharedGpus, shared
from seerd.agent.protocol import Complained, Fact, Noticed, Shared

PREFIX = f"shared-{os.getpid()}-"


class Run:
    """A run on this machine, and what it was told."""

    def __init__(
        self, here: RunHere, devices: list[Device], clock: Callable[[], float], parts: int
    ) -> None:
        self.here, self.parts = here, parts
        self.shares: list[int] = []
        self.whys: list[str] = []
        self.stopped: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[bool]] = {}
        self._asked: dict[str, list[int]] = {}
        self.waits: list[tuple[str, str]] = []
        self.gpus = SharedGpus(here, devices, None, self._hear, clock)

    def _hear(self, facts: list[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, Shared):
                self.shares.append(fact.gpus)
                self.whys.append(fact.why)
            else:
                assert isinstance(fact, Complained)
                self.waits.append((f"{fact.trial}/{fact.attempt}", fact.why))

    async def wants(self, trial: str, *gpus: int) -> bool:
        """Ask for GPUs, by the daemon's numbers; whether the attempt has them already."""
        self.stopped[trial], self._asked[trial] = asyncio.Event(), list(gpus)
        work = self.gpus.take(f"{trial}/1", list(gpus), self.stopped[trial])
        self.tasks[trial] = asyncio.create_task(work)
        return await self.has(trial)

    @property
    def asked(self) -> dict[str, list[int]]:
        """Trials that have GPUs or wait for them, and which they asked for."""
        return {trial: gpus for trial, gpus in self._asked.items() if trial in self.tasks}

    @property
    def waiting(self) -> list[str]:
        return [trial for trial, task in self.tasks.items() if not task.done()]

    @property
    def having(self) -> list[str]:
        return [trial for trial in self.asked if trial not in self.waiting]

    @property
    def leases(self) -> list[str]:
        """The leases of what its attempts have."""
        held = [self.gpus._held[f"{trial}/1"] for trial in self.having]
        return [place.lease for one in held for place in one.places]

    def names(self, trial: str) -> list[str]:
        return self.gpus.names(f"{trial}/1")

    async def over(self, trial: str) -> None:
        """End an attempt, whether it has its GPUs or waits for them."""
        self.stopped[trial].set()
        await self.tasks.pop(trial)
        self.gpus.give_back(f"{trial}/1")
        for _ in range(5):
            await asyncio.sleep(0)

    async def has(self, trial: str) -> bool:
        for _ in range(5):
            await asyncio.sleep(0)
        return self.tasks[trial].done()

    def ends(self, *trials: str) -> None:
        for trial in trials:
            self.gpus.give_back(f"{trial}/1")


class Machine:
    """Runs that come to one machine, and its clock."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.came = 0
        self.now = 1000.0

    def comes(
        self, gpus: int = 8, weight: float = 1.0, *, cuda: bool = True, parts: int = 1
    ) -> Run:
        self.came += 1
        there = cuda_devices(gpus, "") if cuda else cpu_slots(gpus)
        pool = [device.lease for device in there]
        here = RunHere(f"{PREFIX}{self.came}", weight, gpus, 0, 1, pool, float(self.came), {})
        self.runs.append(Run(here, there, lambda: self.now, parts))
        self.runs[-1].gpus.need(1, parts)
        return self.runs[-1]

    def look(self, after_s: float = 1.0) -> None:
        """Everybody looks, twice, since what one says the other sees."""
        self.now += after_s
        for run in self.runs * 2:
            run.gpus.look()
            self.now += 0.6

    def leaves(self, run: Run) -> None:
        """Let a run end."""
        run.ends(*run.tasks)
        run.gpus.close()
        self.runs.remove(run)
        host.kill(lambda: host.each_of_run(run.here.run), set())

    def end(self) -> None:
        for run in list(self.runs):
            self.leaves(run)


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.end()


def run_it(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


def leased() -> list[str]:
    folder = LeaseFolder(folder_path())
    found = folder.leased()
    folder.close()
    return found


def test_a_run_alone_gets_the_gpus_that_it_asks_for_at_once(machine: Machine) -> None:
    async def story() -> None:
        run = machine.comes()
        machine.look()
        assert await run.wants("a", 4, 5, 6, 7)
        assert await run.wants("b", 0)
        assert run.names("a") == ["4", "5", "6", "7"]
        assert run.names("b") == ["0"]
        assert run.shares == []
        run.ends("a")
        assert leased() == ["gpu-0"]

    run_it(story)


def test_gpus_stay_leased_when_the_agent_that_leased_them_has_died(machine: Machine) -> None:
    async def story() -> None:
        run = machine.comes()
        assert await run.wants("a", 4, 5)
        nothing = os.open(os.devnull, os.O_RDWR)
        for lease in run.gpus._held["a/1"].leases:
            os.dup2(nothing, lease)  # as if this process had ended
        os.close(nothing)
        assert leased() == ["gpu-4", "gpu-5"]

    run_it(story)


def test_the_second_run_gets_its_share_when_the_first_has_given_it_back(machine: Machine) -> None:
    async def story() -> None:
        first = machine.comes()
        for gpu in range(8):
            assert await first.wants(f"t{gpu}", gpu)
        second = machine.comes()
        machine.look()
        assert (first.shares, second.shares) == ([], [4])
        assert second.whys == [f"8 GPUs are shared with {PREFIX}1 of {user()} (weight 1)"]
        for gpu in range(4):
            assert not await second.wants(f"u{gpu}", gpu)
        machine.look()
        assert (first.shares, second.shares) == ([4], [4])
        first.ends("t4", "t5", "t6", "t7")
        machine.look()
        assert all([await second.has(f"u{gpu}") for gpu in range(4)])
        assert [second.names(f"u{gpu}")[0] for gpu in range(4)] == ["4", "5", "6", "7"]
        assert not await first.wants("t8", 4), "beyond its share"
        first.stopped["t8"].set()
        assert await first.has("t8")

    run_it(story)


def test_one_gpu_that_is_shared_is_named_as_one(machine: Machine) -> None:
    async def story() -> None:
        first, second = (machine.comes(1, parts=2) for _ in range(2))
        assert await first.wants("t0", 0)
        assert await first.wants("t1", 1)
        machine.look()
        assert second.shares == [1]
        assert second.whys == [f"1 GPU is shared with {PREFIX}1 of {user()} (weight 1)"]

    run_it(story)


def test_the_first_has_all_again_when_the_second_is_gone(machine: Machine) -> None:
    async def story() -> None:
        first, second = machine.comes(), machine.comes()
        for run in (first, second):
            for gpu in range(4):
                await run.wants(f"t{gpu}", gpu)
        machine.look()
        assert (first.shares, second.shares) == ([4], [4])
        second.ends("t0", "t1", "t2", "t3")
        machine.leaves(second)
        machine.look()
        assert first.shares == [4, 8]
        assert first.whys[-1] == "no other run is here any more"

    run_it(story)


def test_what_a_run_does_not_use_the_other_may(machine: Machine) -> None:
    async def story() -> None:
        first, second = machine.comes(), machine.comes()
        for run in (first, second):
            for gpu in range(4):
                await run.wants(f"t{gpu}", gpu)
        machine.look()
        second.ends("t0", "t1", "t2")
        machine.look()
        assert first.shares == [4], "it may be between two rounds"
        machine.look(gpu_sharing.IDLE_S)
        assert (first.shares, second.shares) == ([4, 7], [4])
        await second.wants("t4", 0)
        await second.wants("t5", 1)
        await second.wants("t6", 2)
        machine.look()
        assert first.shares == [4, 7, 4]

    run_it(story)


@pytest.mark.parametrize(("weight", "share"), [(1.0, 4), (3.0, 6), (0.1, 1)])
def test_shares_go_by_weight(machine: Machine, weight: float, share: int) -> None:
    async def story() -> None:
        first, second = machine.comes(), machine.comes(weight=weight)
        for run in (first, second):
            for gpu in range(8):
                await run.wants(f"t{gpu}", gpu)
        machine.look()
        assert (first.shares[-1], second.shares[-1]) == (8 - share, share)

    run_it(story)


def test_a_run_that_can_use_few_leaves_the_rest(machine: Machine) -> None:
    async def story() -> None:
        first, second = machine.comes(8), machine.comes(2)
        for gpu in range(8):
            await first.wants(f"t{gpu}", gpu)
        await second.wants("u0", 0)
        await second.wants("u1", 1)
        machine.look()
        assert (first.shares, second.shares) == ([6], [])

    run_it(story)


def test_a_run_that_could_do_nothing_with_its_share_waits_and_the_other_keeps_all(
    machine: Machine,
) -> None:
    async def story() -> None:
        first, second = machine.comes(), machine.comes()
        for run in (first, second):
            run.gpus.need(8, 1)
        assert await first.wants("t", *range(8))
        machine.look()
        machine.look()
        assert (first.shares, second.shares) == ([], [1])
        first.ends("t")
        machine.look(gpu_sharing.IDLE_S)
        assert second.shares == [1, 8]
        assert await second.wants("u", *range(8))
        assert not await first.wants("v", *range(8))
        machine.look()
        assert second.shares == [1, 8, 1], "who came first goes first"

    run_it(story)


def test_with_more_runs_than_gpus_each_may_have_one_and_waits_for_it(machine: Machine) -> None:
    async def story() -> None:
        runs = [machine.comes(2) for _ in range(3)]
        had = [await run.wants("t", 0) for run in runs]
        assert had == [True, True, False]
        machine.look()
        assert [run.shares for run in runs] == [[1], [1], [1]]
        runs[0].ends("t")
        machine.look()
        assert await runs[2].has("t")

    run_it(story)


def test_gpus_that_others_use_are_not_touched(machine: Machine) -> None:
    async def story() -> None:
        first, second = machine.comes(3), machine.comes(3)
        assert await first.wants("t", 1)
        assert first.gpus.left() is None
        assert second.gpus.left() == ["0", "2"]
        first.ends("t")
        assert second.gpus.left() is None

    run_it(story)


def test_an_attempt_that_waits_can_be_stopped(machine: Machine) -> None:
    async def story() -> None:
        first, second = machine.comes(1), machine.comes(1)
        assert await first.wants("t", 0)
        assert not await second.wants("t", 0)
        second.stopped["t"].set()
        assert await second.has("t")
        assert not second.tasks["t"].result()
        first.ends("t")
        assert leased() == []

    run_it(story)


def test_that_an_attempt_waits_is_told_again_and_again_with_whom_for(machine: Machine) -> None:
    async def story() -> None:
        first, second = machine.comes(1), machine.comes(1)
        await first.wants("t", 0)
        await second.wants("u", 0)
        machine.look()
        assert second.waits == []
        machine.look(gpu_sharing.PATIENCE_S)
        machine.look(gpu_sharing.PATIENCE_S)
        assert len(second.waits) == 1
        machine.look(gpu_sharing.PATIENCE_S)
        assert second.waits == [("u/1", f"the run {PREFIX}1 of {user()} has gpu-0")] * 2
        first.ends("t")
        assert await second.has("u") or machine.look() or await second.has("u")
        machine.look(4 * gpu_sharing.PATIENCE_S)
        assert len(second.waits) == 2

    run_it(story)


def test_an_attempt_that_waits_for_an_hour_is_told_once_a_minute(machine: Machine) -> None:
    async def story() -> None:
        first, second = machine.comes(1), machine.comes(1)
        await first.wants("t", 0)
        await second.wants("u", 0)
        for _ in range(1000):
            machine.look(1.2)
        assert 60 <= len(second.waits) <= 64

    run_it(story)


def test_a_process_that_holds_locks_and_is_no_run_is_named(machine: Machine) -> None:
    async def story() -> None:
        run, folder = machine.comes(2), LeaseFolder(folder_path())
        for number in range(2):
            stranger = folder.lease(f"gpu-{number}")
            assert stranger is not None
        other = folder.lease("gpu-7")  # which this run may not take
        assert other is not None
        await run.wants("t", 0)
        machine.look(gpu_sharing.PATIENCE_S + 1)
        ((attempt, why),) = run.waits
        assert attempt == "t/1"
        assert why == (
            f"a process that is no run of seerd, and that `fuser -v {folder_path()}/*` names, has "
            "gpu-0, gpu-1"
        )

    run_it(story)


def test_cpu_slots_are_as_many_as_the_run_says_that_says_most(machine: Machine) -> None:
    async def story() -> None:
        first, second = machine.comes(2, cuda=False), machine.comes(4, cuda=False)
        machine.look()
        for gpu in range(2):
            assert await first.wants(f"t{gpu}", gpu)
            assert await second.wants(f"t{gpu}", gpu)
        machine.look()
        assert (first.shares, second.shares) == ([], [2])
        assert leased() == ["slot-0", "slot-1", "slot-2", "slot-3"]

    run_it(story)


def test_runs_on_gpus_and_on_cpus_do_not_share(machine: Machine) -> None:
    async def story() -> None:
        first, second = machine.comes(2), machine.comes(2, cuda=False)
        for run in (first, second):
            assert await run.wants("t", 0, 1)
        machine.look()
        assert first.shares == second.shares == []

    run_it(story)


def test_a_run_takes_no_more_than_its_share_though_more_is_free(machine: Machine) -> None:
    async def story() -> None:
        first, second = machine.comes(4), machine.comes(4)
        assert await second.wants("short", 0, 1)
        machine.look()
        await second.over("short")
        assert (leased(), first.gpus.share) == ([], 2)
        assert not await first.wants("a", 0, 1, 2)
        assert await first.wants("b", 0, 1)

    run_it(story)


def test_a_larger_trial_waits_for_all_its_gpus_and_holds_none_meanwhile(machine: Machine) -> None:
    async def story() -> None:
        first, second = machine.comes(4), machine.comes(4)
        for gpu in range(4):
            await first.wants(f"t{gpu}", gpu)
        assert not await second.wants("u", 0, 1)
        machine.look()
        first.ends("t3")
        machine.look()
        assert not await second.has("u")
        assert leased() == ["gpu-0", "gpu-1", "gpu-2"]
        first.ends("t2")
        machine.look()
        assert await second.has("u")
        assert second.names("u") == ["2", "3"]

    run_it(story)


def test_parts_of_one_gpu_have_the_numbers_that_were_asked_for(machine: Machine) -> None:
    async def story() -> None:
        run = machine.comes(2, parts=4)
        assert await run.wants("a", 5)
        assert await run.wants("b", 6, 7)
        assert await run.wants("c", 0, 1, 2, 3)
        assert [run.names(trial) for trial in "abc"] == [["1"], ["1"], ["0"]]
        assert leased() == ["gpu-0", "gpu-1.1of4", "gpu-1.2of4", "gpu-1.3of4"]
        assert not await run.wants("d", 4, 5, 6, 7), "a whole GPU has no neighbour"
        for trial in "ab":
            run.ends(trial)
        machine.look()
        assert await run.has("d")
        assert run.shares == []

    run_it(story)


def test_runs_share_a_gpu_if_all_of_them_have_parts(machine: Machine) -> None:
    async def story() -> None:
        first, second = machine.comes(1, parts=2), machine.comes(1, parts=4)
        machine.look()
        assert await first.wants("a", 0)
        assert await second.wants("b", 0)
        assert not await second.wants("c", 1, 2), "one part alone is left"
        second.stopped["c"].set()
        assert await second.wants("d", 2)
        assert leased() == ["gpu-0.0of2", "gpu-0.2of4", "gpu-0.3of4"]
        third = machine.comes(1)
        assert not await third.wants("e", 0)
        machine.look(gpu_sharing.PATIENCE_S + 1)
        machine.look()
        assert (first.shares[-1], second.shares[-1], third.shares) == (1, 2, [])
        held = f"the run {PREFIX}1 of {user()} has 1/2 of gpu-0; the run {PREFIX}2 of {user()} has"
        assert third.waits[0] == ("e/1", f"{held} 2/4 of gpu-0")

    run_it(story)


def test_an_attempt_that_grows_leases_more_of_its_gpu_once_that_is_free(machine: Machine) -> None:
    async def story() -> None:
        first, second = machine.comes(2, parts=4), machine.comes(2, parts=4)
        assert await first.wants("a", 5)
        assert await second.wants("b", 4)
        assert first.gpus.widen("a/1", [4, 5])
        assert leased() == ["gpu-1.0of4", "gpu-1.1of4", "gpu-1.2of4"], "another part of the same"
        assert not first.gpus.widen("a/1", [4, 5, 6, 7]), "the other run has one of them"
        assert not first.gpus.widen("nobody/1", [0, 1])
        second.ends("b")
        first.gpus.share = 3
        assert not first.gpus.widen("a/1", [4, 5, 6, 7]), "beyond its share"
        first.gpus.share = 4
        assert first.gpus.widen("a/1", [4, 5, 6, 7])
        assert first.gpus.widen("a/1", [4, 5, 6, 7]), "it has them"
        assert leased() == [f"gpu-1.{part}of4" for part in range(4)]
        first.ends("a")
        assert leased() == []

    run_it(story)


def test_what_an_attempt_has_grown_by_stays_leased_when_the_agent_has_died(
    machine: Machine,
) -> None:
    async def story() -> None:
        run = machine.comes(1, parts=4)
        assert await run.wants("a", 0)
        assert run.gpus.widen("a/1", [0, 1])
        nothing = os.open(os.devnull, os.O_RDWR)
        for lease in run.gpus._held["a/1"].leases:
            os.dup2(nothing, lease)  # as if this process had ended
        os.close(nothing)
        assert leased() == ["gpu-0.0of4", "gpu-0.1of4"]

    run_it(story)


def test_two_runs_on_one_gpu_have_half_of_its_parts_each(machine: Machine) -> None:
    async def story() -> None:
        first, second = machine.comes(1, parts=4), machine.comes(1, parts=4)
        for run in (first, second):
            for slot in range(4):
                await run.wants(f"t{slot}", slot)
        machine.look()
        assert (first.shares, second.shares) == ([2], [2])
        first.ends("t2", "t3")
        machine.look()
        assert [await second.has(f"t{slot}") for slot in range(4)] == [True, True, False, False]

    run_it(story)


def test_parts_go_where_the_run_has_parts_already_so_that_whole_gpus_stay_free(
    machine: Machine,
) -> None:
    async def story() -> None:
        first, second = machine.comes(3, parts=2), machine.comes(3, parts=2)
        assert await first.wants("a", 2, 3)
        assert await second.wants("b", 4)
        assert await second.wants("c", 3)
        assert [second.names(trial) for trial in "bc"] == [["2"], ["2"]]
        assert second.gpus.shown(range(3)) == ["0", "2", "2"]
        assert second.gpus.left() == ["0", "2"]

    run_it(story)


def test_a_share_that_was_reported_before_parts_were_known_is_reported_again(
    machine: Machine,
) -> None:
    async def story() -> None:
        first, second = machine.comes(2), machine.comes(2)
        for run in (first, second):
            await run.wants("t", 0)
        machine.look()
        assert second.shares == [1]
        second.gpus.need(1, 4)
        machine.look()
        assert second.shares == [1, 4]

    run_it(story)


def test_without_a_place_for_leases_a_run_goes_on_and_says_so(
    leases: Callable[..., object],
) -> None:
    os.mkdir(str(leases), 0o700)  # noqa: PTH102
    facts: list[Fact] = []
    here = RunHere(f"{PREFIX}x", 1.0, 2, 0, 1, [], 0.0, {})
    assert shared(here, [], 2, facts.extend) is None
    (note,) = facts
    assert isinstance(note, Noticed)
    assert "other runs on this machine are not seen" in note.why
    assert "mode 0700" in note.why


def user() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name
