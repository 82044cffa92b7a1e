"""What the machine refuses to a command ends it with a sentence, and with what to do."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from seerd.commands.common import REFUSALS, orderly

SPEC = """
metric = { name = "accuracy", mode = "max" }
[train]
script = "train.py"
[space]
lr = { low = 0.0, high = 1.0 }
[policy]
t_min = "2s"
[limits]
deadline = "20s"
budget = "1gpu-min"
[cluster]
provider = "local"
gpus = 1
"""
TRAIN = """
import seerd
trial = seerd.trial()
while trial.running():
    trial.report(accuracy=0.5)
"""


def ended_by(work: Callable[[], None]) -> int | str | None:
    with pytest.raises(SystemExit) as end, orderly():
        work()
    return end.value.code


def refused(error: Exception) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize("number", REFUSALS, ids=errno.errorcode.__getitem__)
def test_each_refusal_names_the_file_and_what_to_do(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended_by(refused(OSError(number, "It is refused", "/place/file"))) == 1
    told = capsys.readouterr().err
    assert told.startswith("seerd: it is refused: /place/file. ")
    assert REFUSALS[number] in told
    assert "seerd resume RUN" in told


def test_a_thread_that_cannot_be_started_is_a_process_too_many(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ended_by(refused(RuntimeError("can't start new thread"))) == 1
    assert REFUSALS[errno.EAGAIN] in capsys.readouterr().err


def test_an_error_of_our_own_stays_one() -> None:
    for error in (OSError(errno.EBADF, "Bad file descriptor"), RuntimeError("no such thing")):
        with pytest.raises(type(error)), orderly():
            raise error


def test_a_run_where_files_may_not_grow_says_so_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "train.py").write_text(TRAIN)
    program = [str(Path(sys.executable).parent / "seerd"), "run", str(tmp_path / "spec.toml")]
    done = subprocess.run(
        [*program, "--home", str(tmp_path / "h")],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16)),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "ulimit -f unlimited" in done.stderr
    assert "Traceback" not in done.stderr
