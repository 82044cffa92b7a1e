"""`seerd extend`, as people use it, and what it understands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from seerd.commands import asking
from seerd.commands.asking import NewLimits, wanted
from seerd.core.events import ExtendAsked
from seerd.core.state import State, new_state
from seerd.errors import JournalError, UsageError
from seerd.planner.model import Limits
from seerd.shell.home import RunFolder
from tests.conftest import small_facts
from tests.test_cli import Seerd, assert_model, seerd  # noqa: F401 - a fixture

NOTHING = NewLimits()


def test_a_run_is_extended_while_it_goes_on(seerd: Seerd) -> None:  # noqa: F811
    seerd.write_spec(env='SEERD_TEST_EPOCH_S = "0.2"', t_min="3s", deadline="22s", budget="40gpu-s")
    run = seerd.start("run", str(seerd.spec), "--json")
    seerd.wait_for(reports=4)
    told = seerd.json("extend", "last", "--deadline", "+10s", "--budget", "120gpu-s")
    assert told["deadline_s"] == 32
    assert told["budget_gpu_min"] == 2
    assert told["replanned"]
    assert "a limit would be lower" in seerd("extend", "last", "--deadline", "10s", code=2)
    assert "no limit would be higher" in seerd("extend", "last", "--deadline", "32s", code=2)
    assert seerd.json("list")["runs"][0]["deadline_s"] == 32
    out, err = run.communicate()
    assert run.returncode == 0, err
    import json

    ended = json.loads(out)
    assert_model(seerd, ended)
    assert ended["deadline_s"] == 32
    assert 22 < ended["elapsed_s"] <= 32
    assert 40 / 60 < ended["gpu_min"] <= 120 / 60
    assert "extended: deadline 32s, budget 2 GPU-min" in err
    replayed = seerd.json("replay", "last")
    assert replayed["same"]
    beats = [beat for chapter in replayed["chapters"] for beat in chapter["beats"]]
    (extended,) = (beat for beat in beats if beat["kind"] == "extended")
    assert extended["deadline_s"] == 32
    assert "the limits were extended" in seerd("replay", "last")
    assert seerd.json("ledger", "last")["budget_gpu_min"] == 2
    assert list((seerd.run_folder() / "requests").iterdir()) == []
    over = seerd("extend", "last", "--deadline", "+1h", code=2)
    assert "is over, so its limits cannot be extended" in over
    assert "resume" not in over
    assert not seerd.processes()


def test_who_gets_no_answer_is_told_and_has_asked_nothing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.locked(), pytest.raises(UsageError, match=r"has not answered in 0\.2 s"):
        asking.ask(folder, ExtendAsked(at=0.0, request="", problem=small_facts().problem), 0.2)
    assert list(folder.requests.iterdir()) == []
    with pytest.raises(UsageError, match="has ended before it answered"):
        asking.ask(folder, ExtendAsked(at=0.0, request="", problem=small_facts().problem), 9.0)
    with pytest.raises(JournalError, match="does not exist"):
        asking.check_running(folder, "its limits cannot be extended")


def test_a_denial_fits_the_command_and_names_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, facts = RunFolder(tmp_path / "run-1"), small_facts()
    monkeypatch.setattr(asking.reading, "read", lambda _: SimpleNamespace(facts=facts))
    assert asking.why_denied(folder, "no-job") == "there is no such job that goes on"
    assert asking.why_denied(folder, "no-job", "b") == "there is a job b already"
    name = facts.problem.params.name
    assert asking.why_denied(folder, "no-more").startswith(f"{name} begins no more trials: ")
    assert asking.why_denied(folder, "lower").endswith("; to end it sooner: seerd stop run-1")


# ------------------------------------------------------------ what is meant


def with_limits(limits: Limits, price: float = 0.0) -> State:
    facts = small_facts(usd_per_gpu_h=price, billing="rented" if price else "held")
    problem = replace(facts.problem, limits=limits)
    import msgspec

    return new_state(msgspec.structs.replace(facts, problem=problem))


@pytest.mark.parametrize(
    ("asked", "limits"),
    [
        (replace(NOTHING, deadline="2h"), Limits(7200.0, 320.0)),
        (replace(NOTHING, deadline="+10m"), Limits(660.0, 320.0)),
        (replace(NOTHING, deadline=" + 10m"), Limits(660.0, 320.0)),
        (replace(NOTHING, budget="600gpu-min"), Limits(60.0, 36000.0)),
        (NewLimits("+1m", "+60gpu-min", None), Limits(120.0, 3920.0)),
    ],
)
def test_a_limit_is_set_and_with_a_plus_it_is_added(asked: NewLimits, limits: Limits) -> None:
    assert wanted(with_limits(Limits(60.0, 320.0)), asked) == limits


def test_a_budget_that_only_says_what_the_money_pays_for_grows_with_it() -> None:
    paid = with_limits(Limits(60.0, 3600.0 * 20, None, 40.0), price=2.0)
    assert wanted(paid, replace(NOTHING, cost="+$10")) == Limits(60.0, 3600.0 * 25, None, 50.0)
    own = with_limits(Limits(60.0, 999.0, None, 40.0), price=2.0)
    assert wanted(own, replace(NOTHING, cost="$50")) == Limits(60.0, 999.0, None, 50.0)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (NOTHING, "say what is to be extended"),
        (replace(NOTHING, deadline="10"), "--deadline 10: write a duration"),
        (replace(NOTHING, budget="+10m"), "--budget .10m: write GPU time"),
        (replace(NOTHING, deadline="-10m"), "--deadline -10m: write a duration"),
        (replace(NOTHING, cost="$10"), "this run has no limit in money"),
    ],
)
def test_what_cannot_be_meant_is_told(asked: NewLimits, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        wanted(with_limits(Limits(60.0, 320.0)), asked)


# ------------------------------------------------------------ seerd add


def test_a_configuration_is_added_while_the_run_goes_on(seerd: Seerd) -> None:  # noqa: F811
    seerd.write_spec(env='SEERD_TEST_EPOCH_S = "0.2"', t_min="5s", deadline="22s", budget="60gpu-s")
    run = seerd.start("run", str(seerd.spec), "--plain", "--policy", "asha")
    seerd.wait_for(reports=4)
    assert seerd.json("add", "last", "--config", "lr=0.31")["config"] == {"lr": 0.31}
    refused = seerd("add", "last", "--config", "lr=7", code=2)
    assert "lr=7 was not added: lr = 7 is not in [space]" in refused
    out, _ = run.communicate()
    assert "to be tried next: lr=0.31" in out
    tried = [trial["config"] for trial in seerd.json("show", "last")["all_trials"]]
    assert {"lr": 0.31} in tried
    assert seerd.json("replay", "last")["same"]
    assert "to be tried next: lr=0.31" in seerd("replay", "last")
    assert "is over" in seerd("add", "last", "--config", "lr=0.3", code=2)


@pytest.mark.parametrize(
    ("said", "config"),
    [
        (["lr=0.1,momentum = 0.9"], {"lr": 0.1, "momentum": 0.9}),
        (["lr=1e-3", "name=sgd"], {"lr": 0.001, "name": "sgd"}),
        (['depth=4,nesterov=true,size="4"'], {"depth": 4, "nesterov": True, "size": "4"}),
        (["when=2026-01-01"], {"when": "2026-01-01"}),
        (['size="4,4",layers=[64, 64],lr=1'], {"size": "4,4", "layers": (64, 64), "lr": 1}),
    ],
)
def test_values_are_what_they_are_in_a_spec(said: list[str], config: dict[str, object]) -> None:
    assert asking.values(said) == config


@pytest.mark.parametrize("said", ["lr", "=1", "lr=", "lr=1,lr=2", "lr=1,,", "lr=1,momentum"])
def test_what_is_no_configuration_is_told(said: str) -> None:
    with pytest.raises(UsageError, match=r"write NAME=VALUE|twice"):
        asking.values([said])


def test_what_is_left_out_is_drawn() -> None:
    import random

    from seerd.planner.space import Parameter, Space

    space = Space((Parameter("lr", low=0.1, high=0.9), Parameter("depth", (2, 4))))
    config = asking.completed(space, {"depth": 4}, random.Random(0))
    assert config["depth"] == 4
    assert 0.1 <= config["lr"] <= 0.9
    with pytest.raises(UsageError, match="no parameter width"):
        asking.completed(space, {"width": 4}, random.Random(0))
