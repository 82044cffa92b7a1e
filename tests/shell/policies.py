"""Plan functions for tests of the policy's process, imported there: one that tells all that it
sees, and ill-behaved ones.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from seerd.planner.memory import Memory
from seerd.planner.model import Allocation, NewTrial, Plan, Problem, View

SLEEPS, RAISES, KILLS_ITSELF, EXITS, PRINTS, STUBBORN, FILLS, BABBLES, TELLS, HAS_CHILD = range(
    1, 11
)
"""What `moody` does, by the time at which it is asked."""
FILLED = 1 << 20


def seen(view: View) -> str:
    """Everything that a view has."""
    trials = [
        (
            key,
            one.id,
            one.status,
            one.reports,
            one.metric,
            [(r.at_s, r.reports, r.metric) for r in one.history],
        )
        for key, one in view.trials.items()
    ]
    return repr((view.now_s, view.mode, trials))


def plain(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
    """Wants the live trials, best first, and a new one; remembers how often it was asked. Its note
    is all that it has seen.
    """
    asked = int(memory.values.get("asked", 0)) + 1
    live = [one for one in view.trials.values() if one.status == "live"]
    best = sorted(live, key=lambda one: (-(one.metric or 0.0), one.id))
    plan = Plan(
        tuple(Allocation(one.id, 1 + one.reports % 2, until=one.reports + 1) for one in best),
        new=(NewTrial(f"t{len(view.trials):04}", {"lr": asked / 3}),),
        ask_at_s=view.now_s + problem.limits.deadline_s / 7,
        note=f"{sorted(memory.values.items())} {seen(view)}",
    )
    return plan, memory.after({"asked": asked, "last": [one.id for one in best[:2]]})


def moody(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
    """As the time says; otherwise as `plain`."""
    MOODS.get(int(view.now_s), lambda memory: None)(memory)
    filler = "x" * FILLED if view.now_s == FILLS else None
    plan, after = plain(problem, memory, view)
    return (plan, after) if filler is None else (plan, Memory(after.values, {"filler": filler}))


def mistaken(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
    """Names a trial that there is not, until it is asked again. Its note is what it remembers."""
    allocations = (Allocation("nobody", 1),) if view.now_s < 1.0 else ()
    plan = Plan(allocations, ask_at_s=view.now_s + 9.0, note=f"remembers {dict(memory.values)}")
    return plan, memory.after({"asked": True})


def no_json(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
    """Remembers what a journal cannot keep."""
    return Plan(ask_at_s=view.now_s + 9.0), memory.after({"least": float("nan")})


def watching(problem: Problem, memory: Memory, view: View) -> tuple[Plan, Memory]:
    """Wants to be asked after its only trial's first report, and again a little later. Its note is
    how many there are.
    """
    told = [one.reports for one in view.trials.values()]
    new = () if told else (NewTrial("t0001", {"lr": 0.5}),)
    ask_at_s = view.now_s + 0.3 if told else None
    allocation = Allocation("t0001", 1, until=1)
    return Plan((allocation,), new, ask_at_s=ask_at_s, note=f"reports: {told}"), memory


def _sleep(memory: Memory) -> None:
    time.sleep(3600)


def _raise(memory: Memory) -> None:
    raise ArithmeticError("it does not add up")


def _kill_itself(memory: Memory) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _exit(memory: Memory) -> None:
    sys.exit(3)


def _print(memory: Memory) -> None:
    print("x" * FILLED)
    os.write(1, b"y" * FILLED)
    subprocess.run(["echo", "z"], check=True)
    assert sys.stdin.read() == ""


def _stubborn(memory: Memory) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    while True:
        pass


def _babble(memory: Memory) -> None:
    """Whoever wants to can still write there."""
    for descriptor in range(3, 20):
        with contextlib.suppress(OSError):
            os.write(descriptor, b"\0\0\0\3\xc1\xc1\xc1")


def _tell(memory: Memory) -> None:
    """Who it is; then it thinks for ever."""
    with open(str(memory.values["pipe"]), "w") as pipe:
        pipe.write(str(os.getpid()))
    while True:
        pass


def _have_child(memory: Memory) -> None:
    child = subprocess.Popen(["sleep", "3600"])
    with open(str(memory.values["pipe"]), "w") as pipe:
        pipe.write(str(child.pid))
    time.sleep(3600)


MOODS: dict[int, Callable[[Memory], None]] = {
    SLEEPS: _sleep,
    RAISES: _raise,
    KILLS_ITSELF: _kill_itself,
    EXITS: _exit,
    PRINTS: _print,
    STUBBORN: _stubborn,
    BABBLES: _babble,
    TELLS: _tell,
    HAS_CHILD: _have_child,
}
