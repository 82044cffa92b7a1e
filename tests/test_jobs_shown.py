"""What people and scripts are told of a run that jobs share: by job and by owner, each by its own
metric, and of the bill no second is told twice or left out.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, Group, RenderableType

from bench.testbed.checked_world import Behaviour, World
from seerd.api.handle import load
from seerd.commands.best import best, known
from seerd.commands.logs import LogsAsked, logs
from seerd.commands.on_end import in_a_line
from seerd.core.state import new_state
from seerd.core.step import follow
from seerd.errors import NoModelError, UsageError
from seerd.planner.model import BillingKind
from seerd.planner.trial_ids import job_of
from seerd.shell.home import RunFolder
from seerd.shell.journal import Entry
from seerd.telling import run_json
from seerd.telling.explanation.as_json import moment_json
from seerd.telling.explanation.pages import moment_page
from seerd.telling.explanation.timeline import Timeline
from seerd.telling.live.board import Board, Recent, board_of
from seerd.telling.live.frame import TrialLife, frame
from seerd.telling.live.look import LiveLook, listed, press
from seerd.telling.outcomes import bill_of, jobs_of
from seerd.telling.plain import line_of
from seerd.telling.summary import summary
from seerd.telling.tables import runs_table
from tests.conftest import small_facts
from tests.explanation.timelines import write_run
from tests.groups import NAMES, asked_world, group_world

REACHED = "a.t0001 has accuracy 0.9 after 6 reports, and 0.85 was wanted"
ROOT = Path(__file__).parents[1]


def printed(page: RenderableType, width: int = 300) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(page)
    return console.file.getvalue()  # type: ignore[attr-defined]


def keys(value: Any) -> Iterator[str]:
    """Of all objects in it, but names of hyperparameters and metrics."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            if key not in ("config", "metrics", "other_histories"):
                yield from keys(inner)
    for inner in value if isinstance(value, list) else ():
        yield from keys(inner)


@pytest.mark.parametrize("until_s", [None, 0.0, 50.0, 70.0])
@pytest.mark.parametrize("billing", ["held", "rented"])
def test_the_bill_is_divided_without_a_rest(billing: BillingKind, until_s: float | None) -> None:
    state = group_world(billing, until_s=until_s).state
    for now_s in (state.now, state.now + 10.0):
        bill = bill_of(state, now_s)
        whole = sum(bill.of_jobs.values()) + bill.shared
        assert whole == pytest.approx(state.ledger.spent_gpu_s(now_s))
        assert bill.shared >= 0
        assert min(bill.of_jobs.values()) >= 0
    if until_s is None:
        assert (bill_of(state, state.now).shared > 0) == (billing == "rented")


def test_each_job_has_its_own_attempts_charged() -> None:
    state = group_world().state
    for job in jobs_of(state):
        charges = (
            c for c in state.ledger.charges() if job_of(c.what.split("/")[0]) == job.facts.id
        )
        assert job.gpu_s == pytest.approx(sum(c.gpu_s(state.now) for c in charges))
        assert job.trials == sum(job_of(trial) == job.facts.id for trial in state.trials)


def test_lines_have_the_metric_and_the_best_of_each_job() -> None:
    world = group_world()
    state, lines = new_state(world.facts), []
    for event, decided in world.journal:
        follow(state, event, decided)
        lines += (line_of(event, state, decided) or "").splitlines()
    assert lines[0] == "    0.1s  3 jobs, 24 trials, deadline 10m, budget 40gpu-min"
    for line in (
        "    9.1s  a.t0001 report 1: accuracy 0.1  (best of a)",
        "    9.1s  b.t0001 report 1: loss 9  (best of b)",
        "   29.1s  b.t0001 report 2: loss 5  (best of b)",
        f"   61.0s  job a is over: its target was reached: {REACHED}; others get its share",
        "   66.1s  the best model of a is that of a.t0001, accuracy 0.9: best/a",
        "  125.0s  job c is over: its own deadline is near; others get its share",
        "  129.1s  the best model of b is that of b.t0001, loss 0.8: best/b",
    ):
        assert line in lines, line


