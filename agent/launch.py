"""From an order to start to the exact command, environment and files of an attempt, as a
`LaunchPlan` that `attempts` or the warm process carries out.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Iterable, Optional

from seerd.agent.arguments import CHECKPOINT, GPUS, filled, filled_environment, fixed_environment
from seerd.agent.container import Container
from seerd.agent.protocol import Job, Node, Start
from seerd.agent.warm.gpu_share import SHARE

DROPPED_PREFIXES = ("SEERD_", "PET_", "TORCHELASTIC_")
"""Prefixes of variables that must not reach an attempt: ours, and torchrun's options."""
DROPPED = {
    *("OLDPWD", "PYTHONHOME", "PYTHONSTARTUP", "PYTHON_EXEC", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"),
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
}

TRAINING_SIDE = (
    *("seerd/__init__.py", "seerd/lightning.py", "seerd/transformers.py", "seerd/training/"),
    *("seerd/agent/__init__.py", "seerd/agent/warm/"),
    *("seerd/agent/folders.py", "seerd/agent/host.py", "seerd/agent/manifest.py"),
    *("seerd/agent/patterns.py", "seerd/agent/plainfile.py", "seerd/agent/progress_marks.py"),
)
"""Files of the agent's zip that run in the processes of trials, by the start of their names."""
LIBRARY = "lib"  # folder, within the agent's own, into which these files are unpacked
WARM = "seerd/agent/warm/__main__.py"
HELD = "seerd/agent/warm/held"  # what holds a Python to its share of a GPU's memory
FRACTION = 0.85  # of its share of a GPU that JAX may take; the rest is its CUDA context's
FRACTION_OF_JAX = "XLA_PYTHON_CLIENT_MEM_FRACTION"  # JAX takes 0.75 of the GPU at once without it
GROWTH_OF_TENSORFLOW = "TF_FORCE_GPU_ALLOW_GROWTH"  # "true": it takes what it needs, not all
OBSERVER = "seerd.training.observer"  # observes a script that does not import seerd
TORCHRUN = (
    *("torch", "torch.distributed.run"),
    "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    *("encodings.idna", "seerd.training.trial"),
)
"""Modules that torchrun and its ranks import."""
OF_ATTEMPT = ("SEERD_DIR", "SEERD_ATTEMPT", "PWD")  # variables that differ between attempts

JOIN_S = 120  # seconds that nodes wait for each other: a cold disk takes a minute to import torch
SIOCGIFADDR, NAME_BYTES, ADDRESS = 0x8915, 16, slice(20, 24)  # of netdevice(7)


class Places:
    """The paths of one attempt."""

    def __init__(self, attempt: Path, checkpoints: Path, library: Path, lock: Path) -> None:
        self.attempt = attempt  # its own folder
        self.checkpoints = checkpoints  # of the trial
        self.library = library  # of the training side
        self.lock = lock  # locked for as long as the agent lives
        self.logs = attempt / "logs"  # of each rank and of the launcher
        self.launcher_log = self.logs / "launcher.log"  # what the launcher itself writes
        self.modules = attempt / "modules.json"  # what the attempt has imported
        self.marks = attempt / "marks"  # progress marks, one file per rank
        self.work = attempt / "work"  # where the script runs (`workplace`)


@dataclass(frozen=True)
class LaunchPlan:
    """How to start one attempt."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: Path  # for the launcher's own output
    about: dict[str, Any]  # content of trial.json
    observer: Optional[list[str]] = None  # command that observes the script; None: it imports seerd
    container: Optional[Container] = None  # in which it runs


@dataclass(frozen=True)
class WarmPlan:
    """The process from which attempts are forked."""

    python: str
    program: str
    env: dict[str, str]  # without what differs between attempts
    source: str  # the folder that they run in
    script: str
    modules: list[str]  # imported in any case
    learns: bool  # whether it learns what attempts import
    container: Optional[Container] = None  # in which it runs

    @property
    def path(self) -> Path:
        """The script's path."""
        return Path(self.source, self.script)


def unpack_library(program: Path, library: Path) -> Path:
    """Unpack what trials import from the agent's zip into the folder `library`; return it."""
    with zipfile.ZipFile(program) as bundle:
        names = [name for name in bundle.namelist() if name.startswith(TRAINING_SIDE)]
        bundle.extractall(library, names)
    return library


def warm_plan(
    job: Job,
    places: Places,
    cuda: bool,
    outside: dict[str, str],
    container: Optional[Container] = None,
) -> Optional[WarmPlan]:
    """Plan the process from which the job's attempts are forked; None: they are not forked."""
    if job.launcher not in ("torchrun", "python") or job.preload == []:
        return None
    job = replace(job, env=fixed_environment(job.env, job.names))
    env = _env(job, "", [], places, cuda, outside)
    if cuda and "CUDA_VISIBLE_DEVICES" in outside:
        env["CUDA_VISIBLE_DEVICES"] = outside["CUDA_VISIBLE_DEVICES"]
    elif cuda:
        del env["CUDA_VISIBLE_DEVICES"]
    return WarmPlan(
        python=job.python or sys.executable,
        program=str(places.library / WARM),
        env={name: value for name, value in env.items() if name not in OF_ATTEMPT},
        source=job.source,
        script=job.script,
        modules=[*(TORCHRUN if job.launcher == "torchrun" else ()), *(job.preload or ())],
        learns=job.preload is None,
        container=container,
    )


def launch_plan(
    job: Job,
    start: Start,
    run: str,
    places: Places,
    cuda: bool,
    outside: dict[str, str],
    learns: bool = False,
) -> LaunchPlan:
    """Plan how to start this attempt.

    `cuda`: GPUs are CUDA devices, not CPU slots. `outside`: the agent's own environment. `learns`:
    the attempt writes what it has imported.
    """
    names, values = [GPUS, *job.names], values_of(start)
    if job.names:
        job = replace(job, args=filled(job.args, names, values))
    job = replace(job, env=filled_environment(job.env, names, values))
    attempt = f"{run}/{start.trial}/{start.attempt}"
    env = _env(job, attempt, start.devices, places, cuda, outside)
    if cuda and not start.is_whole:
        env[SHARE] = f"{len(start.gpus)}/{start.parts}"
        env["PYTHONPATH"] = f"{places.library / HELD}:{env['PYTHONPATH']}"
        fraction = FRACTION * len(start.gpus) / start.parts
        env = {FRACTION_OF_JAX: f"{fraction:.3f}", GROWTH_OF_TENSORFLOW: "true", **env}
    return LaunchPlan(
        argv=_argv(job, start, run, places),
        env=env,
        cwd=str(places.work),
        log=places.launcher_log,
        observer=None if job.observed is None else [sys.executable, "-m", OBSERVER],
        about=_about(job, start, run, places, learns),
    )


def _about(job: Job, start: Start, run: str, places: Places, learns: bool) -> dict[str, Any]:
    of_job = ("metric", "mode", "smooth", "constraints")
    about = {
        "version": 1,
        "run": run,
        **{name: getattr(start, name) for name in ("trial", "attempt", "config", "seed")},
        **{name: getattr(job, name) for name in of_job},
        "checkpoint_every_s": job.checkpoint_every_s,
        "max_reports": job.max_reports,
        "gpus": _gpus(start),
        "allocations": list(dict.fromkeys(max(1, n // start.parts) for n in job.allocations)),
        "checkpoints": str(places.checkpoints),
        "learns": learns,
    }
    if job.observed is not None:
        about["observed"] = {
            "report": job.observed.report,
            "checkpoint": job.observed.checkpoint,
            "work": str(places.work),
            "logs": str(places.logs),
            "by_torchrun": job.launcher == "torchrun",
        }
    return about


def going_on(plan: LaunchPlan, job: Job, start: Start, name: str, at: str) -> LaunchPlan:
    """Plan the same attempt of an observed script from the checkpoint `name` at the path `at`."""
    if job.observed is None or not at:
        return plan
    observed = {**plan.about["observed"], "checkpoint_name": name, "checkpoint_at": at}
    names, values = [CHECKPOINT, GPUS, *job.names], {**values_of(start), CHECKPOINT: at}
    more = filled(job.observed.resume, names, values)
    return replace(plan, argv=[*plan.argv, *more], about={**plan.about, "observed": observed})


def values_of(start: Start) -> dict[str, Any]:
    """Return the values of names in braces."""
    return {GPUS: _gpus(start), **start.config}


def _gpus(start: Start) -> int:
    return start.node.gpus // start.parts if start.node else len(start.devices)


def why_not_nodes(job: Job, node: Optional[Node]) -> str:
    """Return why this job cannot run on this node; empty if it can."""
    if node is None:
        return ""
    if job.launcher != "torchrun":
        return (
            f'launcher = "{job.launcher}" starts one process on one instance; only '
            f'"torchrun" can span {node.count}'
        )
    if job.observed is not None and job.observed.checkpoint:
        return (
            "a script that does not import seerd saves on one instance, so it cannot span "
            f"{node.count}; p_max in [policy] bounds the GPUs of a trial"
        )
    host, _, port = node.endpoint.rpartition(":")
    if (
        not 0 <= node.rank < node.count
        or not (_is_word(host) and port.isdecimal() and 0 < int(port) < 1 << 16)
        or not _is_word(node.address)
    ):
        return (
            f"node {node.rank} of {node.count} at {node.address!r:.80} with endpoint "
            f"{node.endpoint!r:.80} cannot be"
        )
    return ""


def speaks(start: Start) -> bool:
    """Return whether the rank that reports, saves and restores is on this instance."""
    return start.node is None or start.node.rank == 0


def _is_word(text: str) -> bool:
    return bool(text) and not text.startswith("-") and text.split() == [text]


def _argv(job: Job, start: Start, run: str, places: Places) -> list[str]:
    python = job.python or sys.executable
    if job.launcher == "command":
        return [job.script, *job.args]
    if job.launcher == "python":
        return [python, job.script, *job.args]
    node = start.node
    if node is None:
        # With port 0 torchrun's stores take ports from the kernel and keep them, so attempts that
        # start together cannot clash.
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
        rendezvous += ["--local-addr", "127.0.0.1"]
    else:
        # torchrun's c10d rendezvous would rank nodes by their addresses as text, so rank 0 could be
        # anywhere.
        rendezvous = ["--rdzv-backend", "static", "--node-rank", str(node.rank)]
        rendezvous += ["--rdzv-endpoint", node.endpoint, "--rdzv-conf", f"timeout={JOIN_S}"]
        rendezvous += ["--local-addr", node.address]
    return [
        *(python, "-m", "torch.distributed.run"),
        *("--nnodes", str(node.count if node else 1)),
        *("--nproc-per-node", str(len(start.devices))),
        *("--max-restarts", "0"),
        *rendezvous,
        *("--rdzv-id", f"{run}-{start.trial}-{start.attempt}"),
        *("--redirects", "3", "--log-dir", str(places.logs)),
        job.script,
        *job.args,
    ]


def _env(
    job: Job, attempt: str, gpus: list[int], places: Places, cuda: bool, outside: dict[str, str]
) -> dict[str, str]:
    cuda_devices = devices(gpus, outside.get("CUDA_VISIBLE_DEVICES", "")) if cuda else []
    threads = str(job.threads)
    env = {
        **{
            name: value
            for name, value in outside.items()
            if name not in DROPPED and not name.startswith(DROPPED_PREFIXES)
        },
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        **job.env,
    }
    if job.launcher == "command":
        env["PATH"] = ":".join([*filter(None, [env.get("PATH", "")]), str(places.work)])
    path = [str(places.work / entry) for entry in env.get("PYTHONPATH", "").split(":") if entry]
    env.update(
        SEERD_DIR=str(places.attempt),
        SEERD_ATTEMPT=attempt,
        PWD=str(places.work),
        SEERD_AGENT_LOCK=str(places.lock),
        PYTHONPATH=":".join([str(places.library), *path]),
        CUDA_VISIBLE_DEVICES=",".join(cuda_devices),
    )
    return env


def devices(gpus: Iterable[int], visible: str) -> list[str]:
    """Return CUDA's names of our GPUs: GPU n is the n-th of `visible`, CUDA_VISIBLE_DEVICES."""
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return [names[gpu] if gpu < len(names) else str(gpu) for gpu in gpus]


def node_environment(node: Node) -> dict[str, str]:
    """Return the variables that make gloo and NCCL listen at the node's address, not at that of the
    machine's name, which is often its loopback; empty if no interface has it as its first address.
    """
    with contextlib.suppress(OSError):
        wanted = socket.inet_aton(node.address)
        for _, name in socket.if_nameindex():
            if _address_of(name) == wanted:
                return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}
    return {}


def _address_of(interface: str) -> bytes:
    """Return the first IPv4 address of an interface (Linux, netdevice(7)); empty if it has none."""
    request = struct.pack("256s", interface.encode()[: NAME_BYTES - 1])
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket,
        contextlib.suppress(OSError),
    ):
        return fcntl.ioctl(any_socket, SIOCGIFADDR, request)[ADDRESS]
    return b""
