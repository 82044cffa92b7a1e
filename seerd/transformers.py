"""For scripts with transformers' `Trainer`: `seerd.transformers.Callback` (extra
`transformers`).
"""

from seerd.training.for_transformers import Callback

__all__ = ["Callback"]
