"""Ways to be wrong: each a script and a spec as people write them, and what the answer must say.

The one rule: `says` is what helps, `never` what would send somebody to the wrong place.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SPEC = """\
name = "mine"
metric = {{ name = "{metric}", mode = "max"{constraint} }}
[train]
script = "{name}"
launcher = "{launcher}"
{train}
[space]
lr = {{ low = 1e-4, high = 1.0, log = true }}
[policy]
t_min = "{t_min}"
{policy}
[limits]
deadline = "{deadline}"
budget = "{budget}"
[cluster]
gpus = 3
{cluster}
"""
BOUND = "45s"
"""The deadline of runs that end with it; the others end before."""
TORCHLESS = "TORCHLESS"
"""Stands in a spec for a Python that has no torch."""


def by_reports(reports: int) -> str:
    """A policy under which three trials make so many reports each, and the run is over."""
    return f'name = "sha"\ntrials = 3\nmin_reports = {reports}\nmax_reports = {reports}'


@dataclass(frozen=True, slots=True)
class Mistake:
    """One way to be wrong.

    name      its name in tests
    title     what was done, as a heading
    script    the training script; in Python unless `launcher` is "command"
    says      what the answer must have
    never     what it must not have
    code      exit status
    launcher  as in `[train]`
    train     further lines of `[train]`, shown on the page
    quick     whether trials run in a Python without torch, which starts at once
    deadline  of the run
    policy    further lines of `[policy]`
    t_min     the shortest round
    cluster   further lines of `[cluster]`, shown on the page
    metric    name of the metric
    constraint  as in `[metric]`
    program   name of the script
    files     further files beside the script: name -> content
    hidden    a further line of `[train]` that is not shown
    live      answered while it runs: words of the line that is shown, after which the run is
              interrupted
    """

    name: str
    title: str
    script: str
    says: tuple[str, ...]
    never: tuple[str, ...] = ()
    code: int = 4
    launcher: str = "python"
    train: str = ""
    quick: bool = True
    deadline: str = "40s"
    policy: str = ""
    t_min: str = "2s"
    cluster: str = ""
    metric: str = "accuracy"
    constraint: str = ""
    program: str = "train.py"
    files: dict[str, str] = field(default_factory=dict)
    hidden: str = ""
    live: str = ""

    @property
    def spec(self) -> str:
        """The text of its spec."""
        python = f'python = "{TORCHLESS}"\n' if self.quick and self.launcher != "command" else ""
        python += self.hidden
        return SPEC.format(
            name=self.program,
            launcher=self.launcher,
            train=python + self.train,
            deadline=self.deadline,
            budget="20gpu-min",
            policy=self.policy,
            t_min=self.t_min,
            cluster=self.cluster,
            metric=self.metric,
            constraint=f', constraint = "{self.constraint}"' if self.constraint else "",
        )


MORE_TIME = ("longer --deadline",)
TRACK = ("trial.track",)
UNTRACKED = (
    "train.py gives nothing to trial.track: its checkpoints will hold no model, and a trial that is "
    "stopped goes on with a new one; trial.track(model=model)\n"
)
"""What is told before the start of a script such as `LOOP`, and is true of it: no answer to what it
does wrong besides.
"""
LOOP = """\
import seerd, time
trial = seerd.trial()
while trial.running():
    time.sleep(0.3)
"""
HAND = """\
import json, os, time
folder = os.environ["SEERD_DIR"]
def tell(line):
    with open(f"{folder}/out.jsonl", "a") as out:
        out.write(line + "\\n")
epoch = 0
while not os.path.exists(f"{folder}/stop"):
    time.sleep(0.3)
    epoch += 1
