#!/usr/bin/env python3
"""A training script of no framework: speaks the files of docs/training-side.md with the standard
library alone, and starts in 30 ms. Under torchrun rank 0 does so, and the others wait beside it.

Its metric after n reports is 1 - |lr - 0.3| - 0.5 / n. `SEERD_TEST_*` environment variables make it
misbehave; once there is a file `SEERD_TEST_END`, no trial goes on beyond its next report.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["SEERD_DIR"])
TOLD = json.loads((FOLDER / "trial.json").read_text())
CHECKPOINTS = Path(TOLD["checkpoints"])
EPOCHS = int(os.environ.get("SEERD_TEST_EPOCHS", "1000000"))
END = os.environ.get("SEERD_TEST_END")
METRIC = os.environ.get("SEERD_TEST_METRIC", "accuracy")
EPOCH_S = float(os.environ.get("SEERD_TEST_EPOCH_S", "0.2"))


def say(kind, **fields):
    with open(FOLDER / "out.jsonl", "ab", buffering=0) as out:
        out.write((json.dumps({"kind": kind, "at": time.time(), **fields}) + "\n").encode())


def save(epoch, metrics):
    name = f"{epoch:06d}-{epoch:08d}"
    data = json.dumps({"epoch": epoch}).encode()
    manifest = {"version": 1, "name": name, "epoch": epoch, "metrics": metrics, "size": len(data)}
    manifest["sha256"] = hashlib.sha256(data).hexdigest()
    for suffix, content in ((".pt", data), (".json", json.dumps(manifest).encode())):
        part = CHECKPOINTS / f".{name}{suffix}"
        part.write_bytes(content)
        part.rename(CHECKPOINTS / f"{name}{suffix}")
    say("checkpoint", name=name, save_s=0.001)


def restored():
    saved = sorted(CHECKPOINTS.glob("[0-9]*.pt"))
    return json.loads(saved[-1].read_text())["epoch"] if saved else 0


def accuracy(reports):
    return 1 - abs(TOLD["config"]["lr"] - 0.3) - 0.5 / reports


def ended():
    return END is not None and Path(END).exists()


def stand_by():
    """The part of any other rank."""
    while not (FOLDER / "stop").exists() and not (FOLDER / "done").exists():
        time.sleep(0.05)


def main():
    if os.environ.get("RANK", "0") != "0":
        return stand_by()
    epoch = restored()
    say("training", epoch=epoch)
    print(f"training from {epoch}", flush=True)
    while not (FOLDER / "stop").exists() and epoch < EPOCHS and not (epoch and ended()):
        time.sleep(EPOCH_S)
        epoch += 1
        if TOLD["trial"] == os.environ.get("SEERD_TEST_CRASH"):
            print("out of luck", file=sys.stderr)
            sys.exit(3)
        say("report", epoch=epoch, metrics={METRIC: accuracy(epoch)}, unit_s=EPOCH_S)
        last = [accuracy(n) for n in range(max(1, epoch - TOLD.get("smooth", 1) + 1), epoch + 1)]
        save(epoch, {METRIC: sum(last) / len(last)})
    (FOLDER / "done").touch()
    if not os.environ.get("SEERD_TEST_DEAF"):
        sys.exit(0)
    while True:
        time.sleep(1)


main()
