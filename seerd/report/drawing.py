"""Draws Vega-Lite as SVG, PNG and PDF, with vl-convert: no browser and no network.

The one rule: nothing is fetched; all data is in the picture's own text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seerd.errors import UsageError
from seerd.extras import installing

VERSION = "6.4"
"""Of Vega-Lite."""
PAPER = {"background": "white"}
DETAIL = 2.0
ENDINGS = (".svg", ".png", ".pdf")


def missing() -> UsageError:
    """Return the error that a package of the extra is not installed."""
    return UsageError(f"reports need two more packages: {installing('report')}")


def svg(spec: dict[str, Any]) -> str:
    """Return a picture as SVG, in the colours of the text around it."""
    drawn: str = _converter().vegalite_to_svg(spec, vl_version=VERSION, allowed_base_urls=[])
    return drawn


def write(spec: dict[str, Any], path: Path) -> None:
    """Write a picture as `.png`, `.pdf` or `.svg`, black on white. Raises `OSError`, and
    `UsageError` for any other ending.
    """
    if path.suffix not in ENDINGS:
        raise UsageError(f"{path}: a picture ends in {', '.join(ENDINGS)}")
    convert, black = _converter(), on_paper(spec)
    if path.suffix == ".svg":
        told = svg(black).encode()
    elif path.suffix == ".pdf":
        told = convert.vegalite_to_pdf(black, vl_version=VERSION, allowed_base_urls=[])
    else:
        told = convert.vegalite_to_png(
            black, vl_version=VERSION, scale=DETAIL, allowed_base_urls=[]
        )
    path.write_bytes(told)


def on_paper(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a picture black on white."""
    black: dict[str, Any] = _black({**spec, "config": {**spec["config"], **PAPER}})
    return black


def _black(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _black(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_black(one) for one in value]
    return "black" if value == "currentColor" else value


def _converter() -> Any:
    """Return the package. Raises `UsageError` if it is not installed."""
    try:
        import vl_convert
    except ImportError as error:
        raise missing() from error
    return vl_convert
