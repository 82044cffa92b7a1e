"""Whether values on the wire have the shapes that botocore's models give them.

The one rule: each function gives lines, one for each thing that is wrong, with where it is; none
means that all is as the model says. Nothing is repaired or guessed.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from xml.etree import ElementTree as ET

from botocore.model import ListShape, MapShape, Shape, StructureShape

OPEN = frozenset({"InstanceType"})
"""Names that AWS adds to every month: a model that is older than the cloud does not know all."""

_ISO8601 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)")
_RFC822 = re.compile(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT")
_TEXTS: dict[str, re.Pattern[str]] = {
    "integer": re.compile(r"-?\d+"),
    "long": re.compile(r"-?\d+"),
    "float": re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?"),
    "double": re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?"),
    "boolean": re.compile(r"true|false"),
}
_JSON: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "boolean": (bool,),
    "timestamp": (int, float),
    "string": (str,),
    "character": (str,),
    "blob": (str,),
}

Names = Callable[[str, Shape], str]
"""How a member is called on the wire."""


def in_text(shape: Shape, text: str, at: str, *, dates: re.Pattern[str] = _ISO8601) -> list[str]:
    """What is wrong with a scalar that is written as text."""
    kind = shape.type_name
    form = dates if kind == "timestamp" else _TEXTS.get(kind)
    if form is not None and form.fullmatch(text) is None:
        return [f"{at}: {text[:80]!r} is no {kind}"]
    if kind == "blob":
        return _no_base64(text, at)
    if kind in {"integer", "long", "float", "double"}:
        return _beyond(shape, float(text), "", at)
    return _no_such_string(shape, text, at) if kind == "string" else []


def in_header(shape: Shape, text: str, at: str) -> list[str]:
    """What is wrong with a scalar in a header."""
    return in_text(shape, text, at, dates=_RFC822)


def in_json(shape: Shape, value: Any, at: str) -> list[str]:
    """What is wrong with a value of the JSON protocols."""
    if isinstance(shape, StructureShape):
        if not isinstance(value, dict):
            return [f"{at}: {value!r} is no structure"]
        members = {_json_name(name, member): member for name, member in shape.members.items()}
        lacking = _lacking(shape, value, _json_name, at)
        return lacking + _all(
            in_json(members[name], one, f"{at}.{name}")
            if name in members
            else [f"{at}: {shape.name} has no member {name}"]
            for name, one in value.items()
            if one is not None
        )
    if isinstance(shape, ListShape):
        if not isinstance(value, list):
            return [f"{at}: {value!r} is no list"]
        inside = _all(in_json(shape.member, one, f"{at}[{i}]") for i, one in enumerate(value))
        return _beyond(shape, len(value), " entries", at) + inside
    if isinstance(shape, MapShape):
        if not isinstance(value, dict):
            return [f"{at}: {value!r} is no map"]
        return _all(in_json(shape.value, one, f"{at}.{name}") for name, one in value.items())
    return _json_scalar(shape, value, at)


def in_xml(shape: Shape, node: ET.Element, at: str, but: Iterable[str] = ()) -> list[str]:
    """What is wrong with an element of an XML answer or body. `but`: names of children that are
    said elsewhere, and may be here.
    """
    if isinstance(shape, StructureShape):
        return _xml_structure(shape, node, at, frozenset(but))
    if isinstance(shape, ListShape):
        return _xml_list(shape, list(node), at)
    if isinstance(shape, MapShape):
        return _all(in_xml(shape.value, one[1], f"{at}.{one[0].text}") for one in node)
    if len(node):
        return [f"{at}: <{tag(node[0])}> in a {shape.type_name}"]
    # An empty element is how EC2 says that there is none.
    return in_text(shape, node.text, at) if node.text else []


def in_query(
    shape: StructureShape, params: Mapping[str, str], name: Names, mark: str = ""
) -> list[str]:
    """What is wrong with parameters of the query protocols, `A.1.B=text`. `mark`: what stands
    before the number in a list.
    """
    return _query(shape, _tree(params), name, mark, shape.name)


def tag(node: ET.Element) -> str:
    """The name of an element without its namespace."""
    return node.tag.rpartition("}")[2]


def xml_name(name: str, shape: Shape) -> str:
    """How a member is called in XML, in headers and in the query of an URL."""
    if isinstance(shape, ListShape) and _flat(shape):
        return str(shape.member.serialization.get("name") or shape.serialization.get("name", name))
    return str(shape.serialization.get("name", name))


def _xml_structure(
    shape: StructureShape, node: ET.Element, at: str, but: frozenset[str]
) -> list[str]:
    members = {xml_name(name, member): member for name, member in shape.members.items()}
    children: dict[str, list[ET.Element]] = {}
    for child in node:
        children.setdefault(tag(child), []).append(child)
    wrong = _lacking(shape, {**children, **dict.fromkeys(but)}, xml_name, at)
    for name, found in children.items():
        if name in but:
            continue
        if (member := members.get(name)) is None:
            wrong.append(f"{at}: {shape.name} has no member {name}")
        elif isinstance(member, ListShape) and _flat(member):
            wrong += _all(in_xml(member.member, one, f"{at}.{name}") for one in found)
        elif len(found) > 1:
            wrong.append(f"{at}.{name}: {len(found)} times")
        else:
            wrong += in_xml(member, found[0], f"{at}.{name}")
    return wrong


def _xml_list(shape: ListShape, nodes: list[ET.Element], at: str) -> list[str]:
    entry = shape.member.serialization.get("name", "member")
    return _all(
        in_xml(shape.member, one, f"{at}[{i}]")
        if tag(one) == entry
        else [f"{at}: <{tag(one)}> where each is <{entry}>"]
        for i, one in enumerate(nodes)
    )


def _flat(shape: ListShape) -> bool:
    return bool(shape.serialization.get("flattened"))


def _tree(params: Mapping[str, str]) -> dict[str, Any]:
    """`{"A.1.B": "x"}` as `{"A": {"1": {"B": "x"}}}`."""
    tree: dict[str, Any] = {}
    for key, value in params.items():
        *parents, last = key.split(".")
        at = tree
        for part in parents:
            below = at.setdefault(part, {})
            if not isinstance(below, dict):
                below = at[part] = {"": below}
            at = below
        at[last] = {**at[last], "": value} if isinstance(at.get(last), dict) else value
    return tree


def _query(shape: Shape, value: Any, name: Names, mark: str, at: str) -> list[str]:
    if not isinstance(shape, StructureShape | ListShape | MapShape):
        scalar = isinstance(value, str)
        return in_text(shape, value, at) if scalar else [f"{at}: {shape.name} has no members"]
    if not isinstance(value, dict):
        # An empty list is written as the name alone.
        empty = isinstance(shape, ListShape) and value == ""
        return [] if empty else [f"{at}: {value!r} is no {shape.type_name}"]
    if isinstance(shape, ListShape):
        return _query_list(shape, value, name, mark, at)
    if isinstance(shape, MapShape):
        return []
    members = {name(one, member): member for one, member in shape.members.items()}
    return _lacking(shape, value, name, at) + _all(
        _query(members[key], one, name, mark, f"{at}.{key}")
        if key in members
        else [f"{at}: {shape.name} has no member {key}"]
        for key, one in value.items()
    )


def _query_list(
    shape: ListShape, value: dict[str, Any], name: Names, mark: str, at: str
) -> list[str]:
    if mark and not _flat(shape):
        if set(value) != {mark}:
            return [f"{at}: {sorted(value)} where a list has {mark!r}"]
        value = value[mark]
    if sorted(value) != sorted(str(i) for i in range(1, len(value) + 1)):
        return [f"{at}: {sorted(value)} do not count from 1"]
    inside = _all(_query(shape.member, one, name, mark, f"{at}.{i}") for i, one in value.items())
    return _beyond(shape, len(value), " entries", at) + inside


def _json_name(name: str, shape: Shape) -> str:
    return str(shape.serialization.get("name", name))


def _json_scalar(shape: Shape, value: Any, at: str) -> list[str]:
    kinds = _JSON.get(shape.type_name, (object,))
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        return [f"{at}: {value!r} is no {shape.type_name}"]
    if shape.type_name == "blob":
        return _no_base64(value, at)
    if isinstance(value, str):
        return _no_such_string(shape, value, at)
    return [] if isinstance(value, bool) else _beyond(shape, value, "", at)


def _lacking(shape: StructureShape, found: Iterable[str], name: Names, at: str) -> list[str]:
    wanted = (name(one, shape.members[one]) for one in shape.required_members)
    here = set(found)
    return [f"{at}: {shape.name} lacks {one}" for one in wanted if one not in here]


def _no_such_string(shape: Shape, text: str, at: str) -> list[str]:
    enum = getattr(shape, "enum", ())
    if enum and text not in enum and shape.name not in OPEN:
        return [f"{at}: {text[:80]!r} is no {shape.name}"]
    return _beyond(shape, len(text), " characters", at)


def _beyond(shape: Shape, size: float, unit: str, at: str) -> list[str]:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if (least is not None and size < least) or (most is not None and size > most):
        return [f"{at}: {size:g}{unit} where {shape.name} has {least} to {most}"]
    return []


def _no_base64(text: str, at: str) -> list[str]:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error:
        return [f"{at}: {text[:80]!r} is no base64"]
    return []


def _all(found: Iterable[list[str]] | Iterator[list[str]]) -> list[str]:
    return [line for lines in found for line in lines]
