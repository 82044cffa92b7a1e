"""What to do about a script that has crashed, from its last words.

There is a hint only for words that leave no doubt: a wrong one costs more than none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class Hint(NamedTuple):
    """What to do about a crash."""

    pattern: str  # what is looked for in the last lines
    sample: str  # such a line, as libraries write it
    text: str  # what to do; `{0}` is what the pattern's group matches, `{run}` the run's name


HINTS: tuple[Hint, ...] = (
    Hint(
        r"No space left on device|Errno 28\b|Disk quota exceeded|Errno 122\b",
        "OSError: [Errno 28] No space left on device",
        "the disk is full: free space, then: seerd resume {run}",
    ),
    Hint(
        r"No module named '?torch'?(?:\.|\W|$)",
        "ModuleNotFoundError: No module named 'torch'",
        "torch is missing where trials run: pip install torch into the Python of "
        "train.python, or have train.setup do it on other machines",
    ),
    Hint(
        r"module 'seerd' has no attribute|cannot import name '\w+' from 'seerd'",
        "AttributeError: module 'seerd' has no attribute 'trial'",
        "if seerd is a file or folder of your own beside the script, it hides the package: "
        "rename it",
    ),
    Hint(
        r"'Trial' object has no attribute '(\w+)'",
        "AttributeError: 'Trial' object has no attribute 'lr'",
        'hyperparameters are in trial.config: trial.config["{0}"]',
    ),
    Hint(
        r"report\(\) takes 1 positional argument",
        "TypeError: Trial.report() takes 1 positional argument but 2 were given",
        "metrics are given by name: trial.report(accuracy=...)",
    ),
    Hint(
        r"attempted relative import with no known parent package",
        "ImportError: attempted relative import with no known parent package",
        "the script is a module of a package, and was started as a file: start it with -m, by "
        'launcher = "command", script = "python", args = ["-m", "package.module", ...]',
    ),
    Hint(
        r"\(seerd: (\w+) is in train.source, which is not on the module path\)",
        "(seerd: pkg is in train.source, which is not on the module path)",
        '{0} lies in train.source: have PYTHONPATH = "." in train.env, which means that folder',
    ),
    Hint(
        r"No module named '([\w.]+)'",
        "ModuleNotFoundError: No module named 'timm'",
        "install {0} into the Python of train.python (by train.setup on other machines); a "
        "module of your own must lie in train.source and must not be named in .seerdignore",
    ),
    Hint(
        r"finished its bootstrapping phase|Safe importing of main module|freeze_support\(\)"
        r"|context has already been set",
        "RuntimeError: context has already been set",
        'with the start method "spawn" each worker imports the script anew: put what it does under '
        'if __name__ == "__main__":',
    ),
    Hint(
        r"BrokenProcessPool|TerminatedWorkerError"
        r"|DataLoader worker .* (?:is killed by signal|exited unexpectedly)",
        "concurrent.futures.process.BrokenProcessPool: A process in the process pool was "
        "terminated abruptly while the future was running or pending.",
        "a worker of the script's own process pool or DataLoader died: if memory ran out, give the "
        "script fewer workers, or the run fewer slots (cluster.gpus)",
    ),
    Hint(
        r"CUDA out of memory|OutOfMemoryError",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "the GPU is too small for one step: compute fewer samples at a time with "
        "trial.batch(total, per_gpu=...), or bound what makes the model large in [space]",
    ),
    Hint(
        r"invalid device ordinal",
        "RuntimeError: CUDA error: invalid device ordinal",
        "a trial sees its own GPUs alone, numbered from 0: put the model on trial.device",
    ),
    Hint(
        r"unable to (?:open|allocate|mmap).*(?:shared memory|/torch_)|insufficient shared memory",
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2>",
        "shared memory (/dev/shm) is full: give DataLoader fewer workers, or enlarge it",
    ),
    Hint(
        r"Weights only load failed|UnpicklingError",
        "_pickle.UnpicklingError: Weights only load failed.",
        "a checkpoint is read without running code: track what has tensors, numbers, text, "
        "lists and dicts in its state_dict()",
    ),
    Hint(
        r"Error\(s\) in loading state_dict",
        "RuntimeError: Error(s) in loading state_dict for Net:",
        "the model is not built as it was when the checkpoint was saved: build it from "
        "trial.config alone",
    ),
    Hint(
        r"unrecognized arguments: (?:true|false)\b|ignored explicit argument '(?:true|false)'",
        "train.py: error: unrecognized arguments: true",
        'an option without a value is there or not: amp = ["", "--amp"] in [space], and "{{amp}}" '
        "in train.args",
    ),
    Hint(
        r"error: unrecognized arguments: (.+)",
        "train.py: error: unrecognized arguments: --epoch-count=3",
        "{0} is in train.args, and the script has no such option",
    ),
    Hint(
        r"error: argument .*invalid \w+ value: '([-+.\w]+(?:[ ,]+[-+.\w]+)+)'",
        "train.py: error: argument --layers: invalid int value: '64 128'",
        "'{0}' is one argument; for several, make the choices lists, as [[64], [64, 128]]: an "
        "argument that is nothing but the name in braces becomes one for each element",
    ),
    Hint(
        r"error: (?:argument |the following arguments)",
        "train.py: error: argument --lr: invalid float value: 'x'",
        "the script gets the arguments of train.args, in which {{lr}} is the value of lr; a script "
        "that imports seerd has all values in trial.config, without arguments",
    ),
    Hint(
        r"PermissionError: \[Errno 13\] Permission denied: '(?:\S*/work/)?([^'/][^']*)'",
        "PermissionError: [Errno 13] Permission denied: 'base.db'",
        "if {0} is a file of the source, of more than 1 MiB or one of many, trials share it, so "
        "nobody can write to it: name it in .gitignore, and each attempt gets a copy, or write "
        "elsewhere",
    ),
    Hint(
        r"EOFError: EOF when reading a line",
        "EOFError: EOF when reading a line",
        "trials have no keyboard: take what the script asks for from train.args or train.env",
    ),
    Hint(
        r"No such file or directory: '([^/'][^']*)'",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'",
        "trials run in a copy of train.source: {0} is looked for there; name it by its whole "
        "path, or put it into train.source",
    ),
    Hint(
        r"EADDRINUSE|[Aa]ddress already in use",
        "OSError: [Errno 98] Address already in use",
        "trials run side by side: let torchrun choose MASTER_PORT, and have servers of your "
        "own listen on port 0",
    ),
    Hint(
        r"api_key not configured|wandb.*(?:API key|login)",
        "wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=...)",
        'trials cannot log in to Weights & Biases: put WANDB_MODE = "offline" into train.env, '
        "or log in where trials run",
    ),
)
KEY = re.compile(r"KeyError: '(\w+)'")
LAST = 8
"""How many of the last lines are looked at."""
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
    for one in HINTS:
        if found := re.search(one.pattern, text):
            return one.text.format(*found.groups(), run=run)
    if (found := KEY.search(text)) and found[1] not in names:
        given = ", ".join(names) or "nothing"
        return f"if {found[1]!r} was looked for in trial.config: it has {given}"
    if signal := re.search(r"killed by signal ([0-9]+)", why):
        return OF_SIGNALS.get(int(signal[1]), "")
    status = re.search(r"ended with exit status ([0-9]+)", why)
    if status and status[1] != "0" and "Traceback" not in text and "Error" not in text:
        return f"there is no traceback: the script ended itself, as sys.exit({status[1]}) does"
    return ""
