"""A run, to be looked at: `seerd.load`, and what `seerd.run` returns. It returns what the command
of the same name prints, read anew each time.
"""

from __future__ import annotations

import functools
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from seerd.agent import folders
from seerd.api import notebook, worker
from seerd.api.notebook import Axis, Chart, NotebookView, frame_of, in_a_notebook
from seerd.commands import best as best_command
from seerd.commands.common import home_of
from seerd.commands.report import RunReader
from seerd.commands.running import ask_to_stop
from seerd.core.state import State
from seerd.errors import UsageError
from seerd.export import rows
from seerd.export.rows import Rows
from seerd.extras import installing
from seerd.shell.home import RunFolder
from seerd.telling import run_json
from seerd.telling.harmless import Harmless
from seerd.telling.page import charts, tables
from seerd.telling.page.importance import CAPTION, FEWEST, importances
from seerd.telling.page.run_page import RunReport
from seerd.telling.plain import watch_run
from seerd.telling.summary import summary

if TYPE_CHECKING:
    import pandas as pd


def load(
    run: str | os.PathLike[str] = "last", *, home: str | os.PathLike[str] | None = None
) -> Run:
    """Open a run, over or not.

    Args:
        run: its id, the beginning of its id, "last", or the path of its folder.
        home: the folder of all runs; None: SEERD_HOME, or the XDG state folder.

    Returns:
        The run, read anew whenever it is asked for something.

    Raises:
        seerd.errors.UsageError: there is no such run.

    Example:
        >>> seerd.load("last").state
        'done'
    """
    if isinstance(run, str) and os.sep not in run:
        return Run(home_of(home).find(run))
    folder = RunFolder(Path(run).expanduser().resolve())
    if not folder.is_one:
        raise UsageError(f"there is no run in {folder.path}")
    return Run(folder)


@dataclass(frozen=True)
class Best:
    """The best model of a run; while the run goes on, the best so far. If its script saves none by
    design, it is the best configuration, which has no files.

    trial    the trial that has trained it
    config   its value of each hyperparameter
    metric   the value of the spec's metric that makes it the best
    metrics  everything that was reported last before it was saved

    Example:
        >>> sorted(run.best.config)
        ['lr']
    """

    trial: str
    config: dict[str, Any]
    metric: float
    metrics: dict[str, float | None]
    _folder: RunFolder = field(repr=False)
    _state: State = field(repr=False)
    _job: str = field(repr=False)

    @property
    def path(self) -> Path:
        """The folder with `checkpoint.pt` and `config.json`, as `seerd best --to` makes it.

        It is the run's own where the model is there. Otherwise the model is copied into a temporary
        folder, removed at exit.

        Raises:
            seerd.errors.NoModelError: the run has a configuration and no model.
        """
        own = self._folder.best / self._job
        if self._job in self._state.result.of_jobs and not folders.is_packed(own / "checkpoint.pt"):
            return own
        _scratch.append(tempfile.TemporaryDirectory(prefix="seerd-best-"))
        return self.to(_scratch[-1].name)

    def to(self, folder: str | os.PathLike[str]) -> Path:
        """Copy the model into a folder, as `seerd best --to` does.

        Args:
            folder: where the files go; it is made if it is missing.

        Returns:
            The folder.

        Raises:
            seerd.errors.NoModelError: the run has a configuration and no model.
            seerd.errors.UsageError: the folder has other files.
            seerd.errors.StoreError: the store does not give the model.
        """
        to = Path(folder)
        pool = ThreadPoolExecutor(1)  # it runs an event loop, and in notebooks one runs here
        try:
            pool.submit(
                functools.partial(best_command.taken, need_model=True),
                *(self._folder, self._state, to, self._job or None),
            ).result()
        finally:
            pool.shutdown(wait=False)  # Ctrl-C does not wait for the work
        return to


