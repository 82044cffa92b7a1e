"""From an order to the command line and the environment of a trial."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from seerd.agent.launch import LaunchPlan, Places, launch_plan, speaks, why_not_nodes
from seerd.agent.protocol import Job, Node, Start

JOB = Job(
    "/src",
    "train.py",
    ["--fast"],
    "torchrun",
    "/env/python",
    {},
    [],
    "/store",
    "accuracy",
    "max",
    [1, 2],
    3,
    10.0,
)
START = Start("a", "t1", 2, [1, 3], {"lr": 0.1}, 17, [])
PLACES = Places(
    Path("/i/trials/t1/2"), Path("/i/trials/t1/checkpoints"), Path("/i/lib"), Path("/i/agent.lock")
)

ALONE = "-m torch.distributed.run --nnodes 1 --nproc-per-node 2 --max-restarts 0"
ALONE += (
    " --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 --local-addr 127.0.0.1 --rdzv-id run-1-t1-2"
)
SECOND_OF_3 = "-m torch.distributed.run --nnodes 3 --nproc-per-node 2 --max-restarts 0"
SECOND_OF_3 += (
    " --rdzv-backend static --node-rank 1 --rdzv-endpoint 10.0.0.10:29400 --rdzv-conf timeout=120"
)
SECOND_OF_3 += " --local-addr 10.0.0.9 --rdzv-id run-1-t1-2"
REST = " --redirects 3 --log-dir /i/trials/t1/2/logs train.py --fast"
NODE = Node(1, 3, "10.0.0.9", "10.0.0.10:29400", 6)


def plan(outside: dict[str, str] | None = None, *, cuda: bool = False, **job: object) -> LaunchPlan:
    return launch_plan(replace(JOB, **job), START, "run-1", PLACES, cuda, outside or {})


@pytest.mark.parametrize(
    ("launcher", "argv"),
    [
        ("python", ["/env/python", "train.py", "--fast"]),
        ("command", ["train.py", "--fast"]),
        ("torchrun", ["/env/python", *(ALONE + REST).split()]),
    ],
)
def test_each_launcher_has_its_command_line(launcher, argv):
    assert plan(launcher=launcher).argv == argv


def test_each_of_several_nodes_has_the_rank_that_it_was_given():
    made = launch_plan(JOB, replace(START, node=NODE), "run-1", PLACES, False, {})
    assert made.argv == ["/env/python", *(SECOND_OF_3 + REST).split()]
    assert made.about["gpus"] == 6


@pytest.mark.parametrize(
    ("node", "speaking"),
    [(None, True), (replace(NODE, rank=0), True), (NODE, False), (replace(NODE, rank=2), False)],
)
def test_one_node_speaks_for_all(node, speaking):
    assert speaks(replace(START, node=node)) == speaking


@pytest.mark.parametrize("launcher", ["python", "command"])
def test_what_is_one_process_cannot_span_instances(launcher):
    assert f'"{launcher}" starts one process' in why_not_nodes(
        replace(JOB, launcher=launcher), NODE
    )
    assert why_not_nodes(replace(JOB, launcher=launcher), None) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"rank": 3},
        {"rank": -1},
        {"endpoint": "10.0.0.10"},
        {"endpoint": "10.0.0.10:0"},
        {"endpoint": "10.0.0.10:65536"},
        {"endpoint": ":29400"},
        {"address": ""},
        {"address": "--help"},
        {"address": "10.0.0.9 --help"},
    ],
)
def test_a_part_that_cannot_be_is_said_to_be_one(wrong):
    assert why_not_nodes(JOB, NODE) == ""
    assert "cannot be" in why_not_nodes(JOB, replace(NODE, **wrong))


def test_a_trial_runs_in_its_own_folder_and_knows_where_its_files_are():
    made = plan()
    assert (made.cwd, made.log) == (str(PLACES.work), Path("/i/trials/t1/2/logs/launcher.log"))
    assert made.env["SEERD_DIR"] == "/i/trials/t1/2"
    assert made.env["SEERD_ATTEMPT"] == "run-1/t1/2"
    assert made.env["SEERD_AGENT_LOCK"] == "/i/agent.lock"
    assert (
        made.env["OMP_NUM_THREADS"],
        made.env["MKL_NUM_THREADS"],
        made.env["PYTHONUNBUFFERED"],
    ) == ("3", "3", "1")


def test_trial_json_is_as_documented():
    assert plan().about == {
        "version": 1,
        "run": "run-1",
        "trial": "t1",
        "attempt": 2,
        "config": {"lr": 0.1},
        "gpus": 2,
        "allocations": [1, 2],
        "metric": "accuracy",
        "mode": "max",
        "seed": 17,
        "checkpoints": "/i/trials/t1/checkpoints",
        "checkpoint_every_s": 10.0,
        "max_reports": None,
        "smooth": 1,
        "constraints": [],
        "learns": False,
    }


@pytest.mark.parametrize(
    ("cuda", "visible", "devices"),
    [
        (False, "", ""),
        (False, "4,5", ""),
        (True, "", "1,3"),
        (True, "4,5,6,7", "5,7"),
        (True, "GPU-a, GPU-b", "GPU-b,3"),
    ],
)
def test_gpus_are_the_nth_of_those_that_the_agent_may_see(cuda, visible, devices):
    assert plan({"CUDA_VISIBLE_DEVICES": visible}, cuda=cuda).env["CUDA_VISIBLE_DEVICES"] == devices


@pytest.mark.parametrize(
    ("outside", "env", "path"),
    [
        ({}, {}, "/i/lib"),
        ({"PYTHONPATH": "/mine"}, {}, "/i/lib:/mine"),
        ({"PYTHONPATH": "/mine"}, {"PYTHONPATH": "/spec"}, "/i/lib:/spec"),
        ({}, {"PYTHONPATH": "src:/spec:."}, f"/i/lib:{PLACES.work}/src:/spec:{PLACES.work}"),
    ],
)
def test_the_training_side_comes_first_on_the_users_path(outside, env, path):
    assert plan(outside, env=env).env["PYTHONPATH"] == path


@pytest.mark.parametrize(
    "name",
    [
        "SEERD_DIR",
        "SEERD_HOME",
        "PET_STANDALONE",
        "TORCHELASTIC_RUN_ID",
        "RANK",
        "WORLD_SIZE",
        "MASTER_PORT",
        "PYTHONHOME",
        "PWD",
        "OLDPWD",
    ],
)
def test_nothing_from_outside_reaches_into_a_trial(name):
    assert plan({name: "outside", "HOME": "/home/me"}).env.get(name) != "outside"
    assert plan({"HOME": "/home/me"}).env["HOME"] == "/home/me"


def test_the_specs_environment_wins_over_the_machines():
    assert plan({"DATA": "/a"}, env={"DATA": "/b"}).env["DATA"] == "/b"


def test_what_the_spec_sets_holds_but_for_what_makes_the_process_group_or_pins_gpus():
    env = {"OMP_NUM_THREADS": "7", "MKL_NUM_THREADS": "5", "PYTHONUNBUFFERED": "", "OTHER": "x"}
    made = plan({"OMP_NUM_THREADS": "9"}, env=env).env
    assert {name: made[name] for name in env} == env
    assert plan({"OMP_NUM_THREADS": "9"}).env["OMP_NUM_THREADS"] == "3"
    assert plan(env={"CUDA_VISIBLE_DEVICES": "5"}).env["CUDA_VISIBLE_DEVICES"] == ""
    assert plan(env={"SEERD_DIR": "/"}).env["SEERD_DIR"] == "/i/trials/t1/2"


def test_a_command_is_found_on_the_path_or_in_the_source():
    assert plan({"PATH": "/bin"}, launcher="command").env["PATH"] == f"/bin:{PLACES.work}"
    assert plan({"PATH": "/bin"}).env["PATH"] == "/bin"
