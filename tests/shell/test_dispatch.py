"""What becomes of each command and each request, and when: the real dispatch, sessions, store and
inbox, in virtual time, with instances whose agents answer at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from seerd.agent.protocol import (
    VERSION,
    Complained,
    Grant,
    Hello,
    Prepare,
    Prepared,
    Refused,
    Shutdown,
    Slot,
    StoreProof,
    Welcome,
)
from seerd.agent.wire import decode, encode
from seerd.backends.base import (
    Adopted,
    Connection,
    Launched,
    LaunchProgress,
    Leftovers,
    Loss,
    Printed,
    Span,
)
from seerd.clock import RunClock, unlimited
from seerd.core.commands import AskPolicy, Launch, Publish, SetTimer, StopTrial, Terminate
from seerd.core.events import (
    AddAsked,
    ExtendAsked,
    InstanceAwaited,
    InstanceLost,
    InstanceReady,
    InstanceTerminated,
    JobAdded,
    JobFacts,
    JobStopAsked,
    JobWeighed,
    LaunchRefused,
    ModelPublished,
    PublishFailed,
    Remarked,
    StopAsked,
    TimerFired,
)
from seerd.errors import LaunchError, ProviderError, StoreError
from seerd.planner.model import PlannedJob
from seerd.shell.collecting import Collector
from seerd.shell.daemon import Tasks
from seerd.shell.dispatch import Dispatch
from seerd.shell.inbox import (
    Inbox,
    JobRequest,
    Reply,
)
from seerd.shell.losses import Losses
from seerd.shell.run_environment import RunEnvironment
from seerd.stores.directory import DirectoryStore
from seerd.version import VERSION as SEERD
from tests.aws.scripted import played
from tests.conftest import small_facts
from tests.faults.timeline import EPOCH, Loop
from tests.faults.wires import Wire
from tests.shell.place import JOB
from tests.shell.place import Core as PlainCore

PROBLEM = small_facts().problem
LAUNCH = Launch(id="2.0", gpus=4, orphan_timeout_s=90.0, why="plan")


@dataclass
class Core(PlainCore):
    """`stops`: how often a stop was asked for."""

    stops: int = 0

    def stop(self) -> None:
        self.stops += 1


@dataclass
class Cloud:
    """A provider: what each call answers, raises or takes; what it was asked."""

    launched: Any = None
    takes_s: float = 0.0
    ended: Any = field(default_factory=Span)
    ends_s: float = 0.0
    refuses: Refused | None = None
    reachable: bool = True
    left: Any = field(default_factory=Leftovers)
    asked: list[Any] = field(default_factory=list)
    told: list[Any] = field(default_factory=list)
    losses: asyncio.Queue[Loss] = field(default_factory=asyncio.Queue)
    there: list[str] = field(default_factory=list)

    async def open(self, lease_s: Callable[[], float] = unlimited) -> None:
        self.asked.append(("open", lease_s()))

    async def adopt(self, known: Sequence[str], tokens: Sequence[str]) -> Adopted:
        self.asked.append(("adopt", list(known), list(tokens)))
        return self.there, []

    async def launch(
        self, token: str, orphan_timeout_s: float | None = None, most_gpus: int | None = None
    ) -> Launched:
        self.asked.append(("launch", token, orphan_timeout_s))
        await asyncio.sleep(self.takes_s)
        return self._or_raise(self.launched)

    async def terminate(self, name: str, spare_s: float = math.inf) -> Span:
        self.asked.append(("terminate", name, spare_s))
        await asyncio.sleep(self.ends_s)
        return self._or_raise(self.ended)

    def _or_raise(self, value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    async def connect(self, instance: str) -> Connection:
        if not self.reachable:
            raise ProviderError(f"{instance} does not answer")
        loop: Any = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        wire = Wire(loop._timeline, loop, 0.1)
        facts = count(1)
        wire.heard = lambda line: self._heard(wire, facts, line)
        return wire.reader, wire

    def _heard(self, wire: Wire, facts: Iterator[int], line: bytes) -> None:
        message = decode(line)
        self.told.append(message)
        now = time.time()
        if isinstance(message, Hello):
            wire.send(encode(Welcome(VERSION, "1", 4, 0, now, [], "boot-1")))
        elif isinstance(message, Prepare):
            seq = next(facts)
            answer = Prepared(seq, now, message.id)
            refused = self.refuses and replace(self.refuses, seq=seq, at=now, id=message.id)
            wire.send(encode(refused or answer))
        elif isinstance(message, Shutdown):
            wire.end_by_agent()

    def journal(self, instance: str) -> None: ...

    def address(self, instance: str) -> str:
        return "10.0.0.1"

    async def loss(self) -> Loss:
        return await self.losses.get()

    async def leftovers(self) -> Leftovers:
        return self._or_raise(self.left)

    async def close(self) -> None:
        self.asked.append("close")


class Policy:
    """Is asked nothing here."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def start(self) -> None:
        self.asked.append("start")

    def change(self, problem: Any) -> None:
        self.asked.append(problem)

    def forget(self) -> None:
        self.asked.append("forget")

    async def close(self) -> None:
        self.asked.append("close")


