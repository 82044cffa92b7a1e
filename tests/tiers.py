"""Which tests are in which tier, and what a machine must have for those that need more than Python.

The one rule: one table says it, by folder, file or test; the longest entry that fits a test counts.
What cannot run here is left out and told at the end. With `SEERD_CI=1` nothing is left out: a test
whose machine is missing fails. `SEERD_WITHOUT=rig,sshd` does as if this machine had not what is
named.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

import pytest

from bench.testbed.rig.network import NoRigError, require_tools
from tests.oldest import OLDEST, oldest_python
from tests.podman import why_no_podman

FAST, SYSTEM = "fast", "system"
FASTEST = (
    "tests/agent/test_arguments.py",
    "tests/agent/test_folders.py",
    "tests/agent/test_workplace.py",
    "tests/agent/test_agent_journal.py",
    "tests/agent/test_agent_launch.py",
    "tests/agent/test_agent_lease.py",
    "tests/agent/test_agent_postmortem.py",
    "tests/agent/test_agent_printed.py",
    "tests/agent/test_agent_protocol.py",
    "tests/agent/test_agent_receive.py",
    "tests/agent/test_agent_reports.py",
    "tests/agent/test_agent_transfer.py",
    "tests/agent/test_agent_hang_detection.py",
    "tests/agent/test_manifests.py",
    "tests/agent/test_output_bounds.py",
    "tests/aws/test_aws_answers.py",
    "tests/aws/test_aws_lanes.py",
    "tests/aws/test_aws_sessions.py",
    "tests/aws/test_ec2_fleet.py",
    "tests/aws/test_ec2_launches.py",
    "tests/aws/test_ec2_pace.py",
    "tests/aws/test_ec2_places.py",
    "tests/aws/test_ec2_register.py",
    "tests/aws/test_ec2_request.py",
    "tests/aws/test_iam_policy.py",
    "tests/aws/test_real_errors.py",
    "tests/core/",
    "tests/journals/",
    "tests/planner/",
    "tests/properties/",
    "tests/scenarios/",
    "tests/shell/test_aside.py",
    "tests/shell/test_bundle.py",
    "tests/shell/test_collecting.py",
    "tests/shell/test_conversation.py",
    "tests/shell/test_daemon.py",
    "tests/shell/test_dispatch.py",
    "tests/shell/test_journal.py",
    "tests/shell/test_local_provider.py",
    "tests/shell/test_run_folders.py",
    "tests/shell/test_run_transcripts.py",
    "tests/shell/test_ssh_options.py",
    "tests/shell/test_translate.py",
    "tests/sim/",
    "tests/explanation/",
    "tests/test_api.py",
    "tests/test_architecture.py",
    "tests/test_cloud_times.py",
    "tests/test_docs.py",
    "tests/test_cheapest.py",
    "tests/test_elastic.py",
    "tests/test_figures.py",
    "tests/test_giving_back.py",
    "tests/test_group_spec.py",
    "tests/test_imports.py",
    "tests/test_live.py",
    "tests/test_live_keys.py",
    "tests/test_metrics_shown.py",
    "tests/test_outcomes.py",
    "tests/test_places.py",
    "tests/test_plain.py",
    "tests/test_planning.py",
    "tests/test_profiles.py",
    "tests/test_program.py",
    "tests/test_report.py",
    "tests/test_spec.py",
    "tests/test_summary.py",
    "tests/test_tables.py",
    "tests/test_units.py",
)
"""What is run while working: under a minute and a half on two cores, on Linux and on macOS."""

SLOWER = (
    "tests/core/test_adding.py::test_any_moment",
    "tests/core/test_adding.py::test_the_next_new_trial",
    "tests/core/test_extending.py",
    "tests/core/test_fold.py::test_a_version_with_another_rule",
    "tests/core/test_plans.py",
    "tests/core/test_run.py::test_a_daemon_killed_at_any_moment",
    "tests/planner/test_asha.py::test_stragglers",
    "tests/planner/test_bohb.py",
    "tests/planner/test_constraints.py::test_any_text",
    "tests/planner/test_guesses.py",
    "tests/planner/test_jobs.py",
    "tests/planner/test_planned_before.py",
    "tests/planner/test_policies_are_functions.py",
    "tests/planner/test_remembered.py",
    "tests/planner/test_rubberband.py",
    "tests/planner/test_seer_plus.py",
    "tests/planner/test_unpaused.py::test_no_trial_begins_twice",
    "tests/planner/test_wall_clock_policies.py::test_whoever_is_out",
    "tests/properties/test_core_properties.py",
    "tests/properties/test_explanation_properties.py",
    "tests/properties/test_placement_properties.py",
    "tests/properties/test_seer_properties.py",
    "tests/shell/test_collecting.py",
    "tests/shell/test_local_provider.py",
    "tests/shell/test_run_transcripts.py",
    "tests/sim/test_budget_audit.py",
    "tests/sim/test_margin_costs_no_gpu.py",
    "tests/sim/test_proof.py::TestRuns",
    "tests/sim/test_setting.py",
    "tests/sim/test_study.py",
    "tests/test_api.py::test_a_run_shows_itself",
    "tests/test_api.py::test_pictures",
    "tests/test_api.py::test_tables",
    "tests/test_api.py::test_whatever_is_in_a_dict",
    "tests/test_docs.py::test_the_worked_example",
    "tests/test_imports.py",
    "tests/test_outcomes.py::test_every_table_and_file_has_the_same_words",
    "tests/test_planning.py::test_the_configurations",
    "tests/test_planning.py::test_what_is_shown",
    "tests/test_report.py",
)
"""Of those the ones that try thousands of cases or import what draws: they are run by `make test`."""


WAITING = (
    "tests/mistakes/",
    "tests/test_other_versions_for_real.py",
    "tests/test_ec2_runs.py",
    "tests/test_ec2_first_run.py",
    "tests/test_aws_page.py",
    "tests/test_ec2_fallback.py",
    "tests/test_ec2_sizes.py",
    "tests/test_cut_off_runs.py",
    "tests/test_secret_runs.py",
    "tests/test_hosts_runs.py",
    "tests/test_cli.py",
    "tests/test_clock_steps.py",
    "tests/test_notebooks.py",
    "tests/test_api_runs.py",
    "tests/aws/test_ec2_storm.py",
    "tests/aws/test_canary.py",
    "tests/aws/test_ec2_many.py",
    "tests/violence/test_violence_rented.py",
    "tests/violence/test_violence_local.py",
    "tests/violence/test_violence_sharing.py",
    "tests/test_image_build.py",
    "tests/test_gpu_bench.py::test_the_parts",
    "tests/agent/test_agent_nodes.py",
    "tests/agent/test_agent_hangs.py",
    "tests/aws/test_ec2_on_rig.py",
    "tests/test_sweep.py",
)
"""Whole runs, which wait more than they compute: the longest first."""


def beside(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """The tests in the order in which whole runs wait while others compute: xdist gives each worker
    as many, one after the other, and every second one begins with its share of the runs.
    """
    if workers < 2:
        return list(items)
    runs = [item for file in WAITING for item in items if item.nodeid.startswith(file)]
    others = iter([item for item in items if not item.nodeid.startswith(WAITING)])
    first = range(0, workers, 2)
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        count = (len(items) - len(ordered)) // (workers - worker)
        mine = runs[worker // 2 :: len(first)] if worker in first else []
        ordered += [*mine, *islice(others, max(0, count - len(mine)))]
    return [*ordered, *others]


@dataclass(frozen=True, slots=True)
class Need:
    """What some tests need of their machine.

    name      for `SEERD_WITHOUT`
    why       what these tests do, as the end of a sentence
    lacks     what is missing here, in words; empty if nothing is
    fixtures  tests that ask for one of these need it
    places    folders, files or tests that need it
    in_ci     whether it is an error there if it is missing
    """

    name: str
    why: str
    lacks: Callable[[], str]
    fixtures: frozenset[str] = frozenset()
    places: tuple[str, ...] = ()
    in_ci: bool = True

    def is_of(self, item: pytest.Item) -> bool:
        """Whether this test needs it."""
        asked = self.fixtures & set(getattr(item, "fixturenames", ()))
        return bool(asked) or item.nodeid.startswith(self.places)


def _no_rig() -> str:
    try:
        require_tools()
    except NoRigError as error:
        return str(error)
    return _refused("unshare", "--net", "--mount", "--pid", "--fork", "true")


def _no_guest() -> str:
    if "SEERD_GUEST" in os.environ:
        return ""
    return "it is made and booted by sudo make guest alone, for minutes"


def _no_sshd() -> str:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
    missing = [tool for tool in ("sshd", "ssh-keygen") if shutil.which(tool, path=path) is None]
    return f"{' and '.join(missing)} not found" if missing else ""


def _no_process_namespace() -> str:
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    return _refused("unshare", *user, "--pid", "--fork", "--mount-proc", "true")


def _no_mounts() -> str:
    if os.geteuid() != 0:
        return "only root may mount"
    return _refused("unshare", "--mount", "mount", "-t", "tmpfs", "none", "/tmp")


def _refused(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return f"{command[0]} not found"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


NEEDS = (
    Need(
        "rig",
        "rent instances, which are network namespaces of this machine",
        _no_rig,
        frozenset({"session_rig"}),
        ("tests/rig/",),
    ),
    Need(
        "guest",
        "boot a whole system",
        _no_guest,
        places=("tests/guest/",),
        in_ci=False,
    ),
    Need(
        "sshd",
        "log in to a real OpenSSH server",
        _no_sshd,
        places=(
            "tests/aws/test_aws_userdata.py::test_openssh_reads_the_keys",
            "tests/shell/test_ssh_connecting.py",
            "tests/shell/test_ssh_programs.py",
            "tests/shell/test_ssh_remote.py",
        ),
    ),
    Need(
        "namespaces",
        "have two agents that see only their own processes",
        _no_process_namespace,
        fixtures=frozenset({"two_rigs"}),
    ),
    Need(
        "mounts",
        "have disks of their own, which they fill",
        _no_mounts,
        places=("tests/violence/test_full_disk.py", "tests/violence/test_violence_local.py"),
    ),
    Need(
        "users",
        "are two Unix users",
        lambda: "" if os.geteuid() == 0 else "only root may be somebody else",
        places=("tests/agent/test_gpu_users.py",),
    ),
    Need(
        "ps",
        "list processes as it is done on macOS",
        lambda: "" if shutil.which("ps") else "ps not found",
        places=(
            "tests/agent/test_agent_host.py::test_elsewhere_descendants_and_groups_come_from_ps",
        ),
    ),
    Need(
        "podman",
        "run trials in containers",
        why_no_podman,
        fixtures=frozenset({"podman"}),
        in_ci=False,
    ),
    Need(
        "oldest",
        f"run the agent and trials with Python {OLDEST}",
        lambda: "" if oldest_python() else f"no Python {OLDEST} found",
        fixtures=frozenset({"oldest"}),
        in_ci=False,
    ),
)


@cache
def lacking(name: str) -> str:
    """What this machine lacks of the need of this name, in words; empty if nothing."""
    (need,) = (need for need in NEEDS if need.name == name)
    if os.environ.get("SEERD_CI") == "1" and need.in_ci:
        return ""
    if need.name in os.environ.get("SEERD_WITHOUT", "").split(","):
        return "SEERD_WITHOUT says so"
    return need.lacks()


def has_fast(file: str) -> bool:
    """Whether a file may have a fast test."""
    return file.startswith(FASTEST) and file not in SLOWER


def sort_in(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Mark all of them with their tiers; those that can run here, and those that cannot."""
    here, not_here = [], []
    for item in items:
        needs = [need for need in NEEDS if need.is_of(item)]
        if needs:
            item.add_marker(SYSTEM)
        elif item.nodeid.startswith(FASTEST) and not item.nodeid.startswith(SLOWER):
            item.add_marker(FAST)
        missing = [need for need in needs if lacking(need.name)]
        (not_here if missing else here).append(item)
    return here, not_here


def chosen(items: Sequence[pytest.Item], tier: str) -> list[pytest.Item]:
    """Those that this run would have had: `tier` is what was given to pytest's `-m`."""
    return [item for item in items if tier in ("", SYSTEM) or item.get_closest_marker(tier)]


def told(not_here: Iterable[pytest.Item]) -> list[str]:
    """A line for each file with tests that cannot run here."""
    reasons: Counter[tuple[str, str]] = Counter()
    for item in not_here:
        need = next(need for need in NEEDS if need.is_of(item) and lacking(need.name))
        why = f"they {need.why}: {lacking(need.name)}"
        reasons[item.nodeid.partition("::")[0], why] += 1
    return [
        f"{file}: {count} test{'s' if count > 1 else ''}, {why}"
        for (file, why), count in sorted(reasons.items())
    ]
