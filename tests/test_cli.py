"""`seerd` as people use it: real processes, a real agent, a real journal; the trainer is a small
script without torch, so runs are short.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self

import psutil
import pytest

from seerd.agent.gpu_leases import ELSEWHERE
from seerd.clock import wall
from seerd.commands import beginning
from seerd.errors import LimitsError
from seerd.planning.plans import facts_of
from seerd.runs import runs
from seerd.shell.home import Home
from seerd.spec.experiment import load
from seerd.spec.spec import Spec
from tests.commands import Command

PROGRAMS = Path(__file__).parent / "programs"
SPEC = """
name = "quick"
metric = {{ name = "accuracy", mode = "max" }}
[train]
script = "./trainer.py"
launcher = "command"
env = {{ {env} }}
[space]
lr = {{ low = 0.0, high = 1.0 }}
[policy]
name = "seer"
eta = 2
p_max = 2
t_min = "{t_min}"
[limits]
deadline = "{deadline}"
budget = "{budget}"
[cluster]
gpus = 8
"""


class Seerd:
    """Runs the command in a home of its own. `more`: of its environment. As a context manager it
    ends what it has started and nobody has waited for: what a test that fails leaves behind would
    be held against the next.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.more: dict[str, str] = {}
        self._started: list[subprocess.Popen[str] | Command] = []
        self.spec = folder / "project" / "spec.toml"
        self.spec.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROGRAMS / "trainer.py", self.spec.parent)

    def write_spec(
        self, *, env: str = "", t_min: str = "6s", deadline: str = "24s", budget: str = "128gpu-s"
    ) -> None:
        self.spec.write_text(SPEC.format(env=env, t_min=t_min, deadline=deadline, budget=budget))

    def start(self, *args: str) -> subprocess.Popen[str] | Command:
        if self.more:  # which may have other modules
            command = [sys.executable, "-c", "from seerd import cli; cli.main()", *args]
            return self.begin(command, self.folder)
        process = Command(args, self.folder, self._environment())
        self._started.append(process)
        return process

    def begin(self, command: list[str], folder: Path) -> subprocess.Popen[str]:
        """Start any program in this folder."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, env=self._environment(), stdout=pipe, stderr=pipe, text=True, cwd=folder
        )
        self._started.append(process)
        return process

    def _environment(self) -> dict[str, str]:
        own = {"SEERD_HOME": str(self.home), ELSEWHERE: str(self.folder / "gpus")}
        return {**os.environ, **own, "COLUMNS": "100", **self.more}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None
                pipe.close()

    def __call__(self, *args: str, code: int = 0) -> str:
        process = self.start(*args)
        out, err = process.communicate()
        assert process.returncode == code, f"exit status {process.returncode}\n{out}\n{err}"
        return out if code == 0 else out + err

    def json(self, *args: str, code: int = 0) -> dict:
        process = self.start(*args, "--json")
        out, err = process.communicate()
        assert process.returncode == code, f"exit status {process.returncode}\n{out}\n{err}"
        return json.loads(out)

    def processes(self) -> list[psutil.Process]:
        """Everything of this home that runs: daemons, agents, trials."""
        mine = [psutil.Process(one.pid) for one in self._started if one.poll() is None]
        for process in psutil.process_iter():
            try:
                if process not in mine and str(self.folder) in " ".join(process.cmdline()) + str(
                    process.environ().get("SEERD_DIR", "")
                ):
                    mine.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return mine

    def run_folder(self) -> Path:
        return next(path for path in self.home.iterdir())

    def wait_for(self, reports: int, jobs: tuple[str, ...] = ()) -> None:
        """Until the trials of the only run have made so many reports in all, and one has saved,
        one of each of the jobs. `seerd show` would be late on a busy machine.
        """
        end = time.monotonic() + 60
        while self.reports() < reports or not all(self.saved(job) for job in jobs or ("",)):
            assert time.monotonic() < end, "the run does not get going"
            time.sleep(0.05)

    def reports(self) -> int:
        """As many as the journal of the only run has."""
        return self._told("trial-reported")

    def saved(self, job: str = "") -> bool:
        """Whether the journal of the only run has a checkpoint, of a trial of this job."""
        return self._told("trial-checkpointed", f'"trial":"{job}.' if job else "") > 0

    def _told(self, kind: str, part: str = "") -> int:
        """How many events of this kind its journal has, with this part in their JSON."""
        journals = list(self.home.glob("*/journal.db"))
        if not journals:
            return 0
        with contextlib.closing(
            sqlite3.connect(f"file:{journals[0]}?mode=ro", uri=True)
        ) as journal:
            try:
                rows = journal.execute(
                    "SELECT count(*) FROM events WHERE instr(event, ?) AND instr(event, ?)",
                    (f'"{kind}"'.encode(), part.encode()),
                )
            except sqlite3.OperationalError as error:
                assert "no such table" in str(error) or "locked" in str(error), error
                return 0
            return int(rows.fetchone()[0])


@pytest.fixture
def seerd(tmp_path: Path):
    with Seerd(tmp_path) as command:
        yield command
        left = command.processes()
        for process in left:
            process.kill()
    assert not left, f"still running: {left}"


def assert_model(seerd: Seerd, told: dict) -> None:
    assert told["best"]["metric"] > 0.5
    checkpoint = Path(told["best"]["checkpoint"])
    assert json.loads(checkpoint.read_text())["epoch"] == told["best"]["epoch"]
    config = json.loads((checkpoint.parent / "config.json").read_text())["config"]
    assert config == told["best"]["config"]


def test_a_run_from_start_to_result(seerd: Seerd) -> None:
    seerd.write_spec()
    told = seerd.json("run", str(seerd.spec))
    assert set(told) >= {
        "run",
        "status",
        "best",
        "elapsed_s",
        "deadline_s",
        "gpu_min",
        "budget_gpu_min",
        "usd",
        "trials",
    }
    assert told["status"] == "done"
    assert told["elapsed_s"] <= told["deadline_s"]
    assert told["gpu_min"] <= told["budget_gpu_min"]
    assert_model(seerd, told)
    shown = seerd.json("show", "last")
    assert sum(t["phase"] == "eliminated" for t in shown["all_trials"]) == 3
    assert any(t["attempts"] == 1 and t["phase"] == "survived" for t in shown["all_trials"]), (
        "one trial kept its GPUs"
    )
    ledger = seerd.json("ledger", "last")
    assert ledger["spent_gpu_min"] == pytest.approx(
        sum(c["gpu_min"] for c in ledger["charges"]), abs=0.01
    )
    assert [row["run"] for row in seerd.json("list")["runs"]] == [told["run"]]
    copied = seerd.json("best", "last", "--to", str(seerd.folder / "model"))
    assert Path(copied["checkpoint"]).parent == seerd.folder / "model"
    assert "training from 0" in seerd("logs", "last", "t1")
    assert_told(seerd, told)
    assert "best: t" in seerd("show", told["run"][:8])
    assert "spent" in seerd("ledger", "last")
    assert told["run"] in seerd("list")


def assert_told(seerd: Seerd, result: dict) -> None:
    """The run's story: every trial that is out was compared with others, the model is the chosen
    one, the stages cost what the run did.
    """
    timeline = seerd.json("replay", "last")
    assert timeline["same"]
    assert [chapter["stage"] for chapter in timeline["chapters"]][-2:] == [2, None]
    assert sum(chapter["gpu_min"] for chapter in timeline["chapters"]) == pytest.approx(
        result["gpu_min"], abs=0.001
    )
    explanations = [
        explanation for chapter in timeline["chapters"] for explanation in chapter["beats"]
    ]
    out = [
        explanation
        for explanation in explanations
        if explanation["kind"] == "judged" and explanation["verdict"] == "out"
    ]
    assert len(out) == 3
    assert all(explanation["place"] > explanation["best"] for explanation in out)
    (chosen,) = (explanation for explanation in explanations if explanation["kind"] == "chosen")
    assert (chosen["trial"], chosen["metric"]) == (
        result["best"]["trial"],
        result["best"]["metric"],
    )
    assert seerd.json("replay", "last", "--trial", result["best"]["trial"])["handed_back"]
    assert "decided last" in seerd("replay", "last", "--at", "@10")


def test_a_target_ends_a_run_with_a_model_whose_last_reports_reach_it_in_the_mean(
    seerd: Seerd,
) -> None:
    seerd.write_spec(deadline="60s", budget="320gpu-s", t_min="15s")
    keys = ("--set", "metric.target=0.5", "--set", "metric.smooth=3")
    told = seerd.json("run", str(seerd.spec), *keys)
    assert told["status"] == "target"
    assert told["elapsed_s"] < 20
    assert_model(seerd, told)
    shown, best = seerd.json("show", "last"), told["best"]
    (of_best,) = (row for row in shown["all_trials"] if row["trial"] == best["trial"])
    last = [metric for _, report, metric in of_best["history"] if report <= best["epoch"]][-3:]
    assert (shown["metric"]["target"], shown["metric"]["smooth"]) == (0.5, 3)
    assert best["mean_of"] == len(last)
    assert best["metric"] == pytest.approx(sum(last) / len(last))
    assert best["metric"] >= 0.5
    planned = seerd.json("plan", str(seerd.spec), "--set", "metric.target=0.5")
    assert "accuracy at least 0.5" in " ".join(planned["adjusted"])
    assert seerd.json("replay", "last")["same"]


SHORT = 'SEERD_TEST_EPOCHS = "30"'
"""Trials that end by themselves, and with them the run: long before its limits on an idle machine,
and in time on a busy one.
"""
ROOM = {"t_min": "15s", "deadline": "60s", "budget": "320gpu-s"}


def test_ctrl_c_saves_and_resume_goes_on(seerd: Seerd) -> None:
    seerd.write_spec(env=SHORT, **ROOM)
    run = seerd.start("run", str(seerd.spec), "--plain")
    seerd.wait_for(reports=12)
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate()
    assert run.returncode == 130
    assert "seerd resume" in out
    assert not seerd.processes()
    before = {t["trial"]: t["reports"] for t in seerd.json("show", "last")["all_trials"]}
    there = seerd.run_folder()
    moved = there.rename(there.with_name("moved"))
    assert f"looked for in {there}" in " ".join(seerd("resume", "moved", code=1).split())
    moved.rename(there)
    told = seerd.json("resume", "last")
    assert told["status"] == "done"
    assert_model(seerd, told)
    assert any(
        reports and f"training from {reports}\n" in seerd("logs", "last", name)
        for name, reports in before.items()
    )
    assert told["elapsed_s"] <= told["deadline_s"]


def test_ctrl_c_twice_ends_at_once_and_releases(seerd: Seerd) -> None:
    seerd.write_spec(env='SEERD_TEST_DEAF = "1"', deadline="60s", budget="400gpu-s", t_min="15s")
    run = seerd.start("run", str(seerd.spec), "--plain")
    seerd.wait_for(reports=6)
    run.send_signal(signal.SIGINT)
    time.sleep(0.3)
    began = time.monotonic()
    run.send_signal(signal.SIGINT)
    assert run.wait() == 130
    assert time.monotonic() - began < 3
    run.communicate()
    assert not seerd.processes()


def test_a_killed_daemon_is_resumed_and_nothing_is_trained_again(seerd: Seerd) -> None:
    seerd.write_spec(env=SHORT, **ROOM)
    run = seerd.start("run", str(seerd.spec), "--plain")
    seerd.wait_for(reports=10)
    run.kill()
    run.communicate()
    configs = {t["trial"]: t["config"] for t in seerd.json("show", "last")["all_trials"]}
    time.sleep(0.5)
    told = seerd.json("resume", "last")
    assert told["status"] == "done"
    assert_model(seerd, told)
    shown = seerd.json("show", "last")
    assert {t["trial"]: t["config"] for t in shown["all_trials"]} == configs
    for trial in shown["all_trials"]:
        epochs = [epoch for _, epoch, _ in trial["history"]]
        assert epochs == list(range(1, len(epochs) + 1)), "no report is missing and none came twice"
    assert told["gpu_min"] <= told["budget_gpu_min"]


def test_killing_the_agent_loses_nothing_that_was_saved(seerd: Seerd) -> None:
    seerd.write_spec(env=SHORT, **ROOM)
    run = seerd.start("run", str(seerd.spec), "--json")
    seerd.wait_for(reports=6)
    agent = int(next(seerd.run_folder().glob("instances/*/agent.pid")).read_text())
    os.kill(agent, signal.SIGKILL)
    out, _ = run.communicate()
    assert run.returncode == 0
    assert_model(seerd, json.loads(out))
    assert any(t["attempts"] > 1 for t in seerd.json("show", "last")["all_trials"])


def test_a_dead_daemon_s_agent_lets_go_by_itself(seerd: Seerd) -> None:
    seerd.write_spec(deadline="20s", budget="40gpu-s", t_min="5s")
    run = seerd.start("run", str(seerd.spec), "--plain")
    seerd.wait_for(reports=1)
    run.kill()
    run.communicate()
    end = time.monotonic() + 25
    while seerd.processes() and time.monotonic() < end:
        time.sleep(0.2)
    assert not seerd.processes()
    told = seerd.json("resume", "last")
    assert told["best"] is not None
    assert told["gpu_min"] <= told["budget_gpu_min"]


def test_a_crashing_trial_fails_with_its_last_words_and_the_run_goes_on(seerd: Seerd) -> None:
    seerd.write_spec(env=f'{SHORT}, SEERD_TEST_CRASH = "t0002"', **ROOM)
    told = seerd.json("run", str(seerd.spec))
    assert told["status"] == "done"
    shown = seerd("show", "last")
    assert "t0002 failed: ended with exit status 3" in shown
    assert "out of luck" in shown


def test_without_any_model_the_exit_status_says_so(seerd: Seerd) -> None:
    seerd.write_spec()
    (seerd.spec.parent / "trainer.py").write_text("#!/bin/sh\necho no such data >&2\nexit 1\n")
    out = seerd("run", str(seerd.spec), "--plain", code=4)
    assert "no such data" in out
    assert "no model" in seerd("best", "last", code=4)


def test_a_run_that_was_too_short_for_any_report_says_so(seerd: Seerd) -> None:
    seerd.write_spec(
        env='SEERD_TEST_EPOCH_S = "100"', deadline="20s", budget="120gpu-s", t_min="4s"
    )
    out = " ".join(seerd("run", str(seerd.spec), "--plain", code=4).split())
    assert "trials trained, and in " in out.lower()
    assert "give the run a longer --deadline" in out
    assert "seerd logs" in out


def test_failing_setup_is_told(seerd: Seerd) -> None:
    seerd.write_spec()
    out = seerd(
        "run",
        str(seerd.spec),
        "--plain",
        "--set",
        "train.setup=['echo missing wheel; exit 7']",
        code=4,
    )
    assert "missing wheel" in out
    assert "exit status 7" in out


def test_mistakes_are_told_all_at_once_and_never_as_a_traceback(seerd: Seerd) -> None:
    seerd.write_spec(t_min="6")
    out = seerd("run", str(seerd.spec), "--budget", "12", "--set", "policy.etta=2", code=2)
    assert "3 mistakes" in out
    assert "did you mean eta" in out
    assert "Traceback" not in out
    assert not seerd.home.exists()
    assert "there is no run" in seerd("show", "nothing", code=2)
    assert "Traceback" not in seerd("run", "missing.toml", code=2)


def test_a_run_that_never_began_is_told_and_does_not_hide_the_others(seerd: Seerd) -> None:
    seerd.write_spec(env=SHORT, **ROOM)
    told = seerd.json("run", str(seerd.spec))
    began = seerd.run_folder()
    copy = began.with_name("quick-dead")
    shutil.copytree(began, copy, ignore=shutil.ignore_patterns("*.sock", "*.tip"))
    with sqlite3.connect(copy / "journal.db") as journal:
        journal.execute("DELETE FROM events")
    journal.close()
    rows = {row["run"]: row for row in seerd.json("list")["runs"]}
    assert rows[told["run"]]["status"] == told["status"]
    assert rows["quick-dead"]["status"] == "unreadable"
    assert "was ended before it began" in rows["quick-dead"]["why"]
    assert "unreadable" in seerd("list")
    assert "was ended before it began" in seerd("resume", "quick-dead", code=1)


def test_what_this_version_cannot_run_is_refused_and_not_run_otherwise(seerd: Seerd) -> None:
    seerd.write_spec()
    assert "add store = " in seerd(
        "run", str(seerd.spec), "--set", "cluster={ provider = 'ec2' }", code=2
    )
    assert "not in s3://" in seerd(
        "run", str(seerd.spec), "--set", "cluster.store='s3://b/p'", code=2
    )
    assert not seerd.home.exists()


def test_a_run_of_some_seconds_trains_and_hands_back_a_model_in_time(seerd: Seerd) -> None:
    """Unless the machine is so busy that it says so before the start."""
    seerd.write_spec(t_min="4s", deadline="11s")
    began = time.monotonic()
    process = seerd.start("run", str(seerd.spec), "--plain")
    said = "".join(process.communicate())
    assert time.monotonic() - began <= 12.0, said
    if process.returncode != 0:
        assert process.returncode == 3, said
        assert "had passed before a run was planned and made" in said
        assert list(seerd.home.glob("*/journal.db")) == []
        return
    assert "the best model is that of" in said


def test_a_run_of_20_s_on_one_slot_needs_no_t_min(seerd: Seerd) -> None:
    """Unless the spec gives one, or it is planned as published."""
    seerd.write_spec(env=SHORT, deadline="20s", budget="20gpu-s")
    own = 'name = "seer"\neta = 2\np_max = 2\nt_min = "6s"\n'
    text = seerd.spec.read_text()
    assert own in text
    seerd.spec.write_text(text.replace(own, "").replace("gpus = 8", "gpus = 1"))
    for given in (["--set", "policy.t_min=1m"], ["--ideal"]):
        assert "the shortest round is 60s" in seerd("plan", str(seerd.spec), *given, code=3)
    told = seerd.json("run", str(seerd.spec))
    assert told["best"] is not None
    assert told["elapsed_s"] <= told["deadline_s"]
    assert told["gpu_min"] <= told["budget_gpu_min"]


def test_limits_that_fit_nothing_say_which_would(seerd: Seerd) -> None:
    seerd.write_spec(t_min="40s", deadline="20s")
    out = seerd("run", str(seerd.spec), code=3)
    assert "--deadline 40s" in out
    assert "--budget 0.667gpu-min" in out
    assert not seerd.home.exists()


def test_plan_gives_the_paper_s_example(seerd: Seerd) -> None:
    seerd.write_spec(t_min="1m")
    limits = ("--deadline", "10m", "--budget", "80gpu-min", "--set", "policy.p_max=16")
    told = seerd.json("plan", str(seerd.spec), *limits, "--ideal")
    assert told["rounds"] == 3
    assert told["r_star"] == pytest.approx(5.714, abs=5e-4)
    assert [(b["gpus_per_trial"], b["trials"]) for b in told["brackets"]] == [(1, 8), (2, 4)]
    assert told["gpu_min"] == pytest.approx(68.57, abs=5e-3)
    bound = seerd.json("plan", str(seerd.spec), *limits)
    assert max(stage["gpus"] for stage in bound["stages"]) <= 8
    assert bound["adjusted"]


def test_help_is_instant() -> None:
    began = psutil.Process().cpu_times()
    subprocess.run(
        [sys.executable, "-c", "from seerd import cli; cli.main()", "--help"],
        check=True,
        capture_output=True,
    )
    ended = psutil.Process().cpu_times()
    assert (
        ended.children_user + ended.children_system - began.children_user - began.children_system
        < 0.5
    )


def test_a_profile_measures_each_number_of_gpus_and_is_kept(seerd: Seerd) -> None:
    seerd.write_spec(env='SEERD_TEST_EPOCH_S = "0.1"')
    told = seerd.json("profile", str(seerd.spec), "--set", "cluster.gpus=2")
    assert told["status"] == "done"
    measured = {point["gpus"]: point for point in told["points"] if point["measured"]}
    assert set(measured) == {1, 2}
    for point in measured.values():
        assert 0.1 <= point["report_s"] < 0.2, (
            "the trainer takes a tenth of a second on any number of slots"
        )
        assert point["samples"] >= 1
    assert [point["gpus"] for point in told["points"]] == [1, 2, 4, 8, 16, 32, 64]
    assert 0 <= told["fit_error"] < 0.5
    assert told["start_s"]["samples"] == told["restore_s"]["samples"] == 1
    assert 0 < told["start_s"]["p50"] < 5
    assert told["checkpoint_bytes"] < 100
    assert json.loads(Path(told["kept"]).read_text())["key"] == told["key"]
    shown = seerd.json("show", "last")
    assert [(t["config"], t["attempts"]) for t in shown["all_trials"]] == [({"lr": 0.5}, 2)]
    assert seerd.json("replay", "last")["same"]


def test_an_interrupted_profile_is_kept_when_it_has_been_resumed(seerd: Seerd) -> None:
    seerd.write_spec()
    run = seerd.start("profile", str(seerd.spec), "--plain", "--max-gpus", "1")
    seerd.wait_for(reports=2)
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate()
    assert run.returncode == 130
    assert "seerd resume" in out
    assert not (seerd.home / "profiles").exists()
    out = seerd("resume", "last", "--plain")
    assert "measured" in out
    assert len(list((seerd.home / "profiles").iterdir())) == 1


def test_a_profile_of_a_script_that_crashes_shows_its_last_words(seerd: Seerd) -> None:
    seerd.write_spec(env='SEERD_TEST_CRASH = "t0001"')
    out = seerd("profile", str(seerd.spec), "--json", code=4)
    assert "nothing was measured" in out
    assert "out of luck" in out
    assert not (seerd.home / "profiles").exists()


def test_a_profile_that_cannot_be_is_refused_before_anything_is_started(seerd: Seerd) -> None:
    seerd.write_spec()
    assert "cannot be read" in seerd("profile", "missing.toml", code=2)
    assert "--deadline" in seerd("profile", str(seerd.spec), "--deadline", "12s", code=3)
    assert "this version has: seer" in seerd(
        "profile", str(seerd.spec), "--set", "policy.name=profile", code=2
    )
    assert not seerd.home.exists()


def test_a_run_that_is_refused_before_it_begins_is_not_listed(seerd: Seerd) -> None:
    seerd.write_spec()
    (seerd.folder / "store").mkdir()
    hosts = 'cluster.hosts=[{address="no.such.host.invalid",user="x",gpus=1}]'
    cluster = (f'cluster.store="{seerd.folder / "store"}"', 'cluster.provider="hosts"', hosts)
    seerd.spec.write_text(seerd.spec.read_text().replace("gpus = 8", ""))
    said = seerd(
        "run", str(seerd.spec), *(word for key in cluster for word in ("--set", key)), code=5
    )
    assert "none of the hosts can be used" in said
    assert list(seerd.home.iterdir()) == []
    assert seerd.json("list") == {"runs": []}


def test_what_was_planned_too_late_for_a_trial_to_start_is_not_begun(seerd: Seerd) -> None:
    """Also where no signal interrupts the planning, as in a thread of `seerd.run`."""
    seerd.write_spec(deadline="24s")
    home = Home(seerd.home)
    experiment, quote = beginning.placed(load([seerd.spec]), home, print)
    facts = facts_of(experiment, home, quote, ideal=False, minimize=None)
    with pytest.raises(LimitsError, match=r"20\.0s of a deadline of 24s had passed"):
        beginning.create(experiment, facts, home, quote, wall() - 20.0, print)
    assert not seerd.home.exists()


def test_ctrl_c_while_the_source_is_copied_leaves_no_copy(seerd: Seerd) -> None:
    seerd.write_spec()
    home = Home(seerd.home)
    experiment, quote = beginning.placed(load([seerd.spec]), home, print)
    facts = facts_of(experiment, home, quote, ideal=False, minimize=None)

    class Interrupted(tuple[Spec, ...]):
        __slots__ = ()

        def __iter__(self) -> Iterator[Spec]:
            assert len(list(home.path.iterdir())) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.create(replace(experiment, jobs=Interrupted()), facts, home, quote, 0.0)
    assert list(home.path.iterdir()) == []


PACKAGED = """
from {start} import START
import sys
for epoch in range(5):
    print("accuracy", START + epoch / 10, flush=True)
