"""Tables of tenants: what every model came to on every tenant's data, and what that cost.

A file has `quality` [users, models], the larger the better, or an error as `error` or `metric`,
[users, models] or [users, models, sizes], of which the last that is known counts; its description
beside it, of the same name with `.json`, tells which (`higher_is_better`). `cost` [users, models]
may be missing: then it is drawn from U(0, 1), as the paper does for 179CLASSIFIER (section 5.1).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ERRORS = ("error", "metric", "loss")
SEED = 20180801
FOLDED = 2
"""Tenants with fewer models than this have nothing to choose from."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """What models came to, and cost.

    quality  shape [users, models], larger is better; NaN: this model cannot be had there
    cost     the same shape, above zero, in any unit
    real     whether the costs were measured
    """

    name: str
    quality: Floats
    cost: Floats
    real: bool = True

    def half(self, number: int) -> Table:
        """Every second tenant, from this one on."""
        return replace(
            self,
            name=f"{self.name} half {number}",
            quality=self.quality[number::2],
            cost=self.cost[number::2],
        )


def tables(folder: Path) -> Iterator[Table]:
    """Every file of the folder, by name. Raises `SystemExit` if there is none."""
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise SystemExit(f"{folder} has no .npz file: give a folder with tables of tenants")
    for file in files:
        yield read(file)


def read(file: Path) -> Table:
    """One file. Raises `SystemExit` if it has no quality."""
    with np.load(file) as found:
        arrays = {name: np.asarray(found[name]) for name in found.files}
    told = file.with_suffix(".json")
    facts = json.loads(told.read_text()) if told.exists() else {}
    quality = _quality(file, arrays, facts)
    cost = arrays.get("cost")
    rows = (~np.isnan(quality)).sum(axis=1) >= FOLDED
    made = _costs(np.asarray(cost, dtype=float)) if cost is not None else drawn(quality.shape)
    return Table(file.stem, quality[rows], made[rows], cost is not None)


def drawn(shape: tuple[int, ...], seed: int = SEED) -> Floats:
    """Costs from U(0, 1), none of them nothing."""
    return np.random.default_rng(seed).uniform(1e-3, 1.0, shape)


def synthetic(sigma: float, alpha: float, users: int = 200, models: int = 100) -> Table:
    """SYN(sigma_M, alpha) of section 5.1, with half of the users around 0.75 and half around 0.25
    (appendix B.2), costs from U(0, 1).

    The paper prints no deviation of the baseline within a group: 0.1 here. As printed, qualities
    are cut to [0, 1]. Both are drawn from a fixed seed.
    """
    rng = np.random.default_rng([SEED, int(1000 * sigma), int(1000 * alpha)])
    feature = rng.uniform(size=models)
    covariance = np.exp(-((feature[:, None] - feature[None, :]) ** 2) / sigma**2)
    factor = np.linalg.cholesky(covariance + 1e-8 * np.eye(models))
    baseline = np.where(np.arange(users) % 2 == 0, 0.75, 0.25) + 0.1 * rng.standard_normal(users)
    moved = rng.standard_normal((users, models)) @ factor.T
    quality = np.clip(baseline[:, None] + alpha * moved, 0.0, 1.0)
    order = rng.permutation(users)
    name = f"SYN({sigma:g}, {alpha:g})"
    return Table(name, quality[order], drawn((users, models)), real=False)


def _quality(file: Path, arrays: dict[str, Any], facts: dict[str, Any]) -> Floats:
    if "quality" in arrays:
        quality, better = arrays["quality"], 1
    else:
        name = next((name for name in ERRORS if name in arrays), None)
        if name is None:
            raise SystemExit(f"{file} has neither quality nor {', '.join(ERRORS)}")
        quality, better = arrays[name], 1 if facts.get("higher_is_better", False) else -1
    quality = np.asarray(quality, dtype=float)
    quality = _last(quality) if quality.ndim == 3 else quality
    quality = np.where(np.isfinite(quality), quality, np.nan)
    return quality if better > 0 else 1.0 - quality


def _last(sizes: Floats) -> Floats:
    """What each model came to with the most data on which any model of that tenant is known."""
    known = ~np.isnan(sizes)
    most = sizes.shape[2] - 1 - np.argmax(known.any(axis=1)[:, ::-1], axis=1)
    return np.asarray(sizes[np.arange(len(sizes)), :, most])


def _costs(cost: Floats) -> Floats:
    """Fill what is not known, or not above zero, with what that model costs in the middle."""
    known = np.where(np.isfinite(cost) & (cost > 0), cost, np.nan)
    middle = float(np.nanmedian(known))
    columns = np.array([np.nanmedian(c) if np.isfinite(c).any() else middle for c in known.T])
    return np.where(np.isnan(known), columns[None, :], known)
