"""Notes, complaints of agents and obstacles of trials in sentences: what happened, what to do."""

from __future__ import annotations

from seerd.core.last_words import error_line
from seerd.core.state import Complaint, Note, State
from seerd.telling.hints import hint

SIDE = "docs/training-side.md"
IN_THE_WAY: dict[str, str] = {
    "address": "an address was in use",
    "device": "a device was busy",
    "lock": "a lock was held",
    "network": "a server could not be reached",
}
"""`Obstacle` -> how it is written."""
ADVICE: dict[str, str] = {
    "address": "have the script ask for port 0, so that each trial gets a port of its own",
    "device": "nvidia-smi shows which process has it",
    "lock": "give each trial a file of its own, or have train.setup write what all read",
    "network": "have train.setup fetch what all trials need, or let the script work offline",
}
"""`Obstacle` -> what to do, if the error says nothing more certain."""
TEXTS = {
    "output": "what {trial} writes for seerd cannot be read: {why}; " + SIDE + " has the format",
    "not-stored": "a checkpoint of {trial} could not be stored: {why}; {advice}",
    "untracked": "the checkpoints of {trial} hold no model, since nothing was given to "
    "trial.track(model=..., optimizer=...)",
    "error": "{trial} has written an error and goes on: {error}; {advice}",
    "often": "{trial} reports more often than a run can keep: seerd keeps {why} of its reports a "
    "second, its best and its last one always; it trains as before, and reports are best made once "
    "an epoch",
    "skipped": "{trial} writes faster for seerd than can be read: parts of it were skipped, and "
    "the last of it is read; " + SIDE + " has what to write",
    "waits": "{trial} waits for GPUs, and costs nothing until it has them: {why}",
    "still": "{trial} stands still: {why}; `seerd logs` shows its last words",
    "identical": "{why}",
    **dict.fromkeys(
        IN_THE_WAY,
        "{obstacle} when {trial} began ({error}), whatever its configuration: such trials wait and "
        "count as not tried, and fewer train side by side; {advice}",
    ),
}
"""`Complaint.what` -> template of its sentence."""
ELSE = {"not-stored": "it is tried again", "error": "`seerd logs` shows all of it", **ADVICE}
"""`Complaint.what` -> what to do, if the error says nothing more certain."""

NOTES = {
    "no-instance": "no instance: {}",
    "lost": "{} was lost: {}",
    "may-leave": "the cloud may take {} away; its trials save and stay",
    "leaves": "the cloud will take {} away ({})",
    "unhealthy": "{} is not used any more: {}",
    "shared": "{} is not this run's alone: it may use {} of {} GPUs there, since {}",
    "retired": "{} was rented for the limits that held before, and is replaced",
    "events-missing": "the journal lacks events of {}, from before the run was resumed",
    "unknown-attempt": "the journal lacks {}/{}, which {} reports",
    "declined": "the policy gave no plan that can be used: {}; the last one stands",
    "extended": "the limits were extended",
    "job-added": "{} has come to share the run",
    "job-weighed": "{} has the weight {:g} now",
    "job-over": "{} is over ({})",
    "job-over-since": "{} is over ({}): {}",
    "target": "the target was reached: {}",
    "not-fetched": "the best model, {} of {}, is in the store: {}",
    "unusable": "the checkpoint {} of {} cannot be used: {}",
}
"""`Note.what` -> template of its sentence."""


def complaint_text(state: State, complaint: Complaint) -> str:
    """Return what is wrong, what follows, and what to do."""
    what, why, trial = complaint.what, complaint.why, state.trials.get(complaint.trial)
    lines = why.split("\n") if what in IN_THE_WAY else why.splitlines()
    blocked = what in IN_THE_WAY and trial is not None
    names = tuple(trial.config) if blocked and trial is not None else ()
    return TEXTS.get(what, "{trial}: {why}").format(
        trial=complaint.trial,
        why=why if what in TEXTS else why or what,
        error=error_line(lines) if blocked else error_line(lines).rstrip(": "),
        obstacle=IN_THE_WAY.get(what, ""),
        advice=hint("", lines, state.facts.run if blocked else "RUN", names) or ELSE.get(what, ""),
    )


def complaints_of(state: State) -> dict[str, str]:
    """Return the first complaint of each kind that still holds."""
    return {what: complaint_text(state, one) for what, one in state.signs.complaints.items()}


def notes_of(state: State) -> list[str]:
    """Return what is worth knowing of a run, oldest first."""
    return [_note_text(state, note) for note in state.result.notes]


def _note_text(state: State, note: str | Complaint | Note) -> str:
    if isinstance(note, Note):
        return NOTES[note.what].format(*note.facts)
    return note if isinstance(note, str) else complaint_text(state, note)
