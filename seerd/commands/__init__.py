"""What commands do; cli.py declares the commands and their options. A command's module is imported
on its first use: `commands.plan` is `seerd.commands.plan`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seerd.commands import (  # noqa: F401 - what these names are for type checkers
        asking,
        best,
        canary,
        doctor,
        export,
        image,
        init,
        logs,
        plan,
        replay,
        report,
        run,
        running,
        show,
        simulation,
        sweep,
        tidy,
    )


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return importlib.import_module(f"{__name__}.{name}")
