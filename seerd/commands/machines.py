"""`seerd machines`: who has which GPUs, on this machine or on those of a spec."""

from __future__ import annotations

import asyncio

from seerd.backends.backend import GpuUse
from seerd.backends.by_name import by_name
from seerd.commands.common import tell
from seerd.commands.options import SpecOptions
from seerd.runs import clusters
from seerd.spec.clusters import CLUSTERS
from seerd.telling.plan_json import Json
from seerd.telling.tables import machines_table


def machines(options: SpecOptions | None, *, json: bool) -> None:
    """Print who has which GPUs. A machine that cannot be asked is shown with the reason. Raises
    `UsageError` for a spec whose instances are rented, `SpecError` for one that cannot be read.
    """
    local = by_name("local")
    backend = local(CLUSTERS["local"]()) if options is None else clusters.of(options.load())
    rows = [_row(use) for use in asyncio.run(backend.gpu_use())]
    tell({"machines": rows}, machines_table, json=json)


def _row(use: GpuUse) -> Json:
    if use.report is not None:
        try:
            now = float(use.report["now"])
            for row in [*use.report["gpus"], *use.report["runs"]]:
                since = row.pop("since")
                row["for_s"] = None if since is None else round(max(0.0, now - float(since)), 3)
        except (KeyError, TypeError, ValueError) as error:
            return _row(GpuUse(use.machine, why=str(error)))
    report = use.report or {"gpus": [], "runs": []}
    return {"machine": use.machine, "gpus": report["gpus"], "runs": report["runs"], "why": use.why}
