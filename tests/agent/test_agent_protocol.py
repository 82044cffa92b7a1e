"""What may travel between daemon and agent: every message and nothing else."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, fields, replace
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd.agent.manifest import LARGEST, NAME
from seerd.agent.protocol import (
    FACTS,
    MAX_LINE,
    Alive,
    Checkpointed,
    Exited,
    Hello,
    Job,
    Order,
    ProtocolError,
    Renew,
    Reported,
    Start,
    Stop,
    Welcome,
)
from seerd.agent.wire import BOUNDS, decode, encode

START = Start("a.1", "t1", 1, [0, 1], {"lr": 0.1, "layers": 2, "adam": True, "name": "x"}, 17, [])
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def of(hint: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Values of a field's type, within the bounds of its name."""
    low, high = BOUNDS.get(name, (None, None))
    if hint is Any:
        return PLAIN
    if hint is float:
        return st.floats(low, high, allow_nan=False, allow_infinity=False)
    if hint is int:
        return st.integers(-LARGEST, LARGEST) if high is None else st.integers(low, int(high))
    if hint is str:
        return st.text()
    if hasattr(hint, "__dataclass_fields__"):
        return made(hint)
    origin, inner = getattr(hint, "__origin__", None), getattr(hint, "__args__", ())
    if origin is list:
        return st.lists(of(inner[0]), max_size=4)
    if origin is dict:
        return st.dictionaries(st.text(), of(inner[1]), max_size=4)
    if type(None) in inner:
        return st.none() | of(inner[0], name)
    return st.from_type(hint)


def made(cls: Any) -> st.SearchStrategy[Any]:
    """Messages of a class."""
    hints = get_type_hints(cls)
    values = {field.name: of(hints[field.name], field.name) for field in fields(cls)}
    if cls is Checkpointed:
        values["name"] = st.from_regex(NAME, fullmatch=True)
    return st.builds(cls, **values)


@given(st.one_of([made(cls) for cls in (*get_args(Order), Welcome, Alive, *FACTS)]))
def test_every_message_arrives_as_it_was_sent_on_one_line(message):
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == message


@given(
    st.binary(max_size=300)
    | st.text().map(str.encode)
    | PLAIN.map(lambda value: json.dumps(value).encode())
)
def test_whatever_is_no_message_is_a_protocol_error(line):
    with pytest.raises(ProtocolError):
        decode(line)


@given(st.sampled_from([field.name for field in fields(Start)]), PLAIN)
def test_a_field_of_another_type_is_never_let_through(name, value):
    body = {**json.loads(encode(START)), name: value}
    try:
        message = decode(json.dumps(body).encode())
    except ProtocolError:
        return
    assert isinstance(message, Start)
    assert decode(encode(message)) == message
    assert type(getattr(message, name)) is type(getattr(START, name))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b'{"kind": 1}',
        b'{"kind": ["hello"]}',
        b'{"kind": "unknown"}',
        b'{"kind": "hello", "version": 1, "run": "r"}',
        b'{"kind": "hello", "version": 1, "run": "r", "seen": 0, "more": 1}',
        b'{"kind": "hello", "version": true, "run": "r", "seen": 0}',
        b'{"kind": "hello", "version": 1.0, "run": "r", "seen": 0}',
        b'{"kind": "hello", "version": 1, "run": "r", "seen": 0, "seen": 0}',
        b'{"kind": "hello", "version": 1, "run": "\xff", "seen": 0}',
        b'\xef\xbb\xbf{"kind": "hello", "version": 1, "run": "r", "seen": 0}',
        '{"kind": "hello", "version": 1, "run": "r", "seen": 0}'.encode("utf-16"),
        b'{"kind": "renew", "for_s": NaN, "grace_s": 1}',
        b'{"kind": "renew", "for_s": 1e999, "grace_s": 1}',
        b'{"kind": "renew", "for_s": 1' + b"0" * 400 + b', "grace_s": 1}',
        b'{"kind": "prepare", "id": "p", "job": {}}',
        b'{"kind": "prepare", "id": "p", "job": []}',
        encode(START).replace(b"0.1", b"Infinity"),
        encode(START).replace(b"0.1", b"[[NaN]]"),
        encode(START).replace(b"[0,1]", b'[0,"1"]'),
        b"[" * 5000,
        b'{"kind": "hello", "run": ' + b"[" * 900 + b"]" * 900 + b"}",
        encode(START).replace(b"0.1", b"[" * 900 + b"NaN" + b"]" * 900),
        b'{"kind": "hello", "version": 1, "run": "' + b"x" * MAX_LINE + b'", "seen": 0}',
    ],
)
def test_hostile_lines_are_protocol_errors(line):
    with pytest.raises(ProtocolError):
        decode(line)


