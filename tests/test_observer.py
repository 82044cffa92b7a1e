"""What is seen of a script that does not import seerd: its lines, and files that it saves."""

from __future__ import annotations

import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from seerd.training.observer import saved as saved_module
from seerd.training.observer.printed import Lines, Reports
from seerd.training.observer.saved import Saved, Watch, is_sound


def reports(*lines: str, smooth: int = 1, **patterns: str) -> Reports:
    made = Reports(patterns or {"accuracy": r"accuracy[=: ]+([0-9.]+|nan)"}, "accuracy", smooth)
    for line in lines:
        made.take(line)
    return made


def test_each_line_with_the_metric_is_a_report() -> None:
    made = reports("accuracy: 0.5", "nothing", "\x1b[1maccuracy\x1b[0m", "epoch 2 accuracy=0.75")
    assert (made.epoch, made.metrics) == (2, {"accuracy": 0.75})


def test_other_metrics_count_with_their_newest_value() -> None:
    made = reports(
        "loss 3", "loss 2", "accuracy 0.5 loss 1", "accuracy 0.6", accuracy=r"accuracy (\S+)",
        loss=r"loss (\S+)",
    )  # fmt: skip
    assert (made.epoch, made.metrics) == (2, {"accuracy": 0.6, "loss": 1.0})
    assert reports("loss 3", accuracy=r"accuracy (\S+)", loss=r"loss (\S+)").epoch == 0


def test_what_is_no_number_makes_no_report_and_nan_is_one() -> None:
    assert reports("accuracy: 0.5.1").epoch == 0
    assert reports("accuracy: nan").metrics == {"accuracy": None}


def test_a_checkpoint_has_the_mean_of_the_last_reports() -> None:
    made = reports("accuracy 0.1", "accuracy 0.4", "accuracy 0.6", smooth=2)
    assert made.saved_metrics == {"accuracy": 0.5}
    assert reports().saved_metrics == {}


def test_what_we_print_ourselves_is_no_report() -> None:
    assert reports("seerd: accuracy 0.5").epoch == 0


def test_lines_come_whole_and_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = Lines(lambda: [path])
    assert list(lines.new()) == []
    with path.open("ab", buffering=0) as out:
        out.write(b"one\ntw")
        assert list(lines.new()) == ["one"]
        out.write(b"o\r 50%\rthree")
        assert list(lines.new()) == ["two", " 50%"]
        assert list(lines.rest()) == ["three"]
        assert list(lines.rest()) == []


# ---------------------------------------------------------------- whole files


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path, "out/*")


def test_a_file_is_whole_when_it_is_closed_and_has_not_changed_for_a_moment(
    tmp_path: Path, watch: Watch
) -> None:
    (tmp_path / "out").mkdir()
    assert watch.look() is None
    path = tmp_path / "out" / "model.bin"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    writer.stdout.readline()
    found = until_quiet(watch)
    assert not watch.may_be_whole(found)  # half of it is there, and its writer waits
    writer.stdin.close()
    writer.wait()
    writer.stdout.close()
    assert not watch.is_as_it_was(found)
    found = until_quiet(watch)
    assert watch.may_be_whole(found)
    assert watch.is_as_it_was(found)
    assert path.read_bytes() == b"onetwo"


WRITER = """
import sys
with open(sys.argv[1], "wb", buffering=0) as out:
    out.write(b"one")
    print("half", flush=True)
    sys.stdin.read()
    out.write(b"two")
"""


def until_quiet(watch: Watch) -> Saved:
    while True:
        found = watch.look()
        if found is not None and found.age_s() > saved_module.FILE_QUIET_S:
            return found
        time.sleep(0.01)


def test_a_file_that_has_just_changed_is_not_whole(tmp_path: Path, watch: Watch) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.bin").write_bytes(b"x")
    found = watch.look()
    assert found is not None
    assert not watch.may_be_whole(found)
    assert watch.may_be_whole(Saved(found.path, found.signature, found.since - 1))
    (tmp_path / "out" / "model.bin").write_bytes(b"xy")
    assert watch.look() is not found


@pytest.mark.parametrize(
    ("files", "quiet_s"),
    [
        (("model.safetensors",), saved_module.FOLDER_QUIET_S),
        (("model.safetensors", "trainer_state.json"), saved_module.KNOWN_QUIET_S),
        (("__0_0.distcp", ".metadata"), saved_module.KNOWN_QUIET_S),
    ],
)
def test_a_folder_must_be_quiet_for_longer(
    tmp_path: Path, watch: Watch, files: tuple[str, ...], quiet_s: float
) -> None:
    folder = tmp_path / "out" / "checkpoint-5"
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_bytes(b"x")
    found = watch.look()
    assert found is not None
    assert found.path == "out/checkpoint-5"
    almost, enough = (
        Saved(found.path, found.signature, found.since - since_s)
        for since_s in (quiet_s - 0.2, quiet_s)
    )
    assert not watch.may_be_whole(almost)
    assert watch.may_be_whole(enough)


def test_the_newest_of_several_counts_and_an_empty_folder_is_nothing(
    tmp_path: Path, watch: Watch
) -> None:
    (tmp_path / "out" / "empty").mkdir(parents=True)
    assert watch.look() is None
    (tmp_path / "out" / "b").write_bytes(b"x")
    time.sleep(0.02)
    (tmp_path / "out" / "a").write_bytes(b"x")
    found = watch.look()
    assert found is not None
    assert found.path == "out/a"


def test_a_zip_shows_itself_whether_it_is_whole(tmp_path: Path, watch: Watch) -> None:
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "last.pt"
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("data.pkl", b"0123456789" * 100)
        out.writestr("data/0", b"weights" * 100)
    found = watch.look()
    assert found is not None
    assert watch.may_be_whole(found)
    assert is_sound(path)
    whole = path.read_bytes()
    for end in range(4, len(whole), 97):
        path.write_bytes(whole[:end])
        assert not is_sound(path)
    middle = bytearray(whole)
    middle[200] ^= 1  # as where two saves are mixed
    path.write_bytes(middle)
    assert not is_sound(path)
