"""One scenario from its first to its last moment, with everybody in it, and what was promised
checked all along.

The one rule: the world goes on until the run is over and the cloud is empty, whoever has died; what
takes longer than that can take is wrong.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from seerd.core.events import RunFacts
from seerd.core.metrics import sign_of
from seerd.core.state import State
from seerd.errors import AbandonedError, JournalError, ProviderError
from seerd.shell.daemon import Daemon
from seerd.shell.journal import Entry
from tests.faults import ec2 as cloud
from tests.faults.coordinator import Coordinator, Watching
from tests.faults.damage import flip_a_bit
from tests.faults.machines import Host
from tests.faults.objects import Objects
from tests.faults.promises import Promises
from tests.faults.scenario import JobAsk, Scenario
from tests.faults.strains import (
    AGENTS_JOURNAL,
    CLOCK,
    FROZEN,
    MACHINE_CLOCK,
    NOTICE_CHANGES,
    PIDS_FULL,
    STARVED,
    STEPS_S,
    bought,
)
from tests.faults.timeline import EPOCH, DeadlockError, Timeline, surroundings
from tests.faults.training import Shared
from tests.faults.weather import Chance

LATE_S = 900.0
"""A daemon that does not come back by itself is started again so long after the deadline, to tidy
up.
"""
LONGEST_S = 4000.0
"""Beyond the deadline: whatever is still going on then never ends."""
TOLD_S = 40.0
"""A person who is told that the disk is full or the credentials have expired mends that, and types
`seerd resume`.
"""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a scenario. `wrong`: promises that were broken, one line each."""

    seed: int
    wrong: tuple[str, ...]
    injected: dict[str, int]
    events: int
    steps: int
    writes: int
    billed_gpu_s: float
    budget_gpu_s: float
    ending: str
    timeline: tuple[tuple[float, str], ...]


