"""Other tools, each by its own code, for `bench.proof.tool`: JSON lines in, JSON lines out.

It runs in an environment of its own (requirements-*.txt), and imports nothing of the project. The
tools get each numeric parameter as its place in its range, from 0 to 1 (logarithmic where it is),
and each choice as a choice. A tool may suggest any point; what is trained is the nearest recorded
configuration that was not trained yet, and where the tool can be told, it is told which it is.
All else is as the tools have it by default, but that Optuna is told that trials run side by side.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import math
import os
import sys
import time
import warnings

import numpy as np

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)


class Table:
    """The recorded configurations, as places of numbers and indexes of choices; NaN: absent."""

    def __init__(self, setup: dict) -> None:
        self.names = setup["names"]
        self.choices = setup["choices"]  # how many, for each parameter; 0: it is a number
        self.places = np.array(setup["places"], dtype=float)
        self.is_choice = np.array(self.choices) > 0
        self.left = np.ones(len(self.places), dtype=bool)

    def take(self, point: dict) -> int:
        """Return the nearest configuration that was not taken yet."""
        apart = np.abs(self.places - np.array([point[name] for name in self.names]))
        apart = np.where(self.is_choice, apart > 0, np.where(np.isnan(apart), 0.0, apart))
        apart = np.where(np.isnan(self.places), 0.0, apart)
        far = np.where(self.left, (apart**2).sum(axis=1), math.inf)
        row = int(far.argmin())
        self.left[row] = False
        return row

    def point(self, row: int, suggested: dict) -> dict:
        """Return a configuration as a point; what it lacks is as it was suggested."""
        point = dict(suggested)
        for name, count, value in zip(self.names, self.choices, self.places[row], strict=True):
            if not math.isnan(value):
                point[name] = int(value) if count else float(value)
        return point


class Optuna:
    """TPE, each trial pruned by Hyperband."""

    def __init__(self, setup: dict, table: Table) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.table, self.reports = table, setup["reports"]
        self.pruned = optuna.trial.TrialState.PRUNED
        self.trials: dict = {}
        self.study = optuna.create_study(
            study_name=f"proof {setup['seed']}",  # its hash divides trials among brackets
            direction="maximize" if setup["mode"] == "max" else "minimize",
            sampler=optuna.samplers.TPESampler(
                seed=setup["seed"], constant_liar=setup["workers"] > 1
            ),
            pruner=optuna.pruners.HyperbandPruner(min_resource=1, max_resource=self.reports),
        )

    def suggest(self) -> tuple | None:
        """Return the number of a new trial and its row; None: all rows were taken."""
        if not self.table.left.any():
            return None
        trial = self.study.ask()
        point = {
            name: trial.suggest_categorical(name, list(range(count)))
            if count
            else trial.suggest_float(name, 0.0, 1.0)
            for name, count in zip(self.table.names, self.table.choices, strict=True)
        }
        self.trials[trial.number] = trial
        return trial.number, self.table.take(point)

    def report(self, number: int, reports: int, metric: float | None) -> str:
        """Report a metric; return what becomes of the trial."""
        trial = self.trials[number]
        trial.report(math.nan if metric is None else metric, reports)
        if metric is not None and reports >= self.reports:
            self.study.tell(trial, metric)
            return "stop"
        if metric is None or trial.should_prune():
            self.study.tell(trial, state=self.pruned)
            return "stop"
        return "continue"


class SyneTune:
    """A scheduler of Syne Tune's; subclasses make it."""

    resumes = False  # whether it may resume a trial where no configuration is left

    def __init__(self, setup: dict, table: Table) -> None:
        from syne_tune.backend.trial_status import Trial

        self.make_trial = Trial
        self.table = self.searched(table)
        self.sign = 1 if setup["mode"] == "min" else -1
        self.worst: float | None = None
        self.trials: dict = {}
        self.scheduler = self.make(setup, self.space())

    def searched(self, table: Table) -> Table:
        """Return the table in which it searches."""
        return table

    def make(self, setup: dict, space: dict) -> object:
        """Make the scheduler."""
        raise NotImplementedError

    def space(self) -> dict:
        """Return the search space."""
        from syne_tune.config_space import choice, uniform

        return {
            name: choice(list(range(count))) if count else uniform(0.0, 1.0)
            for name, count in zip(self.table.names, self.table.choices, strict=True)
        }

    def suggested(self) -> object:
        """Ask the scheduler."""
        return self.scheduler.suggest()

    def suggest(self) -> tuple | None:
        """Return the number of a trial, and its row if it is new; None: there is nothing to do."""
        if not self.table.left.any() and not self.resumes:
            return None
        suggestion = self.suggested()
        if suggestion is None:
            return None
        if not suggestion.spawn_new_trial_id:
            return suggestion.checkpoint_trial_id, None
        if not self.table.left.any():
            return None
        row = self.table.take(suggestion.config)
        config = self.table.point(row, suggestion.config)
        number = len(self.trials)
        trial = self.make_trial(number, config, dt.datetime.fromtimestamp(0, dt.UTC))
        self.trials[number] = trial
        self.scheduler.on_trial_add(trial)
        return number, row

    def report(self, number: int, reports: int, metric: float | None) -> str:
        """Report a metric; one that is not finite as the worst so far, and its trial ends."""
        trial, failed = self.trials[number], metric is None
        metric = self.worst if failed else self.sign * metric
        if metric is None:
            self.scheduler.on_trial_error(trial)
            return "stop"
        self.worst = metric if self.worst is None else max(self.worst, metric)
        result = {"metric": self.sign * metric, "reports": reports}
        decision = self.scheduler.on_trial_result(trial, result)
        if decision == "CONTINUE" and failed:
            decision = "STOP"
        if decision != "CONTINUE":
            self.scheduler.on_trial_remove(trial)
        return decision.lower()


