"""The report of a run: that its figures are those of the ledger, and that the page is whole in
itself.
"""

from __future__ import annotations

import io
import json
import math
import random
import re
import shlex
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
import pytest

from bench.testbed import checked_world as simulated
from bench.testbed.checked_world import Behaviour
from seerd.cli import app
from seerd.commands.report import ReportOptions, RunReader, report
from seerd.core.events import RunFacts, RunStarted
from seerd.core.ledger import Charge
from seerd.core.state import State, Trial, new_state
from seerd.errors import UsageError
from seerd.extras import installing
from seerd.planner.model import BillingKind, ClusterFacts, Limits, Mode, PolicyParams, Problem
from seerd.planner.parameter import Config, Parameter
from seerd.planner.space import Space
from seerd.shell.home import RunFolder
from seerd.shell.journal import Entry, Journal
from seerd.telling.diagnosis import fate
from seerd.telling.explanation.timeline import Timeline
from seerd.telling.outcomes import outcome_text, outcomes
from seerd.telling.page import run_page, tables
from seerd.telling.page.drawing import Spec, beyond, svg, write
from seerd.telling.page.importance import Importance, advice, importances
from seerd.telling.page.run_page import ReadRun, RunReport, comparison
from seerd.telling.page.tables import Ranked

SPACE = Space(
    (
        Parameter("lr", low=1e-4, high=1.0, log=True),
        Parameter("width", low=8, high=64, integer=True),
        Parameter("optimizer", choices=(("<sgd>", 64), ("adam",))),
    )
)
METRIC = "acc<&>"


def curve(config: Config, epoch: int) -> float:
    """The larger lr, the better; nothing else matters."""
    return Parameter("lr", low=1e-4, high=1.0, log=True).share(config["lr"]) * (1 - 0.8**epoch)


@cache
def world(billing: BillingKind, seed: int = 1) -> simulated.World:
    """A run that is over."""
    params = PolicyParams(name="asha", trials=20, max_reports=16, t_min_s=1.0, seed=seed)
    problem = Problem(Limits(2000.0, 9000.0, 8), SPACE, params, gpus_per_instance=4)
    facts = RunFacts(
        run=f"job-{billing}-{seed}",
        name="job",
        metric=METRIC,
        mode="max",
        problem=problem,
        cluster=ClusterFacts(billing, 4, max_instances=2, usd_per_gpu_h=3.0, boot_s=20.0),
    )
    played = simulated.World(
        facts, Behaviour(metric=curve, unit_s=lambda config, epoch, gpus: 10.0)
    )
    played.run()
    return played


FITTED: dict[str, list[Importance]] = {}
"""What `importances` found, by the trials of a run."""


def fitted_once(order: Sequence[Ranked], parameters: Sequence[Parameter]) -> list[Importance]:
    """What `importances` finds, which takes longer than all else of a page."""
    run = repr([(one.trial.id, one.metric, one.trial.config) for one in order])
    if run not in FITTED:
        FITTED[run] = importances(order, parameters)
    return FITTED[run]


DRAWN: dict[str, str] = {}
"""Pictures, by what they show."""


def drawn_once(spec: Spec) -> str:
    shown = json.dumps(spec)
    if shown not in DRAWN:
        DRAWN[shown] = svg(spec)
    return DRAWN[shown]


