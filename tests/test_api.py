"""What Python is given without a run of its own: specs that are dicts, arguments, and a run that is
over, as tables, pictures and words.
"""

from __future__ import annotations

import copy
import re
import sys
import tomllib
import xml.etree.ElementTree as ET
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seerd
from seerd.api.notebook import shown
from seerd.api.running import overrides_of
from seerd.commands.report import RunReader
from seerd.errors import SpecError, UsageError
from seerd.export import rows
from seerd.extras import installing
from seerd.spec.experiment import load
from seerd.spec.reader import toml_of
from seerd.spec.spec import load_spec, spec_of
from seerd.telling.explanation.timeline import read_history
from tests.examples import few
from tests.test_report import METRIC, kept

PROGRAMS = Path(__file__).parent / "programs"
SPEC: dict[str, Any] = {
    "name": "quick",
    "metric": {"name": "accuracy", "mode": "max"},
    "train": {"script": "trainer.py", "launcher": "python"},
    "space": {"lr": {"low": 0.1, "high": 1.0}, "kind": ["a", "b"]},
    "limits": {"deadline": "5m", "budget": "10gpu-min"},
}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a script."""
    (tmp_path / "trainer.py").write_bytes((PROGRAMS / "trainer.py").read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def changed(**values: Any) -> dict[str, Any]:
    """The spec with other values, by the path of their key with `__` for dots."""
    spec = copy.deepcopy(SPEC)
    for path, value in values.items():
        *tables, last = path.split("__")
        inside = spec
        for table in tables:
            inside = inside.setdefault(table, {})
        inside[last] = value
    return spec


def test_a_dict_is_read_as_its_toml(project: Path) -> None:
    (project / "spec.toml").write_text(toml_of(SPEC))
    of_file, of_dict = load_spec(project / "spec.toml"), spec_of(SPEC)
    for name in ("name", "goal", "train", "space", "policy", "limits", "cluster", "folder"):
        assert getattr(of_dict, name) == getattr(of_file, name), name
    (project / "kept.toml").write_text(of_dict.text)
    assert load_spec(project / "kept.toml").space == of_file.space, "what the run keeps is a spec"


@settings(max_examples=few(50))
@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            st.booleans()
            | st.integers(-(2**63), 2**63 - 1)
            | st.floats(allow_nan=False)
            | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=8,
        ),
    )
)
def test_whatever_is_in_a_dict_is_in_its_toml_in_the_same_order(document: dict[str, Any]) -> None:
    text = toml_of(document)
    assert tomllib.loads(text) == document
    for name, table in tomllib.loads(text).items():
        if isinstance(table, dict):
            assert list(table) == list(document[name])


@pytest.mark.parametrize(
    "mistakes",
    [
        {"metric__mode": "top"},
        {"metrik": {"name": "accuracy"}},
        {"train__script": "trainr.py"},
        {"space__lr": {"low": 2.0, "high": 1.0}},
        {"limits__deadline": 30},
        {"cluster__provider": "ec3", "policy__eta": 0},
        {"space": {}},
    ],
)
def test_mistakes_of_a_dict_are_told_as_those_of_its_toml(
    project: Path, mistakes: dict[str, Any]
) -> None:
    spec = changed(**mistakes)
    (project / "spec.toml").write_text(toml_of(spec))
    with pytest.raises(SpecError) as of_file:
        load_spec(project / "spec.toml")
    with pytest.raises(SpecError) as of_dict:
        seerd.run(spec)
    text = str(of_file.value).replace(str(project / "spec.toml"), "the spec")
    without_lines = re.sub(r"line \d+: ", "", text)
    assert sorted(str(of_dict.value).splitlines()) == sorted(without_lines.splitlines())
    assert not (project / "home").exists()


def test_values_that_toml_does_not_have_are_named_by_their_key() -> None:
    spec = changed(space__lr={"low": None, "high": 1.0}, train__env={3: "x"})
    with pytest.raises(SpecError) as caught:
        spec_of(spec)
    assert str(caught.value) == (
        "the spec has 2 mistakes:\n"
        "  train.env.3: found 3, text is needed as a key\n"
        "  space.lr.low: found None, text, numbers, booleans, lists and dicts are allowed"
    )


def test_what_python_has_for_toml_is_taken_too(project: Path) -> None:
    """Numbers and arrays of numpy, tuples, paths."""
    spec = changed(
        space__lr={"low": np.float64(0.1), "high": 1},
        space__width=np.array([1, 2]),
        space__kind=("a", "b"),
        train__script=project / "trainer.py",
    )
    found = {one.name: one.choices for one in spec_of(spec).space.parameters}
    assert found == {"lr": (), "width": (1, 2), "kind": ("a", "b")}


@pytest.mark.parametrize(
    "limits",
    [
        {"deadline": "90s", "budget": "2gpu-min", "cost": "$3"},
        {"deadline": 90, "budget": 120.0, "cost": 3},
        {"deadline": timedelta(seconds=90), "budget": timedelta(minutes=2), "cost": 3.0},
    ],
)
def test_limits_are_text_or_numbers(limits: dict[str, Any]) -> None:
    found = load(SPEC, overrides_of(limits, {})).limits
    assert (found.deadline_s, found.budget_gpu_s, found.cost_usd) == (90.0, 120.0, 3.0)


def test_arguments_stand_for_keys() -> None:
    given = {"policy": "asha", "seed": 3, "max_gpus": 2, "like": ["last"], "provider": None}
    more = {"policy.eta": 2, "name": "other", "space.kind": ["b", "c"]}
    (spec,) = load(SPEC, overrides_of(given, more)).jobs
    assert (spec.policy.name, spec.policy.seed, spec.policy.eta) == ("asha", 3, 2)
    assert (spec.limits.max_gpus, spec.like, spec.name) == (2, ("last",), "other")
    assert spec.space.parameters[1].choices == ("b", "c")


def test_a_wrong_argument_has_its_name() -> None:
    with pytest.raises(SpecError) as caught:
        seerd.run(SPEC, deadline="3", set={"policy.eta": "big"})
    assert str(caught.value).startswith("the call has 2 mistakes:\n")
    assert "  deadline: found 3, a number needs its unit" in str(caught.value)
    assert "  policy.eta: found 'big', " in str(caught.value)


def test_a_missing_limit_is_told() -> None:
    spec = {key: value for key, value in SPEC.items() if key != "limits"}
    with pytest.raises(UsageError, match="give a deadline: --deadline 30m and a budget"):
        seerd.run(spec)


# ------------------------------------------------------------ a run that is over


@pytest.fixture
def run(tmp_path: Path) -> seerd.Run:
    return seerd.load(kept(tmp_path).path)


def test_a_run_is_found_by_its_name_or_its_folder(run: seerd.Run, tmp_path: Path) -> None:
    for name in ("last", run.id, run.id[:5]):
        assert seerd.load(name, home=tmp_path).path == run.path
    assert seerd.load(f"./{run.id}").id == run.id
    with pytest.raises(UsageError, match="there is no run in"):
        seerd.load(tmp_path / "none")
    with pytest.raises(UsageError, match="no run begins with 'other'"):
        seerd.load("other", home=tmp_path)


def test_tables_are_those_that_are_exported(run: seerd.Run) -> None:
    known = read_history(run._folder)
    for frame, table in (
        (run.trials(), rows.trials(known)),
        (run.reports(), rows.reports(known)),
        (run.ledger(), rows.charges(known)),
    ):
        assert tuple(frame.columns) == table.names
        assert len(frame) == len(table.rows) > 0
    trials = run.trials()
    assert trials.loc[trials["handed_back"], "trial"].item() == run.best.trial
    assert run.ledger()["gpu_s"].sum() / 60 == pytest.approx(run.result["gpu_min"], abs=0.01)
    assert run.state == run.result["status"] == "done"


def test_pictures_show_themselves_everywhere(run: seerd.Run, tmp_path: Path) -> None:
    charts = [run.curves(), run.curves(METRIC, "reports"), run.gpus(), run.costs()]
    charts += [run.curves(by="gpu_time"), run.importance(), run.configurations()]
    for chart in charts:
        bundle = chart._repr_mimebundle_()
        assert set(bundle) == {"text/html", "image/svg+xml", "text/plain"}
        ET.fromstring(bundle["text/html"])
        assert "currentColor" in bundle["text/html"], "in the colours around it"
        assert "currentColor" not in bundle["image/svg+xml"], "alone, black on white"
    assert run.gpus().save(tmp_path / "gpus.svg").read_text().startswith("<svg")
    assert run.gpus().save(tmp_path / "gpus.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=r"metric='loss' was not reported; there are acc<&>"):
        run.curves("loss")
    with pytest.raises(UsageError, match="by='days': one of time, reports, gpu_time is needed"):
        run.curves(by="days")  # type: ignore[arg-type]


class Words(HTMLParser):
    """The text of HTML, but its styles; checks that every tag is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)


