"""Real runs on this machine with drawn sizes and loads, measured from outside: whether each has
ended by its deadline, and with a model; prints JSON.

`python bench/deadline.py [--runs 500] [--parallel 3] [--seed 0] [--shortest 8] [--busy 10]
[--minutes 38] [--only NUMBER...]` makes so many runs, of which so many go on at a time, and begins
none after so many minutes; `--only` makes those of these numbers again. Each has a deadline of
`--shortest` to 30 s, most of them short, a source with anything from nothing to some GB in it
(dense, with holes, or thousands of files), checkpoints of 1 KB to 1 GB by a script that does not
know seerd or by `seerd.trial()`, and up to `--busy` busy processes beside it: as many as the run
wants that wants most of those that go on. Every fifth (`--twins`) with something large in its
source is run once more without it, right after. Ctrl-C and SIGTERM end it when those that go on are
over, with what was measured by then. It needs 20 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from seerd.core.metrics import incumbent
from seerd.core.state import State
from seerd.runs import reading
from seerd.shell.home import RunFolder

SEERD = str(Path(sys.executable).parent / "seerd")
MOST_S = 1.0
"""Seconds past the deadline that a process may take to be gone."""
BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
"""It ends with the benchmark, however that ends."""
KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
COMMON = """
metric = {{ name = "accuracy", mode = "max" }}
[train]
script = "{kind}.py"
launcher = "python"
env = {{ SIZE = "{size}", UNITS = "{units}" }}
{more}
[space]
lr = {{ low = 1e-3, high = 1.0, log = true }}
[policy]
p_max = 1
t_min = "4s"
seed = {seed}
"""
MORE = {
    "unknown": """args = ["--lr", "{lr}"]
report = 'accuracy ([0-9.]+)'
checkpoint = "out/last.bin"
resume = ["--resume", "{checkpoint}"]""",
    "known": "",
}
SCRIPTS = {
    "unknown": """
import os, sys, time
size, lr = int(os.environ["SIZE"]), float(sys.argv[sys.argv.index("--lr") + 1])
block, epoch = os.urandom(1 << 16), 0
if "--resume" in sys.argv:
    epoch = int.from_bytes(open(sys.argv[-1], "rb").read(8), "little")
os.makedirs("out", exist_ok=True)
while True:
    time.sleep(0.2)
    epoch += 1
    open(os.environ["UNITS"], "a").write("u")
    print(f"accuracy {(1 - 0.9 ** epoch) * (1 - abs(lr - 0.1)):.4f}", flush=True)
    if epoch % 5 == 1:
        with open("out/.part", "wb") as out:
            out.write(epoch.to_bytes(8, "little"))
            for at in range(0, size, len(block)):
                out.write(block[: size - at])
        os.replace("out/.part", "out/last.bin")
""",
    "known": """