"""

SILENT = (
    Mistake(
        "knows-nothing",
        "The script does not import seerd, and `report` is not in the spec",
        "for epoch in range(3):\n    print('accuracy', 0.9 + epoch / 100)\n",
        ("nothing would report: train.py does not import seerd", "Write `report` into [train]"),
        ("Traceback",),
        code=2,
        train='args = ["--lr", "{lr}"]',
    ),
    Mistake(
        "ends-silent",
        "The script imports seerd, and ends without a report",
        "import seerd\nfor epoch in range(3):\n    print('accuracy', 0.9 + epoch / 100)\n",
        (
            "ended without a report of 'accuracy': call trial.report(accuracy=...)",
            "every trial fails in the same way",
        ),
        (*MORE_TIME, *TRACK, "survived"),
    ),
    Mistake(
        "never-reports",
        "The script imports seerd, never reports, and trains for long",
        "import time, seerd\nwhile True:\n    time.sleep(1)\n",
        (
            "no trial came to trial.running() or reported",
            "trial = seerd.trial(), and trial.report(accuracy=...)",
        ),
        ("survived", *TRACK),
        deadline=BOUND,
    ),
    Mistake(
        "still-quiet",
        "The same, while it runs",
        "import time, seerd\nwhile True:\n    time.sleep(1)\n",
        ("s and no report yet; no trial has come to its first trial.running()",),
        deadline="2m",
        code=130,
        live="no report yet",
    ),
    Mistake(
        "no-report",
        "trial.report() is never called",
        LOOP,
        ("Trials trained, and in ", "does not call trial.report(accuracy=...) in its loop"),
        ("survived", *TRACK),
        deadline=BOUND,
    ),
    Mistake(
        "no-running",
        "trial.running() is never called",
        "import seerd, time\ntrial = seerd.trial()\nfor epoch in range(1000):\n"
        "    time.sleep(0.3)\n    trial.report(accuracy=0.5)\n",
        (
            "no model was saved: trials reported, and never called trial.running()",
            "take the configuration with: seerd best RUN --to DIR",
        ),
        (*MORE_TIME, *TRACK),
        code=0,
        policy=by_reports(3),
    ),
    Mistake(
        "no-parentheses",
        "trial.running without its parentheses",
        "import seerd, time\ntrial = seerd.trial()\nwhile trial.running:\n"
        "    time.sleep(0.3)\n    trial.report(accuracy=0.5)\n",
        ("no model was saved: trials reported, and never called trial.running()",),
        (*MORE_TIME, *TRACK),
        code=0,
        policy=by_reports(3),
    ),
    Mistake(
        "other-name",
        "The report has another name than the spec",
        LOOP + "    trial.report(acc=0.5)\n",
        ("the spec's metric is 'accuracy', and trial.report() was given acc",),
        (*MORE_TIME, *TRACK, "survived"),
    ),
    Mistake(
        "not-finite",
        "Every report is NaN",
        LOOP + "    trial.report(accuracy=float('nan'))\n",
        ("no report had a finite accuracy", "every trial fails in the same way"),
        (*MORE_TIME, *TRACK),
    ),
    Mistake(
        "no-name",
        "The report is given without a name",
        LOOP + "    trial.report(0.5)\n",
        ("metrics are given by name: trial.report(accuracy=...)",),
        (*MORE_TIME, *TRACK),
    ),
    Mistake(
        "no-number",
        "The report is no number",
        LOOP + "    trial.report(accuracy='93 %')\n",
        ("could not convert string to float: '93 %'",),
        (*MORE_TIME, *TRACK),
    ),
    Mistake(
        "malformed",
        "A line in out.jsonl that is not JSON",
        HAND + "    tell(f'accuracy=0.{epoch}')\n",
        (
            "writes for seerd cannot be read: line 1 of its out.jsonl (accuracy=0.1)",
            "docs/training-side.md has the format",
        ),
        (*MORE_TIME, *TRACK, "survived"),
        deadline=BOUND,
    ),
    Mistake(
        "lacks-a-key",
        "A line in out.jsonl that lacks something",
        HAND + "    tell(json.dumps({'kind': 'report', 'metrics': {'accuracy': 0.5}}))\n",
        ("line 1 of its out.jsonl", "'epoch' is missing"),
        (*MORE_TIME, *TRACK, "survived"),
        deadline=BOUND,
    ),
    Mistake(
        "hand-other-name",
        "A report in out.jsonl has another name than the spec",
        HAND
        + "    tell(json.dumps({'kind': 'report', 'epoch': epoch, 'metrics': {'acc': 0.5}}))\n",
        ("no report had a finite accuracy; they had acc",),
        (*MORE_TIME, *TRACK),
    ),
    Mistake(
        "no-constraint-metric",
        "A constraint on what is not reported",
        LOOP + "    trial.report(accuracy=0.5)\n",
        ("the spec has a constraint on 'latency_ms', and trial.report() was given accuracy",),
        constraint="latency_ms < 20",
    ),
    Mistake(
        "constraint",
        "A constraint that no model keeps to",
        LOOP + "    trial.report(accuracy=0.5, latency_ms=25)\n",
        ("no report met latency_ms < 20 (the nearest had 25)",),
        (*MORE_TIME, *TRACK),
        policy=by_reports(3),
        constraint="latency_ms < 20",
    ),
)
CRASHES = (
    Mistake(
        "crash",
        "A mistake of one's own in the loop",
        LOOP + "    model.fit()\n",
        (
            "NameError: name 'model' is not defined",
            'train.py", line 5, in <module>',
            "every trial fails in the same way",
        ),
        (*MORE_TIME, *TRACK, "survived"),
    ),
    Mistake(
        "some-crash",
        "Some configurations crash, others train",
        "import seerd, time\ntrial = seerd.trial()\nif trial.config['lr'] > 0.05:\n"
        "    raise ValueError('lr is too large')\n"
        "while trial.running():\n    time.sleep(0.3)\n    trial.report(accuracy=0.5)\n",
        ("failed: ended with exit status 1", "lr is too large", "take the configuration with"),
        code=0,
        policy=by_reports(3),
    ),
    Mistake(
        "args",
        "Options that the script does not take",
        "import argparse, seerd\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--epochs', type=int)\nparser.parse_args()\n",
        ("error: unrecognized arguments: --epoch-count=3", "the script has no such option"),
        (*MORE_TIME, *TRACK, "survived"),
        train='args = ["--epoch-count=3"]',
    ),
    Mistake(
        "no-attribute",
        "Hyperparameters are looked for on the trial",
        "import seerd\ntrial = seerd.trial()\nprint(trial.lr)\n",
        ("'Trial' object has no attribute 'lr'", 'trial.config["lr"]'),
    ),
    Mistake(
        "no-key",
        "A hyperparameter that the space does not have",
        "import seerd\ntrial = seerd.trial()\nprint(trial.config['momentum'])\n",
        ("KeyError: 'momentum'", "'momentum' was looked for in trial.config: it has lr"),
    ),
    Mistake(
        "no-module",
        "A module that is not installed",
        "import polars_of_mine, seerd\n",
        ("install polars_of_mine into the Python of train.python",),
    ),
    Mistake(
        "no-torch-in-the-script",
        "torch is not installed where a plain Python script wants it",
        "import torch, seerd\n",
        ("torch is missing where trials run: pip install torch",),
    ),
    Mistake(
        "track-without-torch",
        "trial.track() without torch",
        "import seerd\ntrial = seerd.trial()\ntrial.track(model=object())\n",
        ("trial.track() needs torch", "pip install torch"),
    ),
    Mistake(
        "relative-path",
        "Data by a relative path, outside the source",
        "import seerd\nprint(open('../data/train.csv').read())\n",
        ("trials run in a copy of train.source: ../data/train.csv is looked for there",),
    ),
    Mistake(
        "port",
        "A port that another process always has",
        "import socket, seerd\nserver, other = socket.socket(), socket.socket()\n"
        "other.bind(('127.0.0.1', 0))\nserver.bind(other.getsockname())\n",
        (
            "an address was in use when t0001 began",
            "such trials wait and count as not tried",
            "something was always in the way of the trials",
            "have servers of your own listen on port 0",
        ),
        MORE_TIME,
    ),
    Mistake(
        "keyboard",
        "The script asks a question",
        "import seerd\ninput('go on? ')\n",
        ("trials have no keyboard",),
    ),
    Mistake(
        "killed",
        "Something kills the script",
        "import os, signal, seerd\nos.kill(os.getpid(), signal.SIGKILL)\n",
        ("was killed by signal 9 (usually out of memory)", "if memory ran out: fewer slots"),
    ),
    Mistake(
        "no-batch",
        "A global batch that cannot be split",
        "import seerd\ntrial = seerd.trial()\ntrial.batch(0)\n",
        ("ValueError: a batch has at least one sample, not 0",),
    ),
    Mistake(
        "cannot-load",
        "A checkpoint that cannot be loaded safely",
        "import seerd, time\nclass Model:\n    def state_dict(self):\n"
        "        return {'model': self}\n    def load_state_dict(self, state): pass\n"
        "trial = seerd.trial()\ntrial.track(model=Model())\nwhile trial.running():\n"
        "    time.sleep(0.3)\n    trial.report(accuracy=0.5)\n",
        (
            "the state_dict of 'model' holds more than tensors, numbers, texts, lists and dicts",
            "there is a __main__.Model in it",
            "every trial fails in the same way",
        ),
        (*MORE_TIME, "survived"),
        quick=False,
        hidden='preload = ["torch"]\n',  # once for all of its trials
        deadline="60s",
    ),
)
CHECKPOINTS = (
    Mistake(
        "no-checkpoint",
        "A program in another language saves no checkpoint",
        HAND
        + "    tell(json.dumps({'kind': 'report', 'epoch': epoch,\n"
        + "                     'metrics': {'accuracy': 0.5}}))\n",
        ("no model was saved: ", "programs in other languages write checkpoints as"),
        (*MORE_TIME, *TRACK),
        code=0,
        policy=by_reports(3),
    ),
    Mistake(
        "never-there",
        "What train.checkpoint names never appears",
        "import time\nfor epoch in range(1000):\n    time.sleep(0.3)\n    print('accuracy', 0.5)\n",
        ("there is no model: trials reported, and nothing whole was found at train.checkpoint",),
        (*MORE_TIME, *TRACK),
        train="args = ['--lr={lr}']\nreport = 'accuracy {number}'\ncheckpoint = 'model.pt'",
        policy=by_reports(3),
    ),
    Mistake(
        "promised",
        "A program in another language says that it saves checkpoints, and saves none",
        HAND
        + "    tell(json.dumps({'kind': 'report', 'epoch': epoch, 'promises': True,\n"
        + "                     'metrics': {'accuracy': 0.5}}))\n",
        ("there is no model: trials reported, and never called trial.running()",),
        (*MORE_TIME, *TRACK),
        policy=by_reports(3),
    ),
    Mistake(
        "not-tracked",
        "Nothing is given to trial.track()",
        LOOP + "    trial.report(accuracy=0.5)\n",
        ("hold no model, since nothing was given to trial.track(", "take the configuration with"),
        code=0,
        policy=by_reports(3),
    ),
    Mistake(
        "no-store",
        "The folder of checkpoints cannot be written",
        LOOP + "    trial.report(accuracy=0.5)\n",
        ("could not be stored: ", "No such file or directory; it is tried again"),
        (*MORE_TIME, *TRACK),
        cluster='store = "/proc/checkpoints"',
        policy=by_reports(20),
    ),
)
STATIC = (
    Mistake(
        "torchrun-without-torch",
        "torch is not installed, and torchrun is to start trials",
        LOOP + "    trial.report(accuracy=0.5)\n",
        ("nothing was started: torch is not installed for", "-m pip install torch"),
        ("Traceback",),
        code=2,
        launcher="torchrun",
    ),
    Mistake(
        "no-python",
        "A Python that is not there",
        LOOP + "    trial.report(accuracy=0.5)\n",
        ("nothing was started: there is no program python3.99 on this machine",),
        ("Traceback",),
        code=2,
        quick=False,
        train='python = "python3.99"',
    ),
    Mistake(
        "hidden",
        "A folder named seerd beside the script",
        LOOP + "    trial.report(accuracy=0.5)\n",
        ("the folder seerd/ beside it hides the package seerd: rename it",),
        code=2,
        files={"seerd/__init__.py": ""},
    ),
    Mistake(
        "unplaced",
        "A hyperparameter that is in no argument of a script that does not import seerd",
        "print('accuracy', 0.5)\n",
        (
            "space.lr: reaches the script in no way: it is in no argument",
            'as "--lr", "{lr}"',
        ),
        ("Traceback",),
        code=2,
        train="report = 'accuracy {number}'",
    ),
    Mistake(
        "outside",
        "A script outside the source",
        LOOP + "    trial.report(accuracy=0.5)\n",
        ("it must lie inside the source folder",),
        code=2,
        train='source = "lib"',
        files={"lib/model.py": ""},
    ),
    Mistake(
        "store-no-folder",
        "A file where checkpoints are to be kept",
        LOOP + "    trial.report(accuracy=0.5)\n",
        ("cluster.store: found 'notes.txt', it is no folder",),
        code=2,
        cluster='store = "notes.txt"',
        files={"notes.txt": ""},
    ),
    Mistake(
        "not-executable",
        "A program that is not executable",
        "#!/bin/sh\nexit 0\n",
        ("it is not executable; make it so: chmod +x",),
        code=2,
        launcher="command",
        program="./train.sh",
    ),
    Mistake(
        "too-short",
        "Less time than one round takes",
        LOOP + "    trial.report(accuracy=0.5)\n",
        ("nothing was started:", "The smallest limits that allow"),
        code=3,
        deadline="20s",
        t_min="1m",
    ),
    Mistake(
        "larger-loss",
        "A loss is maximised",
        LOOP + "    trial.report(loss=0.5)\n",
        ('metric.mode is "max": the model with the largest loss will be handed back',),
        code=130,
        metric="loss",
        live="metric.mode",
        policy=by_reports(3),
    ),
)
SECTIONS = (
    ("Nothing is reported, or not as it must be", SILENT),
    ("Trials crash", CRASHES),
    ("Checkpoints", CHECKPOINTS),
    ("Before anything is started", STATIC),
)
MISTAKES = tuple(mistake for _, mistakes in SECTIONS for mistake in mistakes)