class Run:
    """A run, as `seerd.run` and `seerd.load` return it.

    In a notebook it shows itself: limits, best trials and learning curves.

    Example:
        >>> run = seerd.load("last")
        >>> run.best.to("model").name
        'model'
        >>> len(run.trials()) == run.result["trials"]
        True
        >>> run.curves(by="reports").save("curves.svg").name
        'curves.svg'
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._reader = RunReader(folder)

    @property
    def id(self) -> str:
        """Its id, the name of its folder."""
        return self._folder.run

    @property
    def path(self) -> Path:
        """Its folder."""
        return self._folder.path

    @property
    def state(self) -> str:
        """How it ended, in one word of `seerd list --json`; "running"; or "stopped" if no process
        runs it and it can be resumed.
        """
        return self._reader.read().status

    @property
    def best(self) -> Best:
        """Its best model; where jobs share the run, that of the only job that has one. Of a script
        that saves none by design, its best configuration.

        Raises:
            seerd.errors.NoModelError: there is none, with the reason.
            seerd.errors.UsageError: several jobs have one: see `best_of`.
        """
        return self.best_of(None)

    def best_of(self, job: str | None) -> Best:
        """Return the best model of one of the jobs that share the run.

        Args:
            job: the id of the job; None: the only one that has a model.

        Returns:
            Its best model.

        Raises:
            seerd.errors.NoModelError: the job has none.
            seerd.errors.UsageError: there is no such job.
        """
        state = self._reader.read().state
        model = best_command.known(self._folder, state, job)
        shown = {key: model[key] for key in ("trial", "config", "metric", "metrics")}
        return Best(**shown, _folder=self._folder, _state=state, _job=model.get("job", ""))

    @property
    def result(self) -> dict[str, Any]:
        """What `seerd run --json` ends with: what it took of its limits, and the best model."""
        read = self._reader.read()
        return run_json.result(read.state, read.status)

    def trials(self) -> pd.DataFrame:
        """Return what was tried, and what came of it. Needs `seerd[notebook]`.

        Returns:
            A row for each trial; docs/export.md has the columns of this and of the other tables.
        """
        return _frame(rows.trials(self._reader.history()))

    def reports(self) -> pd.DataFrame:
        """Return what trials reported. Needs `seerd[notebook]`.

        Returns:
            A row for each report: its trial, when it was made, and its metrics.
        """
        return _frame(rows.reports(self._reader.history()))

    def ledger(self) -> pd.DataFrame:
        """Return what was billed; `result` has the sums. Needs `seerd[notebook]`.

        Returns:
            A row for each charge: when, how much, and for what.
        """
        return _frame(rows.charges(self._reader.history()))

    def report(self) -> Page:
        """Return the page of `seerd report`; a notebook shows it. Needs `seerd[report]`."""
        return Page(RunReport(self._reader.read()).page())

    def curves(self, metric: str | None = None, by: Axis = "time") -> Chart:
        """Draw learning curves, the best trials with their names. Needs `seerd[report]`.

        Args:
            metric: one of the metrics that were reported; None: the run's own.
            by: "time", "reports" or "gpu_time".

        Returns:
            The picture; a notebook shows it, and `save` writes it as HTML, SVG or PNG.

        Raises:
            seerd.errors.UsageError: no trial has reported the metric.
        """
        return notebook.curves(self._reader.read(), metric, by)

    def gpus(self) -> Chart:
        """Draw which trial had which GPUs when. Needs `seerd[report]`."""
        read = self._reader.read()
        caption = "Each bar is an attempt of a trial on its GPUs; pale until it trained."
        bars, _ = tables.bars(read.timeline, read.state)
        return Chart(charts.gpus(frame_of(read), bars), caption)

    def costs(self) -> Chart:
        """Draw what was billed over time, beside budget and deadline. Needs `seerd[report]`."""
        drawn = charts.money(frame_of(self._reader.read()))
        return Chart(drawn, "What was billed, beside the budget and the deadline.")

    def importance(self) -> Chart:
        """Draw how much each hyperparameter explains, with its uncertainty. Needs `seerd[report]`.

        Returns:
            The picture.

        Raises:
            seerd.errors.UsageError: too few trials have reported to say.
        """
        read = self._reader.read()
        frame = frame_of(read)
        shares = importances(frame.order, tables.varied(read.state))
        if not shares:
            raise UsageError(f"importance needs {FEWEST} trials with reports, which differ")
        return Chart(charts.importance(frame, shares), CAPTION)

    def configurations(self) -> Chart:
        """Draw configurations as lines, the best with colour and dash. Needs `seerd[report]`."""
        read = self._reader.read()
        varied = tables.varied(read.state)
        if not varied:
            raise UsageError("there are no configurations that differ yet")
        drawn = charts.parallel(frame_of(read), varied)
        return Chart(drawn, "Configurations as lines, the best with colour and dash.")

    def stop(self) -> None:
        """End the run in order, as `seerd stop` does; it may go on for some seconds.

        Raises:
            seerd.errors.UsageError: no process runs it.
        """
        ask_to_stop(self._folder)

    def watch(self) -> None:
        """Show the run until it is over, as `seerd watch`. Ctrl-C ends the view, not the run."""
        if in_a_notebook():
            NotebookView().watch(self._folder)
        else:
            watch_run(self._folder)

    def resume(self, *, show: bool = True) -> Run:
        """Go on with a run that was interrupted, or whose process was killed, until it is over.

        Args:
            show: show the run while it goes on, as `seerd.run` does.

        Returns:
            The run.

        Raises:
            seerd.errors.UsageError: it cannot go on.
        """
        worker.wait(worker.resumed(self._folder, show=show), show=show)
        return Run(self._folder)

    async def resume_async(self, *, show: bool = True) -> Run:
        """Do what `resume` does, while the caller's event loop goes on; see `seerd.run_async`."""
        await worker.wait_async(worker.resumed(self._folder, show=show), show=show)
        return Run(self._folder)

    def __repr__(self) -> str:
        console = Console(
            width=100,
            soft_wrap=True,
            highlight=False,
            markup=False,
            emoji=False,
            force_jupyter=False,  # a notebook would show it twice
            color_system=None,  # a notebook, or FORCE_COLOR, would have codes in a text
        )
        with console.capture() as captured:
            alive = self._folder.owner() is not None
            console.print(Harmless(summary(self._reader.read().state, alive=alive, most=5)))
        return "\n".join(line.rstrip() for line in captured.get().splitlines())

    def _repr_html_(self) -> str:
        return notebook.shown(self._reader.read())


class Page:
    """The page of `seerd report`; a notebook shows it."""

    def __init__(self, html: str) -> None:
        self.html = html

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it into a file, and return that."""
        to = Path(path)
        to.write_text(self.html, encoding="utf-8")
        return to

    def __repr__(self) -> str:
        size_mb = len(self.html.encode()) / 1e6
        return f"a page of {size_mb:.1f} MB; write it with .save('report.html')"

    def _repr_html_(self) -> str:
        how = 'sandbox="allow-scripts" style="width:100%;height:80vh;border:0"'
        return f'<iframe {how} srcdoc="{escape(self.html)}"></iframe>'


_scratch: list[tempfile.TemporaryDirectory[str]] = []  # removed at exit


def _frame(table: Rows) -> pd.DataFrame:
    """Return a table of `seerd export`; missing is NaN. Raises `UsageError` without pandas."""
    try:
        import pandas as pd
    except ImportError as error:
        needed = installing("notebook")
        raise UsageError(f"data frames need one more package: {needed}") from error
    return pd.DataFrame(table.columns(), columns=list(table.names))
