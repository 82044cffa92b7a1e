"""`cluster.parts` from a spec to a plan: what may be written, and what is shown."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from seerd.backends.base import Quote
from seerd.errors import SpecError, UsageError
from seerd.planner.model import ClusterFacts
from seerd.planner.profile import JobProfile, Latency, Profile, parse_scaling
from seerd.planning.measured import Measured
from seerd.planning.parts import best_parts
from seerd.planning.planned import Planned
from seerd.planning.plans import plan_of
from seerd.planning.profiles import keep, kept_of, profile_of, target_of
from seerd.shell.home import Home
from seerd.spec.doubts import doubts
from seerd.spec.experiment import of_one
from seerd.spec.spec import Spec, spec_of
from seerd.telling.plan_json import plan_json
from seerd.telling.tables import profile_view

HELD = ClusterFacts(billing="held", gpus_per_instance=2, max_instances=1)


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a script in the working directory."""
    (tmp_path / "train.py").write_text("import seerd, torch\n")
    monkeypatch.chdir(tmp_path)


def spec(
    cluster: dict[str, object], train: dict[str, object] | None = None, **policy: object
) -> Spec:
    return spec_of(
        {
            "name": "parts",
            "metric": {"name": "accuracy", "mode": "max"},
            "train": {"script": "train.py", "launcher": "python", **(train or {})},
            "space": {"lr": {"low": 0.1, "high": 1.0}},
            "policy": {"name": "seer", **policy},
            "limits": {"deadline": "10m", "budget": "20gpu-min", "max_gpus": 2},
            "cluster": cluster,
        }
    )


def planned(
    folder: Path,
    parts: object,
    *,
    cuda: bool = True,
    ideal: bool = False,
    train: dict[str, object] | None = None,
    **policy: object,
) -> Planned:
    made = of_one(spec({"parts": parts}, train, **policy))
    return plan_of(made, Home(folder), Quote(HELD, cuda=cuda, machine_types=("m",)), ideal=ideal)


def test_a_plan_shows_parts_as_exact_numbers_of_gpus(tmp_path: Path) -> None:
    made = plan_json(planned(tmp_path, 4), {})
    assert made["stages"][0]["groups"][0] == {"gpus_per_trial": 0.25, "trials": 4}
    assert made["stages"][0]["gpus"] == 2
    assert made["gpu_min"] <= made["budget_gpu_min"] == 20.0
    assert "0000001" not in json.dumps(made["stages"])


@pytest.mark.parametrize("parts", [1, "auto"])
def test_without_a_measurement_auto_is_one(tmp_path: Path, parts: object) -> None:
    made = planned(tmp_path, parts)
    assert made.cluster.parts == 1
    assert any("seerd profile" in note for note in made.problem.adjusted) is (parts == "auto")


def test_published_policies_have_whole_gpus(tmp_path: Path) -> None:
    assert planned(tmp_path, 4, ideal=True).cluster.parts == 1
    assert planned(tmp_path, 4, ideal=True, p_min="1/4").problem.params.p_min == 1


def test_the_least_of_a_trial_is_a_part_unless_it_is_given(tmp_path: Path) -> None:
    assert planned(tmp_path, 4).problem.params.p_min == 1
    assert planned(tmp_path, 4, p_min="1/2").problem.params.p_min == 2
    assert planned(tmp_path, 4, p_min=1).problem.params.p_min == 4
    assert planned(tmp_path, 4).problem.limits.max_gpus == 8


def test_what_no_gpu_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"write cluster\.parts = 8, or p_min of at least 1/4 GPU"):
        planned(tmp_path, 4, p_min="1/8")
    with pytest.raises(UsageError, match="CPU slots, and only a GPU can be shared"):
        planned(tmp_path, 4, cuda=False)
    assert planned(tmp_path, "auto", cuda=False).cluster.parts == 1
    for wrong in (0, 3, 32, True, "4", 0.5):
        with pytest.raises(SpecError, match=r'cluster\.parts.*, one of 1, .*, 16 or "auto"'):
            spec({"parts": wrong})
    for size in (0, 0.3, "1/3", "3/4", "one"):
        with pytest.raises(SpecError, match=r"policy\.p_min"):
            spec({"parts": 4}, p_min=size)