def test_the_summary_has_a_line_for_each_job_and_its_model() -> None:
    told = printed(summary(group_world().state))
    for line in (
        "a    vision       2  asha         7     2.12   25%  accuracy   0.9  a.t0001  over: its target",
        "b    speech       1  asha         8     3.25   39%  loss       0.8  b.t0001  to the run's end",
        "best of a: a.t0001, accuracy 0.9 (target 0.85), curve=0\n      best/a\n",
        "best of b: b.t0001, loss 0.8, curve=0\n      best/b\n",
        "take a job's model with: seerd best shared --job JOB --to DIR",
    ):
        assert line in told, line
    rows = [line.split() for line in told.splitlines() if line[1:3] == ".t"]
    assert {row[1] for row in rows if row[0].startswith("b.")} == {"loss"}
    losses = [float(row[2]) for row in rows if row[0].startswith("b.")]
    assert losses == sorted(losses), "less of a loss is better"
    going = printed(summary(group_world(until_s=50.0).state, alive=True, most=6))
    assert "has 2 GPUs" in going
    assert "best of c: c.t0001, accuracy 0.3" in going
    assert "and 7 more" in going


def test_a_job_without_a_model_says_so_and_without_any_the_run_does() -> None:
    state = group_world(until_s=15.0).state
    for trial in state.trials.values():
        trial.checkpoints = trial.checkpoints if trial.id.startswith("a.") else ()
    assert "best of b: no model" in printed(summary(state))
    for trial in state.trials.values():
        trial.checkpoints = ()
    assert "there is no model yet" in printed(summary(state))


def test_what_scripts_are_told_by_job_and_by_owner() -> None:
    state = group_world("rented").state
    told = run_json.listed(state, "done")
    assert (told["best"]["trial"], told["metric"]["name"]) == ("a.t0001", "accuracy")
    assert run_json.exit_code(state) == 0
    rows = {row["job"]: row for row in told["jobs"]}
    assert {name: (row["metric"], row["owner"]) for name, row in rows.items()} == NAMES
    assert [(row["over"], row["why"]) for row in told["jobs"]] == [
        (True, "target"),
        (False, None),
        (True, "deadline"),
    ]
    assert (rows["b"]["best"]["metric"], rows["b"]["best"]["checkpoint"]) == (0.8, "best/b")
    owners = {row["owner"]: row for row in told["owners"]}
    assert owners["vision"]["jobs"] == ["a", "c"]
    assert owners["vision"]["trials"] == rows["a"]["trials"] + rows["c"]["trials"]
    for key in ("gpu_min", "usd"):
        own = sum(row[key] for row in told["jobs"])
        assert sum(row[key] for row in told["owners"]) == pytest.approx(own, abs=0.001)
        assert own + told["shared"][key] == pytest.approx(told[key], abs=0.001)
    assert in_a_line(told).startswith(
        "shared: the plan is carried out; best 0.9 (a.t0001), 0.8 (b.t0001), 0.9 (c.t0001); "
    )


def test_trials_have_their_own_metric() -> None:
    told = run_json.details(group_world().state, "done")
    row = next(row for row in told["all_trials"] if row["trial"] == "b.t0001")
    assert (row["job"], row["metric"], row["metrics"]) == (
        "b",
        0.8,
        {"accuracy": None, "loss": 0.8},
    )
    assert row["history"][-1][2] == 0.8
    assert set(row["other_histories"]) == {"accuracy"}


def test_a_run_has_a_model_if_any_of_its_jobs_has() -> None:
    state = group_world().state
    for name in ("a", "c"):
        del state.result.of_jobs[name]
    for trial in state.trials.values():
        trial.checkpoints = trial.checkpoints if trial.id.startswith("b.") else ()
    told = run_json.result(state, "done")
    assert (told["best"], told["no_model"], run_json.exit_code(state)) == (None, None, 0)
    del state.result.of_jobs["b"]
    assert run_json.exit_code(state) == run_json.EXIT_NO_MODEL


