"""What must be true of a run on rented instances, whatever was done to them. Pure: from evidence to
violations, in words.

The one rule: money is judged by the rig's own account, processes by the kernel, and the ledger must
agree with both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from bench.testbed.rig import RigInstance
from tests.violence.rented import RentedEvidence
from tests.violence.trace import Saved

SIGHT_S = 0.25
MINIMUM_S = 60.0
"""EC2 bills an instance for at least so long (aws.amazon.com/ec2/pricing/on-demand)."""
WITHIN_S = {
    "Client.UserInitiatedShutdown": 2.5,
    "Client.InstanceInitiatedShutdown": 3.0,
    "Server.SpotInstanceTermination": 7.0,
}
"""How far the ledger may be from the account, by how an instance ended (tests/test_ec2_runs.py says
why): EC2 is asked every 0.5 s while something is awaited and every 5 s otherwise, and answers when
this machine comes round to it.
"""
STORM_S = 6.0
"""The same where EC2 did not answer most questions, or nobody asked."""
LOOK_S = 1.5
"""How old what is known of the bucket may be."""
RELEASE_S = 6.0
"""From asking to give an instance back until EC2 counts it no more, on a machine that does other
things too.
"""
CLOSING_S = 15.0
"""A daemon that takes a run up later than so long before the deadline cannot keep it."""
NO_MODEL = 4
SLOW_SHARE = 0.2
"""A run whose planning alone takes this share of its time is on a machine on which instances do not
boot in time either.
"""
MAX_CRASHES = 2
STORMS = (
    "EC2 throttles",
    "EC2 fails",
    "EC2 loses replies",
    "kill the daemon",
    "unplug an instance for a while",
)


def rented_violations(evidence: RentedEvidence, reference: Mapping[str, Any]) -> list[str]:
    """Everything that must not be. `reference`: the configurations of another run with the same
    seed, empty if there is none.
    """
    always = (left_behind, tracebacks, clashes)
    checks = always if evidence.never_began else (*always, *CHECKS)
    found = [text for check in checks for text in check(evidence)]
    configs = configs_of(evidence)
    if reference and configs and configs != reference:
        found.append(f"configurations {configs}, in another run {dict(reference)}")
    return found


def configs_of(evidence: RentedEvidence) -> dict[str, Any]:
    """By trial."""
    return {
        trial["trial"]: trial["config"]
        for trial in evidence.told.get("show", {}).get("all_trials", ())
    }


def left_behind(evidence: RentedEvidence) -> Iterator[str]:
    """After the end nothing of the run is there, on this machine or any other."""
    yield from (f"left behind: {what}" for what in evidence.left)


def tracebacks(evidence: RentedEvidence) -> Iterator[str]:
    """Whatever goes wrong is told, not traced."""
    if "Traceback" in evidence.said:
        yield f"a traceback: {evidence.said.partition('Traceback')[2][-600:]}"


def clashes(evidence: RentedEvidence) -> Iterator[str]:
    """No trial runs twice at once, no GPU is given twice."""
    yield from evidence.clashes


def exit_codes(evidence: RentedEvidence) -> Iterator[str]:
    """The last command hands back a model."""
    name, code = evidence.codes[-1]
    if code != 0 and not evidence.was_over and not (code == NO_MODEL and _hopeless(evidence)):
        yield f"{name} ended with {code}"


def paid_within(evidence: RentedEvidence) -> Iterator[str]:
    """The bill keeps the budget, and nothing is billed long after the deadline."""
    billed_s = sum(
        one.gpus * max(MINIMUM_S, one.billed_s(evidence.ended))
        for one in evidence.account.values()
        if one.since is not None
    )
    if billed_s / 60 > evidence.rental.budget_gpu_min:
        yield f"{billed_s / 60:.2f} GPU-minutes are billed of {evidence.rental.budget_gpu_min}"
    until = evidence.began + evidence.rental.deadline_s
    back = max([evidence.began, *(t.until for t in evidence.troubles if t.what in STORMS)])
    if back > until - CLOSING_S:
        return
    for one in evidence.account.values():
        if one.since is not None and (one.until is None or one.until > until + RELEASE_S):
            yield (
                f"{one.id} is billed until {(one.until or math.inf) - until:.1f} s after "
                "the deadline"
            )
    for life in evidence.lives:
        if life.last > until + SIGHT_S:
            yield (
                f"{life.trial}/{life.attempt} lived until {life.last - until:.2f} s after "
                "the deadline"
            )


def ledger_agrees(evidence: RentedEvidence) -> Iterator[str]:
    """Each instance is in the ledger for as long as EC2 bills it, and at most a little longer."""
    told = evidence.told["ledger"]
    if told["spent_gpu_min"] > told["budget_gpu_min"]:
        yield (
            f"{told['spent_gpu_min']} GPU-minutes are in the ledger, "
            f"{told['budget_gpu_min']} were allowed"
        )
    for one, charge in _paired(evidence, told["charges"]):
        if one is None:
            yield f"charged, and not in the account: {charge}"
        elif charge is None:
            if one.billed_s(evidence.ended) > _within_s(evidence, one):
                yield (
                    f"{one.id} ran for {one.billed_s(evidence.ended):.2f} s and is not in "
                    "the ledger"
                )
        elif one.until is None or charge["until_s"] is None:
            yield f"without an end: {one.id}, {charge}"
        else:
            more_s = charge["until_s"] - charge["since_s"] - (one.until - (one.since or 0.0))
            if not -0.02 <= more_s <= _within_s(evidence, one):
                yield (
                    f"the ledger has {more_s:.2f} s more than the account of {one.id}, "
                    f"which ended by {one.reason}: {charge}"
                )


def _paired(
    evidence: RentedEvidence, charges: list[dict[str, Any]]
) -> Iterator[tuple[RigInstance | None, dict[str, Any] | None]]:
    """Account and ledger, by instance; those that were never ready are in the ledger by their
    launch, in the order of their ends.
    """
    account = {name: one for name, one in evidence.account.items() if one.since is not None}
    named = {charge["instance"]: charge for charge in charges if charge["instance"] in account}
    yield from ((account[name], charge) for name, charge in named.items())
    nameless = sorted(
        (c for c in charges if c["instance"] not in account),
        key=lambda c: -(c["until_s"] or math.inf),
    )
    unready = sorted(
        (one for name, one in account.items() if name not in named),
        key=lambda one: -(one.until or math.inf),
    )
    # One that was called off in the moment in which it began to run may be taken for one that never
    # did.
    for briefest in sorted(unready, key=lambda one: one.billed_s(evidence.ended))[
        : max(0, len(unready) - len(nameless))
    ]:
        unready.remove(briefest)
        yield briefest, None
    yield from zip(unready, nameless, strict=False)
    yield from ((None, charge) for charge in nameless[len(unready) :])


def _within_s(evidence: RentedEvidence, one: RigInstance) -> float:
    """How much longer than the account the ledger may have it: what happened while nobody could
    look is counted against the run.
    """
    since, until = one.since or 0.0, one.until or evidence.ended
    blind = [
        t
        for t in evidence.troubles
        if t.what in STORMS and t.since <= until + 2 and t.until >= since - 2
    ]
    return WITHIN_S.get(one.reason, 2.5) + sum(t.until - t.since + STORM_S for t in blind)


def trained_again(evidence: RentedEvidence) -> Iterator[str]:
    """An attempt goes on from the newest checkpoint that was in the store when it began."""
    for life in evidence.lives:
        there = [
            s.epoch
            for s in _confirmed(evidence)
            if s.trial == life.trial and s.at < life.first - LOOK_S
        ]
        if life.restored is not None and there and life.restored < max(there):
            yield (
                f"{life.trial}/{life.attempt} began at report {life.restored}; {max(there)} "
                "was in the store"
            )


def _hopeless(evidence: RentedEvidence) -> bool:
    """Nothing was ever saved, and this machine took so long to begin that nothing could be: there
    is no model to hand back.
    """
    return (
        not evidence.saved
        and evidence.begun - evidence.began > evidence.rental.deadline_s * SLOW_SHARE
    )


def _confirmed(evidence: RentedEvidence) -> list[Saved]:
    """What is in the store and surely told: an agent that is killed may take to its grave what it
    has just put there (agent/serve.py).
    """
    killed = [t.since for t in evidence.troubles if t.what == "kill the agent on an instance"]
    return [
        one
        for one in evidence.saved
        if not any(at - LOOK_S <= one.at <= at + LOOK_S for at in killed)
    ]


def reports_whole(evidence: RentedEvidence) -> Iterator[str]:
    """Every report once, none missing."""
    for trial in evidence.told["show"]["all_trials"]:
        epochs = [epoch for _, epoch, _ in trial["history"]]
        if any(later <= before for before, later in pairwise(epochs)):
            yield f"{trial['trial']} has reports {epochs}"


def best_returned(evidence: RentedEvidence) -> Iterator[str]:
    """The model is the best that was ever in the store, of trials that have not failed, and it can
    be read.
    """
    shown = evidence.told["show"]
    best = shown["best"]
    if evidence.model is None or best is None:
        if not _hopeless(evidence):
            yield f"no model in hand: {best}"
        return
    failed = {trial["trial"] for trial in shown["all_trials"] if trial["phase"] == "failed"}
    known = [s for s in _confirmed(evidence) if s.trial not in failed and s.metric is not None]
    top = max(known, key=lambda s: s.metric or 0.0, default=None)
    if top is not None and best["metric"] < (top.metric or 0.0) - 1e-12:
        yield (
            f"{best['trial']} with {best['metric']} at report {best['epoch']} was returned, "
            f"the store had {top}"
        )
    told = json.loads(evidence.model)
    if told["epoch"] != best["epoch"] or told["config"] != best["config"]:
        yield f"the model is {told}, and {best} was promised"


def failures_earned(evidence: RentedEvidence) -> Iterator[str]:
    """A trial has failed only if it was made to often enough."""
    if any(trouble.what == "fill an instance's disk" for trouble in evidence.troubles):
        return  # a script that cannot write crashes by itself
    for trial in evidence.told["show"]["all_trials"]:
        if trial["phase"] == "failed" and evidence.hurt.get(trial["trial"], 0) <= MAX_CRASHES:
            yield f"{trial['trial']} has failed: {trial['why']}"


def replayed(evidence: RentedEvidence) -> Iterator[str]:
    """The journal gives the same decisions again."""
    if not evidence.told["replay"]["same"]:
        yield f"replay does not agree: {evidence.told['replay']}"


CHECKS: tuple[Callable[[RentedEvidence], Iterator[str]], ...] = (
    exit_codes,
    paid_within,
    ledger_agrees,
    trained_again,
    reports_whole,
    best_returned,
    failures_earned,
    replayed,
)
