"""From an order to start to the exact command, environment and files of an attempt. Pure.

The one rule: everything that decides how a trial's processes come to be is in the `LaunchPlan`; `attempts.py` only carries it out. A start
from a process that has torch loaded already would be another way to carry out the same plan.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List

from agent.protocol import Job, Start

DROPPED_PREFIXES = ("SEERD_", "PET_", "TORCHELASTIC_")
"""What would reach into an attempt from outside: our own names, and those that torchrun reads options from."""
DROPPED = {
    *("PYTHONHOME", "PYTHONSTARTUP", "PYTHON_EXEC", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"),
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
}


@dataclass(frozen=True)
class Places:
    """Where things of one trial's attempt are. `library` holds the training side; `lock` is held for as long as the agent lives."""

    attempt: Path
    checkpoints: Path
    library: Path
    lock: Path

    @property
    def logs(self) -> Path:
        """One file per rank, and the launcher's own."""
        return self.attempt / "logs"


@dataclass(frozen=True)
class LaunchPlan:
    """`about` becomes trial.json; the launcher's own output goes to `log`."""

    argv: List[str]
    env: Dict[str, str]
    cwd: str
    log: Path
    about: Dict[str, Any]


def launch_plan(job: Job, start: Start, run: str, places: Places, cuda: bool, outside: Dict[str, str]) -> LaunchPlan:
    """How to start this attempt. `outside` is the environment that the agent itself has."""
    return LaunchPlan(
        argv=_argv(job, start, places),
        env=_env(job, start, run, places, cuda, outside),
        cwd=job.source,
        log=places.logs / "launcher.log",
        about={
            "version": 1,
            "run": run,
            "trial": start.trial,
            "attempt": start.attempt,
            "config": start.config,
            "gpus": len(start.gpus),
            "allocations": job.allocations,
            "metric": job.metric,
            "mode": job.mode,
            "seed": start.seed,
            "checkpoints": str(places.checkpoints),
            "checkpoint_every_s": job.checkpoint_every_s,
        },
    )


def _argv(job: Job, start: Start, places: Places) -> List[str]:
    python = job.python or sys.executable
    if job.launcher == "command":
        return [job.script, *job.args]
    if job.launcher == "python":
        return [python, job.script, *job.args]
    return [
        *(python, "-m", "torch.distributed.run"),
        *("--nnodes", "1", "--nproc-per-node", str(len(start.gpus)), "--max-restarts", "0"),
        # Port 0: both of torchrun's stores take ports from the kernel and keep them open, so attempts that start together cannot clash.
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", f"{start.trial}-{start.attempt}"),
        *("--local-addr", "127.0.0.1", "--redirects", "3", "--log-dir", str(places.logs)),
        job.script,
        *job.args,
    ]


def _env(job: Job, start: Start, run: str, places: Places, cuda: bool, outside: Dict[str, str]) -> Dict[str, str]:
    env = {name: value for name, value in outside.items() if _is_neutral(name)}
    env.update(job.env)
    if job.launcher == "command":
        env["PATH"] = ":".join([*filter(None, [env.get("PATH", "")]), job.source])
    path = [str(places.library), *filter(None, [env.get("PYTHONPATH", "")])]
    env.update(
        SEERD_DIR=str(places.attempt),
        SEERD_ATTEMPT=f"{run}/{start.trial}/{start.attempt}",
        SEERD_AGENT_LOCK=str(places.lock),
        PYTHONPATH=":".join(path),
        PYTHONUNBUFFERED="1",
        CUDA_VISIBLE_DEVICES=_devices(start.gpus, outside.get("CUDA_VISIBLE_DEVICES", "")) if cuda else "",
        OMP_NUM_THREADS=str(job.threads),
        MKL_NUM_THREADS=str(job.threads),
    )
    return env


def _is_neutral(name: str) -> bool:
    return name not in DROPPED and not name.startswith(DROPPED_PREFIXES)


def _devices(gpus: List[int], visible: str) -> str:
    """Our GPU n is the n-th of those that the agent itself may see."""
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return ",".join(names[gpu] if gpu < len(names) else str(gpu) for gpu in gpus)