@pytest.mark.parametrize(
    ("name", "last", "beyond"),
    [
        ("attempt", 1 << 53, (1 << 53) + 1),
        ("attempt", -(1 << 53), -(1 << 53) - 1),
        ("seq", 0, -1),
        ("seq", 1 << 53, (1 << 53) + 1),
        ("epoch", 1 << 53, (1 << 53) + 1),
        ("epoch", 0, -1),
        ("at", 1e12, 1.001e12),
        ("at", -1e12, -1.001e12),
        ("unit_s", 0.0, -0.001),
        ("unit_s", 1e9, 1.001e9),
    ],
)
def test_numbers_are_within_what_can_be(name, last, beyond):
    body = json.loads(encode(Reported(1, 0.0, "t1", 1, 1, {"accuracy": 0.5}, 0.1)))
    assert getattr(decode(json.dumps({**body, name: last}).encode()), name) == last
    with pytest.raises(ProtocolError):
        decode(json.dumps({**body, name: beyond}).encode())


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_finite_arrives_as_none(number):
    fact = Reported(1, 0.0, "t1", 1, 1, {"accuracy": number, "loss": 0.5}, 0.1)
    assert decode(encode(fact)) == replace(fact, metrics={"accuracy": None, "loss": 0.5})


@pytest.mark.parametrize(
    "message",
    [
        Stop("s", "t1", 1, checkpoint=True, grace_s=math.nan),
        replace(START, config={"lr": math.inf}),
        replace(START, config={"lr": object()}),
        Hello(1, "x" * MAX_LINE, 0),
    ],
)
def test_what_cannot_travel_is_not_sent(message):
    with pytest.raises(ProtocolError):
        encode(message)


def test_a_whole_number_may_stand_for_a_float():
    assert decode(b'{"kind": "renew", "for_s": 60, "grace_s": 5}\n').for_s == 60.0


LATER = {"max_reports", "smooth", "preload", "observed", "id", "python_in", "container"}
"""Fields of the job that were added later: the setups of older runs do not have them."""


def test_the_job_has_no_field_that_could_be_left_out_but_those_that_were_added_later():
    assert {field.name for field in fields(Job) if field.default is not MISSING} == LATER


def test_what_an_older_agent_does_not_say_is_as_it_was_before_it_could_be_said():
    older = b'{"kind":"exited","seq":1,"at":2.0,"trial":"t1","attempt":1,"cause":"crashed","code":1,"rank":0,"tail":[],"silent":1.5}'
    assert decode(older) == Exited(1, 2.0, "t1", 1, "crashed", 1, 0, [], 1.5)
    with pytest.raises(ProtocolError):
        decode(older.replace(b'"cause":"crashed",', b""))


def test_an_order_counts_from_when_it_was_sent_however_late_it_arrives() -> None:
    renew = Renew(60.0, 10.0, at=100.0)
    assert renew.since(130.0) == 100.0
    assert renew.since(90.0) == 90.0  # no order comes from the future
    assert replace(renew, at=None).since(130.0) == 130.0
    stop = Stop("s", "t1", 1, True, 30.0, at=100.0)
    assert stop.kill_at(120.0) == 130.0
    assert stop.kill_at(90.0) == 120.0
    assert replace(stop, at=None).kill_at(120.0) == 150.0
    assert replace(stop, checkpoint=False).kill_at(120.0) == -math.inf
