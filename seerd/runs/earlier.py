"""Earlier runs that a new one can learn from: `--like RUN`."""

from __future__ import annotations

from dataclasses import replace

from seerd.core.events import RunFacts
from seerd.errors import JournalError, UsageError
from seerd.planner.model import EarlierTrial
from seerd.planning.earlier import learned, taken_up
from seerd.runs.reading import begin, read
from seerd.shell.home import Home, RunFolder
from seerd.shell.journal import Journal
from seerd.spec.spec import Spec
from seerd.units import count

NEWEST = 20  # newest runs that are compared before one is offered


def informed(spec: Spec, home: Home) -> Spec:
    """Return the spec with what the runs of `[policy] like` tell. Raises `UsageError` if one tells
    nothing, `JournalError` if it cannot be read.
    """
    if not spec.like:
        return spec
    runs = [_learned(spec, home.find(name)) for name in spec.like]
    return replace(spec, policy=taken_up(spec.policy, runs, spec.goal.mode))


def alike(spec: Spec, home: Home) -> list[str]:
    """List the newest runs with the spec's name, metric and space, oldest first."""
    found = []
    for folder in home.runs()[-NEWEST:]:
        facts = _facts(folder)
        if facts is not None and (facts.name, facts.metric, facts.mode, facts.problem.space) == (
            spec.name,
            spec.goal.metric,
            spec.goal.mode,
            spec.space,
        ):
            found.append(folder.run)
    return found


def _learned(spec: Spec, folder: RunFolder) -> tuple[EarlierTrial, ...]:
    state = read(folder)
    metric = state.facts.metric, state.facts.mode
    if metric != (spec.goal.metric, spec.goal.mode):
        raise UsageError(
            f"--like {folder.run}: its metric is {metric[0]} ({metric[1]}), and that of this spec "
            f"{spec.goal.metric} ({spec.goal.mode}): nothing can be learned from it"
        )
    found = learned(spec.space, state)
    if not found:
        tried = sum(bool(trial.history) for trial in state.trials.values())
        raise UsageError(
            f"--like {folder.run}: of its {count(tried, 'trial')} that reported none has a "
            "configuration that [space] allows: nothing can be learned from it"
        )
    return found


def _facts(folder: RunFolder) -> RunFacts | None:
    try:
        with Journal.open(folder.journal, read_only=True) as journal:
            return begin(journal)[0].facts
    except JournalError:
        return None
