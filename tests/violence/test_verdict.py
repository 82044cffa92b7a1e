"""The judges can find what they look for: evidence of a run in which all was well, and the same
evidence spoiled in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.violence.eyes import Life
from tests.violence.local import QUICK, Evidence, Trouble
from tests.violence.trace import Line, Saved
from tests.violence.verdict import violations

CONFIGS = {"t0001": {"lr": 0.3}}


def good() -> Evidence:
    """A daemon was killed at 105 and everything with it; the run was resumed, and its one trial
    went on from report 2.
    """
    lines = [_line(102, 1, "begin", 0), _line(103, 1, "epoch", 1), _line(104, 1, "epoch", 2)]
    lines += [_line(108, 2, "begin", 2), _line(109, 2, "epoch", 3), _line(110, 2, "epoch", 4)]
    return Evidence(
        job=QUICK,
        began=100.0,
        begun=101.0,
        ended=112.0,
        last_begin=106.0,
        codes=[("run", -9), ("resume", 0)],
        starts_s=[1.0, 1.0],
        troubles=[Trouble("kill everything", 105.0, 105.1)],
        lines=lines,
        lives=[
            Life("r", "t0001", 1, "m", ("0", "1"), 102.0, 105.0),
            Life("r", "t0001", 2, "m", ("0", "1"), 108.0, 110.0),
        ],
        saved=[Saved("t0001", "a", 2, 0.75, 104.1), Saved("t0001", "b", 4, 0.875, 110.1)],
        told={
            "show": {
                "best": {"trial": "t0001", "config": {"lr": 0.3}, "metric": 0.875, "epoch": 4},
                "all_trials": [
                    {
                        "trial": "t0001",
                        "config": {"lr": 0.3},
                        "phase": "survived",
                        "history": [[0, n, 0.5] for n in (1, 2, 3, 4)],
                        "why": "",
                    }
                ],
            },
            "ledger": {
                "spent_gpu_min": 0.3,
                "charges": [_charge(1, 1.9, 7.0), _charge(2, 7.5, 10.2)],
            },
            "replay": {"same": True},
        },
        model='{"epoch": 4, "config": {"lr": 0.3}}',
    )


def _line(at: float, attempt: int, what: str, epoch: int) -> Line:
    return Line(at, "t0001", attempt, 7, what, epoch, 2)


def _charge(attempt: int, since_s: float, until_s: float | None) -> dict[str, Any]:
    return {"what": f"t0001/{attempt}", "since_s": since_s, "until_s": until_s}


def _told(evidence: Evidence, what: str, **changes: Any) -> Evidence:
    return replace(evidence, told=evidence.told | {what: evidence.told[what] | changes})


def _trial(evidence: Evidence, **changes: Any) -> Evidence:
    return _told(evidence, "show", all_trials=[evidence.told["show"]["all_trials"][0] | changes])


SPOILED: dict[str, tuple[Callable[[Evidence], Evidence], str]] = {
    "the last command failed": (
        lambda e: replace(e, codes=[("run", -9), ("resume", 1)]),
        "ended with 1",
    ),
    "an agent is left": (lambda e: replace(e, left=["77 agent.pyz"]), "still running"),
    "a traceback": (lambda e: replace(e, said="Traceback (most recent call last)"), "traceback"),
    "a GPU was given twice": (lambda e: replace(e, clashes=["GPU 0 is held twice"]), "held twice"),
    "the first attempt worked on": (
        lambda e: replace(e, lines=[*e.lines, _line(109, 1, "epoch", 3)]),
        "older attempt",
    ),
    "it began anew": (
        lambda e: replace(e, lines=[*e.lines[:3], _line(108, 2, "begin", 1)]),
        "began at report 1; 2",
    ),
    "a checkpoint was forgotten": (
        lambda e: replace(
            e,
            lines=[
                *e.lines[:3],
                _line(104.2, 1, "epoch", 3),
                _line(104.4, 1, "saved", 3),
                *e.lines[3:],
            ],
        ),
        "began at report 2; 3 had been saved",
    ),
    "a report is missing": (lambda e: _trial(e, history=[[0, 1, 0.5], [0, 3, 0.5]]), "has reports"),
    "an attempt is not charged": (
        lambda e: _told(e, "ledger", charges=[_charge(1, 1.9, 7.0)]),
        "not in the ledger",
    ),
    "it is charged too little": (
        lambda e: _told(e, "ledger", charges=[_charge(1, 1.9, 4.0), _charge(2, 7.5, 10.2)]),
        "is charged 2.10",
    ),
    "it is charged too much": (
        lambda e: _told(e, "ledger", charges=[_charge(1, 1.9, 7.0), _charge(2, 7.5, 40.0)]),
        "is charged 32.50",
    ),
    "it is charged for ever": (
        lambda e: _told(e, "ledger", charges=[_charge(1, 1.9, 7.0), _charge(2, 7.5, None)]),
        "still charged",
    ),
    "nobody knows what was charged": (
        lambda e: _told(e, "ledger", charges=[*e.told["ledger"]["charges"], _charge(3, 0.0, 30.0)]),
        "never seen",
    ),
    "the budget was overspent": (lambda e: _told(e, "ledger", spent_gpu_min=6.0), "were allowed"),
    "more GPU time was used": (
        lambda e: replace(e, lives=[replace(e.lives[0], gpus=tuple("01234567") * 40), e.lives[1]]),
        "were used of",
    ),
    "it lived past the deadline": (
        lambda e: replace(e, lives=[e.lives[0], replace(e.lives[1], last=141.0)]),
        "after the deadline",
    ),
    "it ended past the deadline": (lambda e: replace(e, ended=145.0), "ended 5.00 s after"),
    "there is no model": (lambda e: replace(e, model=None), "no model in hand"),
    "a worse model": (
        lambda e: _told(e, "show", best=e.told["show"]["best"] | {"metric": 0.75}),
        "was returned, the store had",
    ),
    "another model than promised": (
        lambda e: replace(e, model='{"epoch": 2, "config": {"lr": 0.3}}'),
        "was promised",
    ),
    "a trial failed for nothing": (lambda e: _trial(e, phase="failed"), "has failed"),
    "replay differs": (lambda e: _told(e, "replay", same=False), "replay"),
    "another configuration": (lambda e: _trial(e, config={"lr": 0.4}), "undisturbed"),
}


def test_a_good_run_is_not_accused() -> None:
    assert violations(good(), CONFIGS) == []


@pytest.mark.parametrize("name", SPOILED)
def test_what_is_wrong_is_found(name: str) -> None:
    spoil, words = SPOILED[name]
    found = violations(spoil(good()), CONFIGS)
    assert any(words in text for text in found), found
