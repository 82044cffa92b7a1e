"""One attempt by itself, in this process, with real processes of its own: what it tells, what it
leaves behind, and how it ends.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
import time
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seerd.agent import clock, host
from seerd.agent.attempts import LocalAttempt, quiet_s_of
from seerd.agent.hangs import Stall
from seerd.agent.health import GpusAfter
from seerd.agent.kept_reports import ReportLimit
from seerd.agent.launch import LaunchPlan, Places
from seerd.agent.manifest import Comparison
from seerd.agent.progress_marks import WORKING, ProgressMark
from seerd.agent.protocol import (
    Checkpointed,
    Complained,
    Exited,
    Node,
    Noticed,
    Reported,
    Start,
    Started,
)
from seerd.agent.timings import TIMINGS
from seerd.agent.transfer import Directory
from seerd.agent.trial_output import TrialOutput
from seerd.agent.warm_starts import WarmStarts
from tests.agent.test_agent_transfer import save
from tests.agent.waiting import forget_unwatched, no_threads, until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    pytest.mark.usefixtures("adopts"),
]

RUN = f"alone-{os.getpid()}"
BROKEN = "GPU 1 has broken: it has fallen off the bus (XID 79)"
GOAL = Comparison("accuracy", "max")
TORCHRUN = ("-", "torch.distributed.run")
"""Arguments that make a shell torchrun, as far as its agent sees it."""
WAITS = "while ! test -e stop; do sleep 0.02; done"
REPORT = {"kind": "report", "epoch": 1, "metrics": {"accuracy": 0.5}, "unit_s": 0.1}
CLOSING = "Sending process 12 closing signal SIGTERM"


class Store(Directory):
    """A directory that counts how often it was cut, and has places only while `places`."""

    cuts = 0
    last_calls = 0
    places = True

    def ready(self) -> bool:
        return self.places

    def cut(self) -> None:
        self.cuts += 1

    def last_call(self) -> None:
        self.last_calls += 1


class Stage:
    """An attempt, and what it has told: `facts`. `gpus`: how its GPUs are when it has ended."""

    def __init__(self, folder: Path, node: Node | None = None) -> None:
        (folder / "lib").mkdir(exist_ok=True)
        self.places = Places(folder / "t1" / "2", folder / "saved", folder / "lib", folder / "lock")
        self.store = Store(folder / "store", GOAL)
        self.facts: list[Any] = []
        self.gpus = GpusAfter()
        self.proved = 0
        self.others: list[LocalAttempt] = []
        out = self.places.attempt / "out.jsonl"
        self.output = TrialOutput(
            out, "t1", 2, self.places.checkpoints, self.store, GOAL, ReportLimit()
        )
        order = Start("s-7", "t1", 2, [1, 3], {}, 0, [], node)
        self.attempt = LocalAttempt(
            *(RUN, order, self.places, self.output, TIMINGS, self._tell, self._gpus_after),
            others=lambda: self.others,
        )

    def _tell(self, facts: list[Any]) -> None:
        self.facts += [replace(fact, seq=len(self.facts) + at) for at, fact in enumerate(facts, 1)]

    async def _gpus_after(self) -> GpusAfter:
        self.proved += 1
        return self.gpus

    def plan(
        self, script: str, *words: str, observer: list[str] | None = None, **env: str
    ) -> LaunchPlan:
        """Start a shell with this script in the attempt's folder."""
        self.places.attempt.mkdir(parents=True, exist_ok=True)
        about = {"trial": "t1", "seed": 5}
        marked = {**os.environ, host.MARKER: f"{RUN}/t1/2", **env}
        folder = str(self.places.attempt)
        command = ["sh", "-c", script, *words]
        return LaunchPlan(command, marked, folder, self.places.launcher_log, about, observer)

    def torchrun(self, script: str, **env: str) -> LaunchPlan:
        return self.plan(script, *TORCHRUN, **env)

    def begins_rank(self, local: int) -> Path:
        """Make the folder for the logs of a rank, as torchrun does; return it."""
        logs = self.places.logs / "x" / "attempt_0" / str(local)
        logs.mkdir(parents=True)
        return logs

    async def through(self, plan: LaunchPlan, *during: Awaitable[None]) -> Exited:
        """Start it and follow it to its end, while it is looked at as an agent does."""
        await self.attempt.begin(plan, WarmStarts("w", self.places.attempt, print))
        follows = asyncio.ensure_future(self.attempt.follow())
        meanwhile = [asyncio.ensure_future(work) for work in during]
        while not follows.done():
            self.attempt.look()
            await asyncio.wait([follows], timeout=0.02)
        await follows
        await asyncio.gather(*meanwhile)
        last = self.facts[-1]
        assert isinstance(last, Exited)
        return last

    def plays(self, plan: LaunchPlan, *during: Awaitable[None]) -> Exited:
        return asyncio.run(self.through(plan, *during))

    async def wrote(self, name: str) -> None:
        """Wait until the attempt has made this file."""
        await until((self.places.attempt / name).exists)

    async def stops(self, grace_s: float, cause: str = "asked", after: str = "up") -> None:
        """Stop it once it has made a file."""
        await self.wrote(after)
        self.attempt.stop(cause, clock.now() + grace_s)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return staged(tmp_path)


