"""What a person writes, or has from somebody else: a spec, `--set`, units. Every mistake is a
sentence, all are told at once.
"""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seerd.commands.options import SpecOptions
from seerd.errors import SeerdError, SpecError
from seerd.planner.profile import parse_scaling
from seerd.spec.clusters import CLUSTER_KEYS
from seerd.spec.reader import SECTIONS
from seerd.spec.spec import load_spec
from seerd.units import (
    format_duration,
    format_gpu_time,
    format_money,
    parse_duration,
    parse_gpu_time,
    parse_money,
)
from tests.fuzz.kit import NUMBERS, TEXTS, VALUES, fuzzed, junk

SPEC = b"""
name = "quick"
metric = { name = "accuracy", mode = "max" }
[train]
script = "train.py"
data = [{ from = "s3://bucket/x", to = "data" }]
env = { A = "1" }
[space]
lr = { low = 1e-4, high = 1.0, log = true }
layers = { low = 2, high = 8, step = 2 }
optimizer = ["sgd", "adam"]
momentum = { mean = 0.9, std = 0.02, high = 0.99, when = { optimizer = "sgd" } }
nesterov = { values = [true, false], when = { optimizer = "sgd", layers = [2, 4] } }
epochs = 90
constraints = ["lr * layers <= 4", "optimizer != 'sgd' or momentum > 0.8"]
[policy]
eta = 2
[limits]
deadline = "30m"
budget = "480gpu-min"
cost = "$40"
[cluster]
provider = "hosts"
store = "s3://bucket/prefix"
hosts = [{ address = "10.0.0.5", user = "ubuntu", gpus = 8 }]
"""
KEYS = [
    f"{section}.{key}" if section else key for section, keys in SECTIONS.items() for key in keys
]
KEYS += [f"cluster.{key}" for keys in CLUSTER_KEYS.values() for key in keys] + [
    "space",
    "space.x",
    "space.constraints",
    "space.momentum",
    "space.momentum.std",
    "space.momentum.when",
    "space.nesterov.when.optimizer",
    "limits",
    "a.b.c",
    "",
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


def read(folder, text: bytes, overrides=()) -> None:
    """The spec, or every mistake in sentences; what is taken can be kept in a journal."""
    path = folder / "spec.toml"
    path.write_bytes(text)
    try:
        spec = load_spec(path, overrides)
    except SpecError as error:
        assert error.problems
        assert len(str(error)) < 20_000 + 1000 * len(error.problems)
        return
    msgspec.json.encode([spec.policy, spec.space, spec.limits])
    assert "\0" not in spec.train.script


@given(junk(SPEC))
@example(SPEC.replace(b"eta = 2", b"eta = " + b"9" * 5000))
@example(SPEC.replace(b"eta = 2", b"seed = " + b"9" * 400))
@example(SPEC.replace(b'["sgd", "adam"]', b"[1" + b"0" * 30 + b"]"))
@fuzzed(100)
def test_any_file_is_a_spec_or_its_mistakes(folder, data):
    read(folder, data)


@given(
    st.lists(
        st.tuples(st.sampled_from(KEYS), VALUES.map(lambda v: json.dumps(v, default=str)) | TEXTS),
        max_size=3,
    )
)
@example([("train.source", '"a\\u0000b"')])
@example([("train.source", "x" * 5000)])
@example([("train.script", "loop/x")])
@example([("train.script", "loop")])
@example([("train.source", "loop")])
@example([("cluster.store", '"\\u0000"')])
@example([("policy.eta", "9" * 5000)])
@example([("policy.eta", "1\r#")])
@example([("space.x", "\ud800")])
@fuzzed(100)
def test_any_override_is_taken_or_told(folder, overrides):
    read(folder, SPEC, overrides)


@given(TEXTS)
@fuzzed(30)
def test_set_is_a_key_and_a_value(text):
    with contextlib.suppress(SeerdError):
        SpecOptions(Path("spec.toml"), set_=[text]).overrides()


def test_all_hosts_that_are_wrong_are_told_at_once(folder):
    bad = b'{ address = "-oProxyCommand=x", gpus = 1 }, { address = "a b", gpus = 1 }'
    hosts = b"[" + bad + b', { address = "ok", gpus = 1 }, { gpus = 0, port = 99999 }]'
    (folder / "spec.toml").write_bytes(
        SPEC.replace(b'[{ address = "10.0.0.5", user = "ubuntu", gpus = 8 }]', hosts)
    )
    with pytest.raises(SpecError) as told:
        load_spec(folder / "spec.toml")
    assert [f"number {n}:" in str(told.value) for n in (1, 2, 3, 4)] == [True, True, False, True]


@pytest.mark.parametrize("port", [0, 65536, 10**30, -1])
def test_a_port_is_a_port(folder, port):
    (folder / "spec.toml").write_bytes(SPEC.replace(b"gpus = 8", b"gpus = 8, port = %d" % port))
    with pytest.raises(SpecError):
        load_spec(folder / "spec.toml")


@pytest.mark.parametrize("name", ["aws:x", "AWS:x", "seerd:run", "", "x" * 129])
def test_tags_of_others_cannot_be_given(folder, name):
    text = (
        SPEC.replace(b'"hosts"', b'"ec2"').split(b"hosts =")[0]
        + f"tags = {{ {json.dumps(name)} = 'x' }}\n".encode()
    )
    (folder / "spec.toml").write_bytes(text)
    with pytest.raises(SpecError, match="tag"):
        load_spec(folder / "spec.toml")


def test_a_spec_that_never_ends_is_not_read_to_its_end():
    from pathlib import Path

    with pytest.raises(SpecError, match="MiB"):
        load_spec(Path("/dev/zero"))


@given(
    st.sampled_from([parse_duration, parse_gpu_time, parse_money]),
    TEXTS | NUMBERS.map(str) | junk(b"1h30m").map(str),
)
@fuzzed(60)
def test_a_unit_is_read_or_told(parse, text):
    try:
        value = parse(text)
    except ValueError as error:
        assert "write" in str(error)
        return
    assert value >= 0


@given(st.floats(0, 1e12))
@fuzzed(30)
def test_what_is_written_can_be_read_again(value):
    assert math.isclose(parse_duration(format_duration(value)), value, abs_tol=1e-3)
    assert math.isclose(parse_gpu_time(format_gpu_time(value)), value, rel_tol=1e-9, abs_tol=0.1)
    assert parse_money(format_money(value)) >= value - 1e-3


@given(
    TEXTS
    | st.lists(st.tuples(NUMBERS, NUMBERS)).map(
        lambda pairs: ",".join(f"{a}:{b}" for a, b in pairs if a < 10**300)
    )
)
@example("1:1,2:nan")
@example("1:1," + "9" * 5000 + ":2")
@fuzzed(60)
def test_a_scaling_is_read_or_told(text):
    with contextlib.suppress(ValueError):
        parse_scaling(text)
