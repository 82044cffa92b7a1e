"""Recorded learning curves, checked and replayed by simulated trials (docs/simulate.md). The key
`curve` of a configuration is the number of its row.
"""

from __future__ import annotations

import json
import math
import random
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from seerd.errors import UsageError
from seerd.planner.model import Mode
from seerd.planner.profile import Scaling
from seerd.planner.space import Condition, Config, Parameter, Space, Value

CURVE = "curve"  # the key with the row's number; one of that name in the file is left out

# keys that tell which run a curve is of, or how it went: nobody can choose them before a trial
# begins, and `score` would tell its end
BOOKKEEPING = frozenset({"study", "trial", "iteration", "nan_train_loss", "global_step", "score"})

FEW = 8  # a key with at most this many different values is a choice, one with more a range

LARGEST = 2**53  # a float cannot hold a larger integer exactly

# of all arrays together: a small file can unpack to more than any memory holds
MOST_BYTES = 1 << 30

# seconds of an epoch: with less, time would not advance between reports; with more, sums would not
# be finite
SHORTEST_S, LONGEST_S = 1e-4, 1e9

MOST_GPUS = 1 << 20

# what numpy and zipfile raise for damaged, encrypted, unknown or too large files
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

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curves:
    """Recorded learning curves. Arrays have the shape (configs, epochs)."""

    metric: Floats  # metric after each epoch; after a curve's end its last value
    seconds: Floats  # seconds of each epoch on `gpus` GPUs; after a curve's end the last value
    gpus: int  # GPUs of the recording
    mode: Mode  # whether more or less of the metric is better
    # the recorded configurations, one per row; empty if the file has none
    configs: tuple[Config, ...] = ()

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
        """Return how far a metric is from the best final one; positive if it is worse."""
        return self.best_final - metric if self.mode == "max" else metric - self.best_final

    def lasting(self, full_curve_s: float, speed: float) -> Curves:
        """Rescale time so that the median whole curve takes `full_curve_s` seconds on one GPU.
        `speed`: lambda(`gpus`), the recording's throughput relative to one GPU.
        """
        whole_s = float(np.median(self.seconds.sum(axis=1))) * speed
        return replace(self, seconds=self.seconds * (full_curve_s / whole_s))

    def at(self, config: Config, epoch: int) -> float | None:
        """Return the metric of report `epoch` (from 1); None if it is not finite."""
        metric = self._of(self.metric, config, epoch)
        return metric if math.isfinite(metric) else None

    def unit_s(self, config: Config, epoch: int) -> float:
        """Return the seconds from report `epoch - 1` to report `epoch` on `gpus` GPUs."""
        return self._of(self.seconds, config, epoch)

    def unit_s_on(self, scaling: Scaling, config: Config, epoch: int, gpus: int) -> float:
        """Return the same on `gpus` GPUs: times lambda(`self.gpus`) / lambda(`gpus`)."""
        return self.unit_s(config, epoch) * (scaling.speed(self.gpus) / scaling.speed(gpus))

    def space(self) -> Space:
        """Return the search space of exactly the recorded configurations, with dimensions for
        policies with a model.
        """
        configs = self.configs or ({},) * len(self.metric)
        table = tuple({CURVE: row} | dict(config) for row, config in enumerate(configs))
        names = dict.fromkeys(name for config in configs for name in config)
        columns = {name: [config[name] for config in configs if name in config] for name in names}
        made = [p for name, values in columns.items() if (p := _parameter(name, values))]
        dimensions = [p for p in made if len(columns[p.name]) == len(configs)]
        for parameter in made:  # one that some lack is active on a condition, else left out
            if len(columns[parameter.name]) < len(configs):
                tells = (_condition(parameter.name, other, configs) for other in dimensions)
                if condition := next(filter(None, tells), None):
                    dimensions.append(replace(parameter, when=(condition,)))
        return Space(tuple(dimensions), table)

    def _of(self, values: Floats, config: Config, epoch: int) -> float:
        return float(values[int(cast("int", config[CURVE])), min(epoch, self.epochs) - 1])


