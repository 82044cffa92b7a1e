"""A study in a storage of Optuna's; its trials are found again by the attribute `seerd:trial`.

A trial is added once it has settled: Optuna's trials do not change after they have ended.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from seerd.errors import UsageError
from seerd.export.tracked import Became, Tracked, Tracker, values_of
from seerd.planner.parameter import Parameter
from seerd.planner.trial_ids import job_of
from seerd.telling.explanation.timeline import RunHistory
from seerd.telling.front import front_of
from seerd.telling.harmless import scalar

TRIAL = "seerd:trial"
STATES: dict[Became, str] = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}


class ToOptuna(Tracker):
    """A run's study in a storage, one for each job. Raises `UsageError` if `where` is no URL."""

    def __init__(self, where: str) -> None:
        super().__init__()
        if "://" not in where:
            raise UsageError(f"optuna needs the URL of a storage: sqlite:///{where}")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._storage: Any = optuna.storages.RDBStorage(where)
        self._studies: dict[str, Any] = {}
        self._there: set[str] = set()  # trials that a study has

    def open(self, run: RunHistory) -> None:
        """Find the studies, or make them."""
        import optuna

        facts = run.state.facts
        for job in (job for job in run.state.jobs if job not in self._studies):
            study: Any = optuna.create_study(
                storage=self._storage,
                study_name=f"{facts.run}.{job}" if job else facts.run,
                direction="maximize" if facts.goals[job].mode == "max" else "minimize",
                load_if_exists=True,
            )
            study.set_user_attr("seerd:metric", facts.goals[job].metric)
            self._there |= {one.user_attrs.get(TRIAL, "") for one in study.get_trials(False)}
            self._studies[job] = study

    def add(self, trial: Tracked, run: RunHistory) -> None:
        """Add a trial that goes on no more."""
        if trial.became == "live" or trial.name in self._there:
            return
        from optuna.trial import TrialState, create_trial

        job, problem = job_of(trial.name), run.state.facts.problem
        own = (one.problem for one in problem.jobs if one.id == job)
        ranges = {one.name: _distribution(one) for one in next(own, problem).space.parameters}
        known = {name: one for name, one in ranges.items() if name in trial.config}
        metric = run.state.facts.goals[job].metric
        frozen: Any = create_trial(
            state=TrialState[STATES[trial.became]],
            value=None if trial.became == "failed" else trial.best,
            params={name: scalar(trial.config[name]) for name in known},
            distributions=known,
            user_attrs={TRIAL: trial.name, "seerd:state": trial.state, "seerd:why": trial.why},
            intermediate_values={
                one.step: one.metrics.get(metric, math.nan) for one in values_of(run, trial.name)
            },
        )
        ended = trial.started if trial.ended is None else trial.ended
        # Optuna's times are local and have no zone.
        frozen.datetime_start = datetime.fromtimestamp(trial.started)  # noqa: DTZ006
        frozen.datetime_complete = datetime.fromtimestamp(ended)  # noqa: DTZ006
        self._studies[job].add_trial(frozen)
        self._there.add(trial.name)

    def conclude(self, run: RunHistory) -> None:
        """Write how the run stands, and whose model is the result."""
        for job, study in self._studies.items():
            published = run.state.result.of_jobs.get(job)
            if front := [point.trial.id for point in front_of(run.state, job)]:
                study.set_user_attr("seerd:front", front)
            study.set_user_attr("seerd:status", run.state.end.status or "running")
            study.set_user_attr("seerd:handed_back", published.incumbent.trial if published else "")


def _distribution(parameter: Parameter) -> Any:
    from optuna import distributions as d

    if parameter.choices:
        return d.CategoricalDistribution(tuple(map(scalar, parameter.choices)))
    low, high, log = parameter.low, parameter.high, parameter.log
    if parameter.integer:
        return d.IntDistribution(math.ceil(low), math.floor(high), log=log)
    return d.FloatDistribution(low, high, log=log)
