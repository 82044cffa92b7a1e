"""From an order to start to the exact command, environment and files of an attempt. Pure, but for
`unpack_library`.

The one rule: everything that decides how a trial's processes come to be is in the `LaunchPlan`;
`attempts.py` only carries it out, and so does a process that has torch loaded already (`warm/`).
"""

from __future__ import annotations

import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional

from seerd.agent.arguments import CHECKPOINT, GPUS, filled, filled_environment, fixed_environment
from seerd.agent.protocol import Job, Node, Start

DROPPED_PREFIXES = ("SEERD_", "PET_", "TORCHELASTIC_")
"""How environment variables begin that must not reach an attempt from outside: our own, and those
from which torchrun reads options.
"""
DROPPED = {
    *("OLDPWD", "PYTHONHOME", "PYTHONSTARTUP", "PYTHON_EXEC", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"),
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
}

TRAINING_SIDE = (
    *("seerd/__init__.py", "seerd/lightning.py", "seerd/transformers.py", "seerd/training/"),
    *("seerd/agent/__init__.py", "seerd/agent/warm/"),
    *("seerd/agent/folders.py", "seerd/agent/manifest.py", "seerd/agent/patterns.py"),
    "seerd/agent/plainfile.py",
    "seerd/agent/protocol.py",
)
"""What runs in the processes of trials: how the names of these files in the agent's zip begin."""
LIBRARY = "lib"
"""The folder, within the agent's own, into which these files are unpacked."""
WARM = "seerd/agent/warm/__main__.py"
OBSERVER = "seerd.training.observer"
"""What observes a script that does not import seerd."""
TORCHRUN = (
    *("torch", "torch.distributed.run"),
    "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    *("encodings.idna", "seerd.training.trial"),
)
"""What torchrun and its ranks import."""
OF_ATTEMPT = ("SEERD_DIR", "SEERD_ATTEMPT", "PWD")
"""Environment variables that each attempt has with values of its own."""

JOIN_S = 120
"""Seconds that nodes wait for each other. They are started at the same time, but a cold disk
takes a minute to import torch.
"""


@dataclass(frozen=True)
class Places:
    """Where the things of one attempt are."""

    attempt: Path  # its own folder
    checkpoints: Path  # the folder of the trial's checkpoints
    library: Path  # folder that holds the training side
    lock: Path  # the agent's lock, which is held for as long as the agent lives

    @property
    def logs(self) -> Path:
        """Folder of the logs, one for each rank and the launcher's own."""
        return self.attempt / "logs"

    @property
    def launcher_log(self) -> Path:
        """File with what the launcher itself writes."""
        return self.logs / "launcher.log"

    @property
    def modules(self) -> Path:
        """File in which the attempt tells what it has imported."""
        return self.attempt / "modules.json"

    @property
    def marks(self) -> Path:
        """Folder of the progress marks, one file for each rank."""
        return self.attempt / "marks"

    @property
    def work(self) -> Path:
        """Folder in which the script runs (`workplace.py`)."""
        return self.attempt / "work"


@dataclass(frozen=True)
class LaunchPlan:
    """How to start one attempt."""

    argv: List[str]  # the command
    env: Dict[str, str]  # its whole environment
    cwd: str  # its working folder
    log: Path  # file for the launcher's own output
    about: Dict[str, Any]  # what trial.json is to say
    # the command that observes a script that does not import seerd; None: it does
    observer: Optional[List[str]] = None


@dataclass(frozen=True)
class WarmPlan:
    """What a process is to be like from which attempts are forked."""

    python: str  # the interpreter
    program: str  # what it runs
    env: Dict[str, str]  # its environment, without that of attempts
    source: str  # the folder that they run in
    script: str  # their script
    modules: List[str]  # what is to be imported in any case
    learns: bool  # whether it is to be learned what they import

    @property
    def path(self) -> Path:
        """The script's own path."""
        return Path(self.source, self.script)


def unpack_library(program: Path, library: Path) -> Path:
    """Unpack what trials import from the agent's zip into the folder `library`; return that
    folder.
    """
    with zipfile.ZipFile(program) as bundle:
        names = [name for name in bundle.namelist() if name.startswith(TRAINING_SIDE)]
        bundle.extractall(library, names)
    return library


def warm_plan(job: Job, places: Places, cuda: bool, outside: Dict[str, str]) -> Optional[WarmPlan]:
    """Plan from which process attempts of this job are to be forked; None: from none.

    `places` are those of any attempt; `cuda` and `outside` are as in `launch_plan`.
    """
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
    )


def launch_plan(
    job: Job,
    start: Start,
    run: str,
    places: Places,
    cuda: bool,
    outside: Dict[str, str],
    learns: bool = False,
) -> LaunchPlan:
    """Plan how to start this attempt.

    `cuda` says that GPUs are CUDA devices, not CPU slots; `outside` is the environment that the
    agent itself has; `learns` has the attempt tell what it has imported.
    """
    attempt = f"{run}/{start.trial}/{start.attempt}"
    names, values = [GPUS, *job.names], values_of(start)
    if job.names:
        job = replace(job, args=filled(job.args, names, values))
    job = replace(job, env=filled_environment(job.env, names, values))
    return LaunchPlan(
        argv=_argv(job, start, run, places),
        env=_env(job, attempt, start.gpus, places, cuda, outside),
        cwd=str(places.work),
        log=places.launcher_log,
        observer=None if job.observed is None else [sys.executable, "-m", OBSERVER],
        about={
            "version": 1,
            "run": run,
            "trial": start.trial,
            "attempt": start.attempt,
            "config": start.config,
            "gpus": _gpus(start),
            "allocations": job.allocations,
            "metric": job.metric,
            "mode": job.mode,
            "seed": start.seed,
            "checkpoints": str(places.checkpoints),
            "checkpoint_every_s": job.checkpoint_every_s,
            "max_reports": job.max_reports,
            "smooth": job.smooth,
            "constraints": job.constraints,
            "learns": learns,
            **_observed(job, places),
        },
    )


