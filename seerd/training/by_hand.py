"""The configuration of a script that was started without seerd (`python train.py`)."""

import math
import os
import sys
from pathlib import Path
from typing import Any, Dict, Optional


def defaults(spec: Optional[str]) -> Dict[str, Any]:
    """Choose the first value, or the middle, of every parameter in the spec of this script.

    It is the first file that exists of `spec`, `$SEERD_SPEC`, spec.toml beside the script and
    spec.toml in the working directory. Raises `FileNotFoundError` if there is none, `RuntimeError`
    if this Python cannot read it.
    """
    script = Path(sys.argv[0]).resolve().parent
    options = [spec, os.environ.get("SEERD_SPEC"), script / "spec.toml", "spec.toml"]
    path = next((Path(option) for option in options if option and Path(option).is_file()), None)
    if path is None:
        raise FileNotFoundError(
            "started by hand, a script takes its configuration from a spec.toml beside it, "
            "and there is none"
        )
    try:
        import tomllib
    except ImportError:
        raise RuntimeError("reading spec.toml by hand needs Python 3.11 or newer") from None
    space = tomllib.loads(path.read_text())["space"]
    return {name: _default(value) for name, value in space.items()}


def _default(value: Any) -> Any:
    if isinstance(value, list):
        return value[0]
    low, high, step = value["low"], value["high"], value.get("step")
    middle = math.sqrt(low * high) if value.get("log") else (low + high) / 2
    whole = all(isinstance(end, int) for end in (low, high, step or 0))
    if step is None and not whole:
        return middle
    snapped = low + round((middle - low) / (step or 1)) * (step or 1)
    return round(snapped) if whole else snapped