@pytest.fixture(autouse=True)
def each_run_is_fitted_and_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all tests together."""
    monkeypatch.setattr(run_page, "importances", fitted_once)
    monkeypatch.setattr(run_page, "svg", drawn_once)


def told_of(billing: BillingKind, seed: int = 1) -> ReadRun:
    played = world(billing, seed)
    state, timeline = new_state(played.facts), Timeline()
    for event, decided in played.journal:
        timeline.read(state, event, decided)
    return ReadRun(timeline, state, "done", "[space] # <b>", "seerd run spec.toml")


@pytest.mark.parametrize("billing", ["held", "rented"])
def test_what_was_billed_is_divided_without_a_rest(billing: BillingKind) -> None:
    told = told_of(billing)
    shares = tables.shares(told.timeline, told.state)
    spent = told.state.ledger.spent_gpu_s(told.state.now)
    assert sum(shares.values()) == pytest.approx(spent)
    assert all(gpu_s >= 0 for gpu_s in shares.values())
    assert ("boot" in shares) == (billing == "rented")


@pytest.mark.parametrize("billing", ["held", "rented"])
def test_spending_over_time_is_the_sum_of_all_charges(billing: BillingKind) -> None:
    state = told_of(billing).state
    times = [state.now * part / 17 for part in range(18)]
    by_hand = [
        sum(_billed(charge, at_s, state) for charge in state.ledger.charges()) for at_s in times
    ]
    spent = tables.billed_gpu_s(state, times)
    assert spent == pytest.approx(by_hand)
    assert spent[-1] == pytest.approx(state.ledger.spent_gpu_s(state.now))


def _billed(charge: Charge, at_s: float, state: State) -> float:
    until_s = state.now if charge.until_s is None else charge.until_s
    lasts_s = max(until_s - charge.since_s, charge.minimum_s)
    return charge.gpus * max(0.0, min(at_s - charge.since_s, lasts_s))


def test_bars_are_the_gpus_that_trials_held_and_never_overlap() -> None:
    told = told_of("held")
    bars, left = tables.bars(told.timeline, told.state)
    assert left == 0
    area = sum((bar.high - bar.low) * (bar.ends_s - bar.starts_s) for bar in bars)
    assert area == pytest.approx(told.state.ledger.spent_gpu_s(told.state.now), rel=0.01)
    for bar in bars:
        for other in bars:
            if other is not bar and other.low < bar.high and bar.low < other.high:
                apart = other.ends_s <= bar.starts_s + 1e-9 or bar.ends_s <= other.starts_s + 1e-9
                assert apart


def test_the_best_is_first_and_curves_keep_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    told = told_of("held")
    order = tables.ranked(told.state)
    assert told.state.result.published is not None
    assert order[0].trial.id == told.state.result.published.incumbent.trial
    finite = [one.metric for one in order[1:] if one.metric is not None]
    assert finite == sorted(finite, reverse=True)
    monkeypatch.setattr(tables, "MOST_POINTS", 10)
    points = tables.curves(order, told.timeline, None)
    for one in order:
        mine = [point.report for point in points if point.trial == one.trial.id]
        every = [report.reports for report in one.trial.history]
        assert mine[:1] == every[:1]
        assert mine[-1:] == every[-1:]


def test_what_matters_is_found_with_its_uncertainty() -> None:
    found = fitted_once(tables.ranked(told_of("held").state), list(SPACE.parameters))
    assert found[0].name == "lr"
    assert found[0].mean > 0.7
    assert all(one.deviation >= 0 for one in found)
    assert importances(tables.ranked(told_of("held").state)[:3], list(SPACE.parameters)) == []


def ordered(count: int, seed: int, signal: float) -> list[Ranked]:
    """Trials whose place is chance, and `signal` times their lr."""
    draw = random.Random(seed)
    configs: list[Config] = [
        {"lr": 10 ** draw.uniform(-4, 0), "width": draw.randint(8, 64), "optimizer": ("adam",)}
        for _ in range(count)
    ]
    values = [signal * (math.log10(float(one["lr"])) / 4 + 1) + draw.random() for one in configs]
    order = sorted(range(count), key=lambda place: -values[place])
    return [Ranked(Trial(f"t{place}", configs[place], 0), values[place]) for place in order]


@pytest.mark.parametrize("count", [10, 20, 60])
@pytest.mark.parametrize("seed", [1, 2])
def test_chance_is_not_called_important(count: int, seed: int) -> None:
    found = importances(ordered(count, seed, 0.0), SPACE.parameters)
    assert not any(one.is_significant for one in found)
    assert all(0 <= one.mean <= 1 for one in found)


def test_a_clear_effect_is_told_from_chance() -> None:
    first, *others = importances(ordered(20, 1, 8.0), SPACE.parameters)
    assert first.name == "lr"
    assert first.is_significant
    assert first.mean > 0.5
    assert not any(one.is_significant for one in others)


def test_advice_says_what_it_was_seen_from() -> None:
    state = told_of("held").state
    order = tables.ranked(state)
    texts = advice(
        state,
        order,
        SPACE.parameters,
        [Importance("lr", 0.9, 0.1), Importance("width", 0.01, 0.02)],
        {"training": 60.0, "boot": 40.0},
    )
    assert any("width explains no more" in text for text in texts)
    assert any("40% of what was billed was boot" in text for text in texts)
    at_edge = [
        replace(one, trial=replace(one.trial, config={**one.trial.config, "lr": 0.99}))
        for one in order
    ]
    edges = advice(state, at_edge, SPACE.parameters, [], {})
    assert any("lr at the upper end of its range: widen it there" in text for text in edges)
    assert advice(new_state(state.facts), [], SPACE.parameters, [], {}) == []


@pytest.mark.parametrize("billing", ["held", "rented"])
def test_the_page_is_whole_in_itself_and_says_who_won(billing: BillingKind) -> None:
    told = told_of(billing)
    page = RunReport(told).page()
    assert told.state.result.published is not None
    winner = told.state.result.published.incumbent
    assert f"{winner.trial} won: acc&lt;&amp;&gt; {winner.metric:.6g}" in page
    assert "<b>" not in page
    assert "<sgd>" not in page
    assert not re.search(r"""(src|href)=["'](?!#)|@import|url\((?!#)""", page), (
        "it needs no network"
    )
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) == len(RunReport(told).pictures())
    for picture in pictures:
        ET.fromstring(picture)
    assert "currentColor" in page


