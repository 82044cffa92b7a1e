"""What is seen of a script that does not import seerd: its lines, and files that it saves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from seerd.training.attempt import Attempt
from seerd.training.observer import printed as printed_module
from seerd.training.observer import saved as saved_module
from seerd.training.observer.printed import Line, Lines, Reports
from seerd.training.observer.saved import NOTHING, Saved, SaveOrder, State, Watch, is_sound


def attempt(smooth: int = 1, constraints: Sequence[str] = ()) -> Attempt:
    return Attempt(
        Path(), "t1", {}, "accuracy", "max", 0, 1, [1], Path(), 10.0, None, smooth,
        list(constraints), learns=False,
    )  # fmt: skip


def reports(
    *lines: str, smooth: int = 1, constraints: Sequence[str] = (), **patterns: str
) -> Reports:
    made = Reports(patterns or {"accuracy": "accuracy[=: ]+{number}"}, attempt(smooth, constraints))
    for line in lines:
        list(made.take(Line(line), 0.0))
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
    assert reports("accuracy: 0.5.1", accuracy=r"accuracy: (\S+)").epoch == 0
    assert reports("accuracy: nan").metrics == {"accuracy": None}


def test_a_checkpoint_has_the_mean_of_the_last_reports() -> None:
    made = reports("accuracy 0.1", "accuracy 0.4", "accuracy 0.6", smooth=2)
    assert made.saved_metrics == {"accuracy": 0.5}
    assert reports().saved_metrics == {}


def test_what_we_print_ourselves_is_no_report() -> None:
    assert reports("seerd: accuracy 0.5").epoch == 0


# ---------------------------------------------------------------- reports with constraints

BOTH = {"accuracy": "accuracy {number}", "latency": "latency {number}"}


@pytest.mark.parametrize(
    ("lines", "made"),
    [
        (("accuracy 0.5", "latency 5", "accuracy 0.6", "latency 6"), [(0.5, 5), (0.6, 6)]),
        (("latency 5", "accuracy 0.5", "latency 6", "accuracy 0.6"), [(0.5, 5), (0.6, 6)]),
        (("accuracy 0.5, latency 5", "accuracy 0.6, latency 6"), [(0.5, 5), (0.6, 6)]),
        (("accuracy 0.5", "latency 5", "accuracy 0.6", "accuracy 0.7", "latency 7"),
         [(0.5, 5), (0.6, 5), (0.7, 7)]),
    ],
)  # fmt: skip
def test_a_report_has_the_constrained_metrics_of_its_epoch_in_either_order(
    lines: Sequence[str], made: list[tuple[float, float]]
) -> None:
    taken = Reports(BOTH, attempt(constraints=["latency < 20"]))
    found = [dict(taken.metrics) for line in lines for _ in taken.take(Line(line), 0.0)]
    assert [(one["accuracy"], one["latency"]) for one in found] == made
    assert not taken.waits


def test_a_constrained_metric_that_is_not_printed_is_waited_for_and_missed_then() -> None:
    made = reports("accuracy 0.5", constraints=["latency < 20"], **BOTH)
    assert made.waits
    assert list(made.late(printed_module.COMPLETE_S - 0.1)) == []
    assert len(list(made.late(printed_module.COMPLETE_S))) == 1
    assert (made.metrics, made.unprinted) == ({"accuracy": 0.5}, ["latency"])
    assert made.saved_metrics == {"accuracy": 0.5}


def test_a_constrained_metric_that_comes_now_and_then_is_waited_for_only_briefly() -> None:
    lines = ("latency 5", "accuracy 0.5", "accuracy 0.6")
    made = reports(*lines, constraints=["latency < 20"], **BOTH)
    assert (made.epoch, made.waits, made.is_sparse) == (1, True, False)
    list(made.take(Line("accuracy 0.7"), 0.0))
    assert (made.metrics["accuracy"], made.waits, made.is_sparse) == (0.6, True, True)
    assert list(made.late(printed_module.BRIEFLY_S / 2)) == []
    assert len(list(made.late(printed_module.BRIEFLY_S))) == 1
    assert made.metrics == {"accuracy": 0.7, "latency": 5.0}


def test_a_constraint_is_not_forgotten_when_a_trial_goes_on() -> None:
    made = reports(constraints=["latency < 20"], **BOTH)
    made.go_on(3, {"accuracy": 0.5, "latency": 25.0}, [None])
    list(made.take(Line("accuracy 0.6"), 0.0))
    list(made.complete())
    assert (made.epoch, made.unprinted) == (4, [])
    assert made.saved_metrics["accuracy"] is None


def test_what_violates_a_constraint_is_no_checkpoints_metric() -> None:
    made = reports("accuracy 0.5 latency 25", constraints=["latency < 20"], **BOTH)
    assert made.metrics == {"accuracy": 0.5, "latency": 25.0}
    assert made.saved_metrics["accuracy"] is None


# ---------------------------------------------------------------- lines


def test_lines_come_whole_and_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = Lines(lambda: [path])
    assert list(lines.new()) == []
    with path.open("ab", buffering=0) as out:
        out.write(b"one\ntw")
        assert list(lines.new()) == [Line("one", True, path)]
        out.write(b"o\r 50%\rthree\r\n")
        assert list(lines.new()) == [
            Line("two", False, path), Line(" 50%", False, path), Line("three", True, path),
        ]  # fmt: skip
        out.write(b"\r 60%")
        assert list(lines.new()) == [Line("", False, path)]
        assert list(lines.new()) == [Line(" 60%", False, path)]  # it stands still
        assert list(lines.rest())[-1] == Line(" 60%", True, path)
        assert list(lines.rest()) == []


@pytest.mark.parametrize(("was_cut", "ends"), [(False, True), (True, False)])
def test_a_bar_that_is_cut_off_has_no_end(tmp_path: Path, was_cut: bool, ends: bool) -> None:
    path = tmp_path / "log"
    path.write_text("one\n1/9 acc=0.9\r2/9 acc=0.8")
    found = [(line.text, line.ends) for line in Lines(lambda: [path]).rest(was_cut=was_cut)]
    assert found == [("one", True), ("1/9 acc=0.9", False), ("2/9 acc=0.8", ends)]


def test_a_line_that_is_cut_off_and_is_no_bar_counts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("acc=0.9")
    assert [line.ends for line in Lines(lambda: [path]).rest(was_cut=True)] == [True]


def test_of_several_bars_none_ends_when_the_cursor_moves_to_another(tmp_path: Path) -> None:
    """As tqdm writes two bars, the inner one below."""
    path = tmp_path / "log"
    path.write_bytes(b"\router 1\n\rinner 1\x1b[A\n\rinner 2\x1b[A\router 2\n\r   \x1b[A\n")
    ends = {line.text: line.ends for line in Lines(lambda: [path]).new() if line.text.strip()}
    assert ends == {"outer 1": False, "inner 1": False, "inner 2": False, "outer 2": False}


# ---------------------------------------------------------------- lines that are rewritten


def counted(*shown: tuple[float, str]) -> list[tuple[float, float | None]]:
    """Show texts at moments, as they are written: a carriage return before each, a line feed where
    it has one; return when which numbers were reports.
    """
    taken, found = Reports({"accuracy": "acc={number}"}, attempt()), []
    for at, text in shown:
        line = Line(text.rstrip("\n"), text.endswith("\n"))
        found += [(at, taken.metrics["accuracy"]) for _ in taken.take(line, at)]
    return found


def bar(at: float, seconds: float, *texts: str, each_s: float = 0.1) -> list[tuple[float, str]]:
    """Show one text after the other, each refreshed for so many seconds."""
    count = round(seconds / each_s)
    return [
        (at + (number * count + tick) * each_s, f"{number} {tick}: {text}")
        for number, text in enumerate(texts)
        for tick in range(count)
    ]


def test_a_number_that_refreshes_repeat_is_a_report_when_it_changes() -> None:
    found = counted(*bar(0, 2, "acc=0.0", "acc=0.4", "acc=0.6"))
    assert found == [(pytest.approx(2.0), 0.4), (pytest.approx(4.0), 0.6)]


def test_a_number_that_comes_into_a_bar_is_a_report_once_it_stands() -> None:
    found = counted(*bar(0, 2, "", "acc=0.4", "acc=nan"))
    assert found == [(pytest.approx(3.0), 0.4), (pytest.approx(4.0), None)]


def test_a_running_mean_is_a_report_when_its_bar_ends() -> None:
    one = [f"acc=0.{number:02}" for number in range(40)]
    first = [*bar(0, 0.1, *one), (4.0, "acc=0.5\n")]
    second = [*bar(60, 0.1, *one * 3), (72.0, "acc=0.6\n")]
    assert counted(*first, *second) == [(4.0, 0.5), (72.0, 0.6)]


def test_a_running_mean_without_an_end_is_a_report_now_and_then() -> None:
    found = counted(*bar(0, 0.1, *(f"acc={number}" for number in range(200))))
    assert [round(at) for at, _ in found] == [5, 10, 15]


def test_each_bar_of_an_epoch_is_one_report_though_the_number_is_the_same() -> None:
    """As Keras writes it: the number of the validation comes with the end."""
    epoch = [*bar(0, 1, "loss 3", "loss 2"), (2.0, "loss 2 acc=0.5\n")]
    later = [(at + 10, text) for at, text in epoch]
    assert counted(*epoch, *later) == [(2.0, 0.5), (12.0, 0.5)]


def test_a_number_that_was_in_a_bar_from_the_start_is_none_when_it_ends() -> None:
    """As in `tqdm(..., postfix={"acc": last})`: it is that of the epoch before."""
    found = counted(
        *bar(0, 2, "acc=0.0"), (2.0, "acc=0.0\n"), *bar(3, 2, "acc=0.4"), (5.0, "acc=0.4\n")
    )
    assert found == [(pytest.approx(4.0), 0.4)]


def test_a_line_that_is_printed_while_a_bar_is_cleared_is_a_report() -> None:
    """As `tqdm.write` does, and where each line begins with a carriage return."""
    cleared = [(2.0, " " * 20), (2.0, "acc=0.5\n"), (2.0, "acc=0.0")]
    assert counted(*bar(0, 2, "acc=0.0"), *cleared, *bar(3, 3, "acc=0.0")) == [(2.0, 0.5)]
    assert counted((0.0, ""), (0.0, "acc=0.5\n"), (1.0, ""), (1.0, "acc=0.5\n")) == [
        (0.0, 0.5), (1.0, 0.5),
    ]  # fmt: skip


# ---------------------------------------------------------------- whole files


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path, "out/*", 0)


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


HALF = """
import time
with open("last.json", "w") as out:
    out.write('{"step": ')
    out.flush()
    print("half", flush=True)
    time.sleep(600)