@dataclass
class Place:
    """A dispatch that is open."""

    dispatch: Dispatch
    environment: RunEnvironment
    core: Core
    cloud: Cloud
    policy: Policy
    folder: Path

    async def carried_out(self, *commands: Any, for_s: float = 5.0) -> list[Any]:
        """Carry these out, and return what was emitted within so many seconds."""
        before = len(self.core.events)
        self.dispatch.carry_out(list(commands))
        await asyncio.sleep(for_s)
        return self.core.events[before:]


def play(
    folder: Path, scenario: Callable[[Place], Awaitable[None]], **changes: Any
) -> tuple[Cloud, Policy, float]:
    """Play it, and close the dispatch. Return the cloud, the policy, and the moment of its end."""
    cloud, policy = Cloud(), Policy()
    provider: Any = cloud
    asker: Any = policy

    async def run() -> None:
        environment = RunEnvironment(
            provider,
            changes.pop("store", DirectoryStore(folder / "store")),
            asker,
            JOB,
            "r1",
            "accuracy",
            folder / "best",
            **changes,
        )
        core = Core(RunClock(EPOCH))
        async with Tasks() as tasks:
            dispatch = Dispatch(environment, core, tasks)
            await dispatch.open()
            await scenario(Place(dispatch, environment, core, cloud, policy, folder))
        await dispatch.close()

    return (cloud, policy, played(run())[1])


# ------------------------------------------------------------ launches and their end


def test_a_launch_is_ready_when_its_agent_is(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        place.cloud.launched, place.cloud.takes_s = Launched("i-1", 4, EPOCH + 2.5), 3.0
        (ready,) = await place.carried_out(LAUNCH, LAUNCH)
        assert ready == InstanceReady(
            at=pytest.approx(3.4),
            command="2.0",
            instance="i-1",
            gpus=4,
            running_since=pytest.approx(2.5),
            boot="boot-1",
        )
        assert place.dispatch.sessions.clocks() == {"i-1": pytest.approx(-0.1, abs=1e-3)}
        assert place.dispatch.sessions.welcomes()["i-1"].boot == "boot-1"
        prepare = next(one for one in place.cloud.told if isinstance(one, Prepare))
        assert prepare == Prepare("2.0", JOB, None, [])
        place.cloud.launched = Launched("i-2", 4, EPOCH - 7)
        place.cloud.asked.clear()
        (later,) = await place.carried_out(msgspec.structs.replace(LAUNCH, id="3.0"))
        assert (later.running_since, place.cloud.asked) == (0.0, [("launch", "3.0", 90.0)])

    cloud, policy, _ = play(tmp_path, scenario)
    assert cloud.asked[-1] == "close"
    assert policy.asked == ["start", "close"]


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (
            LaunchError("none", retry=True, since=EPOCH + 1, until=EPOCH + 2, unknown=True),
            {"retry": True, "running_since": 1.0, "ended": 2.0, "unknown": True},
        ),
        (LaunchError("none", retry=False), {"retry": False}),
        (ProviderError("none"), {"retry": True}),
    ],
)
def test_a_launch_that_fails_is_refused_with_what_is_known(
    tmp_path: Path, error: Exception, refused: dict[str, Any]
) -> None:
    async def scenario(place: Place) -> None:
        place.cloud.launched, place.cloud.takes_s = error, 3.0
        events = await place.carried_out(LAUNCH)
        assert events == [LaunchRefused(at=3.0, command="2.0", why="none", **refused)]

    play(tmp_path, scenario)


