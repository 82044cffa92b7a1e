"""`seerd simulate` as people use it: options, exit codes, what is printed where, and Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from seerd import cli
from seerd.commands.common import orderly

FEW = (
    "--deadline",
    "15m",
    "--budget",
    "120gpu-min",
    "--seeds",
    "2",
    "--policies",
    "seer,asha,random",
)
LONG = ("--deadline", "1h", "--budget", "960gpu-min", "--seeds", "400", "--policies", "asha")
SPEC = """
metric = { name = "accuracy", mode = "max" }
[train]
script = "train.py"
[space]
lr = { low = 1e-4, high = 1.0, log = true }
width = [32, 64]
"""


@pytest.fixture
def curves(tmp_path: Path) -> Path:
    """Twelve curves that end between 0.5 and 0.9, reports every 20 s."""
    rows = np.linspace(0.5, 0.9, 12)[:, None] * (1 - 0.9 ** np.arange(1, 41))
    np.savez(tmp_path / "curves.npz", metric=rows, seconds=np.full(12, 20.0), mode="max")
    return tmp_path / "curves.npz"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "spec.toml").write_text(SPEC)
    return tmp_path / "spec.toml"


def start(*args: object, before: str = "", **more: object) -> subprocess.Popen[bytes]:
    """A real process, its two outputs apart."""
    command = [
        sys.executable,
        "-c",
        f"{before}\nfrom seerd import cli; cli.main()",
        "simulate",
        *map(str, args),
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.Popen(command, cwd=Path(cli.__file__).parent, **pipes)  # type: ignore[call-overload,no-any-return]


def simulate(*args: object, **more: object) -> bytes:
    """What it prints on stdout; nothing on stderr."""
    process = start(*args, **more)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (0, b"")
    return out


class Inside:
    """The command in this process, where that makes no difference."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *args: object, code: int = 0) -> str:
        """What it prints on stdout or, if there is nothing to show, on stderr; nothing on the
        other.
        """
        self._monkeypatch.setattr(sys, "argv", ["seerd", "simulate", *map(str, args)])
        self._monkeypatch.setenv("COLUMNS", "80")
        before = signal.getsignal(signal.SIGINT)
        try:
            with pytest.raises(SystemExit) as ended, orderly():
                cli.app()
        finally:
            signal.signal(signal.SIGINT, before)
        out, err = self._capsys.readouterr()
        assert ended.value.code == code, err
        assert "" in (out, err)
        return out or err

    def json(self, *args: object) -> list[dict]:
        return json.loads(self(*args, "--json"))  # type: ignore[no-any-return]