def staged(folder: Path, node: Node | None = None) -> Stage:
    async def make() -> Stage:
        return Stage(folder, node)

    return asyncio.run(make())


def node(rank: int) -> Node:
    return Node(rank, 2, "10.0.0.9", "10.0.0.8:29500", 4)


def test_an_attempt_tells_its_start_and_at_last_its_end(stage: Stage) -> None:
    begun, ticks = clock.now(), host.ticks()
    since = stage.attempt.family.since
    script = "readlink /proc/$$/fd/0; echo $$ $(ps -o sid= $$); exec 2>&1; pwd"
    end = stage.plays(stage.plan(script))
    ended = clock.now()
    started = stage.facts[0]
    assert isinstance(started, Started)
    assert stage.facts == [started, end]
    assert (started.seq, end.seq) == (1, 2)
    assert (started.id, started.trial, started.attempt) == ("s-7", "t1", 2)
    assert begun <= started.at <= end.at <= ended
    assert end == Exited(2, end.at, "t1", 2, "finished", 0, None, end.tail, started=True)
    stdin, pids, folder = end.tail or stage.places.launcher_log.read_text().splitlines()
    assert (stdin, folder) == (os.devnull, str(stage.places.attempt))
    assert pids.split() == [str(started.pid)] * 2, "it leads a session"
    assert 0 <= ticks - since <= 1000
    assert stage.attempt.key == "t1/2"
    assert stage.attempt.gpus == {1, 3}
    assert stage.proved == 1
    assert json.loads((stage.places.attempt / "trial.json").read_text()) == {
        "trial": "t1",
        "seed": 5,
    }
    assert stage.places.checkpoints.is_dir()
    assert stage.attempt.cause is None
    assert stage.store.last_calls == 1


def test_what_an_agent_before_has_left_is_gone_when_it_starts(stage: Stage) -> None:
    plan = stage.plan("ls -A marks stop save out.jsonl ended 2>/dev/null >seen; true")
    stage.places.marks.mkdir()
    for name in ("stop", "save", "out.jsonl", "ended", "marks/0"):
        (stage.places.attempt / name).write_text("left")
    stage.plays(plan)
    assert (stage.places.attempt / "seen").read_text() == ""


@pytest.mark.parametrize(
    ("script", "code"), [("echo oh no >&2; exit 3", 3), ("echo oh no; kill -9 $$", -9)]
)
def test_a_crash_is_told_with_the_last_lines(stage: Stage, script: str, code: int) -> None:
    end = stage.plays(stage.plan(script))
    assert end == Exited(2, end.at, "t1", 2, "crashed", code, None, ["oh no"], started=True)


def test_a_module_of_the_source_that_was_not_found_is_named(stage: Stage) -> None:
    stage.places.work.mkdir(parents=True)
    (stage.places.work / "model.py").touch()
    end = stage.plays(stage.plan("echo \"No module named 'model'\"; exit 1"))
    assert end.tail[1:] == ["(seerd: model is in train.source, which is not on the module path)"]


def test_one_that_is_stopped_before_it_starts_tells_its_end_alone(stage: Stage) -> None:
    stage.attempt.stop("lease", clock.now() + 60)
    assert (stage.attempt.cause, stage.attempt.stopped.is_set()) == ("lease", True)
    assert stage.store.cuts == 1, "nothing need be restored any more"
    end = stage.plays(stage.plan("exit 0"))
    assert stage.facts == [end]
    assert end == Exited(1, end.at, "t1", 2, "lease", None, started=False)
    assert not stage.places.logs.exists()
    assert not (stage.places.attempt / "stop").exists()
    assert stage.attempt.members() == set()
    assert list(stage.attempt.each_member()) == []
    assert stage.attempt.launcher.pid == 0


