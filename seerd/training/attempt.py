"""The files in `$SEERD_DIR`: what the agent says about this attempt, and what it is told."""

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
        """Return how good these metrics are, the more the better; None if the metric that counts is
        not finite.
        """
        value = metrics.get(self.metric)
        return -value if value is not None and self.mode == "min" else value

    def constrained(self) -> List[str]:
        """Name the metrics on which there are constraints."""
        return [text.split()[0] for text in self.constraints]

    def allows(self, metrics: Dict[str, Optional[float]]) -> bool:
        """Tell whether all constraints hold for these metrics (`manifest.allows`)."""
        return allows(self.constraints, metrics)

    def tell(self, kind: str, **fields: Any) -> None:
        """Append a line for the agent to `out.jsonl`, in one write."""
        now = {"at": time.time(), "since_boot": since_boot()}
        line = json.dumps({"kind": kind, **now, **fields}) + "\n"
        with open(self.folder / "out.jsonl", "ab", buffering=0) as out:
            out.write(line.encode())

    def ends_at(self) -> Optional[float]:
        """Read when training ends, as the agent knows it (seconds since the boot); None: it does
        not say.
        """
        try:
            horizon = json.loads((self.folder / "horizon.json").read_text())
            return float(horizon["ends_since_boot"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def is_to_stop(self) -> bool:
        """Tell whether the agent wants the trial to save and leave, or has died."""
        return (self.folder / "stop").exists() or self.is_alone()

    def is_alone(self) -> bool:
        """Tell whether the agent has died, so that nobody would stop this trial."""
        return _is_free(os.environ.get("SEERD_AGENT_LOCK"))

    def is_to_save(self) -> bool:
        """Tell whether the agent wants the trial to save now and go on; True once for each time."""
        try:
            (self.folder / "save").unlink()
        except OSError:
            return False
        return True

    def mark_as_left(self) -> None:
        """Create the file `stop`, as the agent does when it wants the trial to leave.

        The agents of an attempt on several instances see by it that the trial has not come to its
        own end, since only one of them may have been told to stop it.
        """
        (self.folder / "stop").touch()


def since_boot() -> float:
    """Return the seconds since this machine's boot, suspends included: nobody sets this clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def mean_of(values: List[Optional[float]]) -> Optional[float]:
    """Return the mean of these values, at least one; None if it is not finite or one of them was
    not (None).
    """
    finite = [value for value in values if value is not None]
    try:
        # `sum` may round the mean of equal values away from them.
        return math.fsum(finite) / len(values) if len(finite) == len(values) else None
    except OverflowError:
        return None


def _is_free(lock: Optional[str]) -> bool:
    """Tell whether nobody holds the agent's lock. Then the agent has died, and nobody would stop
    this trial.
    """
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