"""


def test_a_script_in_a_package_finds_its_package_and_one_beside_a_package_is_told_how(
    seerd: Seerd,
) -> None:
    seerd.write_spec(**ROOM)
    for name in ("pkg/train.py", "scripts/train.py"):
        (seerd.spec.parent / name).parent.mkdir()
        (seerd.spec.parent / name).write_text(PACKAGED.format(start="pkg.data"))
    (seerd.spec.parent / "pkg" / "__init__.py").touch()
    (seerd.spec.parent / "pkg" / "data.py").write_text("START = 0.25")
    python = ("--set", 'train.launcher="python"', "--set", 'train.report="accuracy {number}"')
    process = seerd.start("run", str(seerd.spec), *python, "--set", 'train.script="pkg/train.py"')
    assert "report 5: accuracy 0.65" in process.communicate()[0]
    script = ("--set", 'train.script="scripts/train.py"')
    said = seerd("run", str(seerd.spec), *python, *script, code=4)
    assert "pkg lies in train.source" in said
    assert 'PYTHONPATH = "." in train.env' in said


def test_a_setup_command_that_hangs_is_named_while_it_does_and_at_the_end(seerd: Seerd) -> None:
    seerd.write_spec()
    setup = ("--set", 'train.setup=["true", "sleep 1000", "true"]')
    said = seerd("run", str(seerd.spec), *setup, "--plain", code=4)
    doing = "train.setup runs 'sleep 1000' (command 2 of 3)"
    assert said.count(doing) == 2
    assert doing in said.partition("the deadline is near\n")[0]
    assert "sleep 1000" not in " ".join(word for p in seerd.processes() for word in p.cmdline())
