"""Who has which GPUs of this machine (`seerd machines`): only locks that are held count."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Optional

from seerd.agent.gpu_leases import LeaseFolder, RunHere, folder_path, in_order, pools


def report() -> Dict[str, Any]:
    """Return this machine's runs, and GPUs that a run has counted. Raises `LeaseFolderError`."""
    path = folder_path()
    if not os.path.lexists(path):
        return {"now": time.time(), "gpus": [], "runs": []}
    folder = LeaseFolder(path)
    runs = folder.runs(dead=True)
    holders = folder.holders(runs)
    folder.close()
    shown = [run for run in runs if run.lives or run in holders.values()]
    shown.sort(key=lambda run: (run.since, run.run))
    leases = in_order(sorted(holders.keys() | pools([run for run in shown if run.lives])))
    return {
        "now": time.time(),
        "gpus": [_gpu(name, name in holders, holders.get(name)) for name in leases],
        "runs": [_run(run, list(holders.values()).count(run)) for run in shown],
    }


def _gpu(name: str, held: bool, run: Optional[RunHere]) -> Dict[str, Any]:
    use = run.uses[name] if run is not None else None
    trial, _, attempt = use.attempt.rpartition("/") if use is not None else ("", "", "")
    return {
        "gpu": name,
        "held": held,
        "run": None if run is None else run.run,
        "user": None if run is None else run.user,
        "trial": trial or None,
        "attempt": int(attempt) if attempt.isdecimal() else None,
        "since": None if use is None else use.since,
    }


def _run(run: RunHere, gpus: int) -> Dict[str, Any]:
    return {
        "run": run.run,
        "user": run.user,
        "weight": run.weight,
        "gpus": gpus,
        "most": run.most,
        "wants": run.wants,
        "since": run.since,
        "lives": run.lives,
    }