class SyneAsha(SyneTune):
    """ASHA that stops. Its draws are of rows, so that they are as likely as ours."""

    def searched(self, table: Table) -> Table:
        """Return the rows as places of one number."""
        rows = len(table.places)
        places = [[row / (rows - 1)] for row in range(rows)]
        return Table({"names": ["row"], "choices": [0], "places": places})

    def make(self, setup: dict, space: dict) -> object:
        """Make the scheduler."""
        from syne_tune.optimizer.baselines import ASHA

        return ASHA(**arguments(setup, space))


class SyneBohb(SyneTune):
    """BOHB, with ASHA that stops."""

    def make(self, setup: dict, space: dict) -> object:
        """Make the scheduler."""
        from syne_tune.optimizer.baselines import BOHB

        return BOHB(**arguments(setup, space))


def arguments(setup: dict, space: dict) -> dict:
    """Return what schedulers of Syne Tune 0.16 are made from."""
    return {
        "config_space": space,
        "metric": "metric",
        "time_attr": "reports",
        "max_t": setup["reports"],
        "do_minimize": setup["mode"] == "min",
        "random_seed": setup["seed"],
    }


class DyHpo(SyneTune):
    """DyHPO, which later versions of Syne Tune do not have: it needs 0.13."""

    resumes = True

    def make(self, setup: dict, space: dict) -> object:
        """Make the scheduler."""
        from syne_tune.optimizer.baselines import DyHPO

        return DyHPO(
            space,
            metric="metric",
            resource_attr="reports",
            max_t=setup["reports"],
            mode=setup["mode"],
            random_seed=setup["seed"],
            search_options={"debug_log": False},
        )

    def suggested(self) -> object:
        """Ask the scheduler, which wants to know the number of the trial."""
        return self.scheduler.suggest(trial_id=len(self.trials))


TOOLS = {"optuna": Optuna, "syne-asha": SyneAsha, "syne-bohb": SyneBohb, "dyhpo": DyHpo}


def main() -> None:
    """Answer every line; a line with a tool begins anew with it."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a tool prints is no answer
    tool = None
    for line in sys.stdin:
        asked = json.loads(line)
        began = time.process_time()
        try:
            if "tool" in asked:
                np.random.seed(asked["seed"])
                tool, answer = TOOLS[asked["tool"]](asked, Table(asked)), None
            elif "trial" in asked:
                answer = tool.report(asked["trial"], asked["reports"], asked["metric"])
            else:
                answer = tool.suggest()
        except Exception as error:  # noqa: BLE001 - it is the run's result
            answers.write(json.dumps(f"{type(error).__name__}: {error!s:.200}") + "\n")
        else:
            answers.write(json.dumps([answer, time.process_time() - began]) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