@pytest.mark.parametrize("cause", ["asked", "lease"])
def test_who_is_asked_to_stop_has_its_time(stage: Stage, cause: str) -> None:
    end = stage.plays(stage.plan(f"touch up; {WAITS}; exit 4"), stage.stops(60, cause))
    assert (end.cause, end.code, end.tail) == (cause, 4, [])
    assert stage.store.cuts == 0


def test_who_is_to_stop_at_once_is_killed_and_asked_for_nothing(stage: Stage) -> None:
    end = stage.plays(stage.plan("touch up; sleep 60"), stage.stops(0))
    assert (end.cause, end.code, end.tail) == ("asked", -9, [])
    assert not (stage.places.attempt / "stop").exists()
    assert stage.store.cuts > 0, "nobody waits for a checkpoint"


def test_after_a_lease_a_checkpoint_under_way_may_still_get_there(stage: Stage) -> None:
    end = stage.plays(stage.plan("touch up; sleep 60"), stage.stops(0, "lease"))
    assert (end.cause, end.code, stage.store.cuts) == ("lease", -9, 0)


@pytest.mark.parametrize(("first_s", "then_s"), [(60, 0.1), (0.1, 60)])
def test_a_later_stop_can_only_shorten_the_time(
    stage: Stage, first_s: float, then_s: float
) -> None:
    async def twice() -> None:
        await stage.stops(first_s)
        await stage.stops(then_s, "lease")

    began = time.monotonic()
    end = stage.plays(stage.plan("trap '' TERM; touch up; sleep 60"), twice())
    assert (end.cause, end.code) == ("asked", -9)
    assert 0.1 <= time.monotonic() - began < 30
    assert (stage.places.attempt / "stop").exists()


def test_one_that_has_removed_its_folder_is_killed_in_the_end(stage: Stage) -> None:
    async def asks() -> None:
        await until(lambda: not (stage.places.attempt / "trial.json").exists())
        stage.attempt.ask("save")
        stage.attempt.expect_end(clock.now() + 5)
        stage.attempt.stop("asked", clock.now() + 0.2)

    end = stage.plays(stage.plan(f"rm -r {stage.places.attempt}; sleep 60"), asks())
    assert (end.cause, end.code) == ("asked", -9)


def test_it_is_asked_to_save_only_while_it_runs(stage: Stage) -> None:
    async def saves() -> None:
        await stage.wrote("up")
        stage.attempt.ask("save")

    stage.places.attempt.mkdir(parents=True)
    stage.attempt.ask("save")
    assert not (stage.places.attempt / "save").exists()
    script = "touch up; while ! test -e save; do sleep 0.02; done"
    end = stage.plays(stage.plan(script), saves())
    assert (end.cause, end.code) == ("finished", 0)


def test_it_is_told_when_training_ends_at_its_start_and_later(stage: Stage) -> None:
    horizon = stage.places.attempt / "horizon.json"

    async def later() -> None:
        await stage.wrote("up")
        stage.attempt.expect_end(None)
        stage.attempt.expect_end(moment + 100)

    moment = clock.now() + 50
    stage.places.attempt.mkdir(parents=True)
    stage.attempt.expect_end(moment)
    assert not horizon.exists()
    first = "cp horizon.json first; touch up; "
    then = "while cmp -s first horizon.json; do sleep 0.02; done"
    stage.plays(stage.plan(first + then), later())
    for path, at in [(stage.places.attempt / "first", moment), (horizon, moment + 100)]:
        told = json.loads(path.read_text())
        assert told["version"] == 1
        assert told["ends_since_boot"] == pytest.approx(clock.to_boot(at), abs=1e-3)
        assert told["ends_at"] == pytest.approx(clock.to_wall(at), abs=0.5)
    assert not (stage.places.attempt / ".horizon.json").exists()


def test_without_an_end_of_training_nothing_is_said_of_it(stage: Stage) -> None:
    stage.plays(stage.plan("true"))
    assert not (stage.places.attempt / "horizon.json").exists()


