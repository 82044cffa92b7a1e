"""Files that are handed to seerd or found by it: curves, profiles, checkpoints and their
manifests, what machines answer over SSH.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import io
import json
import os
import pickle
import zipfile
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seerd.agent.manifest import Comparison
from seerd.backends.ssh.pushing import _checked
from seerd.errors import ProviderError, StoreError, UsageError
from seerd.planning.profiles import (
    KeptProfile,
    Point,
    Times,
    keep,
    load_profile,
    path_of,
    target_of,
)
from seerd.sim import curves as curves_module
from seerd.sim.curves import load_curves
from seerd.spec.spec import load_spec
from seerd.stores.base import slot_number, stored
from seerd.stores.directory import DirectoryStore
from tests.fuzz.kit import NUMBERS, TEXTS, VALUES, fuzzed, junk


def npz(**arrays: object) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


METRIC, SECONDS = np.array([[0.1, 0.5], [0.2, 0.3]]), np.array([1.0, 2.0])
CURVES = npz(
    metric=METRIC,
    seconds=SECONDS,
    mode="max",
    gpus=1,
    configs=json.dumps([{"lr": 0.1}, {"lr": 0.2}]),
)


class Bomb:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("/tmp/seerd-fuzz-was-run",)


@pytest.fixture(autouse=True)
def nothing_was_run():
    yield
    assert not os.path.exists("/tmp/seerd-fuzz-was-run"), "a pickle was run"


@given(junk(CURVES))
@example(npz(metric=np.array([[Bomb()]], dtype=object), seconds=SECONDS, mode="max"))
@example(b"PK" + pickle.dumps(Bomb()))
@example(pickle.dumps(Bomb()))
@example(npz(metric=METRIC, seconds=np.array([1e-300, 1.0]), mode="max"))
@example(npz(metric=METRIC, seconds=np.array([1e300, 1.0]), mode="max"))
@example(npz(metric=METRIC, seconds=np.array([-1.0, 1.0]), mode="max"))
@example(npz(metric=METRIC, seconds=np.array([np.nan, 1.0]), mode="max"))
@example(npz(metric=METRIC, seconds=SECONDS, mode="max", gpus=np.uint64(2**64 - 1)))
@example(npz(metric=METRIC, seconds=SECONDS, mode="x" * 100_000))
@example(npz(metric=np.zeros((0, 2)), seconds=np.zeros(0), mode="max"))
@example(npz(metric=METRIC, seconds=SECONDS, mode="max", configs="[" * 100_000))
@fuzzed(80)
def test_any_file_is_curves_or_a_sentence(tmp_path, data):
    path = tmp_path / "c.npz"
    path.write_bytes(data)
    try:
        curves = load_curves(path)
    except UsageError as error:
        assert len(str(error)) < 2000
        return
    assert (curves.seconds > 0).all()
    curves.lasting(60.0, 1.0)
    curves.space()


def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch):
    """Zeros pack a thousand to one."""
    monkeypatch.setattr(curves_module, "MOST_BYTES", 1 << 20)
    with zipfile.ZipFile(tmp_path / "c.npz", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("metric.npy", bytes(2 << 20))
    monkeypatch.setattr(zipfile.ZipFile, "open", None)
    with pytest.raises(UsageError, match="MiB"):
        load_curves(tmp_path / "c.npz")


TIMES = Times(1.0, 2.0, 3)


def profile(key: str = "k") -> KeptProfile:
    point = Point(gpus=1, measured=True, report_s=1.0, samples=1, speed=1.0, efficiency=1.0)
    from seerd.planner.fitting import fit

    law = fit({1: [1.0, 1.1]}).law
    times = dict.fromkeys(
        (
            "report_s",
            "start_s",
            "restore_s",
            "stop_s",
            "save_s",
            "pending_s",
            "boot_s",
            "release_s",
        ),
        TIMES,
    )
    about = {
        "version": 1,
        "key": key,
        "run": "r",
        "measured_at": "2026",
        "script": "s",
        "args": (),
        "provider": "local",
    }
    return KeptProfile(
        **about,
        instance_type="x",
        points=(point,),
        law=law,
        fit_error=0.0,
        checkpoint_bytes=1,
        notes=(),
        **times,
    )


@given(st.data())
@fuzzed(40)
def test_a_profile_that_cannot_be_is_none(tmp_path, data):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "spec.toml").write_text(
        'metric = {name="a", mode="max"}\n[train]\nscript="train.py"\n[space]\nx=[1]\n'
    )
    spec, types = load_spec(tmp_path / "spec.toml"), ("2 slots on 2 CPU cores",)
    key = target_of(spec, types[0]).key
    whole = keep(tmp_path, profile(key)).read_bytes()
    assert load_profile(tmp_path, spec, types) is not None
    told = json.loads(whole)
    told[data.draw(st.sampled_from(sorted(told)))] = data.draw(
        VALUES | st.fixed_dictionaries({"p50": NUMBERS, "p95": NUMBERS, "samples": NUMBERS})
    )
    path_of(tmp_path, key).write_bytes(
        data.draw(junk(whole) | st.just(json.dumps(told).encode()) | st.just(b"[" * 99_999))
    )
    found = load_profile(tmp_path, spec, types)
    if found is not None:
        assert 0 < found.job.report.p50_s < 1e9
        assert found.job.scaling.speed(8) > 0


@given(
    junk(
        json.dumps(
            {"name": "a", "epoch": 1, "metrics": {"a": 0.5}, "sha256": "0" * 64, "size": 1}
        ).encode()
    )
    | VALUES.map(lambda v: json.dumps(v).encode())
)
@example(b'{"name":"a","epoch":%d,"metrics":{},"sha256":"%064d","size":1}' % (2**70, 0))
@example(b'{"name":"a","epoch":1,"metrics":{"a":1e999,"\\ud800":0},"sha256":"%064d","size":1}' % 0)
@example(b'{"name":"a","epoch":1,"metrics":{},"sha256":"\xb0","size":1}')
@fuzzed(80)
def test_a_manifest_in_the_store_is_one_or_is_passed_over(data):
    import msgspec

    found = stored("a", data)
    if found is not None:
        msgspec.json.decode(msgspec.json.encode(found))
        assert 0 <= found.epoch <= 1 << 53


@given(TEXTS)
@example("0001-" + "9" * 5000)
@fuzzed(30)
def test_a_place_has_a_number_whatever_it_is_called(name):
    assert 0 <= slot_number(name) < 10**15


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda p: os.symlink("/dev/zero", p), lambda p: os.symlink(p, p)]
)
def test_what_trials_put_into_a_store_is_neither_waited_for_nor_copied_for_ever(tmp_path, make):
    (tmp_path / "t1").mkdir()
    for name in ("a.json", "a.pt"):
        make(str(tmp_path / "t1" / name))
    (tmp_path / "t1" / "b.json").write_bytes(b"x" * (1 << 20))
    good = json.dumps(
        {"name": "a", "epoch": 1, "metrics": {"a": 0.5}, "sha256": "0" * 64, "size": 1}
    ).encode()
    with open(os.fsencode(tmp_path) + b"/t1/\xff.json", "wb") as odd:
        odd.write(good)
    store = DirectoryStore(tmp_path)
    assert asyncio.run(store.newer("t1", 1, "")) == []
    with pytest.raises(StoreError) as told:
        asyncio.run(store.fetch("t1", "a", "0" * 64, tmp_path / "to"))
    assert told.value.damaged


@given(
    junk(b'{"done": {"socket": "x", "received": 1}}', b'{"missing": ["00"]}')
    | VALUES.map(lambda v: json.dumps(v).encode())
)
@example(b"garbage\n")
@example(b"[1]")
@example(b'{"missing": 5}')
@fuzzed(60)
def test_what_a_machine_answers_is_an_object_or_the_machine_is_no_good(line):
    try:
        answer = _checked(line)
    except ProviderError as error:
        assert len(str(error)) < 3000
        return
    assert isinstance(answer, dict)
    assert all(
        isinstance(answer.get(key, kind()), kind)
        for key, kind in (("missing", list), ("failed", str))
    )


class TestCheckpoints:
    """What an attempt goes on from."""

    @pytest.mark.parametrize("damage", ["bomb", "torn", "junk", "not ours", "link"])
    def test_only_a_whole_one_is_loaded_and_nothing_is_run(self, tmp_path, damage):
        import torch

        checkpoints = importlib.import_module("seerd.training.checkpoints")
        payload = {
            "version": 1,
            "epoch": 1,
            "units": 1,
            "metrics": {},
            "state": {},
            "rng": [],
            "samplers": [],
        }
        dump = partial(checkpoints.dump, torch, payload)
        name, goal = "000001-00000001", Comparison("loss", "min")
        checkpoints.write(tmp_path, name, 1, {}, dump, goal)
        good = (tmp_path / f"{name}.pt").read_bytes()
        bad = {
            "bomb": pickle.dumps(Bomb()),
            "torn": good[:-9],
            "junk": b"\x80\x05junk",
            "not ours": b"",
            "link": good,
        }[damage]
        about = {
            "name": "000002-00000001",
            "epoch": 2,
            "metrics": {},
            "size": len(bad),
            "sha256": hashlib.sha256(bad).hexdigest(),
        }
        if damage == "torn":
            about["size"] = len(good)
        (tmp_path / "000002-00000001.pt").write_bytes(bad)
        (tmp_path / "000002-00000001.json").write_text(json.dumps(about))
        if damage == "link":
            (tmp_path / "000002-00000001.pt").unlink()
            (tmp_path / "000002-00000001.pt").symlink_to("000002-00000001.pt")
        assert checkpoints.newest(torch, tmp_path) == tmp_path / f"{name}.pt"