@pytest.fixture
def inside(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Inside:
    """Runs the command in this process."""
    return Inside(capsys, monkeypatch)


class TestSameSeedsSameAnswer:
    def test_on_one_core_or_all_in_any_process_whatever_hashes_are(self, curves: Path) -> None:
        one = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
        worst = ("--stragglers", "0.5", "--drops", "0.05", "--spot", "15m")
        answers = {
            simulate(
                "--curves",
                curves,
                *FEW,
                *worst,
                "--json",
                before=before,
                env={**os.environ, "PYTHONHASHSEED": seed},
            )
            for before, seed in (("", "1"), (one, "2"))
        }
        assert len(answers) == 1

    def test_made_up_curves_are_the_same_ones_too(self, spec: Path, inside: Inside) -> None:
        args = (
            spec,
            "--deadline",
            "20m",
            "--budget",
            "40gpu-min",
            "--policies",
            "random",
            "--seeds",
            "3",
            "--json",
        )
        assert inside(*args).encode() == simulate(*args)


class TestOutput:
    def test_json_is_one_array_and_nothing_else(self, curves: Path) -> None:
        out = simulate("--curves", curves, *FEW, "--json")
        assert out.count(b"\n") == 1
        told = json.loads(out)
        assert [row["policy"] for row in told] == ["seer", "asha", "random"]
        assert all(len(row["best"]) == 2 and row["violations"] == 0 for row in told)

    def test_text_fits_80_columns_with_every_policy_and_names_the_curves(
        self, curves: Path, inside: Inside
    ) -> None:
        lines = inside(
            "--curves", curves, "--deadline", "1h10m", "--budget", "200gpu-min", "--seeds", "1"
        )
        assert max(len(line) for line in lines.splitlines()) <= 80
        assert "…" not in lines, "no column is cut"
        assert "curves of curves.npz" in lines
        assert "deadline 1h10m, budget 200 GPU-min" in lines

    def test_of_a_spec_as_well(self, spec: Path, inside: Inside) -> None:
        lines = inside(spec, *FEW)
        assert max(len(line) for line in lines.splitlines()) <= 80
        assert "made-up curves" in lines

    def test_every_pair_of_limits_has_its_table(self, curves: Path, inside: Inside) -> None:
        limits = (
            "--deadline",
            "10m, 20m,10m",
            "--budget",
            "1gpu-min,120gpu-min",
            "--policies",
            "sha,random,sha",
        )
        lines = inside("--curves", curves, *limits, "--seeds", "1").splitlines()
        heads = [line for line in lines if line.startswith("deadline")]
        assert heads == [
            f"deadline {t}, budget {b} GPU-min" for t in ("10m", "20m") for b in (1, 120)
        ]
        assert sum("not run" in line for line in lines) == 4
        assert sum(line.startswith("sha: ") for line in lines) == 2, "and why"
        assert max(len(line) for line in lines) <= 80
        assert sum(line.startswith("sha ") for line in lines) == 4, "nothing is simulated twice"

    @pytest.mark.parametrize(("budget", "code"), [("60gpu-min,120gpu-min", 0), ("1gpu-min", 3)])
    def test_a_picture_is_drawn_also_if_nothing_fits_and_the_exit_code_says_so(
        self, curves: Path, tmp_path: Path, inside: Inside, budget: str, code: int
    ) -> None:
        picture = tmp_path / "plot.png"
        limits = ("--deadline", "10m,20m", "--budget", budget, "--policies", "sha,random")
        inside("--curves", curves, *limits, "--seeds", "1", "--plot", picture, code=code)
        assert picture.read_bytes().startswith(b"\x89PNG")

    def test_the_progress_bar_is_for_terminals(self, curves: Path) -> None:
        terminal, stderr = pty.openpty()
        process = start("--curves", curves, *FEW, "--json", stderr=stderr)
        os.close(stderr)
        out, _ = process.communicate()
        assert process.returncode == 0
        assert b"simulating" in everything(terminal)
        assert out == simulate("--curves", curves, *FEW, "--json"), (
            "which also checks that stderr is empty without one"
        )


def everything(terminal: int) -> bytes:
    """What was written to it until its last writer closed it."""
    found = b""
    with contextlib.suppress(OSError):
        while more := os.read(terminal, 65536):
            found += more
    os.close(terminal)
    return found


def until(terminal: int, text: bytes) -> None:
    """Wait until it shows this."""
    found = b""
    while text not in found:
        found += os.read(terminal, 65536)


class TestTheEndOfALongStudy:
    @pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
    def test_no_process_is_left(self, curves: Path, how: signal.Signals) -> None:
        """Ctrl-C reaches the workers as well, as it does in a terminal; a kill does not, and they
        end all the same.
        """
        terminal, stderr = pty.openpty()
        process = start("--curves", curves, *LONG, stderr=stderr, start_new_session=True)
        os.close(stderr)
        until(terminal, b" 2/400")
        workers = psutil.Process(process.pid).children(recursive=True)
        assert workers
        if how is signal.SIGINT:
            os.killpg(process.pid, how)
        else:
            process.send_signal(how)
        out, _ = process.communicate(timeout=5)
        assert process.returncode == (130 if how is signal.SIGINT else -signal.SIGKILL)
        assert out == b""
        _, alive = psutil.wait_procs(workers, timeout=5)
        assert not alive
        assert everything(terminal).count(b"seerd: interrupted") == (how is signal.SIGINT)


WRONG: list[tuple[tuple[str, ...], str]] = [
    (
        ("--policies", "seeer"),
        "there is no 'seeer'; there are seer\\+, seer, random",
    ),
    (("--policies", "hyperbnad,seer"), "there is no 'hyperbnad'"),
    (("--policies", ""), "--policies: there is no ''"),
    (("--deadline", "30"), "--deadline: write a duration with its units"),
    (("--deadline", "15m,,30m"), "--deadline: write a duration"),
    (("--deadline", "0s"), "--deadline: 0s is not more than nothing"),
    (("--budget", "480"), "--budget: write GPU time with its unit"),
    (("--budget", "0gpu-min"), "--budget: 0gpu-min is not more than nothing"),
    (("--full-curve", "soon"), "--full-curve: write a duration"),
    (("--full-curve", "0s"), "--full-curve: 0s is not more than nothing"),
    (("--spot", "0s"), "--spot: 0s is not more than nothing"),
    (("--scaling", "2:1.9"), "--scaling: a scaling begins with 1:1"),
    (("--scaling", "1:1,4:3,2:1.9"), "--scaling: 2 GPUs come after 4"),
    (("--scaling", "1:1,2:-1"), "--scaling: the throughput on 2 GPUs must be a positive number"),
    (("--scaling", "resnet5000"), "--scaling: .*1:1,2:1.87.*resnet50"),
    (("--stragglers", "inf"), "--stragglers: write a number, not inf"),
    (("--stragglers", "nan"), "--stragglers"),
    (("--stragglers", "-1"), "--stragglers"),
    (("--drops", "nan"), "--drops"),
    (("--drops", "1.5"), "--drops"),
    (("--seeds", "0"), "--seeds"),
    (("--max-gpus", "0"), "--max-gpus"),
    (("--set", "policy.eta=2"), "--set changes keys of a spec: give a SPEC as well"),
    (
        ("--plot", "plot.txt"),
        r"plot.txt: a picture ends in .svg, .png, .pdf",
    ),
    (("--plot", "plot"), "plot: a picture ends in"),
    (("--plot", "/nowhere/plot.png"), "there is no folder /nowhere"),
]


@pytest.mark.parametrize(("options", "says"), WRONG)
def test_a_wrong_option_is_told_before_anything_is_simulated(
    curves: Path, inside: Inside, options: tuple[str, ...], says: str
) -> None:
    said = inside("--curves", curves, *FEW[:4], *options, code=2)
    assert re.search(says, " ".join(said.split())), said


def test_what_is_missing_is_told(curves: Path, spec: Path, inside: Inside) -> None:
    assert "give a SPEC, or --curves FILE" in inside(*FEW, code=2)
    assert "give --deadline" in inside("--curves", curves, "--budget", "1gpu-h", code=2)
    assert "give --budget" in inside(spec, "--deadline", "1h", code=2)
    missing = curves.parent / "none.npz"
    assert f"{missing} cannot be read as curves" in inside("--curves", missing, *FEW, code=2)
    assert "it cannot be read" in inside(curves.parent / "none.toml", *FEW, code=2)


class TestWhatASpecSays:
    def test_its_limits_and_policy_count_unless_the_command_line_says_otherwise(
        self, spec: Path, curves: Path, inside: Inside
    ) -> None:
        limits = (
            '[limits]\ndeadline = "10m"\nbudget = "36gpu-min"\n[policy]\ntrials = '
            "3\n[cluster]\ngpus = 4\n"
        )
        spec.write_text(SPEC + limits)
        args = (spec, "--curves", curves, "--policies", "random", "--seeds", "1")
        (row,) = inside.json(*args)
        assert (row["deadline_s"], row["budget_gpu_min"], row["trials"]) == (600.0, 36.0, 3)
        (row,) = inside.json(*args, "--budget", "26gpu-min", "--set", "policy.trials=1")
        assert (row["budget_gpu_min"], row["trials"]) == (26.0, 1)

    def test_its_target_ends_runs_as_soon_as_a_saved_model_is_as_good(
        self, spec: Path, curves: Path, inside: Inside
    ) -> None:
        asked = (spec, "--curves", curves, *FEW[:-1], "seer")
        (whole,) = inside.json(*asked)
        (reached,) = inside.json(*asked, "--set", "metric.target=0.3")
        assert min(whole["best"]) > min(reached["best"]) >= 0.3
        assert reached["elapsed_s"] < whole["elapsed_s"] / 2
        assert reached["gpu_min"] < whole["gpu_min"] / 2
        (out_of_reach,) = inside.json(*asked, "--set", "metric.target=0.99")
        assert out_of_reach == whole

    def test_a_target_for_another_mode_than_that_of_the_curves_is_refused(
        self, spec: Path, curves: Path, inside: Inside
    ) -> None:
        asked = (spec, "--curves", curves, *FEW)
        wrong = ("--set", "metric.mode=min", "--set", "metric.target=0.3")
        assert "metric.target = 0.3 is for mode = 'min'" in inside(*asked, *wrong, code=2)

    def test_a_machine_has_no_more_gpus_than_it_has(self, spec: Path, inside: Inside) -> None:
        """Its cores, where the spec does not say how many slots."""
        (row,) = inside.json(
            spec,
            "--deadline",
            "10m",
            "--budget",
            "100000gpu-min",
            "--policies",
            "random",
            "--seeds",
            "1",
        )
        assert row["without_model"] == 0
        assert 0 < row["gpu_min"] <= (os.cpu_count() or 1) * 10

    def test_money_alone_bounds_rented_instances(
        self, spec: Path, curves: Path, inside: Inside
    ) -> None:
        spec.write_text(
            SPEC + '[limits]\ndeadline = "20m"\ncost = "$8"\n[cluster]\nprovider = "ec2"\n'
        )
        (row,) = inside.json(spec, "--curves", curves, "--policies", "sha", "--seeds", "1")
        assert row["budget_gpu_min"] == pytest.approx(8 / 3.06 * 60)
        assert 0 < row["gpu_min"] <= row["budget_gpu_min"]
