"""The training side with real torch processes: what is restored, what stays the same on any number
of GPUs, who leaves when.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd.agent.manifest import Comparison
from seerd.training import checkpoints
from seerd.training.attempt import Attempt, aggregate, since_boot
from seerd.training.data import Sampler, Share, split
from seerd.training.marks import Mark, Steps
from seerd.training.pace import Horizon
from seerd.training.ranks import Ranks
from tests.trials import ROOT, Bench, Processes

GOAL = Comparison("accuracy", "max")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """A test that has failed leaves no process behind."""
    yield
    Processes.end_all()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """24 steps on one GPU without any stop."""
    bench = Bench(tmp_path_factory.mktemp("undisturbed"))
    bench.run(1)
    return bench.steps()


def test_killed_and_resumed_on_more_and_on_fewer_gpus_it_follows_the_undisturbed_run(
    tmp_path: Path, undisturbed: list[dict]
) -> None:
    bench = Bench(tmp_path)
    bench.run(1, code=1, TEST_DIE_AT="9")
    on_more = bench.run(2, code=1, TEST_DIE_AT="17")
    on_one = bench.run(1)
    assert [lines[0]["kind"] for lines in (on_more, on_one)] == ["training", "training"]
    assert 1 <= on_more[0]["epoch"] < on_one[0]["epoch"]
    found = bench.steps()
    assert [row["samples"] for row in found] == [row["samples"] for row in undisturbed]
    assert [row["loss"] for row in found] == pytest.approx(
        [row["loss"] for row in undisturbed], rel=1e-4
    )


def test_with_loader_workers_that_fetch_ahead_no_sample_is_lost(
    tmp_path: Path, undisturbed: list[dict]
) -> None:
    bench = Bench(tmp_path)
    bench.run(1, code=1, TEST_DIE_AT="9", TEST_WORKERS="2")
    bench.run(1, TEST_WORKERS="2")
    assert [row["samples"] for row in bench.steps()] == [row["samples"] for row in undisturbed]


def test_random_numbers_go_on_exactly_where_they_were(tmp_path: Path) -> None:
    whole, parts = Bench(tmp_path / "whole"), Bench(tmp_path / "parts")
    whole.run(1, TEST_DROPOUT="0.5")
    parts.run(1, code=1, TEST_DROPOUT="0.5", TEST_DIE_AT="9")
    parts.run(1, TEST_DROPOUT="0.5")
    assert [row["loss"] for row in parts.steps()] == [row["loss"] for row in whole.steps()]


def test_when_the_agent_asks_for_it_all_ranks_save_at_the_same_step_and_go_on(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    process, out = bench.start(2, steps=10**6, unit=1, every_s=1000.0)

    def told(kind: str) -> int:
        assert not process.poll()
        return out.read_text().count(f'"kind": "{kind}"') if out.exists() else 0

    # The first state is the best that there was, and is saved unasked; later ones are worse.
    while not told("checkpoint"):
        time.sleep(0.02)
    saved, reported = told("checkpoint"), told("report")
    (out.parent / "save").touch()
    while told("checkpoint") <= saved or told("report") <= reported + 5:
        time.sleep(0.02)
    assert told("checkpoint") == saved + 1
    assert not (out.parent / "save").exists()
    (out.parent / "stop").touch()
    process.printed()
    assert not process.failed


def test_all_ranks_leave_at_the_same_step_and_save(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    process, out = bench.start(2, steps=10**6, unit=1, every_s=1000.0)
    while not out.exists() or out.read_text().count("report") < 5:
        assert not process.poll()
        time.sleep(0.02)
    (out.parent / "stop").touch()
    text = process.printed()
    assert not process.failed, text
    lines = bench.lines(out)
    reports = [line["epoch"] for line in lines if line["kind"] == "report"]
    saved = [line["name"] for line in lines if line["kind"] == "checkpoint"]
    assert int(saved[-1].split("-")[0]) == reports[-1]
    import torch

    payload = torch.load(bench.checkpoints / f"{saved[-1]}.pt", weights_only=True)
    assert payload["epoch"] == reports[-1]
    assert len(payload["rng"]) == 2
    assert set(payload["state"]) == {"model", "optimizer", "schedule"}


def test_a_trial_whose_agent_has_died_saves_and_leaves(tmp_path: Path) -> None:
    lock = tmp_path / "agent.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        bench = Bench(tmp_path / "trial")
        process, out = bench.start(1, steps=10**6, unit=1, SEERD_AGENT_LOCK=str(lock))
        while not out.exists() or "report" not in out.read_text():
            assert not process.poll()
            time.sleep(0.02)
        fcntl.flock(held, fcntl.LOCK_UN)  # the fork has the file open, too
    process.printed()
    assert not process.failed
    assert bench.lines(out)[-1]["kind"] == "checkpoint"


class Evil:
    """A pickle that would run code when it is loaded: it leaves a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple:
        return (os.system, (f"touch {self.file}",))


