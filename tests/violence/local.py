"""One real run on this machine with a hand that hurts it, carried through to its end however often
it has to be resumed.

The one rule: what the hand does is undone before it does the next thing, and whatever ends the
command, `seerd resume` is all that is tried.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.commands import run_command
from tests.violence import eyes, trace
from tests.violence.eyes import Eyes, Life
from tests.violence.ground import Ground, ground
from tests.violence.hand import Act, pick

SPEC = """
name = "job"
metric = {{ name = "accuracy", mode = "max" }}
[train]
script = "{script}"
launcher = "{launcher}"
env = {{ VIOLENCE_TRACE = "{trace}" }}
[space]
lr = {{ low = 0.0, high = 1.0 }}
[policy]
name = "seer"
eta = 2
p_max = 2
t_min = "{t_min_s}s"
seed = {seed}
[limits]
deadline = "{deadline_s}s"
budget = "{budget_gpu_s}gpu-s"
[cluster]
gpus = {gpus}
store = "{store}"
"""
TICK_S = 0.02
CLOSING_S = 8.0
MOST_RESUMES = 12
PATIENCE_S = 150.0
BEGUN, OVER, NEVER_BEGAN = ", deadline ", " is over (", "was ended before it began"


@dataclass(frozen=True, slots=True)
class Job:
    """What is run."""

    script: str
    launcher: str
    gpus: int
    t_min_s: int
    deadline_s: int
    budget_gpu_s: int
    seed: int = 0

    @property
    def open_s(self) -> float:
        """For how long it goes on, beginning included: a run is over so long before its deadline,
        or nearly.
        """
        return self.deadline_s - CLOSING_S

    def write(self, ground: Ground) -> None:
        """Its spec."""
        own = {name: getattr(self, name) for name in self.__slots__}
        own["script"] = f"./{self.script}" if self.launcher == "command" else self.script
        ground.spec.write_text(SPEC.format(**own, store=ground.store, trace=ground.trace))


QUICK = Job("traced.py", "command", gpus=8, t_min_s=10, deadline_s=40, budget_gpu_s=320)
SHORT = Job("traced.py", "command", gpus=8, t_min_s=7, deadline_s=30, budget_gpu_s=160)
TORCH = Job("traced_torch.py", "torchrun", gpus=2, t_min_s=25, deadline_s=100, budget_gpu_s=180)
ALL = {
    "kill the daemon": 3.0,
    "kill the agent": 2.0,
    "kill a process of a trial": 2.0,
    "kill everything": 1.0,
    "stop the daemon": 1.0,
    "stop the agent": 1.0,
    "stop a process of a trial": 1.0,
    "Ctrl-C": 1.0,
    "fill the home's disk": 1.0,
    "fill the store's disk": 1.0,
    "write-protect the store": 1.0,
}
"""Everything that the hand can do to a local run, and how often in relation to the rest."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something was wrong from `since` to `until`, seconds since 1970."""

    what: str
    since: float
    until: float


@dataclass(slots=True)
class Evidence:
    """All that was seen of a run. Times: seconds since 1970.

    begun     when the run's first words had been said: acts count from there, all the faster the
              longer that took
    codes     how each command ended: "run", "resume" and its exit status
    starts_s  how long each command took to its first words: how fast this machine is just now
    paused_s  from Ctrl-C to the next command: so long, and until that is up, the run's clock may
              have stood still
    hurt      how often the hand has killed a process of each trial
    told      what seerd says at the end: result, `show`, `ledger`, `replay`; empty if the run never
              began
    left      processes that still run when everything should be over
    """

    job: Job
    began: float
    begun: float = 0.0
    ended: float = 0.0
    last_begin: float = 0.0
    codes: list[tuple[str, int]] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    acts: list[str] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    paused_s: float = 0.0
    hurt: dict[str, int] = field(default_factory=dict)
    lines: list[trace.Line] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    clashes: list[str] = field(default_factory=list)
    saved: list[trace.Saved] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    left: list[str] = field(default_factory=list)
    said: str = ""
    never_began: bool = False
    was_over: bool = False