import os, time, torch, seerd
trial = seerd.trial()
class Model:
    weights = torch.ones(int(os.environ["SIZE"]) // 4)
    def state_dict(self): return {"weights": self.weights}
    def load_state_dict(self, state): self.weights = state["weights"]
trial.track(model=Model())
while trial.running():
    time.sleep(0.2)
    open(os.environ["UNITS"], "a").write("u")
    trial.report(accuracy=(1 - 0.9 ** (trial.epoch + 1)) * (1 - abs(trial.config["lr"] - 0.1)))
""",
}


@dataclass(frozen=True)
class Drawn:
    """A run.

    kind      of script: whether it imports seerd ("known") or not
    size      bytes of a checkpoint
    source    what is large in the source: "nothing", "holes", "dense", "files"
    extent    bytes of that, or thousands of files
    busy      busy processes beside it
    """

    number: int
    deadline_s: float
    kind: str
    size: int
    source: str
    extent: int
    busy: int


@dataclass(frozen=True)
class Seen:
    """What became of a run.

    over_s    seconds from its deadline until its process had ended; less than 0: before
    status    its exit status
    lost      whether a save was complete when it began to end, and it handed back no model
    has_model whether it handed one back
    units     units of work that its trials did
    refused   what it said if nothing was started
    """

    drawn: Drawn
    over_s: float
    status: int
    lost: bool
    has_model: bool
    units: int
    refused: str


def draw(number: int, asked: argparse.Namespace) -> Drawn:
    """The run with this number."""
    rng = random.Random(f"deadline {asked.seed} {number}")
    source = rng.choice(["nothing", "nothing", "holes", "dense", "files"])
    extent = {
        "nothing": 0,
        "holes": int(GB * 10 ** rng.uniform(0, 1.3)),
        "dense": int(10 * MB * 10 ** rng.uniform(0, 2.5)),
        "files": int(100 * 10 ** rng.uniform(0, 2)),
    }[source]
    kind = rng.choice(["unknown", "unknown", "known"])
    return Drawn(
        number,
        round(asked.shortest + (30 - asked.shortest) * rng.random() ** 3, 1),
        kind,
        int(KB * 10 ** rng.uniform(0, 6)),
        source,
        extent,
        min(asked.busy, rng.choice([0, 0, 1, 2, 4, 6, 10])),
    )


class Load:
    """Busy processes: as many as the run needs that needs most of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: list[int] = []
        self._there: list[subprocess.Popen[bytes]] = []

    def change(self, wanted: int, *, end: bool = False) -> None:
        """Begin or end a run that needs so many."""
        with self._lock:
            self._wanted.remove(wanted) if end else self._wanted.append(wanted)
            most = max(self._wanted, default=0)
            while len(self._there) < most:
                self._there.append(subprocess.Popen([sys.executable, "-c", BUSY]))
            while len(self._there) > most:
                process = self._there.pop()
                process.kill()
                process.wait()


def seen(drawn: Drawn, load: Load, top: Path) -> Seen:
    """Run it."""
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=top))
    project, home = folder / "project", folder / "home"
    project.mkdir()
    (project / f"{drawn.kind}.py").write_text(SCRIPTS[drawn.kind])
    units, more = folder / "units", MORE[drawn.kind]
    spec = COMMON.format(
        kind=drawn.kind, size=drawn.size, units=units, more=more, seed=drawn.number
    )
    (project / "spec.toml").write_text(spec)
    fill(project / "data", drawn)
    command = [SEERD, "run", "spec.toml", "--plain", "--budget", "10gpu-min"]
    command += ["--deadline", f"{drawn.deadline_s}s", "--set", "cluster.gpus=2"]
    environment = {**os.environ, "SEERD_HOME": str(home)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # nobody waits for compilers in each run
    load.change(drawn.busy)
    try:
        began = time.monotonic()
        ended = subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True, check=False
        )
        over_s = time.monotonic() - began - drawn.deadline_s
    finally:
        load.change(drawn.busy, end=True)
    runs = [RunFolder(path) for path in home.iterdir()] if home.is_dir() else []
    state = reading.read(runs[0]) if runs and runs[0].journal.exists() else None
    has_model = bool(runs) and (runs[0].best / "checkpoint.pt").exists()
    refused = ended.stderr.partition("nothing was started: ")[2].partition("\n")[0]
    found = Seen(
        *(drawn, round(over_s, 2), ended.returncode),
        lost=not has_model and state is not None and was_saved(state),
        has_model=has_model,
        units=units.stat().st_size if units.exists() else 0,
        refused=refused,
    )
    if over_s > MOST_S or found.lost or ended.returncode not in (0, 3, 4):
        print(f"{found}\n{ended.stdout[-3000:]}{ended.stderr[-1000:]}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)  # what is refused is still being removed
    return found


def was_saved(state: State) -> bool:
    """Return whether the run knew of a model when it began to end."""
    return incumbent(state) is not None


def fill(data: Path, drawn: Drawn) -> None:
    """Put what is large into the source."""
    if drawn.source == "files":
        for number in range(drawn.extent):
            path = data / str(number // 500) / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x" * 1000)
    elif drawn.source != "nothing":
        data.mkdir()
        with (data / "data.bin").open("wb") as file:
            block = os.urandom(MB)
            for _ in range(drawn.extent // MB if drawn.source == "dense" else 1):
                file.write(block)
            file.truncate(drawn.extent)
            os.fsync(file.fileno())


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser()
    defaults = {"runs": 500, "parallel": 3, "seed": 0, "shortest": 8, "busy": 10, "twins": 5}
    for name, value in {**defaults, "minutes": 38}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--only", type=int, nargs="+")
    asked = parser.parse_args()
    load, over = Load(), threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    end_s = time.monotonic() + 60 * asked.minutes
    with tempfile.TemporaryDirectory(prefix="seerd-deadline-") as top:

        def one(number: int) -> tuple[Seen, Seen | None] | None:
            if over.is_set() or time.monotonic() > end_s:
                return None
            drawn = draw(number, asked)
            found, twin = seen(drawn, load, Path(top)), None
            if drawn.source != "nothing" and not found.refused and number % asked.twins == 0:
                twin = seen(replace(drawn, source="nothing", extent=0), load, Path(top))
            return found, twin

        with ThreadPoolExecutor(asked.parallel) as crew:
            pairs = [pair for pair in crew.map(one, asked.only or range(asked.runs)) if pair]
    print(json.dumps(told(pairs)))


def told(pairs: list[tuple[Seen, Seen | None]]) -> dict[str, object]:
    """Sum up."""
    every = [run for pair in pairs for run in pair if run is not None]
    began = [run for run in every if not run.refused]
    over_s = sorted(run.over_s for run in every)
    shares = [run.units / twin.units for run, twin in pairs if twin is not None and twin.units]
    late = [run for run in every if run.over_s > MOST_S]
    return {
        "runs": len(every),
        "past_the_deadline_by_more_than_1s": len(late),
        "latest_s": {at: over_s[int(len(over_s) * at / 100)] for at in (50, 90, 99)}
        | {100: over_s[-1]}
        if over_s
        else {},
        "refused_before_the_start": {
            "the copy takes too long": sum("copying" in run.refused for run in every),
            "the deadline is too short": sum(
                bool(run.refused) and "copying" not in run.refused for run in every
            ),
        },
        "began": len(began),
        "models": sum(run.has_model for run in began),
        "no_model_though_saved": sum(run.lost for run in began),
        "no_model_and_nothing_saved": sum(not run.has_model and not run.lost for run in began),
        "training_beside_the_same_without_the_large_file": {
            "pairs": len(shares),
            "median": round(statistics.median(shares), 2) if shares else None,
            "below_80_percent": sum(share < 0.8 for share in shares),
        },
        "late": [str(run) for run in late],
        "nearest": [str(run) for run in sorted(every, key=lambda run: -run.over_s)[:5]],
        "less_training": [
            f"{run.units} of {twin.units} units: {run.drawn}"
            for run, twin in pairs
            if twin is not None and run.units < 0.8 * twin.units
        ],
    }


if __name__ == "__main__":
    main()
