"""Weights & Biases: a run for each trial, in one group, kept for `wandb sync` or sent at once.

A file says which reports are there. W&B drops a step that is not larger than the last.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from seerd.export.tracked import Tracked, Tracker, values_of
from seerd.planner.parameter import plain
from seerd.telling.explanation.timeline import RunHistory

SETTLED = "settled"


class ToWandb(Tracker):
    """The runs of W&B's that trials of one run are."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._folder = Path(where)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._open: dict[str, Any] = {}
        # trial -> the last report that is there, or `SETTLED`; None: the file was not read yet
        self._last: dict[str, int | str] | None = None

    def bring(self, run: RunHistory) -> None:
        """Add what is not there yet, and keep in the file what is there then."""
        file = self._folder / f"seerd-{run.state.facts.run}.json"
        if self._last is None:
            self._last = json.loads(file.read_text()) if file.exists() else {}
        before = dict(self._last)
        super().bring(run)
        if self._last != before:
            part = file.with_suffix(".part")
            part.write_text(json.dumps(self._last))
            part.replace(file)

    def add(self, trial: Tracked, run: RunHistory) -> None:
        """Add a trial's reports after the last."""
        assert self._last is not None
        last, settled = self._last.get(trial.name, -1), trial.became != "live"
        if last == SETTLED or (trial.reports <= int(last) and not settled):
            return
        if trial.name not in self._open:
            import wandb

            facts = run.state.facts
            quiet = wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                x_disable_meta=True,
            )
            self._open[trial.name] = wandb.init(
                project=facts.name,
                group=facts.run,
                id=f"{facts.run}-{trial.name}",
                name=trial.name,
                config=plain(trial.config),
                dir=self._folder,
                mode=os.environ.get("WANDB_MODE") or "offline",  # type: ignore[arg-type]
                resume="allow",
                reinit="create_new",
                settings=quiet,
            )
        made = self._open[trial.name]
        for report in values_of(run, trial.name, int(last)):
            made.log({**report.metrics, "_timestamp": report.at}, step=report.step)
        self._last[trial.name] = trial.reports
        if settled:
            made.summary.update({"seerd.state": trial.state, "seerd.why": trial.why})
            self._open.pop(trial.name).finish(exit_code=int(trial.became == "failed"))
            self._last[trial.name] = SETTLED

    def close(self) -> None:
        """Write what is still open, of trials that go on."""
        for made in self._open.values():
            made.finish()
        self._open.clear()
