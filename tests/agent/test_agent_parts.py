"""Parts of a GPU on an agent: which orders it takes, what attempts see of their GPU, and how they
are held to their share of its memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seerd.agent.launch import launch_plan
from seerd.agent.protocol import (
    Grow,
    Noticed,
    Prepare,
    Prepared,
    Refused,
    Reported,
    Start,
    Started,
    Stop,
)
from seerd.agent.warm import gpu_share
from seerd.agent.wire import encode
from seerd.core.last_words import error_line, memory_lacked
from tests.agent.test_agent_launch import JOB, NODE, PLACES

GIB = 1 << 30
ROOT = Path(__file__).parents[2]


def start(*slots: int, parts: int = 4, **other: Any) -> Start:
    return Start("a", "t1", 1, list(slots), {}, 17, [], parts=parts, **other)


@pytest.mark.parametrize(
    ("slots", "visible", "ranks", "share"),
    [
        ((5,), "1", 1, "1/4"),
        ((2, 3), "0", 1, "2/4"),
        ((4, 5, 6, 7), "1", 1, None),
        ((0, 1, 2, 3, 4, 5, 6, 7), "0,1", 2, None),
    ],
)
def test_slots_are_parts_of_a_gpu_or_whole_ones(slots, visible, ranks, share):
    job = replace(JOB, allocations=[1, 2, 4, 8], args=["--gpus", "{gpus}"], names=["lr"])
    plan = launch_plan(job, start(*slots), "run-1", PLACES, True, {})
    assert plan.env["CUDA_VISIBLE_DEVICES"] == visible
    assert plan.argv[plan.argv.index("--nproc-per-node") + 1] == str(ranks)
    assert plan.argv[-1] == str(ranks)
    assert (plan.about["gpus"], plan.about["allocations"]) == (ranks, [1, 2])
    assert plan.env.get("SEERD_GPU_SHARE") == share
    held = plan.env["PYTHONPATH"].startswith("/i/lib/seerd/agent/warm/held:")
    assert held == (share is not None)
    jax = "0.212" if share == "1/4" else "0.425" if share else None
    assert plan.env.get("XLA_PYTHON_CLIENT_MEM_FRACTION") == jax
    assert plan.env.get("TF_FORCE_GPU_ALLOW_GROWTH") == ("true" if share else None)


def test_what_the_person_says_of_memory_stands():
    job = replace(JOB, env={"XLA_PYTHON_CLIENT_MEM_FRACTION": ".1"})
    env = launch_plan(job, start(5), "run-1", PLACES, True, {}).env
    assert env["XLA_PYTHON_CLIENT_MEM_FRACTION"] == ".1"


def test_nodes_count_slots_too():
    order = start(0, 1, 2, 3, node=replace(NODE, gpus=12))
    assert launch_plan(JOB, order, "run-1", PLACES, True, {}).about["gpus"] == 3


def test_cpu_slots_have_no_share_of_a_gpu():
    env = launch_plan(JOB, start(0), "run-1", PLACES, False, {"SEERD_GPU_SHARE": "1/2"}).env
    assert ("SEERD_GPU_SHARE" in env, env["PYTHONPATH"]) == (False, "/i/lib")


def test_without_parts_orders_are_as_they_were():
    assert b"parts" not in encode(start(0, parts=1))
    assert b"parts" not in encode(Prepare("p", JOB))
    assert json.loads(encode(start(0)))["parts"] == 4


def test_attempts_share_a_gpu_if_their_slots_are_disjoint(rig):
    rig.launch(gpus=2)
    client = rig.connect()
    client.say(Prepare("p", rig.job("import time\ntime.sleep(60)"), parts=4))
    client.until(Prepared)
    for number, slots in enumerate([(4,), (6, 7), (0, 1, 2, 3), (5, 6), (3, 4), (8,), (1,)]):
        client.say(replace(start(*slots), id=f"s{number}", trial=f"t{number}"))
    client.say(replace(start(5, parts=2), id="other", trial="other"))
    whys = {}
    while len(whys) < 5:
        message = client.read()
        if isinstance(message, Refused):
            whys[message.id] = message.why
    assert whys == {
        "s3": "GPUs [6] are held by t1/1",
        "s4": "slots [3, 4], 4 to a GPU, are neither of one nor whole GPUs",
        "s5": "GPUs [8] are not among the 8 here",
        "s6": "GPUs [1] are held by t2/1",
        "other": "GPUs [5] are not among the 4 here",
    }
    for number in range(3):
        client.until(Started, lambda fact, name=f"t{number}": fact.trial == name)


# ------------------------------------------------------------ memory

TORCH = {
    "torch/__init__.py": "from torch import cuda\nimport os\nbegan = 'LATE' not in os.environ\n",
    "torch/cuda.py": """
