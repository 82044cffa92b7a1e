"""What travels to people's machines, run by the oldest Python that it claims: the agent, and the
training side inside it.
"""

from __future__ import annotations

import subprocess

import pytest

from seerd.agent.protocol import Checkpointed, Reported, Training
from tests.oldest import OLDEST, oldest_python

TRAINS = """
import sys
import seerd
trial = seerd.trial()
while trial.running():
    trial.report(accuracy=0.5)
print("python", *sys.version_info[:2], flush=True)
"""
SAVES = """
import hashlib, json, os, time
folder = os.environ["SEERD_DIR"]
with open(os.path.join(folder, "trial.json")) as file:
    about = json.load(file)
def tell(**line):
    with open(os.path.join(folder, "out.jsonl"), "a") as out:
        out.write(json.dumps(dict(line, at=time.time())) + "\\n")
before = sorted(name for name in os.listdir(about["checkpoints"]) if name.endswith(".json"))
tell(kind="training", epoch=len(before))
tell(kind="report", epoch=len(before) + 1, metrics={"accuracy": 0.5}, unit_s=0.1)
while not before and not os.path.exists(os.path.join(folder, "stop")):
    time.sleep(0.01)
name, data = "000001-00000010", b"weights" * 100
place = os.path.join(about["checkpoints"], name)
with open(place + ".pt", "wb") as file:
    file.write(data)
with open(place + ".json", "w") as file:
    digest = hashlib.sha256(data).hexdigest()
    about = {"version": 1, "name": name, "epoch": 1, "metrics": {"accuracy": 0.1}}
    json.dump(dict(about, sha256=digest, size=len(data)), file)
tell(kind="checkpoint", name=name, save_s=0.01)
"""


@pytest.fixture
def oldest(rig) -> str:
    """This Python; agents of the rig run on it."""
    rig.python = oldest_python()
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    told = subprocess.run([rig.python, "-c", asked], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == OLDEST
    return rig.python


def test_a_trial_saves_when_it_is_asked_and_goes_on_from_that(rig, oldest):
    client = rig.ready(rig.job(SAVES, python=oldest))
    client.start()
    client.until(Reported)
    client.stop(grace_s=20)
    assert client.exit_of().cause == "asked"
    stored = client.until(Checkpointed)
    client.start(attempt=2, checkpoints=(stored.name,))
    assert client.exit_of(attempt=2).cause == "finished"
    assert client.until(Training, lambda fact: fact.attempt == 2).epoch == 1


def test_a_script_trains_with_the_training_side_and_leaves_when_it_is_asked(rig, oldest):
    client = rig.ready(rig.job(TRAINS, python=oldest))
    client.start()
    client.until(Reported)
    client.stop(grace_s=20)
    assert client.exit_of().cause == "asked"
    log = (rig.attempt() / "logs" / "launcher.log").read_text()
    assert f"python {OLDEST.replace('.', ' ')}" in log
