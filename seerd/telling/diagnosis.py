"""Why a run has no model, and what to do: for people and for scripts.

If two causes are possible both are named. No text advises to spend more on a script that cannot
report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seerd.core.failures import failure_text, has_failed, hopeless_jobs, in_words, signature, tried
from seerd.core.lifecycle import InstancePhase, RunPhase, TrialPhase
from seerd.core.metrics import incumbent, saves_no_model, value_of
from seerd.core.provisioning import refused
from seerd.core.state import GOES_ON, Instance, State, Trial
from seerd.telling.complaints import complaints_of, hint, unreached_text
from seerd.telling.outcomes import fate, without_gpu

SIDE, SCRIPTS = "docs/training-side.md", "docs/scripts.md"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a run has no model."""

    cause: str  # in one word of docs/json.md
    text: str  # for people, with what to do


def diagnose(state: State) -> Diagnosis:
    """Return why a run without a model has none."""
    if state.phase is RunPhase.OVER and (those := unreached(state)):
        return Diagnosis("unreached", f"there is no model: {never_reached_text(those)}")
    if (why := refused(state)) is not None:
        why = f"nothing was trained, since no instance could be had: {why}"
        return Diagnosis("no-instance", why)
    if state.phase is not RunPhase.OVER:
        return Diagnosis("going-on", "there is no model yet")
    trials = tried(state)
    if not trials and any(one.ready_at is not None for one in state.fleet.instances.values()):
        late = ", since none is so shortly before the deadline; give it a longer --deadline"
        why = f"no trial was started{late * (state.end.why == 'late')}"
        return Diagnosis("not-tried", f"there is no model: {why}")
    if not trials:
        slow = state.fleet.slow.items()
        pending = "; ".join(f"on {name} since {since:.1f}s {why}" for name, (why, since) in slow)
        why = (
            "no trial was started, since no instance was ready before the run had to end"
            f"{f': {pending}' if pending else ''}; give it a longer --deadline"
        )
        return Diagnosis("not-tried", f"there is no model: {why}")
    if without_gpu(state):
        waits = complaints_of(state)["waits"]
        return Diagnosis("no-gpu", f"nothing was trained, since no GPU became free: {waits}")
    of_reports = _of_reports if state.signs.reported else _of_silence
    cause, text = _of_crashes(state, trials) or of_reports(state, trials)
    return Diagnosis(cause, f"there is no model: {text}")


def unreached(state: State) -> list[Instance]:
    """Return the instances to which nobody could log in, if no other was ever used."""
    if state.fleet.any_ready:
        return []
    tried = (i for i in state.fleet.instances.values() if i.ran_s is not None)
    return [i for i in tried if i.awaited != "reached" and i.phase is not InstancePhase.REFUSED]


def never_reached_text(instances: Sequence[Instance]) -> str:
    """Write that nobody could log in to these instances, and what to do."""
    if any(instance.unreached for instance in instances):
        return f"no trial was started: {unreached_text(instances)}"
    return (
        f"no trial was started: {instances[0].cloud_id} ran, and nobody could log in before the "
        "run had to end; `seerd canary SPEC` measures how long an instance boots, and `seerd "
        "doctor SPEC` shows whether its security group lets this machine in"
    )


def unsaved(state: State) -> str:
    """Return, of a run whose script saves no model by design, what would have one saved."""
    return f"no model was saved: trials reported, and {_no_checkpoint(state)}"


