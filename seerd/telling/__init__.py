"""Everything that people and scripts are shown.

The one rule: nothing is decided here.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seerd.telling import summary, tables  # noqa: F401 - what these names are for type checkers


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return importlib.import_module(f"{__name__}.{name}")
