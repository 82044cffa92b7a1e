"""What to do about a script that has crashed, from its last words.

There is a hint only for words that leave no doubt: a wrong one costs more than none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

TEXTS = r"""
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
    for patterns, text in re.findall(r"((?:^\S.*\n)+)((?:^    .*\n)+)", TEXTS, re.MULTILINE)
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