def test_the_ledger_has_what_is_no_jobs_too() -> None:
    told = run_json.ledger(group_world("rented").state, 0.0)
    assert round(told["shared"]["gpu_min"], 2) == 0.18
    owned = {row["owner"]: (row["jobs"], round(row["gpu_min"], 2)) for row in told["owners"]}
    assert owned == {"vision": (["a", "c"], 5.17), "speech": (["b"], 3.25)}
    assert run_json.ledger(group_world().state, 0.0)["shared"]["gpu_min"] == 0.0


def test_the_list_of_runs_says_how_many_jobs_there_are() -> None:
    row = {**run_json.listed(group_world().state, "done"), "began": "2026-01-01T00:00:00+00:00"}
    assert "(3 jobs)" in printed(runs_table([row]))


def test_every_key_is_documented() -> None:
    documented = (ROOT / "docs" / "json.md").read_text()
    told = run_json.shared(group_world("rented").state, 0.0)
    assert {"jobs", "owners", "shared"} == set(told)
    for key in (*keys(told), "job"):
        assert f"`{key}`" in documented, key


def test_a_run_of_one_job_is_told_as_before() -> None:
    state = World(small_facts(), Behaviour(metric=lambda config, epoch: 0.5)).run()
    told = [run_json.details(state, "done"), run_json.ledger(state, 0.0)]
    assert not {"job", "jobs", "owners", "shared"} & {key for value in told for key in keys(value)}
    assert jobs_of(state) == []
    page = printed(summary(state))
    assert "job" not in page
    assert page.splitlines()[2].split()[:5] == ["trial", "accuracy", "best", "saved", "reports"]


def run_of(home: Path, world: World) -> RunFolder:
    """A run's folder, with models in it as a daemon leaves them."""
    folder = RunFolder(write_run(home, "shared", world))
    for name, published in world.state.result.of_jobs.items():
        (folder.best / name).mkdir(parents=True)
        (folder.best / name / "checkpoint.pt").write_text(published.incumbent.trial)
        (folder.best / name / "config.json").write_text("{}")
    return folder


def test_the_model_of_a_job_is_taken_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, to = run_of(tmp_path, group_world()), tmp_path / "taken"
    best(folder, None, json=True, job="b")
    told = json.loads(capsys.readouterr().out)
    assert (told["job"], told["trial"], told["metric"]) == ("b", "b.t0001", 0.8)
    best(folder, to, json=False, job="b")
    assert (to / "checkpoint.pt").read_text() == "b.t0001"
    assert load(folder.path).best_of("c").trial == "c.t0001"
    assert (load(folder.path).best_of("c").path / "checkpoint.pt").read_text() == "c.t0001"
    with pytest.raises(UsageError, match="several jobs of shared have a model: a, b, c; say whose"):
        best(folder, None, json=False)
    with pytest.raises(UsageError, match="shared has no job z; its jobs: a, b, c"):
        best(folder, None, json=False, job="z")


def test_without_a_name_it_is_that_of_the_only_job_with_a_model() -> None:
    state, folder = group_world().state, RunFolder(Path("shared"))
    for name in ("a", "c"):
        del state.result.of_jobs[name]
    for trial in state.trials.values():
        trial.checkpoints = trial.checkpoints if trial.id.startswith("b.") else ()
    assert known(folder, state)["job"] == "b"
    with pytest.raises(NoModelError, match="job a of shared has no model to hand back"):
        known(folder, state, "a")
    alone = World(small_facts(), Behaviour(metric=lambda config, epoch: 0.5)).run()
    assert "job" not in known(folder, alone)
    with pytest.raises(UsageError, match="it is one job: leave out --job"):
        known(folder, alone, "a")


def test_logs_of_a_trial_of_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_of(tmp_path, group_world())
    for trial in ("a.t0001", "b.t0001"):
        made = folder.instances / "local" / "trials" / trial / "1" / "logs"
        made.mkdir(parents=True)
        (made / "rank0.log").write_text(f"this is {trial}\n")
    logs(folder, "b.t1", LogsAsked(whole=True))
    assert "this is b.t0001" in (told := capsys.readouterr().out)
    assert "this is a.t0001" not in told
    with pytest.raises(UsageError, match=r"trials with logs: a\.t0001, b\.t0001"):
        logs(folder, "t1", LogsAsked(whole=True))


