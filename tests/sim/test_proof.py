"""The proof (bench/proof): the clock of the tools' loop, a run that is killed, and the tables."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from bench.proof import split, tables
from bench.proof.__main__ import key_of, lines_of
from bench.proof.loop import Decision, OneReport, Random, Suggestion, best_so_far, play
from bench.proof.units import CELLS, SEEDS, Unit, played, units
from bench.search.play import setting_of
from bench.search.tasks import Case, Cell
from seerd.planner.profile import CloudProfile, JobProfile, Latency
from seerd.sim.setting import Setting

ROOT = Path(__file__).parents[2]
REPORTS, ROWS = 10, 20
METHODS = "seer+,one-report"


def curves_in(folder: Path, *names: str) -> list[Path]:
    """Write small files of curves: the metric grows, most of all for the last configuration."""
    grown = 1 - np.exp(-np.arange(1, REPORTS + 1) / 4)
    metric = np.linspace(0.1, 0.9, ROWS)[:, None] * grown
    files = [folder / f"{name}.npz" for name in names]
    for file in files:
        np.savez(file, metric=metric, seconds=np.full(ROWS, 60.0), mode="max")
    return files


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    """One GPU for 1,000 s: 10 s of boot, 20 s for a start, 5 s for a save, 100 s for a report."""
    (file,) = curves_in(tmp_path, "a_1")
    made = setting_of(Case(file, "fixed", Cell(1000.0, 1), "asha", 1.0, 100.0 * REPORTS))
    took = {name: Latency(s, s) for name, s in (("start", 20.0), ("save", 5.0), ("boot", 10.0))}
    scaling = made.job.profile.job.scaling
    profile = replace(
        made.job.profile,
        job=JobProfile(scaling=scaling, start=took["start"], save=took["save"]),
        cloud=CloudProfile(boot=took["boot"]),
    )
    return replace(made, jobs=(replace(made.job, profile=profile),))


@dataclass
class Script:
    """A tool that decides as a list says, and notes when it was asked."""

    suggestions: Iterator[Suggestion | None]
    decisions: Iterator[Decision]
    asked_s: list[float] = field(default_factory=list)
    reported_s: list[float] = field(default_factory=list)

    def suggest(self, now_s: float) -> Suggestion | None:
        self.asked_s.append(now_s)
        return next(self.suggestions)

    def report(
        self, now_s: float, trial: int, reports: int, metric: float | None, unit_s: float
    ) -> Decision:
        self.reported_s.append(now_s)
        return next(self.decisions)


class TestClock:
    def test_boot_starts_reports_and_saves_all_take_their_time(self, setting: Setting) -> None:
        suggestions = [Suggestion(0, 3), Suggestion(1, 4), Suggestion(0), Suggestion(2, 5)]
        decisions: list[Decision] = ["pause", "stop", "continue", "stop"]
        tool = Script(iter(suggestions), iter([*decisions, *["continue"] * 5]))
        came = play(tool, setting, 1, seed=0)
        # paused at 130, saved at 135, stopped at once at 255, resumed with its second report at 375
        assert tool.asked_s == pytest.approx([10, 135, 255, 475])
        assert tool.reported_s == pytest.approx([130, 255, 375, 475, 595, 695, 795, 895, 995])
        assert (came.trials, came.starts, came.saves) == (3, 4, 1)

    def test_a_trial_ends_with_its_curve(self, setting: Setting) -> None:
        longer = replace(setting, limits=replace(setting.limits, deadline_s=1149.0))
        came = play(tool := Random(ROWS, 0), longer, 1, seed=0)
        assert len(came.reports) == REPORTS
        assert tool.trials == 2

    def test_a_worker_without_work_asks_again_when_another_has_reported(
        self, setting: Setting
    ) -> None:
        tool = Script(iter([Suggestion(0, 1), None, Suggestion(1, 2)]), iter(["continue"] * 30))
        came = play(tool, setting, 2, seed=0)
        assert tool.asked_s == pytest.approx([10, 10, 130])
        assert came.trials == 2

    @pytest.mark.parametrize("gpus", [1, 3, 8])
    @pytest.mark.parametrize("deadline_s", [5.0, 129.0, 131.0, 1000.0, 5000.0])
    def test_nothing_happens_after_the_deadline(
        self, setting: Setting, gpus: int, deadline_s: float
    ) -> None:
        short = replace(setting, limits=replace(setting.limits, deadline_s=deadline_s))
        tool = OneReport(ROWS, 0, REPORTS, deadline_s, less=False)
        came = play(tool, short, gpus, seed=0)
        assert bool(came.reports) == (deadline_s >= 130.0)
        assert all(at_s <= deadline_s for at_s, _ in came.reports)

    def test_one_report_hears_many_and_trains_the_best(self, setting: Setting) -> None:
        longer = replace(setting, limits=replace(setting.limits, deadline_s=2500.0))
        came = play(OneReport(ROWS, 0, REPORTS, 2500.0, less=False), longer, 1, seed=0)
        metrics = [metric for _, metric in came.reports]
        assert came.trials == 12  # one in 125 s, until 1,100 s are left for a whole training
        assert (came.starts, came.saves) == (14, 12)  # the last start reports too late
        assert max(metrics) == metrics[-1]


def test_a_best_so_far_is_kept_until_it_is_beaten() -> None:
    regrets = [(1.0, 0.5), (2.0, 0.7), (3.0, 0.2), (4.0, 0.2)]
    assert best_so_far(regrets) == [(1.0, 0.5), (3.0, 0.2)]


class TestSplit:
    def test_the_frozen_split_follows_its_rule_and_every_family_has_both_parts(self) -> None:
        tasks = split.read()
        assert split.written(tasks) == split.PATH.read_text()
        parts: dict[str, list[str]] = {}
        for task in sorted(tasks, key=lambda task: split.order_of(task.family, task.name)):
            parts.setdefault(task.family, []).append(task.part)
        assert len(tasks) >= 35
        for members in parts.values():
            assert members == ["dev" if place % 2 == 0 else "test" for place in range(len(members))]
            assert set(members) == {"dev", "test"}

    def test_another_file_of_the_same_name_is_refused(self, tmp_path: Path) -> None:
        (file,) = curves_in(tmp_path, "a_1")
        tasks = split.split_of([file])
        assert split.missing(tasks, tmp_path) == []
        file.write_bytes(file.read_bytes() + b" ")
        assert split.missing(tasks, tmp_path) == ["a_1.npz has another SHA-256"]


class TestRuns:
    def test_a_killed_run_goes_on_and_plays_nothing_twice(self, tmp_path: Path) -> None:
        files = curves_in(tmp_path, "a_1", "b_1")
        (tmp_path / "split.json").write_text(split.written(split.split_of(files)))
        results = tmp_path / "results.jsonl"
        command = [sys.executable, "-m", "bench.proof", str(tmp_path), "--results", str(results)]
        command += ["--tasks", str(tmp_path / "split.json"), "--methods", METHODS, "--seeds", "1"]
        started = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
        while len(lines_of(results)) < 3:
            time.sleep(0.01)
            assert started.poll() is None
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        before = lines_of(results)
        with results.open("a") as file:
            file.write('{"family": "a", "ta')  # what a kill leaves of a line
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        after = lines_of(results)
        assert after[: len(before)] == before
        todo = units(split.split_of(files), 1, METHODS.split(","))
        assert Counter(map(key_of, after)) == Counter(unit.key for unit in todo)

    def test_a_unit_is_the_same_whenever_it_is_played(self, tmp_path: Path) -> None:
        (task,) = split.split_of(curves_in(tmp_path, "a_1"))
        for method in METHODS.split(","):
            unit = Unit(task, "8 GPUs, 30 min", method, 1)
            first, again = (played(unit, tmp_path, tmp_path) for _ in range(2))
            same = ("regret", "trace", "trials", "used", "code")
            assert [first[name] for name in same] == [again[name] for name in same]
            assert first["trace"] == sorted(first["trace"], reverse=True)

    def test_every_moment_is_a_fair_sample(self) -> None:
        order = list(units(split.read(), 2, ["seer+", "asha"]))
        assert [unit.method for unit in order[:4]] == ["seer+", "asha"] * 2
        families = {task.family for task in split.read()}
        assert {unit.task.family for unit in order[: 2 * len(families)]} == families
        assert {unit.seed for unit in order[: len(order) // 2]} == {0}
        assert {unit.cell for unit in order[: len(order) // 2]} == set(CELLS)


def line(method: str, regret: float, family: str = "a", task: str = "1", seed: int = 0) -> dict:
    """Return a line of results."""
    return {
        "family": family,
        "task": task,
        "cell": next(iter(CELLS)),
        "method": method,
        "seed": seed,
        "code": "0",
        "regret": regret,
        "trace": [regret] * 20,
        "decision_ms": 1.0,
        "cpu_s": 1.0,
    }


class TestTables:
    def test_a_family_counts_once_and_only_common_runs_are_compared(self) -> None:
        lines = [line("seer+", 0.1, "a", str(task)) for task in range(3)]
        lines += [line("asha", 0.2, "a", str(task)) for task in range(3)]
        lines += [line("seer+", 0.4, "b"), line("asha", 0.4, "b"), line("seer+", 2.0, "b", seed=1)]
        figures = tables.summary(lines)
        assert figures["methods"]["asha"]["regret"][0] == 0.3
        assert figures["methods"]["asha"]["beside"] == [0.8333, 0.5, 1.0]
        assert figures["methods"]["seer+"]["rank"][0] == 1.25
        assert figures["best_other"] == "asha"
        assert figures["on"] == {"fixed": {"best_other": "asha", "beside": [0.8333, 0.5, 1.0]}}

    def test_surely_worse_needs_seeds_that_agree(self) -> None:
        noise = [0.2, 0.5, 0.3, 0.6]
        lines = [line("seer+", value + 0.1, seed=n) for n, value in enumerate(noise)]
        lines += [line("asha", value, seed=n) for n, value in enumerate(noise)]
        (test,) = tables.summary(lines)["worse_than_best_other"]["tests"]
        assert (test["other"], test["worse"]) == ("asha", True)
        lines += [line("asha", noise[3] + 0.3, seed=3)]
        (test,) = tables.summary(lines)["worse_than_best_other"]["tests"]
        assert test["worse"] is False

    def test_the_page_has_a_row_for_every_method_that_was_played(self, tmp_path: Path) -> None:
        lines = [line(name, 0.1, family) for name in SEEDS for family in "ab"]
        text = tables.section(tables.summary(lines), dict.fromkeys(SEEDS, 1))
        for name in SEEDS:
            assert text.count(f"\n| {tables.TITLES[name]} |") == 3
