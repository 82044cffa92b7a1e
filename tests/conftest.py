"""What tests of several folders share: small runs for the core."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from seerd.core.events import RunFacts
from seerd.planner.model import ClusterFacts, Limits, PolicyParams, Problem
from seerd.planner.space import Parameter, Space
from tests.rig.fixtures import rig, session_rig

__all__ = ["rig", "session_rig"]

MakeFacts = Callable[..., RunFacts]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite` accepts what the scenarios print now; review the difference before you commit it."""
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="rewrite the transcripts in tests/scenarios and the worked example in docs/simulate.md",
    )


LONGEST = (
    "test_ec2_runs.py",
    "test_cli.py",
    "test_trial.py",
    "test_violence_rented.py",
    "test_violence_local.py",
    "test_image_build.py",
    "test_hosts_runs.py",
    "test_fault_world.py",
    "test_agent_hangs.py",
    "test_agent_nodes.py",
    "test_ec2_storm.py",
    "test_mutants_decided.py",
    "test_mutants_done.py",
    "test_doctor.py",
    "test_sweep.py",
    "test_simulate.py",
    "test_agent_spot.py",
    "test_agent_gpus.py",
)
"""Files whose tests take minutes together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They begin first, so that no worker is left alone with one of them at the end."""
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


def small_facts(
    *,
    deadline_s: float = 60.0,
    budget_gpu_s: float = 320.0,
    gpus: int = 8,
    billing: str = "held",
    mode: str = "max",
    t_min_s: float = 15.0,
    seed: int = 3,
    max_gpus: int | None = None,
    usd_per_gpu_h: float = 0.0,
    cost_usd: float | None = None,
) -> RunFacts:
    """SEER with eta 2: six trials (4 on 1 GPU, 2 on 2 GPUs) for 20 s, then three (2 on 1, 1 on 2) for 40 s, unless the limits are changed."""
    limits = Limits(deadline_s, budget_gpu_s, max_gpus, cost_usd)
    space = Space((Parameter("lr", low=0.1, high=0.9),))
    params = PolicyParams(eta=2, nu=2, p_max=2, t_min_s=t_min_s, seed=seed)
    cluster = ClusterFacts(
        billing=billing,  # type: ignore[arg-type]
        gpus_per_instance=gpus,
        max_instances=1 if billing == "held" else None,
        usd_per_gpu_h=usd_per_gpu_h,
    )
    return RunFacts(
        run="small",
        name="small",
        metric="accuracy",
        mode=mode,  # type: ignore[arg-type]
        problem=Problem(limits, space, params),
        cluster=cluster,
    )


@pytest.fixture
def facts() -> MakeFacts:
    """Makes the facts of a small run."""
    return small_facts
