"""Whether every hyperparameter reaches the script, and what may stand in [space]: names with points,
and choices that are lists.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from seerd.cli import app
from seerd.commands.asking import values
from seerd.errors import SpecError, UsageError
from seerd.planner.constraints import constraint
from seerd.planner.parameter import Parameter, Value, plain, same
from seerd.spec.doubts import doubts
from seerd.spec.spec import Spec, load_spec, spec_of
from seerd.telling.complaints import hint
from seerd.telling.harmless import config_text
from seerd.training.by_hand import defaults

SPEC = """
metric = { name = "accuracy", mode = "max" }
[train]
script = "train.py"
launcher = "python"
args = ["--lr", "{lr}"]
report = 'accuracy ([0-9.]+)'
[space]
lr = { low = 1e-3, high = 1.0, log = true }
momentum = [0.1, 0.9]
[limits]
deadline = "1m"
budget = "2gpu-min"
[cluster]
gpus = 2
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import sys\nsys.argv[1], 'MOMENTUM'\n")
    return tmp_path


def load(folder: Path, text: str = SPEC, *overrides: tuple[str, ...]) -> Spec:
    (folder / "spec.toml").write_text(text)
    return load_spec(folder / "spec.toml", overrides)


def mistake(folder: Path, text: str, *overrides: tuple[str, ...]) -> str:
    with pytest.raises(SpecError) as caught:
        load(folder, text, *overrides)
    return "\n".join(map(str, caught.value.problems))


# ------------------------------------------------------------ does it reach the script?


def test_a_hyperparameter_that_nothing_carries_is_refused(folder: Path) -> None:
    (folder / "env").mkdir()
    (folder / "env" / "pyvenv.cfg").touch()
    (folder / "old").mkdir()
    (folder / ".seerdignore").write_text("/old/\nnot_*.py\n")
    for other in ("env/installed.py", "notes.txt", "old/train.py", "not_copied.py"):
        (folder / other).write_text("import seerd\n")
    told = mistake(folder, SPEC)
    assert told.startswith("line 10: space.momentum: reaches the script in no way")
    assert '"--momentum", "{momentum}"' in told
    plan = CliRunner().invoke(app, ["plan", str(folder / "spec.toml")])
    assert isinstance(plan.exception, SpecError)
    assert plan.exception.exit_code == 2


@pytest.mark.parametrize(
    "overrides",
    [
        [("train.args", '["--lr", "{lr}", "m={momentum}"]')],
        [("train.env", '{ MOMENTUM = "{momentum}" }')],
        [("train.fill", '["config.yaml"]')],
        # what selects others is seen by them
        [
            ("space.sgd_lr", "{ values = [1, 2], when = { momentum = 0.9 } }"),
            ("train.args", '["{lr}", "{sgd_lr}"]'),
        ],
    ],
)
def test_every_way_in_which_it_gets_there(folder: Path, overrides: list[tuple[str, ...]]) -> None:
    (folder / "config.yaml").write_text("momentum: {momentum}\n")
    assert doubts(load(folder, SPEC, *overrides)) == []


@pytest.mark.parametrize(
    "name", ["import seerd", "from seerd import trial", 'm = "seerd.training"', 'e["SEERD_DIR"]']
)
def test_a_script_that_takes_part_has_all_values(folder: Path, name: str) -> None:
    (folder / "train.py").write_text(f"import torch\n{name}\n")
    assert doubts(load(folder)) == []


@pytest.mark.parametrize(
    ("file", "overrides"),
    [
        ("lib/helper.py", []),  # it may be imported
        ("", [("train.env", '{ PYTHONPATH = "/opt/lib" }')]),  # what is there may be
        ("", [("train.launcher", "command"), ("train.script", sys.executable)]),
    ],
)
def test_where_something_else_may_carry_it_there_is_a_doubt(
    folder: Path, file: str, overrides: list[tuple[str, ...]]
) -> None:
    if file:
        (folder / file).parent.mkdir()
        (folder / file).write_text("import seerd\n")
    (told,) = doubts(load(folder, SPEC, *overrides))
    assert told.startswith("momentum of [space] is in no argument")


def test_a_script_without_a_pattern_takes_part_by_a_module_or_is_doubted(folder: Path) -> None:
    without = "\n".join(line for line in SPEC.splitlines() if not line.startswith("report"))
    (told,) = doubts(load(folder, without))
    assert "momentum of [space]" in told
    (folder / "loop.py").write_text("from seerd import trial\n")
    assert doubts(load(folder, without)) == []
    command = [("train.launcher", "command"), ("train.script", sys.executable)]
    (folder / "loop.py").unlink()
    assert doubts(load(folder, without, *command))
    (folder / "train.jl").write_text('ENV["SEERD_DIR"]\n')
    assert doubts(load(folder, without, *command)) == []


