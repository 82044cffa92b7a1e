"""What seerd promises (docs/reliability.md), looked at from outside: by the cloud's own account,
the store, and what really ran where.

The one rule: nothing here believes the daemon, but for what it says; each promise is one function.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bench.testbed.invariants import violations
from seerd.core.commands import StartTrial
from seerd.core.events import EventsMissing, PolicyAnswered, RunResumed, TrialCheckpointed
from seerd.core.gaps import lacks
from seerd.core.lifecycle import RunPhase
from seerd.core.metrics import incumbent, sign_of
from seerd.core.state import State
from seerd.core.verdicts import Adopted, Closing, Declined, Kept
from seerd.errors import SeerdError
from seerd.planner.trial_ids import job_of
from seerd.runs.reading import replay
from seerd.shell.daemon import Daemon
from seerd.shell.journal import Entry, Journal
from seerd.telling.complaints import notes_of
from tests.faults.agreement import Agreement
from tests.faults.ec2 import STALE_S, Instance
from tests.faults.objects import Model
from tests.faults.training import Used

if TYPE_CHECKING:
    from tests.faults.world import Play

UNKNOWN_S = 120.0
"""How long an instance may be unknown to a daemon that lives."""
EPSILON_S = 1e-6
OVER_S = 420.0
"""A run is over so long after its deadline, or after whatever has kept it from ending: credentials,
a store, a daemon that was not there.
"""
AGAIN_S = 15.0
"""EC2 is asked again within so long after it could not be reached: politely."""
AFTER_HANGING_S = 10.0
"""An agent that hung has stopped what it must within so many seconds."""
NO_EC2 = ("throttling storm", "endpoint unreachable", "credentials expired")
LEDGERS = "the_budget_is_kept"
"""The ledger counts what nobody has confirmed to have ended; here the cloud's own account is what
counts.
"""


class Promises:
    """Of one scenario."""

    def __init__(self, play: Play) -> None:
        self.wrong: list[str] = []
        self._play = play
        self._unknown_since: dict[str, float] = {}
        self._confirmed: dict[tuple[str, str], float] = {}
        self._agreement = Agreement(play, self.broken)
        self._lost_at: float | None = None
        self._resumes: list[tuple[float, float]] = []  # from a daemon's start until it has resumed
        self._unseen: set[str] = set()
        self._stored_s = 0.0

    @property
    def budget_gpu_s(self) -> float:
        """The tighter of GPU time and money."""
        if self._play.scenario.promised_gpu_s is not None:
            return self._play.scenario.promised_gpu_s
        limits, price = (
            self._play.coordinator.granted,
            self._play.scenario.facts.cluster.usd_per_gpu_h,
        )
        return (
            limits.budget_gpu_s
            if limits.cost_usd is None
            else min(limits.budget_gpu_s, limits.cost_usd / price * 3600)
        )

    def billed_gpu_s(self) -> float:
        """By the cloud's own account."""
        cluster = self._play.scenario.facts.cluster
        gpus = cluster.gpus(cluster.gpus_per_instance)
        return sum(
            gpus * instance.billed_s(self._play.now)
            for instance in self._play.ec2.instances.values()
        )

    def broken(self, what: str) -> None:
        """Write it down, once."""
        if what not in self.wrong:
            self.wrong.append(what)
            self._play.say(f"BROKEN: {what}")

    # ------------------------------------------------------------ all along

    def after(self, state: State, entries: list[Entry]) -> None:
        """Something was committed and is being carried out, or nothing has happened for a while."""
        self._every_instance_is_known(state)
        if not entries:
            return
        self._note_what_is_known(state, entries)
        for what in violations(state):
            if not what.startswith(LEDGERS):
                self.broken(what)
        self._take_in_hand()
        self._agreement.after(state, entries)
        if any(isinstance(entry.event, TrialCheckpointed) for entry in entries):
            self._confirmed_is_restorable(state)
        for entry in entries:
            self._confirm(entry, state)
        self._progress_counts_once(state)
        self._an_outage_has_its_time(state, entries)
        for entry in entries:
            self._nonsense_is_not_carried_out(entry)
        if any(isinstance(entry.event, PolicyAnswered) for entry in entries):
            self._a_policy_is_not_waited_for_for_ever(state)

    def lost(self) -> None:
        """The journal has lost events that were committed: nobody knows of checkpoints any more
        that were confirmed by them, nor what policies were asked.
        """
        self._confirmed.clear()
        self._agreement.lost()
        self._lost_at = self._play.now

    def _note_what_is_known(self, state: State, entries: list[Entry]) -> None:
        """Of instances whose launch the journal has lost, nobody can know those that EC2 did not
        show yet, or not any more as the run's, when it was asked what there is; nor of checkpoints
        that were deleted since.
        """
        shared = self._play.shared
        resumed = next((one for one in entries if isinstance(one.event, RunResumed)), None)
        if resumed is not None:
            self._resumes.append((self._play.coordinator.began_at, self._play.now))
        answered = {
            getattr(one.event, "instance", "")
            for one in entries
            if isinstance(one.event, EventsMissing) or hasattr(one.event, "fact")
        }
        shared.lost -= {shared.training[at] for at in shared.training if at[0] in answered}
        if resumed is None or self._lost_at is None:
            return
        if isinstance(resumed.event, RunResumed) and resumed.event.lost is not None:
            known = state.fleet.instances
            shared.lost &= {shared.training[at] for at in shared.training if at[0] in known}
        for instance in self._play.ec2.instances.values():
            unknown = lacks(state, instance.id, instance.command)
            shown = instance.visible <= self._lost_at and not instance.faded
            if unknown and not shown:
                self._unseen.add(instance.id)
        trials = state.trials.values()
        named = {(trial.id, one.name) for trial in trials for one in trial.checkpoints}
        shared.gone = named - shared.objects.whole.keys()
        self._lost_at = None

    def _excused_gpu_s(self) -> float:
        """What nobody could have saved: a machine that is dead or whose agent hangs, while no
        daemon could reach EC2; one without an agent, while there was no daemon to start one, or
        none that could log in or reach EC2; one that nobody could know (see docs/reliability.md,
        "What is left").
        """
        play = self._play
        absent = play.coordinator.absent
        shut = (span for name in NO_EC2 for span in play.chance.spans(name))
        unreachable = merged([*absent, *((since, until + AGAIN_S) for since, until in shut)])
        unhelped = unreachable if "login fails" in play.scenario.weather.rates else merged(absent)
        seconds = 0.0
        for host in play.hosts.values():
            dead_at = math.inf if host.vanished_at is None else host.vanished_at
            dead = [] if host.vanished_at is None else [(dead_at, host.instance.ended or play.now)]
            seconds += overlap_s(merged([*_before(dead_at, host.hung), *dead]), unreachable)
            seconds += overlap_s(_before(dead_at, host.alone), unhelped)
        seconds += sum(play.ec2.instances[one].billed_s(play.now) for one in self._unseen)
        cluster = play.scenario.facts.cluster
        return seconds * cluster.gpus(cluster.gpus_per_instance)

    def _take_in_hand(self) -> None:
        """What was seen to be wrong where trials run."""
        while self._play.shared.wrong:
            self.broken(self._play.shared.wrong.pop())

    def _every_instance_is_known(self, state: State) -> None:
        """Every instance that the cloud has is known to the run by its id or its launch, or is soon
        ended; each has the slots that the plan counts with.
        """
        now, slots = self._play.now, state.facts.cluster.gpus_per_instance
        for name, instance in state.fleet.instances.items():
            if instance.gpus != slots:
                self.broken(f"{name} has {instance.gpus} slots, and instances have {slots}")
        for instance in self._play.ec2.live():
            if instance.id in state.fleet.instances or instance.command in state.fleet.instances:
                self._unknown_since.pop(instance.id, None)
                continue
            if now - self._unknown_since.setdefault(instance.id, now) > UNKNOWN_S:
                self.broken(f"{instance.id} has been unknown to the run for {UNKNOWN_S:.0f}s")

    def _confirmed_is_restorable(self, state: State) -> None:
        """The newest confirmed checkpoint of every trial is in the store, whole."""
        for trial in state.trials.values():
            if not trial.checkpoints:
                continue
            newest = trial.id, trial.checkpoints[0].name
            if (
                newest not in self._play.shared.objects.whole
                and newest not in self._play.shared.gone
            ):
                self.broken(
                    f"checkpoint {trial.checkpoints[0].name} of {trial.id} was confirmed and "
                    "is not in the store"
                )

    def _an_outage_has_its_time(self, state: State, entries: list[Entry]) -> None:
        """A run ends for its store only if that took nothing for a tenth of the deadline, and at
        least a minute.
        """
        for entry in entries:
            if isinstance(entry.event, TrialCheckpointed):
                self._stored_s = entry.event.at
            for closing in entry.decided:
                least_s = max(60.0, state.facts.problem.limits.deadline_s / 10)
                given_up = isinstance(closing, Closing) and closing.why == "store"
                if given_up and entry.event.at < self._stored_s + least_s:
                    self.broken(f"the store is given up at {entry.event.at:.0f}s")

    def _confirm(self, entry: Entry, state: State) -> None:
        """Write down how good each checkpoint is that was confirmed to the daemon, also one that it
        lets go of at once.
        """
        event = entry.event
        if not isinstance(event, TrialCheckpointed) or event.metric is None:
            return
        trial = state.trials.get(event.trial)  # the journal may have lost it
        kept = {checkpoint.name for checkpoint in trial.checkpoints} if trial else set()
        if event.name in kept or any(isinstance(one, Kept) for one in entry.decided):
            sign = sign_of(state.facts.goal_of(event.trial))
            self._confirmed[event.trial, event.name] = sign * event.metric

    def _progress_counts_once(self, state: State) -> None:
        """Each report of a trial is counted once, in order."""
        for trial in state.trials.values():
            tail = [report.reports for report in trial.history[-3:]]
            if tail != sorted(set(tail)):
                self.broken(f"the reports of {trial.id} are {tail}")

    def _nonsense_is_not_carried_out(self, entry: Entry) -> None:
        """A plan with a mistake in it is not adopted, one without is not declined, and nobody
        starts who was not asked for.
        """
        said = self._play.coordinator.said
        for decision in entry.decided:
            if isinstance(decision, StartTrial) and decision.config not in said.meant.get(
                decision.trial, ()
            ):
                self.broken(
                    f"{decision.trial} starts with {decision.config}, and no policy wanted that"
                )
        if not isinstance(entry.event, PolicyAnswered):
            return
        mad = said.is_nonsense(entry.event.plan)
        for decision in entry.decided:
            if isinstance(decision, Adopted) and mad:
                self.broken(f"nonsense is the plan: {entry.event}")
            if isinstance(decision, Declined) and not mad:
                self.broken(f"a plan is declined: {decision.why}; {entry.event}")

    def _a_policy_is_not_waited_for_for_ever(self, state: State) -> None:
        """It has just answered. A version that allows fewer failures, and takes the run up, counts
        from its next answer on.
        """
        if state.phase is RunPhase.RUNNING and state.plan.failures >= state.rules.max_failures:
            self.broken(f"the policy has failed {state.plan.failures} times, and the run goes on")

    # ------------------------------------------------------------ at the end

    def finished(self, daemon: Daemon) -> None:
        """The daemon says that the run is over."""
        state = daemon.state
        ours = (one for one in self._play.ec2.live() if not self._is_kept(one))
        live = [instance.id for instance in ours]
        if live and not daemon.leftovers.costing:
            self.broken(f"{live} live, and the run says that nothing is left")
        wrongly = [line for line in daemon.leftovers.costing if line.startswith(("inst", "vol"))]
        if wrongly and not live:
            self.broken(f"nothing costs any more, and the run says that it may: {wrongly}")
        for job in state.jobs:
            self._the_best_is_returned(state, job)
        self._the_ledger_is_the_account(state)

    def _is_kept(self, instance: Instance) -> bool:
        """Whether it waits for another run: the run's own folder says so, or its tag."""
        keys = self._play.folder / "keys"
        left = (keys / f"let-go-{instance.id}").exists()
        return left or instance.tags["seerd:run"].endswith("/kept")

    def _the_best_is_returned(self, state: State, job: str) -> None:
        """That of this job, in a place of its own."""
        best = incumbent(state, job)
        if job not in state.result.of_jobs:
            if best is not None and state.end.status != "interrupted":
                self.broken(
                    f"{best.trial} has a model, and none is returned ({state.end.status}): "
                    f"{notes_of(state)[-3:]}"
                )
            return
        told = state.result.of_jobs[job].incumbent
        content = (self._play.folder / "best" / job / "checkpoint.pt").read_bytes()
        if content != Model(told.trial, told.checkpoint.reports, told.metric).content():
            self.broken(
                f"the returned file is not {told.checkpoint.name} of {told.trial}: {content!r}"
            )
        sign = sign_of(state.facts.goals[job])
        known = {
            (trial.id, one.name): sign * one.metric
            for trial in state.trials.values()
            for one in trial.checkpoints
            if one.metric is not None
        }
        for (trial, name), worth in {**self._confirmed, **known}.items():
            usable = job_of(trial) == job and f"{trial}/{name}" not in state.result.unreadable
            if usable and worth > sign * told.metric:
                self.broken(f"{name} of {trial} was confirmed and is better than what is returned")

    def _the_ledger_is_the_account(self, state: State) -> None:
        """Each instance that ran is charged, and for no less than it ran."""
        charges = list(state.ledger.charges())
        minimum_s = state.facts.cluster.minimum_s
        account = sum(
            i.billed_s(self._play.now, minimum_s)
            for i in self._play.ec2.instances.values()
            if i.id not in self._unseen
        )
        charged = sum(charge.gpu_s(state.now) / charge.gpus for charge in charges)
        if charged < account - self._unseen_s * len(charges) - EPSILON_S:
            self.broken(
                f"the ledger has {charged:.1f} instance-seconds, the cloud's account {account:.1f}"
            )

    @property
    def _unseen_s(self) -> float:
        """What an instance may have run before anyone could know: EC2 tells whole seconds, and of
        the past.
        """
        return 1.0 + (STALE_S if "stale answer" in self._play.scenario.weather.rates else 0.0)

    def at_the_end(self) -> None:
        """Nothing happens any more."""
        self._take_in_hand()
        self._it_has_come_to_an_end()
        self._the_budget_is_kept()
        self._the_deadline_is_kept()
        self._jobs_keep_their_own_limits()
        self._agreement.at_the_end()
        self._it_can_be_replayed()

    def _it_has_come_to_an_end(self) -> None:
        """In time."""
        play = self._play
        free = max(play.deadline_s, play.coordinator.began_at, play.last_trouble_s)
        if play.finished_at is not None and play.finished_at > free + OVER_S:
            self.broken(
                f"the run was over {play.finished_at - free:.0f}s after anything could have kept it"
            )

    def _the_budget_is_kept(self) -> None:
        billed, allowed = self.billed_gpu_s(), self.budget_gpu_s + self._excused_gpu_s()
        if billed > allowed + EPSILON_S:
            self.broken(f"{billed:.1f} GPU-seconds billed of {allowed:.1f}")

    def _the_deadline_is_kept(self) -> None:
        deadline_s = self._play.deadline_s
        for instance in self._play.ec2.instances.values():
            if (
                instance.ended is not None
                and instance.ended > deadline_s + EPSILON_S
                and instance.running is not None
            ):
                host = self._play.hosts.get(instance.id)
                if host is None or host.orphaned_at is None:
                    self.broken(
                        f"{instance.id} ended {instance.ended - deadline_s:.1f}s after the deadline"
                    )

    def _jobs_keep_their_own_limits(self) -> None:
        """By what their attempts' processes have really taken. Nobody can stop what runs beside an
        agent that hangs, or on a machine that is out of reach; and while there is no daemon, or one
        that cannot resume since it does not reach EC2, trials go on until the lease ends, which
        limits of single jobs do not shorten.
        """
        scenario = self._play.scenario
        whole = scenario.facts.problem.limits
        added = () if scenario.new is None else (scenario.new.job,)
        for job in (*scenario.facts.problem.jobs, *added):
            own = job.problem.limits
            spans = self._play.shared.used.get(job.id, [])
            if own.budget_gpu_s < whole.budget_gpu_s:
                parts = scenario.facts.parts
                used = sum((one.until - one.since) * one.gpus for one in spans) / parts
                away = sum(self._out_of_reach_s(one) * one.gpus for one in spans) / parts
                allowed = own.budget_gpu_s * scenario.promised_to_jobs + away
                if used > allowed + EPSILON_S:
                    self.broken(f"{job.id} has taken {used:.1f} GPU-seconds of {allowed:.1f}")
            if own.deadline_s < whole.deadline_s:
                for one in spans:
                    reached_s = one.until - one.since - self._out_of_reach_s(one)
                    late_s = one.until - self._out_of_reach_s(one) - own.deadline_s
                    if late_s > 0 and reached_s > EPSILON_S:  # orders that waited come all at once
                        self.broken(
                            f"{job.id} ran on {one.instance} until "
                            f"{one.until - own.deadline_s:.1f}s after its own deadline"
                        )

    def _out_of_reach_s(self, used: Used) -> float:
        """For how long of this time nobody could have stopped it, and what that then needs."""
        host = self._play.hosts[used.instance]
        spans = [*host.hung, *host.cuts, *self._play.coordinator.absent]
        spans += [
            (max(began, since), min(resumed, until + AGAIN_S))
            for began, resumed in self._resumes
            for name in NO_EC2
            for since, until in self._play.chance.spans(name)
            if since < resumed and began < until + AGAIN_S
        ]
        spans += [] if host.vanished_at is None else [(host.vanished_at, used.until)]
        away = merged([(since, until + AFTER_HANGING_S) for since, until in spans])
        return overlap_s([(used.since, used.until)], away)

    def _it_can_be_replayed(self) -> None:
        path = self._play.folder / "journal.db"
        if not path.exists():
            return
        try:
            with Journal.open(path, read_only=True) as journal:
                replay(journal)
        except SeerdError as error:
            self.broken(f"it cannot be replayed: {error}")


def overlap_s(some: list[tuple[float, float]], others: list[tuple[float, float]]) -> float:
    """Seconds that are in both."""
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in some for b in others)


def merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same moments, none of them twice."""
    found: list[tuple[float, float]] = []
    for since, until in sorted(spans):
        if found and since <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], until))
        else:
            found.append((since, until))
    return found


def _before(end: float, spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(since, min(until, end)) for since, until in spans if since < end]
