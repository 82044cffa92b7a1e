"""spec.toml: everything that the reference lists is read; every mistake is told, with its place and
what may have been meant.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seerd.agent.patterns import ObservedScript
from seerd.backends.base import MachineType
from seerd.backends.ec2.keys import Ec2Keys
from seerd.backends.ec2.offer import quote_of
from seerd.core.events import Goal
from seerd.errors import SpecError, UsageError
from seerd.planner.model import Mode
from seerd.planner.space import Condition, Parameter, Space
from seerd.planning.facts import job_facts
from seerd.spec.doubts import direction_doubts
from seerd.spec.experiment import of_one, require_limits
from seerd.spec.spec import Spec, load_spec
from seerd.training.by_hand import defaults
from tests.examples import few

ROOT = Path(__file__).parent.parent
GOOD = """
name = "cifar10-resnet18"
metric = { name = "accuracy", mode = "max" }
[train]
script = "train.py"
args = ["--fast"]
env = { DEBUG = "1" }
[space]
lr = { low = 1e-4, high = 1.0, log = true }
momentum = [0.9, 0.95]
layers = { low = 2, high = 8, step = 2 }
optimizer = ["sgd", "adam"]
[policy]
eta = 4
t_min = "1m"
[limits]
deadline = "30m"
budget = "480gpu-min"
cost = "$40"
max_gpus = 64
[cluster]
provider = "local"
gpus = 4
"""


def test_the_text_of_a_spec_has_what_was_given_beside_it(folder: Path) -> None:
    assert load(folder, GOOD).text == GOOD, "as it was written, if nothing was"
    given = ("cluster.gpus", "2"), ("space.lr.high", "0.5"), ("limits.cost", "$7", "--cost")
    changed = load(folder, GOOD, *given)
    assert "# As it was run, with --set cluster.gpus, --set space.lr.high, --cost." in changed.text
    again = load(folder, changed.text)
    assert again.cluster == changed.cluster
    assert again.limits == changed.limits
    assert again.space == changed.space != load(folder, GOOD).space
    assert (again.train, again.policy, again.goal) == (
        changed.train,
        changed.policy,
        changed.goal,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    return tmp_path


def load(folder: Path, text: str, *overrides: tuple[str, ...]) -> Spec:
    (folder / "spec.toml").write_text(text)
    return load_spec(folder / "spec.toml", overrides)


def problems(folder: Path, text: str, *overrides: tuple[str, ...]) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        load(folder, text, *overrides)
    return {problem.path: str(problem) for problem in caught.value.problems}


def test_a_whole_spec(folder: Path) -> None:
    spec = load(folder, GOOD)
    assert (spec.name, spec.goal.metric, spec.goal.mode) == (
        "cifar10-resnet18",
        "accuracy",
        "max",
    )
    assert (spec.train.script, spec.train.args, spec.train.launcher) == (
        "train.py",
        ("--fast",),
        "torchrun",
    )
    assert spec.space.parameters == (
        Parameter("lr", low=1e-4, high=1.0, log=True),
        Parameter("momentum", choices=(0.9, 0.95)),
        Parameter("layers", low=2, high=8, step=2, integer=True),
        Parameter("optimizer", choices=("sgd", "adam")),
    )
    assert (
        spec.limits.deadline_s,
        spec.limits.budget_gpu_s,
        spec.limits.cost_usd,
        spec.limits.max_gpus,
    ) == (
        1800,
        28800,
        40,
        64,
    )
    assert (spec.policy.name, spec.policy.eta, spec.policy.nu, spec.policy.t_min_s) == (
        "seer+",
        4,
        2,
        60,
    )
    assert spec.cluster.gpus == 4


def test_what_instances_fetch_has_a_size_and_for_those_rented_a_price(folder: Path) -> None:
    assert load(folder, GOOD).train.ingress_gb == 0
    assert load(folder, GOOD, ("train.ingress", "1.5TB")).train.ingress_gb == 1500
    rented = GOOD.replace('provider = "local"\ngpus = 4', 'provider = "ec2"')
    cluster = load(folder, rented, ("cluster.ingress_price", "$0.02")).cluster
    assert isinstance(cluster, Ec2Keys)
    assert cluster.ingress_price == 0.02
    wrong = problems(folder, GOOD, ("train.ingress", "12"), ("cluster.ingress_price", "$0.02"))
    assert "12GB, 500MB or 1.5TB" in wrong["train.ingress"]
    assert "ec2" in wrong["cluster.ingress_price"]


def test_only_runs_on_rented_instances_wait_for_them(folder: Path) -> None:
    rented = GOOD.replace('provider = "local"\ngpus = 4', 'provider = "ec2"')
    cluster = load(folder, rented, ("cluster.wait", "20m")).cluster
    assert isinstance(cluster, Ec2Keys)
    types = [MachineType("p3.8xlarge", 4, 8.0)]
    assert quote_of(cluster, types, "a table").facts.wait_s == 1200.0
    assert quote_of(replace(cluster, wait=None), types, "a table").facts.wait_s is None
    wrong = problems(folder, GOOD, ("cluster.wait", "20m"))
    assert "only for provider = 'ec2'" in wrong["cluster.wait"]
    assert "30m" in problems(folder, rented, ("cluster.wait", "20"))["cluster.wait"]


def test_the_command_line_overrides(folder: Path) -> None:
    spec = load(
        folder,
        GOOD,
        ("limits.deadline", "3m"),
        ("policy.eta", "2"),
        ("space.lr", "[0.1]"),
        ("train.python", "python3.12"),
    )
    assert spec.limits.deadline_s == 180
    assert spec.policy.eta == 2
    assert spec.space.parameters[0].choices == (0.1,)
    assert spec.train.python == "python3.12"


def test_all_mistakes_are_told_at_once(folder: Path) -> None:
    text = (
        GOOD.replace('deadline = "30m"', "deadline = 30")
        .replace("eta = 4", "eta = 1\nrate = 3")
        .replace("train.py", "trian.py")
    )
    text = (
        text.replace("log = true", "log = 1")
        .replace("gpus = 4", 'gpus = 4\nregion = "x"')
        .replace('"max"', '"best"')
    )
    found = problems(folder, text)
    assert set(found) == {
        "limits.deadline",
        "policy.eta",
        "policy.rate",
        "train.script",
        "space.lr",
        "cluster.region",
        "metric.mode",
    }
    assert "a number needs its unit" in found["limits.deadline"]
    assert "did you mean train.py?" in found["train.script"]
    assert "only for provider = 'ec2'" in found["cluster.region"]
    assert "line 19" in found["limits.deadline"] or "line 18" in found["limits.deadline"]


@pytest.mark.parametrize(
    ("old", "new", "path", "says"),
    [
        ("[policy]", "[polcy]", "polcy", "did you mean policy?"),
        ("eta = 4", "etta = 4", "policy.etta", "did you mean eta?"),
        ("low = 1e-4, high = 1.0", "low = 2, high = 1.0", "space.lr", "smaller than high"),
        ("low = 1e-4", "low = 0", "space.lr", "greater than 0"),
        ("step = 2", "stp = 2", "space.layers", "not stp"),
        ('["sgd", "adam"]', "[]", "space.optimizer", "at least one"),
        ('"480gpu-min"', '"480min"', "limits.budget", "480gpu-min, 8gpu-h"),
        ('"$40"', "40", "limits.cost", "$40 or 40usd"),
        ('name = "accuracy", ', "", "metric.name", "is missing"),
        ('mode = "max"', 'mode = "max", target = nan', "metric.target", "a finite number"),
        ('mode = "max"', 'mode = "max", target = true', "metric.target", "a finite number"),
        ('mode = "max"', 'mode = "max", smooth = 0', "metric.smooth", "at least 1"),
        ('mode = "max"', 'mode = "max", smooth = 1.5', "metric.smooth", "whole number"),
        ('mode = "max"', 'mode = "max", constraint = "x"', "metric.constraint", "latency_ms < 20"),
        ('mode = "max"', 'mode = "max", constraint = "a < b"', "metric.constraint", "a number"),
        ('mode = "max"', 'mode = "max", constraint = "a = 2"', "metric.constraint", "<, <=, > or"),
        ('mode = "max"', 'mode = "max", constraint = 20', "metric.constraint", "latency_ms < 20"),
        ('mode = "max"', 'mode = "max", objectives = "x"', "metric.objectives", "latency_ms = "),
        (
            'mode = "max"',
            'mode = "max", objectives = {}',
            "metric.objectives",
            "a table of metrics",
        ),
        (
            'mode = "max"',
            'mode = "max", objectives = { a = "up" }',
            "metric.objectives",
            "max, min",
        ),
        (
            'mode = "max"',
            'mode = "max", objectives = { "" = "min" }',
            "metric.objectives",
            "a text",
        ),
        ('mode = "max"', 'mode = "max", objectives.a.b = "min"', "metric.objectives", '"a.b"'),
        (
            'mode = "max"',
            'mode = "max", objectives = { accuracy = "min" }',
            "metric.objectives",
            "it decides already",
        ),
        ('script = "train.py"', "", "train.script", "is missing"),
        ('"cifar10-resnet18"', '"a/b"', "name", "letters"),
        ("eta = 4", 'name = "sear"', "policy.name", "did you mean seer?"),
        ("eta = 4", "p_min = 4\np_max = 2", "policy.p_max", "at least p_min"),
        ('provider = "local"', 'provider = "gcp"', "cluster.provider", "local, hosts, ec2"),
        ("gpus = 4", 'store = "ftp://x"', "cluster.store", "s3://"),
        ("gpus = 4", "gpus = true", "cluster.gpus", "whole number"),
    ],
)
def test_one_mistake(folder: Path, old: str, new: str, path: str, says: str) -> None:
    assert old in GOOD
    assert says in problems(folder, GOOD.replace(old, new))[path]


WHOLE = """
lr = { low = 1e-4, high = 1.0, log = true }
dropout = { low = 0.0, high = 0.5, step = 0.05 }
batch = { low = 16, high = 1024, log = true }
optimizer = ["adam", "sgd", "lion"]
momentum = { low = 0.8, high = 0.99, when = { optimizer = "sgd" } }
nesterov = { values = [true, false], when = { optimizer = ["sgd", "lion"], batch = 128 } }
beta = { mean = 0.9, std = 0.02, high = 0.999 }
units = { mean = 64, std = 16.5, step = 8, low = 8 }
decay = { mean = 1e-4, std = 3, log = true }
epochs = 90
constraints = ["lr * batch <= 4", "batch > units"]
"""


def with_space(lines: str) -> str:
    return re.sub(r"(?s)\[space\].*\[policy\]", f"[space]\n{lines}\n[policy]", GOOD)


def test_all_that_a_space_may_have(folder: Path) -> None:
    space = load(folder, with_space(WHOLE)).space
    made = {parameter.name: parameter for parameter in space.parameters}
    assert made["batch"] == Parameter("batch", low=16, high=1024, log=True, integer=True)
    assert made["momentum"].when == (Condition("optimizer", ("sgd",)),)
    assert made["nesterov"].choices == (True, False)
    assert made["nesterov"].when == (
        Condition("optimizer", ("sgd", "lion")),
        Condition("batch", (128,)),
    )
    assert (made["beta"].low, made["beta"].high) == (pytest.approx(0.78), 0.999)
    units = made["units"]
    assert (units.integer, units.low, units.default()) == (True, 8, 64)
    assert made["decay"].low == pytest.approx(1e-4 / 3**6)
    assert made["epochs"].choices == (90,)
    assert space.constraints == ("lr * batch <= 4", "batch > units")
    assert msgspec.json.decode(msgspec.json.encode(space), type=Space) == space


def test_what_a_script_gets_by_hand_is_what_a_profile_trains(folder: Path) -> None:
    """All but the constraints, which a script by hand does not know."""
    text = re.sub("constraints = .*", "", with_space(WHOLE))
    for first in ("adam", "sgd", "lion"):
        spec = load(folder, text.replace('["adam", "sgd"', f'["{first}", "adam", "sgd"'))
        by_hand = defaults(str(folder / "spec.toml"))
        assert list(by_hand) == list(spec.space.defaults())
        for name, value in spec.space.defaults().items():
            assert type(by_hand[name]) is type(value)
            assert by_hand[name] == pytest.approx(value), name


@pytest.mark.parametrize(
    ("old", "new", "path", "says"),
    [
        (
            'when = { optimizer = "sgd" }',
            'when = { optimizer = "sdg" }',
            "momentum.when",
            "mean sgd?",
        ),
        (
            'when = { optimizer = "sgd" }',
            'when = { optimiser = "sgd" }',
            "momentum.when",
            "optimizer?",
        ),
        ('when = { optimizer = "sgd" }', "when = { epochs = 90 }", "momentum.when", "stand above"),
        ('when = { optimizer = "sgd" }', "when = { momentum = 90 }", "momentum.when", "another"),
        ('when = { optimizer = "sgd" }', "when = { lr = 0.1 }", "momentum.when", "any number"),
        ('when = { optimizer = "sgd" }', "when = { batch = 2048 }", "momentum.when", "low = 16"),
        ('when = { optimizer = "sgd" }', "when = {}", "momentum", "when must be a table"),
        ('when = { optimizer = "sgd" }', "when = { optimizer = [] }", "momentum", "when: a list"),
        ("epochs = 90", "epochs = 2020-01-01", "epochs", "a fixed number"),
        ("epochs = 90", "epochs = { values = 9 }", "epochs", "a list of at least one"),
        ("epochs = 90", "epochs = { values = [9], log = true }", "epochs", "not log"),
        ("std = 0.02, ", "", "beta", "mean and std are needed"),
        ("std = 0.02", 'std = 0.02, low = "x"', "beta", "low must be a number"),
        ("std = 3, log", "std = 0.3, log", "decay", "greater than 1"),
        ("std = 3, log", "std = 1e99, log", "decay", "too large"),
        ("std = 0.02", "std = 0", "beta", "greater than 0"),
        ("std = 0.02", "std = 0.02, step = 1e-300", "beta", "step = 1e-300 is too small for this"),
        ("epochs = 90", "epochs = { low = 1, high = 2, step = 1e-17 }", "epochs", "is too small"),
        ("epochs = 90", f"epochs = {{ low = 1, high = {10**400} }}", "epochs", "up to 1.8e308"),
        ('"batch > units"', '"batch > unit"', "constraints", "did you mean units?"),
        ('"batch > units"', '"batch >"', "constraints", "cannot be read"),
        ('"batch > units"', "3", "constraints", "number 2: a text"),
        ('"batch > units"', '"batch > optimizer"', "constraints", "takes a text for a number"),
        ('"batch > units"', '"batch < 16"', "constraints", "none met all constraints"),
        ('"lr * batch <= 4"', '"lr < 1.002e-4"', "constraints", "'lr < 1.002e-4' by "),
    ],
)
def test_one_mistake_of_a_space(folder: Path, old: str, new: str, path: str, says: str) -> None:
    assert old in WHOLE
    found = problems(folder, with_space(WHOLE.replace(old, new)))
    assert set(found) == {f"space.{path}"}
    assert says in found[f"space.{path}"]
    assert found[f"space.{path}"].startswith("line ")


def test_the_example_of_a_space_has_every_kind() -> None:
    space = load_spec(ROOT / "examples" / "space" / "spec.toml").space
    kinds = [(bool(p.choices), p.mean is not None, p.stepped, p.log) for p in space.parameters]
    assert len(set(kinds)) >= 6
    assert any(p.when for p in space.parameters)
    assert len(space.constraints) == 3


def test_constraints_alone_are_no_space(folder: Path) -> None:
    assert (
        "at least one parameter" in problems(folder, with_space('constraints = ["1 < 2"]'))["space"]
    )


def test_guesses_are_read_and_one_mistake_of_them_is_told(folder: Path) -> None:
    start = '[{ lr = 0.1, optimizer = "sgd" }, { layers = 4 }]'
    assert load(folder, GOOD, ("policy.start", start)).policy.start == (
        {"lr": 0.1, "optimizer": "sgd"},
        {"layers": 4},
    )
    for wrong, says in (
        ("[{ lr = 7.0 }]", "lr = 7.0 is not in [space]"),
        ("[{ layers = 3 }]", "layers = 3 is not in [space]"),
        ("[{}]", "a table of values is needed"),
        ("[{ lr = [0.1] }]", "lr = [0.1] is not in [space]"),
        ("[{ lr = [[[0.1]]] }]", "a table of values is needed"),
        ("[{ optim.lr = 0.1 }]", '"optim.lr" = ...'),
    ):
        found = problems(folder, GOOD, ("policy.start", wrong))
        assert set(found) == {"policy.start"}
        assert says in found["policy.start"]
    grid = problems(folder, GOOD, ("policy.start", start), ("policy.name", "grid"))
    assert "tries all there is" in grid["policy.start"]


def test_the_target_of_the_metric_is_a_number_of_any_sign(folder: Path) -> None:
    assert load(folder, GOOD).goal.target is None
    assert load(folder, GOOD, ("metric.target", "-1")).goal.target == -1.0


def test_models_are_compared_by_one_report_unless_the_spec_says_by_more(folder: Path) -> None:
    assert load(folder, GOOD).goal.smooth == 1
    assert load(folder, GOOD, ("metric.smooth", "3")).goal.smooth == 3


def test_constraints_on_other_metrics_are_one_or_several(folder: Path) -> None:
    def constraints(written: str) -> list[str]:
        return list(map(str, load(folder, GOOD, ("metric.constraint", written)).goal.constraints))

    assert load(folder, GOOD).goal.constraints == ()
    assert constraints('"latency_ms < 20"') == ["latency_ms < 20"]
    assert constraints('["val/f1>=0.5", "size_mb <= 1e3"]') == ["val/f1 >= 0.5", "size_mb <= 1000"]


def test_objectives_are_other_metrics_with_their_modes(folder: Path) -> None:
    def objectives(*override: str) -> dict[str, str]:
        spec = load(folder, GOOD, override)  # type: ignore[arg-type]
        return dict(job_facts(spec).objectives)

    assert objectives("metric.constraint", '"size_mb < 9"') == {}, "a constraint makes no objective"
    assert objectives("metric.objectives.latency_ms", "min") == {"latency_ms": "min"}
    both = {"latency_ms": "min", "val/f1": "max"}
    assert objectives("metric.objectives", '{ latency_ms = "min", "val/f1" = "max" }') == both
    assert objectives("metric", {"name": "a", "mode": "min", "objectives": both}) == both  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "mode", "doubted"),
    [
        ("val_loss", "max", True),
        ("rmse", "max", True),
        ("loss", "min", False),
        ("accuracy", "min", True),
        ("accuracy", "max", False),
        ("score", "min", False),
        ("lossless", "max", False),
    ],
)
def test_a_direction_that_is_probably_not_meant_is_doubted(
    name: str, mode: Mode, doubted: bool
) -> None:
    said = direction_doubts(Goal(metric=name, mode=mode))
    assert bool(said) is doubted
    if doubted:
        assert f'mode = "{"min" if mode == "max" else "max"}"' in said[0]


def test_mistakes_of_the_command_line_are_told_as_what_was_typed(folder: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load(folder, GOOD, ("limits.deadline", "30x", "--deadline"), ("policy.foo", "2"))
    told = str(caught.value)
    assert told.startswith("the command line has 2 mistakes:")
    assert "--deadline: found '30x'" in told
    assert "--set policy.foo: is not a key" in told
    assert "line " not in told.replace("command line", "")
    both = problems(
        folder,
        GOOD.replace("eta = 4", "eta = 1"),
        ("limits.deadline", "30x"),
        ("space.lr.low", "5"),
    )
    assert both["policy.eta"].startswith("line ")
    assert both["limits.deadline"].startswith("--set limits.deadline: ")
    assert both["space.lr"].startswith("--set space.lr.low: ")
    assert problems(folder, GOOD, ("policy", '{name = "nope"}'))["policy.name"].startswith(
        "--set policy: "
    )
    assert problems(folder, GOOD, ("nope.a.b", "3"))["nope"].startswith("--set nope.a.b: ")


@pytest.mark.parametrize(
    ("script", "more", "wrong"),
    [
        ("./tarin.py", "", "no such file in the source folder"),
        ("./train.py", "", "is not executable; make it so: chmod +x"),
        ("./tarin.py", 'setup = ["make"]', ""),
        ("./train.py", 'setup = ["chmod +x train.py"]', ""),
        (f"./{'x' * 300}", "", "cannot be a path"),
        ("sh", "", ""),
    ],
)
def test_a_command_is_looked_for_unless_something_else_may_bring_it(
    folder: Path, script: str, more: str, wrong: str
) -> None:
    text = GOOD.replace('script = "train.py"', f'script = "{script}"\nlauncher = "command"\n{more}')
    if wrong:
        assert wrong in problems(folder, text)["train.script"]
    else:
        load(folder, text)


def test_files_that_are_no_spec(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "broken.toml").write_text("[train\n")
    for name, says in (
        ("missing.toml", "cannot be read"),
        (".", "cannot be read"),
        ("binary.toml", "UTF-8"),
        ("broken.toml", "line 1"),
    ):
        with pytest.raises(SpecError, match=says):
            load_spec(tmp_path / name)


def test_limits_may_come_from_the_command_line_but_must_come(folder: Path) -> None:
    (folder / "train.py").write_text("import seerd\n")
    text = GOOD.replace('deadline = "30m"', "").replace('budget = "480gpu-min"', "")
    with pytest.raises(UsageError, match="--deadline 30m and a budget: --budget"):
        require_limits(of_one(load(folder, text)))
    both = ("limits.deadline", "3m"), ("limits.budget", "9gpu-min")
    require_limits(of_one(load(folder, text, *both)))


toml_values = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(["30m", "8gpu-h", "$4", "max", "local"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = [line.split(" =")[0] for line in GOOD.splitlines() if "=" in line]
SECTIONS = {"name": "", "metric": "", **dict.fromkeys(tomllib.loads(GOOD), "")}


@given(
    st.sampled_from(["", "train", "space", "policy", "limits", "cluster"]),
    st.sampled_from([*KEYS, "x"]),
    toml_values,
)
@settings(max_examples=few(300), deadline=None)
def test_any_value_anywhere_is_either_good_or_told(
    tmp_path_factory: pytest.TempPathFactory, section: str, key: str, value: object
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "train.py").write_text("")
    (folder / "spec.toml").write_text(GOOD)
    try:
        load_spec(folder / "spec.toml", [(f"{section}.{key}" if section else key, _toml(value))])
    except SpecError as error:
        assert error.problems


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(str(k))} = {_toml(v)}" for k, v in value.items()) + "}"
    return (
        '"'
        + "".join(
            f"\\U{ord(c):08x}" if not c.isalnum() else c
            for c in str(value)
            if not 0xD800 <= ord(c) < 0xE000
        )
        + '"'
    )


@given(st.text(max_size=200))
@settings(max_examples=few(200), deadline=None)
def test_any_text_is_either_good_or_told(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("text") / "spec.toml"
    path.write_text(text.encode("utf-8", "replace").decode(), newline="")
    with pytest.raises(SpecError):
        load_spec(path)


OBSERVED = GOOD.replace(
    'args = ["--fast"]',
    """args = ["--lr", "{lr}", '{"a": {"b": 1}}', "{{lr}", "{layers}{optimizer}{momentum}"]
