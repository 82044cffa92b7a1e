"""Draws Vega-Lite (vega.github.io/vega-lite) with vl-convert, without browser and network.

Pictures can be read without colour: the best trials also have a dash and their name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from seerd.core.state import State
from seerd.errors import UsageError
from seerd.extras import installing
from seerd.telling.explanation.timeline import Timeline
from seerd.telling.harmless import printable
from seerd.telling.page.tables import TOP, Ranked

Spec = dict[str, Any]
Rows = Sequence[Spec]
COLOURS = ("#d55e00", "#0f7fc4", "#009e73", "#b8860b", "#b0559b", "#7a6ff0")
"""Told apart by most people with a deficiency too, on white and on black (after Okabe and Ito)."""
DASHES = ([1, 0], [6, 3], [2, 2], [8, 2, 2, 2], [4, 4], [1, 3])
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
REST, INK, FILL = "#8a8f98", "currentColor", "#4c78a8"
MOST_STAGES = 40
CONFIG: Spec = {
    "background": None,
    "aria": False,
    "font": "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK,
        "titleColor": INK,
        "domainColor": REST,
        "tickColor": REST,
        "gridColor": REST,
        "gridOpacity": 0.2,
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
    },
    "text": {"color": INK, "fontSize": 11},
}


@dataclass(frozen=True, slots=True)
class Scale:
    """The unit in which times are shown: seconds, minutes or hours."""

    of: float  # seconds in one
    name: str  # as people write it

    @classmethod
    def for_s(cls, longest_s: float) -> Scale:
        """Return the unit for times up to so many seconds."""
        if longest_s > 4 * 3600:
            return cls(3600.0, "h")
        return cls(60.0, "min") if longest_s > 240 else cls(1.0, "s")


@dataclass(frozen=True)
class Frame:
    """One run, to be drawn so many pixels wide; `order` has its trials, the best first."""

    timeline: Timeline
    state: State
    order: list[Ranked]
    width: int

    @cached_property
    def time(self) -> Scale:
        """The unit of times since the run began."""
        return Scale.for_s(self.state.now)

    @cached_property
    def names(self) -> list[str]:
        """The best trials, which are told apart."""
        return [one.trial.id for one in self.order[:TOP] if one.metric is not None]

    def top(self, trial: str) -> str:
        """Return the trial's name if it is one of the best; else nothing."""
        return trial if trial in self.names else ""

    @property
    def colour(self) -> Spec:
        """Encode rows with a field `top`."""
        return told_apart("top", self.names, rest=True)

    def time_axis(self, field: str) -> Spec:
        """Encode times since the run began, from the first to the last."""
        last = self.state.now / self.time.of
        scale = {"domainMax": last, "domainMin": 0, "nice": False} if last else {}
        return axis(field, f"time [{self.time.name}]", scale=scale)

    def stages(self) -> list[Spec]:
        """Draw where stages began."""
        rows: list[Spec] = []
        for chapter in self.timeline.chapters:
            name = "end" if chapter.end else f"stage {(chapter.stage or 0) + 1}"
            if not rows or rows[-1]["text"] != name:
                rows.append({"x": chapter.start_s / self.time.of, "text": name})
        rows = rows[:MOST_STAGES]
        x = self.time_axis("x")
        rule = {"type": "rule", "color": INK, "strokeDash": [3, 3], "opacity": 0.6}
        names = text(rows, {"x": x}, dx=3, dy=-4, y=0, fontSize=10)
        return [layer(rows, rule, {"x": x}), names]


def whole(layers: list[Spec], width: int, height: float) -> Spec:
    """Put layers together to a picture, so many pixels wide with all that stands beside it."""
    fit = {"type": "fit-x", "contains": "padding"}
    return {"layer": layers, "width": width, "height": height, "autosize": fit, "config": CONFIG}


def axis(field: str, title: str | None, kind: str = "quantitative", **more: Any) -> Spec:
    """Encode a field of the rows by its place."""
    return {"field": field, "type": kind, "title": title, **more}


def layer(rows: Rows, mark: Spec, encoding: Spec, only: str = "") -> Spec:
    """Draw rows, or `only` those of which this is true."""
    made: Spec = {"data": {"values": list(rows)}, "mark": mark, "encoding": encoding}
    return {**made, "transform": [{"filter": only}]} if only else made


def text(rows: Rows, encoding: Spec, field: str = "text", only: str = "", **mark: Any) -> Spec:
    """Write a field of the rows, to the right of their places."""
    words = {"text": {"field": field, "type": "nominal"}}
    return layer(rows, {"type": "text", "align": "left", **mark}, {**encoding, **words}, only)


