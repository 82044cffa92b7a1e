"""The live view fits its screen whatever happens, says what matters, does what its keys say, and is
cheap to draw.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs
from rich.console import Console, Group

from bench.testbed.checked_world import Behaviour, World
from seerd.core.events import RunFacts
from seerd.core.lifecycle import InstancePhase
from seerd.core.metrics import names_of
from seerd.core.state import Instance
from seerd.planner.model import ClusterFacts, Limits, MetricConstraint, PolicyParams, Problem
from seerd.planner.space import Parameter, Space
from seerd.shell.journal import Entry
from seerd.telling.live.board import Board, Recent, board_of
from seerd.telling.live.frame import TrialLife, frame, instances
from seerd.telling.live.look import LiveLook, press
from seerd.telling.live.table import sparkline
from seerd.telling.summary import summary

FIRST = LiveLook()
MakeFacts = Callable[..., RunFacts]
SPACE = Space(
    (
        Parameter("width", choices=(64,)),
        Parameter("dropout", low=0.0, high=0.5),
        Parameter("lr", low=1e-4, high=1.0, log=True),
    )
)
"""The first does not vary, the second does not matter."""


def metric(config, epoch):
    return float(config["lr"]) * (1 - 0.5**epoch) if epoch % 7 else None


def world(facts: RunFacts, until_s: float) -> World:
    made = World(
        facts, Behaviour(metric=metric, crashes=lambda trial, attempt, epoch: trial == "t0002")
    )
    made.begin()
    while made.now < until_s and not made.state.finished:
        made.turn()
    return made


def recent(made: World) -> Recent:
    told = Recent()
    told.read([Entry(seq, *one) for seq, one in enumerate(made.journal, 1)], made.state)
    return told


def board(made: World) -> Board:
    return board_of(made.state, made.now, recent(made))


def asha(until_s: float) -> World:
    """Thirty trials that are compared by reports, on 4 GPUs."""
    params = PolicyParams(name="asha", trials=30, max_reports=16, t_min_s=1.0, seed=1)
    facts = RunFacts(
        run="rungs",
        name="rungs",
        metric="accuracy",
        mode="max",
        problem=Problem(Limits(2000.0, 9000.0, 4), SPACE, params),
        cluster=ClusterFacts("held", 4, max_instances=1),
    )
    made = World(facts, Behaviour(metric=metric, unit_s=lambda config, epoch, gpus: 10.0))
    made.begin()
    while made.now < until_s:
        made.turn()
    return made


@pytest.fixture(scope="module")
def rungs() -> Board:
    return board(asha(100.0))


def drawn(
    shown: Board,
    look: LiveLook = FIRST,
    size: tuple[int, int] = (100, 30),
    life: TrialLife | None = None,
) -> list[str]:
    made = frame(shown, look, size, lambda trial: life or TrialLife())
    out = io.StringIO()
    console = Console(file=out, width=size[0], color_system=None, legacy_windows=False)
    console.print(Group(*made.lines))
    return out.getvalue().splitlines()


# ------------------------------------------------------------ frames


@pytest.mark.parametrize("size", [(200, 50), (120, 40), (80, 24), (60, 20), (40, 12), (20, 5)])
@pytest.mark.parametrize("until_s", [0.0, 0.1, 1.0, 15.0, 25.0, 70.0])
@pytest.mark.parametrize("page", ["run", "trial", "help"])
def test_it_fits_the_screen(
    facts: MakeFacts, size: tuple[int, int], until_s: float, page: str
) -> None:
    shown = board(world(facts(), until_s))
    cursor = shown.rows[0].id if shown.rows else ""
    lines = drawn(shown, LiveLook(page=page, cursor=cursor), size)  # type: ignore[arg-type]
    assert len(lines) == size[1]
    assert all(len(line) <= size[0] for line in lines)


def test_it_says_what_matters(facts: MakeFacts) -> None:
    text = "\n".join(drawn(board(world(facts(), 25.0))))
    for part in (
        "deadline",
        "budget",
        "2 of 2",
        "running",
        "out",
        "failed",
        "best saved t00",
        "lr=",
        "m2.0: 0",
        "trials 1-6 of 6, by last accuracy",
        "Enter open",
        "? keys",
    ):
        assert part in text, part


def test_a_trial_says_why(rungs: Board) -> None:
    words = {(row.word, row.why) for row in rungs.rows}
    assert ("running", "to report 1") in words
    assert any(word == "running" and why.startswith("promoted, to report ") for word, why in words)
    assert any(word == "waiting" and " of " in why and "at report" in why for word, why in words)


def test_a_comparison_is_told_only_while_it_is_what_decided(facts: MakeFacts) -> None:
    made, names = asha(1.0), set()
    while not made.state.finished:
        made.turn()
        for row in board(made).rows if made.now > 60.0 else ():
            names.add(row.word)
            assert " of 1 at " not in row.why, "of one trial its place says nothing"
            if " at report " in row.why:
                assert row.word != "running"
                assert row.id not in made.state.plan.order
    assert "waiting" in names
    whys = {row.why for row in board(made).rows}
    assert "fully trained" in whys
    assert any(" at report 4" in why for why in whys)
    ended = {row.id: row.why for row in board(world(facts(), 1e6)).rows}
    assert ended["t0004"] == "to the end", "it was compared before, and went on"
    assert ended["t0003"] == "3rd of 4 at report 17", "that is why it is out"


def test_why_can_be_read_at_eighty_columns(rungs: Board) -> None:
    text = "\n".join(drawn(rungs, size=(80, 24)))
    assert "2nd of 4 at report 4" in text
    assert "promoted, to report 16" in text or "promoted, to report 4" in text


def test_hyperparameters_that_vary_come_first(rungs: Board) -> None:
    assert rungs.parameters[-1] == "width"
    assert set(rungs.parameters) == {"lr", "dropout", "width"}
    head = next(line for line in drawn(rungs, size=(80, 24)) if line.startswith(" trial"))
    assert head.split()[-2:] == ["dropout", "why"] or head.split()[-3:] == ["dropout", "lr", "why"]


def test_what_is_best_is_the_best_saved_checkpoint(rungs: Board) -> None:
    assert rungs.best is not None
    saved = [row.saved for row in rungs.rows if row.saved is not None]
    assert rungs.best.metric == max(saved)
    line = next(line for line in drawn(rungs) if line.startswith("best saved"))
    assert line.startswith(f"best saved {rungs.best.trial} accuracy {rungs.best.metric:.5g} after")


def test_a_frame_of_a_large_run_is_cheap() -> None:
    problem = Problem(
        Limits(600, 200_000, 600),
        Space((Parameter("lr", low=0.1, high=1),)),
        PolicyParams(eta=4, t_min_s=60),
    )
    cluster = ClusterFacts(billing="held", gpus_per_instance=600, max_instances=1)
    facts = RunFacts(
        run="large", name="large", metric="accuracy", mode="max", problem=problem, cluster=cluster
    )
    made = World(facts, Behaviour(metric=metric, unit_s=lambda config, epoch, gpus: 20.0))
    made.begin()
    while made.now < 30:
        made.turn()
    assert len(made.state.trials) > 50
    told = recent(made)
    drawn(board_of(made.state, made.now, told))
    began = time.process_time()
    for _ in range(10):
        drawn(board_of(made.state, made.now, told), size=(80, 24))
    assert (time.process_time() - began) / 10 < 0.1


def test_trials_are_shown_with_the_metric_that_is_asked_for(facts: MakeFacts) -> None:
    made = world(facts(), 25.0)
    trial = next(trial for trial in made.state.trials.values() if trial.history)
    made.state.signs.names["latency_ms"] = None
    trial.others[trial.reports] = {"latency_ms": 17.25}
    assert names_of(made.state) == ["accuracy", "latency_ms"]
    shown = board(made)
    assert "17.25" not in "\n".join(drawn(shown))
    look, _ = press(LiveLook(), "m", shown, 10)
    text = "\n".join(drawn(shown, look))
    assert "by last latency_ms" in text
    assert "17.25" in text
    assert press(look, "m", shown, 10)[0].metric_of(shown) == "accuracy"


def test_instances_say_in_words_what_they_do(rungs: Board) -> None:
    machines = (
        Instance("m1.0", 4, InstancePhase.READY, busy={0: "t0001", 1: "t0001", 2: "t0002"}),
        Instance("m1.1", 2, InstancePhase.LEAVING, claims={1: "t0003"}),
        Instance("m1.2", 4, InstancePhase.REQUESTED),
    )
    shown = replace(rungs, machines=machines)
    assert [line.plain for line in instances(shown, 80, 5)] == [
        "instances: 1 booting, 1 ready, 1 leaving; GPUs: 3 lent to trials, 3 idle",
        "m1.0: 0-1 t0001, 2 t0002, 3 idle",
        "m1.1 (leaving: the cloud takes it): 0 idle, 1 idle (for t0003)",
    ]
    assert [line.plain for line in instances(shown, 80, 2)][1:] == ["and 2 more"]
    computing = replace(machines[0], computed=(0.97, 0.91, None, 0.0))
    told = instances(replace(shown, machines=(computing,)), 80, 5)
    assert told[1].plain == "m1.0: 0-1 t0001 94%, 2 t0002, 3 idle"
    assert all(len(line.plain) <= 50 for line in instances(shown, 50, 9)[1:])
    assert instances(replace(shown, machines=()), 80, 5)[0].plain == "instances: none yet"


def test_of_a_thousand_reports_only_those_are_told_that_are_the_best_so_far() -> None:
    told = list(recent(asha(100.0)).lines)
    reports = [line for line in told if ": accuracy " in line]
    assert reports
    assert all(line.endswith(", the best so far") for line in reports)
    values = [float(line.partition(": accuracy ")[2].split(",")[0]) for line in reports]
    assert values == sorted(values)


def test_after_resume_only_a_report_better_than_those_before_is_the_best_so_far() -> None:
    made = asha(60.0)
    before = max(r.metric or 0 for t in made.state.trials.values() for r in t.history)
    again = Recent()  # as of a process that goes on with the run
    while made.now < 200.0:
        since = len(made.journal)
        made.turn()
        entries = [Entry(n, *one) for n, one in enumerate(made.journal[since:], since + 1)]
        again.read(entries, made.state)
    values = [
        float(line.partition(": accuracy ")[2].split(",")[0])
        for line in again.lines
        if line.endswith(", the best so far")
    ]
    assert values
    assert min(values) > before


def test_a_report_that_breaks_a_constraint_is_not_the_best_so_far() -> None:
    made = asha(60.0)
    broken = MetricConstraint("latency", "<", 5.0)
    made.state.facts = structs.replace(made.state.facts, constraints=(broken,))
    assert not [line for line in recent(made).lines if line.endswith(", the best so far")]


# ------------------------------------------------------------ small parts


def test_the_summary_tells_the_end(facts: MakeFacts) -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(summary(world(facts(), 70.0).state))
    text = out.getvalue()
    assert "the plan is carried out" in text
    assert "t0002 failed: ended with exit status 1" in text
    assert "last line" in text
    assert "seerd best small --to DIR" in text


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ([0.0, 1.0], 2, "▁█"),
        ([1.0, 1.0], 4, "▁▁"),
        ([0.0, None, 1.0], 3, "▁ █"),
        ([], 5, ""),
        ([None], 3, " "),
    ],
)
def test_sparklines(values: list[float | None], width: int, line: str) -> None:
    assert sparkline(values, width) == line


def test_a_trial_has_its_curve_and_says_where_its_history_and_its_log_are(rungs: Board) -> None:
    row = replace(rungs.rows[0], values={rungs.metrics[0]: [0.25, None, 0.75]})
    look = LiveLook(page="trial", cursor=row.id)
    shown = replace(rungs, rows=(row, *rungs.rows[1:]))
    lines = drawn(shown, look, (80, 30), TrialLife(log=()))
    at = lines.index("accuracy by report  0.25 to 0.75")
    assert lines[at + 1] == "▁ █"
    assert f"its history, and why: seerd replay rungs --trial {row.id}" in lines
    assert f"nothing printed yet that is here: seerd logs rungs {row.id}" in lines
    begun = replace(row, values={})
    assert "accuracy by report  no report yet" in drawn(replace(rungs, rows=(begun,)), look)
