"""What must be true of a run on this machine, whatever was done to it. Pure: from evidence to
violations, in words.

The one rule: an allowance is never more than what the documents grant, and each says which trouble
it is for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from tests.violence.local import Evidence
from tests.violence.trace import Line

SIGHT_S = 0.25
"""A process lives a little before and after it is seen: ten looks a second, on a machine that does
other things too.
"""
START_S, END_S = 1.5, 1.5
"""From the order to start until the first sight of an attempt, or what a command takes to start
where that is longer; and from its last sight until its GPUs count as free.
"""
EXIT_S = 2.0
"""How long a Python process takes to say its last words and end, beyond what its start took."""
CLOSING_S = 8.0
"""A daemon that takes a run up later than so long before the deadline cannot keep it: grace 4 s,
kill 1.5 s, publish 1 s, and its own start.
"""
SHORTEST_S = 5.0
"""What could not train for so long before the run closes is not started."""
NO_MODEL = 4
PATIENT_S = 5.0
"""Agents that take twice as long to start are not waited for when a run is taken up."""
MAX_CRASHES = 2
Configs = Mapping[str, Any]
DISKS = ("fill the home's disk", "fill the store's disk", "write-protect the store")


def violations(evidence: Evidence, reference: Configs) -> list[str]:
    """Everything that must not be. `reference`: the configurations of the same run undisturbed, by
    trial.
    """
    always = [processes_left, tracebacks, two_at_once]
    if evidence.never_began:
        return [text for check in always for text in check(evidence)]
    found = [text for check in (*always, *CHECKS) for text in check(evidence)]
    return [*found, *other_configs(evidence, reference)]


def processes_left(evidence: Evidence) -> Iterator[str]:
    """After the end nothing of the run is there."""
    yield from (f"still running after the end: {process}" for process in evidence.left)


def tracebacks(evidence: Evidence) -> Iterator[str]:
    """Whatever goes wrong is told, not traced."""
    if "Traceback" in evidence.said:
        yield f"a traceback: {evidence.said.partition('Traceback')[2][-400:]}"


def exit_codes(evidence: Evidence) -> Iterator[str]:
    """The last command hands back a model."""
    name, code = evidence.codes[-1]
    if code != 0 and not evidence.was_over and not (code == NO_MODEL and _hopeless(evidence)):
        yield f"{name} ended with {code}: {evidence.said[-300:]}"
    for what, told in evidence.told.items():
        if "failed" in told:
            yield f"{what} cannot be told: {told['failed']}"


def two_at_once(evidence: Evidence) -> Iterator[str]:
    """Nothing runs twice, nothing is given twice."""
    yield from evidence.clashes
    for trial, lines in _by_trial(evidence).items():
        ends: dict[int, float] = {}
        for line in lines:
            ends[line.attempt] = line.at
        for line in lines:
            older = [at for attempt, at in ends.items() if attempt < line.attempt]
            if older and max(older) > line.at:
                yield (
                    f"{trial}/{line.attempt} worked at {line.at:.2f} when an older attempt "
                    "still did"
                )


def trained_again(evidence: Evidence) -> Iterator[str]:
    """An attempt goes on from the newest checkpoint that was in the store when it began."""
    for trial, lines in _by_trial(evidence).items():
        begins = {line.attempt: line for line in reversed(lines) if line.what == "begin"}
        for line in begins.values():
            written = [line.epoch for line in _written_before(evidence, lines, line.attempt)]
            if written and line.epoch < max(written):
                yield (
                    f"{trial}/{line.attempt} began at report {line.epoch}; {max(written)} "
                    "had been saved"
                )
            there = [
                saved.epoch
                for saved in evidence.saved
                if saved.trial == trial and saved.at < line.at - SIGHT_S
            ]
            if there and line.epoch < max(there):
                yield (
                    f"{trial}/{line.attempt} began at report {line.epoch}; {max(there)} was "
                    "in the store"
                )


def _written_before(evidence: Evidence, lines: list[Line], attempt: int) -> list[Line]:
    """Checkpoints that earlier attempts had told of: on this machine each gets into the store, also
    after an agent's death, unless it cannot.
    """
    if any(trouble.what in DISKS for trouble in evidence.troubles):
        return []
    return [line for line in lines if line.what == "saved" and line.attempt < attempt]


def reports_whole(evidence: Evidence) -> Iterator[str]:
    """What seerd shows of each trial is its line of training: every report once, and none missing
    unless an agent could not be heard in time.
    """
    gap = max(evidence.starts_s, default=0.0) > PATIENT_S
    for trial in evidence.told["show"].get("all_trials", ()):
        epochs = [epoch for _, epoch, _ in trial["history"]]
        if any(
            later <= before or (later > before + 1 and not gap)
            for before, later in pairwise(epochs)
        ):
            yield f"{trial['trial']} has reports {epochs}"


def ledger_covers(evidence: Evidence) -> Iterator[str]:
    """Each attempt is charged for as long as it lived, and at most for so much more as somebody was
    not there to see it end.
    """
    charges = {charge["what"]: charge for charge in evidence.told["ledger"].get("charges", ())}
    start_s = max(START_S, *evidence.starts_s)
    for life in evidence.lives:
        charge = charges.pop(f"{life.trial}/{life.attempt}", None)
        lived_s = life.last - life.first
        if charge is None:
            yield f"{life.trial}/{life.attempt} lived for {lived_s:.2f} s and is not in the ledger"
            continue
        if charge["until_s"] is None:
            yield f"{charge['what']} is still charged"
            continue
        charged_s = charge["until_s"] - charge["since_s"]
        most_s = start_s + _seen_by(evidence, life.last + END_S) - _ordered(evidence, life.first)
        if not lived_s - SIGHT_S <= charged_s <= most_s:
            yield (
                f"{charge['what']} lived {lived_s:.2f} s, may cost {most_s:.2f} s, is "
                f"charged {charged_s:.2f} s"
            )
    for what, charge in charges.items():
        lasted = [
            trouble.until - trouble.since + _recovery_s(evidence) for trouble in evidence.troubles
        ]
        if charge["until_s"] is None or charge["until_s"] - charge["since_s"] > START_S + sum(
            lasted
        ):
            yield f"{what} was never seen and is charged: {charge}"


def limits_kept(evidence: Evidence) -> Iterator[str]:
    """Deadline and budget, by the processes that were there."""
    job, until = evidence.job, _deadline(evidence)
    used = sum(len(life.gpus) * (life.last - life.first) for life in evidence.lives)
    if used > job.budget_gpu_s:
        yield f"{used:.1f} GPU-seconds were used of {job.budget_gpu_s}"
    spent = evidence.told["ledger"].get("spent_gpu_min", 0.0) * 60
    if spent > job.budget_gpu_s + 0.01:
        yield f"{spent:.1f} GPU-seconds are in the ledger, {job.budget_gpu_s} were allowed"
    late = until + SIGHT_S + _frozen_s(evidence, until - CLOSING_S)
    for life in evidence.lives:
        if life.last > late:
            yield (
                f"{life.trial}/{life.attempt} lived until {life.last - until:.2f} s after "
                "the deadline"
            )
    begun = max(
        evidence.last_begin + max(evidence.starts_s, default=0.0),
        *(t.until for t in evidence.troubles),
        0.0,
    )
    if begun < until - CLOSING_S and evidence.ended > until + EXIT_S + max(
        evidence.starts_s, default=0.0
    ):
        yield f"the run ended {evidence.ended - until:.2f} s after the deadline"


def best_returned(evidence: Evidence) -> Iterator[str]:
    """The model is the best that was ever in the store, of trials that have not failed, and it can
    be read.
    """
    shown = evidence.told["show"]
    best = shown.get("best") or {}
    failed = {trial["trial"] for trial in shown.get("all_trials", ()) if trial["phase"] == "failed"}
    known = [s for s in evidence.saved if s.trial not in failed and s.metric is not None]
    if evidence.model is None and not _hopeless(evidence):
        yield f"no model in hand: {best}"
    if evidence.model is None:
        return
    top = max(known, key=lambda s: s.metric or 0.0, default=None)
    if top is not None and (best["metric"] or 0.0) < (top.metric or 0.0) - 1e-12:
        yield (
            f"{best['trial']} with {best['metric']} at report {best['epoch']} was returned, "
            f"the store had {top}"
        )
    if evidence.job.launcher == "command":
        told = json.loads(evidence.model)
        if told["epoch"] != best["epoch"] or told["config"] != best["config"]:
            yield f"the model is {told}, and {best} was promised"


def failures_earned(evidence: Evidence) -> Iterator[str]:
    """A trial has failed only if it was made to often enough."""
    if any(trouble.what in DISKS for trouble in evidence.troubles):
        return  # a script that cannot write crashes by itself
    for trial in evidence.told["show"].get("all_trials", ()):
        if trial["phase"] == "failed" and evidence.hurt.get(trial["trial"], 0) <= MAX_CRASHES:
            yield (
                f"{trial['trial']} has failed, and was hurt "
                f"{evidence.hurt.get(trial['trial'], 0)} times: {trial['why']}"
            )


def replayed(evidence: Evidence) -> Iterator[str]:
    """The journal gives the same decisions again."""
    if not evidence.told["replay"].get("same"):
        yield f"replay does not agree: {evidence.told['replay']}"


def other_configs(evidence: Evidence, reference: Configs) -> Iterator[str]:
    """The same seed, the same configurations."""
    found = {
        trial["trial"]: trial["config"] for trial in evidence.told["show"].get("all_trials", ())
    }
    if found != reference:
        yield f"configurations {found}, undisturbed {dict(reference)}"


CHECKS: tuple[Callable[[Evidence], Iterator[str]], ...] = (
    exit_codes,
    trained_again,
    reports_whole,
    ledger_covers,
    limits_kept,
    best_returned,
    failures_earned,
    replayed,
)


def _deadline(evidence: Evidence) -> float:
    """The clock of an interrupted run goes on only when the next daemon is up."""
    start_s = max(evidence.starts_s, default=0.0) if evidence.paused_s else 0.0
    return evidence.began + evidence.job.deadline_s + evidence.paused_s + start_s


def _hopeless(evidence: Evidence) -> bool:
    """Nothing was ever saved, and the run was taken up so late that nothing more could be: there is
    no model to hand back.
    """
    late = _deadline(evidence) - CLOSING_S - SHORTEST_S
    return not evidence.saved and evidence.last_begin > late - _recovery_s(evidence)


def _by_trial(evidence: Evidence) -> dict[str, list[Line]]:
    return {
        name: [line for line in evidence.lines if line.trial == name]
        for name in sorted({line.trial for line in evidence.lines})
    }


def _recovery_s(evidence: Evidence) -> float:
    """From the end of a trouble until daemon and agent have taken over: two starts of Python and a
    clean-up, on a machine as slow as this.
    """
    return 3.0 + 2 * max(evidence.starts_s, default=1.0)


def _seen_by(evidence: Evidence, end: float) -> float:
    """When an end at that moment was seen at the latest: one trouble may follow the other."""
    for trouble in sorted(evidence.troubles, key=lambda trouble: trouble.since):
        if trouble.since <= end <= trouble.until + _recovery_s(evidence):
            end = trouble.until + _recovery_s(evidence)
    return end


def _ordered(evidence: Evidence, first: float) -> float:
    """When an attempt that was first seen then may have been ordered: an order lasts as long as the
    trouble that it runs into.
    """
    return min(
        [
            first,
            *(
                t.since
                for t in evidence.troubles
                if t.since <= first <= t.until + _recovery_s(evidence)
            ),
        ]
    )


def _frozen_s(evidence: Evidence, since: float) -> float:
    """How long, towards the end, those who would end trials were stopped, or could not write down
    that they do.
    """
    lasting = [
        t
        for t in evidence.troubles
        if t.until > since and (t.what.startswith("stop") or t.what in DISKS)
    ]
    return sum(trouble.until - trouble.since + _recovery_s(evidence) for trouble in lasting)