def test_a_run_shows_itself(run: seerd.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    words = " ".join(Words(run._repr_html_()).text)
    assert f"{read_history(run._folder).state.facts.run} : the plan is carried out" in words
    assert f"best:  {run.best.trial} , {METRIC}" in words
    assert "lr" in words
    assert "<sgd>" in words
    assert f"and {len(run.trials()) - 10} more: .trials() has all" in words
    text = repr(run)
    assert "\x1b" not in text
    assert f"best: {run.best.trial}, " in text
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    page = run.report()
    assert run.best.trial in page.html
    assert 'srcdoc="&lt;!doctype html&gt;' in page._repr_html_()


def test_time_goes_on_while_a_run_does(run: seerd.Run) -> None:
    """Only what is over stands still."""
    over = RunReader(run._folder).read()
    assert shown(over, 1e6) == shown(over)


def test_a_model_that_is_gone_is_told(run: seerd.Run) -> None:
    """The simulated run has none on this disk."""
    with pytest.raises(UsageError, match="cannot be copied"):
        run.best.to("model")


def test_a_lost_package_is_named(run: seerd.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=re.escape(installing("notebook"))):
        run.trials()
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert "pip install" in run._repr_html_(), "the rest is shown"
    with pytest.raises(UsageError, match=re.escape(installing("report"))):
        run.curves()._repr_mimebundle_()


def test_nobody_runs_a_run_that_is_over(run: seerd.Run) -> None:
    with pytest.raises(UsageError, match="is not running"):
        run.stop()
