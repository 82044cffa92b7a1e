#!/usr/bin/env python3
"""A training script of no framework that leaves a trace: one line in `$VIOLENCE_TRACE` for each
thing that it does, whoever lives to hear of it.

It speaks the files of docs/training-side.md with the standard library alone. Its metric after n
reports is 1 - |lr - 0.3| - 0.5 / n.
"""

import fcntl
import hashlib
import json
import os
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["SEERD_DIR"])
TOLD = json.loads((FOLDER / "trial.json").read_text())
CHECKPOINTS = Path(TOLD["checkpoints"])
EPOCH_S = float(os.environ.get("VIOLENCE_EPOCH_S", "0.2"))
EPOCHS = int(os.environ.get("VIOLENCE_EPOCHS", "1000000"))
TRACE = os.environ.get("VIOLENCE_TRACE")


def trace(what, epoch):
    """In one write to the end of the file, so that lines of many processes do not mix."""
    if TRACE is None:
        return
    line = {
        "at": time.time(),
        "trial": TOLD["trial"],
        "attempt": TOLD["attempt"],
        "pid": os.getpid(),
    }
    line |= {"what": what, "epoch": epoch, "gpus": TOLD["gpus"]}
    descriptor = os.open(TRACE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, (json.dumps(line) + "\n").encode())
    os.close(descriptor)


def say(kind, **fields):
    with open(FOLDER / "out.jsonl", "ab", buffering=0) as out:
        out.write((json.dumps({"kind": kind, "at": time.time(), **fields}) + "\n").encode())


def put(path, content):
    part = path.with_name(f".{path.name}")
    with open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


def save(epoch, metrics):
    name = f"{epoch:06d}-{epoch:08d}"
    data = json.dumps({"epoch": epoch, "config": TOLD["config"]}).encode()
    manifest = {"version": 1, "name": name, "epoch": epoch, "metrics": metrics, "size": len(data)}
    manifest["sha256"] = hashlib.sha256(data).hexdigest()
    put(CHECKPOINTS / f"{name}.pt", data)
    put(CHECKPOINTS / f"{name}.json", json.dumps(manifest).encode())
    say("checkpoint", name=name, save_s=0.001)
    trace("saved", epoch)


def restored():
    """The epoch of the newest checkpoint that is whole."""
    for path in sorted(CHECKPOINTS.glob("[0-9]*.json"), reverse=True):
        data = path.with_suffix(".pt").read_bytes()
        if hashlib.sha256(data).hexdigest() == json.loads(path.read_text())["sha256"]:
            return json.loads(data)["epoch"]
    return 0


def must_leave():
    """Asked to, or the agent is dead: its lock is free."""
    if (FOLDER / "stop").exists():
        return True
    with open(os.environ["SEERD_AGENT_LOCK"]) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def stand_by():
    """The part of any other rank."""
    while not must_leave() and not (FOLDER / "done").exists():
        time.sleep(0.05)


def main():
    if os.environ.get("RANK", "0") != "0":
        return stand_by()
    epoch = restored()
    trace("begin", epoch)
    say("training", epoch=epoch)
    print(f"training from {epoch}", flush=True)
    while epoch < EPOCHS and not must_leave():
        time.sleep(EPOCH_S)
        epoch += 1
        trace("epoch", epoch)
        metrics = {"accuracy": 1 - abs(TOLD["config"]["lr"] - 0.3) - 0.5 / epoch}
        say("report", epoch=epoch, metrics=metrics, unit_s=EPOCH_S)
        save(epoch, metrics)
    (FOLDER / "done").touch()
    return None


sys.exit(main())
