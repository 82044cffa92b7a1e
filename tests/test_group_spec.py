"""group.toml: what it says, and what people are told of mistakes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from seerd.commands import asking, doctor
from seerd.commands.options import SpecOptions
from seerd.core.events import JobFacts
from seerd.errors import SpecError, UsageError
from seerd.planner.clouds import assumed
from seerd.planner.model import ClusterFacts, Limits
from seerd.planning.facts import job_facts, planned_job, shared_problem
from seerd.shell.home import Home
from seerd.spec.experiment import load
from seerd.spec.reader import Override
from seerd.spec.spec import load_spec

SPEC = """
name = "{name}"
metric = {{ name = "{metric}", mode = "max" }}
[train]
script = "train.py"
launcher = "python"
[space]
lr = {{ low = 0.1, high = 1.0 }}
[limits]
deadline = "1m"
budget = "1gpu-min"
[cluster]
gpus = 2
"""
GROUP = """
name = "friday"
[limits]
deadline = "1h"
budget = "8gpu-h"
[sharing]
policy = "hybrid"
[cluster]
gpus = 8
[[job]]
spec = "a/spec.toml"
owner = "us"
weight = 2
target = 0.9
[[job]]
spec = "b/spec.toml"
deadline = "10m"
budget = "1gpu-h"
max_gpus = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").touch()
        (tmp_path / name / "spec.toml").write_text(SPEC.format(name=name, metric=f"of_{name}"))
    (tmp_path / "group.toml").write_text(GROUP)
    return tmp_path


def test_what_is_shared_is_the_groups_and_the_rest_each_jobs_own(folder: Path) -> None:
    group = load([folder / "group.toml"])
    assert (group.name, group.sharing, group.limits.deadline_s) == (
        "friday",
        "hybrid",
        3600,
    )
    assert [(job.id, job.owner, job.weight) for job in group.jobs] == [("a", "us", 2), ("b", "", 1)]
    assert {job.cluster.gpus for job in group.jobs} == {8}  # type: ignore[union-attr]
    cluster = ClusterFacts("held", 8, 1)
    problem = shared_problem(group, cluster, [assumed(rented=False)] * 2)
    one, other = problem.jobs
    assert (one.problem.limits, one.weight) == (problem.limits, 2) or one.problem.limits.max_gpus
    assert (one.problem.limits.deadline_s, one.problem.limits.budget_gpu_s) == (3600, 8 * 3600)
    limits = other.problem.limits
    assert (limits.deadline_s, limits.budget_gpu_s, limits.max_gpus) == (600, 3600, 3)
    assert problem.limits.max_gpus == 8
    facts: list[JobFacts] = [job_facts(job) for job in group.jobs]
    assert [(one.metric, one.target) for one in facts] == [("of_a", 0.9), ("of_b", None)]


@pytest.mark.parametrize(
    ("run", "planned"), [((900.0, 7200.0), (600.0, 3600.0)), ((300.0, 1200.0), (300.0, 1200.0))]
)
def test_a_job_has_limits_of_its_own_within_the_runs(
    folder: Path, run: tuple[float, float], planned: tuple[float, float]
) -> None:
    """Also one that is added to a run."""
    _, job = load([folder / "group.toml"]).jobs
    cluster = ClusterFacts("held", 8, 1)
    limits = planned_job(job, Limits(*run), cluster, assumed(rented=False)).problem.limits
    assert (limits.deadline_s, limits.budget_gpu_s) == planned


def test_several_specs_are_a_group_with_the_first_ones_cluster(folder: Path) -> None:
    specs = [folder / name / "spec.toml" for name in ("a", "b", "a")]
    assert not load(specs[:1]).is_shared
    given = [
        Override("limits.deadline", "2h", "--deadline"),
        Override("policy.seed", "7", "--seed"),
    ]
    group = load(specs, given)
    assert [job.id for job in group.jobs] == ["a", "b", "a-2"]
    assert group.limits.deadline_s == 7200
    assert {job.policy.seed for job in group.jobs} == {7}
    assert {job.cluster.gpus for job in group.jobs} == {2}  # type: ignore[union-attr]
    assert {job.limits.deadline_s for job in group.jobs} == {None}
    with pytest.raises(UsageError, match="is a group: give it alone"):
        load([folder / "group.toml", specs[0]])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (GROUP.replace('"hybrid"', '"fairly"'), "sharing.policy"),
        (GROUP.replace("weight = 2", "weight = 0"), "job[0].weight"),
        (GROUP.replace("weight", "wieght"), "weight"),
        (GROUP.replace('spec = "a/spec.toml"\n', ""), "job[0].spec"),
        (GROUP.replace('owner = "us"', 'name = "a.b"'), "job[0].name"),
        ("job = []\n" + GROUP.partition("[[job]]")[0], "at least one table"),
        (GROUP.replace("gpus = 8", "gpus = 0"), "cluster.gpus"),
        (GROUP.replace('"1h"', '"1"'), "limits.deadline"),
        (GROUP + "\n[space]\nlr = [1]\n", "space"),
    ],
)
def test_mistakes_are_told_with_their_key(folder: Path, text: str, told: str) -> None:
    (folder / "group.toml").write_text(text)
    with pytest.raises(SpecError) as error:
        load([folder / "group.toml"])
    assert told in str(error.value)


def test_a_mistake_in_a_jobs_spec_is_told_with_its_file(folder: Path) -> None:
    (folder / "b" / "spec.toml").write_text("metric = 3")
    with pytest.raises(SpecError, match=r"b/spec\.toml"):
        load([folder / "group.toml"])


def test_a_weight_is_a_finite_number(folder: Path) -> None:
    group = load([folder / "group.toml"])
    assert all(math.isfinite(job.weight) for job in group.jobs)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"weight": 0.0}, "--weight 0"),
        ({"weight": math.nan}, "--weight nan"),
        ({"name": "../../evil"}, "--name"),
        ({"name": "a.b"}, "--name"),
        ({"target": math.nan}, "--target"),
    ],
)
def test_what_is_given_of_a_job_that_is_added_is_read_as_in_a_group(
    folder: Path, given: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        asking.job_values(folder / "a" / "spec.toml", asking.NewJob(**given))


def test_a_spec_that_is_no_toml_is_told_wherever_it_stands(folder: Path) -> None:
    bad = folder / "a" / "spec.toml"
    bad.write_text("= [")
    for specs in ([bad, folder / "b" / "spec.toml"], [folder / "b" / "spec.toml", bad]):
        with pytest.raises(SpecError, match="not TOML"):
            load(specs)


def test_what_takes_one_spec_says_so_of_a_group(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"group\.toml is a group of jobs, and one spec is needed"):
        load_spec(folder / "group.toml")


def test_doctor_looks_at_every_job_of_a_group(folder: Path, tmp_path: Path) -> None:
    findings = doctor.examine(folder / "group.toml", [], Home(tmp_path / "home"))
    specs = {one.check: one.level for one in findings if one.check.endswith("spec")}
    assert specs == {"a: spec": "ok", "b: spec": "ok"}


def test_machines_takes_a_group(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doctor.machines(SpecOptions(folder / "group.toml"), json=True)
    assert "this machine" in capsys.readouterr().out