def going_on(plan: LaunchPlan, job: Job, start: Start, name: str, at: str) -> LaunchPlan:
    """Plan the same attempt of a script that does not import seerd, but from the checkpoint of this
    name, which lies at the path `at`.
    """
    if job.observed is None or not at:
        return plan
    observed = {**plan.about["observed"], "checkpoint_name": name, "checkpoint_at": at}
    names, values = [CHECKPOINT, GPUS, *job.names], {**values_of(start), CHECKPOINT: at}
    more = filled(job.observed.resume, names, values)
    return replace(plan, argv=[*plan.argv, *more], about={**plan.about, "observed": observed})


def on_devices(plan: LaunchPlan, names: List[str], cuda: bool) -> LaunchPlan:
    """Plan the same attempt on these devices, by CUDA's names."""
    env = {**plan.env, "CUDA_VISIBLE_DEVICES": ",".join(names) if cuda else ""}
    return replace(plan, env=env)


def values_of(start: Start) -> Dict[str, Any]:
    """Return what takes the place of names in braces."""
    return {GPUS: _gpus(start), **start.config}


def _gpus(start: Start) -> int:
    return start.node.gpus if start.node else len(start.gpus)


def _observed(job: Job, places: Places) -> Dict[str, Any]:
    if job.observed is None:
        return {}
    observed = {
        "report": job.observed.report,
        "checkpoint": job.observed.checkpoint,
        "work": str(places.work),
        "logs": str(places.logs),
        "by_torchrun": job.launcher == "torchrun",
    }
    return {"observed": observed}


def why_not_nodes(job: Job, node: Optional[Node]) -> str:
    """Say why this job cannot have this part of an attempt on several nodes; empty if it can."""
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
    if (
        not 0 <= node.rank < node.count
        or not _is_endpoint(node.endpoint)
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


def _is_endpoint(text: str) -> bool:
    address, _, port = text.rpartition(":")
    return _is_word(address) and port.isdecimal() and 0 < int(port) < 1 << 16


def _is_word(text: str) -> bool:
    return bool(text) and not text.startswith("-") and text.split() == [text]


def _argv(job: Job, start: Start, run: str, places: Places) -> List[str]:
    python = job.python or sys.executable
    if job.launcher == "command":
        return [job.script, *job.args]
    if job.launcher == "python":
        return [python, job.script, *job.args]
    return [
        *(python, "-m", "torch.distributed.run"),
        *("--nnodes", str(start.node.count if start.node else 1)),
        *("--nproc-per-node", str(len(start.gpus))),
        *("--max-restarts", "0"),
        *(_among_nodes(start.node) if start.node else _alone()),
        *("--rdzv-id", f"{run}-{start.trial}-{start.attempt}"),
        *("--redirects", "3", "--log-dir", str(places.logs)),
        job.script,
        *job.args,
    ]


def _alone() -> List[str]:
    """Return torchrun's options for an attempt on one instance.

    With port 0 both of torchrun's stores take ports from the kernel and keep them open, so attempts
    that start together cannot clash.
    """
    return ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]


def _among_nodes(node: Node) -> List[str]:
    """Return torchrun's options for one of several nodes: a store on node 0, and ranks that we
    give.

    torchrun's own c10d rendezvous ranks nodes by their addresses as text, 10.0.0.10 before
    10.0.0.9, so rank 0 could be anywhere. It is meant for nodes that come and go, which here makes
    a new attempt.
    """
    return [
        *("--rdzv-backend", "static", "--node-rank", str(node.rank)),
        *("--rdzv-endpoint", node.endpoint),
        *("--rdzv-conf", f"timeout={JOIN_S}", "--local-addr", node.address),
    ]


def _env(
    job: Job,
    attempt: str,
    gpus: List[int],
    places: Places,
    cuda: bool,
    outside: Dict[str, str],
) -> Dict[str, str]:
    threads = str(job.threads)
    env = {
        **{name: value for name, value in outside.items() if _is_neutral(name)},
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
        CUDA_VISIBLE_DEVICES=",".join(devices(gpus, outside.get("CUDA_VISIBLE_DEVICES", "")))
        if cuda
        else "",
    )
    return env


def _is_neutral(name: str) -> bool:
    return name not in DROPPED and not name.startswith(DROPPED_PREFIXES)


def devices(gpus: Iterable[int], visible: str) -> List[str]:
    """Return CUDA's names for these GPUs: our GPU n is the n-th that the agent itself may see.

    `visible` is the agent's own CUDA_VISIBLE_DEVICES.
    """
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return [names[gpu] if gpu < len(names) else str(gpu) for gpu in gpus]
