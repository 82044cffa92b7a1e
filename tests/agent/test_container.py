"""Which engine of containers is taken, and how it is called: by programs that stand in for engines,
and note how they were called.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seerd.agent.container import (
    TAKE_SECRETS,
    Container,
    Containers,
    _filled_pipe,
    with_registry,
)
from seerd.agent.protocol import Job

BROKEN = 'echo "cannot connect to it" >&2; exit 125'
ENGINE = """
case "$1 $2" in
info*) echo '["name=seccomp"]' ;;
"image inspect") [ -e "$0.pulled" ] && echo 'sha256:1 ["PATH=/opt/bin","LD_LIBRARY_PATH=/opt/lib"]' ;;
run*) env >"$0.environment" ;;
pull*) : >"$0.pulled"; for last; do :; done; echo "$last" ;;
esac
"""
APPTAINER = """
case "$1" in
pull) : >"$3" ;;
exec) printf 'PATH=/opt/bin\\0PWD=/\\0' ;;
esac
"""
JOB = Job(
    source="/nowhere",
    script="train.py",
    args=[],
    launcher="python",
    python="python3",
    env={},
    setup=[],
    store="",
    metric="m",
    mode="max",
    allocations=[1],
    threads=1,
    checkpoint_every_s=1.0,
    container="pytorch/pytorch",
)


class Machine:
    """A machine with these engines."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch, **engines: str) -> None:
        self.bin, self.folder = top / "bin", top / "agent"
        for path in (self.bin, self.folder, self.folder / "source"):
            path.mkdir(exist_ok=True)
        for name, text in engines.items():
            program = self.bin / name
            program.write_text(f'#!/bin/sh\necho "$@" >>"$0.calls"\n{text}')
            program.chmod(0o755)
        monkeypatch.setenv("PATH", str(self.bin))
        self.job = replace(JOB, source=str(self.folder / "source"))

    def container(self, *, cuda: bool = False, **other: Any) -> Container:
        """The container of a job here."""
        made = Containers("run", [self.folder], lambda *_: None, 60.0, cuda=cuda)
        container = asyncio.run(made.of(replace(self.job, **other)))
        assert container is not None
        return container

    def calls(self, name: str) -> list[str]:
        """How an engine was called."""
        return (self.bin / f"{name}.calls").read_text().splitlines()


def test_the_first_engine_that_works_is_taken_and_fetches_the_image_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, monkeypatch, podman=BROKEN, docker=ENGINE, apptainer="")
    container = machine.container()
    assert (container.engine, container.image) == ("docker", "sha256:1")
    machine.container()
    pulls = [call for call in machine.calls("docker") if call.startswith("pull")]
    assert pulls == ["pull --quiet docker.io/pytorch/pytorch"]


def test_without_an_engine_each_ones_own_words_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="docker does not work: cannot connect to it"):
        Machine(tmp_path, monkeypatch, docker=BROKEN).container()
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match="none is on the PATH"):
        Machine(tmp_path / "other", monkeypatch).container()


def test_docker_is_told_names_and_the_values_of_what_it_goes_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, monkeypatch, docker=ENGINE)
    monkeypatch.setenv("DOCKER_HOST", "unix:///its/own")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    data = tmp_path / "data"
    data.mkdir()
    container = machine.container(cuda=True, mounts=[str(data)], secrets=["TOKEN"])
    assert container.environment() == {
        "PATH": "/opt/bin",
        "LD_LIBRARY_PATH": "/opt/lib",
        "HOME": str(machine.folder / "home"),
        "CUDA_VISIBLE_DEVICES": "3",
    }
    env = {
        "PATH": "/opt/bin",
        "A": "of the job",
        "LD_LIBRARY_PATH": "/l",
        "SEERD_ATTEMPT": "run/t/1",
    }
    argv, client = container.around(["python3", "x y"], env, "/work", "run//container")
    assert client["PATH"] == os.environ["PATH"]
    assert (client["A"], client["DOCKER_HOST"]) == ("of the job", "unix:///its/own")
    assert client["SEERD_ATTEMPT"] == "run//container"
    assert client.get("LD_LIBRARY_PATH") == os.environ.get("LD_LIBRARY_PATH")
    assert argv[-3:] == ["sha256:1", "python3", "x y"]
    text = " ".join(argv)
    for words in (
        f"--mount type=bind,source={machine.folder},target={machine.folder}",
        f"--mount type=bind,source={data},target={data}",
        f"--user {os.getuid()}:{os.getgid()}",
        "--env A --env LD_LIBRARY_PATH=/l --env SEERD_ATTEMPT=run/t/1",
        "--env PATH=/opt/bin",
        "--gpus all",
        "--ulimit core=1:1",
        "--pid=host --network=host --ipc=host",
        "--workdir /work",
        "--label seerd.process=run/t/1",
    ):
        assert words in text
    assert "of the job" not in text
    assert text.count("type=bind") == 2


