"""Draws Vega-Lite as SVG, PNG and PDF with vl-convert, without browser and network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from seerd.errors import UsageError
from seerd.extras import installing
from seerd.telling.harmless import printable

VERSION = "6.4"  # of Vega-Lite
PAPER = {"background": "white"}
DETAIL = 2.0
ENDINGS = (".svg", ".png", ".pdf")
LONGEST = 400  # characters of a text in a picture


def missing() -> UsageError:
    """Return the error that a package of the extra is not installed."""
    return UsageError(f"reports need two more packages: {installing('report')}")


def svg(spec: dict[str, Any]) -> str:
    """Return a picture as SVG, in the colours of the text around it."""
    drawn: str = _converter().vegalite_to_svg(
        _each_text(spec, _drawable), vl_version=VERSION, allowed_base_urls=[]
    )
    return drawn


def write(spec: dict[str, Any], path: Path) -> None:
    """Write a picture as .png, .pdf or .svg, black on white. Raises `OSError`, `UsageError`."""
    if path.suffix not in ENDINGS:
        raise UsageError(f"{path}: a picture ends in {', '.join(ENDINGS)}")
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
    black: dict[str, Any] = _each_text(
        {**spec, "config": {**spec["config"], **PAPER}},
        lambda text: "black" if text == "currentColor" else text,
    )
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
