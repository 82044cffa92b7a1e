"""A study in a storage of Optuna's; its trials are found again by the attribute `seerd:trial`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from seerd.errors import UsageError
from seerd.export.tracked import Became, Tracked, tracked, values_of
from seerd.planner.parameter import Parameter
from seerd.planner.trial_ids import job_of
from seerd.telling.configs import scalar
from seerd.telling.explanation.timeline import RunHistory

TRIAL, STATE, WHY = "seerd:trial", "seerd:state", "seerd:why"
MOST_AT_ONCE = 1000  # so many trials are added in one transaction: others may write in between


class ToOptuna:
    """A run's study in a storage, one for each job. Raises `UsageError` if `where` is no URL."""

    def __init__(self, where: str) -> None:
        if "://" not in where:
            raise UsageError(f"optuna needs the URL of a storage: sqlite:///{where}")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._storage: Any = optuna.storages.RDBStorage(where)
        self._studies: dict[str, _Study] = {}

    def bring(self, run: RunHistory) -> None:
        """Add what is not there yet. Raises what Optuna raises."""
        trials = tracked(run)
        for job in run.state.jobs:
            study = self._studies.get(job) or _Study(self._storage, job, run)
            self._studies[job] = study
            study.bring([one for one in trials if job_of(one.name) == job], run)

    def close(self) -> None:
        """Nothing is held back."""


class _Study:
    """The study of a run, or of one of its jobs."""

    def __init__(self, storage: Any, job: str, run: RunHistory) -> None:
        self._storage = storage
        self._job = job
        self._trials: dict[str, Any] = {}
        self._sent: dict[str, tuple[Any, ...]] = {}
        self._study = self._find(run)

    def bring(self, trials: Sequence[Tracked], run: RunHistory) -> None:
        news = [one for one in trials if self._sent.get(one.name) != _progress(one)]
        for trial in news:
            if trial.name in self._trials:
                self._go_on(self._trials[trial.name], trial, run)
                self._sent[trial.name] = _progress(trial)
        self._add([one for one in news if one.name not in self._trials], run)
        self._tell_run(run)

    def _find(self, run: RunHistory) -> int:
        import optuna

        facts, goal = run.state.facts, run.state.facts.goals[self._job]
        name = f"{facts.run}.{self._job}" if self._job else facts.run
        optuna.create_study(
            storage=self._storage,
            study_name=name,
            direction="maximize" if goal.mode == "max" else "minimize",
            load_if_exists=True,
        )
        study = int(self._storage.get_study_id_from_name(name))
        self._storage.set_study_user_attr(study, "seerd:metric", goal.metric)
        for frozen in self._storage.get_all_trials(study):
            self._trials[frozen.user_attrs.get(TRIAL, "")] = frozen
        return study

    def _add(self, trials: Sequence[Tracked], run: RunHistory) -> None:
        problem = run.state.facts.problem
        own = (job.problem for job in problem.jobs if job.id == self._job)
        ranges = {one.name: _distribution(one) for one in next(own, problem).space.parameters}
        for first in range(0, len(trials), MOST_AT_ONCE):
            some = trials[first : first + MOST_AT_ONCE]
            frozen = [_frozen(trial, ranges, run) for trial in some]
            ids = add_trials(self._storage.engine, self._study, frozen)
            for trial, one, number in zip(some, frozen, ids, strict=True):
                one._trial_id = number  # noqa: SLF001 - the only name
                self._trials[trial.name] = one
                self._sent[trial.name] = _progress(trial)

    def _go_on(self, frozen: Any, trial: Tracked, run: RunHistory) -> None:
        """Add to a trial; one that is finished in the study stays as it is."""
        if frozen.state.is_finished():
            return
        number, steps = frozen._trial_id, frozen.intermediate_values  # noqa: SLF001 - the only name
        for step, value in _intermediate(trial.name, run).items():
            if step not in steps:
                self._storage.set_trial_intermediate_value(number, step, value)
                steps[step] = value
        state = _state(trial.became)
        if state.is_finished():
            for key, text in ((STATE, trial.state), (WHY, trial.why)):
                self._storage.set_trial_user_attr(number, key, text)
            best = _value(trial)
            self._storage.set_trial_state_values(number, state, None if best is None else [best])
            frozen.state = state

    def _tell_run(self, run: RunHistory) -> None:
        state = run.state
        published = state.result.of_jobs.get(self._job)
        status = state.end.status or "running"
        handed_back = published.incumbent.trial if published else ""
        if self._sent.get("") != (status, handed_back):
            for key, value in (("seerd:status", status), ("seerd:handed_back", handed_back)):
                self._storage.set_study_user_attr(self._study, key, value)
            self._sent[""] = (status, handed_back)


def _progress(trial: Tracked) -> tuple[Any, ...]:
    """Return what makes a trial worth telling again when it changes."""
    return trial.reports, trial.became


