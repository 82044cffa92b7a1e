"""The files in `$SEERD_DIR`: what the agent tells this attempt, and what the attempt reports."""

import contextlib
import json
import math
import os
import sys
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Dict, List, Optional

from seerd.agent.manifest import Comparison, allows
from seerd.agent.plainfile import is_locked

INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class Attempt:
    """One attempt of a trial (`trial.json`)."""

    folder: Path  # where its files are (`$SEERD_DIR`)
    trial: str
    config: Dict[str, Any]  # its hyperparameters
    metric: str  # what `report()` must be given
    mode: str  # whether more ("max") or less ("min") of it is better
    seed: int  # the trial's own
    gpus: int  # GPUs, or CPU slots, of this attempt
    allocations: List[int]  # numbers of GPUs that an attempt of this trial may get
    checkpoints: Path  # the folder of checkpoints
    every_s: float  # seconds from one checkpoint to the next
    max_reports: Optional[int] = None  # reports of a whole training; None: not known
    smooth: int = 1  # checkpoints are compared by the mean of so many last reports
    # what must hold of a model that is to be the best: "metric < number"
    constraints: List[str] = field(default_factory=list)
    learns: bool = False  # whether the agent wants to know what was imported

    @classmethod
    def read(cls, folder: Path) -> "Attempt":
        """Read `trial.json` in this folder."""
        body = json.loads((folder / "trial.json").read_text())
        body["checkpoints"] = Path(body["checkpoints"])
        body["every_s"], body["folder"] = body["checkpoint_every_s"], folder
        return cls(**{each.name: body[each.name] for each in fields(cls) if each.name in body})

    @property
    def goal(self) -> Comparison:
        """How its checkpoints are compared."""
        return Comparison(self.metric, self.mode)

    def constrained(self) -> List[str]:
        """Name the metrics on which there are constraints."""
        return [text.split()[0] for text in self.constraints]

    def recent(
        self, before: List[Optional[float]], metrics: Dict[str, Optional[float]]
    ) -> List[Optional[float]]:
        """Return the values that a checkpoint's metric is made of (`aggregate`), so that all who
        compare checkpoints agree: the last `smooth`, None where a constraint is violated.
        """
        value = metrics[self.metric] if allows(self.constraints, metrics) else None
        return [*before, value][-self.smooth :]

    def tell(self, kind: str, **fields: Any) -> None:
        """Append a line for the agent to `out.jsonl`, in one write."""
        now = {"at": time.time(), "since_boot": since_boot()}
        line = json.dumps({"kind": kind, **now, **fields}) + "\n"
        with open(self.folder / "out.jsonl", "ab", buffering=0) as out:
            out.write(line.encode())

    def ends_at(self) -> Optional[float]:
        """Read when training ends, in seconds since the boot; None: the agent does not say."""
        try:
            horizon = json.loads((self.folder / "horizon.json").read_text())
            return float(horizon["ends_since_boot"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def is_to_stop(self) -> bool:
        """Return whether the agent wants the trial to save and leave, or has died."""
        return (self.folder / "stop").exists() or self.is_alone()

    def is_alone(self) -> bool:
        """Return whether the agent has died (its lock is free), so nobody would stop this trial."""
        lock = os.environ.get("SEERD_AGENT_LOCK")
        return lock is not None and not is_locked(Path(lock))

    def is_to_save(self) -> bool:
        """Return whether the agent wants a save now; True once for each request."""
        try:
            (self.folder / "save").unlink()
        except OSError:
            return False
        return True

    def mark_as_left(self) -> None:
        """Create the file `stop`, as the agent does. The agents of an attempt on several instances
        see by it that the trial did not end by itself, since only one of them may have been asked
        to stop it.
        """
        (self.folder / "stop").touch()


def since_boot() -> float:
    """Return the seconds since this machine's boot, suspends included: nobody sets this clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def aggregate(values: List[Optional[float]]) -> Optional[float]:
    """Return the mean of at least one value; None if it, or one of them, is not finite (None)."""
    finite = [value for value in values if value is not None]
    try:
        # `sum` may round the mean of equal values away from them.
        return math.fsum(finite) / len(values) if len(finite) == len(values) else None
    except OverflowError:
        return None


def write_imports(folder: Path) -> None:
    """Write `modules.json`, from which the agent starts later trials (`seerd/agent/warm`): the
    modules that are not the job's own, in the order of their import, and the environment variables
    changed since the process began (Linux).
    """
    part = folder / ".modules.json"
    own = [os.path.realpath(path) for path in {os.getcwd(), sys.path[0]}]
    modules = [name for name, module in list(sys.modules.items()) if _is_others(module, own)]
    changed: List[str] = []
    with contextlib.suppress(OSError):
        shown = Path("/proc/self/environ").read_bytes().split(b"\0")
        began = dict(os.fsdecode(entry).split("=", 1) for entry in shown if b"=" in entry)
        changed = sorted({name for name, _ in began.items() ^ os.environ.items()})
    part.write_text(json.dumps({"modules": modules, "changed": changed}))
    os.replace(part, folder / "modules.json")


def _is_others(module: Any, own: List[str]) -> bool:
    spec = getattr(module, "__spec__", None)
    if spec is None or not spec.has_location:
        return False
    path = os.path.realpath(spec.origin)
    if any(part in INSTALLED for part in Path(path).parts):
        return True
    return not any(os.path.commonpath([path, folder]) == folder for folder in own)
