"""What goes over SSH and comes back, without a connection: options, logs, pauses, bundles."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import marshal
import random
import zipfile
import zlib
from itertools import pairwise
from pathlib import Path

import pytest

from seerd import agent
from seerd.agent.protocol import MAX_LINE, VERSION, Download, Downloads
from seerd.agent.wire import encode
from seerd.backends import bundle
from seerd.backends.ssh.connecting import RemoteMachine, UnreachableError, reach
from seerd.backends.ssh.remote import AgentOptions, _unpacked
from seerd.errors import ProviderError
from seerd.planner.model import Report
from seerd.shell.policy_main import KnownTrial, TrialNews
from seerd.shell.translate import chunks
from tests.aws.scripted import played


def options(**changes: object) -> AgentOptions:
    plain: dict[str, object] = {
        "run": "r1",
        "gpus": 4,
        "cuda": True,
        "lease_s": 60.0,
        "grace_s": 5.0,
        "power_off": False,
        "spot": False,
        "python": "python3",
    }
    return AgentOptions(**(plain | changes))  # type: ignore[arg-type]


def test_an_agent_s_options_say_how_long_it_may_go_on_and_what_it_watches() -> None:
    usual = ["--run", "r1", "--lease-s", "60.0", "--grace-s", "5.0"]
    assert options().argv(90.0) == usual
    assert options().argv(7.5)[3] == "7.5"
    assert options(power_off=True).argv(90.0) == [*usual, "--power-off"]
    assert options(spot=True).argv(90.0) == [*usual, "--spot"]
    assert options(weight=2.0).argv(90.0) == [*usual, "--share", "2.0"]


@pytest.mark.parametrize(
    ("own", "gpus", "cuda", "shape"),
    [
        (True, None, None, ["--gpus", "4", "--cuda"]),
        (False, None, None, ["--gpus", "4", "--slots"]),
        (True, 8, False, ["--gpus", "8", "--slots"]),
        (False, 0, True, ["--gpus", "0", "--cuda"]),
    ],
)
def test_a_machine_has_what_all_have_unless_it_is_said(
    own: bool, gpus: int | None, cuda: bool | None, shape: list[str]
) -> None:
    assert options(cuda=own).shape(gpus, cuda) == shape


def packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()


def test_logs_are_cut_to_what_is_kept_whatever_a_machine_sends() -> None:
    assert _unpacked({"a": packed(b"one"), "b": packed(b"")}) == {"a": b"one", "b": b""}
    assert _unpacked({name: packed(b"x" * 4) for name in "abcd"}, 3, 10) == {
        "a": b"xxxx",
        "b": b"xxxx",
        "c": b"xx",
    }
    assert _unpacked({"a": packed(b"x" * 10), "b": packed(b"y")}, 3, 10) == {"a": b"x" * 10}


@pytest.mark.parametrize(
    ("pause_s", "pauses"),
    [
        (0.0, [0.1, 0.15, 0.225, 0.3375, 0.50625, 0.759375, 1.0, 1.0]),
        (2.0, [2.0, 2.0]),
    ],
)
def test_a_machine_is_tried_ever_more_rarely_until_its_time_is_up(
    pause_s: float, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda least, most: least)

    async def tried() -> list[float]:
        at: list[float] = []
        failures: list[UnreachableError] = []
        error = UnreachableError("nobody answers", pause_s=pause_s)

        async def attempt() -> None:
            at.append(asyncio.get_running_loop().time())
            raise error

        machine = RemoteMachine("i-1", "10.0.0.1", "me")
        with pytest.raises(ProviderError, match=r"within 6s: nobody answers|within 5s"):
            await reach(machine, 5.5, attempt, on_failure=failures.append)
        assert failures == [error] * len(at), "each failure is reported"
        return [later - before for before, later in pairwise(at)]

    waited, until = played(tried())
    assert waited[: len(pauses)] == pytest.approx(pauses)
    assert until <= 5.5 < until + max(pauses[-1], 1.0)


def test_a_machine_is_named_with_its_place_unless_that_is_its_name() -> None:
    assert str(RemoteMachine("i-1", "10.0.0.1", "me", 2222)) == "i-1 (me@10.0.0.1:2222)"
    assert str(RemoteMachine("me@10.0.0.1", "10.0.0.1", "me")) == "me@10.0.0.1"


def test_a_run_goes_on_with_its_own_agent_or_one_beside_it_of_this_protocol(
    tmp_path: Path,
) -> None:
    mine = tmp_path / "agent.pyz"
    beside = tmp_path / f"agent-v{VERSION}.pyz"
    bundle.build_agent(mine)
    assert bundle.agent_for(mine) == mine
    assert not beside.exists()
    for content in (b"no zip", b""):
        mine.write_bytes(content)
        assert bundle.agent_for(mine) == beside
        assert mine.read_bytes() == content
    with zipfile.ZipFile(mine, "w") as other:
        other.writestr("seerd/agent/protocol.py", f"\nVERSION = {VERSION - 1}\n")
    beside.write_bytes(b"half")
    assert bundle.agent_for(mine) == beside
    whole = beside.read_bytes()
    assert bundle.agent_for(mine) == beside
    assert beside.read_bytes() == whole
    mine.unlink()
    assert bundle.agent_for(mine) == beside


def test_an_agent_s_zip_is_made_of_its_modules_and_their_code(tmp_path: Path) -> None:
    made = tmp_path / "a.pyz"
    bundle.build_agent(made)
    with zipfile.ZipFile(made) as zipped:
        names = zipped.namelist()
        code = zipped.read("seerd/agent/protocol.pyc")
        source = zipped.read("seerd/agent/protocol.py")
        kinds = {info.compress_type for info in zipped.infolist()}
    assert source == (Path(agent.__file__).parent / "protocol.py").read_bytes()
    assert code[:4] == importlib.util.MAGIC_NUMBER
    assert code[4:8] == b"\x01\x00\x00\x00"
    assert marshal.loads(code[16:]).co_filename == "seerd/agent/protocol.py"
    assert kinds == {zipfile.ZIP_DEFLATED}
    assert {"__main__.py", "__main__.pyc", "seerd/__init__.py"} <= set(names)
    assert any(name.startswith("seerd/training/") for name in names)


def test_downloads_fill_half_a_line_and_no_more() -> None:
    size = len(encode(Downloads(False, [Download("", "", 1)])))
    half = MAX_LINE // 2
    first, second = half - size - 100, 100 - size
    items = [Download("x" * first, "", 1), Download("y" * second, "", 1)]
    assert [len(one.items) for one in chunks(items)] == [2]
    items[1] = Download("y" * (second + 1), "", 1)
    assert [(one.first, len(one.items)) for one in chunks(items)] == [(True, 1), (False, 1)]
    assert chunks([]) == [Downloads(True, [])]


def test_a_trial_is_for_its_policy_what_the_news_say() -> None:
    trial = KnownTrial("t1")
    assert (trial.reports, trial.metric, trial.status, trial.config) == (0, None, "live", {})
    reports = [Report(1.0, 1, 0.5), Report(2.0, 2, 0.75)]
    trial.apply(TrialNews("t1", "live", 0, reports, {"lr": 0.1}))
    assert (trial.reports, trial.metric, trial.config) == (2, 0.75, {"lr": 0.1})
    trial.apply(TrialNews("t1", "failed", 1, [Report(3.0, 2, None)]))
    assert (trial.reports, trial.metric, trial.status) == (2, None, "failed")
    assert trial.history == [reports[0], Report(3.0, 2, None)]
    assert trial.config == {"lr": 0.1}
