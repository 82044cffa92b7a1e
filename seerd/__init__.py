"""seerd: elastic hyperparameter tuning under a deadline and a budget. In a training script: `trial = seerd.trial()`."""

from seerd.trial import Batch, Trial, trial

__all__ = ["Batch", "Trial", "trial"]
