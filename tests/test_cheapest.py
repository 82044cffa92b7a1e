"""Plans where the types that may be rented have different numbers of GPUs: which is planned with,
which is asked for first with `--minimize cost`, and which trials no type can run.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bench.testbed.ec2_world import MEASURED
from seerd.backends.base import Quote
from seerd.backends.ec2.backend import Ec2Backend
from seerd.backends.ec2.keys import Ec2Keys
from seerd.errors import LimitsError, UsageError
from seerd.planning import profiles
from seerd.planning.cheapest import cheapest_first
from seerd.planning.plans import plan_of
from seerd.shell.home import Home
from seerd.spec.experiment import Experiment, load
from seerd.spec.reader import Override
from tests.test_elastic import SPEC

FOUR_GPUS, ONE_GPU = "g4dn.12xlarge", "g4dn.xlarge"  # $0.978 and $0.526 for a GPU and hour


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def experiment(folder: Path, *more: tuple[str, str], deadline: str = "40m") -> Experiment:
    shutil.copy(Path(__file__).parent / "programs" / "trainer.py", folder)
    (folder / "spec.toml").write_text(SPEC)
    given = [("limits.deadline", deadline), ("cluster.provider", "ec2"), *more]
    return load([folder / "spec.toml"], [Override(*key) for key in given])


def quoted(*types: str) -> Quote:
    quote = Ec2Backend(Ec2Keys(instance_type=types)).unasked_quote(None)
    return replace(quote, machine_types=types)


def measure(home: Home, made: Experiment, kind: str, report_s: float) -> None:
    """Keep a profile of the script on this type."""
    target = profiles.target_of(made.jobs[0], kind)
    times = {1: [report_s, 1.1 * report_s], 4: [report_s / 4, 1.1 * report_s / 4]}
    profiles.keep(
        home.path, profiles.kept_of(target, replace(MEASURED, report_s=times), "r", "2026-11-30")
    )


def names(quote: Quote) -> list[str]:
    return [kind.name for kind in quote.types]


def test_plans_count_with_the_preferred_type_and_each_gpu_as_the_dearest() -> None:
    quote = quoted(ONE_GPU, FOUR_GPUS)
    facts = quote.facts
    assert (facts.gpus_per_instance, facts.other_sizes) == (1, (4,))
    assert facts.usd_per_gpu_h == pytest.approx(3.912 / 4)
    assert "g4dn.xlarge (1 GPU) or g4dn.12xlarge (4 GPUs): planned as g4dn.xlarge" in quote.notes[0]
    assert quoted(FOUR_GPUS, ONE_GPU).facts.gpus_per_instance == 4
    assert quoted(ONE_GPU, "g5.xlarge").facts.other_sizes == ()


def test_unless_all_were_measured_the_price_of_a_gpu_decides(tmp_path: Path, home: Home) -> None:
    made, quote = experiment(tmp_path), quoted(FOUR_GPUS, ONE_GPU)
    assert names(cheapest_first(made, home, quote, None)) == [FOUR_GPUS, ONE_GPU]
    assert names(cheapest_first(made, home, quote, "time")) == [FOUR_GPUS, ONE_GPU]
    chosen = cheapest_first(made, home, quote, "cost")
    assert names(chosen) == [ONE_GPU, FOUR_GPUS]
    assert chosen.facts.gpus_per_instance == 1
    planned = plan_of(made, home, chosen, minimize="cost")
    (note,) = (
        text for text in planned.problem.adjusted if "is cheapest is asked for first" in text
    )
    assert note.index(ONE_GPU) < note.index(FOUR_GPUS)


def test_a_type_that_is_measured_as_faster_may_be_the_cheapest(tmp_path: Path, home: Home) -> None:
    made, quote = experiment(tmp_path), quoted(ONE_GPU, FOUR_GPUS)
    measure(home, made, ONE_GPU, 40.0)
    measure(home, made, FOUR_GPUS, 8.0)
    assert names(cheapest_first(made, home, quote, "cost"))[0] == FOUR_GPUS


def test_a_type_that_does_not_keep_the_deadline_is_left_out(tmp_path: Path, home: Home) -> None:
    most = ("limits.max_gpus", "64")
    made, quote = experiment(tmp_path, most, deadline="20m"), quoted(ONE_GPU, FOUR_GPUS)
    measure(home, made, ONE_GPU, 4000.0)
    measure(home, made, FOUR_GPUS, 8.0)
    assert names(cheapest_first(made, home, quote, "cost")) == [FOUR_GPUS]
    measure(home, made, FOUR_GPUS, 4000.0)
    with pytest.raises(LimitsError, match="no number of GPUs ends these stages by the deadline"):
        cheapest_first(made, home, quote, "cost")


def test_trials_that_no_type_can_run_are_refused(tmp_path: Path, home: Home) -> None:
    given = [("limits.budget", "600gpu-min"), ("policy.name", "asha"), ("policy.p_min", "3")]
    made = experiment(tmp_path, *given)
    quote = quoted(FOUR_GPUS)
    two = replace(quote.types[0], name="g4ad.8xlarge", gpus=2)
    with pytest.raises(UsageError, match=r"p_min = 3, and the types .* have 4 GPUs, 2 GPUs"):
        plan_of(made, home, quote.of_types([*quote.types, two]))


def test_without_torchrun_no_trial_is_larger_than_the_smallest_type(
    tmp_path: Path, home: Home
) -> None:
    given = [("limits.budget", "600gpu-min"), ("policy.name", "asha")]
    quote = quoted(FOUR_GPUS, ONE_GPU)
    assert plan_of(experiment(tmp_path, *given), home, quote).problem.params.p_max is None
    alone = experiment(tmp_path, *given, ("train.launcher", "python"))
    assert plan_of(alone, home, quote).problem.params.p_max == 1
    large = experiment(tmp_path, *given, ("train.launcher", "python"), ("policy.p_min", "4"))
    with pytest.raises(UsageError, match="name only types on which such a trial can run"):
        plan_of(large, home, quote)