def test_one_that_is_ended_as_failed_has_crashed_for_that_reason(stage: Stage) -> None:
    async def fails() -> None:
        await stage.wrote("up")
        stage.attempt.end_as_failed("too many")
        stage.attempt.end_as_failed("later")

    stage.attempt.end_as_failed("before it runs")
    end = stage.plays(stage.plan("touch up; echo words; sleep 60"), fails())
    assert end == Exited(2, end.at, "t1", 2, "crashed", None, None, ["too many"], started=True)


def test_gpus_that_are_still_held_make_the_machine_unhealthy_before_the_end_is_told(
    stage: Stage,
) -> None:
    stage.gpus = GpusAfter("somebody")
    end = stage.plays(stage.plan("true"))
    noticed = stage.facts[-2]
    why = "after t1/2 had ended its GPUs could not be used again: somebody"
    assert noticed == Noticed(2, end.at, "unhealthy", None, why)


@pytest.mark.parametrize(("script", "fault"), [("exit 3", BROKEN), ("true", "")])
def test_a_crash_on_a_broken_gpu_says_so_and_any_other_end_is_as_ever(
    stage: Stage, script: str, fault: str
) -> None:
    stage.gpus = GpusAfter(fault=BROKEN)
    end = stage.plays(stage.plan(script))
    assert (end.cause == "crashed", end.fault) == (bool(fault), fault)


@pytest.mark.parametrize(("rank", "heard"), [(0, 1), (1, 0)])
def test_of_several_nodes_only_the_first_is_heard(tmp_path: Path, rank: int, heard: int) -> None:
    stage = staged(tmp_path, node(rank))
    end = stage.plays(stage.plan(f"echo '{json.dumps(REPORT)}' >>out.jsonl"))
    assert (end.cause, len([f for f in stage.facts if isinstance(f, Reported)])) == (
        "finished",
        heard,
    )
    assert (stage.places.attempt / "out.jsonl").is_symlink() == (not heard)
    assert math.isinf(stage.output.reported_at) == (not heard)


@pytest.mark.parametrize("is_stopped", [True, False])
@pytest.mark.parametrize("among", [None, node(0)])
def test_a_node_whose_ranks_left_since_anothers_were_asked_to_was_asked_too(
    tmp_path: Path, among: Node | None, *, is_stopped: bool
) -> None:
    stage = staged(tmp_path, among)
    end = stage.plays(stage.plan("touch stop" if is_stopped else "true"))
    assert end.cause == ("asked" if is_stopped and among else "finished")


def test_a_node_whose_ranks_crash_was_not_asked(tmp_path: Path) -> None:
    stage = staged(tmp_path, node(0))
    assert stage.plays(stage.plan("touch stop; exit 1")).cause == "crashed"


def test_what_it_writes_is_told_before_its_end_and_at_once(stage: Stage) -> None:
    async def hears() -> None:
        await until(lambda: any(isinstance(fact, Reported) for fact in stage.facts))
        (stage.places.attempt / "go").touch()

    says = f"echo '{json.dumps(REPORT)}' >>out.jsonl"
    later = f"echo '{json.dumps({**REPORT, 'epoch': 2})}' >>out.jsonl"
    stage.plays(stage.plan(f"{says}; while ! test -e go; do sleep 0.02; done; {later}"), hears())
    assert [fact.epoch for fact in stage.facts if isinstance(fact, Reported)] == [1, 2]
    assert isinstance(stage.facts[-1], Exited)


def test_much_output_is_read_too(stage: Stage) -> None:
    lines = f"for i in $(seq 3000); do echo '{json.dumps({'kind': 'x'})}'; done >>out.jsonl"
    says = f"echo '{json.dumps(REPORT)}' >>out.jsonl"
    stage.plays(stage.plan(f"{lines}; {says}"))
    assert [fact.epoch for fact in stage.facts if isinstance(fact, Reported)] == [1]


def says_saved(name: str) -> str:
    return f"echo '{json.dumps({'kind': 'checkpoint', 'name': name, 'save_s': 0.5})}' >>out.jsonl"


def stored(stage: Stage) -> list[str]:
    return [fact.name for fact in stage.facts if isinstance(fact, Checkpointed)]


def test_a_checkpoint_is_stored_while_the_attempt_goes_on(stage: Stage) -> None:
    async def hears() -> None:
        await until(lambda: stored(stage))
        (stage.places.attempt / "go").touch()

    save(stage.places.checkpoints, "1", metrics={"accuracy": 0.5})
    waits = "while ! test -e go; do sleep 0.02; done"
    end = stage.plays(stage.plan(f"{says_saved('1')}; {waits}"), hears())
    assert (stored(stage), end.cause) == (["1"], "finished")


