"""What `make demo` and `make setup` install, and with what: the real Makefile, with programs beside
it that only write down how they were called.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTES = '#!/bin/sh\necho "$(basename $0) $*" >>"$CALLS"\n'
VENV = 'case "$*" in *venv*) mkdir -p .venv/bin; cp "$PROGRAMS"/.made/* .venv/bin;; esac\n'
WITH_CUDA = "for word; do case $word in --torch-backend*) exit 2;; esac; done\n"
DEMO = "--constraint constraints.txt --editable .[demo]"
DEV = "--constraint constraints.txt --editable .[dev]"
PIP = "python -m pip --disable-pip-version-check install"
TUNES = "seerd run examples/digits/spec.toml"


class Clone:
    """A clone on a machine with these programs (name -> what they do), without any environment."""

    def __init__(self, folder: Path, programs: dict[str, str]) -> None:
        self.folder = folder / "clone"
        (self.folder / "examples" / "digits").mkdir(parents=True)
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.folder)
        self._programs, self._calls = folder / "bin", folder / "calls"
        made = dict.fromkeys(("pip", "python", "seerd"), "")
        for at, texts in ((self._programs, programs), (self._programs / ".made", made)):
            at.mkdir()
            for name, text in texts.items():
                (at / name).write_text(NOTES + text)
                (at / name).chmod(0o755)

    def make(self, target: str) -> tuple[list[str], str]:
        """The calls that it makes, and what it prints."""
        self._calls.write_text("")
        done = subprocess.run(
            ["make", target],
            cwd=self.folder,
            env={
                "PATH": f"{self._programs}:/usr/bin:/bin",
                "CALLS": str(self._calls),
                "PROGRAMS": str(self._programs),
                "HOME": os.environ.get("HOME", "/"),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return self._calls.read_text().splitlines(), done.stdout + done.stderr


def installs(calls: list[str]) -> list[str]:
    return [call for call in calls if " install " in call]


def test_the_demo_is_installed_by_uv_with_its_choice_of_torch_and_nothing_of_the_tests(
    tmp_path: Path,
) -> None:
    clone = Clone(tmp_path, {"uv": VENV, "python3": ""})
    calls, _ = clone.make("demo")
    uv = f"uv pip install --python .venv/bin/python --torch-backend=auto {DEMO}"
    assert installs(calls) == [uv]
    assert any(call.startswith(TUNES) for call in calls)
    calls, _ = clone.make("demo")
    assert installs(calls) == []
    assert any(call.startswith(TUNES) for call in calls)


def test_where_torch_has_no_build_of_its_own_to_offer_the_general_one_is_taken(
    tmp_path: Path,
) -> None:
    calls, printed = Clone(tmp_path, {"uv": WITH_CUDA + VENV, "python3": ""}).make("demo")
    assert installs(calls)[1:] == [f"uv pip install --python .venv/bin/python {DEMO}"]
    assert "the build of torch that every machine gets: 5 GB" in printed


def test_pip_has_the_last_word(tmp_path: Path) -> None:
    uv = 'case "$1" in pip) exit 2;; esac\n' + VENV
    calls, printed = Clone(tmp_path, {"uv": uv, "python3": ""}).make("demo")
    assert installs(calls)[2:] == [f"{PIP} {DEMO}"]
    assert "trying pip" in printed
    assert any(call.startswith(TUNES) for call in calls)


def test_without_uv_pip_is_asked_for_it_first(tmp_path: Path) -> None:
    calls, _ = Clone(tmp_path, {"python3": VENV}).make("demo")
    assert installs(calls) == [
        f"{PIP} --constraint constraints.txt uv",
        f"{PIP} {DEMO}",  # that pip brings none
    ]


@pytest.mark.parametrize("target", ["demo", "setup"])
def test_without_venv_it_is_said_what_to_type(tmp_path: Path, target: str) -> None:
    python = 'case "$*" in *venv*) exit 1;; esac\n'
    calls, printed = Clone(tmp_path, {"python3": python}).make(target)
    assert "sudo apt-get install python3-venv" in printed
    assert installs(calls) == []


def test_the_tests_add_what_they_need_to_the_demo_and_the_demo_then_adds_nothing(
    tmp_path: Path,
) -> None:
    clone = Clone(tmp_path, {"uv": VENV, "python3": ""})
    clone.make("demo")
    calls, _ = clone.make("setup")
    assert calls == [f"uv pip install --python .venv/bin/python {DEV}"]
    calls, _ = clone.make("demo")
    assert installs(calls) == []


def test_the_tests_need_no_demo_before(tmp_path: Path) -> None:
    calls, _ = Clone(tmp_path, {"python3": VENV}).make("setup")
    assert installs(calls) == [
        f"{PIP} --constraint constraints.txt uv",
        f"{PIP} {DEV}",  # that pip brings none
    ]
