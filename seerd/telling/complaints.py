"""Notes, complaints, obstacles and crashes in sentences: what happened, and what to do.

There is a hint only for words that leave no doubt: a wrong one costs more than none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TypeGuard

from seerd.core.last_words import error_line
from seerd.core.lifecycle import InstancePhase, TrialPhase
from seerd.core.state import Complaint, Instance, Note, State
from seerd.planner.gpu_parts import MOST_PARTS
from seerd.planner.policies import NEED_CURVES

WHAT_TO_DO = r"""
No space left on device|Errno 28\b|Disk quota exceeded|Errno 122\b
    the disk is full: free space, then: seerd resume {run}
No module named '?torch'?(?:\.|\W|$)
    torch is missing where trials run: pip install torch into the Python of train.python, or have
    train.setup do it on other machines
module 'seerd' has no attribute|cannot import name '\w+' from 'seerd'
    if seerd is a file or folder of your own beside the script, it hides the package: rename it
'Trial' object has no attribute '(\w+)'
    hyperparameters are in trial.config: trial.config["{0}"]
report\(\) takes 1 positional argument
    metrics are given by name: trial.report(accuracy=...)
attempted relative import with no known parent package
    the script is a module of a package, and was started as a file: start it with -m, by launcher =
    "command", script = "python", args = ["-m", "package.module", ...]
\(seerd: (\w+) is in train.source, which is not on the module path\)
    {0} lies in train.source: have PYTHONPATH = "." in train.env, which means that folder
No module named '([\w.]+)'
    install {0} into the Python of train.python (by train.setup on other machines); a module of your
    own must lie in train.source and must not be named in .seerdignore
finished its bootstrapping phase|Safe importing of main module|freeze_support\(\)
context has already been set
    with the start method "spawn" each worker imports the script anew: put what it does under if
    __name__ == "__main__":
BrokenProcessPool|TerminatedWorkerError
DataLoader worker .* (?:is killed by signal|exited unexpectedly)
    a worker of the script's own process pool or DataLoader died: if memory ran out, give the script
    fewer workers, or the run fewer slots (cluster.gpus)
seerd: it had (\d+/\d+) of the GPU
    {0} of a GPU has too little memory for one step: give each trial more (p_min in [policy], or
    fewer cluster.parts), or compute fewer samples at a time with trial.batch(total, per_gpu=...)
CUDA out of memory|OutOfMemoryError
    the GPU is too small for one step: compute fewer samples at a time with trial.batch(total,
    per_gpu=...), or bound what makes the model large in [space]
invalid device ordinal
    a trial sees its own GPUs alone, numbered from 0: put the model on trial.device
unable to (?:open|allocate|mmap).*(?:shared memory|/torch_)|insufficient shared memory
    shared memory (/dev/shm) is full: give DataLoader fewer workers, or enlarge it
Weights only load failed|UnpicklingError
    a checkpoint is read without running code: track what has tensors, numbers, text, lists and
    dicts in its state_dict()
Error\(s\) in loading state_dict
    the model is not built as it was when the checkpoint was saved: build it from trial.config alone
unrecognized arguments: (?:true|false)\b|ignored explicit argument '(?:true|false)'
    an option without a value is there or not: amp = ["", "--amp"] in [space], and "{{amp}}" in
    train.args
error: unrecognized arguments: (.+)
    {0} is in train.args, and the script has no such option
error: argument .*invalid \w+ value: '([-+.\w]+(?:[ ,]+[-+.\w]+)+)'
    '{0}' is one argument; for several, make the choices lists, as [[64], [64, 128]]: an argument
    that is nothing but the name in braces becomes one for each element
error: (?:argument |the following arguments)
    the script gets the arguments of train.args, in which {{lr}} is the value of lr; a script that
    imports seerd has all values in trial.config, without arguments