calls, bounds, used = [], [], []
def _lazy_call(call):
    calls.append(call)
def is_initialized():
    return bool(used)
def init():
    used.append(True)
    for call in calls:
        call()
class get_device_properties:
    total_memory = 16 << 30
    def __init__(self, device):
        assert used
def set_per_process_memory_fraction(fraction, device):
    assert used, "this call would begin the use of the GPU"
    bounds.append((fraction, device))
""",
}
"""What of torch counts here: a GPU of 16 GiB, which the process uses once it calls `init`."""
SCRIPT = """
import sys, torch
assert not torch.cuda.used
if "use" in sys.argv:
    torch.cuda.init()
print([round(fraction * 16 * 1024) for fraction, device in torch.cuda.bounds if device == 0])
"""


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    for name, text in TORCH.items():
        path = tmp_path / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "packages"


def ran(packages: Path, code: str, *more: Path, share: str = "1/4", args=(), **more_env):
    held = Path(gpu_share.__file__).with_name("held")
    path = ":".join(map(str, [held, ROOT, packages, *more]))
    env = {"PYTHONPATH": path, "SEERD_GPU_SHARE": share, "PYTHONDONTWRITEBYTECODE": "1"}
    env |= more_env
    done = subprocess.run(
        [sys.executable, "-c", code, *args], env=env, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("share", "mib"), [("1/4", 4096 - 850), ("2/4", 8192 - 850), ("1/16", 174)]
)
def test_a_process_that_uses_the_gpu_is_bound_to_its_share(torch, share, mib):
    assert ran(torch, SCRIPT, share=share, args=("use",)) == f"[{mib}]"


def test_a_process_that_does_not_use_the_gpu_has_no_context(torch):
    assert ran(torch, SCRIPT) == "[]"


def test_a_process_takes_the_part_that_its_trial_has_by_now(torch, tmp_path):
    """Before its first use of the GPU, then when it looks; a child begins with what it saw last."""
    code = """
import os, pathlib, torch
from seerd.agent.warm.gpu_share import widen
at = pathlib.Path(os.environ["SEERD_DIR"], "share")
widen()
at.write_text("2/4")
widen()
assert not torch.cuda.used
torch.cuda.init()
widen()
at.write_text("4/4")
widen()
widen()
print([round(part * 16384) for part, _ in torch.cuda.bounds], os.environ["SEERD_GPU_SHARE"])
"""
    assert ran(torch, code, SEERD_DIR=str(tmp_path)) == f"[{8192 - 850}, 16384] 4/4"


def test_a_share_that_the_context_alone_fills_lets_nothing_be_allocated():
    assert gpu_share.allowed_bytes("1/16", 8 * GIB) == 0


def test_the_sitecustomize_of_the_environment_is_imported_too(torch, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = __file__\n")
    code = 'import sys\nprint(mine, sys.modules["sitecustomize"].__file__, "torch" in sys.modules)'
    assert ran(torch, code, other) == f"{other}/sitecustomize.py {other}/sitecustomize.py False"


def test_a_fork_that_has_torch_is_bound_too(torch):
    code = """
import os, torch
del os.environ["SEERD_GPU_SHARE"]
from seerd.agent.warm.identity import wear
torch.cuda.calls.clear()
wear(["python", "x.py"], {"PYTHONPATH": os.environ["PYTHONPATH"]})
assert not torch.cuda.calls
wear(["python", "x.py"], {"PYTHONPATH": os.environ["PYTHONPATH"], "SEERD_GPU_SHARE": "1/2"})
torch.cuda.init()
print(len(torch.cuda.bounds))
"""
    assert ran(torch, code) == "1"


def test_the_torch_that_is_installed_takes_the_bound_before_its_first_use_of_a_gpu():
    code = """
