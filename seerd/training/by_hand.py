"""The configuration of a script that was started without seerd (`python train.py`)."""

import math
import os
import sys
from pathlib import Path
from typing import Any, Dict, Optional

ENDS = ("low", "high", "step", "mean")


def defaults(spec: Optional[str]) -> Dict[str, Any]:
    """Return the first or middle value of every active parameter. Raises as `_read_spec` does."""
    config: Dict[str, Any] = {}
    for name, value in _read_spec(spec)["space"].items():
        when = value.get("when", {}) if isinstance(value, dict) else {}
        is_active = all(_is_one_of(config.get(other), wanted) for other, wanted in when.items())
        if is_active and name != "constraints":
            config[name] = _default(value)
    return config


def max_reports(spec: Optional[str]) -> Optional[int]:
    """Return the reports of a whole training, if the spec has it. Raises as `_read_spec` does."""
    value: Optional[int] = _read_spec(spec).get("policy", {}).get("max_reports")
    return value


def _read_spec(spec: Optional[str]) -> Dict[str, Any]:
    """Read the first that exists of `spec`, `$SEERD_SPEC`, spec.toml beside the script and
    spec.toml in the working directory. Raises `FileNotFoundError` if none does, `RuntimeError` if
    this Python cannot read it.
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
    return tomllib.loads(path.read_text())


def _is_one_of(value: Any, wanted: Any) -> bool:
    values = wanted if isinstance(wanted, list) else [wanted]
    return any(
        value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in values
    )


def _default(value: Any) -> Any:
    if not isinstance(value, dict):
        return value[0] if isinstance(value, list) else value
    if "values" in value:
        return value["values"][0]
    step, mean = value.get("step"), value.get("mean")
    low: Any = value.get("low", mean)
    high: Any = value.get("high", mean)
    whole = all(isinstance(value[name], int) for name in ENDS if name in value)
    if mean is not None:
        middle = min(max(mean, low), high)
    else:
        middle = math.sqrt(low * high) if value.get("log") else (low + high) / 2
    if step is None and (mean is not None or not whole):
        return float(middle)
    # The nearest of low, low + step, ..., not above high, as a person would write it.
    step = step or 1
    last = math.floor((high - low) / step + 1e-9) if "high" in value else math.inf
    nearest = low + step * min(last, round((middle - low) / step))
    return round(nearest) if whole else round(nearest, 9 - math.floor(math.log10(step)))
