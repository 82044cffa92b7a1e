"""MLflow: a run for the run, and one below it for each trial.

Runs are found again by the tags `seerd.run` and `seerd.trial`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from seerd.export.tracked import Became, Tracked, Tracker, is_over, tracked, values_of
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
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        self._client: Any = MlflowClient(where)
        self._parent = ""
        self._experiment = ""
        self._runs: dict[str, str] = {}
        self._last: dict[str, dict[str, int]] = {}
        self._sent: dict[str, tuple[Any, ...]] = {}

    def bring(self, run: RunHistory) -> None:
        """Add what is not there yet. Raises what MLflow raises."""
        if not self._parent:
            self._find(run)
        for trial in tracked(run):
            self._bring(trial, run)
        self._tell_run(run)

    def _find(self, run: RunHistory) -> None:
        facts = run.state.facts
        experiment = self._client.get_experiment_by_name(facts.name)
        experiment = (
            experiment.experiment_id if experiment else self._client.create_experiment(facts.name)
        )
        self._experiment = str(experiment)
        runs = list(self._search(f"tags.`{RUN}` = '{facts.run}'"))
        tags = [(one.data.tags.get(TRIAL), one.info.run_id) for one in reversed(runs)]
        self._runs = {trial: run_id for trial, run_id in tags if trial is not None}
        parents = [run_id for trial, run_id in tags if trial is None]
        self._parent = parents[-1] if parents else self._made_parent(run)

    def _search(self, query: str) -> Iterator[Any]:
        token = None
        while True:
            page = self._client.search_runs([self._experiment], query, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def _made_parent(self, run: RunHistory) -> str:
        facts = run.state.facts
        limits, tags = facts.problem.limits, {RUN: facts.run}
        made = self._client.create_run(
            self._experiment, _milliseconds(run.began), tags, run_name=facts.run
        )
        params = {
            "policy": facts.problem.params.name,
            "deadline_s": limits.deadline_s,
            "budget_gpu_min": limits.budget_gpu_s / 60,
        }
        self._client.log_batch(made.info.run_id, params=_params(params))
        return str(made.info.run_id)

    def _bring(self, trial: Tracked, run: RunHistory) -> None:
        progress, before = (trial.reports, trial.state, trial.became), self._sent.get(trial.name)
        if progress == before:
            return
        if trial.name not in self._runs:
            self._runs[trial.name] = self._made(trial, run)
            self._last[trial.name] = {}
        id_ = self._runs[trial.name]
        if trial.name not in self._last:
            self._last[trial.name] = self._last_steps(id_)
        # What was logged with the same value before is left as it is.
        params, tags = _params(trial.config), {"seerd.state": trial.state, "seerd.why": trial.why}
        self._client.log_batch(id_, params=params, tags=_tags(tags))
        metrics = self._metrics(trial.name, run)
        while some := list(islice(metrics, MOST_METRICS)):
            self._client.log_batch(id_, metrics=some)
            self._last[trial.name].update((one.key, one.step) for one in some)
        if before is None or before[-1] != trial.became:
            self._end(id_, STATUS[trial.became], trial.ended)
        self._sent[trial.name] = progress

    def _made(self, trial: Tracked, run: RunHistory) -> str:
        tags = {RUN: run.state.facts.run, TRIAL: trial.name, "mlflow.parentRunId": self._parent}
        if job := job_of(trial.name):
            tags[JOB] = job
        started = _milliseconds(trial.started)
        made = self._client.create_run(self._experiment, started, tags, run_name=trial.name)
        return str(made.info.run_id)

    def _last_steps(self, id_: str) -> dict[str, int]:
        names = self._client.get_run(id_).data.metrics
        return {
            name: max(one.step for one in self._client.get_metric_history(id_, name))
            for name in names
        }

    def _metrics(self, trial: str, run: RunHistory) -> Iterator[Any]:
        from mlflow.entities import Metric

        last = dict(self._last[trial])
        for report in values_of(run, trial, min(last.values(), default=-1)):
            for name, value in report.metrics.items():
                key = _key(name)
                if report.step > last.get(key, -1):
                    yield Metric(key, value, _milliseconds(report.at), report.step)

    def _tell_run(self, run: RunHistory) -> None:
        state = run.state
        of_jobs, over = state.result.of_jobs, is_over(state)
        published = [of_jobs[job] for job in state.jobs if job in of_jobs]
        handed_back = ", ".join(one.incumbent.trial for one in published)
        status = state.end.status or "running"
        progress = (status, over, handed_back)
        if self._sent.get("") == progress:
            return
        tags = {"seerd.state": status, "seerd.handed_back": handed_back}
        self._client.log_batch(self._parent, tags=_tags(tags))
        ended = "FINISHED" if published else "FAILED"
        self._end(self._parent, ended if over else "RUNNING", run.began + state.now)
        self._sent[""] = progress

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
