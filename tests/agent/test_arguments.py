"""What a script gets in the place of names in braces: in arguments, variables and texts."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from seerd.agent.arguments import filled, filled_environment, filled_text, is_inside, named

VALUES: dict[str, Any] = {
    "lr": 1e-05,
    "width": 64,
    "amp": True,
    "opt": "sgd",
    "flag": "",
    "gpus": 2,
    "optim.lr": 0.1,
    "n-layers": 3,
    "model/name": "a b",
    "bias": -0.5,
    "tiny": -1e-05,
    "layers": [64, 128],
    "none": [],
    "names": ["a b", 'c"d'],
    "kernels": [[3, 5], [7]],
}
NAMES = [*VALUES, "momentum"]
"""All hyperparameters; momentum is inactive."""


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (["--lr", "{lr}", "--width={width}"], ["--lr", "1.0e-05", "--width=64"]),
        (["--amp", "{amp}"], ["--amp", "true"]),
        (["{opt}-{width}.yaml"], ["sgd-64.yaml"]),
        (["{{lr}", "{{", "}}"], ["{lr}", "{", "}}"]),
        (['{"a": {"b": 1}}', "{}", "{0}", "{a b}"], ['{"a": {"b": 1}}', "{}", "{0}", "{a b}"]),
        # what is inactive is left out, with the option before it
        (["--momentum", "{momentum}", "--lr", "{lr}"], ["--lr", "1.0e-05"]),
        (["--momentum={momentum}", "x"], ["x"]),
        (["data", "{momentum}"], ["data"]),
        (["--", "{momentum}"], ["--"]),
        (["--a=1", "{momentum}"], ["--a=1"]),
        (["--set", "x={momentum}"], ["--set"]),
        # a choice may be to give no argument at all
        (["--verbose", "{flag}"], ["--verbose"]),
        ([""], [""]),
        # any name may be a place, and `${name}` of other programs is none
        (["optim.lr={optim.lr}", "{n-layers}", "{model/name}"], ["optim.lr=0.1", "3", "a b"]),
        (["x=${optim.lr}", "${lr}"], ["x=${optim.lr}", "${lr}"]),
        (["--nproc", "{gpus}"], ["--nproc", "2"]),
        # a list is several arguments, or JSON inside a text
        (["--layers", "{layers}", "--lr={width}"], ["--layers", "64", "128", "--lr=64"]),
        (["--layers", "{none}"], ["--layers"]),
        (["--names", "{names}"], ["--names", "a b", 'c"d']),
        (["--kernels", "{kernels}"], ["--kernels", "[3,5]", "[7]"]),
        (["model.layers={layers}"], ["model.layers=[64,128]"]),
        (["x={names}", "{none}{none}"], ['x=["a b","c\\"d"]', "[][]"]),
        # what is negative is no option
        (["--bias", "{bias}"], ["--bias=-0.5"]),
        (["--bias", "{tiny}"], ["--bias=-1.0e-05"]),
        (["-b", "{tiny}", "{tiny}"], ["-b", "-0.00001", "-0.00001"]),
        (["--", "{bias}"], ["--", "-0.5"]),
        (["--a=1", "{bias}"], ["--a=1", "-0.5"]),
        (["--{opt}", "{bias}"], ["--sgd", "-0.5"]),
    ],
)
def test_names_in_braces_become_values(given: list[str], made: list[str]) -> None:
    assert filled(given, NAMES, VALUES) == made


def test_json_stays_as_it_is() -> None:
    text = json.dumps({"model": {"layers": [1, 2], "act": "relu"}, "empty": {}})
    assert list(named(text)) == []
    assert filled([text], NAMES, VALUES) == [text]
    assert filled_text(text, NAMES, VALUES) == text


def test_variables_have_values_and_those_of_what_is_inactive_are_left_out() -> None:
    env = {"LR": "{lr}", "M": "m={momentum}", "HOST": "${opt}", "FORMAT": "{}{{lr}}{x}"}
    made = filled_environment(env, NAMES, VALUES)
    assert made == {"LR": "1.0e-05", "HOST": "${opt}", "FORMAT": "{}{{lr}}{x}"}


def test_a_text_has_null_for_what_is_inactive_and_is_else_left_alone() -> None:
    text = "lr: {lr}\nm: {momentum}  # {unknown} ${lr} {{lr}} {\nlayers: {layers}\n"
    made = filled_text(text, NAMES, VALUES)
    assert made == "lr: 1.0e-05\nm: null  # {unknown} ${lr} {{lr}} {\nlayers: [64,128]\n"


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers(-(2**53), 2**53)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(
    lambda word: not word.startswith("-")
)


@given(FLOATS, INTEGERS, WORDS, st.lists(FLOATS, min_size=1), st.lists(WORDS, min_size=1))
@example(-1e-05, -1, "a", [-1e-05, -1e300, 5e-324], ["a b", ""])
@example(-0.0, 0, "{x}", [1e22], ["$x"])
def test_argparse_gets_exactly_what_the_configuration_has(
    real: float, whole: int, word: str, reals: list[float], words: list[str]
) -> None:
    config = {"real": real, "whole": whole, "word": word, "reals": reals, "words": words}
    parser = argparse.ArgumentParser()
    parser.add_argument("-r", type=float)
    parser.add_argument("--real", type=float)
    parser.add_argument("--whole", type=int)
    parser.add_argument("--word")
    parser.add_argument("--reals", type=float, nargs="+")
    parser.add_argument("--words", nargs="+")
    parser.add_argument("--json", type=json.loads)
    wanted = [part for name in config for part in (f"--{name}", f"{{{name}}}")]
    got = parser.parse_args(
        filled([*wanted, "-r", "{real}", "--json={reals}"], list(config), config)
    )
    assert {name: getattr(got, name) for name in config} == config
    assert (got.r, got.json) == (real, reals)
    assert math.copysign(1, got.real) == math.copysign(1, real)


@given(FLOATS, INTEGERS, st.booleans(), st.lists(FLOATS | INTEGERS | st.booleans()), WORDS)
@example(1e-05, 1, True, [1e22, 1e-7], "off")
def test_a_filled_file_has_the_values_that_the_configuration_has(
    real: float, whole: int, flag: bool, several: list[Any], word: str
) -> None:
    config = {"real": real, "whole": whole, "flag": flag, "several": several, "words": [word]}
    names = list(config)
    text = filled_text("".join(f"{name}: {{{name}}}\n" for name in names), names, config)
    if word.isprintable():  # YAML reads others only as escapes that JSON has not
        assert yaml.safe_load(text) == config
    inside = ", ".join(f'"{name}": {{{name}}}' for name in names)
    assert json.loads(filled_text(f"{{{inside}}}", names, config)) == config


@pytest.mark.parametrize(
    ("path", "inside"),
    [("out/last.pt", True), ("a/*.pt", True), ("/out", False), ("../x", False), ("", False)],
)
def test_what_is_saved_lies_where_the_script_runs(path: str, inside: bool) -> None:
    assert is_inside(path) == inside