def test_runs_are_put_beside_each_other() -> None:
    page = comparison([told_of("held"), told_of("held", seed=2)])
    assert page.count("job-held-1") >= 2
    assert page.count("job-held-2") >= 2
    assert len(re.findall("<svg", page)) == 2


def kept(home: Path, mode: Mode = "max") -> RunFolder:
    """The run in a folder, as its daemon leaves it."""
    folder = RunFolder(home / "job-20260101-000000-0000")
    folder.path.mkdir()
    with Journal.create(folder.journal, 1e9) as journal:
        played = list(world("held").journal)
        first = played[0][0]
        assert isinstance(first, RunStarted)
        facts = msgspec.structs.replace(first.facts, mode=mode)
        played[0] = msgspec.structs.replace(first, facts=facts), played[0][1]
        journal.append([Entry(seq, *entry) for seq, entry in enumerate(played, 1)])
    return folder


def test_the_command_writes_a_page_and_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, to = kept(tmp_path), tmp_path / "page.html"
    report([folder], ReportOptions(to, png=tmp_path / "png", pdf=tmp_path / "pdf"))
    assert to.read_text().startswith("<!doctype html>")
    assert (tmp_path / "png" / "gpus.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "pdf" / "money.pdf").read_bytes().startswith(b"%PDF")
    assert f"{to} (" in capsys.readouterr().out
    assert RunReader(folder).read().state.now == told_of("held").state.now


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    folder = kept(tmp_path)
    with pytest.raises(UsageError, match="for the report of one run"):
        report([folder, folder], ReportOptions(tmp_path / "x.html", follow=True))
    with pytest.raises(UsageError, match="cannot be written"):
        report([folder], ReportOptions(tmp_path / "none" / "x.html"))


def test_the_command_has_the_limits_the_policy_and_the_seed(tmp_path: Path) -> None:
    command = RunReader(kept(tmp_path)).read().command
    assert command == (
        "seerd run spec.toml --deadline 2000s --budget 150gpu-min --policy asha --seed 1"
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--minimize", "cost", "--deadline", "30m"], ["--minimize", "cost"]),
        (["--ideal", "--deadline", "30m", "--budget", "60gpu-min"], ["--ideal"]),
    ],
)
def test_the_command_plans_the_same_run_again(
    given: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the spec that stands below it, which has what was given beside it."""
    (tmp_path / "spec.toml").write_text(SPEC_OF_SHA)
    (tmp_path / "trainer.py").write_text("import seerd\n")
    first = planned_by(tmp_path / "spec.toml", given)
    told = RunReader(first).read()
    assert [word for word in shlex.split(told.command) if word in words] == words
    (tmp_path / "spec.toml").write_text(told.spec)
    again = planned_by(tmp_path / "spec.toml", shlex.split(told.command)[3:])
    facts = (RunReader(one).read().state.facts for one in (first, again))
    one, other = (msgspec.structs.replace(each, run="") for each in facts)
    assert one == other


SPEC_OF_SHA = """
name = "job"
metric = { name = "accuracy", mode = "max" }
[train]
script = "trainer.py"
launcher = "python"
[space]
lr = { low = 0.0, high = 1.0 }
[policy]
name = "sha"
trials = 8
min_reports = 1
max_reports = 4
[cluster]
provider = "local"
gpus = 2
"""


def planned_by(spec: Path, options: list[str]) -> RunFolder:
    """The folder of a run that `seerd run` with these options would begin."""
    made: list[RunFolder] = []

    def keep(folder: RunFolder, state: State, _: object, *, need_model: bool) -> None:
        with Journal.open(folder.journal) as journal:
            journal.append([Entry(1, RunStarted(at=0.0, facts=state.facts), [])])
        made.append(folder)
        assert not need_model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seerd.commands.run._begin", keep)
        args = ["run", str(spec), *options, "--plain", "--home", str(spec.parent / "home")]
        app(args, standalone_mode=False)
    return made[0]


def test_promotions_are_marked_where_they_were_made() -> None:
    told = told_of("held")
    found = tables.promotions(told.timeline)
    promoted = {(trial, report) for trial, some in found.items() for report in some}
    judged = [one for one in told.timeline.explanations if one.kind == "judged"]
    went_on = {(one.trial, one.reports) for one in judged if one.verdict == "goes-on"}
    assert went_on
    assert went_on < promoted, "some got more GPUs without having been compared"
    order = tables.ranked(told.state)
    points = tables.curves(order, told.timeline, None)
    marked = {(one.trial, one.report) for one in points if one.promoted}
    assert marked == promoted
    spec = next(one for one in RunReport(told).pictures() if one.name == "curves-0-report").spec
    drawn = [
        (row["trial"], row["x"])
        for one in spec["layer"]
        if one["mark"].get("shape") == "triangle-up"
        for row in one["data"]["values"]
    ]
    assert set(drawn) == promoted


def test_a_trial_that_gets_more_gpus_was_promoted() -> None:
    told = told_of("held")
    attempts = next(some for some in told.timeline.attempts.by_trial().values() if len(some) > 1)
    for held in attempts[1].held:
        attempts[1].held[attempts[1].held.index(held)] = replace(held, gpus=held.gpus + 1)
    last = attempts[0].made[-1].reports
    empty = Timeline(attempts=told.timeline.attempts)
    assert tables.promotions(empty)[attempts[0].started.trial] == {last}


def test_the_table_says_what_show_says_of_a_trial() -> None:
    told = told_of("held")
    words = {
        outcome_text(told.state, told.state.trials[name], outcome)
        for name, outcome in outcomes(told.state).items()
    }
    page = RunReport(told).page()
    assert "best" in words
    for word in words:
        assert f'<td class="text">{word}</td>' in page
    assert '<td class="text">waiting</td>' not in page


def test_what_is_drawn_at_the_edge_is_counted() -> None:
    values = [0.7 + place / 1000 for place in range(40)]
    assert beyond(values) == ""
    assert beyond([*values, 0.01, 1e9]) == (
        " 2 of 42 values are beyond what is shown, and drawn at its edge."
    )


def test_a_run_without_a_model_says_why_and_that_there_is_no_advice() -> None:
    told = told_of("held")
    empty = replace(told, state=new_state(told.state.facts), timeline=Timeline())
    page = RunReport(empty).page()
    assert "No trial has a model to hand back: there is no model yet" in page
    assert "What to try next" in page
    assert "Nothing was seen in this run that calls for a change." in page


def test_trials_are_told_apart_without_colour_and_stops_are_marked() -> None:
    told = told_of("held")
    pictures = {one.name: one for one in RunReport(told).pictures()}
    assert "a ring where one was stopped" in pictures["curves-0-at_s"].caption
    halted = sum(fate(told.state, one) == "survived" for one in told.state.trials.values())
    rings = [
        len(one["data"]["values"])
        for one in pictures["curves-0-at_s"].spec["layer"]
        if one["mark"].get("shape") == "circle"
    ]
    assert rings == [halted]
    names = [
        one for one in pictures["parallel"].spec["layer"] if one["mark"].get("align") == "right"
    ]
    assert len(names[0]["data"]["values"]) == tables.TOP
    assert "shape" in pictures["slices"].spec["concat"][0]["layer"][1]["encoding"]


@pytest.mark.parametrize("to", ["", ".", "folder"])
def test_a_folder_is_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    folder = kept(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError, match="is a folder: write the page's file"):
        report([folder], ReportOptions(Path(to)))
    assert sorted(tmp_path.iterdir()) == before, "nothing is left"


def test_runs_that_want_the_opposite_are_not_compared(tmp_path: Path) -> None:
    folders = [kept(tmp_path)]
    (tmp_path / "other").mkdir()
    folders.append(kept(tmp_path / "other", mode="min"))
    with pytest.raises(UsageError, match=r"different metrics: acc<&> \(max\), acc<&> \(min\)"):
        report(folders, ReportOptions(tmp_path / "x.html"))


def test_without_scikit_learn_the_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(UsageError, match=re.escape(installing("report"))):
        importances(ordered(20, 1, 8.0), SPACE.parameters)


def test_a_picture_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    picture = RunReport(told_of("held")).pictures()[0]
    with pytest.raises(UsageError, match=r"a picture ends in \.svg, \.png, \.pdf"):
        write(picture.spec, tmp_path / "x.xyz")
    assert not list(tmp_path.iterdir())


def test_each_page_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Into a pipe too, which Python fills before it passes it on."""
    pipe = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe, write_through=False))
    report([kept(tmp_path)], ReportOptions(tmp_path / "x.html"))
    assert b"x.html (" in pipe.getvalue()