def test_the_last_checkpoint_waits_for_a_place(stage: Stage) -> None:
    async def makes_room() -> None:
        await until(lambda: stage.store.last_calls)
        stage.store.places = True

    stage.store.places = False
    save(stage.places.checkpoints, "1", metrics={"accuracy": 0.5})
    stage.plays(stage.plan(says_saved("1")), makes_room())
    assert stored(stage) == ["1"]
    assert isinstance(stage.facts[-1], Exited)


def test_no_checkpoint_waits_for_a_place_longer_than_its_attempt_may_live(stage: Stage) -> None:
    stage.store.places = False
    save(stage.places.checkpoints, "1", metrics={"accuracy": 0.5})
    began = time.monotonic()
    end = stage.plays(stage.plan(f"{says_saved('1')}; touch up; {WAITS}"), stage.stops(0.5))
    assert (end.cause, stored(stage)) == ("asked", [])
    assert 0.4 < time.monotonic() - began < 20


def test_while_no_thread_starts_a_checkpoint_waits_and_an_attempt_can_be_killed(
    stage: Stage,
) -> None:
    async def kills() -> None:
        await stage.wrote("up")
        with no_threads():
            (stage.places.attempt / "go").touch()
            await until(lambda: any(isinstance(fact, Complained) for fact in stage.facts))
            stage.attempt.stop("asked", clock.now())
            await asyncio.sleep(0)
            assert stage.attempt.members() == set(), "it was killed without a thread"

    save(stage.places.checkpoints, "1", metrics={"accuracy": 0.5})
    goes = f"touch up; while ! test -e go; do sleep 0.02; done; {says_saved('1')}; sleep 60"
    end = stage.plays(stage.plan(goes), kills())
    assert (end.cause, end.code, stored(stage)) == ("asked", -9, ["1"])
    (why,) = [fact for fact in stage.facts if isinstance(fact, Complained)]
    assert (why.what, "as many processes" in why.why) == ("not-stored", True)


def test_no_checkpoint_waits_for_a_thread_longer_than_its_attempt_may_live(stage: Stage) -> None:
    async def stops() -> None:
        await stage.wrote("up")
        with no_threads():
            stage.attempt.stop("asked", clock.now() + 0.5)
            await until(lambda: isinstance(stage.facts[-1], Exited))

    save(stage.places.checkpoints, "1", metrics={"accuracy": 0.5})
    end = stage.plays(stage.plan(f"touch up; {WAITS}; {says_saved('1')}"), stops())
    assert (end.cause, stored(stage)) == ("asked", [])


def test_an_attempt_whose_end_nothing_can_wait_for_fails_and_leaves_nothing(stage: Stage) -> None:
    async def begins() -> None:
        with no_threads(), pytest.raises(OSError, match="as many processes and threads"):
            await stage.attempt.begin(
                stage.plan("sleep 60"), WarmStarts("w", stage.places.attempt, print)
            )
        assert host.marked_with(f"{RUN}/") == set()

    asyncio.run(begins())
    forget_unwatched()


@pytest.mark.parametrize(
    ("left_s", "quiet_s"),
    [(math.inf, 20.0), (61.0, 20.0), (45.0, 15.0), (15.0, 5.0), (9.0, 5.0), (-3.0, 5.0)],
)
def test_in_short_runs_silence_is_told_sooner(left_s: float, quiet_s: float) -> None:
    assert quiet_s_of(left_s) == quiet_s


def test_torchrun_without_ranks_need_not_be_waited_for(stage: Stage) -> None:
    """Before its ranks start, and after they have gone."""
    end = stage.plays(stage.torchrun("touch up; sleep 60"), stage.stops(60))
    assert (end.cause, end.code) == ("asked", -9)


def test_torchrun_is_waited_for_while_its_ranks_live(stage: Stage) -> None:
    async def stops() -> None:
        await stage.wrote("up")
        stage.begins_rank(0)
        await stage.stops(60)
        await asyncio.sleep(0.3)
        assert stage.attempt.members() >= {stage.facts[0].pid}
        (stage.places.attempt / "go").touch()

    rank = "sh -c 'while ! test -e go; do sleep 0.02; done'"
    end = stage.plays(stage.torchrun(f"{rank} & touch up; wait; exec sleep 60"), stops())
    assert (end.cause, end.code) == ("asked", -9), "only torchrun was left"


