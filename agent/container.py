"""Containers in which a job's processes run, if `[train] container` names an image: the engine of
this machine, its image, and the commands that start something in it.

The one rule: inside, paths, process ids, network and user are those outside. So the agent, which
stays outside, finds, signals and measures these processes as any others, and the files that they
write are its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shlex
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterator, Optional, Sequence

from seerd.agent import clock, host
from seerd.agent.health import UnhealthyError, last_line, look
from seerd.agent.protocol import Job
from seerd.agent.threads import in_thread_or_here, spawned

PODMAN, DOCKER, APPTAINER = "podman", "docker", "apptainer"
ENGINES = {
    PODMAN: ("info", "--format", "{{.Host.Security.Rootless}}"),
    DOCKER: ("info", "--format", "{{json .SecurityOptions}}"),
    APPTAINER: ("--version",),
}
"""The engines, the preferred first, with what each is asked: whether it works, and for whom."""
GPUS = {
    PODMAN: ("--device", "nvidia.com/gpu=all"),
    DOCKER: ("--gpus", "all"),
    APPTAINER: ("--nv",),
}
"""All GPUs: CUDA_VISIBLE_DEVICES chooses among them, as it does without a container."""
AS_OUTSIDE = (
    *("--rm", "--pull=never", "--log-driver=none", "--entrypoint="),
    *("--pid=host", "--network=host", "--ipc=host", "--security-opt", "label=disable"),
)
OF_RUN, OF_PROCESS = "seerd.run", "seerd.process"
"""Labels of containers: their run, and the SEERD_ATTEMPT of what runs in them."""
KEPT = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""Variables of the agent that count inside too."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOT_KEPT = ("PWD", "OLDPWD", "SHLVL", "_")  # variables that say how a command was started
SECRETS = "secrets.pipe"  # in an attempt's folder
TAKE_SECRETS = 'n="\n"; IFS= read -r s <"$0" && eval "$s" && unset n s && exec "$@"'
"""Reads secrets from a pipe: an engine keeps variables in its files while a container lives.
"""
PIPE_BYTES = 60_000
ENGINE_S, PULL_S = 60.0, 3600.0
LOOK_S = 0.02
CLEAN_S = 10.0
"""Seconds that an engine has to remove a container whose processes have ended."""
SIGNALLED = 128  # engines add it to the number of the signal that has ended a process


def mark_of(run: str) -> str:
    """Return the SEERD_ATTEMPT of engines' own processes, which end by themselves."""
    return f"{run}//container"


class Outside:
    """Where processes run without a container."""

    def environment(self) -> dict[str, str]:
        """Return what a process finds in its environment, and the job may add to."""
        return dict(os.environ)

    def around(
        self, argv: Sequence[str], env: dict[str, str], _cwd: str
    ) -> tuple[Sequence[str], dict[str, str]]:
        """Return the command that runs this one here, and the environment for it."""
        return argv, env


