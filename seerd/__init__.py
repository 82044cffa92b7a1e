"""seerd: elastic hyperparameter tuning under a deadline and a budget.

In a training script: `trial = seerd.trial()`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seerd.training.data import Batch
    from seerd.training.trial import Trial, trial

__all__ = ["Batch", "Trial", "trial"]


def __getattr__(name: str) -> Any:
    """Import the training side only when a script asks for it: the agent and the command line do
    not.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from seerd.training import trial as side

    return getattr(side, name)
