"""For training scripts with Lightning: `seerd.lightning.Callback` (`pip install
'.[lightning]'`).
"""

from seerd.training.for_lightning import Callback

__all__ = ["Callback"]