@dataclass(frozen=True)
class Container(Outside):
    """How to run something in an image on this machine."""

    engine: str
    program: str  # the engine's path
    image: str  # id of the image, or path of Apptainer's file
    options: tuple[str, ...]  # of each start: user, folders, GPUs
    home: str  # HOME inside; with Apptainer it is the user's own
    run: str
    variables: dict[str, str] = field(hash=False)  # environment that the image sets

    def environment(self) -> dict[str, str]:
        """Do as `Outside.environment`."""
        own = {name: os.environ[name] for name in KEPT if name in os.environ}
        home = {} if self.engine == APPTAINER else {"HOME": self.home}
        return {"PATH": PATH, **self.variables, **home, **own}

    def around(
        self, argv: Sequence[str], env: dict[str, str], cwd: str, mark: str = ""
    ) -> tuple[list[str], dict[str, str]]:
        """Do as `Outside.around`. `mark`: the SEERD_ATTEMPT of the engine's own process; empty:
        that of the command.
        """
        outside = {**os.environ, host.MARKER: mark or env[host.MARKER]}
        if self.engine == APPTAINER:
            words = ["exec", "--cleanenv", "--pwd", cwd]
            taken = {f"APPTAINERENV_{name}": env[name] for name in env if name != "HOME"}
            client = {**taken, **outside}
        else:
            words = ["run", *AS_OUTSIDE, "--workdir", cwd]
            words += ["--label", f"{OF_PROCESS}={env[host.MARKER]}"]
            # The engine keeps what it goes by itself (PATH, HOME), and takes all else by name.
            taken = {name: env[name] for name in env if not name.startswith("LD_")}
            client = {**taken, **outside}
            for name, value in env.items():
                words += ["--env", name if client.get(name) == value else f"{name}={value}"]
        return [self.program, *words, *self.options, self.image, *argv], client

    async def start(
        self,
        argv: Sequence[str],
        env: dict[str, str],
        cwd: str,
        log: Path,
        secrets: dict[str, str],
        stopped: asyncio.Event,
    ) -> ContainerProcess:
        """Start an attempt's command inside; returns when it runs, has ended or is `stopped`.
        `secrets`: variables of `env` that no file may have.

        Raises `OSError`, and `ValueError` for secrets that do not fit into a pipe.
        """
        with contextlib.ExitStack() as pipe:
            if secrets:
                path = str(log.parent.parent / SECRETS)
                pipe.enter_context(_filled_pipe(path, secrets))
                argv = ["/bin/sh", "-c", TAKE_SECRETS, path, *argv]
            env = {name: value for name, value in env.items() if name not in secrets}
            call = self.around(argv, env, cwd, mark_of(self.run))
            client = await spawned(*call, self.home, log)
            pid, mark = None, env[host.MARKER]
            while pid is None and client.returncode is None and not stopped.is_set():
                await asyncio.sleep(LOOK_S)
                pid = await in_thread_or_here(_oldest, mark)
            return ContainerProcess(self, client, pid, mark, pipe.pop_all())

    async def remove(self, label: str, value: str) -> None:
        """Remove the containers with this label, and kill what is left in them."""
        if self.engine == APPTAINER:
            return
        with contextlib.suppress(OSError, UnhealthyError):
            ask = [self.program, "ps", "--all", "--quiet", "--filter", f"label={label}={value}"]
            _, ids, _ = await _asked(self.run, self.home, ask)
            if ids.split():
                at_once = ["--time", "0"] if self.engine == PODMAN else []
                argv = [self.program, "rm", "--force", *at_once, *ids.split()]
                await _asked(self.run, self.home, argv)


