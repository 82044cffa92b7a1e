"""A study in a storage of Optuna's; its trials are found again by the attribute `seerd:trial`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from seerd.errors import UsageError
from seerd.export.tracked import Became, Tracked, Tracker, tracked, values_of
from seerd.planner.parameter import Parameter
from seerd.planner.trial_ids import job_of
from seerd.telling.explanation.timeline import RunHistory
from seerd.telling.harmless import scalar

TRIAL, STATE, WHY = "seerd:trial", "seerd:state", "seerd:why"
STATES: dict[Became, str] = {
    "live": "RUNNING",
    "complete": "COMPLETE",
    "pruned": "PRUNED",
    "failed": "FAIL",
}


class ToOptuna(Tracker):
    """A run's study in a storage, one for each job. Raises `UsageError` if `where` is no URL."""

    def __init__(self, where: str) -> None:
        if "://" not in where:
            raise UsageError(f"optuna needs the URL of a storage: sqlite:///{where}")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._storage: Any = optuna.storages.RDBStorage(where)
        self._studies: dict[str, _Study] = {}

    def bring(self, run: RunHistory) -> None:
        """Add trials, and what they have reported since."""
        trials = tracked(run)
        for job in run.state.jobs:
            study = self._studies.get(job) or _Study(self._storage, job, run)
            self._studies[job] = study
            study.bring([one for one in trials if job_of(one.name) == job], run)


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
        for trial in trials:
            frozen = _frozen(trial, ranges, run)
            number = self._storage.create_new_trial(self._study, template_trial=frozen)
            frozen._trial_id = number  # noqa: SLF001 - the only name
            self._trials[trial.name] = frozen
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

    return TrialState[STATES[became]]


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
