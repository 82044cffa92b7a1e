"""Arguments of scripts, with hyperparameters in the place of their names."""

from __future__ import annotations

import json

import pytest

from seerd.agent.arguments import filled, is_inside, named

VALUES = {"lr": 1e-05, "width": 64, "amp": True, "opt": "sgd", "flag": ""}


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (["--lr", "{lr}", "--width={width}"], ["--lr", "1e-05", "--width=64"]),
        (["--amp", "{amp}"], ["--amp", "true"]),
        (["{opt}-{width}.yaml"], ["sgd-64.yaml"]),
        (["{{lr}", "{{", "}}"], ["{lr}", "{", "}}"]),
        (['{"a": {"b": 1}}', "{}", "{0}", "{a b}"], ['{"a": {"b": 1}}', "{}", "{0}", "{a b}"]),
        # what is inactive is left out, with the option before it
        (["--momentum", "{momentum}", "--lr", "{lr}"], ["--lr", "1e-05"]),
        (["--momentum={momentum}", "x"], ["x"]),
        (["data", "{momentum}"], ["data"]),
        (["--a=1", "{momentum}"], ["--a=1"]),
        (["--set", "x={momentum}"], ["--set"]),
        # a choice may be to give no argument at all
        (["--verbose", "{flag}"], ["--verbose"]),
        ([""], [""]),
    ],
)
def test_names_in_braces_become_values(given: list[str], made: list[str]) -> None:
    assert filled(given, VALUES) == made


def test_json_stays_as_it_is() -> None:
    text = json.dumps({"model": {"layers": [1, 2], "act": "relu"}, "empty": {}})
    assert list(named(text)) == []
    assert filled([text], VALUES) == [text]


@pytest.mark.parametrize(
    ("path", "inside"),
    [("out/last.pt", True), ("a/*.pt", True), ("/out", False), ("../x", False), ("", False)],
)
def test_what_is_saved_lies_where_the_script_runs(path: str, inside: bool) -> None:
    assert is_inside(path) == inside
