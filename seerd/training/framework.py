"""A trial whose training loop is a framework's, which saves into folders of its own
(`seerd.transformers`, `seerd.lightning`).

The one rule: the framework saves when asked, at a moment from which it can go on.
"""

import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Optional

from seerd.agent import folders
from seerd.agent.progress_marks import SAVING
from seerd.training import checkpoints
from seerd.training.saver import Saver
from seerd.training.trial import Trial

BY_HAND = Path("out")
SKIPPED = ("training_args.bin",)  # readable only by running code in it, and not needed to go on
PICKLED = (".pt", ".pth", ".bin", ".ckpt")


class Framework:
    """A framework's side of `trial`."""

    def __init__(self, trial: Trial) -> None:
        """Take over the trial. Raises `RuntimeError` for a checkpoint of `trial.track()`."""
        if trial.epoch > 0 and trial.checkpoint is None:
            raise RuntimeError(
                "the checkpoint to go on from was saved by trial.track(), so a callback cannot "
                "read it: begin a new run"
            )
        trial._framework = True
        self.trial = trial
        attempt = trial._attempt
        # whether the script was started without seerd, so that nothing is saved
        self.by_hand = attempt is None
        self.folder = attempt.folder / "saves" if attempt else BY_HAND  # where it may save
        self.leaves = False  # whether the trial is to leave
        # when the framework was asked to save, seconds of the monotonic clock; None: it was not
        self._began: Optional[float] = None
        if trial.checkpoint is not None:
            _check(trial._torch, trial.checkpoint)

    def look(self) -> bool:
        """Agree with all ranks whether to leave (`leaves`); return whether to save now. If so, the
        framework saves on every rank, and then calls `keep`.
        """
        trial = self.trial
        if trial._over:
            return False
        leave, due = trial._agree()
        self.leaves = self.leaves or leave
        if (leave or due) and trial._is_unsaved():
            trial._mark.turn(SAVING)
            self._began = time.monotonic()
            return True
        trial._go_on(leave)
        return False

    def keep(self, folder: Path, *, removes: bool) -> None:
        """Make a checkpoint of what all ranks have saved in this folder; `removes`: nothing else
        needs the folder. Raises `RuntimeError` if it is the first one and could not be read without
        running code.
        """
        trial = self.trial
        if trial._is_unsaved():
            trial._ranks.gather(None)  # all have written their part
            if trial._saver is not None:
                self._keep(trial._saver, folder, removes=removes)
            trial._saved_state = trial._state_id()
        if removes and trial._saver is not None:
            shutil.rmtree(folder, ignore_errors=True)
        trial._go_on(self.leaves)

    def _keep(self, saver: Saver, folder: Path, *, removes: bool) -> None:
        attempt = self.trial._attempt
        assert attempt is not None
        for name in SKIPPED:
            (folder / name).unlink(missing_ok=True)
        if not checkpoints.every(attempt.checkpoints):
            _check(self.trial._torch, folder)
        if why := folders.links_out(folder):
            attempt.tell("warning", why=why)
        about, save = self.trial._described()
        began, self._began = self._began or time.monotonic(), None
        if not removes or self.leaves:
            saver.write(save, partial(checkpoints.pack, folder, about), began)
            return
        saver.settle()
        kept = folder.rename(folder.with_name(f".{save.name}"))

        def dump(out: checkpoints.Flushed) -> None:
            checkpoints.pack(kept, about, out)
            shutil.rmtree(kept, ignore_errors=True)

        save.pause_s = time.monotonic() - began
        saver.write_behind(save, dump)

    def report(self, metrics: Dict[str, Any]) -> None:
        """Report the numbers among these, unless the trial leaves: it will come to this again."""
        numbers: Dict[str, float] = {}
        for name, value in metrics.items():
            try:
                numbers[name] = float(value)
            except (TypeError, ValueError):
                continue
        if not self.leaves:
            self.trial.report(**numbers)


def _check(torch: Any, folder: Path) -> None:
    """Raise `RuntimeError` if a file in this folder could be read only by running code in it."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in PICKLED and path.is_file():
            try:
                with torch.serialization.safe_globals(_arrays()):
                    torch.load(path, map_location="cpu", weights_only=True)
            except Exception as error:
                why = str(error).strip().splitlines()
                raise RuntimeError(
                    f"{path.name} of the checkpoint cannot be loaded without running code in it, "
                    f"which seerd refuses (weights_only): {why[0] if why else error!r}"
                ) from None


def _arrays() -> List[Any]:
    try:
        import numpy as np
        from numpy import dtypes
    except ImportError:
        return []
    multiarray: Optional[Any] = getattr(np, "_core", None) or getattr(np, "core", None)
    made = getattr(multiarray, "multiarray", None)
    kinds = [getattr(dtypes, name) for name in dir(dtypes) if name.endswith("DType")]
    return [np.ndarray, np.dtype, *kinds, *([made._reconstruct] if made else [])]
