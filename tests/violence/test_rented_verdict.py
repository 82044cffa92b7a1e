"""As in test_verdict.py, for runs on rented instances: what the judge is there to find, it
finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bench.testbed.rig import RigInstance
from tests.violence.eyes import Life
from tests.violence.local import Trouble
from tests.violence.rented import LASTING, RentedEvidence
from tests.violence.rented_verdict import rented_violations
from tests.violence.trace import Saved

CONFIGS = {"t0001": {"lr": 0.3}}


def good() -> RentedEvidence:
    """One instance was lost at 120, another one taken in its place; the trial went on from report
    9.
    """
    return RentedEvidence(
        rental=LASTING,
        began=100.0,
        ended=160.0,
        codes=[("run", 0)],
        troubles=[Trouble("lose an instance", 120.0, 120.1)],
        lives=[
            Life("r", "t0001", 1, "a", ("0",), 106.0, 120.0, restored=0),
            Life("r", "t0001", 2, "b", ("0",), 125.0, 150.0, restored=9),
        ],
        saved=[Saved("t0001", "a", 9, 0.9, 119.0), Saved("t0001", "b", 40, 0.95, 150.0)],
        account={
            "i-1": _instance("i-1", 103.0, 120.0, "Server.SpotInstanceTermination"),
            "i-2": _instance("i-2", 121.0, 152.0, "Client.UserInitiatedShutdown"),
        },
        told={
            "show": {
                "best": {"trial": "t0001", "config": {"lr": 0.3}, "metric": 0.95, "epoch": 40},
                "all_trials": [
                    {
                        "trial": "t0001",
                        "config": {"lr": 0.3},
                        "phase": "survived",
                        "history": [[0, 1, 0.5], [0, 2, 0.6]],
                        "why": "",
                    }
                ],
            },
            "ledger": {
                "spent_gpu_min": 8.0,
                "budget_gpu_min": 48.0,
                "charges": [_charge("i-1", 3.0, 22.0), _charge("1.1", 20.8, 52.3)],
            },
            "replay": {"same": True},
        },
        model='{"epoch": 40, "config": {"lr": 0.3}}',
    )


def _instance(name: str, since: float, until: float | None, reason: str) -> RigInstance:
    return RigInstance(
        name,
        "g4dn.12xlarge",
        "a",
        "",
        "spot",
        "",
        "terminated",
        0.0,
        since,
        until,
        reason,
        4,
        None,
        "",
    )


def _charge(instance: str, since_s: float, until_s: float | None) -> dict[str, Any]:
    return {"instance": instance, "since_s": since_s, "until_s": until_s}


def _told(evidence: RentedEvidence, what: str, **changes: Any) -> RentedEvidence:
    return replace(evidence, told=evidence.told | {what: evidence.told[what] | changes})


def _accounted(evidence: RentedEvidence, **changes: Any) -> RentedEvidence:
    return replace(
        evidence, account=evidence.account | {"i-2": replace(evidence.account["i-2"], **changes)}
    )


SPOILED: dict[str, tuple[Callable[[RentedEvidence], RentedEvidence], str]] = {
    "an instance is left": (lambda e: replace(e, left=["instance i-2 (running)"]), "left behind"),
    "a trial ran twice": (
        lambda e: replace(e, clashes=["two attempts of t0001 at once"]),
        "at once",
    ),
    "the command failed": (lambda e: replace(e, codes=[("run", 1)]), "ended with 1"),
    "more was billed": (lambda e: _accounted(e, gpus=64), "are billed of 48"),
    "it was billed after the deadline": (
        lambda e: _accounted(e, until=190.0),
        "20.0 s after the deadline",
    ),
    "it is billed still": (lambda e: _accounted(e, until=None), "after the deadline"),
    "a trial lived past the deadline": (
        lambda e: replace(e, lives=[e.lives[0], replace(e.lives[1], last=171.0)]),
        "lived until 1.00 s after",
    ),
    "the ledger has less": (
        lambda e: _told(
            e, "ledger", charges=[_charge("i-1", 3.0, 19.0), _charge("1.1", 20.8, 52.3)]
        ),
        "-1.00 s more",
    ),
    "the ledger has more": (
        lambda e: _told(
            e, "ledger", charges=[_charge("i-1", 3.0, 22.0), _charge("1.1", 20.8, 62.3)]
        ),
        "10.50 s more",
    ),
    "the ledger lacks one": (
        lambda e: _told(e, "ledger", charges=[_charge("i-1", 3.0, 22.0)]),
        "not in the ledger",
    ),
    "the ledger invents one": (
        lambda e: _told(
            e, "ledger", charges=[*e.told["ledger"]["charges"], _charge("9.9", 1.0, 2.0)]
        ),
        "not in the account",
    ),
    "the ledger overspends": (lambda e: _told(e, "ledger", spent_gpu_min=49.0), "were allowed"),
    "it began anew": (
        lambda e: replace(e, lives=[e.lives[0], replace(e.lives[1], restored=0)]),
        "began at report 0; 9",
    ),
    "there is no model": (lambda e: replace(e, model=None), "no model in hand"),
    "a worse model": (
        lambda e: _told(e, "show", best=e.told["show"]["best"] | {"metric": 0.9}),
        "was returned, the store had",
    ),
    "replay differs": (lambda e: _told(e, "replay", same=False), "replay"),
}


def test_a_good_rented_run_is_not_accused() -> None:
    assert rented_violations(good(), CONFIGS) == []


@pytest.mark.parametrize("name", SPOILED)
def test_what_is_wrong_on_instances_is_found(name: str) -> None:
    spoil, words = SPOILED[name]
    found = rented_violations(spoil(good()), CONFIGS)
    assert any(words in text for text in found), found
