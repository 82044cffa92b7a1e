"""Scripts that do not import seerd, under real agents: reported, saved, stopped, resumed, moved."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.testbed.agents import Client, Rig
from seerd.agent.patterns import ObservedScript
from seerd.agent.protocol import (
    Checkpointed,
    Complained,
    Refused,
    Reported,
    Start,
    Training,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "argparse" / "train.py"
ACCURACY = {"accuracy": r"accuracy ([0-9.]+)"}
SAVES = ObservedScript(ACCURACY, "out/last.pt", ["--resume", "{checkpoint}"])
OF_EXAMPLE = {"launcher": "python", "names": ["lr"], "observed": SAVES}


LIKE_IT = """
import argparse, json, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--epochs", type=int)
parser.add_argument("--resume")
args = parser.parse_args()
done = json.load(open(args.resume))["epoch"] if args.resume else 0
if done:
    print(f"going on after epoch {done}")
os.makedirs("out", exist_ok=True)
for epoch in range(done + 1, args.epochs + 1):
    time.sleep(0.2)
    print(f"epoch {epoch}: loss 0.1, accuracy {1 - 0.5 / epoch:.4f}", flush=True)
    json.dump({"epoch": epoch}, open("out/part", "w"))
    os.replace("out/part", "out/last.pt")
"""
"""Options, lines and a file as the example's, without torch, which takes seconds to import."""


def ready(rig: Rig, epochs: int, script: str = LIKE_IT, **more: Any) -> Client:
    args = ["--lr", "{lr}", "--epochs", str(epochs)]
    return rig.ready(rig.job(script, args=args, **OF_EXAMPLE, **more))


def saved(client: Client, attempt: int, at_least: int = 1) -> Checkpointed:
    found = client.until(
        Checkpointed, lambda fact: fact.attempt == attempt and fact.epoch >= at_least
    )
    assert isinstance(found, Checkpointed)
    return found


def last_saved(client: Client, attempt: int) -> Checkpointed:
    return [
        fact for fact in client.facts if isinstance(fact, Checkpointed) and fact.attempt == attempt
    ][-1]


def printed(rig: Rig, attempt: int) -> str:
    return (rig.attempt(attempt=attempt) / "logs" / "launcher.log").read_text()


def accuracies(text: str) -> dict[int, float]:
    found = re.findall(r"epoch (\d+): .* accuracy ([0-9.]+)", text)
    return {int(epoch): float(value) for epoch, value in found}


def test_a_script_is_reported_and_its_last_checkpoint_is_what_it_saved_last(rig: Rig) -> None:
    import torch

    client = ready(rig, 4, EXAMPLE.read_text(), preload=[])  # nothing is forked of it
    client.start()
    assert client.exit_of().cause == "finished"
    assert client.until(Training).epoch == 0
    values = accuracies(printed(rig, 1))
    reported = [fact for fact in client.facts if isinstance(fact, Reported)]
    assert {fact.epoch: fact.metrics["accuracy"] for fact in reported} == values
    last = last_saved(client, 1)
    assert (last.epoch, last.metrics) == (4, {"accuracy": values[4]})
    state = torch.load(rig.store / "t1" / f"{last.name}.pt", weights_only=True)
    assert state["epoch"] == 4
    while (rig.attempt() / "work" / "out" / "last.pt").exists():  # it has been kept elsewhere
        time.sleep(0.01)
    assert not (rig.source / "out").exists()


def test_it_stops_resumes_and_moves_to_another_machine_with_nothing_lost(
    two_rigs: list[Rig],
) -> None:
    client = ready(two_rigs[0], 10**6)
    client.start()
    saved(client, 1, at_least=3)
    client.stop(grace_s=20.0)
    assert client.exit_of().cause == "asked"
    first = last_saved(client, 1)
    trained = json.loads((two_rigs[0].store / "t1" / f"{first.name}.pt").read_text())["epoch"]
    assert abs(first.epoch - trained) <= 1  # it prints before it saves

    other = ready(two_rigs[1], trained + 5)
    other.start(attempt=2, checkpoints=(first.name,))
    assert other.exit_of(attempt=2).cause == "finished"
    text = printed(two_rigs[1], 2)
    assert f"going on after epoch {trained}" in text
    assert sorted(accuracies(text)) == list(range(trained + 1, trained + 6))
    assert other.until(Training).epoch == first.epoch
    last = last_saved(other, 2)
    assert last.epoch == first.epoch + 5
    assert last.metrics == {"accuracy": accuracies(text)[trained + 5]}


