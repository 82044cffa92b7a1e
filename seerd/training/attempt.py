"""The files in `$SEERD_DIR`: what the agent tells this attempt, and what the attempt reports."""

import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

from seerd.agent.manifest import allows

try:
    import fcntl
except ImportError:  # not on Windows, where no agent runs either
    fcntl = None  # type: ignore[assignment]


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
    max_reports: Optional[int]  # reports of a whole training; None: not known
    smooth: int  # checkpoints are compared by the mean of so many last reports
    constraints: List[str]  # what must hold of a model that is to be the best: "metric < number"
    learns: bool  # whether the agent wants to know what was imported

    @classmethod
    def read(cls, folder: Path) -> "Attempt":
        """Read `trial.json` in this folder."""
        body = json.loads((folder / "trial.json").read_text())
        same = ("trial", "config", "metric", "mode", "seed", "gpus", "allocations")
        values = {name: body[name] for name in same}
        checkpoints = Path(body["checkpoints"])
        return cls(
            folder,
            checkpoints=checkpoints,
            every_s=body["checkpoint_every_s"],
            max_reports=body.get("max_reports"),
            smooth=body.get("smooth", 1),
            constraints=body.get("constraints", []),
            learns=body.get("learns", False),
            **values,
        )

    def worth(self, metrics: Dict[str, Optional[float]]) -> Optional[float]:
        """Return how good these metrics are, more is better; None if the one that counts is not
        finite.
        """
        value = metrics.get(self.metric)
        return -value if value is not None and self.mode == "min" else value

    def constrained(self) -> List[str]:
        """Name the metrics on which there are constraints."""
        return [text.split()[0] for text in self.constraints]

    def allows(self, metrics: Dict[str, Optional[float]]) -> bool:
        """Return whether all constraints hold for these metrics (`manifest.allows`)."""
        return allows(self.constraints, metrics)

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
        """Return whether the agent has died (its lock is free), so that nobody would stop this
        trial.
        """
        return _is_free(os.environ.get("SEERD_AGENT_LOCK"))

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


def mean_of(values: List[Optional[float]]) -> Optional[float]:
    """Return the mean of at least one value; None if it, or one of them, is not finite (None)."""
    finite = [value for value in values if value is not None]
    try:
        # `sum` may round the mean of equal values away from them.
        return math.fsum(finite) / len(values) if len(finite) == len(values) else None
    except OverflowError:
        return None


def _is_free(lock: Optional[str]) -> bool:
    if lock is None or fcntl is None:
        return False
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
