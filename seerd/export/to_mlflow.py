"""MLflow: a run for the run, and one below it for each trial.

Runs are found again by the tags `seerd.run` and `seerd.trial`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import islice
from typing import Any

from seerd.export.tracked import Became, Tracked, Tracker, is_over, values_of
from seerd.planner.trial_ids import job_of
from seerd.telling.explanation.timeline import RunHistory
from seerd.telling.harmless import scalar

RUN, TRIAL, JOB = "seerd.run", "seerd.trial", "seerd.job"
STATUS: dict[Became, str] = {
    "live": "RUNNING",
    "complete": "FINISHED",
    "pruned": "KILLED",
    "failed": "FAILED",
}
MOST_METRICS = 1000  # of one request (mlflow.org/docs/latest/rest-api.html, log batch)
DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}
"""MLflow's own defaults would let the user wait for minutes, and print and send too much."""


class ToMlflow(Tracker):
    """What a tracking server, or a database of MLflow's, has of one run."""

    def __init__(self, where: str) -> None:
        super().__init__()
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        self._client: Any = MlflowClient(where)
        self._parent = ""  # id of MLflow's run of the run
        self._experiment = ""
        self._runs: dict[str, str] = {}  # trial -> id of its run
        self._last: dict[str, dict[str, int]] = {}  # trial -> metric -> its last step that is there

    def open(self, run: RunHistory) -> None:
        """Find the experiment and the runs in it, or make the experiment and the run of the run."""
        if self._parent:
            return
        facts = run.state.facts
        experiment = self._client.get_experiment_by_name(facts.name)
        experiment = (
            experiment.experiment_id if experiment else self._client.create_experiment(facts.name)
        )
        self._experiment = str(experiment)
        where = [self._experiment], f"tags.`{RUN}` = '{facts.run}'"
        page = self._client.search_runs(*where)
        runs = list(page)
        while page.token:
            page = self._client.search_runs(*where, page_token=page.token)
            runs += page
        tags = [(one.data.tags.get(TRIAL), one.info.run_id) for one in reversed(runs)]
        self._runs = {trial: run_id for trial, run_id in tags if trial is not None}
        parents = [run_id for trial, run_id in tags if trial is None]
        if parents:
            self._parent = parents[-1]
            return
        limits = facts.problem.limits
        params = {
            "policy": facts.problem.params.name,
            "deadline_s": limits.deadline_s,
            "budget_gpu_min": limits.budget_gpu_s / 60,
        }
        parent = self._made(facts.run, run.began, {RUN: facts.run})
        self._client.log_batch(parent, params=_params(params))
        self._parent = parent

    def _made(self, name: str, began: float, tags: dict[str, str]) -> str:
        at = _milliseconds(began)
        made = self._client.create_run(self._experiment, at, tags, run_name=name)
        return str(made.info.run_id)

    def add(self, trial: Tracked, run: RunHistory) -> None:
        """Add what is not there yet of a trial."""
        from mlflow.entities import Metric

        if trial.name not in self._runs:
            tags = {RUN: run.state.facts.run, TRIAL: trial.name, "mlflow.parentRunId": self._parent}
            tags |= {JOB: job} if (job := job_of(trial.name)) else {}
            self._runs[trial.name] = self._made(trial.name, trial.started, tags)
            self._last[trial.name] = {}
        id_ = self._runs[trial.name]
        if trial.name not in self._last:
            self._last[trial.name] = {
                name: max(one.step for one in self._client.get_metric_history(id_, name))
                for name in self._client.get_run(id_).data.metrics
            }
        # What was logged with the same value before is left as it is.
        params, tags = _params(trial.config), {"seerd.state": trial.state, "seerd.why": trial.why}
        tags |= {} if trial.front is None else {"seerd.front": str(trial.front).lower()}
        self._client.log_batch(id_, params=params, tags=_tags(tags))
        last = dict(self._last[trial.name])
        metrics = (
            Metric(key, value, _milliseconds(report.at), report.step)
            for report in values_of(run, trial.name, min(last.values(), default=-1))
            for name, value in report.metrics.items()
            if report.step > last.get(key := _key(name), -1)
        )
        while some := list(islice(metrics, MOST_METRICS)):
            self._client.log_batch(id_, metrics=some)
            self._last[trial.name].update((one.key, one.step) for one in some)
        before = self._brought.get(trial.name)
        if before is None or before[-1] != trial.became:
            self._end(id_, STATUS[trial.became], trial.ended)

    def conclude(self, run: RunHistory) -> None:
        """Write how the run stands, and whose models are the result."""
        state, of_jobs = run.state, run.state.result.of_jobs
        models = ", ".join(of_jobs[job].incumbent.trial for job in state.jobs if job in of_jobs)
        tags = {"seerd.state": state.end.status or "running", "seerd.handed_back": models}
        self._client.log_batch(self._parent, tags=_tags(tags))
        ended = "FINISHED" if models else "FAILED"
        self._end(self._parent, ended if is_over(state) else "RUNNING", run.began + state.now)

    def _end(self, id_: str, status: str, at: float | None) -> None:
        if status == "RUNNING" or at is None:
            self._client.update_run(id_, status=status)
        else:
            self._client.set_terminated(id_, status, _milliseconds(at))


def _key(name: str) -> str:
    return re.sub(r"[^\w\-. /:]", "_", name)


def _milliseconds(at: float) -> int:
    return round(at * 1000)


def _params(values: Any) -> list[Any]:
    from mlflow.entities import Param

    return [Param(_key(name), str(scalar(value))) for name, value in values.items()]


def _tags(values: dict[str, str]) -> Iterable[Any]:
    from mlflow.entities import RunTag

    return [RunTag(name, value) for name, value in values.items()]