def _frozen(trial: Tracked, ranges: Mapping[str, Any], run: RunHistory) -> Any:
    from optuna.trial import create_trial

    state = _state(trial.became)
    known = {name: one for name, one in ranges.items() if name in trial.config}
    about = {STATE: trial.state, WHY: trial.why}
    frozen: Any = create_trial(
        state=state,
        value=_value(trial),
        params={name: scalar(trial.config[name]) for name in known},
        distributions=known,
        user_attrs={TRIAL: trial.name, **(about if state.is_finished() else {})},
        intermediate_values=_intermediate(trial.name, run),
    )
    frozen.datetime_start = datetime.fromtimestamp(trial.started)  # noqa: DTZ006 - as Optuna's
    if state.is_finished():
        ended = trial.started if trial.ended is None else trial.ended
        frozen.datetime_complete = datetime.fromtimestamp(ended)  # noqa: DTZ006
    return frozen


def _value(trial: Tracked) -> float | None:
    """Return the best report; Optuna has no value of others."""
    return trial.best if trial.became in ("complete", "pruned") else None


def _state(became: Became) -> Any:
    from optuna.trial import TrialState

    return {
        "live": TrialState.RUNNING,
        "complete": TrialState.COMPLETE,
        "pruned": TrialState.PRUNED,
        "failed": TrialState.FAIL,
    }[became]


def _intermediate(trial: str, run: RunHistory) -> dict[int, float]:
    """Return the metric that it is compared by, by report; NaN where it was not finite."""
    own = run.state.facts.goal_of(trial).metric
    return {one.step: one.metrics.get(own, math.nan) for one in values_of(run, trial)}


def _distribution(parameter: Parameter) -> Any:
    """Return the range, or the choices, in which Optuna plots the values."""
    from optuna import distributions as d

    if parameter.choices:
        return d.CategoricalDistribution(tuple(map(scalar, parameter.choices)))
    low, high, log = parameter.low, parameter.high, parameter.log
    if parameter.integer:
        return d.IntDistribution(math.ceil(low), math.floor(high), log=log)
    return d.FloatDistribution(low, high, log=log)


def add_trials(engine: Any, study: int, trials: Sequence[Any]) -> list[int]:
    """Add trials (Optuna's `FrozenTrial`s) in one transaction; return their ids, in order.

    Raises what SQLAlchemy raises; then none of them is there.
    """
    from optuna.storages._rdb import models
    from sqlalchemy import func, insert, select
    from sqlalchemy.orm import Session

    with Session(engine) as session, session.begin():
        # Whoever adds trials holds the study, so that their numbers follow each other.
        models.StudyModel.find_or_raise_by_id(study, session, for_update=True)
        made: list[Any] = [
            models.TrialModel(
                study_id=study,
                number=None,
                state=one.state,
                datetime_start=one.datetime_start,
                datetime_complete=one.datetime_complete,
            )
            for one in trials
        ]
        session.add_all(made)
        session.flush()
        ids = [one.trial_id for one in made]
        earlier = models.TrialModel.study_id == study, models.TrialModel.trial_id < min(ids)
        first = session.scalar(select(func.count()).where(*earlier)) or 0
        for number, row in enumerate(sorted(made, key=lambda one: one.trial_id), first):
            row.number = number
        for model, rows in _beside(models, ids, trials).items():
            if rows:
                session.execute(insert(model), rows)
    return ids


def _beside(models: Any, ids: Sequence[int], trials: Sequence[Any]) -> dict[Any, list[Any]]:
    from optuna.distributions import distribution_to_json

    values, reports = models.TrialValueModel, models.TrialIntermediateValueModel
    params, attributes = models.TrialParamModel, models.TrialUserAttributeModel
    found: dict[Any, list[Any]] = {params: [], values: [], reports: [], attributes: []}
    written: dict[int, str] = {}
    for trial, one in zip(ids, trials, strict=True):
        for name, value in one.params.items():
            range_ = one.distributions[name]
            text = written.get(id(range_)) or distribution_to_json(range_)
            written[id(range_)] = text
            number = range_.to_internal_repr(value)
            row = {"param_name": name, "param_value": number, "distribution_json": text}
            found[params].append({"trial_id": trial, **row})
        if one.value is not None:
            stored, kind = values.value_to_stored_repr(one.value)
            row = {"objective": 0, "value": stored, "value_type": kind}
            found[values].append({"trial_id": trial, **row})
        for step, value in one.intermediate_values.items():
            stored, kind = reports.intermediate_value_to_stored_repr(value)
            row = {"intermediate_value": stored, "intermediate_value_type": kind}
            found[reports].append({"trial_id": trial, "step": step, **row})
        for key, value in one.user_attrs.items():
            row = {"key": key, "value_json": json.dumps(value)}
            found[attributes].append({"trial_id": trial, **row})
    return found
