"""`seerd simulate`: of one job, or of several that share a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seerd.commands import simulate, simulate_group
from seerd.commands.options import SimulateOptions, SpecOptions
from seerd.errors import UsageError
from seerd.shell.home import Home


def simulate_specs(
    asked: SimulateOptions, specs: Sequence[Path], home: Home, *, json: bool
) -> None:
    """Simulate what these specs ask for; without any, curves alone. Raises `UsageError`."""
    if asked.set_ and not specs:
        raise UsageError("--set changes keys of a spec: give a SPEC as well")
    experiment = SpecOptions(specs, set_=asked.set_).load() if specs else None
    if experiment is None or not experiment.is_shared:
        spec = None if experiment is None else experiment.jobs[0]
        simulate.simulate(asked, spec, home, json=json)
        return
    if asked.plot is not None:
        raise UsageError("--plot compares policies of one job")
    simulate_group.simulate(asked, experiment, home, json=json)