def violate(
    job: Job, acts: Sequence[Act], folder: Path, seeing: Eyes, rest_s: float = 0.5
) -> Evidence:
    """Run the job in `folder`, which must not be there, and do these things to it. `rest_s`: from a
    daemon's death to its resumption.
    """
    with ground(folder, job.script, job.gpus) as made:
        job.write(made)
        with trace.Watch(trace.directory(made.store)) as watch:
            run = _Run(job, made, rest_s)
            try:
                run.live(acts)
                run.look_back(seeing, watch)
            finally:
                run.clear()
        return run.evidence


class _Run:
    def __init__(self, job: Job, ground: Ground, rest_s: float) -> None:
        self.ground = ground
        self.evidence = Evidence(job, time.time())
        self._rest_s = rest_s
        self._log = ground.folder / "plain.log"
        self._over = False
        self._interrupted_at: float | None = None
        self._begin("run", str(ground.spec))

    # ------------------------------------------------------------ from the first command to the
    # last

    def live(self, acts: Sequence[Act]) -> None:
        """Until the run is over."""
        while not self._over and BEGUN not in self._log.read_text():
            self._wait(time.time() + TICK_S)
        evidence = self.evidence
        evidence.begun = time.time()
        for act in acts:
            if not self._wait(
                evidence.begun
                + act.at_s * (1 - (evidence.begun - evidence.began) / evidence.job.open_s)
            ):
                break
            self._do(act)
        self._wait(time.time() + PATIENCE_S)
        if not self._over:
            self.evidence.codes.append(("does not end", -999))
        self.evidence.ended = time.time()

    def _wait(self, until: float) -> bool:
        """Whether the run still goes on at that moment; if its command has ended meanwhile, it is
        resumed.
        """
        while not self._over and time.time() < until:
            if self._process.poll() is not None:
                self._after(self._process.returncode)
            elif len(self.evidence.starts_s) < len(self.evidence.codes) + 1 and self._has_spoken():
                self.evidence.starts_s.append(time.time() - self.evidence.last_begin)
            time.sleep(TICK_S)
        return not self._over

    def _after(self, code: int) -> None:
        """A command has ended: what a person would do then."""
        evidence = self.evidence
        name = "resume" if evidence.codes else "run"
        evidence.codes.append((name, code))
        said = self._log.read_text()[-500:]
        evidence.never_began = code != 0 and (NEVER_BEGAN in said or not self._has_begun())
        evidence.was_over = code == 2 and OVER in said
        if (
            code == 0
            or evidence.never_began
            or evidence.was_over
            or len(evidence.codes) > MOST_RESUMES
        ):
            self._over = True
            return
        if code not in (-signal.SIGKILL, 130) and not self._excused():
            self._over = True
            return
        time.sleep(self._rest_s)  # somebody has to come first
        if code == 130 and self._interrupted_at is not None:
            evidence.paused_s += time.time() - self._interrupted_at
            self._interrupted_at = None
        evidence.starts_s += [0.0] * (len(evidence.codes) - len(evidence.starts_s))
        self._begin("resume", "last")

    def _begin(self, *args: str) -> None:
        self.evidence.last_begin = time.time()
        self._silent_up_to = self._log.stat().st_size if self._log.exists() else 0
        self._process = self._command(*args, "--plain")

    def _has_spoken(self) -> bool:
        with self._log.open() as log:
            log.seek(self._silent_up_to)
            said = log.read()
        return BEGUN in said or "resumed;" in said

    def _has_begun(self) -> bool:
        return any(self.ground.home.glob("*/journal.db"))

    def _excused(self) -> bool:
        """The command may give up while the disk that its journal is on is full."""
        return any(
            t.what == "fill the home's disk" and time.time() - t.until < 5
            for t in self.evidence.troubles
        )

    def look_back(self, seeing: Eyes, watch: trace.Watch) -> None:
        """Collect what there is to judge."""
        evidence, home = self.evidence, self.ground.home
        evidence.left = [f"{pid} {eyes.cmdline(pid)}" for pid in eyes.of_home(home)]
        with contextlib.suppress(OSError):
            watch.look()
        evidence.saved = watch.saved
        evidence.lines = trace.read(self.ground.trace)
        evidence.said = self._log.read_text()
        runs = [path.parent.name for path in home.glob("*/journal.db")]
        for run in runs:
            evidence.lives += seeing.lives(run)
            evidence.clashes += seeing.clashes(run)
        if not evidence.never_began:
            evidence.told = {name: self._ask(name) for name in ("show", "ledger", "replay")}
            best = evidence.told["show"].get("best") or {}
            if best.get("checkpoint"):
                evidence.model = Path(best["checkpoint"]).read_text(errors="replace")

    def clear(self) -> None:
        """Nothing may outlive the test, whatever it has shown."""
        for pid in eyes.of_home(self.ground.home):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _command(self, *args: str) -> subprocess.Popen[str]:
        with self._log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-c", "from seerd import cli; cli.main()", *args],
                env=self.ground.env,
                cwd=self.ground.folder,
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _ask(self, *args: str) -> dict[str, Any]:
        told = run_command([*args, "last", "--json"], self.ground.folder, self.ground.env)
        if told.returncode:
            return {
                "failed": f"{' '.join(args)}: exit status {told.returncode}: {told.stderr[-500:]}"
            }
        answer: dict[str, Any] = json.loads(told.stdout)
        return answer

    # ------------------------------------------------------------ what the hand does

    def _do(self, act: Act) -> None:
        since = time.time()
        with self._doing(act) as done:
            if done:
                self.evidence.acts.append(f"{since - self.evidence.begun:.2f}s {act.what}")
        self.evidence.troubles.append(Trouble(act.what, since, time.time()))

    @contextlib.contextmanager
    def _doing(self, act: Act) -> Iterator[bool]:
        """Do it, and undo it. Whether there was anybody or anything to do it to."""
        verb, _, whom = act.what.partition(" ")
        if act.what == "Ctrl-C":
            self._interrupted_at = time.time()
            self._process.send_signal(signal.SIGINT)
            yield True
        elif verb in ("kill", "stop"):
            victims = self._victims(whom, act.share)
            _signal(victims, signal.SIGKILL if verb == "kill" else signal.SIGSTOP)
            yield bool(victims)
            if verb == "stop":
                time.sleep(act.for_s)
                _signal(victims, signal.SIGCONT)
        elif verb == "fill":
            disk = self.ground.home if "home" in whom else self.ground.store
            self.ground.fill(disk)
            yield True
            time.sleep(act.for_s)
            self.ground.empty(disk)
        else:
            locked = self.ground.lock_store()
            yield locked
            time.sleep(act.for_s)
            self.ground.unlock_store()

    def _victims(self, whom: str, share: float) -> list[int]:
        if whom == "the daemon":
            return [self._process.pid] if self._process.poll() is None else []
        mine = eyes.of_home(self.ground.home)
        if whom == "everything":
            return mine
        if whom == "the agent":
            return [
                pid for pid in mine if "agent.pyz" in eyes.cmdline(pid) and not _is_of_trial(pid)
            ][:1]
        chosen = pick([pid for pid in mine if _is_of_trial(pid)], share)
        for pid in chosen:
            self._note(pid)
        return chosen

    def _note(self, pid: int) -> None:
        marked = next(
            entry for entry in [*eyes.environ(pid), eyes.ATTEMPT] if entry.startswith(eyes.ATTEMPT)
        )
        name = marked.decode().partition("/")[2].partition("/")[0]
        self.evidence.hurt[name] = self.evidence.hurt.get(name, 0) + 1


def _is_of_trial(pid: int) -> bool:
    return any(entry.startswith(eyes.ATTEMPT) for entry in eyes.environ(pid))


def _signal(victims: list[int], number: signal.Signals) -> None:
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