@pytest.fixture(scope="module")
def twice_saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of an attempt that has saved twice."""
    bench = Bench(tmp_path_factory.mktemp("saved"))
    bench.run(1, steps=8)
    return bench.checkpoints


DAMAGES = ("truncated", "flipped", "pickle", "pickle with its checksum", "no manifest")


def damaged(folder: Path, damage: str, evil: Path) -> Path:
    """Damages the newest of two checkpoints; the other one. `evil`: what its code would leave."""
    import torch

    older, newer = sorted(folder.glob("*.json"))
    newest = newer.with_suffix(".pt")
    data = newest.read_bytes()
    if damage == "truncated":
        newest.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        newest.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    elif damage == "pickle":
        newest.write_bytes(pickle.dumps(Evil(evil)))
    elif damage == "pickle with its checksum":
        torch.save({"epoch": 9, "evil": Evil(evil)}, newest)
        there = {
            "sha256": hashlib.sha256(newest.read_bytes()).hexdigest(),
            "size": newest.stat().st_size,
        }
        newer.write_text(json.dumps(json.loads(newer.read_text()) | there))
    else:
        newer.unlink()
    return older.with_suffix(".pt")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, twice_saved: Path, damage: str
) -> None:
    import torch

    shutil.copytree(twice_saved, tmp_path / "saved")
    older = damaged(tmp_path / "saved", damage, tmp_path / "evil")
    assert checkpoints.newest(torch, tmp_path / "saved") == older
    assert not (tmp_path / "evil").exists()


def test_a_trial_goes_on_from_the_checkpoint_before_a_damaged_one(
    tmp_path: Path, twice_saved: Path
) -> None:
    bench = Bench(tmp_path)
    bench.attempts = 1
    shutil.copytree(twice_saved, bench.checkpoints)
    older = damaged(bench.checkpoints, "pickle with its checksum", tmp_path / "evil")
    lines = bench.run(1, steps=12)
    assert lines[0]["epoch"] == int(older.stem.split("-")[0])
    assert not (tmp_path / "evil").exists()


def test_a_checkpoint_is_named_once_its_bytes_are_on_the_disk_and_its_manifest_is_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []
    flush, name = os.fsync, os.replace

    def flushed(file: int) -> None:
        flush(file)
        done.append(("flushed", Path(f"/proc/self/fd/{file}").readlink().name))

    def named(part: Path, to: Path) -> None:
        name(part, to)
        done.append(("named", to.name))

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", named)
    checkpoints.write(tmp_path, "1", 1, {}, lambda out: out.write(b"weights"), GOAL)
    assert done == [
        ("flushed", ".1.pt"),
        ("named", "1.pt"),
        ("flushed", ".1.json"),
        ("named", "1.json"),
    ]


def test_the_newest_two_checkpoints_and_the_best_stay_here(tmp_path: Path) -> None:
    for number, accuracy in enumerate((0.4, 0.9, None, 0.5, 0.6, 0.5), 1):
        metrics = {"accuracy": accuracy}
        checkpoints.write(tmp_path, str(number), number, metrics, lambda _: None, GOAL)
    assert {path.stem for path in tmp_path.iterdir()} == {"2", "5", "6"}


def test_of_a_script_that_reports_each_step_the_newest_checkpoints_stay_and_are_gone_on_from(
    tmp_path: Path,
) -> None:
    for reports in (999_998, 999_999, 1_000_000, 1_000_001, 10_000_000):
        dump = partial(checkpoints.dump, None, {"epoch": reports})
        checkpoints.write(tmp_path, f"{reports:06d}-{reports:08d}", reports, {}, dump, GOAL)
    there = {path.stem for path in tmp_path.iterdir()}
    assert there == {"1000001-01000001", "10000000-10000000"}
    newest = checkpoints.newest(None, tmp_path)
    assert newest is not None
    assert checkpoints.load(None, newest) == {"epoch": 10_000_000}


GETS_BETTER_THEN_WORSE = """
import json, os, seerd
from pathlib import Path
out, trial, after = Path(os.environ["SEERD_DIR"]) / "out.jsonl", seerd.trial(), 0
best = 0.0
while trial.running() and after < 20:
    if out.exists() and out.read_text().count('"kind": "checkpoint"') >= 3:
        after += 1
        best = best or trial.epoch
    trial.report(accuracy=-abs(trial.epoch - best) if best else trial.epoch - 1e6)