SLOW = """
import json, os, sys, time
first = json.load(open(sys.argv[2]))["step"] if len(sys.argv) > 1 else 0
for step in range(first + 1, 10**6):
    print("accuracy", step / 100, flush=True)
    {save}
    time.sleep({pause})
"""
IN_PLACE = """
    with open("last.json", "w") as out:
        out.write('{"step": ')
        out.flush()
        time.sleep(0.3)
        out.write(str(step) + '}')
"""
RENAMED = """
    json.dump({"step": step}, open(".last", "w"))
    os.replace(".last", "last.json")
"""


@pytest.mark.parametrize(
    ("save", "pause"), [(IN_PLACE, 0.6), (RENAMED, 0.6), (IN_PLACE, 0.0)], ids=lambda one: None
)
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_no_half_written_file_is_ever_taken(rig: Rig, save: str, pause: float, end: str) -> None:
    """In the last case it is always being written, so nothing is taken at all."""
    script = SLOW.replace("{save}", save.strip()).replace("{pause}", str(pause))
    observed = ObservedScript(ACCURACY, "last.json", ["--resume", "{checkpoint}"])
    client = rig.ready(rig.job(script, observed=observed))
    client.start()
    client.until(Reported, lambda fact: fact.epoch == (5 if pause else 3))
    if end == "stop":
        client.stop(grace_s=6.0)
    else:
        next(p for p in rig.processes_of() if "train.py" in p.cmdline()).kill()
    ended = client.exit_of()
    assert (ended.cause, ended.code) == (
        ("asked", -signal.SIGTERM) if end == "stop" else ("crashed", -signal.SIGKILL)
    )
    taken = [fact for fact in client.facts if isinstance(fact, Checkpointed)]
    assert bool(taken) == (pause > 0)
    for fact in taken[-1:]:
        assert json.loads((rig.store / "t1" / f"{fact.name}.pt").read_text()) == {
            "step": fact.epoch
        }
    if taken:
        client.start(attempt=2, checkpoints=(taken[-1].name,))
        found = client.until(Reported, lambda fact: fact.attempt == 2)
        assert found.metrics["accuracy"] == (taken[-1].epoch + 1) / 100
        client.stop(attempt=2)
        client.exit_of(attempt=2)


SPARSE = """
import json, os, time
for step in range(1, 10**6):
    time.sleep(0.5)
    if step % 3 == 1:
        print("latency 5", flush=True)
    print("accuracy", step / 100, flush=True)
    json.dump({"step": step}, open(".last", "w"))
    os.replace(".last", "last.json")
"""


def test_a_save_has_its_own_report_though_a_constrained_metric_comes_in_every_third(
    rig: Rig,
) -> None:
    patterns = {**ACCURACY, "latency": "latency {number}"}
    observed = ObservedScript(patterns, "last.json", ["--resume", "{checkpoint}"])
    job = replace(rig.job(SPARSE, observed=observed), constraints=["latency < 20"])
    client = rig.ready(job)
    client.start()
    client.until(Reported, lambda fact: fact.epoch == 6)
    client.stop(grace_s=6.0)
    client.exit_of()
    taken = [fact for fact in client.facts if isinstance(fact, Checkpointed)]
    kept = [fact for fact in taken if (rig.store / "t1" / f"{fact.name}.pt").exists()]
    assert len(kept) > 1
    for fact in kept:
        step = json.loads((rig.store / "t1" / f"{fact.name}.pt").read_text())["step"]
        assert fact.metrics == {"accuracy": step / 100, "latency": 5.0}


STEPS = """
import os, time
for step in range(1, 10**6):
    print("accuracy", step / 100, flush=True)
    os.makedirs(f"out/step_{step}")
    for name in ("model", "optimizer"):
        open(f"out/step_{step}/{name}", "w").write(str(step))
        time.sleep(0.3)
    time.sleep(0.6)
"""


