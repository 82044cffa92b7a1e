"""Parts of a GPU, where trials share one. A GPU has `parts` slots, and GPUs are counted in whole
slots wherever they are chosen: the sizes of instances and trials, allocations, placement, orders.
What is paid is in GPUs and GPU-seconds, except inside a policy, whose budget is in seconds of
slots.
"""

from __future__ import annotations

from fractions import Fraction

MOST_PARTS = 16
DIVISIONS = tuple(1 << power for power in range(MOST_PARTS.bit_length()))  # 1, 2, 4, 8, 16


def gpus_of(slots: int, parts: int) -> float:
    """Return how many GPUs so many slots are: exact, and an integer where they are whole GPUs."""
    whole, rest = divmod(slots, parts)
    return slots / parts if rest else whole


def whole_or_part(gpus: float) -> float:
    """Return a sum of GPUs as `gpus_of` returns it."""
    return gpus_of(int(gpus * MOST_PARTS), MOST_PARTS)


def gpus_number(gpus: float) -> str:
    """Write a number of GPUs without a unit: 1/4, 1, 1.5."""
    return str(Fraction(gpus)) if 0 < gpus < 1 else f"{gpus:.12g}"


def gpus_text(gpus: float) -> str:
    """Write a number of GPUs: 1/4 GPU, 1 GPU, 1.5 GPUs."""
    return f"{gpus_number(gpus)} GPU{'s' * (gpus != 1 and not 0 < gpus < 1)}"


def fitting(slots: int, parts: int) -> int:
    """Return the largest size of a trial that is at most `slots`, at least 1: a power of two below
    one GPU, and whole GPUs above.
    """
    return slots - slots % parts if slots >= parts else 1 << (slots.bit_length() - 1)
