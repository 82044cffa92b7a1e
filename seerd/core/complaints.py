"""What agents complain of, and checkpoints that may fill the disk, in sentences for people.

The one rule: each says what happened, what was done about it, and what to do.
"""

from __future__ import annotations

from seerd.core.events import TrialComplained
from seerd.core.hints import hint
from seerd.core.state import State
from seerd.core.verdicts import Warned

SIDE = "docs/training-side.md"


def complaint_text(event: TrialComplained) -> str:
    """Write what is wrong with what a trial writes, and what to do."""
    trial, why = event.trial, event.why
    if event.what == "output":
        return f"what {trial} writes for seerd cannot be read: {why}; {SIDE} has the format"
    if event.what == "not-stored":
        full = hint("", [why], "RUN", ())
        then = full or "it is tried again"
        return f"a checkpoint of {trial} could not be stored: {why}; {then}"
    if event.what == "untracked":
        return (
            f"the checkpoints of {trial} hold no model, since nothing was given to "
            "trial.track(model=..., optimizer=...)"
        )
    return f"{trial}: {why}" if why else f"{trial}: {event.what}"


def disk_warning(state: State, trial: str) -> Warned | None:
    """Return the warning that the checkpoints to come may not fit on the disk, if that is so.

    trial  trial that has just saved

    The newest `Rules.kept_checkpoints` of each trial stay, and its best one. The warning is given
    once.
    """
    signs, saved = state.signs, state.trials[trial].checkpoints
    if signs.free is None or "disk" in signs.warned or not saved:
        return None
    each = state.rules.kept_checkpoints + state.rules.keep_best
    trials = max(len(state.trials), state.outline.trials)
    there = sum(len(one.checkpoints) for one in state.trials.values())
    size = saved[0].size
    more = size * max(0, each * trials - there)
    if more <= signs.free:
        return None
    return Warned(
        what="disk",
        detail=f"the disk may fill up: a checkpoint has {_bytes(size)}, up to {each} of each "
        f"of {trials} trials are kept, so {_bytes(more)} more may come, and "
        f"{_bytes(signs.free)} are free; free space, or name another disk in cluster.store",
    )


def _bytes(count: float) -> str:
    unit, size = ("GB", 1e9) if count >= 1e9 else ("MB", 1e6) if count >= 1e6 else ("kB", 1e3)
    return f"{count / size:.3g} {unit}"