def test_a_folder_is_whole_when_the_script_has_gone_on_to_the_next(rig: Rig) -> None:
    observed = ObservedScript(ACCURACY, "out/step_*", ["{checkpoint}"])
    client = rig.ready(rig.job(STEPS, observed=observed))
    client.start()
    client.until(Reported, lambda fact: fact.epoch == 4)
    client.stop(grace_s=2.0)
    client.exit_of()
    taken = [fact for fact in client.facts if isinstance(fact, Checkpointed)]
    assert taken
    assert all(fact.metrics == {"accuracy": fact.epoch / 100} for fact in taken)
    (rig.source / "train.py").write_text(
        "import os, sys\nfor name in ('model', 'optimizer'):\n"
        "    print('read', open(f'{sys.argv[1]}/{name}').read())\nprint('accuracy 1.0')"
    )
    client.start(attempt=2, checkpoints=(taken[-1].name,))
    assert client.exit_of(attempt=2).cause == "finished"
    assert printed(rig, 2).count(f"read {taken[-1].epoch}") == 2


EVERY_MOMENT = """
import os, shutil, time
def put(path, step):
    with open(path, "w") as out:
        out.write(f"{step:08}")
        out.flush()
        out.write(f"{step:08}")
def two(folder, step):
    os.makedirs(folder, exist_ok=True)
    put(f"{folder}/a", step)
    time.sleep({pause} / 2)
    put(f"{folder}/b", step)
def rotated(step):
    two(f"ck/step_{step}", step)
    os.symlink(f"step_{step}", "ck/part")
    os.replace("ck/part", "ck/latest")
    shutil.rmtree(f"ck/step_{step - 1}", ignore_errors=True)
time.sleep(1)
for step in range(1, 10**6):
    time.sleep({pause})
    print("accuracy", (10**6 if step == {best} else step) / 10**7, flush=True)
    {save}
"""


@pytest.mark.parametrize(
    ("path", "save", "pause"),
    [
        ("model", "put('model', step)", 0.05),
        ("model", "put('part', step); os.replace('part', 'model')", 0.1),
        ("ck", "two('ck', step)", 0.2),
        ("ck", "rotated(step)", 0.2),
        ("ck/latest", "rotated(step)", 0.2),
        ("out/checkpoint-*", "two(f'out/checkpoint-{step}', step)", 0.1),
    ],
)
def test_saves_that_come_every_moment_are_taken_whole_with_their_own_metric(
    rig: Rig, path: str, save: str, pause: float
) -> None:
    best, last = (8, 14) if pause >= 0.2 else (20, 40)
    script = EVERY_MOMENT.replace("{save}", save).replace("{best}", str(best))
    observed = ObservedScript(ACCURACY, path, ["{checkpoint}"])
    client = rig.ready(rig.job(script.replace("{pause}", str(pause)), observed=observed))
    client.start()
    client.until(Reported, lambda fact: fact.epoch == last)
    client.stop(grace_s=6.0)
    client.exit_of()
    taken = [fact for fact in client.facts if isinstance(fact, Checkpointed)]
    kept = [fact for fact in taken if (rig.store / "t1" / f"{fact.name}.pt").exists()]
    assert kept
    for fact in kept:
        data = (rig.store / "t1" / f"{fact.name}.pt").read_bytes()
        steps = set(map(int, re.findall(rb"(?<![0-9])([0-9]{8})\1(?![0-9])", data)))
        assert fact.epoch in steps
        assert path == "ck" or len(steps) == 1
        if path != "model":
            assert data.count(b"%08d" % fact.epoch * 2) == 2, "a torn pair"
        value = 10**6 if fact.epoch == best else fact.epoch
        assert fact.metrics == {"accuracy": value / 10**7}
    # A busy machine may miss some of the last saves, but not half of those since the best one.
    assert taken[-1].epoch > (best + last) / 2


HANDLES = """
import os, signal, sys, time
def save(*_):
    os.makedirs("ckpt/last", exist_ok=True)
    for name in ("a", "b"):
        open(f"ckpt/last/{name}", "w").write(name)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("accuracy 0.5", flush=True)
while True:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("launcher", ["python", "torchrun"])
def test_a_script_that_handles_sigterm_saves_a_folder_at_its_end(rig: Rig, launcher: str) -> None:
    observed = ObservedScript(ACCURACY, "ckpt/*", ["{checkpoint}"])
    client = rig.ready(rig.job(HANDLES, launcher=launcher, observed=observed))
    client.start()
    client.until(Reported)
    client.stop(grace_s=20.0)
    assert client.exit_of().cause == "asked"
    name = last_saved(client, 1).name
    (rig.source / "train.py").write_text(
        "import os, sys\nprint('accuracy', 1.0, sys.argv[1:], sorted(os.listdir(sys.argv[1])))"
    )
    client.start(attempt=2, checkpoints=(name,))
    assert client.exit_of(attempt=2).cause == "finished"
    logs = (rig.attempt(attempt=2) / "logs").rglob("*.log")
    assert "1.0 ['ckpt/last'] ['a', 'b']" in "".join(path.read_text() for path in logs)


LINKED = """
import os, sys
if len(sys.argv) > 1:
    print("accuracy", open(f"{sys.argv[1]}/latest/state").read(), os.readlink("ckpt/latest"))
