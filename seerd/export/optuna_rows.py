"""Trials as rows of a storage of Optuna's, many in one transaction: Optuna itself commits each by
itself, and asks the database before each of its values.

The one rule: the tables are those of the installed Optuna, by its own models, which have checked
the storage when it was opened.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def add(engine: Any, study: int, trials: Sequence[Any]) -> list[int]:
    """Add trials to a study in one transaction, and return their ids, in order.

    engine  SQLAlchemy's, of the storage
    trials  Optuna's `FrozenTrial`s, at least one

    Raises what SQLAlchemy raises; then none of them is there.
    """
    from optuna.storages._rdb import models
    from sqlalchemy import func, insert, select
    from sqlalchemy.orm import Session

    with Session(engine) as session, session.begin():
        # Whoever adds trials holds the study, so that their numbers follow each other.
        models.StudyModel.find_or_raise_by_id(study, session, for_update=True)
        made = [_row_of(models, study, one) for one in trials]
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


def _row_of(models: Any, study: int, one: Any) -> Any:
    return models.TrialModel(
        study_id=study,
        number=None,
        state=one.state,
        datetime_start=one.datetime_start,
        datetime_complete=one.datetime_complete,
    )


def _beside(models: Any, ids: Sequence[int], trials: Sequence[Any]) -> dict[Any, list[Any]]:
    """Return what the other tables have of these trials: model -> rows."""
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
