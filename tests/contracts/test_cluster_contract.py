"""What every kind of cluster promises, from a spec to instances, and again when a run is
resumed.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import boto3
import msgspec
import pytest

from seerd.backends.backend import MARGIN_S, Backend
from seerd.backends.by_name import by_name
from seerd.commands.profiling import profiling_spec
from seerd.errors import UsageError
from seerd.planning import plans
from seerd.planning.machine import this_machine
from seerd.registry import BACKENDS
from seerd.runs import clusters, runs, wiring
from seerd.runs.wiring import Setup
from seerd.shell.home import Home, RunFolder
from seerd.spec.clusters import CLUSTER_KEYS
from seerd.spec.experiment import of_one
from seerd.spec.spec import Spec, load_spec
from tests.shell.sshd import Sshd, sshds

ROOT = Path(__file__).resolve().parents[2]
SPEC = """
name = "digits"
metric = {{ name = "accuracy", mode = "max" }}
[train]
script = "trainer.py"
[space]
lr = {{ low = 0.1, high = 0.9 }}
[limits]
deadline = "20m"
budget = "60gpu-min"
[cluster]
provider = "{provider}"
{keys}
"""
UNFIT = {
    "local": ('store = "s3://bucket/runs"', "in a directory"),
    "hosts": ('hosts = [{ address = "10.0.0.5", gpus = 8 }]', "that all of them reach"),
    "ec2": ('store = "s3://bucket/runs"', "which image"),
}
"""Keys of each kind that can be read and not be run, and what is said of them."""


@dataclass(frozen=True, slots=True)
class Made:
    """A kind of cluster, a spec that asks for it, and what it says that there is."""

    kind: str
    spec: Spec
    home: Home
    gpus: int
    most: int | None


def spec_of(folder: Path, provider: str, keys: str) -> Spec:
    shutil.copy(ROOT / "tests" / "programs" / "trainer.py", folder / "trainer.py")
    (folder / "spec.toml").write_text(SPEC.format(provider=provider, keys=keys))
    return load_spec(folder / "spec.toml")


def known(folder: Path, server: Sshd) -> str:
    """The server in the known_hosts of a user whose key it takes; that host as a spec names it."""
    ssh = folder / ".ssh"
    ssh.mkdir(mode=0o700)
    (ssh / "known_hosts").write_text(f"[127.0.0.1]:{server.port} {server.host_key}")
    shutil.copy(server.user_key, ssh / "id_ed25519")
    user = getpass.getuser()
    return f'{{ address = "127.0.0.1", user = "{user}", port = {server.port}, slots = 2 }}'


@pytest.fixture(params=sorted(BACKENDS))
def made(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Made]:
    folder, home = tmp_path / "project", Home(tmp_path / "runs")
    folder.mkdir()
    if request.param == "local":
        yield Made("local", spec_of(folder, "local", "gpus = 1"), home, 1, 1)
    elif request.param == "hosts":
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        with sshds(1) as (server,):
            hosts = f'hosts = [{known(tmp_path, server)}]\nstore = "{tmp_path / "store"}"'
            yield Made("hosts", spec_of(folder, "hosts", hosts), home, 2, 2)
    else:
        request.getfixturevalue("s3")
        images = boto3.client("ec2").describe_images(
            Filters=[{"Name": "name", "Values": ["ubuntu/images/hvm-ssd/ubuntu-trusty*"]}]
        )
        image = images["Images"][0]["ImageId"]
        keys = f'image = "{image}"\ninstance_type = "g4dn.12xlarge"\nprice = "$4"\n'
        spec = spec_of(folder, "ec2", f'{keys}store = "s3://bucket/runs"')
        yield Made("ec2", spec, home, 4, None)


def begun(made: Made) -> RunFolder:
    """The folder of a run that `seerd run` would begin now."""
    experiment, quote = of_one(made.spec), clusters.quote(made.spec)
    facts = plans.facts_of(experiment, made.home, quote, ideal=False, minimize=None)
    clusters.check_quota(experiment, facts)
    folder, state = runs.create(experiment, facts, made.home, quote, 1.8e9)
    assert state.facts.cluster.billing == ("rented" if made.spec.cluster.rented else "held")
    return folder


def test_every_kind_that_a_spec_may_name_is_here() -> None:
    assert sorted(BACKENDS) == sorted(CLUSTER_KEYS)


def test_what_is_offered_is_what_is_quoted(made: Made) -> None:
    unasked, quoted = clusters.unasked_quote(made.spec), clusters.quote(made.spec)
    assert unasked.facts == quoted.facts
    assert unasked.machine_types == quoted.machine_types
    assert len(unasked.machine_types) == 1
    facts = unasked.facts
    assert facts.gpus_per_instance == made.gpus
    assert facts.most_gpus(None) == made.most
    assert bool(quoted.owner) == bool(facts.usd_per_gpu_h) == made.spec.cluster.rented


def test_a_plan_has_room_there_and_tells_what_it_costs(made: Made) -> None:
    quote = clusters.unasked_quote(made.spec)
    planned = plans.plan_of(of_one(made.spec), made.home, quote)
    assert max(stage.gpus for stage in planned.outline.stages) <= (made.most or 1000)
    assert any("$4 an hour" in note for note in planned.outline.adjusted) == (made.kind == "ec2")


def test_a_profile_needs_no_budget_where_nothing_is_rented(made: Made) -> None:
    limits = replace(made.spec.limits, deadline_s=300.0, budget_gpu_s=None)
    quote = clusters.unasked_quote(made.spec)
    spec = profiling_spec(replace(made.spec, limits=limits), quote.facts, budget_given=False)
    experiment = of_one(spec)
    if made.spec.cluster.rented:
        with pytest.raises(UsageError, match="give --budget"):
            plans.plan_of(experiment, made.home, quote, ideal=True)
    else:
        planned = plans.plan_of(experiment, made.home, quote, ideal=True)
        assert planned.problem.limits.budget_gpu_s == 300.0 * (made.most or 0)


@pytest.mark.parametrize("provider", UNFIT)
def test_what_cannot_be_run_is_refused_in_words(tmp_path: Path, provider: str) -> None:
    keys, said = UNFIT[provider]
    spec = spec_of(tmp_path, provider, keys)
    with pytest.raises(UsageError, match=said):
        clusters.of(spec).check(spec)


def test_what_a_run_keeps_is_read_back_as_it_was(made: Made) -> None:
    folder = begun(made)
    setup = wiring.load(folder)
    wiring.save(setup, folder)
    assert wiring.load(folder) == setup
    assert setup.kind == made.kind
    assert setup.until == 1.8e9 + 1200 + MARGIN_S
    later = msgspec.structs.replace(setup, until=setup.until + 60)
    assert (later.until, later.kind) == (setup.until + 60, setup.kind)


def test_its_instances_can_be_had_and_none_is_left(made: Made) -> None:
    """As a resumed run finds them: from its folder alone."""
    folder = begun(made)
    site = wiring.site_of(wiring.load(folder), folder)
    assert (site.printed is None) == (site.expected is None) == (made.kind == "local")

    async def live() -> None:
        try:
            await site.provider.open()
            assert await site.provider.adopt([], []) == ([], [])
            assert (await site.provider.leftovers()).costing == []
            await site.provider.terminate("1.0")
        finally:
            await site.provider.close()

    asyncio.run(live())


def test_this_machine_is_looked_at_once(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver with two devices, which writes down that it was asked."""
    tools, asked = tmp_path / "tools", tmp_path / "asked"
    tools.mkdir()
    device = "GPU 0: NVIDIA T4 (UUID: GPU-1)"
    (tools / "nvidia-smi").write_text(f'#!/bin/sh\necho >> "{asked}"\necho "{device}"\n')
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    setup = wiring.load(begun(made))
    assert len(asked.read_text().splitlines()) == 1
    assert made.kind != "local" or (setup.where.gpus, setup.where.cuda) == (1, True)
    asked.unlink()
    assert this_machine().device == "NVIDIA T4"