def test_an_engine_is_told_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "env").symlink_to("/usr/bin/env")
    machine = Machine(tmp_path, monkeypatch, docker=ENGINE)
    container, logs = machine.container(), tmp_path / "logs"
    logs.mkdir()
    env = {"PATH": "/opt/bin", "TOKEN": "of-nobody-else", "SEERD_ATTEMPT": "run/t/1"}

    async def ended() -> int:
        log, secrets = logs / "launcher.log", {"TOKEN": "of-nobody-else"}
        own = (str(tmp_path), log, secrets, asyncio.Event())
        process = await container.start(["python3"], env, *own)
        return await process.wait()

    assert asyncio.run(ended()) == 0
    told = (machine.bin / "docker.environment").read_text()
    assert "SEERD_ATTEMPT=run//container" in told
    assert "of-nobody-else" not in told + "".join(machine.calls("docker"))


def test_apptainer_takes_a_file_of_the_source_or_makes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, monkeypatch, apptainer=APPTAINER)
    own = Path(machine.job.source, "env.sif")
    own.touch()
    container = machine.container(container="env.sif", cuda=True)
    assert container.image == str(own)
    argv, client = container.around(["python3"], {"A": "1", "SEERD_ATTEMPT": "a"}, "/work")
    assert argv[1:5] == ["exec", "--cleanenv", "--pwd", "/work"]
    assert argv[-2:] == [str(own), "python3"]
    assert "--nv" in argv
    assert client["APPTAINERENV_A"] == "1"
    made = machine.container(container="pytorch/pytorch")
    assert Path(made.image).exists()
    assert any("docker://pytorch/pytorch" in call for call in machine.calls("apptainer"))


@pytest.mark.parametrize(
    ("image", "whole"),
    [
        ("python:3.12", "docker.io/library/python:3.12"),
        ("pytorch/pytorch", "docker.io/pytorch/pytorch"),
        ("nvcr.io/nvidia/pytorch:24.01-py3", "nvcr.io/nvidia/pytorch:24.01-py3"),
        ("localhost/mine", "localhost/mine"),
        ("localhost:5000/mine", "localhost:5000/mine"),
    ],
)
def test_an_image_without_a_registry_is_one_of_docker_io(image: str, whole: str) -> None:
    assert with_registry(image) == whole


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200))
def test_secrets_come_through_a_pipe_as_they_are(value: str) -> None:
    with tempfile.TemporaryDirectory() as top:
        path = f"{top}/pipe"
        with _filled_pipe(path, {"FIRST": "1", "TOKEN": value}):
            prints = ["/bin/sh", "-c", 'printf "%s" "$FIRST$TOKEN"']
            done = subprocess.run(
                ["/bin/sh", "-c", TAKE_SECRETS, path, *prints], capture_output=True, check=True
            )
        assert done.stdout == f"1{value}".encode()
        assert not Path(path).exists()


def test_secrets_that_no_pipe_holds_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="60000 bytes"),
        _filled_pipe(str(tmp_path / "pipe"), {"TOKEN": "x" * 60_000}),
    ):
        pass
