"""The pictures of a search space, each hyperparameter drawn as it is distributed."""

from __future__ import annotations

from collections.abc import Sequence

from seerd.planner.parameter import Parameter
from seerd.telling.configs import scalar, value_text
from seerd.telling.page import tables
from seerd.telling.page.frame import (
    CONFIG,
    FILL,
    INK,
    REST,
    SHAPES,
    Frame,
    Spec,
    apart,
    axis,
    layer,
    text,
    values_axis,
)
from seerd.telling.page.importance import Importance
from seerd.telling.page.run_charts import BEST_ONLY, REST_ONLY

MOST_CONFIGURATIONS, MOST_DOTS = 120, 150


def parallel(frame: Frame, parameters: Sequence[Parameter]) -> Spec:
    """Draw each configuration as a line through its values; scales have their ends or values."""
    rows = [
        {
            "trial": one.trial.id,
            "name": parameter.name,
            "share": share,
            "top": frame.top(one.trial.id),
        }
        for one in tables.shown(frame.order, MOST_CONFIGURATIONS)
        for parameter in parameters
        if one.metric is not None
        and (share := tables.share_of(parameter, one.trial.config)) is not None
    ]
    marks = [
        {"name": parameter.name, "share": parameter.share(value), "text": value_text(value)}
        for parameter in parameters
        for value in parameter.choices or map(parameter.at, (0.0, 0.5, 1.0))
    ]
    names = [parameter.name for parameter in parameters]
    upright = {"labelAngle": 0, "grid": True, "labelLimit": 140}
    x = axis("name", None, "nominal", sort=names, axis=upright)
    y = axis("share", None, axis=None, scale={"domain": [0, 1]})
    line = {"x": x, "y": y, "detail": {"field": "trial"}}
    first = [{**row, "x": 1, "y": row["share"]} for row in rows if row["name"] == names[0]]
    called = apart([row for row in first if row["top"]], [0.0, 1.0])
    beside = {"x": x, "y": {**y, "field": "at"}, "color": frame.colour["color"]}
    layers = [
        layer(rows, {"type": "line", "color": REST, "opacity": 0.3}, line, REST_ONLY),
        layer(rows, {"type": "line", "strokeWidth": 2}, {**line, **frame.colour}, BEST_ONLY),
        text(marks, {"x": x, "y": y}, dx=3, fontSize=10),
        text(called, beside, "trial", align="right", dx=-6, fontWeight="bold"),
    ]
    return frame.finished(layers, 240)


def importance(frame: Frame, measured: Sequence[Importance]) -> Spec:
    """Draw how much each hyperparameter matters, with its uncertainty."""
    rows = [
        {
            "name": one.name,
            "x": one.mean,
            "low": max(0.0, one.mean - one.deviation),
            "high": min(1.0, one.mean + one.deviation),
        }
        for one in measured
    ]
    bare = {"labelLimit": 200, "ticks": False, "domain": False}
    y = axis("name", None, "nominal", sort=None, axis=bare)
    whole = {"domain": [0, 1], "nice": False}
    x = axis("x", "share of the variance of places it explains", scale=whole, axis={"format": "%"})
    between = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y}
    layers = [
        layer(rows, {"type": "bar", "color": FILL, "opacity": 0.8}, {"x": x, "y": y}),
        layer(rows, {"type": "rule", "color": INK}, between),
    ]
    return frame.finished(layers, 26 * len(rows))


def slices(frame: Frame, parameters: Sequence[Parameter]) -> Spec:
    """Draw the best metric of each trial by each hyperparameter alone."""
    columns = max(1, frame.width // 300)
    width = max(160, frame.width // columns - 70)
    pictures = [{"layer": _slice(frame, one), "width": width, "height": 130} for one in parameters]
    return {"concat": pictures, "columns": columns, "config": CONFIG}


def _slice(frame: Frame, parameter: Parameter) -> list[Spec]:
    chosen = [one for one in tables.shown(frame.order, MOST_DOTS) if one.metric is not None]
    rows = []
    for one in (one for one in chosen if parameter.name in one.trial.config):
        value, trial = scalar(one.trial.config[parameter.name]), one.trial.id
        rows.append({"x": value, "y": one.metric, "top": frame.top(trial), "trial": trial})
    y = values_axis("y", None, [one.metric for one in chosen if one.metric is not None])
    if parameter.choices:
        x = axis("x", parameter.name, "nominal", axis={"labelAngle": 0, "labelLimit": 80})
    else:
        scale = {"type": "log" if parameter.log else "linear", "zero": False}
        ticks = {"tickCount": 4, "labelOverlap": True}
        x = axis("x", parameter.name, scale=scale, axis=ticks)
    dots = {"x": x, "y": y}
    shapes = {"domain": frame.names, "range": SHAPES[: len(frame.names)]}
    shape = {"field": "top", "type": "nominal", "legend": None, "scale": shapes}
    best = {**dots, "color": frame.colour["color"], "shape": shape}
    winner = [row for row in rows if row["trial"] in frame.names[:1]]
    return [
        layer(rows, {"type": "point", "color": REST, "size": 24}, dots, REST_ONLY),
        layer(rows, {"type": "point", "filled": True, "size": 60}, best, BEST_ONLY),
        text(winner, dots, "trial", dx=6, fontSize=10),
    ]