@pytest.mark.parametrize("unhealthy", [False, True])
def test_an_instance_that_is_not_made_ready_is_given_back(tmp_path: Path, unhealthy: bool) -> None:
    async def scenario(place: Place) -> None:
        place.cloud.launched = Launched("i-1", 4, EPOCH)
        place.cloud.refuses = Refused(0, 0.0, "", "no disk", unhealthy)
        place.cloud.ended = Span(EPOCH, EPOCH + 0.25)
        (refused,) = await place.carried_out(LAUNCH)
        assert refused == LaunchRefused(
            at=pytest.approx(0.4),
            command="2.0",
            why="no disk",
            retry=unhealthy,
            running_since=0.0,
            ended=0.25,
        )
        assert place.cloud.asked[-1] == ("terminate", "i-1", math.inf)
        place.cloud.ended = ProviderError("EC2 is away")
        (refused,) = await place.carried_out(msgspec.structs.replace(LAUNCH, id="3.0"))
        assert (refused.why, refused.ended) == ("no disk; EC2 is away", None)

    play(tmp_path, scenario, rented=True)


class Urls(DirectoryStore):
    """A store that agents reach by URLs alone."""

    kept: ClassVar[list[tuple[str, Sequence[str]]]] = []

    @property
    def address(self) -> str:
        return ""

    async def presign(
        self, trial: str, attempt: int, first: int, checkpoints: Sequence[str]
    ) -> Grant:
        puts = [Slot("1", f"put {trial}", "")]
        return Grant(trial, attempt, puts, [Slot(name, f"get {trial}", "") for name in checkpoints])

    async def keep(self, trial: str, names: Sequence[str]) -> None:
        self.kept.append((trial, names))


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize(("cause", "silent"), [("store", True), ("store-refused", False)])
def test_an_instance_that_cannot_use_the_store_ends_launches_where_it_is(
    tmp_path: Path, cause: str, silent: bool, others: bool
) -> None:
    store = Urls(tmp_path / "store")
    store.kept.clear()
    given_up: list[tuple[str, bool]] = []

    def without_store(instance: str, *, silent: bool, leave: bool = True) -> tuple[str, bool]:
        assert leave
        given_up.append((instance, silent))
        return "; type this", others

    async def scenario(place: Place) -> None:
        place.cloud.launched = Launched("i-1", 4, EPOCH)
        place.cloud.refuses = Refused(0, 0.0, "", "no way to it", True, cause)
        (refused,) = await place.carried_out(LAUNCH, for_s=60.0)
        assert (refused.why, refused.retry, refused.cause) == (
            "no way to it; type this",
            others,
            "store",
        )
        assert given_up == [("i-1", silent)]
        (prepare,) = [one for one in place.cloud.told if isinstance(one, Prepare)]
        assert prepare.proof == StoreProof("put .proof-i-1", "get .proof-i-1")
        assert store.kept == [(".proof-i-1", ())], "the byte is not left there"

    play(tmp_path, scenario, store=store, rented=True, without_store=without_store)


@pytest.mark.parametrize("what", ["store-silent", "store-refused", "store-failed"])
def test_what_to_do_is_said_when_an_instance_cannot_store_any_more(
    tmp_path: Path, what: str
) -> None:
    def without_store(instance: str, *, silent: bool, leave: bool = True) -> tuple[str, bool]:
        return (f"; type this in {instance}" if silent else "; ask for this"), leave

    async def scenario(place: Place) -> None:
        losses = Losses(place.environment, place.core, asyncio.TaskGroup())
        losses.emit("i-1", Complained(1, EPOCH, "t1", 1, what, "PUT at bucket"), 0.0)
        (event,) = place.core.events
        advice = {"store-silent": "; type this in i-1", "store-refused": "; ask for this"}
        assert (event.what, event.why) == (what, f"PUT at bucket{advice.get(what, '')}")

    play(tmp_path, scenario, without_store=without_store)


def test_news_of_a_launch_are_events(tmp_path: Path) -> None:
    news: asyncio.Queue[LaunchProgress] = asyncio.Queue()

    async def scenario(place: Place) -> None:
        news.put_nowait(LaunchProgress("2.0", "i-1", "launched", "g5.xlarge in us-east-1a"))
        news.put_nowait(LaunchProgress("2.0", "i-1", "unreached", why="timed out"))
        await asyncio.sleep(1.0)
        own = {"at": 0.0, "command": "2.0", "instance": "i-1"}
        assert place.core.events == [
            InstanceAwaited(**own, what="launched", where="g5.xlarge in us-east-1a"),
            InstanceAwaited(**own, what="unreached", why="timed out"),
        ]

    play(tmp_path, scenario, progress=news.get)


