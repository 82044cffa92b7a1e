"""The example notebooks: each is run as a person runs it, with limits for a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.test_report import kept

NOTEBOOKS = Path(__file__).parent.parent / "examples" / "notebooks"
ASKED = 'deadline="2m", budget="8gpu-min"'
SMALL = (
    'deadline="2m", budget="2gpu-min", set={"policy.t_min": "4s", "cluster.gpus": 1, '
    '"train.launcher": "python", "train.preload": False, '
    '"train.env": {"OMP_NUM_THREADS": "1"}, "metric.target": 0.5, '
    '"policy.start": [{"lr": 0.003, "momentum": 0.9, "width": 64, '
    '"dropout": 0.0, "optimizer": "adam"}]}'
)
"""It ends when its first model is any good, which takes one trial."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, also for what Jupyter keeps."""
    monkeypatch.setenv("SEERD_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "no_compiler"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # more would wait for each other by computing
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / ".jupyter"))
    return tmp_path


def run(name: str, **changed: str) -> list[dict[str, Any]]:
    """Run a notebook; return what its cells have shown, by the kind of what is shown."""
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    for was in changed:
        assert sum(was in cell.source for cell in notebook.cells) == 1
    for cell in notebook.cells:
        for was, now in changed.items():
            cell.source = cell.source.replace(was, now)
    folder = {"metadata": {"path": str(NOTEBOOKS)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=folder).execute()
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", ())]
    assert not [one for one in outputs if one.get("name") == "stderr"], "nothing is wrong"
    return [one.get("data", {"text/plain": one.get("text", "")}) for one in outputs]


def test_digits_are_tuned_in_a_notebook() -> None:
    view, table, curves, gpus, best, tested = run("digits.ipynb", **{ASKED: SMALL})
    assert "the target was reached" in view["text/html"], "the view has renewed itself to the end"
    assert "best: <b>t0" in view["text/html"]
    assert "<table" in table["text/html"]
    assert "<svg" in curves["text/html"]
    assert "<svg" in gpus["text/html"]
    assert best["text/plain"].startswith("Best(trial='t0")
    assert float(tested["text/plain"].split("accuracy ")[1].split()[0]) > 0.4


def test_a_run_is_looked_at_in_a_notebook(home: Path) -> None:
    kept(home)
    shown = run("analysis.ipynb")
    assert len(shown) == 8
    assert all("<svg" in shown[place]["text/html"] for place in (0, 1, 2, 3, 5))
    assert shown[6]["text/plain"].startswith("18.6 of 150.0 GPU-min, 4.3 of 33.3 min")
    assert "<iframe" in shown[7]["text/html"]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_kept_without_what_they_have_shown(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
