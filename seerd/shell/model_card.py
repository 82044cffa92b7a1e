"""The `config.json` beside a published model: where it comes from, and how it was made. Keys are
only ever added; scripts read them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seerd.core.state import Incumbent, Trial
from seerd.errors import StoreError
from seerd.planner.parameter import plain
from seerd.stores.base import Store
from seerd.version import VERSION

CARD = "config.json"  # its name


async def write_card(
    to: Path, store: Store, run: str, trial: Trial, best: Incumbent, metric_name: str
) -> None:
    """Write what is known of a model that was just fetched as JSON. Raises `OSError`. What only its
    manifest says is left out if that cannot be read: the model is worth more.
    """
    metrics: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    with contextlib.suppress(StoreError):
        manifest = await store.manifest(best.trial, best.checkpoint.name)
        metrics, versions = manifest.metrics, manifest.versions
    report = best.metric, best.checkpoint.reports
    card = card_of(run, trial, report, metric_name, metrics, versions)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(card)  # noqa: ASYNC240 - it is short


def card_of(
    run: str,
    trial: Trial,
    report: tuple[float | None, int],
    metric_name: str,
    metrics: Mapping[str, float | None],
    versions: Mapping[str, str],
) -> str:
    """Return the text of a `config.json`. `report`: metric and number of the last report."""
    metric, reports = report
    card = {
        "trial": trial.id,
        "config": plain(trial.config),
        "metric": metric,
        "run": run,
        "seed": trial.seed,
        "reports": reports,
        "metric_name": metric_name,
        "metrics": {**metrics, metric_name: metric},
        "versions": {**versions, "seerd": VERSION},
    }
    return json.dumps(card, indent=2) + "\n"