def test_with_several_nodes_torchrun_is_left_alone_once_it_has_ranks(tmp_path: Path) -> None:
    stage = staged(tmp_path, node(0))

    async def stops() -> None:
        await stage.wrote("up")
        stage.begins_rank(0)
        await stage.stops(60)

    end = stage.plays(stage.torchrun("touch up; sleep 0.5; exit 0"), stops())
    assert (end.cause, end.code) == ("asked", 0)


def test_a_launcher_that_is_not_torchrun_has_its_time(stage: Stage) -> None:
    end = stage.plays(stage.plan("touch up; sleep 0.4"), stage.stops(60))
    assert (end.cause, end.code) == ("asked", 0)


@pytest.mark.parametrize(
    ("lost", "code", "cause"), [(True, 1, "crashed"), (True, 0, "asked"), (False, 1, "asked")]
)
def test_a_node_that_has_lost_a_rank_may_find_out_which(
    tmp_path: Path, cause: str, code: int, *, lost: bool
) -> None:
    """Stopped at once, as another node has told the crash first."""
    stage = staged(tmp_path, node(1))

    async def stops() -> None:
        await stage.wrote("up")
        stage.begins_rank(0)
        await stage.stops(0)

    rank = "touch up" if lost else "LOCAL_RANK=0 sh -c 'touch up; sleep 1'"
    script = f"({rank}) & sleep 0.5; echo summary; exit {code}"
    end = stage.plays(stage.torchrun(script), stops())
    assert (end.cause, end.code) == (cause, code if lost else -9)
    assert end.tail == (["summary"] if cause == "crashed" else [])


def test_one_node_alone_that_is_stopped_at_once_is_killed_though_a_rank_is_gone(
    stage: Stage,
) -> None:
    async def stops() -> None:
        await stage.wrote("up")
        stage.begins_rank(0)
        await stage.stops(0)

    end = stage.plays(stage.torchrun("touch up; sleep 5; exit 1"), stops())
    assert (end.cause, end.code) == ("asked", -9)


def test_when_a_rank_has_failed_the_others_are_ended_and_torchrun_may_say_which(
    stage: Stage,
) -> None:
    others = "sh -c 'trap \"\" TERM; sleep 60' & other=$!"
    says = f"echo {CLOSING}; echo {CLOSING} >&2"
    script = f"{others}; {says}; wait $other; echo it was rank 5; exit 1"
    began = time.monotonic()
    end = stage.plays(stage.torchrun(script))
    assert (end.cause, end.code) == ("crashed", 1)
    assert end.tail[-1] == "it was rank 5"
    assert 1.0 <= time.monotonic() - began < 30


@pytest.mark.parametrize("words", [(), TORCHRUN])
def test_only_what_torchrun_itself_says_of_its_ranks_counts(
    stage: Stage, words: Sequence[str]
) -> None:
    says = f"echo {CLOSING}" if not words else "echo death signal"
    end = stage.plays(stage.plan(f"{says}; sleep 1.3", *words))
    assert (end.cause, end.code) == ("finished", 0)


def hung(pid: int, number: int) -> Stall:
    mark = ProgressMark(pid, 5, 2, number, 0, WORKING, 9, 3, 50, 0.5, 1.0, 2.0)
    return Stall((9, 3), mark, 1, since=1234.5, quiet_s=17.0)


STACK = 'File "b.py"\nFile "a.py"'


@pytest.mark.parametrize("grace_s", [None, 0], ids=["is ended", "is stopped at once"])
def test_one_that_hangs_shows_its_stack_and_is_killed(stage: Stage, grace_s: float | None) -> None:
    async def hangs() -> None:
        await stage.wrote("up")
        logs = stage.begins_rank(1)
        (logs / "stderr.log").write_text("before\n")
        (stage.places.attempt / "go").touch()
        await stage.wrote("ready")
        pid = int((stage.places.attempt / "ready").read_text())
        stage.attempt._watchdog._hangs.stall = hung(pid, signal.SIGUSR1)
        if grace_s is not None:
            stage.attempt.stop("asked", clock.now() + grace_s)

    log = "logs/x/attempt_0/1/stderr.log"
    writes = f"trap 'echo stack >>{log}' USR1"
    waits = "while ! test -e go; do sleep 0.02; done"
    script = (
        f"touch up; {waits}; {writes}; echo $$ >part; mv part ready; while :; do sleep 0.02; done"
    )
    end = stage.plays(stage.plan(script), hangs())
    assert (end.cause, end.code, end.rank, end.silent, end.signal, end.waited_s) == (
        *("crashed", -9, 5),
        *(1234.5, None, 17.0),
    )
    assert end.tail == ["before", "stack"]