def told_apart(field: str, names: Sequence[str], *, rest: bool = False) -> Spec:
    """Encode a field by colour and dash; `rest`: an empty text is grey."""
    domain = [*names, *([""] if rest else [])]
    colours = [COLOURS[place % TOP] for place in range(len(names))] + [REST]
    dashes = [DASHES[place % TOP] for place in range(len(names))] + [[1, 0]]
    plain = {"field": field, "type": "nominal", "legend": None}
    return {
        "color": {**plain, "scale": {"domain": domain, "range": colours}},
        "strokeDash": {**plain, "scale": {"domain": domain, "range": dashes}},
    }


def values_axis(field: str, title: str | None, values: Sequence[float]) -> Spec:
    """Encode values of a metric, where most of them are."""
    scale = {"zero": False, "domain": focus(values), "clamp": True, "nice": False}
    return axis(field, title, scale=scale)


def focus(values: Sequence[float]) -> list[float]:
    """Return the range without the worst outliers of curves that begin badly or explode."""
    ordered = sorted(value for value in values if math.isfinite(value))
    if not ordered:
        return [0.0, 1.0]
    quarter, three = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    reach = 4 * (three - quarter)
    low, high = max(ordered[0], quarter - reach), min(ordered[-1], three + reach)
    room = (high - low or abs(high) or 1.0) * 0.04
    return [low - room, high + room]


def beyond(values: Sequence[float]) -> str:
    """Write how many values `values_axis` draws at its edge; empty: none."""
    low, high = focus(values)
    out = sum(not low <= value <= high for value in values)
    if not out:
        return ""
    return f" {out} of {len(values)} values are beyond what is shown, and drawn at its edge."


def apart(ends: Rows, domain: Sequence[float]) -> list[Spec]:
    """Give each end of a curve a height for its name, so that names do not cover each other."""
    least = (domain[1] - domain[0]) * 0.055
    near = max((row["x"] for row in ends), default=0.0) * 0.1
    placed: list[Spec] = []
    for row in sorted(ends, key=lambda row: -row["y"]):
        at = max(domain[0], min(domain[1], row["y"]))
        for other in placed:
            if abs(other["x"] - row["x"]) < near:
                at = min(at, other["at"] - least)
        placed.append({**row, "at": at})
    return placed


VERSION = "6.4"  # of Vega-Lite
DETAIL = 2.0
ENDINGS = (".svg", ".png", ".pdf")
LONGEST = 400  # characters of a text in a picture


def missing() -> UsageError:
    """Return the error that a package of the extra is not installed."""
    needed = installing("report")
    return UsageError(f"reports and pictures need two more packages: {needed}")


def check(path: Path) -> None:
    """Raise `UsageError` if no picture can be written there, before long work is done for it."""
    if path.suffix not in ENDINGS:
        raise UsageError(f"{path}: a picture ends in {', '.join(ENDINGS)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    _converter()


def svg(spec: dict[str, Any]) -> str:
    """Return a picture as SVG, in the colours of the text around it."""
    drawn: str = _converter().vegalite_to_svg(
        _each_text(spec, _drawable), vl_version=VERSION, allowed_base_urls=[]
    )
    return drawn


def write(spec: dict[str, Any], path: Path) -> None:
    """Write a picture as .png, .pdf or .svg, black on white. Raises `OSError`, `UsageError`."""
    check(path)
    convert, black = _converter(), _each_text(on_paper(spec), _drawable)
    if path.suffix == ".svg":
        data = svg(black).encode()
    elif path.suffix == ".pdf":
        data = convert.vegalite_to_pdf(black, vl_version=VERSION, allowed_base_urls=[])
    else:
        data = convert.vegalite_to_png(
            black, vl_version=VERSION, scale=DETAIL, allowed_base_urls=[]
        )
    path.write_bytes(data)


def on_paper(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a picture black on white."""
    white = {**spec, "config": {**spec["config"], "background": "white"}}
    black: dict[str, Any] = _each_text(white, lambda text: "black" if text == INK else text)
    return black


def _drawable(text: str) -> str:
    """Return a text that cannot end vl-convert, which aborts on control characters."""
    text = printable(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {key: _each_text(one, change) for key, one in value.items()}
    if isinstance(value, list):
        return [_each_text(one, change) for one in value]
    return change(value) if isinstance(value, str) else value


def _converter() -> Any:
    try:
        import vl_convert
    except ImportError as error:
        raise missing() from error
    return vl_convert
