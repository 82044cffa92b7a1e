"""What tests of several folders share: their tiers, and small runs for the core."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from bench.testbed.rig.fixtures import rig, session_rig
from seerd.agent.gpu_leases import ELSEWHERE
from seerd.core.events import RunFacts
from seerd.planner.model import ClusterFacts, Limits, PolicyParams, Problem
from seerd.planner.space import Parameter, Space
from tests import tiers
from tests.examples import few

__all__ = ["rig", "session_rig"]

MakeFacts = Callable[..., RunFacts]

# How long an example takes, load decides.
settings.register_profile("any machine", deadline=None, max_examples=few(100))
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite` accepts what is printed now; review the difference before you commit
    it.
    """
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="rewrite the transcripts and pages that tests compare with, and the worked example in "
        "docs/simulate.md",
    )


NOT_HERE = pytest.StashKey[set[str]]()
"""Lines about tests that this machine cannot run: of this process, and of its workers."""


MACHINES = count()
LEASES = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all is collected: what is imported and collected stays
    config.stash[NOT_HERE] = set()
    config.stash[LEASES] = tempfile.TemporaryDirectory(prefix="seerd-gpus-")
    os.environ[ELSEWHERE] = str(Path(config.stash[LEASES].name, "shared"))
    # Programs of tests start as `python3`, for which pyenv has a script that computes longer than
    # they do.
    programs = (str(Path(sys.base_prefix, "bin")), os.environ.get("PATH"))
    os.environ["PATH"] = os.pathsep.join(filter(None, programs))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[LEASES].cleanup()


@pytest.fixture(autouse=True)
def leases(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs of this test lease GPUs: each test is a machine of its own."""
    folder = Path(pytestconfig.stash[LEASES].name, str(next(MACHINES)))
    monkeypatch.setenv(ELSEWHERE, str(folder))
    return folder


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a file without a fast test where only those are wanted: to import it takes long."""
    all_are_asked = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if config.getoption("-m") != tiers.FAST or not all_are_asked or collection_path.is_dir():
        return None
    return not tiers.has_fast(collection_path.relative_to(config.rootpath).as_posix()) or None


def pytest_collection_finish() -> None:
    """Spare the collector of garbage what stays until the end: all tests and libraries."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # what a test leaves is little
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its tier, and leave out what cannot run here."""
    here, not_here = tiers.sort_in(items)
    items[:] = tiers.beside(here, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    chosen = tiers.chosen(not_here, config.getoption("-m"))
    config.hook.pytest_deselected(items=not_here)
    config.stash[NOT_HERE] |= set(tiers.told(chosen))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells its controller."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["not_here"] = sorted(session.config.stash[NOT_HERE])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The controller hears it."""
    node.config.stash[NOT_HERE] |= set(getattr(node, "workeroutput", {}).get("not_here", ()))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Tell what was not run, why, and what runs it."""
    if lines := sorted(config.stash[NOT_HERE]):
        terminalreporter.section("not run here")
        for line in [*lines, "all of them are run by: sudo make test-system"]:
            terminalreporter.line(line)


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
    target: float | None = None,
    smooth: int = 1,
) -> RunFacts:
    """SEER with eta 2: six trials (4 on 1 GPU, 2 on 2 GPUs) for 20 s, then three (2 on 1, 1 on 2)
    for 40 s, unless the limits are changed.
    """
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
        target=target,
        smooth=smooth,
    )


@pytest.fixture
def facts() -> MakeFacts:
    """Makes the facts of a small run."""
    return small_facts