class ContainerProcess:
    """The first process of a container, to its agent; `client`, a process of its engine, waits for
    it, reports how it ended, and then removes the container. `pid`: None: it was not seen.
    """

    def __init__(
        self,
        container: Container,
        client: asyncio.subprocess.Process,
        pid: Optional[int],
        mark: str,
        pipe: contextlib.ExitStack,
    ) -> None:
        self._container = container
        self._client = client
        self._mark = mark
        self._pipe = pipe
        self.pid = client.pid if pid is None else pid
        self.supervisor = 0 if pid is None else host.parent(pid)  # adopts orphans inside

    @property
    def returncode(self) -> Optional[int]:
        """Exit status, negative: a signal; None: it runs."""
        code = self._client.returncode
        return code if code is None or code <= SIGNALLED else SIGNALLED - code

    async def wait(self) -> int:
        """Wait for its end, and return its exit status."""
        await self._client.wait()
        self._pipe.close()
        assert self.returncode is not None
        return self.returncode

    async def clear(self) -> None:
        """Remove the container, whose processes were killed."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._client.wait(), CLEAN_S)
            if self.pid != self._client.pid:
                return
        with contextlib.suppress(ProcessLookupError):
            self._client.kill()
        await self._container.remove(OF_PROCESS, self._mark)


class Containers:
    """The containers of jobs on this machine. `folders`: what each of them sees, the agent's own
    first; `note_slow`: called with what takes longer than `slow_s`, and when it began.
    """

    def __init__(
        self,
        run: str,
        folders: Sequence[Path],
        note_slow: Callable[[str, float], None],
        slow_s: float,
        *,
        cuda: bool,
    ) -> None:
        self._run = run
        self._folders = folders
        self._cuda = cuda
        self._note_slow, self._slow_s = note_slow, slow_s
        self._home = folders[0] / "home"
        self._turn = asyncio.Lock()
        self._made: dict[str, Container] = {}

    async def of(self, job: Job) -> Optional[Container]:
        """Return a job's container, whose image is fetched if it is not on this machine; None: it
        has none. Raises `ValueError`, `OSError`, `UnhealthyError`.
        """
        if not job.container:
            return None
        key = json.dumps([job.container, job.mounts, job.source])
        async with self._turn:
            if key not in self._made:
                self._made[key] = await self._of(job)
                await self._made[key].remove(OF_RUN, self._run)  # of an agent that has died
            return self._made[key]

    async def clear(self) -> None:
        """Remove all containers of the run."""
        if not self._made:
            return
        self._home.mkdir(exist_ok=True)  # engines are called there
        for container in {each.program: each for each in self._made.values()}.values():
            await container.remove(OF_RUN, self._run)
        await in_thread_or_here(shutil.rmtree, self._home, True)  # noqa: FBT003 (its errors)

    async def _of(self, job: Job) -> Container:
        if sys.platform != "linux":
            raise ValueError("train.container needs Linux: elsewhere engines run another machine")
        self._home.mkdir(exist_ok=True)
        if missing := [path for path in job.mounts if not os.path.exists(path)]:
            raise ValueError(f"there is no {missing[0]} on this machine, which train.mounts names")
        engine, program, answer = await self._engine()
        if engine == APPTAINER:
            image, variables = await self._file(program, job)
        else:
            image, variables = await self._image(engine, program, job.container)
        options = list(GPUS[engine]) if self._cuda else []
        if engine != APPTAINER:
            is_mapped = engine == DOCKER and "rootless" in answer  # its root is the user outside
            options += ["--user", "0:0" if is_mapped else f"{os.getuid()}:{os.getgid()}"]
            options += ["--userns=keep-id"] if engine == PODMAN and answer == "true" else []
            options += ["--ulimit", "core=1:1"] if engine == DOCKER and job.secrets else []
            options += ["--label", f"{OF_RUN}={self._run}"]
        for folder in self._seen(job):
            is_bind = f"type=bind,source={folder},target={folder}"
            options += ["--bind", folder] if engine == APPTAINER else ["--mount", is_bind]
        own = (tuple(options), str(self._home), self._run, variables)
        return Container(engine, program, image, *own)

    def _seen(self, job: Job) -> list[str]:
        """Return the folders that a job's containers see, without those that are in another."""
        folders = [*self._folders, Path(job.source), *map(Path, job.mounts)]
        paths = {path for folder in folders for path in (folder.absolute(), folder.resolve())}
        return sorted(str(path) for path in paths if not paths & set(path.parents))

    async def _engine(self) -> tuple[str, str, str]:
        """Return the first engine that works, its path, and its answer."""
        problems = []
        for engine, words in ENGINES.items():
            if (program := shutil.which(engine)) is not None:
                status, output, errors = await self._asked([program, *words])
                if status == 0:
                    return engine, program, output.strip()
                problems.append(f"{engine} does not work: {last_line(errors) or last_line(output)}")
        raise ValueError(
            "train.container needs Podman, Docker or Apptainer on this machine: "
            + ("; ".join(problems) or "none is on the PATH")
        )

    async def _image(self, engine: str, program: str, image: str) -> tuple[str, dict[str, str]]:
        """Return the id of an image of Podman's or Docker's, and what it sets."""
        inspect = [program, "image", "inspect", "--format", "{{.Id}} {{json .Config.Env}}"]
        status, output, errors = await self._asked([*inspect, image])
        if status:
            named = await self._pulled(engine, [program, "pull", "--quiet"], with_registry(image))
            status, output, errors = await self._asked([*inspect, named.split()[-1]])
        if status:
            raise ValueError(f"{engine} does not know the image {image}: {last_line(errors)}")
        name, _, entries = output.strip().partition(" ")
        return name, dict(entry.split("=", 1) for entry in json.loads(entries) or ())

    async def _file(self, program: str, job: Job) -> tuple[str, dict[str, str]]:
        """Return the path of an image of Apptainer's, and what it sets."""
        path = Path(job.source, job.container)
        if not path.exists():
            name = hashlib.sha256(job.container.encode()).hexdigest()[:16]
            path = self._folders[0] / f"{name}.sif"
        if not path.exists():
            image, part = job.container, path.with_suffix(".part.sif")
            address = image if "://" in image else f"docker://{image}"
            await self._pulled(APPTAINER, [program, "pull", "--force", str(part)], address)
            os.replace(part, path)
        argv = [program, "exec", "--cleanenv", str(path), "env", "-0"]
        status, output, errors = await self._asked(argv)
        if status:
            raise ValueError(f"apptainer cannot use {job.container}: {last_line(errors)}")
        entries = (entry.partition("=") for entry in output.split("\0") if entry)
        return str(path), {name: value for name, _, value in entries if name not in NOT_KEPT}

    async def _pulled(self, engine: str, argv: Sequence[str], image: str) -> str:
        why, loop = f"{engine} fetches the image {image}", asyncio.get_running_loop()
        slow = loop.call_later(self._slow_s, self._note_slow, why, clock.now())
        try:
            status, output, errors = await self._asked([*argv, image], PULL_S)
        finally:
            slow.cancel()
        if status:
            why = last_line(errors) or last_line(output)
            raise ValueError(f"{engine} cannot fetch the image {image} of train.container: {why}")
        return output or image

    async def _asked(self, argv: Sequence[str], for_s: float = ENGINE_S) -> tuple[int, str, str]:
        return await _asked(self._run, str(self._home), argv, for_s)