"""


def test_a_better_model_is_saved_without_waiting_for_the_next_interval(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(GETS_BETTER_THEN_WORSE)
    process, out = bench.start(1, steps=0, unit=0, every_s=1e6, script=script)
    text = process.printed()
    assert not process.failed, text
    reports = {line["epoch"]: line for line in bench.lines(out) if line["kind"] == "report"}
    saved = [line["name"] for line in bench.lines(out) if line["kind"] == "checkpoint"]
    told = [int(name.partition("-")[0]) for name in saved]
    better = [reports[epoch]["metrics"]["accuracy"] for epoch in told]
    assert better[:-1] == sorted(better[:-1])
    assert len(saved) in (4, 5), "each of the first is better than the one before; one at the end"
    assert told[-1] == max(reports)


REPORTS = """
import os, seerd
values = iter(os.environ["TEST_VALUES"].split())
trial = seerd.trial()
while trial.running() and (value := next(values, None)):
    trial.report(accuracy=float(value), loss=-float(value))
"""


def test_checkpoints_have_the_mean_of_the_last_reports_over_all_attempts(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(REPORTS)
    reported, saved = {}, {}
    for values in ("1 3", "0", "6 9", "nan 1 1"):
        process, out = bench.start(
            1, steps=0, unit=0, every_s=1e6, script=script, smooth=3, TEST_VALUES=values
        )
        text = process.printed()
        assert not process.failed, text
        reported |= {n["epoch"]: n["metrics"] for n in bench.lines(out) if n["kind"] == "report"}
        last = max(bench.checkpoints.glob("*.json"))
        manifest = json.loads(last.read_text())
        saved[manifest["epoch"]] = manifest["metrics"]
    told = [metrics["accuracy"] for _, metrics in sorted(reported.items())]
    assert told == [1.0, 3.0, 0.0, 6.0, 9.0, None, 1.0, 1.0], "reports are as they were made"
    means = {epoch: metrics["accuracy"] for epoch, metrics in saved.items()}
    assert means == {2: 2.0, 3: pytest.approx(4 / 3), 5: 5.0, 8: None}
    assert saved[5]["loss"] == -9.0, "another metric is the last report's"
    kept = {int(path.stem.partition("-")[0]) for path in bench.checkpoints.glob("*.json")}
    assert kept == {5, 6, 8}, "the newest two, and the best by its mean"


def test_a_report_that_violates_a_constraint_is_no_worth_of_a_checkpoint(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(REPORTS)
    process, out = bench.start(
        *(1,), steps=0, unit=0, script=script, constraints=["loss > -5"], TEST_VALUES="3 9"
    )
    text = process.printed()
    assert not process.failed, text
    lines = bench.lines(out)
    told = [line["metrics"]["accuracy"] for line in lines if line["kind"] == "report"]
    assert told == [3.0, 9.0], "reports are as they were made"
    saved = [line for line in lines if line["kind"] == "checkpoint"]
    assert saved
    assert all(line["tracked"] == [] for line in saved)
    kept = [json.loads(path.read_text()) for path in sorted(bench.checkpoints.glob("*.json"))]
    worths = {one["epoch"]: one["metrics"]["accuracy"] for one in kept}
    assert worths == {1: 3.0, 2: None}


def test_a_report_must_have_what_the_spec_has_a_constraint_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(REPORTS)
    process, _ = bench.start(
        *(1,), steps=0, unit=0, script=script, constraints=["latency_ms < 20"], TEST_VALUES="3"
    )
    text = process.printed()
    assert process.failed
    assert "the spec has a constraint on 'latency_ms', and trial.report() was given" in text


def test_a_mean_is_finite_or_none() -> None:
    assert aggregate([0.1]) == 0.1
    assert aggregate([1.0, None]) is None
    assert aggregate([1.7e308, 1.7e308]) is None


def horizon(folder: Path, ends_in_s: float | None, max_reports: int | None = None) -> Horizon:
    """Of an attempt whose agent has said when training ends, or has not."""
    about = dict.fromkeys(("trial", "config", "metric", "mode", "seed", "gpus", "allocations"))
    about |= {"checkpoints": "x", "checkpoint_every_s": 10.0}
    (folder / "trial.json").write_text(json.dumps(about))
    (folder / "horizon.json").unlink(missing_ok=True)
    if ends_in_s is not None:
        said = {"version": 1, "ends_since_boot": since_boot() + ends_in_s}
        (folder / "horizon.json").write_text(json.dumps(said))
    return Horizon(Attempt.read(folder), max_reports)


def test_progress_is_the_share_of_the_time_that_a_trial_may_expect(tmp_path: Path) -> None:
    known = horizon(tmp_path, 300.0)
    assert known.look(0.0, 0)[0] == 0.0
    progress, remaining_s = known.look(100.0, 1)
    assert progress == pytest.approx(0.25, rel=1e-3)
    assert 299.0 < remaining_s <= 300.0
    assert known.look(200.0, 2)[0] == pytest.approx(0.5, rel=1e-3)
    assert horizon(tmp_path, -5.0).look(10.0, 1) == (1.0, 0.0)


def test_progress_goes_by_reports_if_they_end_sooner(tmp_path: Path) -> None:
    assert horizon(tmp_path, 300.0, 4).look(100.0, 2)[0] == 0.5
    assert horizon(tmp_path, 300.0, 400).look(100.0, 2)[0] == pytest.approx(0.25, rel=1e-3)
    assert horizon(tmp_path, None, 4).look(100.0, 5) == (1.0, math.inf)
    assert horizon(tmp_path, None).look(100.0, 5) == (0.0, math.inf), "nothing is known"


def test_progress_does_not_go_back_when_the_end_comes_later_than_it_seemed(tmp_path: Path) -> None:
    known = horizon(tmp_path, 900.0)
    known.progress, known.trained_s = 0.5, 100.0
    assert known.look(1.0, 3)[0] == 0.5
    assert known.look(1000.0, 4)[0] > 0.5


TELLS_HOW_FAR_IT_IS = """
import os, seerd
trial = seerd.trial()
began = trial.epoch
with open(f"{os.environ['TEST_OUT']}.{trial.rank}", "a") as out:
    while trial.running() and trial.epoch < began + 2:
        print(trial.epoch, trial.progress, file=out)
        trial.report(accuracy=0.5)
