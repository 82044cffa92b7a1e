"""For training scripts with transformers' `Trainer`: `seerd.transformers.Callback`
(`pip install '.[transformers]'`).
"""

from seerd.training.for_transformers import Callback

__all__ = ["Callback"]
