"""seerd: elastic hyperparameter tuning under a deadline and a budget.

In a training script: `trial = seerd.trial()`. In a notebook, or a script that tunes:
`run = seerd.run("spec.toml", deadline="30m", budget="60gpu-min")`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seerd.api.handle import Best, Run, load
    from seerd.api.running import run, run_async
    from seerd.training.data import Batch
    from seerd.training.trial import Trial, trial

__all__ = ["Batch", "Best", "Run", "Trial", "load", "run", "run_async", "trial"]
# modules of seerd's that need no import of their own: `seerd.transformers.Callback`
MODULES = ("errors", "lightning", "transformers")
TRAINING = ("Batch", "Trial", "trial")


def __getattr__(name: str) -> Any:
    """Import on use: a training script needs no planner, the agent and the command line neither."""
    if name in MODULES:
        return importlib.import_module(f"seerd.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in TRAINING:
        from seerd.training import trial as side

        return getattr(side, name)
    try:
        api = importlib.import_module("seerd.api")
    except ModuleNotFoundError as error:
        if error.name != "seerd.api":
            raise
        # What travels to machines is the training side alone.
        message = f"seerd.{name} is not for trials: a run cannot be begun in a trial of another"
        raise AttributeError(message) from None
    return getattr(api, name)
