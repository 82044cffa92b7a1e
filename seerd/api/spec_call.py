"""What a call asks for: a spec, and arguments that stand for keys of it.

The one rule: an argument means what the option of the same name means to `seerd run`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from seerd.commands.common import KEYS, Minimize
from seerd.spec.dicts import toml_of
from seerd.spec.reader import Override
from seerd.spec.spec import Spec, load_spec, require_limits, spec_of

SpecLike = str | os.PathLike[str] | Mapping[str, Any]
"""A spec's file, or a dict as its TOML would be."""
Time = str | float | timedelta
"""Text with a unit as on the command line, a number of seconds, or a timedelta."""
Money = str | float
"""Text with a unit as on the command line, or a number of USD."""
UNITS = {"deadline": "{:.6f}s", "budget": "{:.6f}gpu-s", "cost": "{:.6f}usd"}
"""How numbers are written with the unit that they stand for."""


@dataclass(frozen=True, slots=True)
class SpecCall:
    """A spec, and what the call says instead of it."""

    spec: SpecLike
    # by the name of their option; None: as the spec has it
    arguments: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)  # any keys of the spec, by their path
    minimize: Minimize | None = None  # what the plan minimises; the spec need not limit it
    ideal: bool = False  # plan as published, whatever is billed

    def load(self) -> Spec:
        """Read the spec. Raises `SpecError` with all mistakes, `UsageError` if a limit is
        missing.
        """
        overrides = self._overrides()
        if isinstance(self.spec, Mapping):
            spec = spec_of(self.spec, overrides)
        else:
            spec = load_spec(Path(self.spec), overrides)
        require_limits(spec, self.minimize)
        return spec

    def _overrides(self) -> list[Override]:
        keys = {**KEYS, "like": "policy.like"}
        given = [
            Override(keys[name], _with_unit(name, value), name)
            for name, value in self.arguments.items()
            if value is not None
        ]
        return given + [Override(key, _plain(key, value), key) for key, value in self.more.items()]


def _with_unit(name: str, value: Any) -> Any:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if name in UNITS and isinstance(value, int | float):
        return UNITS[name].format(value)
    return _plain(name, value)


def _plain(name: str, value: Any) -> Any:
    """Return a value as TOML has it; text is read as `--set` reads it."""
    return value if isinstance(value, str) else tomllib.loads(toml_of({name: value}))[name]