else:
    os.makedirs("ckpt/step_5")
    open("ckpt/step_5/state", "w").write("0.5")
    open("vocab", "w").write("words")
    os.symlink("step_5", "ckpt/latest")
    os.symlink("../vocab", "ckpt/vocab")
    os.symlink("/usr", "ckpt/system")
    print("accuracy 0.5")
"""


def test_links_inside_a_checkpoint_come_back_and_others_are_named(rig: Rig) -> None:
    observed = ObservedScript(ACCURACY, "ckpt", ["{checkpoint}"])
    client = rig.ready(rig.job(LINKED, observed=observed))
    client.start()
    told = client.until(Complained)
    assert told.what == "warning"
    assert "system: nothing of it is saved; vocab: saved as a file of its own" in told.why
    assert client.exit_of().code == 0
    client.start(attempt=2, checkpoints=(last_saved(client, 1).name,))
    assert client.exit_of(attempt=2).code == 0
    assert "accuracy 0.5 step_5" in printed(rig, 2)


SAVED_BY_A_FRAMEWORK = """
import os, seerd
from seerd.training.framework import Framework

trial = seerd.trial()
framework = Framework(trial)
if trial.checkpoint is None:
    folder = framework.folder / "step_5"
    folder.mkdir(parents=True)
    (folder / "state").write_text("0.5")
    os.symlink("state", folder / "latest")
    os.symlink("/usr", folder / "system")
    framework.report({"accuracy": 0.5})
    framework.keep(folder, removes=True)
else:
    print("goes on from", os.readlink(trial.checkpoint / "latest"))