@pytest.mark.parametrize(
    ("line", "doubted"),
    [
        ("", True),
        ("note = {trial.epoch: seerd.__name__}", True),
        ("trial.track(model=model)", False),
        ("open(trial.checkpoint / 'weights')", False),
        ("callback = seerd.lightning.Callback(trial)", False),
        ("helper.train(trial)", False),
        ("track = getattr(trial, 'track')", False),
        ("other = trial", False),
        ("helper.train(seerd)", False),
        ("def", False),
    ],
)
def test_a_script_that_takes_part_and_tracks_nothing_is_doubted(
    folder: Path, line: str, doubted: bool
) -> None:
    loop = "while trial.running():\n    trial.report(accuracy=trial.config['lr'])\n"
    text = f"import helper, seerd\ntrial = seerd.trial()\n{line}\n{loop}"
    (folder / "train.py").write_text(text)
    without = "\n".join(line for line in SPEC.splitlines() if not line.startswith("report"))
    said = [one for one in doubts(load(folder, without)) if "trial.track" in one]
    assert len(said) == doubted
    assert all("its checkpoints will hold no model" in one for one in said)


@pytest.mark.parametrize(
    ("line", "key", "doubted"),
    [
        ("torch.save(model, 'last.pt')", "", True),
        ("data = load_digits()", "", True),
        ("model = torch.load('last.pt')", "", False),
        ("state = open('last.pt', 'rb').read()", "", False),
        ("torch.save(model, 'last.pt')", 'resume = ["--from", "{checkpoint}"]', False),
    ],
)
def test_a_script_that_loads_nothing_that_it_has_saved_is_doubted(
    folder: Path, line: str, key: str, doubted: bool
) -> None:
    (folder / "train.py").write_text(f"import sys\nlr, momentum = sys.argv[1:]\n{line}\n")
    text = SPEC.replace('"{lr}"]', '"{lr}", "{momentum}"]')
    text = text.replace("[space]", f'checkpoint = "last.pt"\n{key}\n[space]')
    said = [one for one in doubts(load(folder, text)) if "begins anew" in one]
    assert len(said) == doubted


def test_a_script_of_which_nothing_reports_is_refused(folder: Path) -> None:
    """A pattern reports, or what imports seerd, which may be outside the source."""
    without = "\n".join(line for line in SPEC.splitlines() if not line.startswith("report"))
    placed = without.replace('["--lr", "{lr}"]', '["{lr}", "{momentum}"]')

    def planned(text: str) -> BaseException | None:
        (folder / "spec.toml").write_text(text)
        return CliRunner().invoke(app, ["plan", str(folder / "spec.toml")]).exception

    for text in (without, placed):
        assert "nothing would report: train.py does not import seerd" in str(planned(text))
    assert planned(placed.replace("[space]", 'env = { PYTHONPATH = "/opt/lib" }\n[space]')) is None
    (folder / "loop.py").write_text("from seerd import trial\n")
    assert planned(placed) is None


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("lr = 0.1", ["MOMENTUM of train.env", "no Python file of the source reads arguments"]),
        ("import os, tyro; os.environ['MOMENTUM']", []),
        ("from loop import parse; 'MOMENTUMS'", ["MOMENTUM of train.env"]),
        ("import seerd", []),
    ],
)
def test_what_no_file_reads_is_doubted(folder: Path, script: str, told: list[str]) -> None:
    (folder / "train.py").write_text(script)
    spec = load(folder, SPEC, ("train.env", '{ MOMENTUM = "{momentum}", HOME = "/root" }'))
    found = doubts(spec)
    assert len(found) == len(told)
    assert all(part in line for part, line in zip(told, found, strict=True))


@pytest.mark.parametrize("args", ['["--lr", "{lr}", "--amp", "{amp}"]', '["--amp={amp}", "{lr}"]'])
@pytest.mark.parametrize(
    ("option", "doubted"),
    [
        ('"--amp", type=bool', True),
        ("'-a', '--amp', default=True, type = bool", True),
        ('"--amp", type=str', False),
        ('"--amp", action="store_true")\nadd("--x", type=bool', False),
        ('"--ample", type=bool', False),
    ],
)
def test_an_option_that_takes_every_text_for_true_is_doubted(
    folder: Path, args: str, option: str, doubted: bool
) -> None:
    (folder / "train.py").write_text(f"parser.add_argument({option})\n")
    text = SPEC.replace("momentum = [0.1, 0.9]", "amp = [true, false]")
    said = doubts(load(folder, text, ("train.args", args)))
    assert bool(said) is doubted
    if doubted:
        assert 'amp = ["", "--amp=1"], and "{amp}" in train.args' in said[0]


