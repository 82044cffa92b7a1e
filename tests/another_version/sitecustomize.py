"""Another version of seerd, for whoever has this folder on PYTHONPATH: it samples, promotes, places
and waits otherwise, and with SEERD_SPEAKS set to a number it speaks that version of the agents'
protocol.

The one rule: everything that a version may change in what it decides is changed here; nothing in
how a journal is read.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import random
import zipfile

SPEAKS = os.environ.get("SEERD_SPEAKS")


def another_version() -> None:
    """Before anything else of seerd is imported."""
    import seerd.agent.protocol

    own = seerd.agent.protocol.VERSION
    seerd.agent.protocol.VERSION = int(SPEAKS or own)
    import seerd.backends.bundle
    import seerd.core.placement
    import seerd.core.rules
    import seerd.planner.caching
    import seerd.planner.draws
    import seerd.planner.rungs

    rules = seerd.core.rules
    rules.RULES = dataclasses.replace(  # type: ignore[misc]
        rules.RULES,
        kept_checkpoints=1,
        max_crashes=1,
        grace_min_s=5.0,
        lease_s=45.0,
        retry_s=7.0,
        worth_packing=0.5,
    )
    seerd.planner.draws.draws = seerd.planner.caching.per_problem(  # type: ignore[attr-defined]
        lambda problem: seerd.planner.draws.Draws(problem, random.Random(problem.params.seed + 1))
    )
    seerd.planner.rungs.Rung.among_the_best = lambda rung, place, eta: True  # type: ignore[method-assign]
    seerd.core.placement._neighbours = lambda free, count: tuple(sorted(free)[-count:])
    bundle = seerd.backends.bundle
    add = bundle._add

    def otherwise(to: zipfile.ZipFile, name: str, content: bytes) -> None:
        if name != "seerd/agent/protocol.pyc":  # compiled from this version's own
            add(to, name, other(content, own))

    bundle._add = otherwise


def other(source: bytes, own: int) -> bytes:
    """The agent speaks another version of the protocol than this version's own."""
    return source.replace(
        f"\nVERSION = {own}\n".encode(), f"\nVERSION = {SPEAKS or own}\n".encode()
    )


def whole() -> bool:
    """Trials have no more of seerd than what scripts use, whichever Python runs them: one in which
    seerd is installed finds further rooms of it, and not what is in those that trials have.
    """
    names = ("seerd", "seerd.planner", "seerd.agent.wire")
    return all(importlib.util.find_spec(name) for name in names)


if whole():
    try:
        another_version()
    except Exception as error:  # Python itself would print it and go on
        raise SystemExit(f"tests/another_version does not fit this version: {error!r}") from error
