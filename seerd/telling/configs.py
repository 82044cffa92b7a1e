"""Configurations as text, without the core, which `seerd plan` need not import."""

from __future__ import annotations

from typing import Any

from seerd.agent.arguments import text_of
from seerd.planner.parameter import Config, Value
from seerd.telling.harmless import printable


def config_text(config: Config) -> str:
    """Write a configuration on one line."""
    return printable(" ".join(f"{name}={value_text(value)}" for name, value in config.items()))


def value_text(value: Value) -> str:
    """Write one value of a configuration."""
    return printable(f"{value:.4g}" if isinstance(value, float) else str(scalar(value)))


def scalar(value: Any) -> Any:
    """Return a value for programs that have no lists: a list as JSON."""
    return text_of(value) if isinstance(value, list | tuple) else value