PermissionError: \[Errno 13\] Permission denied: '(?:\S*/work/)?([^'/][^']*)'
    if {0} is a file of the source, of more than 1 MiB or one of many, trials share it, so nobody
    can write to it: name it in .gitignore, and each attempt gets a copy, or write elsewhere
EOFError: EOF when reading a line
    trials have no keyboard: take what the script asks for from train.args or train.env
No such file or directory: '([^/'][^']*)'
    trials run in a copy of train.source: {0} is looked for there; name it by its whole path, or put
    it into train.source
EADDRINUSE|[Aa]ddress already in use
    trials run side by side: let torchrun choose MASTER_PORT, and have servers of your own listen on
    port 0
api_key not configured|wandb.*(?:API key|login)
    trials cannot log in to Weights & Biases: put WANDB_MODE = "offline" into train.env, or log in
    where trials run
"""
"""Patterns in the last lines, each with what to do; `{0}`: its group, `{run}`: the run's name."""
HINTS = {
    "|".join(patterns.splitlines()): " ".join(text.split())
    for patterns, text in re.findall(r"((?:^\S.*\n)+)((?:^    .*\n)+)", WHAT_TO_DO, re.MULTILINE)
}
"""The same: pattern -> what to do."""
KEY = re.compile(r"KeyError: '(\w+)'")
LAST = 8  # how many of the last lines are looked at
OF_SIGNALS = {
    9: "if memory ran out: fewer slots (cluster.gpus), fewer DataLoader workers, a smaller batch",
    7: "often shared memory (/dev/shm) is full: give DataLoader fewer workers, or enlarge it",
    11: "a library crashed, not Python: the log of the trial may have its last words",
}


def hint(why: str, tail: Sequence[str], run: str, names: Sequence[str]) -> str:
    """Return what to do about a crash; empty if nothing is certain.

    why    how the attempt ended
    tail   its last lines
    names  the hyperparameters of its configuration
    """
    text = "\n".join(tail[-LAST:])
    for pattern, what_to_do in HINTS.items():
        if match := re.search(pattern, text):
            return what_to_do.format(*match.groups(), run=run)
    if (match := KEY.search(text)) and match[1] not in names:
        config = ", ".join(names) or "nothing"
        return f"if {match[1]!r} was looked for in trial.config: it has {config}"
    if signal := re.search(r"killed by signal ([0-9]+)", why):
        return OF_SIGNALS.get(int(signal[1]), "")
    status = re.search(r"ended with exit status ([0-9]+)", why)
    if status and status[1] != "0" and "Traceback" not in text and "Error" not in text:
        return f"there is no traceback: the script ended itself, as sys.exit({status[1]}) does"
    return ""


SIDE = "docs/training-side.md"
IN_THE_WAY: dict[str, str] = {
    "address": "an address was in use",
    "device": "a device was busy",
    "lock": "a lock was held",
    "network": "a server could not be reached",
}
"""`Obstacle` -> how it is written."""
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
ELSE = {
    "not-stored": "it is tried again",
    "error": "`seerd logs` shows all of it",
    "address": "have the script ask for port 0, so that each trial gets a port of its own",
    "device": "nvidia-smi shows which process has it",
    "lock": "give each trial a file of its own, or have train.setup write what all read",
    "network": "have train.setup fetch what all trials need, or let the script work offline",
}
"""`Complaint.what` -> what to do, if the error says nothing more certain."""

NOTES = {
    "no-instance": "no instance: {}",
    "lost": "{} was lost: {}",
    "may-leave": "the cloud may take {} away; its trials save and stay",
    "leaves": "the cloud will take {} away ({})",
    "unhealthy": "{} is not used any more: {}",
    "shared": "{} is not this run's alone: it may use {} of {} GPUs there, since {}",
    "kept": "{} is kept for {} for the next run: ${:.4g} and {:.4g} GPU-min are set aside for that",
    "retired": "{} ends before the run does, and is replaced",
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
    blocked = what in IN_THE_WAY and trial is not None
    lines = why.split("\n") if what in IN_THE_WAY else why.splitlines()
    names = tuple(trial.config) if what in IN_THE_WAY and trial is not None else ()
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


def unreached_text(instances: Sequence[Instance]) -> str:
    """Write that these instances cannot be used yet, with each cause once."""
    causes = dict.fromkeys(instance.unreached for instance in instances if instance.unreached)
    those = ", ".join(instance.cloud_id for instance in instances[:MOST_UNREACHED])
    more = len(instances) - MOST_UNREACHED
    those += f" and {more} more" if more > 0 else ""
    return f"{those} cannot be used: {'; '.join(causes)}"


def awaited_notes(state: State) -> list[str]:
    """Return the note that instances run and cannot be logged in to, if there are any."""
    waiting = (i for i in state.fleet.instances.values() if i.phase is InstancePhase.REQUESTED)
    unreached = [instance for instance in waiting if instance.unreached]
    return [unreached_text(unreached)] if unreached else []


MOST_UNREACHED = 3  # how many instances are named that cannot be logged in to
IDLE = "the GPUs computed for {share:.0%} of the time: `cluster.parts = {parts}` may train more"
KNOWN_GPU_S = 30.0  # least GPU-seconds of which the utilisation must be known, to say so
MOST_BUSY, WELL_IDLE = 0.75, 0.6  # GPUs that compute more are busy; those below have room for four
REPORT_ONCE = (
    "a training makes one report here, so {} has nothing to compare while trials train; "
    'policy.name = "seer+" learns from what each of them came to'
)
LEAST_TRAININGS = 3  # with one report each, before that is said


def notes_of(state: State) -> list[str]:
    """Return what is worth knowing of a run, oldest first; launches refused for one reason have one
    note.
    """
    refused = Counter(note.facts for note in state.result.notes if _is_refusal(note))
    texts = [*awaited_notes(state), *lacking_curves(state), *idle_gpus(state)]
    for note in state.result.notes:
        if _is_refusal(note):
            if times := refused.pop(note.facts, 0):
                text = NOTES[note.what].format(*note.facts)
                texts.append(text + (f" ({times} times)" if times > 1 else ""))
        elif isinstance(note, Note):
            texts.append(NOTES[note.what].format(*note.facts))
        else:
            texts.append(note if isinstance(note, str) else complaint_text(state, note))
    return texts


def _is_refusal(note: object) -> TypeGuard[Note]:
    return isinstance(note, Note) and note.what == "no-instance"


def idle_gpus(state: State) -> list[str]:
    """Return the note that GPUs had time for more trials, if that was seen and they may be shared.
    It counts only time in which a trial had the GPU.
    """
    known_gpu_s = sum(instance.known_gpu_s for instance in state.fleet.instances.values())
    busy_gpu_s = sum(instance.busy_gpu_s for instance in state.fleet.instances.values())
    parts, params = state.facts.parts, state.facts.problem.params
    share = busy_gpu_s / known_gpu_s if known_gpu_s >= KNOWN_GPU_S else 1.0
    needs_whole = state.facts.ideal or params.p_min >= max(2, parts)
    if share >= MOST_BUSY or parts == MOST_PARTS or needs_whole:
        return []
    more = min(MOST_PARTS, parts * (4 if share <= WELL_IDLE else 2))
    return [IDLE.format(share=share, parts=more)]


def lacking_curves(state: State) -> list[str]:
    """Return the note that trials report once, for each policy of the run that needs curves."""
    names: dict[str, None] = {}
    for job in state.jobs:
        ended = [t.reports for t in state.trials_of(job) if t.phase is TrialPhase.FINISHED]
        name = state.facts.problem_of(job).params.name
        if name in NEED_CURVES and len(ended) >= LEAST_TRAININGS and max(ended) == 1:
            names[name] = None
    return [REPORT_ONCE.format(name) for name in names]
