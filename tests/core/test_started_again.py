"""Which trials are started again after a crash, and what their crashes say of configurations."""

from __future__ import annotations

import pytest

from seerd.core.events import TrialReported
from seerd.core.last_words import memory_lacked, obstacle_of
from seerd.core.lifecycle import TrialPhase
from tests.core.test_alike import crash, run_of
from tests.core.test_answers import Run

FRAMES = ("Traceback (most recent call last):", '  File "/src/train.py", line 40, in step')
MEMORY = (
    *FRAMES,
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 15.00 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process "
        "has 14.00 GiB memory in use."
    ),
)
BESIDE = (
    *FRAMES,
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 15.00 GiB of which 1.00 GiB is free. Process 4711 has 9.00 GiB memory in use. "
        "Including non-PyTorch memory, this process has 5.00 GiB memory in use."
    ),
)


def is_over(run: Run, name: str) -> bool:
    return run.state.trials[name].phase is TrialPhase.FAILED


def failing(run: Run, name: str) -> bool:
    return run.state.trials[name].failing


def report(run: Run, name: str, reports: int) -> None:
    run.fact(TrialReported, name, reports=reports, metric=0.5, unit_s=0.1)


def test_a_crash_that_may_be_chance_is_started_again_once() -> None:
    run = run_of("a", "b", "c")
    crash(run, "a", (*FRAMES, "RuntimeError: a moment's"))
    assert failing(run, "a"), "until it shows otherwise"
    assert run.state.trials["a"].attempt == 2
    crash(run, "a", (*FRAMES, "RuntimeError: a moment's"))
    assert is_over(run, "a")
    assert failing(run, "a")


def test_a_report_after_a_crash_says_that_it_was_chance() -> None:
    run = run_of("a", "b", "c")
    crash(run, "a", (*FRAMES, "RuntimeError: a moment's"))
    report(run, "a", 1)
    assert not failing(run, "a")


def test_a_gpu_without_enough_memory_for_it_alone_is_not_tried_again() -> None:
    run = run_of("a", "b", "c")
    crash(run, "a", MEMORY)
    assert is_over(run, "a")
    assert failing(run, "a")


def test_it_is_tried_again_if_it_came_further_before() -> None:
    run = run_of("a", "b", "c")
    report(run, "a", 1)
    crash(run, "a", MEMORY)
    assert not is_over(run, "a")
    crash(run, "a", MEMORY)
    assert is_over(run, "a"), "it has not come further since"


def test_memory_that_others_had_says_nothing_until_it_is_lacking_again() -> None:
    run = run_of("a", "b", "c")
    crash(run, "a", BESIDE)
    assert not is_over(run, "a")
    assert not failing(run, "a")
    crash(run, "a", MEMORY)
    assert is_over(run, "a")
    assert failing(run, "a")


def test_a_traceback_that_came_again_in_another_trial_is_not_waited_for() -> None:
    error = "ValueError: width {} cannot be divided by 7"
    run = run_of("a", "b", "c")
    report(run, "c", 1)
    for _ in range(2):
        crash(run, "a", (*FRAMES, error.format(32)))
    assert is_over(run, "a")
    crash(run, "b", (*FRAMES, error.format(100)))
    assert is_over(run, "b"), "numbers may differ"
    assert run.state.trials["b"].attempt == 1


@pytest.mark.parametrize(
    "tail",
    [
        (FRAMES[0], '  File "/src/train.py", line 41, in step', "ValueError: width 32"),
        (*FRAMES, "TypeError: width 32"),
        ("ValueError: width 32",),
    ],
    ids=["another line", "another error", "no traceback"],
)
def test_another_failure_is_tried_again(tail: tuple[str, ...]) -> None:
    run = run_of("a", "b", "c")
    report(run, "c", 1)
    for _ in range(2):
        crash(run, "a", (*FRAMES, "ValueError: width 32"))
    crash(run, "b", tail)
    assert not is_over(run, "b")


@pytest.mark.parametrize(
    "line",
    [
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7 GiB)",
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: MPS backend out of memory (MPS allocated: 8.88 GB, other allocations: 1 GB)",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 4 bytes",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor",
    ],
)
def test_what_gpus_say_that_have_too_little_memory(line: str) -> None:
    assert memory_lacked((*FRAMES, line)) == "alone"


LACKED = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}. GPU 0 has a total "
LACKED += "capacity of 15.77 GiB of which {} is free. Including non-PyTorch memory, this process "
LACKED += "has 3.20 GiB memory in use. Process 4711 has 7.25 GiB memory in use. {}Of the allocated"
OLD = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.77 GiB total "
OLD += "capacity; 3.08 GiB already allocated; 4.00 MiB free; 3.12 GiB allowed; 3.10 GiB reserved"


@pytest.mark.parametrize(
    ("line", "how"),
    [
        (LACKED.format("512.00 MiB", "5.32 GiB", "3.12 GiB allowed; "), "share"),
        (LACKED.format("512.00 MiB", "5.32 GiB", ""), "beside"),
        (LACKED.format("2.00 GiB", "812.00 MiB", "3.12 GiB allowed; "), "beside"),
        (LACKED.format("2.00 GiB", "812.00 bytes", "3.12 GiB allowed; "), "beside"),
        (OLD, "alone"),
        (OLD.replace("4.00 MiB free", "4.00 GiB free"), "share"),
        ("torch.OutOfMemoryError: HIP out of memory. 3.12 GiB allowed; Of the", "share"),
    ],
)
def test_a_part_of_a_gpu_that_is_too_small_is_told_from_a_gpu_that_is_full(
    line: str, how: str
) -> None:
    tail = (*FRAMES, line, "seerd: it had 1/4 of the GPU, and of its memory")
    assert memory_lacked(tail) == how


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: the MPS client has been terminated by the server",
        "RuntimeError: CUDA error: MPS client failed to connect to the MPS control daemon",
        "torch.AcceleratorError: CUDA error: MPS server is not ready to accept new MPS client",
    ],
)
def test_what_mps_ends_is_not_the_trials_fault(line: str) -> None:
    assert obstacle_of((*FRAMES, line)) == "device"


@pytest.mark.parametrize(
    "line",
    [
        "MemoryError: Unable to allocate 8.00 GiB for an array with shape (1024, 1024, 1024)",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate",
        "ValueError: out of memory slots for this CUDA graph's name",
        "RuntimeError: CUDA error: device-side assert triggered",
    ],
)
def test_other_errors_may_be_chance(line: str) -> None:
    assert memory_lacked((*FRAMES, line)) is None