import torch
from seerd.agent.warm.gpu_share import _bound
calls = [call for call, _ in torch.cuda._queued_calls]
print(_bound in calls, torch.cuda.is_initialized(), callable(torch.cuda.get_device_properties))
"""
    assert ran(Path("/nowhere"), code) == "True False True"


USES_THE_GPU = """
import os, pathlib, sys, time
from torch import cuda
config = {config}
done = pathlib.Path(os.environ["SEERD_DIR"]).parents[2] / "done"
cuda.init()
for _ in range(config["pieces"]):
    cuda.allocate(512 << 20)
    time.sleep(0.01)
(done / os.environ["SEERD_ATTEMPT"].replace("/", "-")).touch()
while len(list(done.iterdir())) < config["wait"]:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("preload", [[], ["torch.cuda"]], ids=["cold", "warm"])
def test_a_trial_that_wants_more_than_its_part_fails_alone(rig, tmp_path, preload):
    """Of four trials on one GPU of 16 GiB three take what they may, and one takes all it gets."""
    gpu = tmp_path / "gpu.json"
    gpu.write_text(json.dumps({"total": 16 * GIB, "processes": {}}))
    path = f"{ROOT / 'tests' / 'fake_torch'}:{ROOT}"
    rig.options = ("--cuda",)
    (rig.folder / "done").mkdir(parents=True)
    script = USES_THE_GPU.replace("{config}", "dict(pieces=int(sys.argv[1]), wait=3)")
    job = rig.job(
        script,
        args=["{pieces}"],
        names=["pieces"],
        preload=preload,
        env={"PYTHONPATH": path, "FAKE_GPU": str(gpu)},
    )
    rig.launch(gpus=1)
    client = rig.connect()
    client.say(Prepare("p", job, parts=4))
    client.until(Prepared)
    for slot, pieces in enumerate([6, 100, 6, 6]):
        config = {"pieces": pieces}
        client.say(Start(f"s{slot}", f"t{slot}", 1, [slot], config, 17, [], parts=4))
    ends = [client.exit_of(f"t{slot}") for slot in range(4)]
    assert [end.cause for end in ends] == ["finished", "crashed", "finished", "finished"]
    assert ends[1].tail[-1] == "seerd: it had 1/4 of the GPU, and of its memory"
    assert memory_lacked(ends[1].tail) == "share"
    assert "3.17 GiB allowed; " in error_line(ends[1].tail)
    colds = [fact.why for fact in client.facts if isinstance(fact, Noticed)]
    assert colds == []


TAKES_WHAT_IT_MAY = """
import contextlib, seerd, time
from torch import cuda
trial, pieces = seerd.trial(), 0
cuda.init()
while trial.running():
    with contextlib.suppress(cuda.OutOfMemoryError):
        while True:
            cuda.allocate(512 << 20)
            pieces += 1
    trial.report(accuracy=pieces)
    time.sleep(0.01)
"""


def test_a_trial_that_grows_has_the_memory_of_its_larger_part_without_a_restart(rig, tmp_path):
    gpu = tmp_path / "gpu.json"
    gpu.write_text(json.dumps({"total": 16 * GIB, "processes": {}}))
    path = f"{ROOT / 'tests' / 'fake_torch'}:{ROOT}"
    rig.options = ("--cuda",)
    job = rig.job(TAKES_WHAT_IT_MAY, env={"PYTHONPATH": path, "FAKE_GPU": str(gpu)})
    rig.launch(gpus=1)
    client = rig.connect()

    def has(*pieces: int) -> int:
        """How many pieces of 512 MiB it reports, once it is one of these."""
        fact = client.until(Reported, lambda fact: fact.metrics["accuracy"] in pieces)
        return int(fact.metrics["accuracy"])

    client.say(Prepare("p", job, parts=4))
    client.until(Prepared)
    client.say(start(1))
    assert has(6, 7) == 6
    client.say(Grow("g", "t1", 1, [0, 1]), Grow("g", "t1", 1, [0, 1, 2, 3]))
    assert has(14, 15) == 14
    client.say(replace(start(0), id="b", trial="t2"))
    assert client.until(Refused).why == "GPUs [0] are held by t1/1"
    client.say(Grow("h", "t1", 1, [0, 1, 2, 3]), Grow("i", "t9", 1, [0]))
    assert has(30, 31) == 30, "all of it but what its own context takes"
    client.say(Stop("z", "t1", 1, checkpoint=True, grace_s=60.0))
    assert client.exit_of("t1").cause == "asked"
