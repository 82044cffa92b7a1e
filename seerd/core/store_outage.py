"""A checkpoint store that takes no checkpoints: the user is warned again and again, the run ends in
order, and the best model that only a machine has is fetched before that machine is given back.

Agents report each checkpoint that they cannot store, time and again. Nothing else counts: a trial
that saves seldom, or slowly, is no outage.
"""

from __future__ import annotations

from seerd.core.attempts import current
from seerd.core.events import TrialComplained
from seerd.core.failures import in_words
from seerd.core.metrics import best_value, incumbent, saves_no_model, sign_of
from seerd.core.state import Outage, State
from seerd.core.verdicts import Warned
from seerd.planner.trial_ids import job_of

LEFT = "left"  # a complaint: an attempt has ended, and the store lacks a checkpoint of it
COMPLAINTS = ("store-silent", "store-refused", "store-failed", LEFT)


def unstored(state: State, event: TrialComplained) -> None:
    """Record that a machine has a checkpoint that could not be stored."""
    trial = state.trials.get(event.trial)
    if trial is None:
        return
    pair = event.instance, event.attempt
    trial.unstored = tuple(dict.fromkeys((*trial.unstored, pair)))
    state.jobs[job_of(trial.id)].promised = True
    if event.what == LEFT or current(state, trial.id, event.attempt, event.instance) is None:
        return
    before, text = state.signs.outage, f"{trial.id} on {event.instance}: {event.why}"
    state.signs.outage = Outage(state.now if before is None else before.since_s, text)
    state.agenda.unstored = state.agenda.stirred = True


def cut_off(state: State) -> str:
    """Return why the run must end, with a checkpoint that could not be stored just now; empty: it
    need not.
    """
    outage = state.signs.outage
    if not state.agenda.unstored or outage is None or state.now < outage.since_s + _most_s(state):
        return ""
    lasted = in_words(state.now - outage.since_s)
    return f"no checkpoint could be stored for {lasted} ({outage.text})"


def outage_warning(state: State) -> Warned | None:
    """Warn that nothing is stored, at once and then in growing intervals."""
    outage, last_s, rules = state.signs.outage, state.signs.warned.get("store"), state.rules
    if not state.agenda.unstored or outage is None or cut_off(state):
        return None
    warned_s = 0.0 if last_s is None else last_s - outage.since_s  # negative: of an earlier outage
    pause_s = max(rules.remind_s, min(rules.remind_most_s, warned_s))
    if last_s is not None and state.now < last_s + pause_s:
        return None
    left = in_words(max(1.0, outage.since_s + _most_s(state) - state.now))
    return Warned(
        what="store",
        detail=f"no checkpoint can be stored ({outage.text}); the run ends in {left} unless one is "
        "stored by then",
    )


def left_on(state: State, instance: str) -> tuple[tuple[str, int], ...]:
    """List the trials, with attempts, that may have left a model on an instance that is better than
    all stored ones of their job: what a trial has reported best first.
    """
    left = []
    for trial in state.trials.values():
        attempt = max((number for name, number in trial.unstored if name == instance), default=0)
        job, best = job_of(trial.id), best_value(state, trial)
        if not attempt or best is None or saves_no_model(state, job):
            continue
        worth, model = sign_of(state.facts.goals[job]) * best, incumbent(state, job)
        if model is None or worth > sign_of(state.facts.goals[job]) * model.metric:
            left.append((worth, trial.id, attempt))
    return tuple((name, attempt) for _, name, attempt in sorted(left, reverse=True))


def _most_s(state: State) -> float:
    deadline_s = state.facts.problem.limits.deadline_s
    return max(state.rules.outage_least_s, deadline_s / state.rules.outage_share)