def test_mig_devices_of_this_machine_are_its_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["GPU 0: NVIDIA A100 (UUID: GPU-1)"]
    lines += [f"  MIG 3g.20gb     Device  {n}: (UUID: MIG-{n})" for n in range(2)]
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n" + "".join(f"echo '{a}'\n" for a in lines))
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    machine = this_machine()
    assert (machine.cuda_devices, machine.device) == (2, "NVIDIA A100")


KEPT = {
    "hosts": [
        {"address": "10.0.0.5", "user": "ubuntu", "port": 22, "gpus": 8, "cuda": True},
        {"address": "10.0.0.6", "user": None, "port": 22, "gpus": 2, "cuda": False},
    ],
    "ec2": {
        "run": "r",
        "name": "digits",
        "owner": "arn:me",
        "region": None,
        "instance_types": ["p3.8xlarge"],
        "gpus": 4,
        "market": "spot",
        "image": "ami-1",
        "subnets": ["subnet-1"],
        "security_groups": [],
        "key": None,
        "address": "private",
        "volume_gb": None,
        "tags": {"a": "b"},
        "max_usd_per_h": 14.4,
        "hard_end": 1.8e9,
        "boot_s": 420.0,
        "keys": "/runs/r/keys",
        "root": False,
    },
}
"""As the first release wrote it."""


@pytest.mark.parametrize("kind", KEPT)
def test_what_earlier_versions_kept_of_other_machines_is_read(tmp_path: Path, kind: str) -> None:
    folder = RunFolder(tmp_path)
    job = {
        "source": "source",
        "script": "train.py",
        "args": [],
        "launcher": "torchrun",
        "python": "python3",
        "env": {},
        "setup": [],
        "store": "",
        "metric": "a",
        "mode": "max",
        "allocations": [1, 2],
        "threads": 0,
        "checkpoint_every_s": 10.0,
    }
    told = {"job": job, "store": "s3://b/p", "until": 1.8e9, "data": [], kind: KEPT[kind]}
    folder.setup.write_text(json.dumps(told))
    setup: Setup = wiring.load(folder)
    assert setup.kind == kind
    wiring.save(setup, folder)
    saved = json.loads(folder.setup.read_text())
    own = {
        "on_end": "",
        "spec_folder": "",
        "export": {},
        "job": job
        | {key: [] for key in ("constraints", "names", "own", "fill", "secrets", "mounts")},
        "jobs": [],
    }
    assert len(saved.pop("sha256")) == 64
    assert saved | {kind: None} == told | own | {kind: None}
    new = {"throughput": None, "load_rate": None, "python": "", "mend_s": 240.0, "address_s": 60.0}
    new |= {"prices": {}, "unreached_s": 60.0, "falls_back": False, "iops": None}
    new |= {"capacity": None, "block": False, "scratch": None}
    new |= {"sizes": {}, "containers": False, "keep_s": 0.0}
    kept = KEPT[kind]
    hosts = [host | {"weight": 1.0} for host in kept] if isinstance(kept, list) else []
    assert saved[kind] == (kept | new if isinstance(kept, dict) else hosts)


def test_the_protocol_is_all_that_kinds_have_in_common() -> None:
    public = {name for name in vars(Backend) if not name.startswith("_")}
    for kind in map(by_name, BACKENDS):
        assert {name for name in vars(kind) if not name.startswith("_")} <= public