def load_curves(path: Path) -> Curves:
    """Load the curves of an .npz file. Raises `UsageError` that says what is wrong with it."""
    content = _read(path)
    if missing := {"metric", "seconds", "mode"} - set(content):
        raise UsageError(
            f"{path} has no {', '.join(sorted(missing))}; curves need metric, seconds and "
            "mode (docs/simulate.md)"
        )
    metric, seconds, mode = content["metric"], content["seconds"], str(content["mode"])
    gpus = content.get("gpus", np.array(1))
    problems = [
        f"{name} has numbers, not {content[name].dtype}"
        for name in ("metric", "seconds")
        if content[name].dtype.kind not in "iuf"
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


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays; pickled objects are refused, since reading them could run any program."""
    try:
        with zipfile.ZipFile(path) as packed:
            if sum(part.file_size for part in packed.infolist()) > MOST_BYTES:
                raise ValueError(f"unpacked, it has more than {MOST_BYTES >> 20} MiB")
        with np.load(path, allow_pickle=False) as file:
            content = {key: file[key] for key in file.files}
    except DAMAGED as error:
        raise UsageError(
            f"{path} cannot be read as curves (numpy.savez makes such a file): {error!s:.300}"
        ) from error
    return {key: value for key, value in content.items() if isinstance(value, np.ndarray)}


def _held(values: NDArray[Any]) -> Floats:
    """Replace the NaNs at the end of each row by its last value; earlier NaNs stay."""
    held = np.array(values, dtype=np.float64)
    numbers = ~np.isnan(held)
    last = held.shape[1] - 1 - numbers[:, ::-1].argmax(axis=1)
    after = np.arange(held.shape[1]) > last[:, None]
    return np.where(after, held[np.arange(len(held)), last][:, None], held)


def _read_configs(path: Path, content: dict[str, NDArray[Any]], count: int) -> tuple[Config, ...]:
    if "configs" not in content:
        return ()
    try:
        configs = json.loads(str(content["configs"]))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: configs is not JSON: {error}") from error
    is_list = isinstance(configs, list) and all(isinstance(c, dict) for c in configs)
    if not is_list or len(configs) != count:
        raise UsageError(f"{path}: configs is a list of {count} objects, one for each curve")
    left_out = BOOKKEEPING | {CURVE}
    return tuple(
        {key: v for key, v in config.items() if _is_value(v) and key not in left_out}
        for config in configs
    )


def _is_value(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) <= LARGEST
    return isinstance(value, str) or (isinstance(value, float) and math.isfinite(value))


def _condition(name: str, other: Parameter, configs: tuple[Config, ...]) -> Condition | None:
    """Return the values of `other` with which configurations have this one, if those tell. It is a
    choice of names or whole numbers: a real number selects nothing.
    """
    if not other.choices or any(isinstance(value, float) for value in other.choices):
        return None
    having = {config.get(other.name) for config in configs if name in config}
    lacking = {config.get(other.name) for config in configs if name not in config}
    if None in having or having & lacking:
        return None
    return Condition(other.name, tuple(value for value in other.choices if value in having))


def _parameter(name: str, values: list[Value]) -> Parameter | None:
    kinds = ((str(type(v)), str(v) if isinstance(v, tuple) else v, v) for v in values)
    different = [value for *_, value in sorted(set(kinds), key=lambda kind: kind[:2])]
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


CONFIGS = 400
EPOCHS = 100
NOISE = 0.004
DIVERGES = 0.85


def synthetic(space: Space, mode: Mode, report_s: float, seed: int = 0) -> Curves:
    """Make up `CONFIGS` curves, with metrics from 0 to 1, for a script that was not run yet.
    `report_s`: of a report on one GPU.

    A final value falls with the distance from a hidden best point; with a large value of its first
    parameter a configuration diverges. The way there is a power law with noise (Domhan et al.,
    IJCAI '15).
    """
    rng = random.Random(f"synthetic {seed}")
    configs = tuple(space.sample(rng) for _ in range(CONFIGS))
    at = np.array(  # where values lie, 0 to 1; an inactive one is in the middle
        [[p.share(c[p.name]) if p.name in c else 0.5 for p in space.parameters] for c in configs]
    )
    draw = np.random.default_rng(seed)
    best = draw.uniform(0.3, 0.7, len(space.parameters))
    weight = draw.dirichlet(np.ones(len(space.parameters)) * 2)
    distance = np.sqrt((((at - best) / 0.5) ** 2 * weight).sum(axis=1))
    final = 0.95 - 0.5 * distance**1.5
    slope = draw.uniform(0.4, 1.1, CONFIGS)
    epoch = np.arange(1, EPOCHS + 1)
    value = final[:, None] - (final[:, None] - 0.1) * (1 + epoch) ** -slope[:, None]
    value += draw.normal(0, NOISE, value.shape)
    value[at[:, 0] > DIVERGES] = 0.1 + np.abs(
        draw.normal(0, NOISE, value[at[:, 0] > DIVERGES].shape)
    )
    value = np.clip(value, 0.0, 1.0)
    seconds = np.full(value.shape, report_s)
    return Curves(value if mode == "max" else 1 - value, seconds, 1, mode, configs)