async def _asked(
    run: str, folder: str, argv: Sequence[str], for_s: float = ENGINE_S
) -> tuple[int, str, str]:
    env = {**os.environ, host.MARKER: mark_of(run)}
    return await look(argv[0], argv, env, folder, for_s)


def with_registry(image: str) -> str:
    """Return an image's name with its registry, docker.io unless it has one."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return image
    return f"docker.io/{image}" if slash else f"docker.io/library/{image}"


def _oldest(mark: str) -> Optional[int]:
    """Return the oldest process of this SEERD_ATTEMPT; None: there is none yet."""
    ages = {pid: process.born for pid in host.members(mark, 0) if (process := host.seen(pid))}
    return min(ages, key=lambda pid: (ages[pid], pid), default=None)


@contextlib.contextmanager
def _filled_pipe(path: str, secrets: dict[str, str]) -> Iterator[None]:
    """Make a named pipe with an assignment for each secret in it, until the end of the block.
    Raises `OSError`, `ValueError`.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    texts = (f"export {name}={shlex.quote(value)}" for name, value in secrets.items())
    line = "; ".join(texts).replace("\n", "'\"$n\"'").encode() + b"\n"
    if len(line) > PIPE_BYTES:
        raise ValueError(f"train.secrets have more than {PIPE_BYTES} bytes, which no pipe holds")
    os.mkfifo(path, 0o600)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(pipe, line)
        yield
    finally:
        os.close(pipe)
        with contextlib.suppress(OSError):  # of a trial that has removed its own folder
            os.unlink(path)