"""


def observing(folder: Path, script: str, every_s: float) -> tuple[subprocess.Popen[bytes], ...]:
    """A script that saves last.json, and the process that observes it."""
    about = {"trial": "t1", "config": {}, "metric": "accuracy", "mode": "max", "seed": 0, "gpus": 1}
    observed = {"report": {"accuracy": "accuracy ([0-9.]+)"}, "checkpoint": "last.json"}
    observed |= {"work": str(folder), "logs": str(folder), "by_torchrun": False}
    more = {"allocations": [1], "checkpoints": str(folder / "kept"), "checkpoint_every_s": every_s}
    (folder / "trial.json").write_text(json.dumps({**about, **more, "observed": observed}))
    (folder / "launcher.log").write_text("accuracy 0.5\n")
    (folder / "out.jsonl").touch()
    started = subprocess.Popen([sys.executable, "-c", script], cwd=folder, stdout=subprocess.PIPE)
    command = [sys.executable, "-m", "seerd.training.observer", str(started.pid)]
    return started, subprocess.Popen(command, env={**os.environ, "SEERD_DIR": str(folder)})


def test_what_the_death_of_its_writer_has_closed_is_not_whole(tmp_path: Path) -> None:
    """However long it takes until somebody says that the script has ended."""
    script, observer = observing(tmp_path, HALF, every_s=0.0)
    assert script.stdout is not None
    script.stdout.readline()
    while '"report"' not in (tmp_path / "out.jsonl").read_text():
        time.sleep(0.01)
    script.kill()
    time.sleep(3 * saved_module.KNOWN_QUIET_S)
    (tmp_path / "ended").write_text("-9")
    observer.wait()
    script.wait()
    script.stdout.close()
    assert '"checkpoint"' not in (tmp_path / "out.jsonl").read_text()
    assert not (tmp_path / "kept").exists()


BETTER = """
import json, os, time
def save(accuracy):
    with open("part", "wb") as out:
        out.write(str(accuracy).encode() * 40_000_000)
    os.replace("part", "last.json")
    with open("launcher.log", "a") as log:
        print("accuracy", accuracy, file=log)
