"""Messages as JSON lines, and back. Pure. `decode` accepts exactly the protocol's messages, with
every number and text within its bounds.
"""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from seerd.agent.manifest import LARGEST, is_safe
from seerd.agent.protocol import MAX_LINE, Checkpointed, Message, ProtocolError

BOUNDS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("at", "now", "by", "silent", "wall"), (-1e12, 1e12)),
    **dict.fromkeys(("unit_s", "save_s", "over_s", "waited_s"), (0.0, 1e9)),
    **dict.fromkeys(("seq", "size", "free", "units", "ticks", "epoch"), (0, LARGEST)),
    "parts": (1, 16),
}
"""Bounds of fields with these names, in any message; arithmetic within them stays finite."""


def encode(message: Message) -> bytes:
    """Encode a message as one line. A number that is not finite becomes None where a field allows
    that.

    Raises `ProtocolError` for other values that JSON lacks, and for a line that is too long.
    """
    try:
        line = _line(message)
    except (ValueError, TypeError):
        try:
            line = _line(_made(type(message), asdict(message)))
        except (ValueError, TypeError) as error:
            raise ProtocolError(f"{type(message).__name__} cannot travel: {error}") from None
    if len(line) > MAX_LINE:
        raise ProtocolError(f"a line of {len(line)} bytes is too long")
    return line


def decode(line: bytes) -> Message:
    """Decode one line, with or without its newline. Raises `ProtocolError`."""
    if len(line) > MAX_LINE:
        raise ProtocolError(f"a line of {len(line)} bytes is too long")
    try:
        body = _DECODER.decode(line.decode())
        kind = body.pop("kind", None) if isinstance(body, dict) else None
        if not isinstance(kind, str) or kind not in _KINDS:
            raise ProtocolError(f"no message is of kind {_shown(kind)}")
        message: Message = _made(_KINDS[kind], body)
    except RecursionError:
        raise ProtocolError("nested too deeply") from None
    except ValueError as error:
        raise ProtocolError(f"not JSON: {error}") from None
    return message


def _line(message: Message) -> bytes:
    body = {"kind": message.kind, **asdict(message)}
    for part in (body, *_jobs_in(body)):  # so runs without these are as they were for all versions
        if part.get("parts") == 1:
            del part["parts"]
        for name in ("secrets", "container", "mounts"):
            if not part.get(name, True):
                del part[name]
    if body["kind"] == "refused" and body["cause"] == "":
        del body["cause"]
    if body.get("fault") == "":
        del body["fault"]
    if body.get("proof", ...) is None:
        del body["proof"]
    return _ENCODER.encode(body).encode() + b"\n"


def _jobs_in(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [body["job"], *body["jobs"]] if body["kind"] == "prepare" else []


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body = dict(pairs)
    if len(body) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return body


def _made(cls: Any, body: Any) -> Any:
    """Make a dataclass of a JSON object with exactly its fields; those with a default may be
    missing. Raises `ProtocolError`.
    """
    if not isinstance(body, dict):
        raise ProtocolError(f"{cls.__name__} is not an object")
    hints, required = _fields(cls)
    if not required <= body.keys() <= hints.keys():
        raise ProtocolError(f"{cls.__name__} has the fields {', '.join(sorted(body)):.200}")
    made = {
        name: _checked(f"{cls.__name__}.{name}", hints[name], value) for name, value in body.items()
    }
    for name, (low, high) in BOUNDS.items():
        value = made.get(name)
        if value is not None and not low <= value <= high:
            raise ProtocolError(f"{cls.__name__}.{name} cannot be {value}")
    if cls is Checkpointed and not is_safe(made["name"]):
        raise ProtocolError(f"no checkpoint is called {_shown(made['name'])}")
    return cls(**made)


def _checked(where: str, hint: Any, value: Any) -> Any:
    if hint is str and isinstance(value, str):
        return _text(value)
    if hint is float and type(value) in (int, float) and not _not_finite(value):
        return float(value)
    if hint is int and type(value) is int and -LARGEST <= value <= LARGEST:
        return value
    if hint is bool and type(value) is bool:
        return value
    origin, inner = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return _made(hint, value)
    if origin is Union:
        return None if value is None or _not_finite(value) else _checked(where, inner[0], value)
    if origin is list and isinstance(value, list):
        return [_checked(where, inner[0], item) for item in value]
    if origin is dict and isinstance(value, dict):
        return {_text(key): _checked(where, inner[1], item) for key, item in value.items()}
    if hint is Any and _is_plain(value):
        return value
    raise ProtocolError(f"{where} cannot be {_shown(value)}")


def _text(value: str) -> str:
    """Return the text, with `?` for lone surrogates, which cannot be encoded."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _not_finite(value: Any) -> bool:
    if type(value) not in (int, float):
        return False
    try:
        return not math.isfinite(value)
    except OverflowError:
        return True


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or (isinstance(value, (bool, int, float, str)) and not _not_finite(value))


def _shown(value: Any) -> str:
    """Show the start of a value; only the type of one that is long to show."""
    return (
        repr(value)[:80]
        if isinstance(value, (bool, float, str, type(None)))
        else f"this {type(value).__name__}"
    )


_DECODER = json.JSONDecoder(object_pairs_hook=_object)
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_KINDS: dict[str, Any] = {cls.kind: cls for cls in get_args(Message)}


@lru_cache(maxsize=None)
def _fields(cls: Any) -> tuple[dict[str, Any], set[str]]:
    """Return the types of the class's fields, slow to look up, and which have no default."""
    types = get_type_hints(cls)
    required = {
        each.name
        for each in fields(cls)
        if each.default is MISSING and each.default_factory is MISSING
    }
    return {each.name: types[each.name] for each in fields(cls)}, required