"""


def test_links_of_what_a_framework_saves_come_back_and_those_that_lead_out_are_named(
    rig: Rig,
) -> None:
    client = rig.ready(rig.job(SAVED_BY_A_FRAMEWORK, preload=["torch"]))
    client.start()
    told = client.until(Complained, lambda fact: fact.what != "promised")
    assert told.what == "warning"
    assert told.why == (
        "links in step_5 lead out of the checkpoint: system: nothing of it is saved"
    )
    assert client.exit_of().code == 0
    client.start(attempt=2, checkpoints=(last_saved(client, 1).name,))
    assert client.exit_of(attempt=2).code == 0
    assert "goes on from state" in printed(rig, 2)


def test_a_checkpoint_that_is_a_link_to_the_newest_file_goes_on_as_that_file(rig: Rig) -> None:
    script = (
        "import os, sys\n"
        "seen = open(sys.argv[1]).read() if sys.argv[1:] else 'nothing'\n"
        "os.makedirs('ckpt', exist_ok=True)\n"
        "open('ckpt/ep3.pt', 'w').write('three')\n"
        "os.symlink('ep3.pt', 'ckpt/part')\n"
        "os.replace('ckpt/part', 'ckpt/latest.pt')\n"
        "print('accuracy 0.3', seen)\n"
    )
    observed = ObservedScript(ACCURACY, "ckpt/latest.pt", ["{checkpoint}"])
    client = rig.ready(rig.job(script, observed=observed))
    client.start()
    assert client.exit_of().code == 0
    client.start(attempt=2, checkpoints=(last_saved(client, 1).name,))
    assert client.exit_of(attempt=2).code == 0
    assert "accuracy 0.3 three" in printed(rig, 2)


def test_ranks_of_torchrun_are_heard_once_and_all_are_stopped(rig: Rig) -> None:
    script = (
        "import os, time\nprint('accuracy', int(os.environ['RANK']) + 0.5, flush=True)\n"
        "while True: time.sleep(0.01)"
    )
    client = rig.ready(rig.job(script, launcher="torchrun", observed=ObservedScript(ACCURACY)))
    client.start(gpus=(0, 1))
    assert client.until(Reported).metrics == {"accuracy": 0.5}
    client.stop(grace_s=60.0)
    assert client.exit_of().cause == "asked"
    assert sum(isinstance(fact, Reported) for fact in client.facts) == 1
    assert rig.processes_of() == []


def test_any_program_can_be_observed(rig: Rig) -> None:
    program = rig.source / "train.sh"
    program.write_text('#!/bin/sh\necho "loss=$1 $(cat data.txt)"\necho "$1" > out.txt\n')
    program.chmod(0o755)
    (rig.source / "data.txt").write_text("accuracy 0.25")
    job = replace(
        rig.job(launcher="command", args=["{lr}"], names=["lr"]),
        script="train.sh",
        observed=ObservedScript({**ACCURACY, "loss": "loss=(.*?) "}, "out.txt"),
    )
    client = rig.ready(job)
    client.start()
    assert client.exit_of().cause == "finished"
    assert client.until(Reported).metrics == {"accuracy": 0.25, "loss": 0.1}
    assert (rig.store / "t1" / f"{last_saved(client, 1).name}.pt").read_text() == "0.1\n"


def test_trials_beside_each_other_do_not_meet(rig: Rig) -> None:
    client = ready(rig, 3)
    client.start("a")
    client.start("b", gpus=(1,))
    for trial in ("a", "b"):
        assert client.exit_of(trial).cause == "finished"
        assert client.until(Checkpointed, lambda fact, trial=trial: fact.trial == trial)
    assert sorted(path.name for path in rig.source.iterdir()) == ["train.py"]


def test_a_checkpoint_of_a_script_that_imports_seerd_is_not_given_to_one_that_does_not(
    rig: Any,
) -> None:
    folder = rig.store / "t1"
    folder.mkdir(parents=True)
    data = b"tracked"
    (folder / "000001-00000001.pt").write_bytes(data)
    manifest = {
        "version": 1, "name": "000001-00000001", "epoch": 1, "metrics": {"accuracy": 0.5},
        "sha256": hashlib.sha256(data).hexdigest(), "size": len(data),
    }  # fmt: skip
    (folder / "000001-00000001.json").write_text(json.dumps(manifest))
    client = ready(rig, 3)
    client.start(checkpoints=("000001-00000001",))
    assert "imports seerd" in client.until(Refused).why
    shutil.rmtree(folder)


def test_an_attempt_that_nobody_observes_any_more_ends(rig: Rig) -> None:
    client = ready(rig, 10**6)
    client.start()
    client.until(Reported)
    (observer,) = [
        process for process in rig.processes_of() if "observer" in " ".join(process.cmdline())
    ]
    observer.send_signal(signal.SIGKILL)
    assert client.exit_of().cause == "crashed"
    assert rig.processes_of() == []


CRASHES = """
import json, time
for epoch in range(1, 4):
    json.dump({"epoch": epoch}, open("last.pt", "w"))
    print(f"epoch {epoch} accuracy 0.{epoch}", flush=True)
    time.sleep(0.5)
raise ValueError("enough")
"""


def test_what_a_script_saved_last_is_kept_though_it_crashes_under_torchrun(rig: Rig) -> None:
    observed = ObservedScript(ACCURACY, "last.pt", [])
    client = rig.ready(rig.job(CRASHES, launcher="torchrun", observed=observed))
    client.start()
    assert client.exit_of().cause == "crashed"
    assert last_saved(client, 1).epoch == 3


GOES_SILENT = """
import json, os, time
def save(epoch):
    json.dump({"epoch": epoch}, open(".last", "w"))
    os.replace(".last", "last.json")
for epoch in range(1, 20):
    if epoch < 3:
        print(f"epoch {epoch}: accuracy 0.{epoch}", flush=True)
    save(epoch)
    time.sleep(0.8)
"""


def test_a_save_without_a_report_since_the_last_one_has_no_metric(rig: Rig) -> None:
    client = rig.ready(rig.job(GOES_SILENT, observed=ObservedScript(ACCURACY, "last.json", [])))
    client.start()
    assert client.exit_of().cause == "finished"
    last = last_saved(client, 1)
    assert (last.epoch, last.metrics) == (2, {"accuracy": None})
    for manifest in (rig.store / "t1").glob("*.json"):
        told = json.loads(manifest.read_text())
        state = json.loads(manifest.with_suffix(".pt").read_text())
        assert told["metrics"] == {"accuracy": state["epoch"] / 10 if state["epoch"] < 3 else None}
    assert any(fact.metrics["accuracy"] for fact in client.facts if isinstance(fact, Checkpointed))


TWICE = """
import json, time
for epoch in range(1, 4):
    print(f"epoch {epoch}: accuracy 0.{epoch}", flush=True)
    for name in ("last", "best"):
        json.dump({"epoch": epoch}, open(f"{name}.json", "w"))
    time.sleep(0.6)