@pytest.mark.parametrize(("setup", "at"), [([], 2.0), (["pip install x"], 30.0)])
def test_what_takes_long_to_be_made_ready_is_told_once(
    tmp_path: Path, setup: list[str], at: float
) -> None:
    class Slow:
        async def send(self, instance: str) -> None:
            await asyncio.sleep(40.0)

        def with_one_more(self, job: str) -> Callable[[str], Awaitable[None]]:
            raise AssertionError(job)

    async def scenario(place: Place) -> None:
        place.cloud.launched = Launched("i-1", 4, EPOCH)
        remark, ready = await place.carried_out(LAUNCH, for_s=60.0)
        text = "i-1 is being made ready: data and checks"
        assert remark == Remarked(at=at, text=text)
        assert isinstance(ready, InstanceReady)

    play(tmp_path, scenario, sources=Slow(), jobs=[replace(JOB, setup=setup)])


def test_a_rented_instance_is_left_and_given_back(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        place.cloud.launched = Launched("i-1", 4, EPOCH)
        await place.carried_out(LAUNCH)
        place.cloud.ended, place.cloud.ends_s = Span(EPOCH + 1, EPOCH + 6), 45.0
        remark, ended = await place.carried_out(
            Terminate(id="5.0", instance="i-1", why="idle"), for_s=60.0
        )
        text = "the end of i-1 is not confirmed yet; it is requested repeatedly"
        assert remark == Remarked(at=35.0, text=text)
        assert ended == InstanceTerminated(
            at=50.0, command="5.0", instance="i-1", running_since=1.0, ended=6.0
        )
        assert place.cloud.asked[-1] == ("terminate", "i-1", math.inf)
        assert place.dispatch.sessions.clocks() == {}
        assert not any(isinstance(one, Shutdown) for one in place.cloud.told)

    play(tmp_path, scenario, rented=True)


def test_an_own_machine_s_agent_is_shut_down_with_the_time_that_can_be_spared(
    tmp_path: Path,
) -> None:
    async def scenario(place: Place) -> None:
        place.cloud.launched = Launched("i-1", 4, EPOCH)
        await place.carried_out(LAUNCH)
        (ended,) = await place.carried_out(Terminate(id="5.0", instance="i-1", why="idle"))
        assert (ended.running_since, ended.ended) == (None, None)
        assert place.cloud.asked[-1] == ("terminate", "i-1", 60.0)
        assert place.cloud.told[-1] == Shutdown("5.0")

    play(tmp_path, scenario)


def test_an_end_that_is_refused_is_a_loss(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        place.cloud.ended = ProviderError("EC2 is away")
        (lost,) = await place.carried_out(Terminate(id="5.0", instance="i-1", why="idle"))
        assert lost == InstanceLost(at=0.0, instance="i-1", why="EC2 is away")

    play(tmp_path, scenario, rented=True)


def test_a_launch_that_is_called_off_ends_before_its_instance_does(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        place.cloud.launched, place.cloud.takes_s = Launched("i-1", 4, EPOCH), 30.0
        place.dispatch.carry_out([LAUNCH])
        await asyncio.sleep(1.0)
        (ended,) = await place.carried_out(
            Terminate(id="5.0", instance="2.0", why="idle"), for_s=60.0
        )
        assert ended == InstanceTerminated(at=1.0, command="5.0", instance="2.0")

    play(tmp_path, scenario)


def test_a_loss_that_the_cloud_tells_ends_the_conversation(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        place.cloud.launched = Launched("i-1", 4, EPOCH)
        await place.carried_out(LAUNCH)
        place.cloud.losses.put_nowait(Loss("i-1", "spot", Span(EPOCH, EPOCH + 4)))
        (lost,) = await place.carried_out()
        assert lost == InstanceLost(at=5.0, instance="i-1", why="spot", ended=4.0)
        assert place.dispatch.sessions.clocks() == {}

    play(tmp_path, scenario)


def test_what_is_left_of_a_run_or_that_nobody_knows(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        place.cloud.left = Leftovers(["i-1"], ["i-2"])
        assert await place.dispatch.leftovers() == Leftovers(["i-1"], ["i-2"])
        place.cloud.left = ProviderError("no network")
        left = await place.dispatch.leftovers()
        text = "whether anything is left could not be found out: no network"
        assert left == Leftovers([text])

    play(tmp_path, scenario)


def test_a_run_that_is_taken_up_hears_who_is_there_and_when_the_others_ended(
    tmp_path: Path,
) -> None:
    async def scenario(place: Place) -> None:
        place.cloud.there, place.cloud.ended = ["i-1"], Span(None, EPOCH - 3)
        found = await place.dispatch.reattach(["i-1", "i-2"], ["2.0"])
        assert (found.alive, found.ended, found.saved) == (("i-1",), {"i-2": 0.0}, ())
        assert place.cloud.asked[1:] == [
            ("adopt", ["i-1", "i-2"], ["2.0"]),
            ("terminate", "i-2", math.inf),
        ]
        place.cloud.there, place.cloud.reachable = ["i-3"], False
        began = asyncio.get_running_loop().time()
        found = await place.dispatch.reattach(["i-3"], [], lambda: 4.0)
        assert asyncio.get_running_loop().time() - began == pytest.approx(4.0)
        assert found.alive == ("i-3",), "it may answer yet"
        for off_s, waited_s in ((-5.0, 2.0), (99.0, 10.0)):
            began = asyncio.get_running_loop().time()
            await place.dispatch.reattach(["i-3"], [], lambda off_s=off_s: off_s)
            assert asyncio.get_running_loop().time() - began == pytest.approx(waited_s)

    play(tmp_path, scenario)


# ------------------------------------------------------------ timers, logs, what is kept


def test_a_timer_fires_at_its_moment_and_the_last_one_counts(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        first, second = SetTimer(id="1.0", due=3.0), SetTimer(id="2.0", due=12.5)
        place.dispatch.carry_out([first])
        await asyncio.sleep(1.0)
        assert await place.carried_out(second, for_s=20.0) == [TimerFired(at=12.5, command="2.0")]
        late = SetTimer(id="3.0", due=0.5)
        assert await place.carried_out(late, for_s=1.0) == [TimerFired(at=21.0, command="3.0")]
        await place.carried_out(SetTimer(id="4.0", due=9e9))

    play(tmp_path, scenario)


def test_checkpoints_are_tidied_up_after_twenty_seconds_all_at_once(tmp_path: Path) -> None:
    class Noting(DirectoryStore):
        kept: list[tuple[str, list[str], float]]

        async def keep(self, trial: str, names: Sequence[str]) -> None:
            now = asyncio.get_running_loop().time()
            self.kept.append((trial, list(names), now))
            if trial == "t1":
                raise StoreError("busy")

    store = Noting(tmp_path / "store")
    object.__setattr__(store, "kept", [])

    async def scenario(place: Place) -> None:
        place.dispatch.keep("t1", ["a"])
        await asyncio.sleep(5.0)
        place.dispatch.keep("t1", ["b"])
        place.dispatch.keep("t2", ["c"])
        await asyncio.sleep(30.0)
        assert store.kept == [("t1", ["b"], 20.0), ("t2", ["c"], 20.0)]
        place.dispatch.keep("t2", ["d"])
        await asyncio.sleep(25.0)
        assert store.kept[2:] == [("t2", ["d"], 55.0)]

    play(tmp_path, scenario, store=store)


def test_logs_are_brought_now_and_then_at_ends_and_before_a_machine_goes(tmp_path: Path) -> None:
    looks: list[tuple[str, float]] = []

    async def source(instance: str, after: float) -> Printed | None:
        looks.append((instance, asyncio.get_running_loop().time()))
        await asyncio.sleep(600.0 if instance == "i-2" else 0.0)
        return None

    async def scenario(place: Place) -> None:
        place.cloud.launched = Launched("i-1", 4, EPOCH)
        await place.carried_out(LAUNCH, for_s=62.0)
        assert looks == [("i-1", 30.0), ("i-1", 60.0)]
        place.dispatch.collect("i-1")
        await asyncio.sleep(1.0)
        assert looks[2:] == [("i-1", 62.0)]
        (ended,) = await place.carried_out(Terminate(id="5.0", instance="i-2", why="idle"))
        assert looks[3:] == [("i-2", 63.0)]
        assert ended.at == 64.5, "a moment and a half was waited"

    play(tmp_path, scenario, rented=True, collector=Collector(source, tmp_path / "logs"))


def test_long_uploads_are_told_every_half_minute(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        await asyncio.sleep(70.0)
        told = [(event.at, event.text) for event in place.core.events]
        assert told == [(2.0, "1 MB so far"), (32.0, "1 MB so far"), (62.0, "1 MB so far")]

    play(tmp_path, scenario, uploads=lambda: "1 MB so far")


def test_what_is_not_collected_asked_or_known_does_nothing(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        place.dispatch.collect("i-1")
        place.dispatch.sessions.committed("i-1", 3)
        assert await place.carried_out(AskPolicy(id="9.0", why="clock")) == [], (
            "it is another question by now"
        )
        stop = StopTrial(
            id="6.0",
            trial="t1",
            attempt=1,
            instance="i-1",
            checkpoint=True,
            grace_s=1.0,
            why="paused",
        )
        assert await place.carried_out(stop) == []
        assert place.policy.asked == ["start"]

    play(tmp_path, scenario)


# ------------------------------------------------------------ the best model

MODEL = b"weights"
SHA = hashlib.sha256(MODEL).hexdigest()
PUBLISH = Publish(
    id="7.0",
    trial="t1",
    config={"lr": 0.1},
    checkpoint="0001-000002",
    sha256=SHA,
    metric=0.75,
    why="best",
)


def saved(folder: Path) -> None:
    """A checkpoint in the store."""
    trial = folder / "store" / "t1"
    trial.mkdir(parents=True)
    (trial / "0001-000002.pt").write_bytes(MODEL)
    manifest = {
        "version": 1,
        "name": "0001-000002",
        "epoch": 3,
        "metrics": {"accuracy": 0.5, "loss": 0.2},
        "sha256": SHA,
        "size": len(MODEL),
        "versions": {"torch": "2.9"},
    }
    (trial / "0001-000002.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("manifest", [True, False])
def test_a_model_is_handed_back_with_what_is_known_of_it(tmp_path: Path, manifest: bool) -> None:
    saved(tmp_path)
    if not manifest:
        (tmp_path / "store" / "t1" / "0001-000002.json").unlink()

    async def scenario(place: Place) -> None:
        to = tmp_path / "best" / "checkpoint.pt"
        (done,) = await place.carried_out(PUBLISH)
        assert done == ModelPublished(at=0.0, command="7.0", path=str(to))
        assert to.read_bytes() == MODEL
        card = (tmp_path / "best" / "config.json").read_text()
        assert json.loads(card) == {
            "trial": "t1",
            "config": {"lr": 0.1},
            "metric": 0.75,
            "run": "r1",
            "seed": 7,
            "reports": 3,
            "metric_name": "accuracy",
            "metrics": {"loss": 0.2, "accuracy": 0.75} if manifest else {"accuracy": 0.75},
            "versions": {"torch": "2.9", "seerd": SEERD} if manifest else {"seerd": SEERD},
        }
        assert card.startswith('{\n  "trial"')
        assert card.endswith("}\n")

    play(tmp_path, scenario)


def test_a_job_s_model_has_a_folder_and_a_metric_of_its_own(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "store" / "t1").rename(tmp_path / "store" / "a.t0001")

    async def scenario(place: Place) -> None:
        (done,) = await place.carried_out(msgspec.structs.replace(PUBLISH, trial="a.t0001"))
        assert done.path == str(tmp_path / "best" / "a" / "checkpoint.pt")
        card = json.loads((tmp_path / "best" / "a" / "config.json").read_text())
        assert card["metric_name"] == "loss"

    play(tmp_path, scenario, jobs=[replace(JOB, id="a", metric="loss")])


@dataclass(frozen=True, slots=True)
class Away(DirectoryStore):
    """A store that gives nothing until `until_s`, or only what is damaged."""

    until_s: float = math.inf
    damaged: bool = False

    async def fetch(self, trial: str, name: str, sha256: str, to: Path) -> None:
        if asyncio.get_running_loop().time() < self.until_s:
            raise StoreError("not now", damaged=self.damaged)
        await DirectoryStore.fetch(self, trial, name, sha256, to)


COPYING = "copying the best model: "
WAITING = "the best model is in the store, which does not give it; it is requested repeatedly"


def test_a_store_that_does_not_give_the_model_is_asked_for_five_minutes(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        copying, waiting, failed = await place.carried_out(PUBLISH, for_s=400.0)
        assert copying == Remarked(at=2.0, text=f"{COPYING}{tmp_path / 'store/t1/0001-000002.pt'}")
        assert waiting == Remarked(at=30.0, text=WAITING)
        assert failed == PublishFailed(at=305.0, command="7.0", why="not now", damaged=False)

    play(tmp_path, scenario, store=Away(tmp_path / "store"))


@pytest.mark.parametrize(("until_s", "at"), [(0.5, 5.0), (5.0, 5.0), (5.5, 10.0)])
def test_a_model_is_fetched_when_the_store_gives_it(
    tmp_path: Path, until_s: float, at: float
) -> None:
    saved(tmp_path)

    async def scenario(place: Place) -> None:
        *_, done = await place.carried_out(PUBLISH, for_s=60.0)
        assert isinstance(done, ModelPublished)
        assert done.at == at

    play(tmp_path, scenario, store=Away(tmp_path / "store", until_s))


def test_a_damaged_model_and_a_full_disk_are_told_apart_at_once(tmp_path: Path) -> None:
    saved(tmp_path)

    async def damaged(place: Place) -> None:
        events = await place.carried_out(PUBLISH)
        assert events == [PublishFailed(at=0.0, command="7.0", why="not now", damaged=True)]

    async def no_folder(place: Place) -> None:
        (tmp_path / "best").write_text("a file")
        (failed,) = await place.carried_out(PUBLISH)
        assert isinstance(failed, PublishFailed)
        assert "File exists" in failed.why
        assert not failed.damaged

    play(tmp_path, damaged, store=Away(tmp_path / "store", damaged=True))
    play(tmp_path, no_folder)


# ------------------------------------------------------------ what the person asks for


def test_each_request_becomes_its_event_once(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "requests")

    async def scenario(place: Place) -> None:
        asked = {
            inbox.put(AddAsked(at=0.0, request="", config={"lr": 0.3})): "add",
            inbox.put(JobStopAsked(at=0.0, request="", job="a")): "stop",
            inbox.put(JobWeighed(at=0.0, request="", job="a", weight=2.0)): "weigh",
            inbox.put(ExtendAsked(at=0.0, request="", problem=PROBLEM)): "extend",
        }
        await asyncio.sleep(3.0)
        got = {asked[event.request]: event for event in place.core.events}
        assert len(place.core.events) == 4
        ids = {kind: name for name, kind in asked.items()}
        at = got["add"].at
        assert 0.0 <= at <= 0.5
        assert got == {
            "add": AddAsked(at=at, request=ids["add"], config={"lr": 0.3}),
            "stop": JobStopAsked(at=at, request=ids["stop"], job="a"),
            "weigh": JobWeighed(at=at, request=ids["weigh"], job="a", weight=2.0),
            "extend": ExtendAsked(
                at=at, request=ids["extend"], problem=PROBLEM, rented_until_s=500.0
            ),
        }
        place.core.answers.update({ids["add"]: None, ids["stop"]: "lower"})
        await asyncio.sleep(1.0)
        assert inbox.reply(ids["add"]) == Reply(None)
        assert inbox.reply(ids["stop"]) == Reply("lower")
        assert inbox.reply(ids["weigh"]) is None

    play(tmp_path, scenario, inbox=inbox, until=lambda: EPOCH + 500.0)


def test_a_stop_is_passed_on_and_answered_and_what_is_not_rented_has_no_end(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "requests")

    async def scenario(place: Place) -> None:
        name = inbox.put(StopAsked(at=0.0))
        inbox.put(ExtendAsked(at=0.0, request="", problem=PROBLEM))
        await asyncio.sleep(2.0)
        assert place.core.stops == 1
        assert inbox.reply(name) == Reply(None)
        (asked,) = place.core.events
        assert asked.rented_until_s is None

    play(tmp_path, scenario, inbox=inbox)


def test_what_was_decided_about_a_request_is_told_and_done(tmp_path: Path) -> None:
    inbox, until = Inbox(tmp_path / "requests"), []
    job = PlannedJob("b", PROBLEM, "max")
    jobs = [replace(JOB, id="a"), replace(JOB, id="b")]

    async def scenario(place: Place) -> None:
        extended, denied, added, refused, later = (f"{n:016x}" for n in range(5))
        place.core.answers = {
            extended: None,
            denied: "lower",
            added: None,
            refused: "lower",
        }
        inbox.path.mkdir()
        facts = JobFacts(id="b", metric="accuracy", mode="max")
        place.dispatch.requests.reply(
            [
                ExtendAsked(at=0.0, request=later, problem=PROBLEM),
                ExtendAsked(at=0.0, request=extended, problem=PROBLEM),
                ExtendAsked(at=0.0, request=denied, problem=PROBLEM),
                JobAdded(at=0.0, request=added, job=job, facts=facts),
            ]
        )
        assert until == [EPOCH + PROBLEM.limits.deadline_s]
        assert [one.id for one in jobs] == ["a", "b"]
        assert [inbox.reply(n) for n in (extended, denied, added)] == [
            Reply(None),
            Reply("lower"),
            Reply(None),
        ]
        assert inbox.reply(later) is None
        place.dispatch.requests.reply([JobAdded(at=0.0, request=refused, job=job, facts=facts)])
        assert [one.id for one in jobs] == ["a"]
        assert inbox.reply(refused) == Reply("lower")
        for path in inbox.path.iterdir():
            path.unlink()
        inbox.path.rmdir()
        place.dispatch.requests.reply([ExtendAsked(at=0.0, request=denied, problem=PROBLEM)])

    play(tmp_path, scenario, inbox=inbox, jobs=jobs, prolong=until.append)


MORE = replace(JOB, id="more")


def more() -> JobRequest:
    """One more job."""
    facts = JobFacts(id="more", metric="accuracy", mode="max")
    job = PlannedJob("more", PROBLEM, "max")
    return JobRequest(JobAdded(at=0.0, request="", job=job, facts=facts), MORE)


def test_one_more_job_waits_for_an_instance_that_is_ready_for_it(tmp_path: Path) -> None:
    inbox, jobs = Inbox(tmp_path / "requests"), [replace(JOB, id="a")]

    async def scenario(place: Place) -> None:
        name = inbox.put(more())
        assert await place.carried_out(for_s=3.0) == []
        place.cloud.launched, place.cloud.takes_s = Launched("i-1", 4, EPOCH), 4.0
        ready, added = await place.carried_out(LAUNCH, for_s=10.0)
        assert isinstance(ready, InstanceReady)
        assert added == JobAdded(
            at=added.at, request=name, job=more().added.job, facts=more().added.facts
        )
        assert added.at == pytest.approx(ready.at + 0.2, abs=0.6)
        assert [one.id for one in jobs] == ["a", "more"]
        prepared = [one for one in place.cloud.told if isinstance(one, Prepare)]
        assert [[job.id for job in one.jobs] for one in prepared] == [["a"], ["a", "more"]]
        assert prepared[1].id.startswith(f"{name}-")

    play(tmp_path, scenario, inbox=inbox, jobs=jobs)


def test_one_more_job_that_no_instance_can_be_made_ready_for_is_refused(tmp_path: Path) -> None:
    inbox, jobs = Inbox(tmp_path / "requests"), [replace(JOB, id="a")]

    async def scenario(place: Place) -> None:
        place.cloud.launched = Launched("i-1", 4, EPOCH)
        await place.carried_out(LAUNCH)
        place.cloud.refuses = Refused(0, 0.0, "", "pip failed")
        name = inbox.put(more())
        assert await place.carried_out() == []
        assert inbox.reply(name) == Reply("unready", "pip failed")
        assert [one.id for one in jobs] == ["a"]

    play(tmp_path, scenario, inbox=inbox, jobs=jobs)


def test_one_more_job_that_is_taken_back_is_not_added(tmp_path: Path) -> None:
    inbox, jobs = Inbox(tmp_path / "requests"), [replace(JOB, id="a")]

    async def scenario(place: Place) -> None:
        name = inbox.put(more())
        await asyncio.sleep(2.0)
        inbox.withdraw(name)
        place.cloud.launched = Launched("i-1", 4, EPOCH)
        (ready,) = await place.carried_out(LAUNCH, for_s=10.0)
        assert isinstance(ready, InstanceReady)
        assert [one.id for one in jobs] == ["a"]
        assert list(inbox.path.iterdir()) == []

    play(tmp_path, scenario, inbox=inbox, jobs=jobs)