@pytest.mark.parametrize(
    ("script", "refused"),
    [
        ('p.add_argument("--n", help="(a number)", type=int)', True),
        ('p.add_argument("-n", "--n", type=float)', True),
        ('# "--n", type=int was before\np.add_argument("--n")', False),
        ('OLD = """p.add_argument("--n", type=int)"""\np.add_argument("--n", type=str)', False),
        ('a.add_argument("--n", type=int)\nb.add_argument("--n")', False),
        ('p.add_argument("--n", type=size)', False),
        ('print "--n", type=int', False),
    ],
)
def test_a_value_is_refused_only_where_the_script_declares_its_option_for_numbers(
    folder: Path, script: str, refused: bool
) -> None:
    (folder / "train.py").write_text(script + "\n")
    text = SPEC.replace("momentum = [0.1, 0.9]", 'n = ["a"]')
    with pytest.raises(SpecError, match="--n has type=") if refused else nullcontext():
        load(folder, text, ("train.args", '["--lr", "{lr}", "--n", "{n}"]'))


@pytest.mark.parametrize(
    "said", ["unrecognized arguments: true", "ignored explicit argument 'false'"]
)
def test_a_crash_by_an_option_that_takes_no_value_says_what_to_write(said: str) -> None:
    told = hint("exit status 2", [f"train.py: error: argument --amp: {said}"], "run", ["amp"])
    assert 'amp = ["", "--amp"]' in told


# ------------------------------------------------------------ names


DOTTED = SPEC.replace("momentum = ", '"optim.momentum" = ').replace(
    '"{lr}"]', '"{lr}", "optim.momentum={optim.momentum}"]'
)


def test_a_name_with_points_is_a_place_and_can_be_set(folder: Path) -> None:
    spec = load(folder, DOTTED, ("space.optim.momentum", "[0.5]"), ("space.lr.low", "0.1"))
    assert spec.space.parameters[1] == Parameter("optim.momentum", choices=(0.5,))
    assert load(folder, spec.text).space == spec.space
    assert constraint("optim.momentum * 2 < 1").met({"optim.momentum": 0.4})
    assert constraint("optim.momentum * 2 < 1").names == {"optim.momentum"}
    when = 'rho = { values = [1], when = { "optim.momentum" = 0.9 } }'
    assert load(
        folder,
        DOTTED.replace("[limits]", f"{when}\n[limits]").replace('"{lr}",', '"{lr}", "{rho}",'),
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"optim.momentum" = [', "optim.momentum = [", '"optim.momentum" = ...'),
        ('"optim.momentum" = [', "optim.momentum = { low = 0, high = 1 } # ", '"optim.momentum" ='),
        ("={optim.momentum}", "={optim.momentun}", "did you mean optim.momentum?"),
        ('"optim.momentum" =', '"a{b" = 3\n"optim.momentum" =', "a name without braces"),
        ('"optim.momentum" =', 'constraints = ["optim.x < 1"]\n"optim.momentum" =', "no parameter"),
        ('"optim.momentum" =', 'gpus = [1]\n"optim.momentum" =', "the number of GPUs"),
    ],
)
def test_mistakes_about_names(folder: Path, old: str, new: str, said: str) -> None:
    text = DOTTED.replace('args = ["--lr"', 'args = ["{gpus}", "--lr"')
    assert old in text
    assert said in mistake(folder, text.replace(old, new))


def test_a_name_that_no_constraint_can_have_is_told(folder: Path) -> None:
    text = DOTTED.replace(
        '"optim.momentum" =', 'constraints = ["n-m < 1"]\n"n-m" = [1]\n"optim.momentum" ='
    )
    with pytest.raises(SpecError, match="in constraints no name has such signs as 'n-m'"):
        load(folder, text)


# ------------------------------------------------------------ files that are filled


def test_a_file_that_cannot_be_filled_is_told_before_the_start(folder: Path) -> None:
    (folder / "empty.yaml").write_text("lr: 0.1 # ${lr} {unknown}\n")
    (folder / "binary").write_bytes(b"{lr}\xff")
    (folder / "config.toml").write_text("m = {m}\n")
    (folder / "outside").symlink_to("/etc/passwd")
    for file, said in (
        ("missing.yaml", "there is no such file"),
        ("outside", "there is no such file"),
        ("../x.yaml", "a relative path without '..'"),
        ("empty.yaml", "no hyperparameter in braces is in it"),
        ("binary", "it is not UTF-8"),
    ):
        assert said in mistake(folder, SPEC, ("train.fill", f'["{file}"]'))
    told = mistake(
        folder,
        SPEC.replace("[limits]", "m = { values = [1], when = { momentum = 0.9 } }\n[limits]"),
        ("train.fill", '["config.toml"]'),
    )
    assert "m may be inactive, and TOML has no null" in told


