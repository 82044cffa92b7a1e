"""Links of a source, from the commands: what leads out is refused before anything is started."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from seerd import cli
from seerd.commands.common import orderly

SCRIPT = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("--lr", type=float, default=0.1)
p.add_argument("--resume")
args = p.parse_args()
print(f"accuracy: {args.lr}")
"""
Seerd = Callable[..., tuple[Any, str]]
HOSTS = 'cluster = {provider = "hosts", hosts = [{address = "10.0.0.5", gpus = 1}]}'


@pytest.fixture
def seerd(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Seerd]:
    """Runs a command, as if this process had begun for it; returns its exit status, and what it
    printed.
    """

    def run(*args: object) -> tuple[Any, str]:
        monkeypatch.setattr("seerd.commands.run.STARTED", time.time())
        with pytest.raises(SystemExit) as ended, orderly():
            cli.app([*map(str, args)])
        return ended.value.code, " ".join("".join(capsys.readouterr()).split())

    interrupted = signal.getsignal(signal.SIGINT)
    yield run
    signal.signal(signal.SIGINT, interrupted)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEERD_HOME", str(tmp_path / "home"))
    project, data = tmp_path / "project", tmp_path / "data"
    project.mkdir()
    data.mkdir()
    (project / "train.py").write_text(SCRIPT)
    (project / "data").symlink_to(data)
    return project


def test_init_lists_the_links_that_lead_out(seerd: Seerd, project: Path) -> None:
    assert seerd("init", project / "train.py")[0] == 0
    spec = project / "spec.toml"
    assert 'follow   = ["data"]' in spec.read_text()
    assert seerd("plan", spec)[0] == 0
    (project / "keys").symlink_to("/etc")
    for command in ("plan", "run"):
        code, said = seerd(command, spec)
        assert code == 2
        assert f"a link leads out of the source {project}: keys -> /etc. Nothing was" in said
    code, said = seerd("doctor", spec)
    assert code != 0
    assert "keys -> /etc" in said


def test_secrets_are_named_where_the_source_leaves_this_machine(
    seerd: Seerd, project: Path
) -> None:
    seerd("init", project / "train.py")
    (project / ".env").touch()
    spec = project / "spec.toml"
    assert ".env" not in seerd("plan", spec)[1]
    spec.write_text(f"{HOSTS}\n{spec.read_text()}")
    code, said = seerd("plan", spec)
    assert code == 0
    assert ".env of the source may hold secrets, and every machine" in said
    assert f"printf '%s\\n' /.env >> {project}/.seerdignore" in said


@pytest.mark.parametrize(
    "key", ["train.args=['{}', '{{lr}}']", "train.env={{PYTHONPATH='{}'}}", "--home"]
)
def test_a_loop_of_links_is_one_sentence(seerd: Seerd, project: Path, key: str) -> None:
    seerd("init", project / "train.py")
    loop = project.parent / "loop"
    loop.symlink_to(loop)
    more = ("--home", loop / "x") if key == "--home" else ("--set", key.format(loop))
    code, said = seerd("run", project / "spec.toml", *more)
    assert code == 2
    assert "seerd: a link leads in a circle: " in said
    assert str(loop) in said
