"""One real run on instances of a rig with a hand that hurts them, their links and the cloud,
carried through to its end.

The one rule: what the hand does goes through the rig's switches or the kernel; seerd is only begun,
and resumed when its daemon was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from bench.testbed import ec2_world
from bench.testbed.ec2_world import FOUR_GPUS, Job
from bench.testbed.rig import Rig, RigInstance
from bench.testbed.rig.guest import client
from tests.commands import run_command
from tests.violence import eyes, trace
from tests.violence.eyes import Eyes, Life
from tests.violence.ground import PROGRAMS
from tests.violence.hand import Act, draw, pick
from tests.violence.local import BEGUN, NEVER_BEGAN, OVER, Trouble

POLICY = 'name = "seer"\neta = 2\nnu = 2\np_max = 4\nt_min = "{t_min_s}s"'
CLOUD = {
    "EC2 throttles": 2.0,
    "EC2 fails": 2.0,
    "EC2 loses replies": 2.0,
    "S3 throttles": 1.0,
    "no capacity in a zone": 1.0,
}
INSTANCES = {
    "lose an instance": 2.0,
    "have an instance vanish": 1.0,
    "unplug an instance for a while": 2.0,
    "slow down an instance's link": 1.0,
    "announce a spot interruption": 1.0,
    "fill an instance's disk": 1.0,
    "kill sshd on an instance": 1.0,
    "kill the agent on an instance": 2.0,
    "kill a process of a trial": 2.0,
    "kill the daemon": 3.0,
}
LONG = {
    "unplug an instance for a while": 5.0,
    "slow down an instance's link": 3.0,
    "EC2 throttles": 4.0,
    "EC2 fails": 3.0,
}
"""Some things last longer than others, by this factor."""
Undo = Callable[[], None]
NOTICE_S = 10.0
TICK_S = 0.05
MOST_COMMANDS = 8
PATIENCE_S = 75.0
"""How long after the deadline a run may still be waited for before it counts as one that does not
end.
"""


class Coordinator(ec2_world.Coordinator):
    """Its reading commands are forks."""

    def json(self, *args: str) -> Any:
        """What a reading command tells."""
        told = run_command([*args, "--json"], self.folder, self.environment())
        assert told.returncode == 0, f"{args}: {told.returncode}\n{told.stdout}\n{told.stderr}"
        return json.loads(told.stdout)


@dataclass(frozen=True, slots=True)
class Rental:
    """How long and for how much a run goes on, and how often its trials report and save; at most
    three instances of four GPUs.
    """

    deadline_s: int
    budget_gpu_min: int
    t_min_s: int
    epoch_s: float = 0.2

    @property
    def job(self) -> Job:
        """Its spec."""
        policy = POLICY.format(t_min_s=self.t_min_s)
        return Job(
            f"{self.deadline_s}s",
            f"{self.budget_gpu_min}gpu-min",
            "traced.py",
            policy=policy,
            limits="max_gpus = 12",
            env=f'VIOLENCE_EPOCH_S = "{self.epoch_s}"',
        )


LASTING = Rental(70, 48, 15)
BRIEF = Rental(50, 40, 8, epoch_s=0.6)
"""Each report costs agent, daemon and rig a call or several."""


@dataclass(slots=True)
class RentedEvidence:
    """All that was seen of a run on a rig. Times: seconds since 1970. `begun`: when its first words
    had been said; `account`: the rig's own, of all instances there were.
    """

    rental: Rental
    began: float
    begun: float = 0.0
    ended: float = 0.0
    codes: list[tuple[str, int]] = field(default_factory=list)
    acts: list[str] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    hurt: dict[str, int] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    clashes: list[str] = field(default_factory=list)
    saved: list[trace.Saved] = field(default_factory=list)
    account: dict[str, RigInstance] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    left: list[str] = field(default_factory=list)
    said: str = ""
    never_began: bool = False
    was_over: bool = False


def intentions(rental: Rental, seed: int) -> tuple[list[Act], float]:
    """What the hand will do, and how long a dead daemon stays dead."""
    chance = random.Random(seed)
    cloud = draw(chance, CLOUD, count=chance.randint(0, 2), within_s=5.0)
    rest = draw(chance, INSTANCES, count=chance.randint(1, 4), within_s=rental.deadline_s - 15)
    return sorted([*cloud, *rest], key=lambda act: act.at_s), chance.uniform(0.0, 4.0)


def violate_rented(
    rig: Rig, rental: Rental, seed: int, folder: Path, seeing: Eyes
) -> RentedEvidence:
    """One run on this rig, which is emptied before."""
    rig.reset()
    rig.set_boot(boot_s=0.5)
    acts, rest_s = intentions(rental, seed)
    market = "spot" if any("spot" in act.what for act in acts) else "on-demand"
    folder.mkdir(parents=True)
    with Coordinator(rig, folder) as coordinator:
        shutil.copy(PROGRAMS / "traced.py", coordinator.project)
        coordinator.write(replace(rental.job, market=market))
        with trace.Watch(_bucket(rig), 2 * rental.epoch_s) as watch:
            run = _Rented(coordinator, seeing, rental, rest_s)
            try:
                run.live(acts)
                run.look_back(watch)
            finally:
                run.clear()
    return run.evidence


class _Rented:
    def __init__(
        self, coordinator: Coordinator, seeing: Eyes, rental: Rental, rest_s: float
    ) -> None:
        self.evidence = RentedEvidence(rental, time.time())
        self.rig = coordinator.rig
        self._coordinator = coordinator
        self._seeing = seeing
        self._rest_s = rest_s
        self._over = False
        self._process = coordinator.start("run", str(coordinator.spec), "--plain")

    def live(self, acts: list[Act]) -> None:
        """Until the run is over."""
        while not self._over and BEGUN not in self._coordinator.lines():
            self._wait(time.time() + TICK_S)
        self.evidence.begun = time.time()
        for act in acts:
            if not self._wait(self.evidence.begun + act.at_s):
                break
            self._do(act)
        self._wait(self.evidence.began + self.evidence.rental.deadline_s + PATIENCE_S)
        if not self._over:
            self.evidence.codes.append(("does not end", -999))
        self.evidence.ended = time.time()

    def _wait(self, until: float) -> bool:
        while not self._over and time.time() < until:
            if self._process.poll() is not None:
                self._after(self._process.returncode)
            time.sleep(TICK_S)
        return not self._over

    def _after(self, code: int) -> None:
        evidence, said = self.evidence, self._coordinator.lines()
        evidence.codes.append(("resume" if evidence.codes else "run", code))
        evidence.was_over = code == 2 and OVER in said[-500:]
        evidence.never_began = code != 0 and (NEVER_BEGAN in said[-500:] or BEGUN not in said)
        if code != -signal.SIGKILL or evidence.never_began or len(evidence.codes) >= MOST_COMMANDS:
            self._over = True
            return
        time.sleep(self._rest_s)  # somebody has to come first
        self._process = self._coordinator.start("resume", "last", "--plain")

    def look_back(self, watch: trace.Watch) -> None:
        """Collect what there is to judge."""
        evidence, coordinator = self.evidence, self._coordinator
        evidence.left = [f"{pid} {eyes.cmdline(pid)}" for pid in eyes.of_home(coordinator.home)]
        evidence.account = self.rig.account()
        evidence.left += [f"instance {one.id} ({one.state})" for one in self.rig.instances()]
        self.rig.no_faults()
        watch.look()
        evidence.saved, evidence.said = watch.saved, coordinator.lines()
        run = coordinator.run_folder.name
        evidence.lives, evidence.clashes = self._seeing.lives(run), self._seeing.clashes(run)
        if not evidence.never_began:
            evidence.told = {
                name: coordinator.json(name, "last") for name in ("show", "ledger", "replay")
            }
            best = evidence.told["show"]["best"] or {}
            if best.get("checkpoint"):
                evidence.model = Path(best["checkpoint"]).read_text()

    def clear(self) -> None:
        """Nothing may outlive the run."""
        for pid in eyes.of_home(self._coordinator.home):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.rig.reset()

    # ------------------------------------------------------------ what the hand does

    def _do(self, act: Act) -> None:
        since = time.time()
        instances = sorted(self._coordinator.live(), key=lambda one: one.launched)
        victim = instances[int(act.share * len(instances))] if instances else None
        lasting = (
            DOINGS[act.what](self, victim, act)
            if victim is not None or act.what in ANYHOW
            else None
        )
        if lasting is None:
            return
        self.evidence.acts.append(f"{since - self.evidence.began:.2f}s {act.what}")
        if lasting is not DONE:
            self._wait(time.time() + act.for_s * LONG.get(act.what, 1.0))
            with contextlib.suppress(ValueError):  # the instance is gone meanwhile
                lasting()
        self.evidence.troubles.append(Trouble(act.what, since, time.time()))

    def faults(self, begin: Callable[[Rig], None]) -> Undo:
        """Of the API."""
        begin(self.rig)
        return self.rig.no_faults

    def crowd(self, act: Act) -> Undo:
        """Nothing can be had in one zone any more."""
        zone = sorted(self.rig.subnets)[int(act.share * len(self.rig.subnets))]
        for market in ("spot", "on-demand"):
            self.rig.set_capacity(FOUR_GPUS, zone, 0, market)
        return DONE

    def unplug(self, one: RigInstance) -> Undo:
        """Its link is down."""
        self.rig.partition(one.id)
        return lambda: self.rig.heal(one.id)

    def slow(self, one: RigInstance, act: Act) -> Undo:
        """Frames take their time, or never come."""
        self.rig.slow(one.id, 0.02 + act.share * 0.2, act.share * 0.05)
        return lambda: self.rig.slow(one.id)

    def fill(self, one: RigInstance) -> Undo:
        """Its disk is full."""
        self.rig.fill_disk(one.id, 1 << 20)
        return lambda: self.rig.fill_disk(one.id, 4 << 30)

    def do(self, what: Callable[..., None], *args: Any) -> Undo:
        """Once."""
        what(*args)
        return DONE

    def kill_on(self, one: RigInstance, act: Act, what: str) -> Undo | None:
        """`kill -9` of processes of this name: all of sshd, one of others."""
        found = [pid for pid in eyes.of_machine(one.pid or 0) if eyes.name(pid).startswith(what)]
        return self._kill(found if what == "sshd" else pick(found, act.share))

    def kill_trial(self, one: RigInstance, act: Act) -> Undo | None:
        """One process of a trial."""
        mine = {
            pid: life
            for life in self._seeing.lives(self._coordinator.run_folder.name)
            for pid in life.pids
        }
        victims = pick([pid for pid in eyes.of_machine(one.pid or 0) if pid in mine], act.share)
        for pid in victims:
            self.evidence.hurt[mine[pid].trial] = self.evidence.hurt.get(mine[pid].trial, 0) + 1
        return self._kill(victims)

    def kill_daemon(self) -> Undo | None:
        """Of whatever command runs now."""
        return self._kill([self._process.pid] if self._process.poll() is None else [])

    def _kill(self, victims: list[int]) -> Undo | None:
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return DONE if victims else None


def DONE() -> None:  # noqa: N802
    """There is nothing to undo."""


Doing = Callable[[_Rented, Any, Act], Undo | None]
DOINGS: dict[str, Doing] = {
    "EC2 throttles": lambda run, one, act: run.faults(lambda rig: rig.throttle("ec2:*", rate=0.5)),
    "EC2 fails": lambda run, one, act: run.faults(
        lambda rig: rig.fail("ec2:*", "InternalError", times=None, rate=0.4)
    ),
    "EC2 loses replies": lambda run, one, act: run.faults(
        lambda rig: rig.lose_reply("ec2:*", times=None, rate=0.4)
    ),
    "S3 throttles": lambda run, one, act: run.faults(lambda rig: rig.throttle("s3:*", rate=0.3)),
    "no capacity in a zone": lambda run, one, act: run.crowd(act),
    "lose an instance": lambda run, one, act: run.do(run.rig.lose, one.id),
    "have an instance vanish": lambda run, one, act: run.do(run.rig.vanish, one.id),
    "unplug an instance for a while": lambda run, one, act: run.unplug(one),
    "slow down an instance's link": lambda run, one, act: run.slow(one, act),
    "announce a spot interruption": lambda run, one, act: run.do(
        run.rig.spot_notice, one.id, NOTICE_S
    ),
    "fill an instance's disk": lambda run, one, act: run.fill(one),
    "kill sshd on an instance": lambda run, one, act: run.kill_on(one, act, "sshd"),
    "kill the agent on an instance": lambda run, one, act: run.kill_on(one, act, "seerd-agent"),
    "kill a process of a trial": lambda run, one, act: run.kill_trial(one, act),
    "kill the daemon": lambda run, one, act: run.kill_daemon(),
}
ANYHOW = {*CLOUD, "kill the daemon"}
"""What needs no instance."""


def _bucket(rig: Rig) -> trace.StoredCheckpoints:
    """The rig's bucket: PREFIX/RUN/TRIAL/NAME.json."""

    def now() -> Iterator[tuple[str, str, Callable[[], bytes]]]:
        try:
            s3 = client(rig, "s3")
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=rig.bucket)
            keys = [found["Key"] for page in pages for found in page.get("Contents", [])]
            for key in keys:
                trial, _, name = key.rpartition("/")
                if name.endswith(".json"):
                    yield (
                        trial.rpartition("/")[2],
                        name.removesuffix(".json"),
                        lambda key=key: _content(s3, rig, key),
                    )
        except (BotoCoreError, ClientError) as error:
            raise OSError(str(error)) from error

    return now


def _content(s3: Any, rig: Rig, key: str) -> bytes:
    try:
        content: bytes = s3.get_object(Bucket=rig.bucket, Key=key)["Body"].read()
    except (BotoCoreError, ClientError) as error:
        raise OSError(str(error)) from error
    return content
