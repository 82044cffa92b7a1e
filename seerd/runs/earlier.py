"""Earlier runs that a new one learns from: `--like RUN`. Their configurations and curves become
part of the new run's facts, so the earlier run may be removed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from seerd.core.state import State
from seerd.errors import UsageError
from seerd.planner.model import EarlierTrial, Mode, PolicyParams, Report
from seerd.planner.space import Config, Space
from seerd.runs.reading import read
from seerd.shell.home import Home, RunFolder
from seerd.spec.spec import Spec
from seerd.units import count

BEST = 3  # configurations of each earlier run that are tried again first
MOST = 300  # trials that are remembered of one earlier run: those that came furthest
FINENESS = 1.2  # a report of a curve is kept if its number is at least this many times the last one


def informed(spec: Spec, home: Home) -> Spec:
    """Return the spec with what its earlier runs tell. Raises `UsageError`, `JournalError`."""
    if not spec.like:
        return spec
    runs = [_learned(spec, home.find(name)) for name in spec.like]
    return replace(spec, policy=taken_up(spec.policy, runs, spec.goal.mode))


def _learned(spec: Spec, folder: RunFolder) -> tuple[EarlierTrial, ...]:
    state = read(folder)
    metric = state.facts.metric, state.facts.mode
    if metric != (spec.goal.metric, spec.goal.mode):
        raise UsageError(
            f"--like {folder.run}: its metric is {metric[0]} ({metric[1]}), and that of this spec "
            f"{spec.goal.metric} ({spec.goal.mode}): nothing can be learned from it"
        )
    trials = learned(spec.space, state)
    if not trials:
        tried = sum(bool(trial.history) for trial in state.trials.values())
        raise UsageError(
            f"--like {folder.run}: of its {count(tried, 'trial')} that reported none has a "
            "configuration that [space] allows: nothing can be learned from it"
        )
    return trials


def learned(space: Space, state: State) -> tuple[EarlierTrial, ...]:
    """List what an earlier run's trials tell about this space, in their order."""
    mode = state.facts.mode
    trials = [t for t in state.trials.values() if t.history and of_space(space, t.config)]
    furthest = {trial.id for trial in sorted(trials, key=lambda t: -t.reports)[:MOST]}
    return tuple(
        EarlierTrial(trial.config, tuple(_thinned(trial.history, mode)))
        for trial in trials
        if trial.id in furthest
    )


def taken_up(
    params: PolicyParams, runs: Sequence[tuple[EarlierTrial, ...]], mode: Mode
) -> PolicyParams:
    """Return the parameters with these runs: their best are tried after the user's guesses."""
    start = list(params.start)
    for trials in runs:
        start += [config for config in best_configs(trials, mode) if config not in start]
    earlier = tuple(trial for trials in runs for trial in trials)
    return replace(params, start=tuple(start), earlier=(*params.earlier, *earlier))


def best_configs(trials: Sequence[EarlierTrial], mode: Mode) -> list[Config]:
    """List the `BEST` configurations with the best reports, best first; none that has diverged."""
    sign = 1.0 if mode == "max" else -1.0
    scores = [
        (max(sign * r.metric for r in trial.history if r.metric is not None), n)
        for n, trial in enumerate(trials)
        if trial.history[-1].metric is not None
    ]
    return [trials[n].config for _, n in sorted(scores, key=lambda s: (-s[0], s[1]))[:BEST]]


def of_space(space: Space, config: Config) -> bool:
    """Return whether a configuration could have been drawn from this space."""
    if space.table:
        return config in space.table
    active = {p.name: p for p in space.parameters if p.active(config)}
    return (
        config.keys() == active.keys()
        and all(parameter.may_be(config[name]) for name, parameter in active.items())
        and space.allows(config)
    )


def _thinned(history: Sequence[Report], mode: Mode) -> Iterator[Report]:
    sign = 1.0 if mode == "max" else -1.0
    best = max(history, key=lambda r: -math.inf if r.metric is None else sign * r.metric)
    kept = 0
    for report in history:
        if report.reports >= FINENESS * kept or report is best or report is history[-1]:
            kept = report.reports
            yield report
