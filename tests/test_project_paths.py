"""What of a spec, or of the environment, leads to the live project instead of the copy of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from seerd.spec.project_paths import arguments, doubts, python_path
from seerd.spec.spec import Spec, load_spec

TEXT = """
metric = {{ name = "accuracy", mode = "max" }}
[train]
script = "{script}"
{train}
[space]
lr = [0.1, 0.2]
[limits]
deadline = "1m"
budget = "1gpu-min"
{rest}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("train.py", "lib/tool.py", "src/train.py", "src/conf/a.yaml", "data/x.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("import tool\n")
    (tmp_path / ".git").mkdir()
    return tmp_path


def spec_of(project: Path, train: str = "", rest: str = "", script: str = "train.py") -> Spec:
    if "launcher" not in train:
        train = f'launcher = "python"\n{train}'
    (project / "spec.toml").write_text(TEXT.format(train=train, rest=rest, script=script))
    return load_spec(project / "spec.toml")


def test_what_pythonpath_has_of_the_source_is_in_the_copy(project: Path) -> None:
    spec = spec_of(project)
    around = {"PYTHONPATH": f"{project}/lib:/usr/share/mine:{project}"}
    assert python_path(spec, around) == "lib:/usr/share/mine:."
    assert python_path(spec, {"PYTHONPATH": "/usr/share/mine"}) is None
    assert python_path(spec, {}) is None


def test_pythonpath_of_a_shell_is_relative_to_where_it_is(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project / "lib")
    assert python_path(spec_of(project), {"PYTHONPATH": "."}) == "lib"


def test_pythonpath_of_a_spec_is_relative_to_it_and_is_the_only_one(project: Path) -> None:
    spec = spec_of(project, 'env = { PYTHONPATH = "lib:/opt/x:../outside" }')
    outside = project.parent / "outside"
    assert python_path(spec, {"PYTHONPATH": f"{project}/data"}) == f"lib:/opt/x:{outside}"


def test_machines_elsewhere_have_nothing_of_this_environment(project: Path) -> None:
    hosts = '[cluster]\nprovider = "hosts"\nhosts = [{ address = "h", user = "u", gpus = 1 }]'
    assert python_path(spec_of(project, rest=hosts), {"PYTHONPATH": f"{project}/lib"}) is None


@pytest.mark.parametrize("finder", [True, False])
def test_an_editable_installation_of_the_source_means_the_copy(
    project: Path, tmp_path: Path, finder: bool
) -> None:
    packages = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "venv" / "bin").mkdir()
    python = tmp_path / "venv" / "bin" / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o700)
    if finder:
        text = f"MAPPING: dict[str, str] = {{'tool': '{project}/lib/tool'}}\n"
        (packages / "__editable___tool_1_finder.py").write_text(text)
        (project / "lib" / "tool").mkdir()
    else:
        (packages / "_tool.pth").write_text(f"{project}/lib\nimport sys\n")
    inside = spec_of(project, f'python = "{python}"')
    assert python_path(inside, {}) == "lib"
    assert list(doubts(inside, {})) == []
    above = spec_of(project, f'source = "src"\npython = "{python}"', script="src/train.py")
    if finder:
        (project / "lib" / "tool" / "__init__.py").touch()
    assert python_path(above, {}) is None
    (doubt,) = doubts(above, {})
    assert doubt.startswith(f"trials import tool from {project}/lib, which is not in train.source")


def test_arguments_are_relative_to_the_spec(project: Path) -> None:
    train = (
        'source = "src"\nargs = ["src/conf/a.yaml", "--c=src/conf/a.yaml", "conf/a.yaml", "src"]'
    )
    spec = spec_of(project, train, script="src/train.py")
    assert arguments(spec) == ["conf/a.yaml", "--c=conf/a.yaml", "conf/a.yaml", "src"]
    (project / "src" / "src" / "conf").mkdir(parents=True)
    (project / "src" / "src" / "conf" / "a.yaml").touch()
    assert arguments(spec)[0] == "src/conf/a.yaml"


def test_an_argument_that_means_the_live_project_is_a_doubt(project: Path) -> None:
    train = f'args = ["--data={project}/data/x.csv", "data/x.csv", "/usr/share", "--n=3"]'
    (doubt,) = doubts(spec_of(project, train), {})
    assert f"{project}/data/x.csv, which is in the live project" in doubt
    assert "data/x.csv is the same in the copy" in doubt
    train = f'launcher = "command"\nenv = {{ DATA = "{project}/data", PYTHONPATH = "{project}" }}'
    (project / "train.py").chmod(0o700)
    found = doubts(spec_of(project, train, script=f"{project}/train.py"), {})
    assert [doubt.partition(" has ")[0] for doubt in found] == ["train.script", "train.env"]


def test_what_is_not_in_the_copy_is_meant_where_it_is(project: Path) -> None:
    (project / ".seerdignore").write_text("data/\n")
    assert not list(doubts(spec_of(project, f'args = ["{project}/data/x.csv"]'), {}))
    assert not list(doubts(spec_of(project, f'args = ["{project}/.venv/x"]'), {}))


def test_a_file_that_the_script_is_to_make_is_no_doubt(project: Path) -> None:
    train = f'args = ["--out={project}/out"]\nenv = {{ SEEN = "{project}/seen.txt" }}'
    assert not list(doubts(spec_of(project, train), {}))


def test_a_path_into_the_live_project_in_a_script_is_a_doubt(project: Path) -> None:
    (project / "beside.py").write_text(f'OUT = "{project}/out/best.pt"\nHERE = "{project}"\n')
    (project / ".seerdignore").write_text("/data/\n")
    (project / "train.py").write_text(
        f'DATA = "{project}/data/x.csv"\nOTHER = "{project}2/x"\n# see {project}/lib\n'
    )
    found = doubts(spec_of(project), {})
    assert [doubt.partition(",")[0] for doubt in found] == [
        f"beside.py has {project}/out/best.pt",
        f"beside.py has {project}",
    ]


def package(project: Path, text: str, name: str = "net/sub/train.py") -> None:
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).write_text(text)
    for folder in (project / name).relative_to(project).parents:
        if folder != Path():
            (project / folder / "__init__.py").touch()


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("from net.data import X\n", "."),
        ("import argparse\nimport net.sub\n", "."),
        ("import argparse\n", None),
        ("from .data import X\n", None),
    ],
)
def test_a_script_finds_the_package_that_it_is_in(
    project: Path, text: str, path: str | None
) -> None:
    package(project, text)
    assert python_path(spec_of(project, script="net/sub/train.py"), {}) == path


def test_the_folder_above_a_package_comes_after_the_others(project: Path) -> None:
    package(project, "from net import data\n", "src/net/train.py")
    (project / "src" / "__init__.py").unlink()
    spec = spec_of(project, 'env = { PYTHONPATH = "lib" }', script="src/net/train.py")
    assert python_path(spec, {}) == "lib:src"


def test_a_source_that_is_a_package_itself_is_as_it_is(project: Path) -> None:
    (project / "__init__.py").touch()
    (project / "train.py").write_text(f"import {project.name}\n")
    assert python_path(spec_of(project), {}) is None
