"""A run to which anything happens that can happen, in any order, all of it drawn from one seed; the
core is the real one, and the policy answers anything.

The one rule: what happens next is drawn, and the outcomes of commands are what their agents, cloud
and store could say of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from seerd.core import events as told
from seerd.core.commands import Launch, Publish, StartTrial, StopTrial, Terminate
from seerd.core.enact import AnyDecision
from seerd.core.events import AnyEvent, RunFacts, RunStarted
from seerd.core.lifecycle import InstancePhase
from seerd.core.plans import New, PlanChange, Put, difference
from seerd.core.state import PRESENT, Instance, State, Trial
from seerd.core.step import step
from seerd.planner.model import Allocation, Compared, MetricConstraint, NewTrial, Plan
from seerd.planner.trial_ids import in_job
from tests.by_hand import begun
from tests.conftest import small_facts
from tests.properties.test_core_properties import some_facts, some_group, some_job

CALM, BLOCKED, CRASHING, REFUSED, WIDE = range(5)
"""What goes on in a run more than elsewhere: something is in the way of its trials, they crash, no
instances are to be had, or trials span several of them.
"""
POLICIES = ("asha", "grid", "hyperband", "random", "seer", "sha")
TAILS = (
    (),
    ("Traceback (most recent call last):", '  File "train.py", line 7', "ValueError: no"),
    ("Traceback (most recent call last):", '  File "train.py", line 7', "KeyError: 'lr'"),
    ("RuntimeError: CUDA out of memory",),
    (
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "a.py", line 7, in main',
        "[rank1]: ImportError: No module named 'x'",
        "seerd: rank 1 ended",
    ),
)
OBSTACLES = (None, None, None, "address", "device", "lock", "network")
COMPLAINTS = (
    *("output", "not-stored", "untracked", "warning", "quiet", "quiet", "still", "error", "often"),
    *("shared", "skipped", "waits", "waits"),
)
METRICS = (None, 0.1, 0.25, 0.5, 0.5, 0.75, 0.8125)
MOST_TRIALS = 9
MOODS = 1000
"""Runs with this seed or a larger one have moods."""
SCOUTED = 2000
"""Runs with this seed or a larger one are told how far instances are and why they were useless, and
may begin with one of them.
"""
CUT_OFF = 3000
"""Machines of runs with this seed or a larger one cannot store most checkpoints."""
VARIED = 5000
"""Rented instances of runs with this seed or a larger one come in several sizes."""
KEEPING = 4000
"""Machines of runs with this seed or a larger one may be kept for the next run."""
UNSTORED = ("store-silent", "store-refused", "store-failed", "left")
CAUSES = ("ssh", "ssh", "store", "setup", "torch", "driver")
END_S = 30.0
"""People end runs later than this, mostly."""


def facts_of(seed: int) -> RunFacts:
    """Return the facts of a run: of one job or several, on rented machines or others."""
    rng = random.Random(f"facts {seed}")
    group = seed % 3 == 2
    if group:
        return some_group(rng, seed, small_facts)
    facts = some_facts(rng, seed, small_facts, POLICIES)
    mode = rng.choice(["max", "min"])
    latency = MetricConstraint("latency", "<=", 1.0)
    return msgspec.structs.replace(
        facts,
        mode=mode,
        smooth=rng.choice([1, 1, 3]),
        target=rng.choice([None, None, 0.85]) if mode == "max" else None,
        constraints=rng.choice([(), (), (latency,)]),
        patterns={"accuracy": "acc=(.*)"} if seed % 4 == 3 else {},
        saves_to="best.pt" if seed % 8 == 3 else "",
        cluster=replace(facts.cluster, hints_move=rng.random() < 0.5),
    )


@dataclass
class Eventful:
    """The run. `happen` draws the next event, and returns it with what was decided."""

    seed: int
    rng: random.Random = field(init=False)
    state: State = field(init=False)
    at: float = 0.0
    happened: list[AnyEvent] = field(default_factory=list)
    mood: int = CALM
    requests: int = 0
    instances: int = 0
    saves: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(f"eventful {self.seed}")
        facts = facts_of(self.seed)
        if self.seed >= SCOUTED and facts.cluster.per_instance:
            scouted = replace(facts.cluster, scout_s=self.rng.choice([0.0, 3.0, 9.0]))
            facts = msgspec.structs.replace(facts, cluster=scouted)
        if self.seed >= VARIED and facts.cluster.per_instance:
            facts = self._varied(facts)
        if self.seed >= KEEPING and facts.cluster.per_instance:
            keeping = replace(facts.cluster, keep_s=self.rng.choice([0.0, 20.0, 200.0]))
            facts = msgspec.structs.replace(facts, cluster=keeping)
        self.state = begun(facts)
        self.mood = self.seed % 5 if self.seed >= MOODS else CALM

    def _varied(self, facts: RunFacts) -> RunFacts:
        size = facts.cluster.gpus_per_instance
        others = [other for other in (1, 2, 4, 8) if size % other == 0 or other % size == 0]
        some = self.rng.sample(others, self.rng.randint(1, len(others)))
        cluster = replace(facts.cluster, other_sizes=tuple(sorted({*some} - {size})))
        return msgspec.structs.replace(facts, cluster=cluster)

    def play(self, events: int) -> Iterator[tuple[AnyEvent, list[AnyDecision]]]:
        """Let so many things happen, or fewer if the run is over before."""
        yield self._step(RunStarted(at=0.0, facts=self.state.facts))
        for _ in range(events):
            if self.state.finished and self.rng.random() < 0.5:
                return
            self.at += self.rng.choice([0.0, 0.0, 0.0, 0.1, 0.3, 1.0])
            yield self._step(self._next())

    def _step(self, event: AnyEvent) -> tuple[AnyEvent, list[AnyDecision]]:
        self.happened.append(event)
        return event, step(self.state, event)

    def _next(self) -> AnyEvent:
        timer = self.state.clock.timer
        if timer is not None and timer.due <= self.at and self.rng.random() < 0.8:
            return told.TimerFired(at=self.at, command=timer.id)
        ways: list[tuple[Callable[[], AnyEvent | None], float]] = [
            (self._outcome, 5.0),
            (self._answer, 8.0),
            (self._of_a_trial, 14.0),
            (self._of_an_instance, 1.0),
            (self._asked, 0.8),
            (self._resumed, 0.4),
            (self._again, 0.5),
            (self._woken, 0.7),
        ]
        while True:
            (way,) = self.rng.choices([way for way, _ in ways], [often for _, often in ways])
            if (event := way()) is not None:
                return event

    # ------------------------------------------------------------ daemon and policy

    def _woken(self) -> AnyEvent | None:
        timer = self.state.clock.timer
        if timer is None:
            return told.Remarked(at=self.at, text="nothing is awaited")
        if timer.due > self.at + 8.0 and self.rng.random() < 0.95:
            return None
        self.at = max(self.at, timer.due)
        return told.TimerFired(at=self.at, command=timer.id)

    def _again(self) -> AnyEvent | None:
        """Something is told twice."""
        if len(self.happened) < 2:
            return None
        return msgspec.structs.replace(self.rng.choice(self.happened[1:]), at=self.at)

    def _answer(self) -> AnyEvent | None:
        question = self.state.plan.question
        if question is None:
            return None
        fate = self.rng.random()
        if fate < 0.06:
            return told.PolicyFailed(at=self.at, question=question, why="it was killed")
        if fate < 0.1:
            return told.PolicyAnswered(at=self.at, question="0.0", plan=PlanChange())
        plan = self._mistake() if fate < 0.16 else self._plan()
        memory = {f"key{self.rng.randrange(3)}": self.rng.choice([None, 1, "x"])}
        return told.PolicyAnswered(at=self.at, question=question, plan=plan, memory=memory)

    def _mistake(self) -> PlanChange:
        return self.rng.choice(
            [
                PlanChange(gone=("nobody",)),
                PlanChange(put=(Put("nobody", 1, 0, None, 0),)),
                PlanChange(stage=9),
                PlanChange(ask_at_s=self.at - 100.0),
                PlanChange(new=(New("t0001", {"lr": float("nan")}),)),
            ]
        )

    def _plan(self) -> PlanChange:
        """Return any plan that could be one, as its difference to the present one."""
        rng, state = self.rng, self.state
        live = [trial.id for trial in state.trials.values() if trial.status == "live"]
        new = list(self._new_trials())
        names = [name for name in state.plan.order.names if rng.random() < 0.85]
        others = [name for name in (*live, *(one.id for one in new)) if name not in names]
        names += rng.sample(others, rng.randint(min(1, len(others)), len(others)))
        if rng.random() < 0.3:
            rng.shuffle(names)
        eliminated = [name for name in live if name not in names and rng.random() < 0.3]
        eliminated += [name for name in live if name in names and rng.random() < 0.02]
        return difference(
            state.plan.order,
            Plan(
                allocations=tuple(self._allocations(names)),
                new=tuple(new),
                eliminated=tuple(eliminated),
                stage=min(
                    len(state.outline.stages) - 1, state.plan.stage + rng.choice([0, 0, 0, 1])
                ),
                ask_at_s=rng.choice([None, self.at + 1.0, self.at + 4.0, self.at + 9.0]),
                hold_gpus=rng.choice([0, 0, 8]),
                ask_on_end=rng.random() < 0.7,
                done=rng.random() < 0.01,
                compared=tuple(
                    Compared(name, rng.choice(METRICS), 2, 1, 2, 1, final=rng.random() < 0.5)
                    for name in live
                    if rng.random() < 0.2
                ),
                note=rng.choice(["", "", "", "as it seemed best"]),
            ),
        )

    def _new_trials(self) -> Iterator[NewTrial]:
        count = len(self.state.trials)
        for number in range(count, min(MOST_TRIALS, count + self.rng.choice([0, 1, 3]))):
            job = self.rng.choice([*self.state.jobs])
            name = f"t{number:04d}"
            config = {"lr": self.rng.choice([0.2, 0.5, 0.7])}
            yield NewTrial(in_job(job, name) if job else name, config)

    def _allocations(self, names: list[str]) -> Iterator[Allocation]:
        limits, size = self.state.facts.problem.limits, self.state.facts.cluster.gpus_per_instance
        left = limits.max_gpus or 3 * size
        for name in names:
            gpus = self.rng.choice([1, 1, 1, 2, size, 2 * size])
            if self.mood == WIDE:
                gpus = self.rng.choice([1, size, 2 * size, 3 * size])
            gpus = gpus if gpus <= size or gpus % size == 0 else size
            if gpus <= left:
                left -= gpus
                reports = self.state.trials[name].reports if name in self.state.trials else 0
                until = self.rng.choice([None, None, reports + 1, reports + 3])
                yield Allocation(name, gpus, self.rng.randrange(2), until)

    # ------------------------------------------------------------ commands

    def _outcome(self) -> AnyEvent | None:
        commands = [*self.state.under_way.values()]
        command = self.rng.choice(commands) if commands else None
        match command:
            case Launch():
                return self._of_launch(command)
            case Terminate() if command.left and self.rng.random() < 0.5:
                return self._fetched(command)
            case Terminate() if command.keep_until_s is not None and self.rng.random() < 0.7:
                return told.InstanceKept(at=self.at, command=command.id, instance=command.instance)
            case Terminate():
                return told.InstanceTerminated(
                    at=self.at,
                    command=command.id,
                    instance=command.instance,
                    running_since=self.rng.choice([None, self.at - 2.0]),
                    ended=self.rng.choice([None, self.at - 0.5]),
                )
            case StartTrial():
                return self._of_start(command)
            case StopTrial():
                trial = self.state.trials[command.trial]
                return self._exited(trial, "asked", self.rng.choice([0, -9]))
            case Publish():
                if self.rng.random() < 0.3:
                    damaged = self.rng.random() < 0.6
                    return told.PublishFailed(
                        at=self.at, command=command.id, why="unreadable", damaged=damaged
                    )
                return told.ModelPublished(at=self.at, command=command.id, path="best")
            case _:
                return None

    def _of_launch(self, command: Launch) -> AnyEvent:
        if self.seed >= SCOUTED and self.rng.random() < 0.5:
            what: Any = self.rng.choice(["launched", "running", "unreached", "reached"])
            why = self.rng.choice(["timed out", "refused"]) if what == "unreached" else ""
            more = {"command": command.id, "what": what, "why": why}
            if self.seed >= VARIED and what == "launched":
                more["gpus"] = self._comes_with(command)
            return told.InstanceAwaited(at=self.at, instance=f"c{command.id}", **more)
        fate = self.rng.random()
        if fate < (0.75 if self.mood == REFUSED else 0.3):
            ran = self.rng.choice([None, None, self.at - 1.0])
            return told.LaunchRefused(
                at=self.at,
                command=command.id,
                why=self.rng.choice(["no capacity", "no quota"]),
                retry=self.rng.random() < 0.8,
                unknown=self.rng.random() < 0.2,
                running_since=ran,
                ended=None if ran is None else self.rng.choice([None, self.at - 0.5]),
                cause=self.rng.choice([None, *CAUSES]) if self.seed >= SCOUTED else None,
            )
        self.instances += 1
        since = max(0.0, self.at - self.rng.choice([0.0, 1.0, 4.0]))
        if (
            self.seed >= KEEPING and self.rng.random() < 0.3
        ):  # an earlier run has paid it until then
            since = self.at + self.rng.choice([5.0, 60.0])
        return told.InstanceReady(
            at=self.at,
            command=command.id,
            instance=f"i{self.instances}",
            gpus=command.gpus if self.seed < VARIED else self._comes_with(command),
            running_since=since,
        )

    def _comes_with(self, command: Launch) -> int:
        """Draw how many GPUs the instance of a launch has, if that was not told before."""
        instance, cluster = self.state.fleet.instances[command.id], self.state.facts.cluster
        if instance.awaited is not None and cluster.other_sizes:
            return instance.gpus
        return self.rng.choice([size for size in cluster.sizes if size <= command.gpus])

    def _of_start(self, command: StartTrial) -> AnyEvent | None:
        trial = self.state.trials[command.trial]
        nodes = [slots.node for slots in trial.left if slots.node not in trial.told]
        if not nodes:
            return None
        node, fate = self.rng.choice(nodes), self.rng.random()
        if fate < 0.05:
            why = "the disk is full"
            return self._fact(told.OrderRefused, node, command=command.id, why=why)
        if fate < 0.1:
            return self._exited(trial, "lost", None, node=node, started=False)
        return self._of(trial, told.TrialStarted, node, pid=7)

    # ------------------------------------------------------------ facts of agents

    def _fact(self, kind: type[Any], node: str, **fields: Any) -> Any:
        instance = self.state.fleet.instances.get(node)
        return kind(
            at=self.at,
            instance=node,
            fact=1 + (0 if instance is None else instance.seen),
            happened=max(0.0, self.at - self.rng.choice([0.0, 0.0, 0.2, 1.5])),
            **fields,
        )

    def _of(self, trial: Trial, kind: type[Any], node: str, **fields: Any) -> Any:
        return self._fact(kind, node, trial=trial.id, attempt=trial.attempt, **fields)

    def _exited(
        self, trial: Trial, cause: str, code: int | None, node: str = "", **fields: Any
    ) -> AnyEvent | None:
        if not trial.left:
            return None
        node = node or self.rng.choice(trial.left).node
        return self._of(trial, told.TrialExited, node, cause=cause, code=code, **fields)  # type: ignore[no-any-return]

    def _of_a_trial(self) -> AnyEvent | None:
        running = [t for t in self.state.trials.values() if t.left and t.told]
        if not running:
            return None
        trial = self.rng.choice(running)
        node = trial.left[0].node
        fate = self.rng.random()
        loads = trial.training_s is None
        if self.mood in (BLOCKED, CRASHING) and fate < (0.7 if loads else 0.2):
            self.at += self.rng.choice([0.0, 1.0])
            return self._end(trial)
        if loads and fate < 0.6:
            reports = trial.checkpoints[0].reports if trial.checkpoints else 0
            return self._of(trial, told.TrialTraining, node, reports=reports)  # type: ignore[no-any-return]
        if fate < 0.55:
            return self._report(trial, node)
        if fate < 0.75:
            return self._saved(trial, node)
        if fate < 0.84:
            return self._end(trial)
        return self._aside(trial, node)

    def _report(self, trial: Trial, node: str) -> AnyEvent:
        metric = self.rng.choice(METRICS)
        return self._of(  # type: ignore[no-any-return]
            trial,
            told.TrialReported,
            node,
            reports=trial.reports + self.rng.choice([1, 1, 1, 2]),
            metric=metric,
            others={"latency": self.rng.choice([0.5, 1.0, 2.0, None])},
            named=metric is not None or self.rng.random() < 0.5,
            unit_s=self.rng.choice([0.1, 0.5, 2.0]),
        )

    def _saved(self, trial: Trial, node: str) -> AnyEvent:
        self.saves += 1
        return self._of(  # type: ignore[no-any-return]
            trial,
            told.TrialCheckpointed,
            node,
            name=f"{self.saves:06d}",
            reports=trial.reports,
            metric=trial.metric,
            sha256="0" * 64,
            size=self.rng.choice([10, 10**9]),
            save_s=self.rng.choice([0.1, 0.4, 3.0]),
            free=self.rng.choice([None, 10**8, 10**12]),
        )

    def _end(self, trial: Trial) -> AnyEvent | None:
        cause = self.rng.choice(["crashed", "crashed", "crashed", "finished", "lost", "lease"])
        in_the_way = self.rng.choice(OBSTACLES)
        if self.mood == BLOCKED:
            cause, in_the_way = "crashed", self.rng.choice(["address", "address", "device", None])
        if self.mood == CRASHING:
            cause, in_the_way = "crashed", None
        if cause != "crashed":
            return self._exited(trial, cause, 0 if cause == "finished" else None)
        return self._exited(
            trial,
            cause,
            self.rng.choice([1, 1, -9, None]),
            rank=self.rng.choice([None, 0, 3]),
            tail=self.rng.choice(TAILS),
            silent=self.rng.choice([None, self.at - 1.0, self.at - 2.0]),
            signal=self.rng.choice([None, None, 9]),
            waited_s=self.rng.choice([None, None, None, 40.0]),
            obstacle=in_the_way,
        )

    def _aside(self, trial: Trial, node: str) -> AnyEvent:
        """What is told of a trial that goes on."""
        rng, what = self.rng, self.rng.randrange(3)
        if what == 0:
            cut_off = self.seed >= CUT_OFF and rng.random() < 0.8
            kind = rng.choice(UNSTORED if cut_off else COMPLAINTS)
            return self._of(trial, told.TrialComplained, node, what=kind, why="it said so")  # type: ignore[no-any-return]
        if what == 1:
            position = {"units": rng.randrange(3), "ticks": rng.randrange(2)}
            over, hung = rng.random() < 0.2, rng.random() < 0.5
            node = rng.choice(trial.left).node
            return self._of(trial, told.TrialStalled, node, hung=hung, over=over, **position)  # type: ignore[no-any-return]
        node = rng.choice(trial.left).node
        shares = tuple(rng.choice([0.0, 0.1, 0.6, 0.9]) for _ in range(2))
        first = 2 * [slots.node for slots in trial.held or ()].index(node)
        ranks = (first, first + 1)
        return self._of(trial, told.TrialWaited, node, over_s=30.0, ranks=ranks, shares=shares)  # type: ignore[no-any-return]

    # ------------------------------------------------------------ instances

    def _of_an_instance(self) -> AnyEvent | None:
        rng, fleet = self.rng, self.state.fleet
        there = [i for i in fleet.instances.values() if i.phase is InstancePhase.READY]
        name = rng.choice([*(i.id for i in there), f"i{self.instances + 1}"])
        instance, what = fleet.instances.get(name), rng.randrange(7)
        if what < 3:
            kind = rng.choice(["interruption", "rebalance", "unhealthy", "cold"])
            by = rng.choice([None, self.at + 3.0, self.at + 20.0])
            return self._fact(told.InstanceNoticed, name, what=kind, by=by, why="it is so")  # type: ignore[no-any-return]
        if what == 3:
            shares = tuple(rng.choice([None, 0.5, 1.0]) for _ in range(2))
            return self._fact(told.InstanceComputed, name, shares=shares)  # type: ignore[no-any-return]
        if what == 4:
            return self._fact(told.InstanceShared, name, gpus=rng.choice([1, 2, 4]), why="others")  # type: ignore[no-any-return]
        if instance is None:
            return None
        return told.InstanceLost(
            at=self.at,
            instance=name,
            why=rng.choice(["power failure", "spot"]),
            ended=rng.choice([None, self.at - 0.7]),
            saved=tuple(self._found(instance)),
        )

    def _fetched(self, command: Terminate) -> AnyEvent:
        """What was left behind on an instance comes from it, before it is given back."""
        name, attempt = self.rng.choice(command.left)
        saved = told.Checkpoint(
            trial=name,
            attempt=attempt,
            name=f"{attempt:04d}-999999",
            reports=self.state.trials[name].reports,
            metric=self.rng.choice(METRICS),
            sha256="0" * 64,
            size=10,
        )
        stored = self.rng.random() < 0.5
        return told.CheckpointFetched(
            at=self.at, instance=command.instance, checkpoint=saved, stored=stored
        )

    def _found(self, instance: Instance) -> Iterator[told.Checkpoint]:
        """Checkpoints that nobody had told of."""
        for name in dict.fromkeys(instance.busy.values()):
            trial = self.state.trials[name]
            if trial.history and self.rng.random() < 0.5:
                self.saves += 1
                yield told.Checkpoint(
                    trial=name,
                    attempt=trial.attempt,
                    name=f"{self.saves:06d}",
                    reports=trial.reports,
                    metric=trial.metric,
                    sha256="0" * 64,
                    size=10,
                )

    def _resumed(self) -> AnyEvent:
        rng = self.rng
        self.at += rng.choice([1.0, 8.0])
        there = [i for i in self.state.fleet.instances.values() if i.phase in PRESENT]
        gone = [i for i in there if rng.random() < 0.3]
        since = max(0.0, self.at - 5.0)
        return told.RunResumed(
            at=self.at,
            alive=tuple(i.id for i in there if i not in gone),
            ended={i.id: self.at - 0.5 for i in gone if rng.random() < 0.5},
            saved=tuple(one for i in gone for one in self._found(i)),
            lost=rng.choice([None, None, None, None, (since, self.at)]),
        )

    # ------------------------------------------------------------ the person

    def _asked(self) -> AnyEvent:
        rng, facts = self.rng, self.state.facts
        self.requests += 1
        common: dict[str, Any] = {"at": self.at, "request": f"r{self.requests}"}
        what = rng.randrange(8)
        if what == 0 and (rng.random() < 0.2 or self.at > END_S):
            return told.StopAsked(at=self.at, hard=rng.random() < 0.3)
        if what in (0, 1, 2):
            raised = rng.choice([0.9, 1.0, 1.5])
            limits = replace(facts.problem.limits, deadline_s=60.0 * raised)
            limits = replace(limits, budget_gpu_s=limits.budget_gpu_s * rng.choice([1.0, 1.2]))
            until = rng.choice([None, 70.0])
            problem = replace(facts.problem, limits=limits)
            return told.ExtendAsked(**common, problem=problem, rented_until_s=until)
        if what in (3, 4):
            return told.AddAsked(**common, config={"lr": rng.choice([0.3, 7.0])})
        job = rng.choice([*self.state.jobs, "x"])
        if what == 5:
            new = some_job(rng, facts.problem, rng.choice("bcde"))
            made = told.JobFacts(id=new.id, metric="accuracy", mode=new.mode)
            return told.JobAdded(**common, job=new, facts=made)
        if what == 6:
            return told.JobStopAsked(**common, job=job)
        return told.JobWeighed(**common, job=job, weight=rng.choice([0.0, 0.5, 3.0]))
