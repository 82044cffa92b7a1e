"""The `config.json` beside a published model: where it comes from, and how it was made. Keys are
only ever added; scripts read them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seerd.agent.manifest import Manifest
from seerd.errors import StoreError
from seerd.planner.parameter import plain
from seerd.stores.base import Store
from seerd.version import VERSION


@dataclass(frozen=True, slots=True)
class Model:
    """A published model."""

    run: str  # the run that made it
    trial: str  # the trial that saved it
    config: Mapping[str, Any]  # the trial's value of each hyperparameter
    seed: int  # seed of the trial's random numbers
    reports: int  # how many reports the trial had made
    metric_name: str  # name of the metric by which it is the best
    metric: float  # that metric, which may be the mean of the last reports


async def manifest_of(store: Store, trial: str, name: str) -> Manifest | None:
    """Read the manifest of a checkpoint that was just fetched, or None: the model is worth more."""
    try:
        return await store.manifest(trial, name)
    except StoreError:
        return None


def write_card(to: Path, model: Model, manifest: Manifest | None) -> None:
    """Write what is known of the model as JSON. Raises `OSError`."""
    metrics = {} if manifest is None else manifest.metrics
    card = {
        "trial": model.trial,
        "config": plain(model.config),
        "metric": model.metric,
        "run": model.run,
        "seed": model.seed,
        "reports": model.reports,
        "metric_name": model.metric_name,
        "metrics": {**metrics, model.metric_name: model.metric},
        "versions": {**({} if manifest is None else manifest.versions), "seerd": VERSION},
    }
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(json.dumps(card, indent=2) + "\n")