report = 'acc(?:uracy)?[=: ]+([0-9.]+)'
checkpoint = "./out//checkpoint-*"
resume = ["--resume", "{checkpoint}", "--opt={optimizer}"]""",
)


def test_a_script_that_does_not_import_seerd(folder: Path) -> None:
    train = load(folder, OBSERVED).train
    assert train.args[:4] == ("--lr", "{lr}", '{"a": {"b": 1}}', "{{lr}")
    assert train.observed == ObservedScript(
        {"accuracy": "acc(?:uracy)?[=: ]+([0-9.]+)"},
        "out/checkpoint-*",
        ["--resume", "{checkpoint}", "--opt={optimizer}"],
    )
    assert load(folder, GOOD).train.observed is None
    constrained = OBSERVED.replace('mode = "max"', 'mode = "max", constraint = "latency < 3"', 1)
    aimed = OBSERVED.replace('mode = "max"', 'mode = "max", objectives = { latency = "min" }', 1)
    for spec in (constrained, aimed):
        with pytest.raises(SpecError, match="no pattern for 'latency', so nothing would report it"):
            load(folder, spec)
    table = 'report = { accuracy = "acc (.*)", loss = "loss (.*)" }'
    each = load(folder, OBSERVED.replace("report = 'acc(?:uracy)?[=: ]+([0-9.]+)'", table))
    assert each.train.observed is not None
    assert each.train.observed.report == {"accuracy": "acc (.*)", "loss": "loss (.*)"}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("args", '["--lr={l_r}"]', "[space] has no l_r; a brace that means no hyperparameter is"),
        ("args", '["{l_r}"]', "did you mean lr"),
        ("args", '["{checkpoint}"]', "only `resume` may have {checkpoint}"),
        ("resume", '["{checkpont}"]', "did you mean checkpoint"),
        ("report", '"accuracy [0-9]+"', "needs {number} where the number stands"),
        ("report", '"accuracy ("', "is no regular expression"),
        ("report", "[1]", "a pattern, or a table of patterns"),
        ("report", '{ accurracy = "(.*)" }', "has no pattern for the spec's metric 'accuracy'"),
        ("checkpoint", '"/out/last.pt"', "a relative path without '..'"),
        ("checkpoint", '"../last.pt"', "a relative path without '..'"),
        ("checkpoint", '"out/**/last.pt"', "a relative path without '..'"),
    ],
)
def test_mistakes_about_such_a_script(folder: Path, key: str, value: str, said: str) -> None:
    assert said in problems(folder, OBSERVED, (f"train.{key}", value))[f"train.{key}"]


def test_what_such_a_script_needs_together(folder: Path) -> None:
    lines = OBSERVED.splitlines()
    without = "\n".join(line for line in lines if not line.startswith("report"))
    assert "needs `report` too" in problems(folder, without)["train.checkpoint"]
    without = "\n".join(line for line in lines if not line.startswith("checkpoint"))
    assert "needs `checkpoint`" in problems(folder, without)["train.resume"]


def test_a_spec_has_at_most_4_mib(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_bytes(b"#" * ((4 << 20) + 1))
    with pytest.raises(SpecError, match="more than 4 MiB"):
        load_spec(path)
