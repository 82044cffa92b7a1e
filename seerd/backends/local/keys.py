"""The keys of `[cluster]` with `provider = "local"`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from seerd.spec import values as v
from seerd.spec.keys import BackendKeys, setting


@dataclass(frozen=True)
class LocalKeys(BackendKeys):
    """This machine."""

    provider: ClassVar = "local"
    here: ClassVar = True
    # CUDA devices, or CPU slots, that trials get; None: what the machine has
    gpus: int | None = setting(v.whole(1), default=None)
    weight: float = setting(v.weight, default=1.0)  # the run's share beside other runs


KEYS = LocalKeys
