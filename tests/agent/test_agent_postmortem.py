"""Who was guilty of a crash, out of logs as torchrun leaves them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seerd.agent.postmortem import (
    TAIL_LINES,
    Findings,
    error_in,
    examine,
    is_closing,
    name_own_module,
    name_share,
    of_hung,
    ranks,
)

SUMMARY = """
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-20_22:00:00
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 12)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_22:00:00
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 11)
============================================================
"""


def rank_log(logs: Path, rank: int, stderr: str, silent_since: float, stdout: str = "") -> None:
    """What a rank wrote, and when for the last time."""
    folder = logs / "t1-1_abc" / "attempt_0" / str(rank)
    folder.mkdir(parents=True)
    for name, text in (("stderr.log", stderr), ("stdout.log", stdout)):
        (folder / name).write_text(text)
        os.utime(folder / name, (silent_since, silent_since))


def test_the_rank_that_fell_silent_first_is_guilty_not_the_one_that_lost_its_connection(tmp_path):
    (tmp_path / "launcher.log").write_text(SUMMARY)
    rank_log(tmp_path, 0, "RuntimeError: Connection closed by peer\n", 100.5)
    rank_log(tmp_path, 1, "ValueError: lr is too large\n", 100.125)
    assert examine(tmp_path) == Findings(1, ["ValueError: lr is too large"], 100.125)


def test_a_rank_that_torchrun_does_not_list_is_not_guilty(tmp_path):
    (tmp_path / "launcher.log").write_text(SUMMARY)
    rank_log(tmp_path, 1, "ValueError: lr is too large\n", 100.125)
    rank_log(tmp_path, 2, "", 90.0)
    assert examine(tmp_path).rank == 1


def test_a_rank_that_only_printed_is_quoted_with_that(tmp_path):
    (tmp_path / "launcher.log").write_text(SUMMARY)
    rank_log(tmp_path, 1, "", 100.125, stdout="step 1\nstep 2\n")
    assert examine(tmp_path) == Findings(1, ["step 1", "step 2"], 100.125)


def test_without_torchrun_the_launchers_own_words_are_quoted(tmp_path):
    (tmp_path / "launcher.log").write_text("".join(f"line {n}\n" for n in range(100)))
    assert examine(tmp_path) == Findings(None, [f"line {n}" for n in range(100 - TAIL_LINES, 100)])


def test_a_log_of_any_bytes_is_text(tmp_path):
    (tmp_path / "launcher.log").write_bytes(b"\xff\x00boom")
    assert examine(tmp_path).tail[0].endswith("boom")


FAILED = ["Traceback (most recent call last):", '  File "x.py", line 1, in <module>', "    f()"]
FAILED += ["    ^^^", "ValueError: no"]


@pytest.mark.parametrize("written", range(1, len(FAILED) + 1))
def test_an_error_is_quoted_once_it_is_whole(tmp_path: Path, written: int) -> None:
    """What starts a worker again and again writes one after the other."""
    for before in ([], FAILED):
        (tmp_path / "launcher.log").write_text("\n".join([*before, *FAILED[:written]]))
        is_whole = before or written == len(FAILED)
        assert error_in(tmp_path).endswith("ValueError: no") is bool(is_whole)
        assert bool(error_in(tmp_path)) is bool(is_whole)


def test_no_log_says_nothing(tmp_path):
    assert examine(tmp_path) == Findings()


def test_on_the_second_node_a_rank_is_known_by_its_number_among_all(tmp_path):
    (tmp_path / "launcher.log").write_text(
        SUMMARY.replace("rank      : 1 (local", "rank      : 5 (local")
    )
    rank_log(tmp_path, 1, "ValueError: lr is too large\n", 100.125)
    assert examine(tmp_path) == Findings(5, ["ValueError: lr is too large"], 100.125)


def test_ranks_that_have_been_started_are_known_by_their_logs(tmp_path):
    assert ranks(tmp_path) == set()
    rank_log(tmp_path, 0, "", 100.125)
    rank_log(tmp_path, 3, "", 100.125)
    assert ranks(tmp_path) == {0, 3}


SEVERAL = """
W1122 05:16:45.469000 10 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 11 closing signal SIGTERM
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -9 (pid: 11)  (SIGKILL)
[2]:
  rank      : 2 (local_rank: 2)
  exitcode  : -6 (pid: 13)  (SIGABRT)
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 12)  (SIGKILL)
"""


def test_a_rank_that_was_killed_is_guilty_before_those_that_torchrun_ended_or_that_gave_up_on_it(
    tmp_path,
):
    (tmp_path / "launcher.log").write_text(SEVERAL)
    for rank, since in enumerate((90.0, 110.0, 100.0)):
        rank_log(tmp_path, rank, f"of {rank}\n", since)
    assert examine(tmp_path) == Findings(1, ["of 1"], 110.0, 9)


def test_torchrun_is_ending_its_ranks_when_one_has_failed_and_not_when_it_was_told_to_end():
    assert is_closing(SEVERAL.encode())
    assert not is_closing(b"Received 15 death signal, shutting down workers\n" + SEVERAL.encode())
    assert not is_closing(b"")


def test_the_stack_of_a_rank_that_hung_ends_where_it_is(tmp_path):
    rank_log(
        tmp_path, 0, "half way\nStack (most recent call first):\n  in load\n  in main\n", 100.0
    )
    found = of_hung(tmp_path, 4, 0, 90.0, 12.0)
    assert found.tail == ["half way", "Stack (most recent call last):", "  in main", "  in load"]
    assert (found.rank, found.silent, found.waited_s) == (4, 90.0, 12.0)
    rank_log(tmp_path, 1, "half way\n", 100.0)
    assert of_hung(tmp_path, 5, 1, 90.0, 12.0).tail == ["half way"]


def test_a_module_of_the_source_that_was_not_found_is_named(tmp_path):
    (tmp_path / "mylib").mkdir()
    (tmp_path / "tool.py").touch()
    for module, is_own in (("mylib.data", True), ("tool", True), ("numpy", False), ("..", False)):
        tail = ["Traceback", f"ModuleNotFoundError: No module named '{module}'"]
        name_own_module(tail, tmp_path)
        name = module.split(".")[0]
        told = f"(seerd: {name} is in train.source, which is not on the module path)"
        assert tail[2:] == ([told] if is_own else [])


def test_what_had_too_little_memory_on_a_part_of_a_gpu_is_named_with_its_part():
    lacked = ["Traceback", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"]
    for tail, share, named in (
        (lacked, "2/4", ["seerd: it had 2/4 of the GPU, and of its memory"]),
        (lacked, "", []),
        (["ValueError: no"], "2/4", []),
    ):
        told = [*tail]
        name_share(told, share)
        assert told == [*tail, *named]