def failure_groups(state: State) -> list[list[Trial]]:
    """Return the trials that have failed, those together that failed in the same way."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in state.trials.values():
        if trial.phase is TrialPhase.FAILED or (state.finished and fate(state, trial) == "crashed"):
            groups.setdefault(signature(trial), []).append(trial)
    return list(groups.values())


def complaints(state: State) -> list[str]:
    """Return what agents complain of and `diagnose` does not mention."""
    texts = complaints_of(state)
    if incumbent(state) is not None:
        return list(texts.values())
    why = diagnose(state).text
    return [text for what, text in texts.items() if what != "untracked" and text not in why]


def hint_of(state: State, trial: Trial) -> str:
    """Return what to do about a trial that has failed; empty if nothing certain is known."""
    return hint(trial.why, trial.tail, state.facts.run, tuple(trial.config))


def _of_crashes(state: State, trials: Sequence[Trial]) -> tuple[str, str] | None:
    blocked = [trial for trial in trials if trial.fault == "blocked" and not trial.history]
    if not all(trial in blocked or has_failed(trial) for trial in trials):
        return None
    same = state.end.detail if state.end.why == "alike" else ""
    if blocked:
        return "blocked", same or f"{blocked[0].id}: {failure_text(blocked[0])}"
    same = same or next(iter(hopeless_jobs(state).values()), "")
    same = same or f"{trials[0].id} failed: {failure_text(trials[0])}"
    return ("crashes" if any(trial.crashes for trial in trials) else "silent"), same


# ------------------------------------------------------------ with reports


def _of_reports(state: State, trials: Sequence[Trial]) -> tuple[str, str]:
    name = state.facts.metric
    if not (state.signs.named or state.signs.finite):
        return "not-finite", (
            f"no report had a finite {name}; they had {', '.join(state.signs.names) or 'nothing'}: "
            "what the script reports must have the name that metric.name has in the spec"
        )
    if not state.signs.finite:
        return "not-finite", (
            f"no report had a finite {name}; if it diverges, lower the learning rates of [space]; "
            f"if it is computed now and then, report only when it is ({SIDE})"
        )
    reports = [report for trial in state.trials.values() for report in trial.history]
    if state.facts.constraints and all(report.metric is None for report in reports):
        parts = []
        for one in state.facts.constraints:
            values = [
                value
                for trial in state.trials.values()
                for report in trial.history
                if (value := value_of(state, trial, report, one.metric)) is not None
            ]
            nearest = (min if one.sign in ("<", "<=") else max)(values, default=None)
            had = "nobody reported it" if nearest is None else f"the nearest had {nearest:.6g}"
            parts.append(f"{one} ({had})")
        return "constraint", (
            f"no report met {' and '.join(parts)}; loosen metric.constraint, or bound in [space] "
            "what it depends on"
        )
    has_saved = any(trial.checkpoints for trial in state.trials.values())
    if not has_saved or saves_no_model(state, next(iter(state.jobs))):
        return "no-checkpoint", f"trials reported, and {_no_checkpoint(state)}"
    return "unknown", "no checkpoint with a finite metric could be handed back"


def _no_checkpoint(state: State) -> str:
    if state.signs.outage is not None:
        return f"no checkpoint could be stored: {state.signs.outage.text}"
    if (why := complaints_of(state).get("not-stored")) is not None:
        return why
    if saves_no_model(state, next(iter(state.jobs))):
        return (
            "their checkpoints hold no model, since nothing was given to trial.track(model=..., "
            f"optimizer=...) before `while trial.running():` ({SIDE})"
        )
    if state.facts.patterns and not state.facts.saves_to:
        return (
            "nothing that they save is kept, since the spec has no train.checkpoint: the path that "
            f"the script saves to ({SCRIPTS})"
        )
    if state.facts.patterns:
        return (
            f"nothing whole was found at train.checkpoint {state.facts.saves_to!r}, counted from "
            "the folder of the source in which the script runs: see what it saves, and where; a "
            f"file is taken once it has not changed for 0.25s, a folder for 5s ({SCRIPTS})"
        )
    others = f"(programs in other languages write checkpoints as {SIDE} says)"
    if not any(trial.trained for trial in state.trials.values()):
        return (
            "never called trial.running(), where checkpoints are saved: call it after each report, "
            f"as in `while trial.running():` {others}"
        )
    return (
        "saved no checkpoint: that is done in trial.running(), which must be called after a report "
        f"{others}"
    )


# ------------------------------------------------------------ without a report


def _of_silence(state: State, trials: Sequence[Trial]) -> tuple[str, str]:
    complaints = complaints_of(state)
    if (why := complaints.get("output")) is not None:
        return "unreadable-output", why
    if state.end.status == "interrupted":
        return "interrupted", "the run was interrupted before the first report"
    ran, name = in_words(state.now - (state.signs.tried_s or 0.0)), state.facts.metric
    cause = "no-report"
    text = (
        f"trials trained, and in {ran} none reported. If the script does not call "
        f"trial.report({name}=...) in its loop, it must; if its start and a unit of work take "
        "longer than that, report more often, or give the run a longer --deadline (seerd profile "
        "SPEC measures how long a report takes)"
    )
    if pattern := state.facts.patterns.get(name):
        text = (
            f"in {ran} no line that trials printed matched train.report {pattern!r}: `seerd logs "
            f"{state.facts.run}` shows what they print; the first group is the number ({SCRIPTS}). "
            "Or no epoch was over by then"
        )
    elif not any(trial.trained for trial in trials):
        cause = "no-running"
        text = (
            f"in {ran} no trial came to trial.running() or reported. If the script calls neither, "
            f"it must: trial = seerd.trial(), and trial.report({name}=...) in `while "
            "trial.running():`; or train.report reads the numbers that it prints. If it does, its "
            "start takes longer than the run: give it a longer --deadline (seerd profile SPEC "
            "measures the start)"
        )
    signs = [complaints[what] for what in GOES_ON if complaints.get(what)]
    return cause, ". ".join([*signs, text[0].upper() + text[1:] if signs else text])