# ------------------------------------------------------------ the live view


def board(world: World) -> Board:
    told = Recent()
    told.read([Entry(seq, *one) for seq, one in enumerate(world.journal, 1)], world.state)
    return board_of(world.state, world.now, told)


def screen(shown: Board, look: LiveLook, size: tuple[int, int] = (140, 40)) -> list[str]:
    console = Console(file=io.StringIO(), width=size[0], color_system=None, legacy_windows=False)
    console.print(Group(*frame(shown, look, size, lambda trial: TrialLife()).lines))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_trials_stand_among_those_of_their_job() -> None:
    shown = board(group_world(until_s=50.0))
    assert [row.job for row in shown.rows] == ["a"] * 6 + ["b"] * 4 + ["c"] * 3
    losses = [row.last(shown.metrics[0]) for row in shown.rows if row.job == "b"]
    assert losses == sorted(losses, key=float)  # type: ignore[arg-type]
    for sort in ("last", "saved", "job"):
        rows = listed(shown, LiveLook(sort=sort))
        assert [row.job for row in rows] == [row.job for row in shown.rows], sort
    assert [row.id for row in listed(shown, LiveLook(filter="b.t0002"))] == ["b.t0002"]


def test_the_live_view_has_a_line_for_each_job_and_its_column() -> None:
    shown = board(group_world(until_s=100.0))
    lines = screen(shown, LiveLook())
    for line in (
        "a          over: its target was reached, for vision; a.t0001 accuracy 0.9 after report 6",
        "b          has 2 GPUs, for speech; b.t0001 loss 0.8 after report 6",
    ):
        assert any(one.startswith(line) for one in lines), line
    assert any(re.match(r" job +trial +state .* last own metric▼", line) for line in lines)
    assert any(re.match(r".b +t0002 +waiting ", line) for line in lines)
    assert shown.events[-1].endswith("c.t0003 goes on after report 2 on GPU 3  curve=1")
    page = screen(shown, LiveLook(page="trial", cursor="b.t0001"))
    assert any("last loss 0.8, best saved 0.8" in line for line in page)
    assert any("loss by report" in line for line in page)


def test_a_report_is_the_best_of_its_job() -> None:
    shown = board(group_world(until_s=50.0))
    assert "   29.1s  b.t0001 report 2: loss 5, the best so far of b" in shown.events


@pytest.mark.parametrize("size", [(200, 50), (80, 24), (40, 12), (20, 5)])
@pytest.mark.parametrize("page", ["run", "trial", "help"])
def test_it_fits_the_screen(size: tuple[int, int], page: Any) -> None:
    lines = screen(board(group_world(until_s=50.0)), LiveLook(page=page, cursor="b.t0001"), size)
    assert len(lines) == size[1]
    assert all(len(line) <= size[0] for line in lines)


def test_sorting_reaches_the_column_of_jobs() -> None:
    shown, look = board(group_world(until_s=50.0)), LiveLook()
    seen = []
    for _ in range(8):
        look, _act = press(look, "s", shown, 20)
        seen.append(look.sort)
    assert "job" in seen


@pytest.mark.parametrize("made", [group_world, asked_world, partial(group_world, "rented")])
def test_every_moment_can_be_shown(made: Callable[[], World]) -> None:
    world, told, sizes = made(), Recent(), cycle(((80, 24), (140, 50)))
    state, timeline = new_state(world.facts), Timeline()
    for seq, (event, decided) in enumerate(world.journal, 1):
        timeline.read(state, event, decided)
        told.read([Entry(seq, event, list(decided))], state)
        screen(board_of(state, state.now, told), LiveLook(), next(sizes))
        if seq % 20 == 0:
            printed(summary(state))
            printed(moment_page(moment_json(state.now, timeline, state), state))
            json.dumps(run_json.details(state, "running"))