def play(scenario: Scenario, *, told: bool = False) -> Report:
    """Let it happen. `told`: keep what happened, for people."""
    folder = Path(tempfile.mkdtemp(prefix="seerd-faults-", dir=_memory()))
    try:
        return Play(scenario, folder, told=told).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _memory() -> str | None:
    """A disk that forgets is enough, and makes `fsync` cheap."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


class Play:
    """A scenario that is under way."""

    def __init__(self, scenario: Scenario, folder: Path, *, told: bool) -> None:
        self.scenario = scenario
        self.timeline = Timeline()
        self.chance = Chance(scenario.weather, scenario.seed)
        self.shared = Shared(self.timeline, self.chance, Objects(), scenario.script)
        self.shared.signs = {name: sign_of(goal) for name, goal in scenario.facts.goals.items()}
        self.shared.most_gpus = scenario.facts.problem.limits.max_gpus
        self.ec2 = cloud.Ec2(self.timeline, self.chance)
        self.ec2.block = bought(scenario.seed, scenario.facts.problem.limits.deadline_s)
        self.ec2.booting, self.ec2.ending, self.ec2.said = self._boots, self._ends, self.say
        self.hosts: dict[str, Host] = {}
        self.lines: list[tuple[float, str]] = []
        self.finished_at: float | None = None
        self.events = 0
        self._told = told
        self._folder = folder
        self._set_wrong_s = self._stepped_s = 0.0
        watching = Watching(self.say, self._saw, self._over, self._lost)
        self.coordinator = Coordinator(
            scenario, self.shared, self.ec2, self.hosts, folder, watching
        )
        self.promises = Promises(self)

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self.timeline.now

    @property
    def facts(self) -> RunFacts:
        """Of the run, as they are now."""
        state = self.coordinator.state
        return (self.scenario if state is None else state).facts

    @property
    def deadline_s(self) -> float:
        """Of the run."""
        return self.coordinator.granted.deadline_s

    @property
    def last_trouble_s(self) -> float:
        """When the last of what lasts was over."""
        spans = self.scenario.weather.spans.values()
        return max((until for some in spans for _, until in some), default=0.0)

    @property
    def folder(self) -> Path:
        """The run's."""
        return self._folder

    def say(self, line: str) -> None:
        """For people."""
        if self._told:
            self.lines.append((self.now, line))

    def run(self) -> Report:
        """From the first to the last moment."""
        with surroundings(
            lambda: EPOCH + self.now + self._set_wrong_s + self._stepped_s, lambda: self.now
        ):
            self._order_faults()
            self.timeline.at(0.0, self.coordinator.start)
            for again in range(1 + len(self.scenario.kills)):
                self.timeline.at(self.deadline_s + LATE_S + again * TOLD_S, self._tidy_up)
            if (more := self.scenario.more) is not None:
                self.timeline.at(more.at_s, lambda: self.coordinator.extend(more))
                for again in range(1 + len(self.scenario.kills)):
                    late_s = self.deadline_s + more.s + LATE_S + again * TOLD_S
                    self.timeline.at(late_s, self._tidy_up)
            if (new := self.scenario.new) is not None:
                number = 2 + len(self.scenario.asks)
                self.timeline.at(new.at_s, lambda: self.coordinator.add_job(new, number))
            for number, one in enumerate(self.scenario.asks, 2):
                self.timeline.at(one.at_s, lambda one=one, number=number: self._ask(one, number))  # type: ignore[misc]
            try:
                self._until_over()
            except DeadlockError as error:
                self.promises.broken(str(error))
            self.promises.at_the_end()
            self.coordinator.bury()
        state = self.coordinator.state
        return Report(
            self.scenario.seed,
            tuple(self.promises.wrong),
            dict(self.chance.injected),
            self.events,
            self.coordinator.steps,
            self.coordinator.writes,
            self.promises.billed_gpu_s(),
            self.promises.budget_gpu_s,
            str(state.end.status) if state is not None else "never begun",
            tuple(self.lines),
        )

    def _ask(self, one: JobAsk, number: int) -> None:
        if one.weight is None:
            self.coordinator.stop_job(one.job, number)
        else:
            self.coordinator.weigh(one.job, one.weight, number)

    def _until_over(self) -> None:
        while not (self.finished_at is not None and not self.ec2.live()):
            self.timeline.turn()
            if self.now > self.deadline_s + LONGEST_S:
                live = [instance.id for instance in self.ec2.live()]
                self.promises.broken(f"it never ends: finished at {self.finished_at}, live {live}")
                return
            if len(self.promises.wrong) > 5:
                return

    def _tidy_up(self) -> None:
        """A person comes back and types `seerd resume`."""
        if self.finished_at is None and not self.coordinator.alive:
            self.coordinator.start()

    # ------------------------------------------------------------ who is told

    def _saw(self, state: State, entries: list[Entry]) -> None:
        self.events += len(entries)
        self.coordinator.state = state
        self.promises.after(state, entries)

    def _lost(self) -> None:
        self.promises.lost()

    def _over(self, daemon: Daemon | None, error: BaseException | None) -> None:
        if isinstance(
            error, JournalError | ProviderError
        ):  # told, with what to do: mend it, and `seerd resume`
            self.timeline.after(TOLD_S, self._tidy_up)
        elif isinstance(error, AbandonedError):
            self.say("the person has left")
        elif error is not None:
            self.promises.broken(f"the daemon ended with {error!r}")
            self.timeline.after(1.0, self._tidy_up)
        else:
            self.finished_at = self.now
            if daemon is not None:
                self.promises.finished(daemon)

    # ------------------------------------------------------------ instances

    def _boots(self, instance: cloud.Instance) -> None:
        cluster = self.scenario.facts.cluster
        gpus = cluster.gpus_per_instance // cluster.parts
        host = Host(
            instance,
            self.scenario.facts.run,
            gpus,
            self._folder / "instances",
            self.shared,
            lambda why: self.ec2.end(instance, "Client.InstanceInitiatedShutdown", why),
        )
        self.hosts[instance.id] = host
        host.boot()

    def _ends(self, instance: cloud.Instance) -> None:
        if instance.id in self.hosts:
            self.hosts[instance.id].power_cut()

    # ------------------------------------------------------------ faults at a moment

    def _order_faults(self) -> None:
        for name, act in self._acts().items():
            for since, until in self.chance.spans(name):
                self.timeline.at(
                    since, lambda act=act, name=name, until=until: self._befall(name, act, until)
                )  # type: ignore[misc]
        for since, _ in self.chance.spans("Ctrl-C"):
            self.timeline.at(since, self._interrupt)
        for since, until in self.chance.spans("clock set wrong"):
            self.timeline.at(since, self._set_clock)
            self.timeline.at(until, lambda: setattr(self, "_set_wrong_s", 0.0))
        if self.ec2.block is not None:
            self.timeline.at(self.ec2.block.ends_s, self._end_block)
        for since, _ in self.chance.spans(CLOCK):
            self.timeline.at(since, self._step_clock)
        for since, until in self.chance.spans(STARVED):
            self.timeline.at(since, lambda for_s=until - since: self._starve(for_s))  # type: ignore[misc]

    def _acts(self) -> dict[str, Callable[[Host, float], None]]:
        return {
            "partition": self._cut,
            "lasting partition": self._cut,
            "agent hangs": self._freeze,
            "agent hangs long": self._freeze,
            "agent dies": lambda host, until: self._lose_agent(host),
            "sudden loss": lambda host, until: self._take_back(host),
            "vanishes": lambda host, until: self._vanish(host),
            "spot notice": self._notice,
            "rebalance hint": lambda host, until: self._hint(host),
            "reboots": lambda host, until: host.reboot(),
            FROZEN: lambda host, until: self._freeze(host, math.inf),
            MACHINE_CLOCK: lambda host, until: self._step_clock_of(host),
            PIDS_FULL: self._fill,
            NOTICE_CHANGES: self._notice_twice,
            AGENTS_JOURNAL: lambda host, until: self._damage_journal_of(host),
        }

    def _befall(self, name: str, act: Callable[[Host, float], None], until: float) -> None:
        """It happens to one of the machines that are there."""
        there = [host for host in self.hosts.values() if not host.gone and host.up]
        if not there:
            return
        host = self.chance.dice(f"who {name}").choice(there)
        self.chance.injected[name] += 1
        self.say(f"{name}: {host.instance.id}, until {until:.1f}")
        act(host, until)

    def _cut(self, host: Host, until: float) -> None:
        host.cut = True
        host.cuts.append((self.now, until))
        host.lose_wires(self.chance.lasts("silence", 0.1, 16.0))
        self.timeline.at(until, lambda: setattr(host, "cut", False))

    def _freeze(self, host: Host, until: float) -> None:
        if host.agent is not None and host.agent.alive:
            host.agent.freeze(until - self.now)
            host.hung.append((self.now, until))

    def _lose_agent(self, host: Host) -> None:
        """Only while somebody is there to start another: without both, nothing but the scheduled
        power-off ends an instance.
        """
        if self.coordinator.alive:
            host.lose_agent()

    def _damage_journal_of(self, host: Host) -> None:
        """Its agent dies, and the next one finds a wrong byte in its journal."""
        if self.coordinator.alive and host.agent is not None and host.agent.alive:
            host.lose_agent()
            path = self._folder / "instances" / host.instance.id / "journal.jsonl"
            flip_a_bit(path, self.chance.dice(AGENTS_JOURNAL))

    def _take_back(self, host: Host) -> None:
        if host.instance.spot:
            why = "Spot instance was terminated"
            self.ec2.end(host.instance, "Server.SpotInstanceTermination", why)

    def _end_block(self) -> None:
        for instance in self.ec2.live():
            self.ec2.end(instance, "Server.CapacityBlockEnded", "The block has ended")

    def _vanish(self, host: Host) -> None:
        """The machine is dead, and EC2 says that all is well."""
        host.power_cut()
        host.cut = True
        host.vanished_at = self.now

    def _notice(self, host: Host, until: float) -> None:
        if not host.instance.spot:
            return
        if host.agent is not None and host.agent.alive:
            host.agent.notice("interruption", until)
        self.timeline.at(until, lambda: self._take_back(host))

    def _notice_twice(self, host: Host, until: float) -> None:
        """Several notices name several times; the earliest is when it is taken away."""
        for later_s in self.chance.dice(NOTICE_CHANGES).choice([(0.0, 40.0), (40.0, 0.0)]):
            if not host.instance.spot:
                return
            if host.agent is not None and host.agent.alive:
                host.agent.notice("interruption", until + later_s)
        self.timeline.at(until, lambda: self._take_back(host))

    def _hint(self, host: Host) -> None:
        if host.agent is not None and host.agent.alive:
            host.agent.notice("rebalance", None)

    def _step_clock_of(self, host: Host) -> None:
        by_s = self.chance.dice(MACHINE_CLOCK).choice(STEPS_S)
        self.say(f"the clock of {host.instance.id} is set, by {by_s:+.0f}s")
        host.set_clock(by_s)

    def _step_clock(self) -> None:
        self.chance.injected[CLOCK] += 1
        by_s = self.chance.dice(CLOCK).choice(STEPS_S)
        self._stepped_s += by_s
        self.say(f"the coordinator's clock is set, by {by_s:+.0f}s")

    def _starve(self, for_s: float) -> None:
        if self.coordinator.alive:
            self.chance.injected[STARVED] += 1
            self.say(f"the daemon is held up for {for_s:.1f}s")
            self.coordinator.hold_up(for_s)

    def _fill(self, host: Host, until: float) -> None:
        host.full_until = max(host.full_until, until)

    def _set_clock(self) -> None:
        self.chance.injected["clock set wrong"] += 1
        self._set_wrong_s = self.chance.dice("clock set wrong").choice(
            [-4000.0, -90.0, -5.0, 5.0, 90.0, 4000.0]
        )
        self.say(f"the coordinator's clock is set wrong, by {self._set_wrong_s:+.0f}s")

    def _interrupt(self) -> None:
        self.chance.injected["Ctrl-C"] += 1
        self.say("Ctrl-C")
        self.coordinator.press_ctrl_c()
