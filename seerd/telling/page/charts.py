"""The pictures of how a run went, from its beginning: GPUs over time, learning curves, money."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from seerd.core.lifecycle import InstancePhase, TrialPhase
from seerd.core.state import State
from seerd.planner.parameter import Parameter
from seerd.telling.front import FrontPoint, undominated
from seerd.telling.harmless import printable, scalar, value_text
from seerd.telling.page import tables
from seerd.telling.page.drawing import (
    CONFIG,
    FILL,
    INK,
    REST,
    SHAPES,
    Frame,
    Scale,
    Spec,
    apart,
    axis,
    focus,
    layer,
    text,
    told_apart,
    values_axis,
    whole,
)
from seerd.telling.page.importance import Importance
from seerd.telling.page.tables import CurvePoint
from seerd.telling.plan_json import Json
from seerd.units import format_duration

REST_ONLY, BEST_ONLY = "datum.top == ''", "datum.top != ''"


def gpus(frame: Frame, held: Sequence[tables.Bar]) -> Spec:
    """Draw which trial had which GPUs, `held`, with stages (SEER, figure 1)."""
    rows = sum(one.gpus for one in frame.state.fleet.instances.values())
    of, in_gpus, parts = frame.time.of, frame.state.facts.gpus, frame.state.facts.parts
    ready = []
    for name, first in tables.rows_of_instances(frame.state).items():
        one, now_s = frame.state.fleet.instances[name], frame.state.now
        if one.ready_at is not None or one.phase is not InstancePhase.TERMINATED:
            ended_s = now_s if one.ended_at is None else one.ended_at
            times = {"x": (one.ready_at or 0.0) / of, "x2": ended_s / of}
            ready.append({"low": in_gpus(first), "high": in_gpus(first + one.gpus), **times})
    bars = [
        {
            "low": in_gpus(bar.low),
            "high": in_gpus(bar.high),
            "row": (bar.low + bar.high) / 2 / parts,
            "x": bar.starts_s / of,
            "trains": bar.trains_s / of,
            "x2": bar.ends_s / of,
            "mid": (bar.starts_s + bar.ends_s) / 2 / of,
            "top": frame.top(bar.trial),
            "label": bar.trial,
        }
        for bar in held
    ]
    down = {"domain": [0, max(1, in_gpus(rows))], "reverse": True, "nice": False}
    y = axis("low", "GPU", scale=down, axis={"tickMinStep": 1, "grid": False})
    span = {"x": frame.time_axis("x"), "x2": {"field": "x2"}, "y": y, "y2": {"field": "high"}}
    coloured = {**span, **frame.colour}
    trained = {**coloured, "x": frame.time_axis("trains")}
    middle = {"x": frame.time_axis("mid"), "y": {**y, "field": "row"}}
    # A bar has its trial's name where that fits.
    fits_s = 7.0 / frame.width * frame.state.now
    named = [
        row
        for row, bar in zip(bars, held, strict=True)
        if bar.ends_s - bar.starts_s > fits_s * len(bar.trial)
    ]
    layers = [
        layer(ready, {"type": "rect", "color": REST, "opacity": 0.12}, span),
        layer(bars, {"type": "rect", "opacity": 0.35}, coloured),
        layer(bars, {"type": "rect", "stroke": REST, "strokeWidth": 0.4}, trained),
        text(named, middle, "label", align="center", fontSize=10),
        *frame.stages(),
    ]
    return whole(layers, frame.width, max(120, min(420, rows * 22)))


def curves(frame: Frame, points: Sequence[CurvePoint], by: str, name: str) -> Spec:
    """Draw a metric by `at_s`, `report` or `gpu_s`; a triangle where a trial was promoted, a cross
    where one was eliminated, a ring where one waits.
    """
    longest_s = max((point.gpu_s for point in points), default=0.0)
    time, gpu_time = frame.time, Scale.for_s(longest_s)
    factor, title = {
        "at_s": (time.of, f"time [{time.name}]"),
        "report": (1.0, "report"),
        "gpu_s": (gpu_time.of, f"GPU time of the trial [GPU-{gpu_time.name}]"),
    }[by]
    rows = [
        {"trial": p.trial, "x": getattr(p, by) / factor, "y": p.value, "top": frame.top(p.trial)}
        for p in points
    ]
    values = [point.value for point in points]
    x, y = axis("x", title), values_axis("y", name, values)
    last, trials = {row["trial"]: row for row in rows}, frame.state.trials
    out = {one.trial.id for one in frame.order if one.trial.out}
    ends = [row for trial, row in last.items() if trial in out]
    waiting = [name for name in last if trials[name].phase is TrialPhase.WAITING]
    halted = [last[name] for name in waiting if name not in out]
    rises = [row for row, point in zip(rows, points, strict=True) if point.promoted]
    named = apart([row for trial, row in last.items() if frame.top(trial)], focus(values))
    line = {"x": x, "y": y, "detail": {"field": "trial"}}
    beside = {"x": x, "y": {**y, "field": "at"}, "color": frame.colour["color"]}
    cross = {"type": "text", "text": "×", "fontSize": 12, "color": REST}
    ring = {"type": "point", "shape": "circle", "filled": False, "size": 26, "color": REST}
    rise = {"type": "point", "shape": "triangle-up", "filled": True, "opacity": 1}
    best_rise = {"x": x, "y": y, "color": frame.colour["color"]}
    layers = [
        layer(rows, {"type": "line", "color": REST, "opacity": 0.45}, line, REST_ONLY),
        layer(rows, {"type": "line", "strokeWidth": 2}, {**line, **frame.colour}, BEST_ONLY),
        layer(rises, {**rise, "size": 18, "color": REST}, {"x": x, "y": y}, REST_ONLY),
        layer(rises, {**rise, "size": 50}, best_rise, BEST_ONLY),
        layer(ends, cross, {"x": x, "y": y}),
        layer(halted, ring, {"x": x, "y": y}),
        text(named, beside, "trial", dx=6, fontWeight="bold"),
        *(frame.stages() if by == "at_s" else ()),
    ]
    return whole(layers, frame.width, 260)


def money(frame: Frame) -> Spec:
    """Draw what was billed over time, beside the budget and the deadline."""
    state, limits = frame.state, frame.state.facts.problem.limits
    budget = limits.gpu_s(state.ledger.usd_per_gpu_h)
    longest_s = max(state.now, limits.deadline_s)
    time, scale = Scale.for_s(longest_s), Scale.for_s(budget)
    times = [state.now * part / 240 for part in range(241)]
    billed = zip(times, tables.billed_gpu_s(state, times), strict=True)
    rows = [{"x": at_s / time.of, "y": gpu_s / scale.of} for at_s, gpu_s in billed]
    end = {"domain": [0, longest_s / time.of], "nice": False}
    x = axis("x", f"time [{time.name}]", scale=end)
    y = axis("y", f"billed [GPU-{scale.name}]")
    most = [{"x": 0, "y": budget / scale.of, "text": "budget"}]
    latest = [{"x": limits.deadline_s / time.of, "y": 0, "text": "deadline"}]
    layers = [
        layer(rows, {"type": "area", "color": FILL, "opacity": 0.5}, {"x": x, "y": y}),
        layer(most, {"type": "rule", "strokeDash": [6, 3], "color": INK}, {"y": y}),
        layer(latest, {"type": "rule", "strokeDash": [2, 2], "color": INK}, {"x": x}),
        text(most, {"x": x, "y": y}, dx=4, dy=10),
        text(latest, {"x": x, "y": y}, align="right", dx=-4, dy=-8),
    ]
    return whole(layers, frame.width, 180)


def shares(frame: Frame, parts: Mapping[str, float]) -> Spec:
    """Draw where the billed time went."""
    total = sum(parts.values()) or 1.0
    shares = {what: gpu_s / total for what, gpu_s in parts.items()}
    rows = [{"what": what, "share": part, "text": f"{part:.1%}"} for what, part in shares.items()]
    bare = {"labelLimit": 260, "ticks": False, "domain": False}
    y = axis("what", None, "nominal", sort=None, axis=bare)
    # Room for the text behind the longest bar.
    room = {"domainMax": max(shares.values(), default=0.0) * 1.25}
    ticks = {"format": "%", "tickCount": max(2, frame.width // 90)}
    x = axis("share", "share of what was billed", scale=room, axis=ticks)
    layers = [
        layer(rows, {"type": "bar", "color": FILL}, {"x": x, "y": y}),
        text(rows, {"x": x, "y": y}, dx=4),
    ]
    return whole(layers, frame.width, 26 * len(rows))


def compared(runs: Sequence[tuple[str, State]], width: int, *, by_gpu: bool) -> Spec:
    """Draw the best metric so far of several runs, by time or by GPU time."""
    lasts = [state.ledger.spent_gpu_s(state.now) if by_gpu else state.now for _, state in runs]
    scale = Scale.for_s(max(lasts, default=0.0))
    rows: list[Spec] = []
    ends: list[Spec] = []
    for (name, state), last in zip(runs, lasts, strict=True):
        best = tables.best_so_far(state)
        steps = [((gpu_s if by_gpu else at_s), metric) for at_s, gpu_s, metric in best]
        if steps:
            steps.append((max(last, steps[-1][0]), steps[-1][1]))
            rows += [{"x": x / scale.of, "y": y, "run": name} for x, y in steps]
            ends.append(rows[-1])
    title = f"best {printable(runs[0][1].facts.metric)} so far"
    y = values_axis("y", title, [row["y"] for row in rows])
    x = axis("x", f"billed [GPU-{scale.name}]" if by_gpu else f"time [{scale.name}]")
    step = {"type": "line", "interpolate": "step-after", "strokeWidth": 2}
    runs_apart = told_apart("run", [name for name, _ in runs])
    layers = [
        layer(rows, step, {"x": x, "y": y, **runs_apart}),
        text(ends, {"x": x, "y": y}, "run", align="right", dy=-8),
    ]
    return whole(layers, width, 260)


MOST_CONFIGURATIONS, MOST_DOTS, MOST_NAMES = 120, 150, 20


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
    return whole(layers, frame.width, 240)


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
    every = {"domain": [0, 1], "nice": False}
    x = axis("x", "share of the variance of places it explains", scale=every, axis={"format": "%"})
    between = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y}
    layers = [
        layer(rows, {"type": "bar", "color": FILL, "opacity": 0.8}, {"x": x, "y": y}),
        layer(rows, {"type": "rule", "color": INK}, between),
    ]
    return whole(layers, frame.width, 26 * len(rows))


def slices(frame: Frame, parameters: Sequence[Parameter]) -> Spec:
    """Draw the best metric of each trial by each hyperparameter alone."""
    columns = max(1, frame.width // 300)
    width = max(160, frame.width // columns - 70)
    chosen = [one for one in tables.shown(frame.order, MOST_DOTS) if one.metric is not None]
    y = values_axis("y", None, [one.metric for one in chosen if one.metric is not None])
    shapes = {"domain": frame.names, "range": SHAPES[: len(frame.names)]}
    shape = {"field": "top", "type": "nominal", "legend": None, "scale": shapes}
    pictures = []
    for parameter in parameters:
        rows = []
        for ranked in (one for one in chosen if parameter.name in one.trial.config):
            value, trial = scalar(ranked.trial.config[parameter.name]), ranked.trial.id
            rows.append({"x": value, "y": ranked.metric, "top": frame.top(trial), "trial": trial})
        if parameter.choices:
            x = axis("x", parameter.name, "nominal", axis={"labelAngle": 0, "labelLimit": 80})
        else:
            scale = {"type": "log" if parameter.log else "linear", "zero": False}
            ticks = {"tickCount": 4, "labelOverlap": True}
            x = axis("x", parameter.name, scale=scale, axis=ticks)
        dots = {"x": x, "y": y}
        best = {**dots, "color": frame.colour["color"], "shape": shape}
        winner = [row for row in rows if row["trial"] in frame.names[:1]]
        layers = [
            layer(rows, {"type": "point", "color": REST, "size": 24}, dots, REST_ONLY),
            layer(rows, {"type": "point", "filled": True, "size": 60}, best, BEST_ONLY),
            text(winner, dots, "trial", dx=6, fontSize=10),
        ]
        pictures.append({"layer": layers, "width": width, "height": 130})
    return {"concat": pictures, "columns": columns, "config": CONFIG}


def front(points: Sequence[FrontPoint], labels: Sequence[str], place: int, width: int) -> Spec:
    """Draw trials by the first metric and that at `place`, the front by these two as a line."""

    def rows(points: Sequence[FrontPoint]) -> list[Spec]:
        return [{"trial": p.trial.id, "x": p.values[place], "y": p.values[0]} for p in points]

    line = undominated(replace(each, costs=(each.costs[0], each.costs[place])) for each in points)
    y = values_axis("y", labels[0], [point.values[0] for point in points])
    x = values_axis("x", labels[place], [point.values[place] for point in points])
    dot, full = {"type": "point", "filled": True, "opacity": 1}, rows(undominated(points))
    layers = [
        layer(rows(line), {"type": "line", "color": FILL, "opacity": 0.6}, {"x": x, "y": y}),
        layer(rows(points[: tables.MOST_POINTS]), {**dot, "color": REST}, {"x": x, "y": y}),
        layer(full, {**dot, "color": FILL, "size": 60}, {"x": x, "y": y}),
        text(full[:MOST_NAMES], {"x": x, "y": y}, "trial", dx=6, dy=8, fontSize=10),
    ]
    return whole(layers, width, 260)


def study(results: Sequence[Json], metric: str) -> Spec:
    """Draw the metric of policies by deadline and by budget, on one scale (SEER, figure 4)."""
    means = [row for row in results if row["mean"] is not None]
    ends = [row["mean"] + side * row["stderr"] for row in means for side in (-1, 1)]
    deadlines = {row["deadline_s"] for row in results}
    budgets = {row["budget_gpu_min"] for row in results}
    rows = []
    if len(deadlines) > 1 or len(budgets) == 1:
        titles = {value: f"budget {value:g} GPU-min" for value in sorted(budgets)}
        rows.append(("deadline_s", "deadline [min]", 60, "budget_gpu_min", titles))
    if len(budgets) > 1:
        titles = {value: f"deadline {format_duration(round(value))}" for value in sorted(deadlines)}
        rows.append(("budget_gpu_min", "budget [GPU-min]", 1, "deadline_s", titles))
    dot = {"type": "point", "filled": True, "size": 50, "opacity": 1, "clip": True}
    panels = []
    for along, title, unit, fixed, titles in rows:
        for value, head in titles.items():
            points = [
                {
                    "x": row[along] / unit,
                    "y": row["mean"],
                    "low": row["mean"] - row["stderr"],
                    "high": row["mean"] + row["stderr"],
                    "policy": row["policy"],
                }
                for row in means
                if row[fixed] == value
            ]
            scale = {"domain": focus(ends), "zero": False, "nice": False}
            y = axis("y", metric, scale=scale)
            x = axis("x", title, scale={"zero": False, "padding": 12})
            # All policies are in every panel's scale, so that each has one colour and mark.
            every = {"domain": list(dict.fromkeys(row["policy"] for row in results))}
            policy = axis("policy", None, "nominal", scale=every)
            line = {"x": x, "y": y, "color": policy}
            error = {**line, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
            layers = [
                layer(points, {"type": "line", "clip": True}, line),
                layer(points, {"type": "rule", "clip": True}, error),
                layer(points, dot, {**line, "shape": policy}),
            ]
            panels.append({"title": head, "layer": layers, "width": 300, "height": 220})
    columns = max(len(titles) for *_, titles in rows)
    return {"concat": panels, "columns": columns, "config": CONFIG}
