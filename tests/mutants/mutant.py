"""What a mutant is: one deliberate mistake in the code, and the tests that must notice it.

The one rule: a mutant breaks a promise that a person would miss. One that changes nothing that
anybody could see is no mutant, and is not listed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake.

    name    what the code does wrong, in words
    breaks  the promise that is broken by it
    place   where: the name of a function, `Class.method` or constant, with modules before it
            if the product has several of that name
    old     code that stands there exactly once: an expression, or statements; a dict stands for
            entries of a larger one, a text for a part of a longer one
    new     what stands there instead; nothing, if statements are left out
    tests   files or single tests (pytest's ids), at least one of which must fail
    """

    name: str
    breaks: str
    place: str
    old: str
    new: str
    tests: tuple[str, ...]