"""


def test_a_trial_knows_how_far_it_is_across_its_attempts_and_on_every_rank(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(TELLS_HOW_FAR_IT_IS)
    for _ in range(2):
        process, _ = bench.start(2, steps=0, unit=0, script=script, max_reports=8)
        text = process.printed()
        assert not process.failed, text
    for rank in (0, 1):
        rows = (tmp_path / f"steps.jsonl.{rank}").read_text().splitlines()
        assert rows == [f"{epoch} {epoch / 8}" for epoch in range(4)]


def test_a_script_runs_by_hand_without_seerd(tmp_path: Path) -> None:
    """Not even torch is needed: Python without its packages has none."""
    (tmp_path / "spec.toml").write_text(
        "[space]\nlr = { low = 1e-4, high = 1.0, log = true }\nlayers = [3, 5]\n"
    )
    script = (
        "import seerd\nt = seerd.trial()\nprint(t.config)\nfor _ in range(2):\n    "
        "assert t.running()\n    t.report(accuracy=0.5)\n"
    )
    (tmp_path / "train.py").write_text(script)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SEERD")
    }
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-S", "train.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "'lr': 0.01" in done.stdout
    assert "'layers': 3" in done.stdout
    assert "report 2: accuracy 0.5" in done.stdout


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 64), st.integers(1, 64))
def test_the_global_batch_is_the_same_on_any_number_of_gpus(
    world: int, share: int, per_gpu: int
) -> None:
    batch = split(share * world, per_gpu, world, ())
    assert batch.micro * batch.accumulate * world == share * world
    assert batch.micro <= per_gpu
    larger = [n for n in range(batch.micro + 1, per_gpu + 1) if share % n == 0]
    assert not larger, "the micro-batch is the largest that fits"


def test_a_batch_that_some_number_of_gpus_cannot_share_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="12 or 16 can"):
        split(15, None, 1, (1, 2, 4))


@given(st.integers(1, 200), st.integers(1, 8), st.integers(0, 3))
def test_ranks_together_read_what_one_alone_would(samples: int, share: int, passes: int) -> None:
    def drawn(world: int) -> list[list[int]]:
        readers = []
        for rank in range(world):
            mine = Share(3, rank, world, split(4 * share, None, world, ()))
            sampler = Sampler(mine, Steps(Mark(Ranks(None), None)), samples, shuffle=True)
            for _ in range(passes):
                list(sampler)
            readers.append(list(sampler))
        per_rank = 4 * share // world
        steps = len(readers[0]) // per_rank
        return [
            sorted(i for r in readers for i in r[s * per_rank : (s + 1) * per_rank])
            for s in range(steps)
        ]

    assert drawn(1) == drawn(2) == drawn(4)


def test_reporting_something_else_than_the_metric_is_told(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text("import seerd\nt = seerd.trial()\nt.running()\nt.report(acc=1)\n")
    process, _ = Bench(tmp_path).start(1, steps=0, unit=0, script=script)
    assert "the spec's metric is 'accuracy', and trial.report() was given acc" in process.printed()
    assert process.failed