@pytest.mark.parametrize(
    ("text", "train", "held"),
    [("import numpy as np, torch\n", {}, True), ("from torchvision import models\n", {}, True),
     ("def f():\n    import jax.numpy as jnp\n", {}, True), ("# beside torch\n", {}, False),
     ("import tensorflow as tf\n", {}, False), ("", {"launcher": "command", "script": "./b"}, False),
     ("import torch\n", {"launcher": "command", "script": "./b"}, True),
     ("import tensorflow\n", {"env": {"SEERD_MPS": "1"}}, True), ("", {"launcher": "torchrun"}, True)],
)  # fmt: skip
def test_what_nothing_holds_to_its_part_has_whole_gpus_under_auto_and_is_doubted_under_a_number(
    tmp_path: Path, text: str, train: dict[str, object], held: bool
) -> None:
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "b").touch(0o755)
    key = target_of(spec({}, train), "m").key
    seen = Measured(report_s={0.25: [2.0], 0.5: [1.9], 1: [1.8]})
    keep(
        tmp_path,
        msgspec.structs.replace(kept_of(target_of(spec({}), "m"), seen, "r", "d"), key=key),
    )
    made = planned(tmp_path, "auto", train=train)
    assert made.cluster.parts == (4 if held else 1)
    noted = any("nothing else holds trials" in note for note in made.problem.adjusted)
    assert noted is not held
    for parts, doubted in ((1, False), (4, not held), ("auto", False)):
        lines = doubts(spec({"parts": parts}, train))
        assert any("nothing holds a trial" in line for line in lines) is doubted


@pytest.mark.parametrize(
    ("table", "best"),
    [("1:1,2:1.9", None), ("1/4:0.26,1/2:0.51,1:1", 1), ("1/4:0.28,1/2:0.8,1:1", 2),
     ("1/4:0.6,1/2:0.8,1:1", 4)],
)  # fmt: skip
def test_auto_is_as_many_as_make_a_gpu_do_more(table: str, best: int | None) -> None:
    assert best_parts(Profile(JobProfile(Latency(5.0, 5.0), parse_scaling(table)))) == best


@pytest.mark.parametrize(
    ("memory_gib", "table", "best"),
    [(1.1, "1/4:0.6,1/2:0.8,1:1", 4), (1.2, "1/4:0.6,1/2:0.8,1:1", 2),
     (3.2, "1/4:0.6,1/2:0.8,1:1", 1), (3.2, "1:1,2:1.9", 1), (3.1, "1:1,2:1.9", None),
     (9.0, "1/4:0.6,1:1", 1)],
)  # fmt: skip
def test_auto_is_as_many_as_fit_into_the_memory_of_a_gpu(
    memory_gib: float, table: str, best: int | None
) -> None:
    """A GPU of 8 GiB, of which each process has 850 MiB that torch does not count."""
    seen = Measured(report_s={1: [2.0]}, memory=(int(memory_gib * (1 << 30)), 8 << 30))
    kept = kept_of(target_of(spec({}), "H200"), seen, "run", "2026-11-21")
    profile = profile_of(kept)
    job = replace(profile.job, scaling=parse_scaling(table))
    assert best_parts(replace(profile, job=job)) == best
    shown = Console(width=200, file=io.StringIO())
    about = {"elapsed_s": 9.0, "gpu_min": 1.0, "kept": "f"}
    shown.print(profile_view({**msgspec.to_builtins(kept), **about}))
    size = f"{memory_gib * (1 << 30) / 1e9:.3g}GB of the GPU's 8.59GB"
    assert f"memory: a trial on one GPU took {size}" in shown.file.getvalue()  # type: ignore[attr-defined]
