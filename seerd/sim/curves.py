"""Recorded learning curves, read from a file and replayed by simulated trials (docs/simulate.md).

The one rule: what `load_curves` returns has been checked; a configuration of the space knows its
row by the key `curve`.
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seerd.errors import UsageError
from seerd.planner.model import Mode
from seerd.planner.space import Config, Parameter, Space, Value

CURVE = "curve"
"""The row's key in a configuration; one of the file with that name is left out."""

FEW = 8
"""A key with so many different values at most is a choice, one with more a range."""

LARGEST = 2**53
"""Larger integers are not values: as floats they would not be themselves."""

MOST_BYTES = 1 << 30
"""Of all arrays together: a small file can be packed from more than any memory holds."""

SHORTEST_S, LONGEST_S = 1e-4, 1e9
"""Of one epoch: with less, time would not go on between two reports; of more, no sum is finite."""

MOST_GPUS = 1 << 20

ZIP = b"PK"
"""What an .npz file begins with."""

DAMAGED = (
    OSError,
    ValueError,
    EOFError,
    MemoryError,
    RuntimeError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What numpy and zipfile raise for files that are damaged, encrypted, packed in an unknown way or
too large to be true.
"""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curves:
    """`metric` and `seconds` [configs, epochs] with what holds after a curve's end filled in;
    seconds are per epoch on `gpus` GPUs.
    """

    metric: Floats
    seconds: Floats
    gpus: int
    mode: Mode
    configs: tuple[Config, ...] = ()
    _rows: dict[int, tuple[list[float | None], list[float]]] = field(default_factory=dict)

    @property
    def epochs(self) -> int:
        """Reports of a whole training."""
        return int(self.metric.shape[1])

    @property
    def best_final(self) -> float:
        """The best metric at the end of any curve."""
        last = self.metric[:, -1]
        last = last[np.isfinite(last)]
        return float(last.max() if self.mode == "max" else last.min())

    def regret(self, metric: float) -> float:
        """How far a metric is from the best final one; positive if it is worse."""
        return self.best_final - metric if self.mode == "max" else metric - self.best_final

    def lasting(self, full_curve_s: float, speed: float) -> Curves:
        """The same with time rescaled: the median whole curve takes so long on one GPU. `speed`:
        lambda(`gpus`).
        """
        whole_s = float(np.median(self.seconds.sum(axis=1))) * speed
        return replace(self, seconds=self.seconds * (full_curve_s / whole_s), _rows={})

    def at(self, config: Config, epoch: int) -> float | None:
        """The metric of report `epoch` (from 1); None if it is not finite."""
        return self._row(config)[0][min(epoch, self.epochs) - 1]

    def unit_s(self, config: Config, epoch: int) -> float:
        """Seconds from report `epoch - 1` to report `epoch` on `gpus` GPUs."""
        return self._row(config)[1][min(epoch, self.epochs) - 1]

    def space(self) -> Space:
        """Every recorded configuration, and nothing between them."""
        table = tuple({CURVE: row} | dict(config) for row, config in enumerate(self._configs()))
        return Space(tuple(_parameters(self.configs)), table)

    def _configs(self) -> tuple[Config, ...]:
        return self.configs or ({},) * len(self.metric)

    def _row(self, config: Config) -> tuple[list[float | None], list[float]]:
        index = int(config[CURVE])
        row = self._rows.get(index)
        if row is None:
            metric: list[float | None] = [
                float(m) if math.isfinite(m) else None for m in self.metric[index]
            ]
            row = self._rows[index] = metric, self.seconds[index].tolist()
        return row


def load_curves(path: Path) -> Curves:
    """The curves in an .npz file. Raises `UsageError` that says what is wrong with it."""
    content = _read(path)
    if missing := {"metric", "seconds", "mode"} - set(content):
        raise UsageError(
            f"{path} has no {', '.join(sorted(missing))}; curves need metric, seconds and "
            "mode (docs/simulate.md)"
        )
    return _checked(path, content)


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays in it. Pickled objects are refused: to read them could run anything."""
    try:
        with path.open("rb") as opened:
            if opened.read(2) != ZIP:
                raise UsageError(
                    f"{path} cannot be read as curves: it is not an .npz file (numpy.savez "
                    "makes one)"
                )
            opened.seek(0)
            with zipfile.ZipFile(opened) as packed:
                if sum(part.file_size for part in packed.infolist()) > MOST_BYTES:
                    raise UsageError(
                        f"{path} cannot be read as curves: unpacked, it has more than "
                        f"{MOST_BYTES >> 20} MiB"
                    )
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as file:
                content = {key: file[key] for key in file.files}
    except DAMAGED as error:
        raise UsageError(f"{path} cannot be read as curves: {error!s:.300}") from error
    return {key: value for key, value in content.items() if isinstance(value, np.ndarray)}


def _checked(path: Path, content: dict[str, NDArray[Any]]) -> Curves:
    metric, seconds, mode = content["metric"], content["seconds"], str(content["mode"])
    gpus = content.get("gpus", np.array(1))
    problems = [
        f"{name} has numbers, not {content[name].dtype}"
        for name in ("metric", "seconds")
        if not _numbers(content[name])
    ]
    if metric.ndim != 2 or not metric.size:
        problems.append(f"metric is [configs, epochs], not of shape {list(metric.shape)}")
    elif seconds.shape not in (metric.shape, metric.shape[:1]):
        problems.append(
            f"seconds is [configs] or [configs, epochs] = {list(metric.shape)}, not "
            f"{list(seconds.shape)}"
        )
    if mode not in ("max", "min"):
        problems.append(f"mode is max or min, not {mode!r:.80}")
    if gpus.shape or gpus.dtype.kind not in "iu" or not 1 <= gpus <= MOST_GPUS:
        problems.append(f"gpus is a whole number, at least 1, not {gpus}")
    if not problems:
        metric = _held(metric)
        seconds = _held(
            np.broadcast_to(seconds[:, None] if seconds.ndim == 1 else seconds, metric.shape)
        )
        if not np.isfinite(metric[:, -1]).any():
            problems.append("metric has no curve that ends with a finite value")
        if not ((seconds >= SHORTEST_S) & (seconds <= LONGEST_S)).all():
            problems.append(f"seconds are positive: {SHORTEST_S:g} to {LONGEST_S:g} for an epoch")
    if problems:
        raise UsageError(f"{path}: {'; '.join(problems)}")
    configs = _read_configs(path, content, len(metric))
    return Curves(metric, seconds, int(gpus), "max" if mode == "max" else "min", configs)


def _numbers(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "iuf"


def _held(values: NDArray[Any]) -> Floats:
    """After the last value of a row that is not NaN, that one holds; a NaN before it stays. A curve
    that ends infinite stays so.
    """
    held = np.array(values, dtype=np.float64)
    there = ~np.isnan(held)
    last = held.shape[1] - 1 - there[:, ::-1].argmax(axis=1)
    after = np.arange(held.shape[1]) > last[:, None]
    return np.where(after, held[np.arange(len(held)), last][:, None], held)


def _read_configs(path: Path, content: dict[str, NDArray[Any]], count: int) -> tuple[Config, ...]:
    if "configs" not in content:
        return ()
    try:
        configs = json.loads(str(content["configs"]))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: configs is not JSON: {error}") from error
    if not (
        isinstance(configs, list)
        and len(configs) == count
        and all(isinstance(c, dict) for c in configs)
    ):
        raise UsageError(f"{path}: configs is a list of {count} objects, one for each curve")
    return tuple(
        {key: v for key, v in config.items() if _is_value(v) and key != CURVE} for config in configs
    )


def _is_value(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) <= LARGEST
    return isinstance(value, str) or (isinstance(value, float) and math.isfinite(value))


def _parameters(configs: tuple[Config, ...]) -> list[Parameter]:
    """Dimensions for policies with a model, as far as the configurations tell."""
    names = dict.fromkeys(name for config in configs for name in config)
    columns = {name: [config[name] for config in configs if name in config] for name in names}
    return [
        parameter
        for name, values in columns.items()
        if (parameter := _parameter(name, values)) is not None
    ]


def _parameter(name: str, values: list[Value]) -> Parameter | None:
    different = sorted(set(values), key=lambda value: (str(type(value)), value))
    if len(different) < 2:
        return None
    numbers = [
        float(v) for v in different if isinstance(v, int | float) and not isinstance(v, bool)
    ]
    if len(different) <= FEW or len(numbers) < len(different):
        return Parameter(name, choices=tuple(different))
    low, high = min(numbers), max(numbers)
    integer = all(isinstance(value, int) for value in different)
    return Parameter(name, low=low, high=high, log=low > 0 and high / low >= 100, integer=integer)