# ------------------------------------------------------------ lists


LISTS = SPEC.replace("momentum = [0.1, 0.9]", "layers = [[64], [64, 128], []]").replace(
    '"{lr}"]', '"{lr}", "--layers", "{layers}"]'
)


def test_a_choice_may_be_a_list(folder: Path) -> None:
    space = load(folder, LISTS, ("policy.start", "[{ layers = [64, 128] }]")).space
    (layers,) = [one for one in space.parameters if one.name == "layers"]
    assert layers.choices == ((64,), (64, 128), ())
    assert plain({"layers": layers.choices[1]}) == {"layers": [64, 128]}
    assert config_text({"layers": layers.choices[1], "lr": 0.123456}) == "layers=[64,128] lr=0.1235"
    document = {
        "metric": {"name": "accuracy", "mode": "max"},
        "train": {"script": str(folder / "train.py"), "source": str(folder), "launcher": "python"},
        "space": {"layers": [(64,), [64, 128], []]},
    }
    assert spec_of(document).space.parameters == (layers,)


def test_run_by_hand_a_list_is_the_list(folder: Path) -> None:
    load(folder, LISTS)
    assert defaults(str(folder / "spec.toml"))["layers"] == [64]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("[[[[1]]]]", "a list of at least one number, text, boolean, or list of these"),
        ("[[1, nan]]", "every number must be finite"),
        (f"[[1, {2**60}]]", "whole numbers of at most"),
        ("[[{ a = 1 }]]", "a list of at least one"),
    ],
)
def test_mistakes_in_lists(folder: Path, wrong: str, said: str) -> None:
    assert said in mistake(folder, LISTS, ("space.layers", wrong))


def test_conditions_and_constraints_on_a_list(folder: Path) -> None:
    def with_(line: str) -> str:
        return LISTS.replace("[limits]", f"{line}\n[limits]").replace('"--lr"', '"{drop}", "--lr"')

    drop = "drop = {{ values = [0.1], when = {{ layers = {} }} }}"
    space = load(folder, with_(drop.format("[[64, 128]]"))).space
    assert space.parameters[2].active({"layers": (64, 128)})
    assert not space.parameters[2].active({"layers": (64,)})
    assert "layers never has this value; it has [64], [64, 128], []" in mistake(
        folder, with_(drop.format("64"))
    )
    said = mistake(folder, with_('drop = [1]\nconstraints = ["layers > 2"]'))
    assert "it takes a list for a number" in said


def test_lists_are_the_same_if_their_elements_are() -> None:
    assert same((1, (2,)), (1.0, (2.0,)))
    assert not same((1,), (True,))
    assert not same((1,), (1, 2))
    assert not same((1,), 1)
    layers = Parameter("layers", choices=((1,), (True,)))
    assert layers.place((True,)) == 1
    assert not layers.may_be(1)


def test_a_list_is_the_same_after_a_journal() -> None:
    value: dict[str, Value] = {"a": ((3, 5), "x"), "b": (), "c": (True, 0.5)}
    text = msgspec.json.encode(value)
    assert msgspec.json.decode(text, type=dict[str, Value]) == value
    assert json.loads(text) == plain(value)


def test_a_list_can_be_added_to_a_run() -> None:
    found = values(["layers=[64, 128],lr=0.1,names=['a,b', [1]]", "x=a"])
    assert found == {"layers": (64, 128), "lr": 0.1, "names": ("a,b", (1,)), "x": "a"}
    assert values(["optim.lr=0.1,s=[x"]) == {"optim.lr": 0.1, "s": "[x"}
    assert values(["layers=[[1, 2],[3]]", "a=1, b=2"]) == {"layers": ((1, 2), (3,)), "a": 1, "b": 2}
    with pytest.raises(UsageError, match="NAME=VALUE"):
        values(["lr"])


def test_a_crash_by_a_text_with_several_numbers_says_what_to_write() -> None:
    line = "train.py: error: argument --layers: invalid int value: '64 128'"
    told = hint("exit status 2", [line], "run", ["layers"])
    assert told.startswith(
        "'64 128' is one argument; for several, make the choices lists, as [[64]"
    )
    assert "trial.config" not in told