def lines():
    return [json.loads(line) for line in open("out.jsonl").read().splitlines()]
save(0.6)
while not (taken := [line["save_s"] for line in lines() if line["kind"] == "checkpoint"]):
    time.sleep(0.01)
for accuracy in (0.9, 0.7):
    save(accuracy)
    time.sleep(15 * taken[0])
"""


def test_a_better_save_is_not_passed_over_for_a_later_one(tmp_path: Path) -> None:
    """It stands for 15 times what the copy before took, and is taken at once."""
    script, observer = observing(tmp_path, BETTER, every_s=1e6)
    script.communicate()
    (tmp_path / "ended").write_text("0")
    observer.wait()
    kept = [json.loads(path.read_text()) for path in (tmp_path / "kept").glob("[0-9]*.json")]
    accuracies = {manifest["metrics"]["accuracy"]: manifest["name"] for manifest in kept}
    assert max(accuracies) == 0.9
    assert (tmp_path / "kept" / f"{accuracies[0.9]}.pt").read_bytes()[:6] == b"0.90.9"


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
    assert watch.may_be_whole(replace(found, since=found.since - 1))
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
        replace(found, since=found.since - since_s) for since_s in (quiet_s - 0.2, quiet_s)
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


def test_a_file_that_is_held_cannot_be_opened_for_writing_and_an_open_one_not_held(
    tmp_path: Path, watch: Watch
) -> None:
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "model.bin"
    path.write_bytes(b"x")
    found = until_quiet(watch)
    with watch.held(found):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert writer.stdin is not None
        assert writer.stdout is not None
        time.sleep(0.3)
        assert path.read_bytes() == b"x"
        assert watch.is_as_it_was(found)
    assert writer.stdout.readline() == b"half\n"
    with pytest.raises(BlockingIOError), watch.held(found):
        pass
    writer.stdin.close()
    writer.wait()
    writer.stdout.close()


# ---------------------------------------------------------------- the order of files in a folder


def orders(*states: dict[str, int], path: str = "ck") -> list[bool]:
    """Return for each state of a folder (name -> time) whether it is known to be complete."""
    order, before, found = SaveOrder(), NOTHING, []
    for state in states:
        now: State = path, tuple((f"{path}/{name}", 1, 1, at) for name, at in state.items())
        order.note(before, now)
        found.append(order.is_complete(now))
        before = now
    return found


def test_a_folder_is_complete_when_its_last_file_is_newest() -> None:
    in_place = [
        {"b": 1}, {"b": 1, "a": 2}, {"b": 3, "a": 2}, {"b": 3, "a": 4}, {"b": 5, "a": 4},
        {"b": 5, "a": 6}, {"b": 7, "a": 6}, {"b": 7, "a": 8},
    ]  # fmt: skip
    assert orders(*in_place) == [False] * 5 + [True, False, True]


def test_numbers_of_upper_folders_do_not_count_once_old_ones_go_away() -> None:
    states = []
    for at in range(10, 90, 10):
        last = {f"step_{at - 10}/a": at - 10, f"step_{at - 10}/b": at - 9, "latest": at - 8}
        last = last if at > 10 else {}
        first, both = f"step_{at}/a", {f"step_{at}/a": at, f"step_{at}/b": at + 1}
        states += [{**last, first: at}, {**last, **both}, {**both, "latest": at + 2}]
    found = orders(*states)
    assert found[-6:] == [False, False, True] * 2
    assert not any(found[0::3])
    assert not any(found[1::3])


def test_of_a_folder_whose_first_save_was_not_seen_the_order_is_not_known() -> None:
    order = SaveOrder()
    before: State = "ck", (("ck/a", 1, 1, 3), ("ck/b", 2, 1, 2))
    for at in range(4, 20):
        now: State = "ck", (("ck/a", 1, 1, at + at % 2), ("ck/b", 2, 1, at - at % 2))
        order.note(before, now)
        assert not order.is_complete(now)
        before = now