@pytest.mark.parametrize(
    ("is_own", "number"), [(True, 0), (False, signal.SIGUSR1)], ids=["cannot", "of others"]
)
def test_no_stack_is_asked_of_whoever_cannot_or_is_of_others(
    stage: Stage, number: int, *, is_own: bool
) -> None:
    asked: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: asked.append(number))

    async def hangs() -> None:
        await stage.wrote("up")
        own = int((stage.places.attempt / "up").read_text())
        stage.attempt._watchdog._hangs.stall = hung(own if is_own else os.getpid(), number)

    try:
        end = stage.plays(stage.plan("echo $$ >part; mv part up; sleep 60"), hangs())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (end.cause, end.code, asked) == ("crashed", -9, [])


def test_on_several_nodes_a_hang_is_only_told(tmp_path: Path) -> None:
    stage = staged(tmp_path, node(0))

    async def hangs() -> None:
        await stage.wrote("up")
        stage.attempt._watchdog._hangs.stall = hung(os.getpid(), 0)
        await asyncio.sleep(0.2)
        (stage.places.attempt / "go").touch()

    script = "touch up; while ! test -e go; do sleep 0.02; done"
    assert stage.plays(stage.plan(script), hangs()).cause == "finished"


def test_what_the_launcher_leaves_behind_is_ended_before_the_end_is_told(stage: Stage) -> None:
    script = "setsid sh -c 'echo $$ >left; sleep 60' & while ! test -s left; do sleep 0.02; done"
    end = stage.plays(stage.plan(script))
    assert end.cause == "finished"
    assert not host.is_there(int((stage.places.attempt / "left").read_text()))
    assert stage.attempt.members() == set()
    assert stage.attempt.launcher.ended


def test_what_belongs_to_another_attempt_is_left_alone(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()

    async def both() -> Exited:
        one, other = Stage(first), Stage(second)
        one.others, other.others = [other.attempt], [one.attempt]
        plan = other.plan("touch up; sleep 0.4", **{host.MARKER: "somebody/t2/1"})
        follows = asyncio.ensure_future(other.through(plan))
        await other.wrote("up")
        await one.through(one.plan("true"))
        return await follows

    assert asyncio.run(both()).code == 0


def observed(stage: Stage, script: str, command: str) -> LaunchPlan:
    return stage.plan(script, observer=["sh", "-c", command, "observer"])


def test_who_observes_a_script_is_told_its_process_and_sees_its_end(stage: Stage) -> None:
    sees = "echo $1 >whom; while ! test -e ended; do sleep 0.02; done; cat ended >seen"
    end = stage.plays(observed(stage, "sleep 0.2; exit 3", sees))
    started = stage.facts[0]
    assert (end.cause, end.code) == ("crashed", 3)
    assert (stage.places.attempt / "whom").read_text() == f"{started.pid}\n"
    assert (stage.places.attempt / "seen").read_text() == "3"
    assert (stage.places.attempt / "out.jsonl").exists()


def test_a_script_whose_observer_is_lost_is_ended(stage: Stage) -> None:
    end = stage.plays(observed(stage, "sleep 60", "exit 0"))
    assert (end.cause, end.code) == ("crashed", -9)


def test_a_script_that_cannot_be_observed_is_not_left_running(stage: Stage) -> None:
    plan = stage.plan("echo $$ >part; mv part up; sleep 60", observer=["/nowhere/observer"])
    with pytest.raises(FileNotFoundError):
        stage.plays(plan)
    assert stage.attempt._process is not None
    assert stage.attempt._process.returncode == -9, "its end was waited for"
    assert host.marked_with(f"{RUN}/t1/2") == set()


def test_one_that_cannot_be_started_raises(stage: Stage) -> None:
    plan = stage.plan("true")
    plan.argv[:] = ["/nowhere/python"]
    with pytest.raises(FileNotFoundError):
        stage.plays(plan)
    assert stage.facts == []