"""


def test_files_that_are_saved_at_once_have_one_metric(rig: Rig) -> None:
    client = rig.ready(rig.job(TWICE, observed=ObservedScript(ACCURACY, "*t.json", [])))
    client.start()
    assert client.exit_of().cause == "finished"
    assert last_saved(client, 1).metrics == {"accuracy": 0.3}


def test_the_first_report_of_an_attempt_has_its_line(rig: Rig) -> None:
    script = "print('epoch 1:  accuracy 0.5,', 'x' * 300)\nprint('epoch 2:  accuracy 0.6')"
    client = rig.ready(rig.job(script, observed=ObservedScript(ACCURACY)))
    client.start()
    assert client.exit_of().cause == "finished"
    first, second = (fact for fact in client.facts if isinstance(fact, Reported))
    assert first.line.startswith("epoch 1:  accuracy 0.5, xxx")
    assert (len(first.line), second.line) == (200, "")


def test_what_may_be_wrong_with_patterns_is_told_once_each(rig: Rig) -> None:
    script = "for _ in range(2): print('accuracy 0,93')"
    observed = ObservedScript({"accuracy": "accuracy {number}", "latency": "latency {number}"})
    client = rig.ready(replace(rig.job(script, observed=observed), constraints=["latency < 20"]))
    client.start()
    assert client.exit_of().cause == "finished"
    told = {fact.what: fact.why for fact in client.facts if isinstance(fact, Complained)}
    assert "'0,93'" in told["number"]
    assert told["constraint"].startswith("latency is constrained")
    assert [fact.metrics for fact in client.facts if isinstance(fact, Reported)] == [
        {"accuracy": 0.0}
    ] * 2


GETS = """
import json, os, sys
told = {"argv": sys.argv[1:], "file": json.load(open("conf/config.json")), "at": os.getcwd()}
told |= {name: os.environ.get(name) for name in ("LR", "MOMENTUM", "GPUS")}
print("got", json.dumps(told))
print("accuracy 0.5")
"""


def test_values_reach_arguments_variables_and_files_of_each_attempt(rig: Rig) -> None:
    """A file is filled in the attempt's own folder, and stays what it was in the source."""
    config = {"optim.lr": -1e-05, "layers": [64, [3]], "name": "a b"}
    (rig.source / "conf").mkdir()
    template = '{"lr": {optim.lr}, "layers": {layers}, "m": {momentum}, "n": "{name}"}\r\n'
    (rig.source / "conf" / "config.json").write_bytes(template.encode())
    job = rig.job(
        GETS,
        args=["--lr", "{optim.lr}", "--layers", "{layers}", "--m", "{momentum}", "-p={gpus}"],
        env={"LR": "{optim.lr}", "MOMENTUM": "{momentum}", "GPUS": "{gpus}"},
        names=[*config, "momentum"],
        fill=["conf/config.json"],
        launcher="python",
        observed=ObservedScript(ACCURACY),
        setup=['test -z "${LR+set}"'],
    )
    client = rig.ready(job)
    client.say(Start("start", "t1", 1, [0, 1], config, 17, []))
    assert client.exit_of().cause == "finished"
    (line,) = (line for line in printed(rig, 1).splitlines() if line.startswith("got "))
    got = json.loads(line[4:])
    assert got["argv"] == ["--lr=-1.0e-05", "--layers", "64", "[3]", "-p=2"]
    assert (got["LR"], got["MOMENTUM"], got["GPUS"]) == ("-1.0e-05", None, "2")
    assert got["file"] == {"lr": -1e-05, "layers": [64, [3]], "m": None, "n": "a b"}
    filled = Path(got["at"], "conf", "config.json").read_bytes()
    assert filled.endswith(b'"n": "a b"}\r\n')
    assert (rig.source / "conf" / "config.json").read_bytes() == template.encode()
