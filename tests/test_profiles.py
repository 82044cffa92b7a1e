"""Profiles as they are kept: found again for the same script on the same kind of machine, and for
nothing else.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from seerd.backends.base import Machine
from seerd.core.commands import Launch, StartTrial, StopTrial
from seerd.core.events import (
    InstanceReady,
    TrialCheckpointed,
    TrialExited,
    TrialReported,
    TrialStarted,
    TrialTraining,
)
from seerd.errors import UsageError
from seerd.planner.clouds import assumed
from seerd.planner.model import ClusterFacts, Limits
from seerd.planner.profile import NONE, JobProfile, Latency, Profile
from seerd.planning.facts import problem_of, with_t_min
from seerd.planning.measured import Measured, measured
from seerd.planning.profiles import (
    KeptProfile,
    Target,
    keep,
    kept_of,
    load_profile,
    path_of,
    profile_for,
    profile_of,
    target_of,
)
from seerd.runs.clusters import of
from seerd.spec.spec import Spec, SpecLimits, load_spec

CPU = Machine(0, 16)
CUDA = Machine(8, 96, "NVIDIA H200")


def write_spec(folder: Path, cluster: str = "gpus = 4", script: str = "print()\n") -> Spec:
    (folder / "train.py").write_text(script)
    path = folder / "spec.toml"
    path.write_text(
        'metric = { name = "a", mode = "max" }\n[train]\nscript = "train.py"\n[space]\nlr = '
        "[1, 2]\n"
        f"[cluster]\n{cluster}\n"
    )
    return load_spec(path)


def found() -> Measured:
    return Measured(
        report_s={1: [2.0, 2.0, 2.2], 2: [1.2]},
        start_s=[3.0],
        restore_s=[4.0, 5.0],
        stop_s=[1.0],
        save_s=[0.1, 0.2],
        checkpoint_bytes=1234,
        boot_s=[0.5],
    )


def kept(spec: Spec, machine: Machine = CPU) -> KeptProfile:
    target = target_of(spec, of(spec).machine_types(machine)[0])
    return kept_of(target, found(), "digits-profile-1", "2026-11-21T10:00:00+00:00")


def known(home: Path, spec: Spec, machine: Machine = CPU) -> Profile | None:
    """What is found where planning happens on this machine."""
    return load_profile(home, spec, of(spec).machine_types(machine))


def test_what_instances_fetch_is_what_the_spec_says_measured_or_not(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, 'provider = "ec2"\ningress_price = "$0.02"')
    spec = replace(spec, train=replace(spec.train, ingress_gb=150.0))
    types = of(spec).machine_types(CPU)
    for source in ("assumed", "measured"):
        made = profile_for(tmp_path, spec, types)
        assert made.source.startswith(source)
        assert (made.job.ingress_gb, made.cloud.usd_per_ingress_gb) == (150.0, 0.02)
        keep(tmp_path, kept(spec))


def test_what_was_kept_is_found_again(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    assert known(tmp_path, spec, CPU) is None
    path = keep(tmp_path, kept(spec))
    assert path.parent == tmp_path / "profiles"
    assert [p.name for p in path.parent.iterdir()] == [path.name], "nothing half-written is left"
    profile = known(tmp_path, spec, CPU)
    assert profile is not None
    assert profile == profile_of(kept(spec))
    assert profile.job.report.p50_s == 2.0
    assert profile.job.scaling.speed(2) == pytest.approx(2.0 / 1.2)
    assert profile.job.scaling.speed(16) < 16
    assert profile.job.start.p50_s == 4.5, "a start is one that restores"
    assert profile.cloud.release == NONE
    assert "digits-profile-1" in profile.source


def test_another_script_machine_or_argument_is_another_profile(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    keep(tmp_path, kept(spec))
    assert known(tmp_path, spec, Machine(0, 8)) is None
    assert known(tmp_path, spec, CUDA) is None
    assert known(tmp_path, replace(spec, train=replace(spec.train, args=("--large",))), CPU) is None
    assert known(tmp_path, write_spec(tmp_path, script="print(1)\n"), CPU) is None
    assert known(tmp_path, write_spec(tmp_path), CPU) is not None


def test_the_kind_of_machine_is_told_as_people_know_it(tmp_path: Path) -> None:
    assert of(write_spec(tmp_path)).machine_types(CPU) == ("4 slots on 16 CPU cores",)
    assert of(write_spec(tmp_path)).machine_types(CUDA) == ("8 x NVIDIA H200",)
    ec2 = 'provider = "ec2"\ninstance_type = ["p3.8xlarge", "p3.16xlarge"]'
    assert of(write_spec(tmp_path, ec2)).machine_types(CPU) == ("p3.8xlarge", "p3.16xlarge")
    assert of(write_spec(tmp_path, 'provider = "ec2"')).machine_types(CPU) == ("ec2",)


def test_the_second_choice_of_instances_may_have_the_profile(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, 'provider = "ec2"\ninstance_type = ["p3.8xlarge", "p3.16xlarge"]')
    keep(
        tmp_path, kept_of(target_of(spec, "p3.16xlarge"), found(), "r", "2026-11-21T10:00:00+00:00")
    )
    assert known(tmp_path, spec, CPU) is not None


@pytest.mark.parametrize("damage", ["", "[]", "{", "another version"])
def test_a_damaged_profile_counts_as_none(tmp_path: Path, damage: str) -> None:
    spec = write_spec(tmp_path)
    path = keep(tmp_path, kept(spec))
    if damage == "another version":
        told = json.loads(path.read_text())
        damage = json.dumps({**told, "version": told["version"] + 1})
    path.write_text(damage)
    assert known(tmp_path, spec, CPU) is None


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("in the way")
    with pytest.raises(UsageError, match="cannot be kept"):
        keep(tmp_path, kept(write_spec(tmp_path)))


class TestShortestFirstRound:
    LIMITS = Limits(deadline_s=1800, budget_gpu_s=14400)

    def measured_with(
        self, folder: Path, *, policy: str = "p_min = 1", report_s: float = 20.0
    ) -> tuple[Spec, Profile]:
        """The spec with this `[policy]`, and a profile with starts of 5 s and ideal scaling."""
        spec = write_spec(folder, f"gpus = 4\n[policy]\n{policy}")
        job = JobProfile(Latency(report_s, report_s), start=Latency(5.0, 5.0))
        return spec, Profile(job, source="measured")

    @pytest.mark.parametrize(
        ("policy", "report_s", "t_min_s"),
        [
            ("p_min = 1", 20.0, 45.0),
            ("p_min = 2", 20.0, 25.0),
            ("p_min = 1", 1.0, 10.0),  # the least
            ("p_min = 1", 900.0, 600.0),  # a third of the deadline
            ("p_min = 16", 9000.0, 300.0),  # a third of what the budget pays for
            ('t_min = "2m"', 20.0, 120.0),
        ],
    )
    def test_is_a_start_and_two_reports(
        self, tmp_path: Path, policy: str, report_s: float, t_min_s: float
    ) -> None:
        policy = f'name = "seer"\n{policy}'
        spec, profile = self.measured_with(tmp_path, policy=policy, report_s=report_s)
        made = with_t_min(spec, profile, self.LIMITS, replace(self.LIMITS, deadline_s=7200))
        assert made == replace(spec.policy, t_min_s=pytest.approx(t_min_s))

    @pytest.mark.parametrize(
        ("policy", "report_s", "t_min_s"),
        [
            ("p_min = 1", 20.0, 48.0),
            ("p_min = 2", 20.0, 28.0),
            ("p_min = 1", 0.5, 9.0),
            ("p_min = 1", 900.0, 600.0),  # a third of the deadline
            ('t_min = "2m"', 20.0, 120.0),
        ],
    )
    def test_of_seer_plus_on_machines_that_are_there_has_no_least_and_a_save(
        self, tmp_path: Path, policy: str, report_s: float, t_min_s: float
    ) -> None:
        spec, profile = self.measured_with(tmp_path, policy=policy, report_s=report_s)
        profile = replace(profile, job=replace(profile.job, save=Latency(3.0, 4.0)))
        made = with_t_min(spec, profile, self.LIMITS, replace(self.LIMITS, deadline_s=7200))
        assert made == replace(spec.policy, t_min_s=pytest.approx(t_min_s))
        assert with_t_min(spec, profile, self.LIMITS, ideal=True).t_min_s >= 10.0

    def test_is_a_minute_if_nothing_was_measured(self, tmp_path: Path) -> None:
        spec, profile = self.measured_with(tmp_path, policy='name = "seer"')
        assumed_profile = replace(profile, source="assumed")
        assert with_t_min(spec, assumed_profile, self.LIMITS) == spec.policy
        assert spec.policy.t_min_s == 60

    def test_is_what_is_assumed_for_seer_plus_on_machines_that_are_there(
        self, tmp_path: Path
    ) -> None:
        here = write_spec(tmp_path)
        profile = assumed(rented=False)
        assert with_t_min(here, profile, self.LIMITS).t_min_s == pytest.approx(4.0 + 2 * 5.0 + 0.1)
        assert with_t_min(here, profile, self.LIMITS, ideal=True) == here.policy
        assert with_t_min(here, profile, self.LIMITS, name="asha").t_min_s == 60
        rented = write_spec(tmp_path, 'provider = "ec2"\ninstance_type = "g5.xlarge"')
        assert with_t_min(rented, assumed(rented=True), self.LIMITS).t_min_s == 60

    def test_is_what_the_plan_goes_by(self, tmp_path: Path) -> None:
        spec, profile = self.measured_with(tmp_path, policy='name = "seer"')
        given = replace(spec, limits=SpecLimits(1800, 14400, None, None))
        assert problem_of(given, ClusterFacts("held", 4), profile).params.t_min_s == 45


def test_doubts_are_told() -> None:
    def notes(report_s: dict[int, list[float]], rough: set[int] | None = None) -> str:
        target = Target(key="k", script="s", args=(), provider="local", instance_type="t")
        return " ".join(
            kept_of(target, Measured(report_s=report_s, rough=rough or set()), "r", "now").notes
        )

    assert "only 2 GPUs measured" in notes({2: [1.0]})
    assert "made nothing faster" in notes({1: [1.0], 2: [1.5]})
    assert "as many terms as there are points" in notes({1: [1.0], 2: [0.6]})
    assert "no law fits" in notes({1: [1.0], 2: [0.2], 4: [2.0]})
    assert "on 1 and 2 GPUs" in notes({1: [1.0], 2: [0.5]}, {1, 2})
    assert notes({1: [1.0], 2: [0.5]}) == ""


def test_nothing_measured_is_no_profile(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        kept_of(target_of(write_spec(tmp_path), "t"), Measured(), "r", "now")
    assert path_of(tmp_path, "k").name == "k.json"


class Tape:
    """A journal of one attempt, written by hand."""

    def __init__(self) -> None:
        self.entries: list = []

    def event(self, kind: type, at: float, *commands: object, **fields: object) -> None:
        common = (
            {}
            if kind is InstanceReady
            else {"instance": "i", "fact": 1, "happened": at, "trial": "t", "attempt": 1}
        )
        self.entries.append((kind(at=at, **common, **fields), list(commands)))

    def report(self, at: float, epoch: int, *commands: object) -> None:
        self.event(TrialReported, at, *commands, reports=epoch, metric=0.0, unit_s=0.0)

    def saved(self, at: float, epoch: int, size: int = 10) -> None:
        fields = {
            "name": "n",
            "reports": epoch,
            "metric": 0.0,
            "sha256": "",
            "size": size,
            "save_s": 0.25,
        }
        self.event(TrialCheckpointed, at, **fields)


def tape() -> Tape:
    made = Tape()
    launch = Launch(id="1.0", gpus=2, why="plan")
    start = StartTrial(
        id="2.0",
        trial="t",
        attempt=1,
        instance="i",
        gpus=(0, 1),
        config={},
        seed=1,
        checkpoints=(),
        why="first",
    )
    made.event(TrialStarted, 0.0, launch, pid=1)
    made.event(InstanceReady, 30.0, start, command="1.0", instance="i", gpus=2, running_since=20.0)
    made.event(TrialTraining, 35.0, reports=0)
    return made


def test_reports_with_a_warm_up_or_a_checkpoint_in_them_do_not_count_where_others_do() -> None:
    made = tape()
    for at, epoch in ((45.0, 1), (48.0, 2), (50.0, 3), (52.5, 4)):
        made.report(at, epoch)
    made.saved(46.0, 1)
    made.saved(51.0, 3, size=20)
    shown = measured(made.entries)
    assert shown.report_s == {2: [2.0]}, (
        "3 s from the first report to the second had a checkpoint in it, and so had the last"
    )
    assert not shown.rough
    assert shown.start_s == [5.0]
    assert (shown.pending_s, shown.boot_s) == ([20.0], [10.0])
    assert shown.save_s == [0.25, 0.25]
    assert shown.checkpoint_bytes == 20


def test_the_memory_of_a_trial_is_the_most_that_was_seen_on_one_gpu() -> None:
    made = tape()
    exited = {"cause": "asked", "code": 0}
    made.event(TrialExited, 60.0, **exited, memory=(9 << 30, 80 << 30))
    assert measured(made.entries).memory == (0, 0), "it trained on two"
    assert measured(made.entries, parts=2).memory == (9 << 30, 80 << 30)
    made.event(TrialExited, 61.0, **exited)
    made.event(TrialExited, 62.0, **exited, memory=(4 << 30, 80 << 30))
    assert measured(made.entries, parts=2).memory == (9 << 30, 80 << 30)


def test_rough_reports_are_better_than_none() -> None:
    made = tape()
    made.report(45.0, 1)
    shown = measured(made.entries)
    assert (shown.report_s, shown.rough) == ({2: [10.0]}, {2})
    made.saved(45.1, 1)
    made.report(47.0, 2)
    shown = measured(made.entries)
    assert (shown.report_s, shown.rough) == ({2: [2.0]}, {2})


@pytest.mark.parametrize(("checkpoint", "expected"), [(True, [1.5]), (False, [])])
def test_a_kill_says_nothing_of_saving(checkpoint: bool, expected: list[float]) -> None:
    made = tape()
    stop = StopTrial(
        id="9.0",
        trial="t",
        attempt=1,
        instance="i",
        checkpoint=checkpoint,
        grace_s=4.0,
        why="paused",
    )
    made.report(45.0, 1, stop)
    made.event(TrialExited, 46.5, cause="asked", code=0)
    assert measured(made.entries).stop_s == expected
